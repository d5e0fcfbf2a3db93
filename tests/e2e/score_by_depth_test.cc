// polysketch score --by-depth against scores of the same text and of its windows alone.
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

// Sums of the same float32 log-probabilities in another order: 3000 float64 roundings of sums below
// 10^5 are far below this.
constexpr double kTolerance = 1e-9;

std::vector<int32_t> RandomTokens(int count) {
  std::vector<int32_t> tokens = {1};
  testing::Random random(17);
  while (std::ssize(tokens) < count) tokens.push_back(static_cast<int32_t>(random.Int(3, 4095)));
  return tokens;
}

std::string Joined(const std::vector<int32_t>& tokens) {
  std::ostringstream text;
  for (const int32_t token : tokens) text << token << " ";
  return text.str();
}

// The mean loss of tokens `begin` to `end` - 1 of logprobs, where logprobs[i] is of token i +
// first.
double MeanLossOf(const std::vector<float>& logprobs, size_t first, size_t begin, size_t end) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum -= logprobs[i - first];
  return sum / static_cast<double>(end - begin);
}

class ScoreByDepth : public ::testing::Test {
 protected:
  ProcessOptions Command(const Strings& more, std::string standard_input) const {
    Strings arguments = {Binary("polysketch"), "--server", server_.address(), "score",
                         "--by-depth"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return {.arguments = std::move(arguments),
            .environment = {},
            .standard_input = std::move(standard_input)};
  }
  json RunJson(Strings more, const std::string& standard_input) const {
    more.push_back("--json");
    const ProcessResult result = RunProcess(Command(more, standard_input));
    EXPECT_EQ(result.exit_status, 0) << result.standard_error;
    return json::parse(result.standard_output);
  }
  // Waits until the server has read `tokens` of scores.
  bool HasRead(double tokens) const {
    return WaitUntil([&] { return server_.Metric("polysketch_prompt_tokens_total") >= tokens; });
  }

  Server server_;
};

TEST_F(ScoreByDepth, EqualsScoresOfTheTextAndOfItsWindows) {
  constexpr size_t kTokens = 2900, kWindow = 256;
  const std::vector<int32_t> tokens = RandomTokens(kTokens);
  Client client(server_.address());
  const Score whole = client.ScoreTokens(tokens, 1000);
  ASSERT_TRUE(whole.status.ok()) << whole.status.ToString();

  for (const size_t warm_up : {size_t{0}, size_t{100}}) {
    // What each token has from its window, scored by a call of its own.
    std::vector<float> fresh(1);
    for (size_t begin = 0; begin + warm_up + 1 < kTokens; begin += kWindow - warm_up) {
      const size_t end = std::min(begin + kWindow + 1, kTokens);
      const auto at = [&](size_t i) { return tokens.begin() + static_cast<ptrdiff_t>(i); };
      const Score window = client.ScoreTokens({at(begin), at(end)}, kWindow + 1);
      ASSERT_TRUE(window.status.ok()) << window.status.ToString();
      const size_t skipped = begin == 0 ? 0 : warm_up;
      fresh.insert(fresh.end(), window.logprobs.begin() + static_cast<ptrdiff_t>(skipped),
                   window.logprobs.end());
    }
    ASSERT_EQ(fresh.size(), kTokens);

    const json result =
        RunJson({"--prompt-tokens", "-", "--window", std::to_string(kWindow), "--warm-up",
                 std::to_string(warm_up), "--edges", "1,256,1000,2500,4000"},
                Joined(tokens));
    EXPECT_EQ(result.at("warm_up"), warm_up);
    EXPECT_FALSE(result.contains("finish_reason"));
    ASSERT_EQ(result.at("buckets").size(), 4u);
    const std::vector<std::pair<size_t, size_t>> bounds = {
        {1, 256}, {256, 1000}, {1000, 2500}, {2500, kTokens}};
    for (size_t i = 0; i < bounds.size(); ++i) {
      const json& bucket = result.at("buckets").at(i);
      const auto [begin, end] = bounds[i];
      EXPECT_EQ(bucket.at("begin"), begin);
      EXPECT_EQ(bucket.at("end"), end);
      EXPECT_EQ(bucket.at("tokens"), end - begin);
      const double deep_mean = MeanLossOf(whole.logprobs, 1, begin, end);
      const double fresh_mean = MeanLossOf(fresh, 0, begin, end);
      EXPECT_NEAR(bucket.at("deep").at("mean"), deep_mean, kTolerance);
      EXPECT_NEAR(bucket.at("fresh").at("mean"), fresh_mean, kTolerance);
      EXPECT_NEAR(bucket.at("difference").at("mean"), deep_mean - fresh_mean, kTolerance);
      if (begin >= kWindow) {
        EXPECT_NE(deep_mean, fresh_mean) << "the columns cannot be one";
      }
    }
    EXPECT_NEAR(result.at("total").at("deep").at("mean"), std::log(whole.finish.perplexity()),
                kTolerance);
  }
}

// Text is scored like its tokens, in any number of windows at once, and in chunks of any size.
TEST_F(ScoreByDepth, TextGivesWhatItsTokensGive) {
  std::string text;
  const int lines = testing::Count(400, 400);
  for (int i = 0; i < lines; ++i) {
    text += "It was late in the afternoon, caf\xC3\xA9 number " + std::to_string(i * i) + ".\n";
  }
  Client client(server_.address());
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  ASSERT_TRUE(client.Tokenize(request, &response).ok());
  const std::string ids = Joined({response.tokens().begin(), response.tokens().end()});
  const auto without_seconds = [](json result) {
    result.erase("seconds");
    return result;
  };
  const json by_ids = without_seconds(RunJson({"--prompt-tokens", "-", "--window", "512"}, ids));
  EXPECT_EQ(by_ids.at("total").at("tokens"), response.tokens_size() - 1);
  for (const Strings& more :
       {Strings{"--concurrency", "1"}, Strings{"--concurrency", "7", "--chunk-tokens", "13"}}) {
    Strings arguments = {"--prompt-file", "-", "--window", "512"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(without_seconds(RunJson(arguments, text)), by_ids);
  }
}

// The text is read to the last edge, and only windows within the edges are scored.
TEST_F(ScoreByDepth, ReadsNoMoreThanTheEdgesNeed) {
  const std::string ids = Joined(RandomTokens(40'000));
  const json result = RunJson(
      {"--prompt-tokens", "-", "--window", "512", "--warm-up", "0", "--edges", "2048,4096"}, ids);
  EXPECT_EQ(result.at("total").at("tokens"), 2048);
  ASSERT_TRUE(server_.BecomesIdle());
  // The deep score may be a feed of 16,384 tokens and a step ahead when it is cancelled.
  EXPECT_LT(server_.Metric("polysketch_prompt_tokens_total"), 30'000);
}

TEST_F(ScoreByDepth, PrintsATable) {
  const ProcessResult result =
      RunProcess(Command({"--prompt-tokens", "-", "--window", "512"}, Joined(RandomTokens(3000))));
  EXPECT_EQ(result.exit_status, 0) << result.standard_error;
  const std::string& table = result.standard_output;
  EXPECT_TRUE(table.starts_with("depth ")) << table;
  for (const char* const part :
       {"\n1 - 511 ", "\n512 - 1023 ", "\n2048 - 2999 ", "\nall ", "257 to 512 tokens before"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
}

TEST_F(ScoreByDepth, RefusesWhatHasNoComparison) {
  const std::string ids = Joined(RandomTokens(300));
  struct Case {
    Strings arguments;
    const char* says;
  };
  const Case cases[] = {
      {{"--prompt-tokens", "-"}, "of more than 4097 tokens"},
      {{"--prompt-tokens", "-", "--window", "299"}, "found 300"},
      {{"--prompt-tokens", "-", "--window", "64", "--edges", "300,400"}, "found 300"},
      {{"--prompt-tokens", "-", "--window", "1"}, "--window: expected a number from 2"},
      {{"--prompt-tokens", "-", "--window", "64", "--warm-up", "64"}, "--warm-up: expected"},
      {{"--prompt-tokens", "-", "--edges", "5"}, "two or more increasing"},
      {{"--prompt-tokens", "-", "--edges", "5,4"}, "two or more increasing"},
      {{"--prompt-tokens", "-", "--edges", "1,2,"}, "two or more increasing"},
      {{"--prompt-tokens", "-", "--session", "a"}, "--session"},
      {{"--prompt-tokens", "/nonexistent"}, "/nonexistent"},
  };
  for (const Case& c : cases) {
    const ProcessResult result = RunProcess(Command(c.arguments, ids));
    EXPECT_EQ(result.exit_status, 2) << c.says;
    EXPECT_NE(result.standard_error.find(c.says), std::string::npos) << result.standard_error;
    EXPECT_EQ(result.standard_output, "") << c.says;
  }
  ProcessOptions plain = Command({"--prompt-tokens", "-", "--window", "64"}, ids);
  std::erase(plain.arguments, "--by-depth");
  EXPECT_EQ(RunProcess(plain).exit_status, 2);
}

// What was reached is printed when the user or the server ends the score.
TEST_F(ScoreByDepth, PrintsWhatWasReached) {
  const std::string ids = Joined(RandomTokens(1'000'000));
  const double reached = testing::Count(30'000, 30'000);
  const Strings arguments = {"--prompt-tokens", "-", "--window", "512", "--json"};
  struct Case {
    bool server_ends;
    int exit_status;
    const char* reason;
  };
  for (const Case& c : {Case{false, 130, "cancelled"}, Case{true, 1, "error"}}) {
    const double before = server_.Metric("polysketch_prompt_tokens_total");
    Process client(Command(arguments, ids));
    ASSERT_TRUE(HasRead(before + reached)) << client.StandardError();
    (c.server_ends ? server_.process() : client).Signal(c.server_ends ? SIGKILL : SIGINT);
    EXPECT_EQ(client.Wait(), c.exit_status) << client.StandardError();
    EXPECT_NE(client.StandardError().find("polysketch: "), std::string::npos);
    const json result = json::parse(client.StandardOutput());
    EXPECT_EQ(result.at("finish_reason"), c.reason);
    EXPECT_GT(result.at("total").at("tokens"), 512);
    EXPECT_LT(result.at("total").at("tokens"), 999'999);
    EXPECT_GT(result.at("total").at("fresh").at("mean"), 0);
  }
}

}  // namespace
}  // namespace polysketch::e2e
