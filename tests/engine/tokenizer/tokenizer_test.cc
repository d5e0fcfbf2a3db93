#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/marked_text.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using testing::Random;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class TokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Tokenizer>> loaded =
        Tokenizer::Load((testing::SourceDir() / "models/demo/tokenizer.model").string());
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    tokenizer_ = std::move(loaded).value();
  }
  std::vector<int32_t> Encode(std::string_view text) {
    Result<std::vector<int32_t>> ids = tokenizer_->Encode(text);
    EXPECT_TRUE(ids.ok()) << ids.status().ToString();
    return ids.ok() ? *ids : std::vector<int32_t>();
  }
  std::string Stream(std::span<const int32_t> ids, bool continued = false) {
    IncrementalDecoder decoder(tokenizer_.get(), continued);
    std::string text;
    for (const int32_t id : ids) text += decoder.Append(id);
    return text + decoder.Finish();
  }
  int32_t ByteId(unsigned char byte) {
    char piece[8];
    std::snprintf(piece, sizeof(piece), "<0x%02X>", byte);
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      if (tokenizer_->Piece(id) == piece) return id;
    }
    return -1;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

// The post-processor of tokenizer.json puts BOS before a text; classes of transformers may leave it
// out.
TEST(TokenizerJson, BeginsWithBos) {
  const testing::TemporaryFolder folder;
  std::filesystem::copy(testing::SourceDir() / "models/demo/tokenizer.json", folder.path());
  const auto begins = [&](const std::string& config) {
    std::ofstream(folder.path() / "tokenizer_config.json") << config;
    const auto loaded = Tokenizer::Load(folder.path(), "tokenizer.json");
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return loaded.ok() && (*loaded)->begins_with_bos();
  };
  EXPECT_TRUE(begins(R"({"bos_token": "<s>"})"));
  EXPECT_TRUE(begins("{}"));
  EXPECT_TRUE(begins(R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": false})"));
  EXPECT_FALSE(begins(R"({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false})"));
  EXPECT_TRUE(begins(R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true})"));
  EXPECT_TRUE(begins(R"({"tokenizer_class": "LlamaTokenizer"})"));
  EXPECT_FALSE(begins(
      R"({"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>", "add_bos_token": false})"));
}

TEST_F(TokenizerTest, KnowsItsVocabulary) {
  EXPECT_EQ(tokenizer_->vocab_size(), 4096);
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  EXPECT_EQ(tokenizer_->eos_id(), 2);
  EXPECT_TRUE(tokenizer_->IsControl(1));
  EXPECT_EQ(tokenizer_->Piece(1), "<s>");
  EXPECT_EQ(tokenizer_->PieceBytes(1), "");
  EXPECT_EQ(tokenizer_->PieceBytes(ByteId(0xE2)), "\xE2");
  EXPECT_TRUE(tokenizer_->StripsLeadingSpace());
}

TEST_F(TokenizerTest, RecordedPrompt) {
  const auto recorded =
      nlohmann::json::parse(ReadFile(testing::SourceDir() / "models/demo/recorded.json"));
  auto ids = recorded["prompt_tokens"].get<std::vector<int32_t>>();
  ASSERT_EQ(ids.front(), 1);
  ids.erase(ids.begin());  // BOS is the server's business
  EXPECT_EQ(Encode(recorded["prompt"].get<std::string>()), ids);
}

// eval.bin was encoded by SentencePiece's own Python package, a whole book at a time.
TEST_F(TokenizerTest, RealBooks) {
  const std::string bytes = ReadFile(testing::SharedDir() / "data/eval.bin");
  if (bytes.empty()) GTEST_SKIP() << "no ../shared/data/eval.bin here";
  std::vector<int32_t> book;
  int books = 0;
  const int most = testing::Count(2, 100);
  for (size_t i = 0; i <= bytes.size() && books < most; i += 2) {
    const int32_t id = i < bytes.size() ? static_cast<unsigned char>(bytes[i]) |
                                              static_cast<unsigned char>(bytes[i + 1]) << 8
                                        : 1;
    if (id != 1) {
      book.push_back(id);
      continue;
    }
    if (!book.empty()) {
      ++books;
      const Result<std::string> text = tokenizer_->Decode(book);
      ASSERT_TRUE(text.ok());
      EXPECT_EQ(Stream(book), *text);
      EXPECT_EQ(Encode(*text), book);
    }
    book.clear();
  }
  EXPECT_GE(books, 1);
}

