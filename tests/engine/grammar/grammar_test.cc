// The grammars of xgrammar in the process that the server starts, on the vocabulary of
// models/demo.
#include "engine/grammar/grammar.h"

#include <chrono>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "engine/grammar/token_masks.h"
#include "engine/sampler/sampling_params.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/environment.h"
#include "tests/testing/slow_expression.h"

namespace polysketch {
namespace {

using Kind = GrammarSource::Kind;
using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr milliseconds kPatience{60'000};

class GrammarTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer =
        Tokenizer::Load((testing::SourceDir() / "models/demo/tokenizer.model").string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    tokenizer_ = std::move(tokenizer).value();
    compiler_ = NewCompiler({});
  }
  std::unique_ptr<GrammarCompiler> NewCompiler(const GrammarLimits& limits) const {
    return std::make_unique<GrammarCompiler>(tokenizer_.get(), tokenizer_->vocab_size(),
                                             std::vector<int32_t>{tokenizer_->eos_id()}, limits);
  }
  std::shared_ptr<const Grammar> Compile(Kind kind, std::string text) {
    auto grammar = compiler_->Compile({kind, std::move(text)});
    EXPECT_TRUE(grammar.ok()) << grammar.status().ToString();
    return grammar.ok() ? *grammar : nullptr;
  }
  static std::vector<int32_t> Allowed(TokenMask mask) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < mask.size() * 32; ++i) {
      if (mask[i / 32] >> (i % 32) & 1) ids.push_back(static_cast<int32_t>(i));
    }
    return ids;
  }
  std::vector<int32_t> Next(TokenMasks* masks) {
    masks->Begin({});
    const auto mask = masks->Await(0, kPatience);
    EXPECT_TRUE(mask.has_value());
    if (!mask || !mask->ok()) {
      ADD_FAILURE() << (mask ? mask->status().ToString() : "late");
      return {tokenizer_->eos_id()};
    }
    return Allowed(**mask);
  }
  // Samples uniformly until EOS, at most 400 tokens; unset if it does not end.
  std::optional<std::string> Sample(const std::shared_ptr<const Grammar>& grammar, uint32_t seed) {
    std::mt19937 random(seed);
    TokenMasks masks(grammar, /*begins_text=*/false);
    std::string text;
    for (int i = 0; i < 400; ++i) {
      const std::vector<int32_t> allowed = Next(&masks);
      const int32_t token = allowed[random() % allowed.size()];
      if (token == tokenizer_->eos_id()) return text;
      text += tokenizer_->PieceBytes(token);
      masks.Accept(token);
    }
    return std::nullopt;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(GrammarTest, TextsMatchARegularExpression) {
  const auto grammar = Compile(Kind::kRegex, "(cat|dog)s? [0-9]{2,4}(\\.[a-f]+)?");
  const std::regex regex("(cat|dog)s? [0-9]{2,4}(\\.[a-f]+)?");
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto text = Sample(grammar, seed);
    ASSERT_TRUE(text.has_value());
    EXPECT_TRUE(std::regex_match(*text, regex)) << *text;
  }
}

TEST_F(GrammarTest, EbnfAllowsEveryTextAndNoOther) {
  const auto grammar = Compile(Kind::kEbnf, R"(root ::= "yes" | "no" | "\x22quoted\x22 é")");
  std::set<std::string> texts;
  for (uint32_t seed = 0; seed < 60; ++seed) texts.insert(Sample(grammar, seed).value_or("none"));
  EXPECT_EQ(texts, (std::set<std::string>{"yes", "no", "\"quoted\" é"}));
}

TEST_F(GrammarTest, RowsFollowDrafts) {
  const auto grammar = Compile(Kind::kRegex, "[0-9]+;");
  TokenMasks alone(grammar, false), drafted(grammar, false);
  const int32_t seven = tokenizer_->Encode("x7").value().back();
  const int32_t letter = tokenizer_->Encode("xa").value().back();
  drafted.Begin(std::vector<int32_t>{seven, seven, letter, seven});
  for (int row = 0; row < 3; ++row) {
    const auto mask = drafted.Await(row, kPatience);
    ASSERT_TRUE(mask && mask->ok());
    EXPECT_EQ(Allowed(**mask), Next(&alone)) << row;
    alone.Accept(seven);
  }
  // Two of the drafts become the output, then another token.
  drafted.Accept(seven);
  drafted.Accept(seven);
  const int32_t end = tokenizer_->Encode("x;").value().back();
  drafted.Accept(end);
  EXPECT_EQ(Next(&drafted), std::vector<int32_t>{tokenizer_->eos_id()});
}

TEST_F(GrammarTest, EachOfTheEosIdsEndsACompleteOutput) {
  const std::vector<int32_t> ends = {tokenizer_->bos_id(), tokenizer_->eos_id()};
  compiler_ = std::make_unique<GrammarCompiler>(tokenizer_.get(), tokenizer_->vocab_size(), ends);
  const auto grammar = Compile(Kind::kRegex, "7+");
  TokenMasks masks(grammar, false);
  const int32_t seven = tokenizer_->Encode("x7").value().back();
  const std::vector<int32_t> first = Next(&masks);
  for (const int32_t end : ends) EXPECT_EQ(std::ranges::find(first, end), first.end());
  // No row follows a draft that ends the output.
  masks.Begin(std::vector<int32_t>{seven, ends[0]});
  ASSERT_TRUE(masks.Await(0, kPatience));
  const auto mask = masks.Await(1, kPatience);
  ASSERT_TRUE(mask && mask->ok());
  const std::vector<int32_t> after = Allowed(**mask);
  for (const int32_t end : ends) EXPECT_NE(std::ranges::find(after, end), after.end());
}

TEST_F(GrammarTest, FirstTokenHasNoSpaceThatDecodingDrops) {
  const auto grammar = Compile(Kind::kRegex, " ?the");
  TokenMasks continues(grammar, false), begins(grammar, true);
  const auto has_space = [this](const std::vector<int32_t>& ids) {
    return std::any_of(ids.begin(), ids.end(),
                       [this](int32_t id) { return tokenizer_->Piece(id).starts_with("\u2581"); });
  };
  EXPECT_TRUE(has_space(Next(&continues)));
  EXPECT_FALSE(has_space(Next(&begins)));
}

TEST_F(GrammarTest, OutputThatDoesNotMatch) {
  TokenMasks masks(Compile(Kind::kRegex, "[0-9]+"), false);
  masks.Accept(tokenizer_->Encode("letters").value().front());
  masks.Begin({});
  const auto mask = masks.Await(0, kPatience);
  ASSERT_TRUE(mask.has_value());
  EXPECT_EQ(mask->status().code(), Code::kDataLoss) << mask->status().ToString();
}

TEST_F(GrammarTest, SourcesThatAreNoGrammar) {
  const auto error = [this](Kind kind, const std::string& text) {
    const auto grammar = compiler_->Compile({kind, text});
    EXPECT_EQ(grammar.status().code(), Code::kInvalidArgument) << text;
    return grammar.status().message();
  };
  EXPECT_THAT(error(Kind::kJsonSchema, "{"), HasSubstr("structured_output: "));
  EXPECT_THAT(error(Kind::kJsonSchema, R"({"type": "strin"})"), HasSubstr("strin"));
  EXPECT_THAT(error(Kind::kJsonSchema, R"({"type": "number", "multipleOf": 3})"),
              HasSubstr("multipleOf"));
  EXPECT_THAT(error(Kind::kRegex, "(a"), HasSubstr("structured_output: "));
  EXPECT_THAT(error(Kind::kEbnf, "root ::= other"), HasSubstr("other"));
  EXPECT_THAT(error(Kind::kEbnf, ""), HasSubstr("structured_output: "));
  EXPECT_THAT(error(Kind::kRegex, std::string(kMaxGrammarBytes + 1, 'a')), HasSubstr("131073"));
  // The compiler still works.
  EXPECT_EQ(Sample(Compile(Kind::kRegex, "ok"), 1), "ok");
}

constexpr int kSlow = 300;  // repetitions of a SlowExpression that takes more than 20 s

TEST_F(GrammarTest, CompilationIsLimited) {
  compiler_ = NewCompiler({.compile_ms = 300});
  const auto slow = compiler_->Compile({Kind::kRegex, testing::SlowExpression(kSlow)});
  EXPECT_EQ(slow.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(slow.status().message(), HasSubstr("takes at most 300 ms to compile"));
  EXPECT_EQ(Sample(Compile(Kind::kRegex, "ok"), 1), "ok");
}

// Repetitions of repetitions: each further character has more ways.
constexpr char kAmbiguous[] = "((a|b){1,1000}){1,1000}";

class LimitedMasks : public GrammarTest, public ::testing::WithParamInterface<GrammarLimits> {};

TEST_P(LimitedMasks, EndTheProcess) {
  compiler_ = NewCompiler(GetParam());
  const auto other = Compile(Kind::kRegex, "ok");
  const auto slow = Compile(Kind::kRegex, kAmbiguous);
  ASSERT_NE(slow, nullptr);
  TokenMasks masks(slow, false);
  const int32_t a = tokenizer_->Encode("xa").value().back();
  std::optional<Result<TokenMask>> mask;
  for (int i = 0; i < 1000; ++i) {
    masks.Begin({});
    mask = masks.Await(0, kPatience);
    ASSERT_TRUE(mask.has_value());
    if (!mask->ok()) break;
    masks.Accept(a);
  }
  ASSERT_FALSE(mask->ok());
  EXPECT_EQ(mask->status().code(), Code::kInvalidArgument) << mask->status().ToString();
  EXPECT_THAT(mask->status().message(),
              HasSubstr(StrCat(GetParam().mask_ms, " ms a token and ",
                               GetParam().memory_bytes >> 20, " MiB, found one that takes more")));
  EXPECT_EQ(Sample(other, 1), "ok");
  // The process has ended: the next request compiles it again.
  EXPECT_NE(Compile(Kind::kRegex, kAmbiguous), slow);
}

INSTANTIATE_TEST_SUITE_P(
    Limits, LimitedMasks,
    ::testing::Values(GrammarLimits{.mask_ms = 100},
                      GrammarLimits{.mask_ms = 60'000, .memory_bytes = size_t{24} << 20}),
    [](const auto& info) { return info.param.mask_ms == 100 ? "Processor" : "Memory"; });

// Sequences whose masks take more memory with each character.
TEST_F(GrammarTest, AllProcessesTogetherAreLimited) {
  compiler_ = NewCompiler({.mask_ms = 60'000, .total_bytes = size_t{16} << 20});
  const auto small = Compile(Kind::kRegex, "ok");
  const int32_t a = tokenizer_->Encode("xa").value().back();
  std::vector<std::unique_ptr<TokenMasks>> walks;
  for (int i = 0; i < 3; ++i) {
    const auto large = Compile(Kind::kRegex, kAmbiguous + std::string(static_cast<size_t>(i), 'c'));
    ASSERT_NE(large, nullptr);
    walks.push_back(std::make_unique<TokenMasks>(large, false));
  }
  int ended = 0;
  for (int step = 0; step < 1000 && ended == 0; ++step) {
    for (const auto& masks : walks) {
      masks->Begin({});
      const auto mask = masks->Await(0, kPatience);
      ASSERT_TRUE(mask.has_value());
      masks->Accept(a);
      if (mask->ok()) continue;
      ++ended;
      // UNAVAILABLE: the process held the most, and ended while it did no work.
      EXPECT_THAT(mask->status().code(), AnyOf(Code::kResourceExhausted, Code::kUnavailable))
          << mask->status().ToString();
    }
  }
  EXPECT_GT(ended, 0);
  EXPECT_LT(ended, 3);
  EXPECT_EQ(Sample(small, 1), "ok");
}

TEST_F(GrammarTest, ACompilationThatTakesTheMostIsRefused) {
  compiler_ = NewCompiler(
      {.compile_ms = 60'000, .memory_bytes = size_t{1} << 30, .total_bytes = size_t{4} << 20});
  const auto small = Compile(Kind::kRegex, "ok");
  const auto large = compiler_->Compile({Kind::kRegex, testing::SlowExpression(kSlow)});
  EXPECT_EQ(large.status().code(), Code::kResourceExhausted) << large.status().ToString();
  EXPECT_THAT(large.status().message(), HasSubstr("4 MiB (--grammar-memory)"));
  EXPECT_EQ(Sample(small, 1), "ok");
}

TEST_F(GrammarTest, AClientLeavesGrammarsForOthers) {
  std::vector<std::shared_ptr<const Grammar>> used;
  Status status;
  while (status.ok() && std::ssize(used) < GrammarCompiler::kMaxGrammars) {
    const auto grammar =
        compiler_->Compile({Kind::kRegex, "a" + std::to_string(used.size())}, {"first"});
    status = grammar.status();
    if (grammar.ok()) used.push_back(*grammar);
  }
  EXPECT_EQ(used.size(), 96u);
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
  EXPECT_TRUE(compiler_->Compile({Kind::kRegex, "b"}, {"second"}).ok());
}

TEST_F(GrammarTest, CachesWhatWasUsedLast) {
  const auto first = Compile(Kind::kRegex, "a0");
  for (size_t i = 1; i <= GrammarCompiler::kCachedGrammars - 1; ++i) {
    Compile(Kind::kRegex, "a" + std::to_string(i));
    EXPECT_EQ(Compile(Kind::kRegex, "a0"), first);
  }
  Compile(Kind::kRegex, "another");
  EXPECT_EQ(Compile(Kind::kRegex, "a0"), first);
  const std::weak_ptr<const Grammar> dropped = Compile(Kind::kRegex, "a2");
  for (size_t i = 0; i < GrammarCompiler::kCachedGrammars; ++i)
    Compile(Kind::kRegex, "b" + std::to_string(i));
  EXPECT_TRUE(dropped.expired());
}

TEST_F(GrammarTest, FindDoesNotWaitForCompilations) {
  const GrammarSource source = {Kind::kRegex, "ok"};
  EXPECT_EQ(compiler_->Find(source), nullptr);
  const auto compiled = Compile(Kind::kRegex, "ok");
  std::vector<std::thread> slow;
  for (int i = 0; i < GrammarCompiler::kMaxCompilations + 1; ++i) {
    slow.emplace_back([this, i] {
      const std::string text = testing::SlowExpression(kSlow) + std::to_string(i);
      EXPECT_EQ(compiler_->Compile({Kind::kRegex, text}).status().code(), Code::kUnavailable);
    });
  }
  // While a process is started, Find has no answer.
  std::shared_ptr<const Grammar> found;
  for (int i = 0; i < 100 && found == nullptr; ++i) {
    std::this_thread::sleep_for(milliseconds(20));
    found = compiler_->Find(source);
  }
  EXPECT_EQ(found, compiled);
  compiler_->Stop();
  for (std::thread& thread : slow) thread.join();
}

TEST_F(GrammarTest, StopEndsCompilations) {
  std::thread stops([this] {
    std::this_thread::sleep_for(milliseconds(200));
    compiler_->Stop();
  });
  EXPECT_EQ(compiler_->Compile({Kind::kRegex, testing::SlowExpression(kSlow)}).status().code(),
            Code::kUnavailable);
  stops.join();
  EXPECT_EQ(compiler_->Compile({Kind::kRegex, "ok"}).status().code(), Code::kUnavailable);
}

TEST_F(GrammarTest, MissingProgram) {
  compiler_ = NewCompiler({.program = "/nonexistent/polysketch-grammar-host"});
  const auto grammar = compiler_->Compile({Kind::kRegex, "ok"});
  EXPECT_EQ(grammar.status().code(), Code::kUnavailable);
  EXPECT_THAT(grammar.status().message(), HasSubstr("/nonexistent/polysketch-grammar-host"));
}

TEST_F(GrammarTest, ModelWithoutEos) {
  GrammarCompiler compiler(tokenizer_.get(), tokenizer_->vocab_size(), {});
  EXPECT_EQ(compiler.Compile({Kind::kRegex, "ok"}).status().code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace polysketch
