#include "clients/cpp/terminal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

TEST(EscapeControls, LeavesTextAlone) {
  for (const char* text : {"", "plain", "two\nlines\tand a tab\n", "caf\xC3\xA9 \xE2\x82\xAC \\ \"",
                           "\xC2\xA0\xC2\xA1\xF0\x9F\x98\x80"}) {
    EXPECT_EQ(EscapeControls(text), text);
  }
}

TEST(EscapeControls, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(EscapeControls("a\x1b[31mred"), "a\\u001b[31mred");
  EXPECT_EQ(EscapeControls(std::string("\0\x07\r\x7f", 4)), "\\u0000\\u0007\\u000d\\u007f");
  EXPECT_EQ(EscapeControls("\xC2\x9b"
                           "0m\xC2\x80"),
            "\\u009b0m\\u0080");  // C1
  EXPECT_EQ(EscapeControls("\x9b"
                           "0m"),
            "\\x9b0m");  // C1 in Latin-1
  EXPECT_EQ(EscapeControls("\xFF\xC2"), "\\xff\\xc2");
}

TEST(EscapeControls, ShowsWhatTurnsTheDirectionOfText) {
  EXPECT_EQ(EscapeControls("a\u202Eb\u202C \u2066c\u2069 \u200F\u061C"),
            "a\\u202eb\\u202c \\u2066c\\u2069 \\u200f\\u061c");
  EXPECT_EQ(EscapeControls("\u2028\u2029"), "\\u2028\\u2029");
  // Letters, joiners and spaces are not.
  const char* const text = "\u200D\u2027\u202F\u2065\u206A\u05D0\uFEFF";
  EXPECT_EQ(EscapeControls(text), text);
}

TEST(TerminalText, EscapesForTerminalsOnly) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal) | unlockpt(terminal), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(TerminalText(terminal, "\x1b]0;title\x07"), "\\u001b]0;title\\u0007");
  EXPECT_EQ(TerminalText(ends[1], "\x1b]0;title\x07"), "\x1b]0;title\x07");
  close(terminal);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace polysketch
