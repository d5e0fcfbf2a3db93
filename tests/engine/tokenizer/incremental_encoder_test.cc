// Incremental encoding against SentencePiece's own encoding of the whole text (EncodePart of all of
// it is exactly that).
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/engine/tokenizer/sentencepiece_bytes.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;
using testing::SentencePieceBytes;

struct Incremental {
  std::vector<int32_t> ids;
  size_t before_finish = 0;  // ids that came out before the end
};

// Pieces of `text` of random lengths up to `longest`, cut anywhere, also inside characters.
Incremental EncodeInPieces(const Tokenizer& tokenizer, std::string_view text, int64_t longest,
                           Random* random) {
  IncrementalEncoder encoder(&tokenizer);
  Incremental out;
  const auto append = [&](const Result<std::vector<int32_t>>& ids) {
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    out.ids.insert(out.ids.end(), ids->begin(), ids->end());
  };
  while (!text.empty()) {
    const auto size = std::min<size_t>(text.size(), static_cast<size_t>(random->Int(0, longest)));
    append(encoder.Append(text.substr(0, size)));
    text.remove_prefix(size);
  }
  out.before_finish = out.ids.size();
  append(encoder.Finish());
  return out;
}

// Words of letters, punctuation, wide and rare characters, runs of spaces and lines: about `size`
// bytes.
std::string RandomText(size_t size, Random* random) {
  static constexpr std::string_view kParts[] = {"the",
                                                "and",
                                                "of",
                                                "afternoon",
                                                "a",
                                                "b",
                                                "ab",
                                                "ba",
                                                "I",
                                                ".",
                                                ",",
                                                "\"",
                                                "'s",
                                                "--",
                                                "?",
                                                "!",
                                                "0",
                                                "1848",
                                                "\n",
                                                "\n\n",
                                                " ",
                                                "  ",
                                                "\t",
                                                "\xC3\xA9",
                                                "na\xC3\xAFve",
                                                "\xE2\x82\xAC",
                                                "\xE2\x96\x81",
                                                "\xF0\x9F\x98\x80",
                                                "\xE6\xBC\xA2",
                                                "<s>",
                                                "</s>",
                                                "_"};
  std::string text;
  while (text.size() < size) {
    text += kParts[random->Int(0, std::size(kParts) - 1)];
    if (random->Uniform() < 0.5) text += ' ';
  }
  return text;
}

std::unique_ptr<Tokenizer> Load(const std::string& path) {
  Result<std::unique_ptr<Tokenizer>> loaded = Tokenizer::Load(path);
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  return loaded.ok() ? std::move(loaded).value() : nullptr;
}

std::unique_ptr<Tokenizer> LoadBytes(const std::string& bytes) {
  const auto path = std::filesystem::temp_directory_path() / "polysketch-incremental-test.model";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  auto tokenizer = Load(path.string());
  std::filesystem::remove(path);
  return tokenizer;
}

void ExpectSameIds(const Tokenizer& tokenizer, const std::string& text, Random* random,
                   bool expect_early) {
  const Result<std::vector<int32_t>> whole = tokenizer.EncodePart(text, true);
  ASSERT_TRUE(whole.ok());
  const Result<std::vector<int32_t>> encoded = tokenizer.Encode(text);
  ASSERT_TRUE(encoded.ok()) << encoded.status().ToString();
  EXPECT_EQ(*encoded, *whole);
  for (const int64_t longest : {1, 7, 1000, 100000}) {
    if (longest == 1 && text.size() > 20000) continue;
    const Incremental pieces = EncodeInPieces(tokenizer, text, longest, random);
    ASSERT_EQ(pieces.ids, *whole) << "longest=" << longest;
    if (expect_early && text.size() > 20000) {
      EXPECT_GT(pieces.before_finish, whole->size() / 2);
    }
  }
}

TEST(IncrementalEncoderTest, DemoModel) {
  const auto tokenizer = Load((testing::SourceDir() / "models/demo/tokenizer.model").string());
  ASSERT_NE(tokenizer, nullptr);
  Random random(1);
  ExpectSameIds(*tokenizer, "", &random, true);
  ExpectSameIds(*tokenizer, " ", &random, true);
  for (const size_t size : {10, 4095, 4096, 4097, 10000, 30000, 200000}) {
    ExpectSameIds(*tokenizer, RandomText(size, &random), &random, true);
  }
  // One word, with nothing but its own letters to cut at.
  ExpectSameIds(*tokenizer, std::string(20000, 'e'), &random, false);
}

struct Vocabulary {
  int model_type;
  bool byte_fallback;
  bool dummy_prefix;
  bool remove_extra_spaces;
};

class RandomVocabularyTest : public ::testing::TestWithParam<Vocabulary> {};

