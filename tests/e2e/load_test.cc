// Many at once: results that do not depend on the company, a bounded queue, readers that do not
// read.
#include <cstring>
#include <future>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

const char* const kPrompts[] = {"It was late in the afternoon", "\"Sir,\" said he,", "The sea",
                                "1.\n\n", "My dear friend, I have"};

// Request `i` of a mixed load.
v1::CompleteRequest Request(int i, int max_tokens) {
  v1::CompleteRequest request = Greedy(kPrompts[i % 5], max_tokens - i % 7);
  v1::Sampling* sampling = request.mutable_sampling();
  sampling->set_temperature(i % 4 == 0 ? 0 : 0.5f + 0.1f * static_cast<float>(i % 8));
  sampling->set_seed(1000 + static_cast<uint64_t>(i));
  if (i % 3 == 1) sampling->set_top_k(40);
  if (i % 3 == 2) sampling->set_top_p(0.9f);
  if (i % 5 == 3) sampling->set_repetition_penalty(1.3f);
  request.set_logprobs(i % 2 == 0 ? 0 : 3);
  return request;
}

void ExpectSame(const Completion& a, const Completion& b, const std::string& what) {
  EXPECT_TRUE(a.status.ok()) << what << ": " << a.status.ToString();
  EXPECT_TRUE(b.status.ok()) << what << ": " << b.status.ToString();
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.text, b.text) << what;
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << what;
  EXPECT_EQ(std::memcmp(a.logprobs.data(), b.logprobs.data(), a.logprobs.size() * sizeof(float)), 0)
      << what;
}

TEST(Load, ManyRequestsAtOnceEqualTheirSoloRuns) {
  const Server server({.flags = {"--max-sequences", "24"}});  // some of 32 wait
  const int count = 32;
  const int max_tokens = testing::Count(40, 300);
  Client client(server.address());
  std::vector<Completion> solo;
  solo.reserve(count);
  for (int i = 0; i < count; ++i) solo.push_back(client.Complete(Request(i, max_tokens)));

  std::vector<std::future<Completion>> together;
  together.reserve(count);
  for (int i = 0; i < count; ++i) {
    together.push_back(std::async(std::launch::async, [&, i] {
      Client own(server.address(), {.connect_first = true});
      return i % 4 == 3 ? own.CompleteUnary(Request(i, max_tokens))
                        : own.Complete(Request(i, max_tokens));
    }));
  }
  for (int i = 0; i < count; ++i) {
    ExpectSame(together[static_cast<size_t>(i)].get(), solo[static_cast<size_t>(i)],
               "request " + std::to_string(i));
  }
  // Different seeds are different requests.
  EXPECT_NE(solo[1].tokens, client
                                .Complete([&] {
                                  v1::CompleteRequest other = Request(1, max_tokens);
                                  other.mutable_sampling()->set_seed(1);
                                  return other;
                                }())
                                .tokens);
  EXPECT_TRUE(server.BecomesIdle());
  EXPECT_GT(server.Metric("polysketch_iteration_sequences_sum"),
            1.5 * server.Metric("polysketch_iteration_sequences_count"))
      << "steps must batch what runs at once";
}

TEST(Load, ADrawnSeedRepeatsTheResult) {
  const Server server;
  Client client(server.address());
  v1::CompleteRequest request = Request(1, 40);
  request.mutable_sampling()->clear_seed();
  const Completion drawn = client.Complete(request);
  ASSERT_TRUE(drawn.status.ok()) << drawn.status.ToString();
  request.mutable_sampling()->set_seed(drawn.finish.seed());
  ExpectSame(client.Complete(request), drawn, "repeated");
  request.mutable_sampling()->clear_seed();
  EXPECT_NE(client.Complete(request).finish.seed(), drawn.finish.seed());
}

TEST(Load, AFullQueueRefusesAndRecovers) {
  const Server server({.flags = {"--max-sequences", "1", "--max-queue", "2"}});
  Client client(server.address());
  ReadCompletion running(client.StartComplete(Greedy("It was", 1 << 20)));
  ASSERT_TRUE(server.ComesToRun(1));
  const auto waiting = client.StartComplete(Greedy("It was", 5));
  const auto waiting_too = client.StartComplete(Greedy("It was", 5));
  ASSERT_TRUE(WaitUntil([&] { return server.Metric("polysketch_num_requests_waiting") == 2; }));

  for (const Completion& refused :
       {client.Complete(Greedy("It was", 5)), client.CompleteUnary(Greedy("It was", 5))}) {
    EXPECT_EQ(refused.status.code(), Code::kResourceExhausted) << refused.status.ToString();
    EXPECT_NE(refused.status.message().find("queue"), std::string::npos)
        << refused.status.message();
  }
  EXPECT_EQ(client.ScoreTokens({1, 2}, 2).status.code(), Code::kResourceExhausted);
  running.Cancel();
  EXPECT_TRUE(waiting->Finish().ok());
  EXPECT_TRUE(waiting_too->Finish().ok());
  EXPECT_TRUE(client.Complete(Greedy("It was", 5)).status.ok());
}