TEST_F(TokenizerTest, RoundTripsEveryString) {
  for (const std::string text : {"", " ", "  ", "a", " a", "  a  b ", "\n", "\n\n a", "\t",
                                 "na\xC3\xAFve caf\xC3\xA9", "\xE2\x82\xAC 5", "\xF0\x9F\x98\x80!",
                                 "\xE6\xBC\xA2\xE5\xAD\x97", "<s>", "</s> <unk> <0x41>", "a<s>b"}) {
    const Result<std::string> decoded = tokenizer_->Decode(Encode(text));
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(*decoded, text);
    EXPECT_EQ(Stream(Encode(text)), text);
  }
  // A NUL too.
  const std::string nul("a\0b", 3);
  EXPECT_EQ(Stream(Encode(nul)), nul);
}

TEST_F(TokenizerTest, ControlPiecesInTextAreText) {
  for (const std::string_view text :
       {"<s>", "</s>", "<unk>", "say <s> and </s>", "<s>\n</s>", "<0x0A>", "x<s>"}) {
    for (const int32_t id : Encode(text)) {
      EXPECT_FALSE(tokenizer_->IsControl(id)) << text;
      EXPECT_NE(tokenizer_->Piece(id), "<unk>") << text;
    }
  }
}

TEST_F(TokenizerTest, EncodesSpelledControlPieces) {
  const auto try_encode = [&](std::string_view text) {
    return EncodeMarkedText(*tokenizer_, MarkedText(text, TextOrigin::kTemplate), false);
  };
  const auto encode = [&](std::string_view text) { return try_encode(text).value(); };
  EXPECT_EQ(encode("</s>"), std::vector<int32_t>{2});
  EXPECT_EQ(encode("<s></s>"), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(encode(""), std::vector<int32_t>());
  // Text without a control piece is text, of any length.
  for (const std::string& text :
       {std::string("a < b <s </s"), std::string("<unk> <0x0A>"), std::string(100000, '<')}) {
    EXPECT_EQ(encode(text), Encode(text));
  }
  // "▁b" only at the beginning of the text.
  std::vector<int32_t> expected = Encode("say");
  expected.push_back(2);
  IncrementalEncoder rest(tokenizer_.get(), TextPlace::kContinued);
  ASSERT_TRUE(rest.Append("bless me").ok());
  const std::vector<int32_t> end = rest.Finish().value();
  expected.insert(expected.end(), end.begin(), end.end());
  EXPECT_EQ(encode("say</s>bless me"), expected);
  EXPECT_EQ(try_encode("</s>\xFF").status().code(), Code::kInvalidArgument);
}

TEST_F(TokenizerTest, InvalidUtf8NamesTheOffset) {
  for (const auto& [text, offset] : std::vector<std::pair<std::string, size_t>>{
           {"ab\xFF"
            "c",
            2},
           {"\x80", 0},
           {"abc\xE2\x82", 3},
           {"\xED\xA0\x80", 0},
           {std::string(10000, 'a') + " \xC0\x80", 10001}}) {
    const auto ids = tokenizer_->Encode(text);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), Code::kInvalidArgument);
    EXPECT_TRUE(ids.status().message().ends_with("offset " + std::to_string(offset)))
        << ids.status().ToString();
  }
}

TEST_F(TokenizerTest, DecodeNamesAnIdOutside) {
  for (const int32_t id : {-1, 4096, std::numeric_limits<int32_t>::max()}) {
    const auto text = tokenizer_->Decode(std::vector<int32_t>{5, id});
    ASSERT_FALSE(text.ok());
    EXPECT_EQ(text.status().code(), Code::kInvalidArgument);
    EXPECT_NE(text.status().message().find("tokens[1]"), std::string::npos);
  }
}

