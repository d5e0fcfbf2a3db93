#include "clients/cpp/input.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/utf8.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

// An open file of `content`.
class Input {
 public:
  explicit Input(const std::string& content) {
    path_ = std::filesystem::temp_directory_path() /
            ("polysketch-input-test-" + std::to_string(getpid()));
    std::ofstream(path_, std::ios::binary) << content;
    file_ = std::move(InputFile::Open(path_)).value();
  }
  ~Input() { std::filesystem::remove(path_); }
  InputFile* file() { return file_.get(); }

 private:
  std::filesystem::path path_;
  std::unique_ptr<InputFile> file_;
};

TEST(Utf8, PrefixesEndBeforeTheFirstBadByte) {
  const std::pair<std::string, size_t> cases[] = {
      {"", 0},
      {"abc", 3},
      {"a\xC3\xA9z", 4},
      {"\xE2\x82\xAC\xF0\x9F\x98\x80", 7},
      {"a\xC3", 1},             // half a character
      {"a\x80", 1},             // a continuation alone
      {"\xC0\x80", 0},          // overlong
      {"\xE0\x9F\xBF", 0},      // overlong
      {"\xED\xA0\x80", 0},      // a surrogate
      {"\xED\x9F\xBF", 3},      // the character before them
      {"\xF4\x8F\xBF\xBF", 4},  // U+10FFFF
      {"\xF4\x90\x80\x80", 0},  // above
      {"\xF5\x80\x80\x80", 0},
      {"ok\xF0\x9F\x98", 2},
  };
  for (const auto& [text, length] : cases) EXPECT_EQ(ValidUtf8Prefix(text), length) << text;
  EXPECT_TRUE(IsUtf8Beginning("\xF0\x9F\x98"));
  EXPECT_FALSE(IsUtf8Beginning("\xF0\x80"));
  EXPECT_FALSE(IsUtf8Beginning("\xFF"));
  EXPECT_FALSE(IsUtf8Beginning("a"));
}

TEST(TextReader, PiecesAreWholeCharactersHoweverTheyAreCut) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += "z\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  for (const size_t piece_bytes : {1, 2, 3, 5, 7, 64, 100000}) {
    Input input(text);
    TextReader reader(input.file());
    std::string joined;
    while (true) {
      const Result<std::string> piece = reader.Read(piece_bytes);
      ASSERT_TRUE(piece.ok()) << piece.status().ToString();
      if (piece->empty()) break;
      EXPECT_EQ(ValidUtf8Prefix(*piece), piece->size());
      joined += *piece;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(TextReader, NamesTheFirstByteThatIsNotUtf8) {
  for (const char* bad : {"\xFF", "\xC3(", "\xE2\x82"}) {
    Input input("caf\xC3\xA9 " + std::string(bad));
    TextReader reader(input.file());
    Result<std::string> piece = reader.Read(3);
    while (piece.ok() && !piece->empty()) piece = reader.Read(3);
    ASSERT_FALSE(piece.ok());
    EXPECT_TRUE(piece.status().message().ends_with(" is not UTF-8 at byte 6"))
        << piece.status().message();
  }
}

TEST(TokenReader, ReadsIdsHoweverTheyAreSpaced) {
  testing::Random random(1);
  std::vector<int32_t> ids;
  std::string text = "\n ";
  while (text.size() < 300 << 10) {
    ids.push_back(static_cast<int32_t>(random.Int(-5, 1 << 30)));
    text += std::to_string(ids.back());
    text += " \n\t\r"[random.Int(0, 3)];
    if (random.Int(0, 9) == 0) text += "   ";
  }
  text += "42";
  ids.push_back(42);

  Input input(text);
  TokenReader reader(input.file());
  std::vector<int32_t> read;
  while (true) {
    const Result<std::vector<int32_t>> some = reader.Read(1000);
    ASSERT_TRUE(some.ok()) << some.status().ToString();
    if (some->empty()) break;
    EXPECT_LE(some->size(), 1000u);
    read.insert(read.end(), some->begin(), some->end());
  }
  EXPECT_EQ(read, ids);
}

TEST(TokenReader, NamesAWordThatIsNoId) {
  const std::pair<std::string, const char*> cases[] = {
      {"1 2 x3 4", "found 'x3' at byte 4"},
      {"1\n22\n3.5", "found '3.5' at byte 5"},
      {"99999999999", "found '99999999999' at byte 0"},
      {"7 " + std::string(1 << 20, '1'), "at byte 2"},
  };
  for (const auto& [text, message] : cases) {
    Input input(text);
    const Result<std::vector<int32_t>> ids = TokenReader(input.file()).Read(1000);
    ASSERT_FALSE(ids.ok());
    EXPECT_NE(ids.status().message().find(message), std::string::npos) << ids.status().message();
  }
}

TEST(InputFile, InterruptEndsAReadThatWaits) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const auto file = InputFile::Open("/dev/fd/" + std::to_string(ends[0]));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  std::thread interrupter([&] { (*file)->Interrupt(); });
  const Result<std::string> bytes = (*file)->Read(100);  // no writer
  interrupter.join();
  ASSERT_TRUE(bytes.ok());
  EXPECT_TRUE(bytes->empty());
  close(ends[0]);
  close(ends[1]);
}

TEST(InputFile, AtEndTakesNothing) {
  bool at_end = true;
  Input some("abc");
  ASSERT_TRUE(some.file()->AtEnd(&at_end).ok());
  EXPECT_FALSE(at_end);
  EXPECT_EQ(some.file()->Read(2).value(), "ab");
  EXPECT_EQ(some.file()->Read(2).value(), "c");
  EXPECT_EQ(some.file()->Read(2).value(), "");
  Input none("");
  ASSERT_TRUE(none.file()->AtEnd(&at_end).ok());
  EXPECT_TRUE(at_end);
}

TEST(InputFile, SaysWhatCannotBeOpened) {
  const auto file = InputFile::Open("/nonexistent/file");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().message(), "cannot open /nonexistent/file: No such file or directory");
}

}  // namespace
}  // namespace polysketch