// Random pieces over a small alphabet, spaces anywhere in them: hardly any place is safe to cut,
// and some are.
TEST_P(RandomVocabularyTest, SameIdsAsTheWhole) {
  const auto [model_type, byte_fallback, dummy_prefix, remove_extra_spaces] = GetParam();
  Random random(static_cast<uint64_t>(model_type * 8 + byte_fallback * 4 + dummy_prefix * 2 +
                                      remove_extra_spaces));
  for (int trial = 0; trial < testing::Count(4, 200); ++trial) {
    SentencePieceBytes bytes;
    bytes.AddPiece("<unk>", 0, SentencePieceBytes::kUnknown);
    bytes.AddPiece("<s>", 0, SentencePieceBytes::kControl);
    bytes.AddPiece("</s>", 0, SentencePieceBytes::kControl);
    if (byte_fallback) {
      for (int b = 0; b < 256; ++b) {
        char piece[8];
        std::snprintf(piece, sizeof(piece), "<0x%02X>", b);
        bytes.AddPiece(piece, 0, SentencePieceBytes::kByte);
      }
    }
    const std::string alphabet[] = {"a", "b", "c", "\xE2\x96\x81", "\n", "\xC3\xA9", "d"};
    std::set<std::string> pieces(std::begin(alphabet), std::begin(alphabet) + 4);
    const int64_t count = random.Int(5, 60);
    while (static_cast<int64_t>(pieces.size()) < count) {
      std::string piece;
      for (int64_t n = random.Int(1, 4); n > 0; --n) piece += alphabet[random.Int(0, 5)];
      pieces.insert(piece);
    }
    float score = 0;
    for (const std::string& piece : pieces) {
      const double kind = random.Uniform();
      const auto type = kind < 0.8                       ? SentencePieceBytes::kNormal
                        : kind < 0.9 && piece.size() > 1 ? SentencePieceBytes::kUserDefined
                        : model_type == 2                ? SentencePieceBytes::kUnused
                                                         : SentencePieceBytes::kNormal;
      bytes.AddPiece(piece, score -= static_cast<float>(random.Int(1, 4)) * 0.25f, type);
    }
    const auto tokenizer =
        LoadBytes(bytes.Model(model_type, byte_fallback, dummy_prefix, remove_extra_spaces));
    ASSERT_NE(tokenizer, nullptr);
    std::string text;
    while (text.size() < 15000) {
      const std::string& c = alphabet[random.Int(0, 6)];
      text += c.size() == 3 ? " " : c;
    }
    ExpectSameIds(*tokenizer, text, &random, false);
  }
}

// Unigram scores here are multiples of 1/4: sums are exact in float, so that ties and rounding
// cannot blur the comparison.
INSTANTIATE_TEST_SUITE_P(
    Kinds, RandomVocabularyTest,
    ::testing::Values(Vocabulary{2, true, true, false}, Vocabulary{2, true, false, false},
                      Vocabulary{2, false, true, false}, Vocabulary{2, true, true, true},
                      Vocabulary{1, true, true, false}, Vocabulary{1, false, true, false},
                      Vocabulary{1, true, false, true}));

TEST(IncrementalEncoderTest, MemoryIsBounded) {
  const auto tokenizer = Load((testing::SourceDir() / "models/demo/tokenizer.model").string());
  ASSERT_NE(tokenizer, nullptr);
  // Text keeps coming out while it goes in.
  Random random(4);
  IncrementalEncoder encoder(tokenizer.get());
  const std::string text = RandomText(1000, &random);
  size_t since = 0;
  for (int i = 0; i < 300; ++i) {
    const auto ids = encoder.Append(text);
    ASSERT_TRUE(ids.ok());
    since = ids->empty() ? since + text.size() : 0;
    ASSERT_LE(since, 2 * Tokenizer::kPartBytes);
  }
  // A word without an end is refused, and the encoder stays in error. Every "ee" is a piece, so no
  // place is safe.
  IncrementalEncoder endless(tokenizer.get());
  Status status;
  const std::string word(1 << 16, 'e');
  for (size_t sent = 0; status.ok() && sent < 2 * Tokenizer::kMaxPartBytes; sent += word.size()) {
    status = endless.Append(word).status();
  }
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_FALSE(endless.Append(" ").ok());
  EXPECT_FALSE(endless.Finish().ok());
}