// The oracle: all bytes first, then characters. The stream must give the same, token by token, and
// only whole characters.
TEST_F(TokenizerTest, StreamOfRandomIds) {
  Random random(2);
  const int32_t first_byte = ByteId(0);
  for (int trial = 0; trial < testing::Count(2000, 50000); ++trial) {
    std::vector<int32_t> ids;
    const int64_t length = random.Int(1, 30);
    for (int64_t i = 0; i < length; ++i) {
      // Mostly byte pieces, and of these mostly the high ones: split, valid and broken characters.
      const double kind = random.Uniform();
      ids.push_back(static_cast<int32_t>(kind < 0.3   ? random.Int(0, 4095)
                                         : kind < 0.8 ? first_byte + random.Int(0x80, 0xFF)
                                                      : first_byte + random.Int(0, 0xFF)));
    }
    const Result<std::string> bytes = tokenizer_->Decode(ids);
    ASSERT_TRUE(bytes.ok());
    // The JSON library replaces maximal subparts as the Unicode standard recommends.
    const std::string json =
        nlohmann::json(*bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const auto expected = nlohmann::json::parse(json).get<std::string>();
    std::string streamed;
    IncrementalDecoder decoder(tokenizer_.get(), false);
    for (const int32_t id : ids) {
      const std::string piece = decoder.Append(id);
      ASSERT_NO_THROW(
          (void)nlohmann::json(piece).dump());  // throws on anything but whole characters
      streamed += piece;
    }
    streamed += decoder.Finish();
    ASSERT_EQ(streamed, expected);
  }
}

TEST_F(TokenizerTest, ControlPiecesAreTextWhereTheyAreAskedFor) {
  std::vector<int32_t> ids = Encode("the end");
  ids.insert(ids.begin(), tokenizer_->bos_id());
  ids.push_back(tokenizer_->eos_id());
  const auto stream = [&](bool skip_control) {
    IncrementalDecoder decoder(tokenizer_.get(), /*continued=*/true, skip_control);
    std::string text;
    for (const int32_t id : ids) text += decoder.Append(id);
    return text + decoder.Finish();
  };
  EXPECT_EQ(stream(true), " the end");
  EXPECT_EQ(stream(false), "<s> the end</s>");
}

TEST_F(TokenizerTest, ContinuedTextKeepsItsSpace) {
  const std::vector<int32_t> ids = Encode("the end");
  EXPECT_EQ(Stream(ids), "the end");
  EXPECT_EQ(Stream(ids, true), " the end");
  // BOS before the first piece changes nothing.
  std::vector<int32_t> with_bos = ids;
  with_bos.insert(with_bos.begin(), 1);
  EXPECT_EQ(Stream(with_bos), "the end");
}

TEST(TokenizerLoadTest, DamagedFilesAreRefused) {
  const std::string good = ReadFile(testing::SourceDir() / "models/demo/tokenizer.model");
  ASSERT_FALSE(good.empty());
  const auto path = std::filesystem::temp_directory_path() / "polysketch-tokenizer-test.model";
  const auto load = [&](std::string_view bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return Tokenizer::Load(path.string());
  };
  EXPECT_TRUE(load(good).ok());
  EXPECT_FALSE(load("").ok());
  EXPECT_FALSE(load("not a model").ok());
  EXPECT_FALSE(load(std::string_view(good).substr(0, good.size() / 2)).ok());
  Random random(3);
  for (int trial = 0; trial < testing::Count(40, 1000); ++trial) {
    std::string bad = good;
    if (trial % 2 == 0)
      bad.resize(static_cast<size_t>(random.Int(0, static_cast<int64_t>(good.size()) - 1)));
    for (int i = 0; i < trial % 5; ++i) {
      if (!bad.empty())
        bad[static_cast<size_t>(random.Int(0, static_cast<int64_t>(bad.size()) - 1))] =
            static_cast<char>(random.Int(0, 255));
    }
    // Some damage leaves a valid model (a letter in a piece): it must then work, otherwise the
    // message names the file.
    const auto loaded = load(bad);
    if (loaded.ok()) {
      EXPECT_TRUE(loaded.value()->Encode("It was late in the afternoon").ok());
    } else {
      EXPECT_NE(loaded.status().message().find(path.string()), std::string::npos);
    }
  }
  std::filesystem::remove(path);
  EXPECT_EQ(Tokenizer::Load(path.string()).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace polysketch
