#include "engine/sampler/sampling_params.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

constexpr int kVocab = 100;
constexpr int32_t kMaxNew = 1000;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();

Status Check(const std::function<void(GenerateParams*)>& set, bool has_tokenizer = true) {
  GenerateParams params;
  set(&params);
  return ValidateGenerate(params, kVocab, kMaxNew, has_tokenizer);
}

void ExpectRefused(const std::string& field, const std::function<void(GenerateParams*)>& set) {
  const Status status = Check(set);
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << field;
  EXPECT_TRUE(status.message().starts_with(field)) << status.ToString();
  EXPECT_NE(status.message().find("expected"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("found"), std::string::npos) << status.ToString();
}

TEST(SamplingParamsTest, GoodValues) {
  EXPECT_TRUE(Check([](GenerateParams*) {}).ok());
  EXPECT_TRUE(Check([](GenerateParams* p) {
                p->sampling = {0, kHuge, 1e-6f, 1, 0.01f, -2, 2, {{0, -100.0f}, {99, 100.0f}}, 7};
                p->max_tokens = 0;
                p->stop = std::vector<std::string>(16, std::string(1024, 'x'));
                p->stop_token_ids = {0, 99};
                p->logprobs = 20;
              }).ok());
}

TEST(SamplingParamsTest, NumbersKeepTheirDigitsAndTheirSign) {
  const auto error = [](float top_p) {
    return Check([top_p](GenerateParams* p) { p->sampling.top_p = top_p; }).message();
  };
  EXPECT_EQ(error(1.0000001f), "top_p: expected a number in (0, 1], found 1.0000001");
  EXPECT_EQ(error(0), "top_p: expected a number in (0, 1], found 0");
  EXPECT_EQ(error(kInf), "top_p: expected a number in (0, 1], found inf");
  EXPECT_EQ(error(std::nanf("")), "top_p: expected a number in (0, 1], found nan");
  EXPECT_EQ(ToParameter(0), 0);
  EXPECT_EQ(ToParameter(0.1), 0.1f);
  for (const double small : {1e-46, 1e-300, 1e-40}) {
    EXPECT_TRUE(std::isnormal(ToParameter(small))) << small;
    EXPECT_TRUE(kTopPRange.Contains(ToParameter(small)));
    EXPECT_EQ(ToParameter(-small), -ToParameter(small));
  }
  EXPECT_EQ(ToParameter(0.99999999999), 1);
  EXPECT_FALSE(kTopPRange.Contains(1.0000000001));
  EXPECT_TRUE(kRepetitionPenaltyRange.Contains(0.01));
  EXPECT_EQ(kRepetitionPenaltyRange.Text(), "a number in [0.01, 100]");
}

TEST(SamplingParamsTest, EveryFieldOutOfRange) {
  for (const float bad : {-0.1f, 100.5f, kInf, -kInf, std::nanf("")}) {
    ExpectRefused("temperature", [&](GenerateParams* p) { p->sampling.temperature = bad; });
    ExpectRefused("repetition_penalty",
                  [&](GenerateParams* p) { p->sampling.repetition_penalty = bad; });
    ExpectRefused("min_p", [&](GenerateParams* p) { p->sampling.min_p = bad; });
    ExpectRefused("top_p", [&](GenerateParams* p) { p->sampling.top_p = bad; });
  }
  ExpectRefused("repetition_penalty",
                [](GenerateParams* p) { p->sampling.repetition_penalty = 0; });
  ExpectRefused("top_p", [](GenerateParams* p) { p->sampling.top_p = 0; });
  ExpectRefused("top_k", [](GenerateParams* p) { p->sampling.top_k = -1; });
  ExpectRefused("min_tokens", [](GenerateParams* p) { p->min_tokens = -1; });
  ExpectRefused("min_tokens", [](GenerateParams* p) { p->min_tokens = kMaxNew + 1; });
  ExpectRefused("min_tokens", [](GenerateParams* p) {
    p->max_tokens = 4;
    p->min_tokens = 5;
  });
  ExpectRefused("allowed_token_ids[1]", [](GenerateParams* p) {
    p->sampling.allowed_token_ids = {0, kVocab};
  });
  ExpectRefused("allowed_token_ids",
                [](GenerateParams* p) { p->sampling.allowed_token_ids.assign(kVocab + 1, 1); });
  ExpectRefused("bad_words[0]", [](GenerateParams* p) { p->sampling.bad_words = {{}}; });
  ExpectRefused("bad_words[1][0]", [](GenerateParams* p) {
    p->sampling.bad_words = {{1, 2}, {-1}};
  });
  ExpectRefused("bad_words[0]",
                [](GenerateParams* p) { p->sampling.bad_words = {std::vector<int32_t>(1025, 1)}; });
  ExpectRefused("bad_words", [](GenerateParams* p) {
    p->sampling.bad_words.assign(513, std::vector<int32_t>{1});
  });
  for (const float bad : {-2.1f, 2.1f, kInf, std::nanf("")}) {
    ExpectRefused("frequency_penalty",
                  [&](GenerateParams* p) { p->sampling.frequency_penalty = bad; });
    ExpectRefused("presence_penalty",
                  [&](GenerateParams* p) { p->sampling.presence_penalty = bad; });
  }
  for (const float bad : {-101.0f, 101.0f, -kInf, std::nanf("")}) {
    ExpectRefused("logit_bias[1]", [&](GenerateParams* p) {
      p->sampling.logit_bias = {{1, 0.5f}, {2, bad}};
    });
  }
  for (const int32_t bad : {-1, kVocab, kHuge}) {
    ExpectRefused("logit_bias[0]", [&](GenerateParams* p) {
      p->sampling.logit_bias = {{bad, 1.0f}};
    });
    ExpectRefused("stop_token_ids[1]", [&](GenerateParams* p) { p->stop_token_ids = {0, bad}; });
  }
  ExpectRefused("logit_bias[1]", [](GenerateParams* p) {
    p->sampling.logit_bias = {{5, 1.0f}, {5, 2.0f}};
  });
  ExpectRefused("max_tokens", [](GenerateParams* p) { p->max_tokens = -1; });
  ExpectRefused("max_tokens", [](GenerateParams* p) { p->max_tokens = kMaxNew + 1; });
  ExpectRefused("stop", [](GenerateParams* p) { p->stop.assign(17, "x"); });
  ExpectRefused("stop[1]", [](GenerateParams* p) { p->stop = {"a", ""}; });
  ExpectRefused("stop[0]", [](GenerateParams* p) { p->stop = {std::string(1025, 'x')}; });
  ExpectRefused("stop[0]", [](GenerateParams* p) { p->stop = {"a\xFF"}; });
  ExpectRefused("stop_token_ids", [](GenerateParams* p) { p->stop_token_ids.assign(1025, 1); });
  ExpectRefused("logprobs", [](GenerateParams* p) { p->logprobs = -1; });
  ExpectRefused("logprobs", [](GenerateParams* p) { p->logprobs = 21; });
}

TEST(SamplingParamsTest, StopStringsNeedATokenizer) {
  const Status status = Check([](GenerateParams* p) { p->stop = {"x"}; }, false);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
}

TEST(SamplingParamsTest, Prompt) {
  EXPECT_TRUE(ValidatePrompt(std::vector<int32_t>{0, 99}, kVocab, 2).ok());
  EXPECT_EQ(ValidatePrompt({}, kVocab, 2).code(), Code::kInvalidArgument);
  EXPECT_EQ(ValidatePrompt(std::vector<int32_t>{0, 1, 2}, kVocab, 2).code(),
            Code::kInvalidArgument);
  const Status status = ValidatePrompt(std::vector<int32_t>{0, 100}, kVocab, 2);
  EXPECT_EQ(status.message(), "prompt[1]: expected an id in [0, 100), found 100");
}

}  // namespace
}  // namespace polysketch