TEST(IncrementalEncoderTest, InvalidBytes) {
  const auto tokenizer = Load((testing::SourceDir() / "models/demo/tokenizer.model").string());
  ASSERT_NE(tokenizer, nullptr);
  IncrementalEncoder encoder(tokenizer.get());
  ASSERT_TRUE(encoder.Append("abc\xE2").ok());  // may still become a character
  ASSERT_TRUE(encoder.Append("\x82").ok());
  const auto bad = encoder.Append("a");
  ASSERT_FALSE(bad.ok());
  EXPECT_TRUE(bad.status().message().ends_with("offset 3")) << bad.status().ToString();

  IncrementalEncoder cut(tokenizer.get());
  ASSERT_TRUE(cut.Append(std::string(5000, 'a') + " b\xE2\x82").ok());
  const auto end = cut.Finish();
  ASSERT_FALSE(end.ok());
  EXPECT_TRUE(end.status().message().ends_with("offset 5002")) << end.status().ToString();
}

void ExpectRefused(const std::string& bytes, const std::string& words) {
  const auto path = std::filesystem::temp_directory_path() / "polysketch-refused-test.model";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  const auto loaded = Tokenizer::Load(path.string());
  std::filesystem::remove(path);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kInvalidArgument);
  EXPECT_NE(loaded.status().message().find(words), std::string::npos) << loaded.status().ToString();
}

// What would let a text produce control ids is refused.
TEST(TokenizerLoadTest, ModelsWhoseControlPiecesTextCanReach) {
  SentencePieceBytes bytes;
  bytes.AddPiece("<unk>", 0, SentencePieceBytes::kUnknown);
  bytes.AddPiece("<s>", 0, SentencePieceBytes::kControl);
  bytes.AddPiece("a", 0, SentencePieceBytes::kNormal);
  for (const int model_type : {3, 4}) {
    ExpectRefused(bytes.Model(model_type, false, true, false), "model_type");
  }
  SentencePieceBytes single = bytes;
  single.AddPiece("b", 0, SentencePieceBytes::kControl);
  ExpectRefused(single.Model(2, false, true, false), "control piece");
  SentencePieceBytes twice = bytes;
  twice.AddPiece("<s>", 0, SentencePieceBytes::kNormal);
  ExpectRefused(twice.Model(2, false, true, false), "again");
}

// protobuf reads an undefined value of an enum as the field's default: the damage must not pass as
// a normal piece or as a unigram model.
TEST(TokenizerLoadTest, UndefinedTypesAreDamage) {
  SentencePieceBytes bytes;
  bytes.AddPiece("<unk>", 0, SentencePieceBytes::kUnknown);
  bytes.AddPiece("a", 0, SentencePieceBytes::kNormal);
  for (const int model_type : {0, 5, 200}) {
    ExpectRefused(bytes.Model(model_type, false, true, false), "truncated or damaged");
  }
  for (const int piece_type : {0, 7, 200}) {
    SentencePieceBytes damaged = bytes;
    damaged.AddPiece("b", 0, piece_type);
    ExpectRefused(damaged.Model(2, false, true, false), "truncated or damaged");
  }
}

TEST(TokenizerLoadTest, PiecesAreNamed) {
  ExpectRefused(SentencePieceBytes().Model(2, false, true, false), "with pieces, found none");
  for (const std::string_view text : {"", "\xFF"}) {
    SentencePieceBytes bytes;
    bytes.AddPiece("<unk>", 0, SentencePieceBytes::kUnknown);
    bytes.AddPiece(text, 0, SentencePieceBytes::kNormal);
    ExpectRefused(bytes.Model(2, false, true, false), "piece 1: expected UTF-8 text, found");
  }
  SentencePieceBytes byte;
  byte.AddPiece("<unk>", 0, SentencePieceBytes::kUnknown);
  byte.AddPiece("0A", 0, SentencePieceBytes::kByte);
  ExpectRefused(byte.Model(2, true, true, false), "piece 1: expected <0xNN>, found 0A");
}

// SentencePiece would throw an exception while it builds its trie.
TEST(TokenizerLoadTest, PiecesHaveNoNul) {
  for (const std::string_view text : {std::string_view("\0a", 2), std::string_view("a\0", 2)}) {
    SentencePieceBytes bytes;
    bytes.AddPiece("<unk>", 0, SentencePieceBytes::kUnknown);
    bytes.AddPiece(text, 0, SentencePieceBytes::kNormal);
    ExpectRefused(bytes.Model(1, false, true, false), "piece 1: expected no NUL byte, found one");
  }
}

// SentencePiece would read outside of the rules (charsmap_test.cc).
TEST(TokenizerLoadTest, RulesOutsideTheirBytesAreRefused) {
  SentencePieceBytes bytes;
  bytes.AddPiece("<unk>", 0, SentencePieceBytes::kUnknown);
  bytes.AddPiece("a", 0, SentencePieceBytes::kNormal);
  const std::string charsmap("\4\0\0\0\0\4\0\0\0", 9);  // a trie of one unit
  ExpectRefused(bytes.Model(2, false, true, false, charsmap), "precompiled_charsmap: unit 0");
}

}  // namespace
}  // namespace polysketch
