#include "base/program_help.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

CommandHelp Program() {
  CommandHelp inner = {.name = "create",
                       .description = "Creates one.",
                       .footer = "",
                       .options = {{{"--durable"}, "", "Keeps it.", ""}},
                       .commands = {}};
  CommandHelp group = {.name = "session",
                       .description = "Manages sessions.",
                       .footer = "",
                       .options = {},
                       .commands = {inner}};
  CommandHelp complete = {.name = "complete",
                          .description = "Completes.",
                          .footer = ".A dot begins this line.",
                          .options = {{{"-p", "--prompt"}, "TEXT", "A text.", ""},
                                      {{"--prompt-file"}, "FILE", "A file of \"text\\n\".", "-"}},
                          .commands = {}};
  return {
      .name = "some-program",
      .description = "Does things.",
      .footer = "",
      .options = {{{"--device"}, "auto|cpu|cuda", "A device.", "auto"}, {{}, "ID", "An id.", ""}},
      .commands = {complete, group}};
}

TEST(ManPage, ListsOptionsOfAllCommands) {
  EXPECT_EQ(ManPage(Program(), "1.2"),
            R"(.TH "SOME\-PROGRAM" 1 "" "some\-program 1.2" "User Commands"
.SH NAME
some\-program \- Does things.
.SH SYNOPSIS
.B some\-program
[OPTION]... [COMMAND [OPTION]...]
.SH OPTIONS
.TP
.B "\-\-device auto|cpu|cuda"
A device. [auto]
.TP
.B "ID"
An id.
.SH COMMANDS
.SS "complete"
Completes.
.PP
\&.A dot begins this line.
.TP
.B "\-p, \-\-prompt TEXT"
A text.
.TP
.B "\-\-prompt\-file FILE"
A file of "text\en". [\-]
.SS "session"
Manages sessions.
.SS "session create"
Creates one.
.TP
.B "\-\-durable"
Keeps it.
)");
}

// The words that bash offers after the words of a command line, the last of which may be
// unfinished.
std::string Offers(const std::string& words) {
  const auto script = std::filesystem::path(testing::TempDir()) / "completion.bash";
  std::ofstream(script) << BashCompletion(Program());
  const std::string command = "cd / && exec bash --norc -c '. " + script.string() +
                              "; COMP_WORDS=(some-program " + words +
                              "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _some_program; "
                              "echo ${COMPREPLY[*]}'";
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string offers;
  char bytes[4096];
  while (const size_t count = std::fread(bytes, 1, sizeof(bytes), pipe)) {
    offers.append(bytes, count);
  }
  EXPECT_EQ(pclose(pipe), 0);
  return offers;
}

TEST(BashCompletion, OffersWhatMayFollow) {
  EXPECT_EQ(Offers("\"\""), "complete session --device\n");
  EXPECT_EQ(Offers("comp"), "complete\n");
  EXPECT_EQ(Offers("--device c"), "cpu cuda\n");
  EXPECT_EQ(Offers("--device = c"), "cpu cuda\n");
  EXPECT_EQ(Offers("--device cpu complete --prompt"), "--prompt --prompt-file\n");
  EXPECT_EQ(Offers("complete --prompt \"\""), "\n");
  EXPECT_EQ(Offers("complete --prompt-file us"), "usr\n");
  EXPECT_EQ(Offers("complete --prompt-file = us"), "usr\n");
  EXPECT_EQ(Offers("session \"\""), "create\n");
  EXPECT_EQ(Offers("session create -"), "--durable\n");
  EXPECT_EQ(Offers("create -"), "--device\n");
}

}  // namespace
}  // namespace polysketch
