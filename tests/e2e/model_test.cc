// The trained model over gRPC: what the authors' code says of it.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/e2e/evaluation.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;

json ReadJson(const std::filesystem::path& path) { return json::parse(ReadFile(path)); }

double Perplexity(const std::vector<float>& logprobs) {
  double sum = 0;
  for (const float logprob : logprobs) sum += logprob;
  return std::exp(-sum / static_cast<double>(logprobs.size()));
}

// The tolerance for float32 weights and state: 1e-5.
void ExpectPerplexity(double perplexity, double recorded, const std::string& what) {
  EXPECT_NEAR(perplexity / recorded, 1, 1e-5) << what;
}

class DemoModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = std::make_unique<Server>(
        ServerOptions{.flags = {"--weights", "f32", "--state-format", "f32"}});
    client_ = std::make_unique<Client>(server_->address());
  }
  static void TearDownTestSuite() {
    client_.reset();
    server_.reset();
  }
  static inline std::unique_ptr<Server> server_;
  static inline std::unique_ptr<Client> client_;
};

TEST_F(DemoModel, ContinuesGreedilyTokenForToken) {
  const json recorded = ReadJson(e2e::DemoModel() + "/recorded.json");
  const auto tokens = recorded.at("tokens").get<std::vector<int32_t>>();
  const auto logprobs = recorded.at("logprobs").get<std::vector<double>>();
  v1::CompleteRequest request =
      Greedy(recorded.at("prompt").get<std::string>(), static_cast<int>(tokens.size()));
  request.set_logprobs(0);

  const Completion stream = client_->Complete(request);
  ASSERT_TRUE(stream.status.ok()) << stream.status.ToString();
  EXPECT_EQ(stream.tokens, tokens);
  EXPECT_EQ(stream.finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(stream.finish.usage().prompt_tokens(),
            static_cast<int64_t>(recorded.at("prompt_tokens").size()));
  EXPECT_EQ(stream.finish.usage().completion_tokens(), static_cast<int64_t>(tokens.size()));
  // The recording's text begins without the space of its first piece.
  std::string text = stream.text;
  if (text.starts_with(' ')) text.erase(0, 1);
  EXPECT_EQ(text, recorded.at("text").get<std::string>());

  // 2e-4 of the largest logit is the model's tolerance; that of a log-probability is twice it.
  ASSERT_EQ(stream.logprobs.size(), logprobs.size());
  for (size_t i = 0; i < logprobs.size(); ++i)
    EXPECT_NEAR(stream.logprobs[i], logprobs[i], 2e-3) << i;

  const Completion unary = client_->CompleteUnary(request);
  ASSERT_TRUE(unary.status.ok()) << unary.status.ToString();
  EXPECT_EQ(unary.tokens, tokens);
  EXPECT_EQ(unary.text, stream.text);
  EXPECT_EQ(unary.logprobs, stream.logprobs);

  const Completion by_ids = client_->Complete(Greedy(
      recorded.at("prompt_tokens").get<std::vector<int32_t>>(), static_cast<int>(tokens.size())));
  EXPECT_EQ(by_ids.tokens, tokens);
}

TEST_F(DemoModel, HasTheRecordedPerplexityOverALongText) {
  const std::optional<std::vector<int32_t>> eval = EvalTokens(8192);
  if (!eval) GTEST_SKIP() << "no " << testing::SharedDir();
  const json recorded = ReadJson(testing::SharedDir() / "models/demo/recorded.json").at("long");
  const Score score = client_->ScoreTokens(*eval, 3000);
  ASSERT_TRUE(score.status.ok()) << score.status.ToString();
  ASSERT_EQ(score.logprobs.size(), eval->size() - 1);
  ExpectPerplexity(score.finish.perplexity(), recorded.at("perplexity").get<double>(), "whole");
  ExpectPerplexity(score.finish.perplexity(), Perplexity(score.logprobs), "finish and logprobs");
  const auto parts = recorded.at("perplexity_by_1024").get<std::vector<double>>();
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto begin = score.logprobs.begin() + static_cast<ptrdiff_t>(1024 * i);
    const auto end = i + 1 < parts.size() ? begin + 1024 : score.logprobs.end();
    ExpectPerplexity(Perplexity({begin, end}), parts[i], "part " + std::to_string(i));
  }
}

TEST_F(DemoModel, HasTheRecordedPerplexityOverWindows) {
  const std::optional<std::vector<int32_t>> eval = EvalTokens();
  if (!eval) GTEST_SKIP() << "no " << testing::SharedDir();
  const json recorded = ReadJson(testing::SharedDir() / "models/demo/recorded.json").at("windows");
  std::vector<float> logprobs;
  for (const size_t start : recorded.at("starts").get<std::vector<size_t>>()) {
    const auto begin = eval->begin() + static_cast<ptrdiff_t>(start);
    const Score score = client_->ScoreTokens({begin, begin + 512}, 512);
    ASSERT_TRUE(score.status.ok()) << score.status.ToString();
    ASSERT_EQ(score.logprobs.size(), 511u);
    logprobs.insert(logprobs.end(), score.logprobs.begin(), score.logprobs.end());
  }
  ExpectPerplexity(Perplexity(logprobs), recorded.at("perplexity").get<double>(), "all windows");
}

// With max_tokens 0, echo and logprobs a completion scores its prompt: the same operation, the same
// bits.
TEST_F(DemoModel, ScoresAndEchoesWithTheSameBits) {
  const json recorded = ReadJson(e2e::DemoModel() + "/recorded.json");
  auto tokens = recorded.at("prompt_tokens").get<std::vector<int32_t>>();
  const auto continuation = recorded.at("tokens").get<std::vector<int32_t>>();
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());

  v1::CompleteRequest request = Greedy(tokens, 0);
  request.set_echo(true);
  request.set_logprobs(2);
  const Completion echo = client_->Complete(request);
  ASSERT_TRUE(echo.status.ok()) << echo.status.ToString();
  EXPECT_EQ(echo.tokens, tokens);
  ASSERT_EQ(echo.details.size(), tokens.size());
  EXPECT_FALSE(echo.details[0].has_logprob());
  const Score score = client_->ScoreTokens(tokens, 7);
  ASSERT_TRUE(score.status.ok()) << score.status.ToString();
  EXPECT_EQ(echo.logprobs, score.logprobs);
}

}  // namespace
}  // namespace polysketch::e2e
