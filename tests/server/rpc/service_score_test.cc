// Scores over a real connection, with an engine whose every step is known.
#include "tests/server/rpc/server_fixture.h"

namespace polysketch {
namespace {

using grpc::StatusCode;

using ScoreServiceTest = testing::ServerFixture;

TEST_F(ScoreServiceTest, AScoreWithoutInputIsEnded) {
  Ready();
  grpc::ClientContext context;
  const auto stream = stub_->Score(&context);
  v1::ScoreRequest chunk;
  chunk.mutable_tokens()->add_ids(1);
  ASSERT_TRUE(stream->Write(chunk));
  v1::ScoreResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::ABORTED);
  EXPECT_EQ(engine_.cancelled(), 1);
}

TEST_F(ScoreServiceTest, ScoreStreamsBothWays) {
  Ready();
  grpc::ClientContext context;
  const auto stream = stub_->Score(&context);
  constexpr int kChunks = 40;
  constexpr int kChunk = 3000;  // more than the feed holds in all
  std::thread writer([&] {
    v1::ScoreRequest chunk;
    for (int i = 0; i < kChunk; ++i) chunk.mutable_tokens()->add_ids(i % 256);
    for (int i = 0; i < kChunks; ++i) EXPECT_TRUE(stream->Write(chunk));
    stream->WritesDone();
  });
  int64_t next = 1;
  std::optional<v1::ScoreFinish> finish;
  v1::ScoreResponse response;
  while (stream->Read(&response)) {
    if (response.has_finish()) finish = response.finish();
    if (!response.has_logprobs()) continue;
    EXPECT_EQ(response.logprobs().first(), next);
    next += response.logprobs().logprobs_size();
  }
  writer.join();
  const grpc::Status status = stream->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(next, kChunks * kChunk);
  ASSERT_TRUE(finish.has_value());
  EXPECT_EQ(finish->tokens(), kChunks * kChunk);
  EXPECT_DOUBLE_EQ(finish->perplexity(), std::exp(1.0));
}

TEST_F(ScoreServiceTest, ScoreOfTextGetsBosAndSurvivesAnyCut) {
  served_.rules.add_bos = true;
  Ready();
  for (const std::vector<std::string>& chunks :
       {std::vector<std::string>{"some text"}, {"some", " ", "text"}, {"", "some text", ""}}) {
    grpc::ClientContext context;
    const auto stream = stub_->Score(&context);
    for (const std::string& text : chunks) {
      v1::ScoreRequest chunk;
      chunk.set_text(text);
      ASSERT_TRUE(stream->Write(chunk));
    }
    stream->WritesDone();
    v1::ScoreResponse response;
    int64_t tokens = 0;
    while (stream->Read(&response)) {
      if (response.has_finish()) tokens = response.finish().tokens();
    }
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_EQ(tokens, 10);
  }
}

TEST_F(ScoreServiceTest, ReturnsTokensIfAsked) {
  Ready();
  for (const bool asked : {false, true}) {
    grpc::ClientContext context;
    const auto stream = stub_->Score(&context);
    v1::ScoreRequest chunk;
    chunk.set_return_tokens(asked);
    for (int i = 0; i < 2000; ++i) chunk.mutable_tokens()->add_ids(i % 256);
    ASSERT_TRUE(stream->Write(chunk));
    stream->WritesDone();
    std::vector<int32_t> tokens;
    v1::ScoreResponse response;
    while (stream->Read(&response)) {
      const auto& part = response.logprobs();
      EXPECT_EQ(part.tokens_size(), asked ? part.logprobs_size() : 0);
      tokens.insert(tokens.end(), part.tokens().begin(), part.tokens().end());
    }
    EXPECT_TRUE(stream->Finish().ok());
    if (!asked) continue;
    ASSERT_EQ(tokens.size(), 1999u) << "each after the first";
    for (int i = 1; i < 2000; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i) - 1], i % 256);
  }
}

TEST_F(ScoreServiceTest, BadScoreInputInTheMiddle) {
  Ready();
  const auto score = [this](const std::vector<v1::ScoreRequest>& chunks) {
    grpc::ClientContext context;
    const auto stream = stub_->Score(&context);
    for (const v1::ScoreRequest& chunk : chunks) stream->Write(chunk);
    stream->WritesDone();
    v1::ScoreResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  };
  v1::ScoreRequest good;
  good.mutable_tokens()->add_ids(1);
  v1::ScoreRequest bad;
  bad.mutable_tokens()->add_ids(1);
  bad.mutable_tokens()->add_ids(-5);
  v1::ScoreRequest text;
  text.set_text("a");
  v1::ScoreRequest late = good;
  late.set_return_tokens(true);
  EXPECT_EQ(score({good, late}).error_message(),
            "return_tokens: expected in the first message only");
  late = good;
  late.set_far_mass(true);
  EXPECT_EQ(score({good, late}).error_message(), "far_mass: expected in the first message only");
  EXPECT_EQ(score({good, bad}).error_message(),
            "tokens.ids[1]: expected an id in [0, 258), found -5");
  EXPECT_EQ(score({bad}).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(score({good, text}).error_message(),
            "input: expected chunks of one kind, found text and tokens");
  EXPECT_EQ(score({v1::ScoreRequest()}).error_message(),
            "input: expected text or tokens, found neither");
  EXPECT_EQ(score({}).error_message(), "input: expected text or tokens, found none");
  EXPECT_TRUE(Eventually([this] { return engine_.stats().running == 0; }));
}

}  // namespace
}  // namespace polysketch
