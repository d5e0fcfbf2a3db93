#include "engine/sampler/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/sampler/logprobs.h"
#include "engine/sampler/random.h"
#include "gtest/gtest.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;

// The distribution that the documented order of operations gives, by sorting everything, in
// float64.
std::vector<double> OracleDistribution(std::vector<float> logits, const SamplingParams& params,
                                       const std::vector<int32_t>& prompt,
                                       const std::vector<int32_t>& output) {
  const size_t vocab = logits.size();
  std::vector<double> x(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) x[token] += bias;
  for (size_t t = 0; t < vocab; ++t) {
    const auto in_prompt = std::count(prompt.begin(), prompt.end(), t);
    const auto in_output = std::count(output.begin(), output.end(), t);
    if (in_prompt + in_output > 0)
      x[t] = x[t] > 0 ? x[t] / params.repetition_penalty : x[t] * params.repetition_penalty;
    x[t] -= params.frequency_penalty * static_cast<double>(in_output);
    if (in_output > 0) x[t] -= params.presence_penalty;
  }
  std::vector<size_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  std::vector<double> p(vocab, 0);
  if (params.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  const double max = x[order[0]];
  for (size_t t = 0; t < vocab; ++t) p[t] = std::exp((x[t] - max) / params.temperature);
  for (size_t t = 0; t < vocab; ++t) {
    if (p[t] < params.min_p) p[t] = 0;
  }
  for (size_t i = 0; i < vocab; ++i) {
    if (params.top_k > 0 && i >= static_cast<size_t>(params.top_k)) p[order[i]] = 0;
  }
  double total = std::accumulate(p.begin(), p.end(), 0.0);
  double sum = 0;
  bool reached = false;
  for (const size_t t : order) {
    if (reached) p[t] = 0;
    sum += p[t];
    if (sum >= params.top_p * total) reached = true;
  }
  total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

// Draws with many seeds against the oracle: nothing outside its support, and chi-square within what
// chance allows (the seeds are fixed, so it either always passes or never).
void ExpectDistribution(const std::vector<float>& logits, const SamplingParams& params,
                        const std::vector<int32_t>& prompt = {}) {
  const std::vector<double> expected = OracleDistribution(logits, params, prompt, {});
  const int draws = testing::Count(20000, 1000000);
  std::vector<int> counts(logits.size(), 0);
  SamplerScratch scratch;
  for (int seed = 0; seed < draws; ++seed) {
    Sampler sampler(params, static_cast<uint64_t>(seed), static_cast<int>(logits.size()), prompt);
    const Result<int32_t> token = sampler.Sample(logits, {}, &scratch);
    ASSERT_TRUE(token.ok());
    ++counts[*token];
  }
  double chi_square = 0;
  int categories = 0;
  double rare_expected = 0;
  double rare_found = 0;
  for (size_t t = 0; t < logits.size(); ++t) {
    if (expected[t] == 0) {
      EXPECT_EQ(counts[t], 0) << "token " << t;
    } else if (const double mean = expected[t] * draws; mean < 10) {
      rare_expected += mean;
      rare_found += counts[t];
    } else {
      chi_square += (counts[t] - mean) * (counts[t] - mean) / mean;
      ++categories;
    }
  }
  if (rare_expected >= 10) {
    chi_square += (rare_found - rare_expected) * (rare_found - rare_expected) / rare_expected;
    ++categories;
  }
  const double freedom = std::max(categories - 1, 1);
  EXPECT_LT(chi_square, freedom + 4 * std::sqrt(2 * freedom) + 6) << "categories " << categories;
}

std::vector<float> SomeLogits(int vocab, uint64_t seed) {
  return Random(seed).Normals(static_cast<size_t>(vocab), 2.0);
}

SamplingParams Params(void (*set)(SamplingParams*)) {
  SamplingParams params;
  set(&params);
  return params;
}

TEST(SamplerTest, DistributionOfEachOption) {
  const std::vector<float> logits = SomeLogits(20, 1);
  const SamplingParams cases[] = {
      Params([](SamplingParams*) {}),
      Params([](SamplingParams* p) { p->temperature = 0.5f; }),
      Params([](SamplingParams* p) { p->temperature = 3; }),
      Params([](SamplingParams* p) { p->top_k = 5; }),
      Params([](SamplingParams* p) { p->top_k = 1; }),
      Params([](SamplingParams* p) { p->top_k = 1000; }),
      Params([](SamplingParams* p) { p->top_p = 0.8f; }),
      Params([](SamplingParams* p) { p->top_p = 1e-6f; }),
      Params([](SamplingParams* p) { p->min_p = 0.1f; }),
      Params([](SamplingParams* p) { p->min_p = 1; }),
      Params([](SamplingParams* p) { p->top_k = 6, p->top_p = 0.7f, p->temperature = 1.7f; }),
      Params([](SamplingParams* p) { p->min_p = 0.02f, p->top_k = 8, p->top_p = 0.95f; }),
      Params([](SamplingParams* p) {
        p->logit_bias = {{3, 4.0f}, {7, -100.0f}};
      }),
      Params([](SamplingParams* p) { p->repetition_penalty = 1.5f; }),
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    ExpectDistribution(logits, cases[i], {2, 3, 3, 19});
  }
}

// Weights whose sums are exact: the set that reaches p exactly is the smallest that reaches it.
TEST(SamplerTest, TopPEndsWhereItIsReached) {
  for (const float top_p : {0.25f, 0.5f, 0.75f}) {
    SCOPED_TRACE(top_p);
    SamplingParams params;
    params.top_p = top_p;
    ExpectDistribution({3, 3, 3, 3}, params);
    params.top_k = 4;
    ExpectDistribution({3, -90, 3, 3, 3}, params);
  }
}

// A vocabulary of several blocks (row.h), few of which hold what is likely.
TEST(SamplerTest, DistributionOverBlocks) {
  std::vector<float> logits = SomeLogits(1300, 8);
  for (float& logit : logits) logit -= 5;
  for (const size_t likely : {0, 255, 256, 700, 701, 1023, 1024, 1299}) logits[likely] += 12;
  const SamplingParams cases[] = {
      Params([](SamplingParams*) {}),
      Params([](SamplingParams* p) { p->temperature = 1.5f; }),
      Params([](SamplingParams* p) { p->top_k = 3; }),  // at most as many as there are blocks
      Params([](SamplingParams* p) { p->top_k = 40; }),
      Params([](SamplingParams* p) { p->top_p = 0.9f; }),
      Params([](SamplingParams* p) { p->min_p = 0.001f; }),
      Params([](SamplingParams* p) { p->min_p = 0.0001f, p->top_k = 100, p->top_p = 0.99f; }),
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    ExpectDistribution(logits, cases[i]);
  }
}

// The choices of one request, token after token, against the oracle's support, for random
// parameters.
TEST(SamplerTest, RandomParametersStayInTheirSupport) {
  Random random(5);
  SamplerScratch scratch;
  for (int trial = 0; trial < testing::Count(300, 5000); ++trial) {
    const int vocab = static_cast<int>(random.Int(1, 400));
    SamplingParams params;
    if (random.Uniform() < 0.8) params.temperature = static_cast<float>(random.Uniform(0.1, 3));
    if (random.Uniform() < 0.1) params.temperature = 0;
    if (random.Uniform() < 0.5) params.top_k = static_cast<int32_t>(random.Int(0, vocab + 3));
    if (random.Uniform() < 0.5) params.top_p = static_cast<float>(random.Uniform(0.01, 1));
    if (random.Uniform() < 0.3) params.min_p = static_cast<float>(random.Uniform(0, 0.3));
    if (random.Uniform() < 0.5)
      params.repetition_penalty = static_cast<float>(random.Uniform(0.5, 2));
    if (random.Uniform() < 0.5)
      params.frequency_penalty = static_cast<float>(random.Uniform(-2, 2));
    if (random.Uniform() < 0.5) params.presence_penalty = static_cast<float>(random.Uniform(-2, 2));
    if (random.Uniform() < 0.3)
      params.logit_bias = {{static_cast<int32_t>(random.Int(0, vocab - 1)), 3.0f}};
    const std::vector<int32_t> prompt = {0, vocab - 1, 0};
    std::vector<int32_t> output;
    Sampler sampler(params, static_cast<uint64_t>(trial), vocab, prompt);
    for (int i = 0; i < 20; ++i) {
      const std::vector<float> logits = random.Normals(static_cast<size_t>(vocab), 2.0);
      const std::vector<double> p = OracleDistribution(logits, params, prompt, output);
      const Result<int32_t> token = sampler.Sample(logits, {}, &scratch);
      ASSERT_TRUE(token.ok());
      // Float32 against float64 may differ on the rim of a set, by one token of small weight at the
      // threshold.
      if (p[*token] == 0) {
        SamplingParams wider = params;
        wider.top_p = std::min(1.0f, params.top_p * 1.00001f);
        wider.min_p = params.min_p * 0.99999f;
        ASSERT_GT(OracleDistribution(logits, wider, prompt, output)[*token], 0)
            << "trial " << trial;
      }
      output.push_back(*token);
    }
  }
}

TEST(SamplerTest, GreedyTakesTheLowestOfEquals) {
  SamplingParams params;
  params.temperature = 0;
  SamplerScratch scratch;
  Sampler sampler(params, 1, 5, {});
  EXPECT_EQ(*sampler.Sample(std::vector<float>{1, 3, 2, 3, 3}, {}, &scratch), 1);
  // And so does top_k.
  params.temperature = 1;
  params.top_k = 1;
  EXPECT_EQ(*Sampler(params, 9, 5, {}).Sample(std::vector<float>{1, 3, 2, 3, 3}, {}, &scratch), 1);
  // Across blocks too.
  std::vector<float> many(2000, -1.0f);
  many[300] = many[301] = many[1700] = 2;
  EXPECT_EQ(*Sampler(params, 9, 2000, {}).Sample(many, {}, &scratch), 300);
  params.temperature = 0;
  EXPECT_EQ(*Sampler(params, 9, 2000, {}).Sample(many, {}, &scratch), 300);
}

TEST(SamplerTest, TinyTemperatureIsGreedyInTheLimit) {
  SamplingParams params;
  SamplerScratch scratch;
  for (const float temperature : {1e-45f, 1e-38f, 1e-3f}) {
    params.temperature = temperature;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      EXPECT_EQ(*Sampler(params, seed, 4, {}).Sample(std::vector<float>{1, 2, 5, 4}, {}, &scratch),
                2);
    }
  }
}

TEST(SamplerTest, LargeLogitsDoNotOverflow) {
  // Without the subtraction of the maximum these would overflow.
  SamplerScratch scratch;
  EXPECT_EQ(*Sampler(SamplingParams(), 3, 3, {})
                 .Sample(std::vector<float>{1e30f, -1e30f, 0}, {}, &scratch),
            0);
}

TEST(SamplerTest, ValuesThatAreNotFiniteAreErrors) {
  SamplerScratch scratch;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {kInf, -kInf, std::nanf("")}) {
    for (const float temperature : {0.0f, 1.0f}) {
      SamplingParams params;
      params.temperature = temperature;
      std::vector<float> logits(1000, 1.0f);
      logits[777] = bad;
      const auto token = Sampler(params, 1, 1000, {}).Sample(logits, {}, &scratch);
      ASSERT_FALSE(token.ok());
      EXPECT_EQ(token.status().code(), Code::kInternal);
    }
  }
}