// About 600 bytes a token, so that little output fills what lies between the server and a client
// that does not read.
v1::CompleteRequest WideRequest() {
  v1::CompleteRequest request = Greedy("It was late in the afternoon", 1500);
  request.set_logprobs(20);
  return request;
}

TEST(Load, ASlowReaderIsParkedAndLosesNothing) {
  const Server server({.flags = {"--stream-buffer", "8"}});
  Client client(server.address());
  const Completion undisturbed = client.Complete(WideRequest());
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.ToString();
  const Completion other = client.Complete(Request(2, 60));

  Client slow_client(server.address(), {.small_windows = true});
  const auto slow = slow_client.StartComplete(WideRequest());
  ASSERT_TRUE(WaitUntil([&] { return server.Metric("polysketch_num_requests_idle") == 1; }));
  ExpectSame(client.Complete(Request(2, 60)), other, "beside a slow reader");
  EXPECT_EQ(server.Metric("polysketch_num_requests_idle"), 1);

  std::vector<int32_t> tokens;
  std::string text;
  v1::CompleteResponse response;
  while (slow->Read(&response)) {
    tokens.insert(tokens.end(), response.delta().tokens().begin(), response.delta().tokens().end());
    text += response.delta().text() + response.finish().text();
  }
  const Status status = slow->Finish();
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(tokens, undisturbed.tokens);
  EXPECT_EQ(text, undisturbed.text);
}

TEST(Load, AReaderThatStallsIsEnded) {
  const Server server(
      {.flags = {"--stream-buffer", "8", "--stall-deadline", "500ms", "--max-sequences", "1"}});
  Client slow_client(server.address(), {.small_windows = true});
  const auto stalled = slow_client.StartComplete(WideRequest());
  ASSERT_TRUE(server.ComesToRun(1));
  Client client(server.address());
  const Completion next = client.Complete(Greedy("Then", 5));  // gets the slot
  EXPECT_TRUE(next.status.ok()) << next.status.ToString();
  EXPECT_TRUE(server.BecomesIdle());
  const Code code = stalled->Finish().code();
  EXPECT_TRUE(code == Code::kAborted || code == Code::kCancelled) << CodeName(code);
}

TEST(Load, AScoreWithoutInputIsEnded) {
  const Server server({.flags = {"--stall-deadline", "500ms", "--max-sequences", "1"}});
  Client client(server.address());
  const auto stalled = client.StartScore();
  v1::ScoreRequest chunk;
  chunk.mutable_tokens()->add_ids(5);
  ASSERT_TRUE(stalled->Write(chunk));  // and then nothing
  EXPECT_EQ(stalled->Finish().code(), Code::kAborted);
  EXPECT_TRUE(client.Complete(Greedy("Then", 5)).status.ok());
  EXPECT_TRUE(server.BecomesIdle());
}

// A score whose results are not read stops taking input, and other requests continue.
TEST(Load, AScoreThatIsNotReadHoldsNobodyUp) {
  const Server server({.flags = {"--stream-buffer", "4"}});
  Client slow_client(server.address(), {.small_windows = true});
  const auto score = slow_client.StartScore();
  std::thread writer([&] {
    v1::ScoreRequest chunk;
    for (int i = 0; i < 4096; ++i) chunk.mutable_tokens()->add_ids(i % 100 + 300);
    while (score->Write(chunk)) {
    }
  });
  // Wait until the score is idle because its results are not read. Before its first chunk and
  // between two chunks it is idle because its input is late.
  double read = 0;
  int polls = 0;
  ASSERT_TRUE(WaitUntil([&] {
    const double before = std::exchange(read, server.Metric("polysketch_prompt_tokens_total"));
    const bool waits = server.Metric("polysketch_num_requests_idle") == 1;
    polls = waits && read > 0 && read == before ? polls + 1 : 0;
    return polls == 20;
  }));
  Client client(server.address());
  const Completion other = client.Complete(Greedy("Then", 30));
  EXPECT_TRUE(other.status.ok()) << other.status.ToString();
  EXPECT_LE(server.Metric("polysketch_prompt_tokens_total"), read + 16);
  score->Cancel();
  writer.join();
  EXPECT_EQ(score->Finish().code(), Code::kCancelled);
  EXPECT_TRUE(server.BecomesIdle());
}

}  // namespace
}  // namespace polysketch::e2e
