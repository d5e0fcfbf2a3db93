// Distributions, workloads and statistics of the load generator.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "clients/loadgen/distribution.h"
#include "clients/loadgen/report.h"
#include "clients/loadgen/workload.h"

namespace polysketch::loadgen {
namespace {

double Mean(const char* text) {
  const Result<Distribution> distribution = Distribution::Parse(text);
  EXPECT_TRUE(distribution.ok()) << text;
  Random random(3);
  double sum = 0;
  constexpr int kSamples = 20000;
  for (int i = 0; i < kSamples; ++i) sum += static_cast<double>(distribution->Sample(&random));
  return sum / kSamples;
}

// Within five standard errors of 20,000 samples: deviation / 141 * 5.
TEST(Distribution, HasItsMean) {
  EXPECT_EQ(Mean("77"), 77);
  EXPECT_NEAR(Mean("uniform:10:20"), 15, 0.12);
  EXPECT_NEAR(Mean("normal:100:10"), 100, 0.36);
  EXPECT_NEAR(Mean("exponential:200"), 200, 7.1);
  EXPECT_NEAR(Mean("lognormal:100:0.5"), 100 * std::exp(0.125), 2.2);
}

TEST(Distribution, SamplesAreAtLeastOneToken) {
  Random random(1);
  for (const char* text : {"0", "exponential:0.01", "normal:0:5"}) {
    const Result<Distribution> distribution = Distribution::Parse(text);
    ASSERT_TRUE(distribution.ok());
    for (int i = 0; i < 100; ++i) EXPECT_GE(distribution->Sample(&random), 1) << text;
  }
}

TEST(Distribution, RejectsInvalidText) {
  for (const char* text : {"", "x", "-1", "nan", "1:2", "uniform:5", "uniform:9:3", "normal:1:2:3",
                           "uniform:a:b", "poisson:4", "99999999999"}) {
    EXPECT_FALSE(Distribution::Parse(text).ok()) << text;
  }
}

TEST(Workload, DependsOnTheSeedAlone) {
  WorkloadOptions options;
  options.prompt_tokens = *Distribution::Parse("uniform:3:30");
  options.shared_prefix = 50;
  options.vocab_size = 100;
  Workload a(options), b(options);
  options.seed = 2;
  Workload other(options);
  for (int i = 0; i < 10; ++i) {
    const Request request = a.Next();
    EXPECT_EQ(request.prompt, b.Next().prompt);
    EXPECT_NE(request.prompt, other.Next().prompt);
    EXPECT_GE(request.prompt.size(), 53u);
    for (const int32_t token : request.prompt) EXPECT_TRUE(token >= 0 && token < 100);
  }
}

TEST(Workload, SharesPrefixes) {
  WorkloadOptions options;
  options.shared_prefix = 20;
  options.prefixes = 3;
  options.vocab_size = 1000;
  Workload workload(options);
  std::set<std::vector<int32_t>> prefixes;
  for (int i = 0; i < 50; ++i) {
    std::vector<int32_t> prompt = workload.Next().prompt;
    prompt.resize(20);
    prefixes.insert(prompt);
  }
  EXPECT_EQ(prefixes.size(), 3u);
}

TEST(Workload, TurnsRepeatTheConversation) {
  WorkloadOptions options;
  options.prompt_tokens = *Distribution::Parse("4");
  options.turns = 2;
  options.vocab_size = 1000;
  Workload workload(options);
  const Request first = workload.Next();
  Request second = first;
  ASSERT_TRUE(workload.Continue(&second, {7, 8, 9}));
  std::vector<int32_t> expected = first.prompt;
  expected.insert(expected.end(), {7, 8, 9});
  ASSERT_EQ(second.prompt.size(), expected.size() + 4);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), second.prompt.begin()));
  EXPECT_FALSE(workload.Continue(&second, {1}));
}

TEST(Report, Percentiles) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Summary summary = Summarize(values);
  EXPECT_EQ(summary.mean, 50.5);
  EXPECT_EQ(summary.p50, 50);
  EXPECT_EQ(summary.p90, 90);
  EXPECT_EQ(summary.p99, 99);
  EXPECT_EQ(summary.max, 100);
  EXPECT_EQ(Summarize({3}).p99, 3);
  EXPECT_EQ(Summarize({}).p99, 0);
}

RequestResult Good(double start, double first_token) {
  RequestResult result;
  result.start = start;
  result.end = start + 2;
  result.first_token = first_token;
  result.last_token = first_token + 1;
  result.gaps = {0.25f, 0.75f};
  result.prompt_tokens = 10;
  result.output_tokens = 3;
  return result;
}

TEST(Report, CountsAndRates) {
  std::vector<RequestResult> results = {Good(0, 0.1), Good(10, 0.2), Good(11, 0.9)};
  RequestResult failed;
  failed.status = "RESOURCE_EXHAUSTED";
  failed.start = failed.end = 12;
  results.push_back(failed);
  const Report report = Report::Of(results, 5, HUGE_VAL, {.first_token = 0.5});
  EXPECT_EQ(report.requests, 3);  // one started in the warm-up
  EXPECT_EQ(report.ok, 2);
  EXPECT_EQ(report.errors.at("RESOURCE_EXHAUSTED"), 1);
  EXPECT_EQ(report.seconds, 8);  // 5 to 13
  EXPECT_EQ(report.output_tokens_per_second, 6.0 / 8);
  EXPECT_EQ(report.goodput, 1.0 / 8);
  EXPECT_EQ(report.goodput_share, 1.0 / 3);
  EXPECT_EQ(report.first_token.max, 0.9);
  EXPECT_EQ(report.time_per_output_token.mean, 0.5);
  EXPECT_EQ(report.between_tokens.mean, 0.5);
  EXPECT_EQ(report.ToJson().at("e2e_latency_seconds").at("p50"), 2);
}

}  // namespace
}  // namespace polysketch::loadgen