TEST(SamplerTest, ResultsDependOnSeedAndIndexOnly) {
  const std::vector<float> logits = SomeLogits(1000, 2);
  SamplerScratch shared;
  const auto run = [&](uint64_t seed) {
    SamplerScratch own;
    Sampler sampler(SamplingParams(), seed, 1000, {});
    Sampler beside(Params([](SamplingParams* p) { p->top_k = 3, p->presence_penalty = 1; }), 99,
                   1000, {});
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50; ++i) {
      tokens.push_back(*sampler.Sample(logits, {}, i % 2 ? &own : &shared));
      EXPECT_TRUE(beside.Sample(logits, {}, &shared).ok());
    }
    return tokens;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  // Neighbouring seeds are not one sequence moved on by one.
  const auto a = run(1), b = run(2);
  EXPECT_FALSE(std::equal(a.begin() + 1, a.end(), b.begin()));
}

TEST(RandomTest, UniformInBothArguments) {
  for (const bool by_seed : {false, true}) {
    constexpr int kBins = 64, kDraws = 64000;
    std::vector<int> counts(kBins, 0);
    double mean = 0;
    for (uint64_t i = 0; i < kDraws; ++i) {
      const double u = by_seed ? CounterUniform(i, 0) : CounterUniform(42, i);
      ASSERT_GE(u, 0);
      ASSERT_LT(u, 1);
      mean += u / kDraws;
      ++counts[static_cast<size_t>(u * kBins)];
    }
    double chi_square = 0;
    for (const int count : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000;
    EXPECT_LT(chi_square, 63 + 4 * std::sqrt(126));
    EXPECT_NEAR(mean, 0.5, 4 / std::sqrt(12.0 * kDraws));
  }
}

TEST(LogprobsTest, TopAgainstFullSort) {
  Random random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int vocab = static_cast<int>(random.Int(1, 300));
    std::vector<float> logits(static_cast<size_t>(vocab));
    for (float& x : logits) x = static_cast<float>(random.Int(-20, 20));  // many equal ones
    const int count = static_cast<int>(random.Int(0, 20));
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    const auto top = TopLogprobs(logits, 21.5f, count);
    ASSERT_EQ(top.size(), static_cast<size_t>(std::min(count, vocab)));
    for (int32_t id = 0; id < vocab; ++id) EXPECT_EQ(IsGreedy(logits, id), id == order[0]);
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token, order[i]);
      EXPECT_EQ(top[i].logprob, logits[order[i]] - 21.5f);
    }
  }
}

}  // namespace
}  // namespace polysketch
