// How calls of each kind end (cancelled, out of time, in error, by shutdown), and that they free
// what they held.
#include <signal.h>

#include <thread>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/http_socket.h"
#include "tests/testing/scripted_redis.h"

namespace polysketch::e2e {
namespace {

using std::chrono::milliseconds;

// More than any test waits for.
v1::CompleteRequest EndlessRequest() { return Greedy("It was late in the afternoon", 1 << 20); }

// The kinds of calls that run a request on the engine.
struct Kind {
  const char* name;
  const char* method;
};
constexpr Kind kKinds[] = {{"Stream", "/polysketch.v1.PolySketch/Complete"},
                           {"Unary", "/polysketch.v1.PolySketch/CompleteUnary"},
                           {"Bidi", "/polysketch.v1.PolySketch/Score"}};

class EveryKind : public ::testing::TestWithParam<Kind> {
 protected:
  static bool IsScore() { return GetParam().method == kKinds[2].method; }

  // A call that runs until something ends it: a score waits for input that never comes.
  static std::unique_ptr<ByteStream> StartEndless(Client* client, const CallOptions& options = {}) {
    auto stream = client->StartRaw(GetParam().method, options);
    if (IsScore()) {
      v1::ScoreRequest chunk;
      chunk.mutable_tokens()->add_ids(5);
      stream->Write(chunk.SerializeAsString());
    } else {
      stream->Write(EndlessRequest().SerializeAsString());
      stream->WritesDone();
    }
    return stream;
  }
};
INSTANTIATE_TEST_SUITE_P(Calls, EveryKind, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

// With one slot, a request that waits for an endless one is served only if the slot is freed.
void ExpectSlotIsFree(const Server& server) {
  const Completion next = Client(server.address()).Complete(Greedy("Then", 5));
  EXPECT_TRUE(next.status.ok()) << next.status.ToString();
  EXPECT_EQ(next.tokens.size(), 5u);
  EXPECT_TRUE(server.BecomesIdle());
}

TEST_P(EveryKind, CancelFreesTheSlot) {
  const Server server({.flags = {"--max-sequences", "1"}});
  Client client(server.address());
  const auto stream = StartEndless(&client);
  ASSERT_TRUE(server.ComesToRun(1));
  stream->Cancel();
  EXPECT_EQ(stream->Finish().code(), Code::kCancelled);
  ExpectSlotIsFree(server);
  // The writer thread counts the end a moment after the engine has freed the slot. A score whose
  // client left may see the end of its input first (server/rpc/engine_call.cc): it then ends with
  // "stop".
  const auto finished = [&](const char* reason) {
    return server.Metric(
        StrCat(R"(polysketch_request_success_total{finished_reason=")", reason, R"("})"));
  };
  EXPECT_TRUE(
      WaitUntil([&] { return finished("cancelled") + (IsScore() ? finished("stop") : 0) == 1; }));
}

TEST_P(EveryKind, DeadlineFreesTheSlot) {
  const Server server({.flags = {"--max-sequences", "1"}});
  Client client(server.address());
  const auto stream = StartEndless(&client, {.timeout = milliseconds(700)});
  EXPECT_EQ(stream->Finish().code(), Code::kDeadlineExceeded);
  ExpectSlotIsFree(server);
}

TEST_P(EveryKind, ADeadlineCountsInTheQueueToo) {
  const Server server({.flags = {"--max-sequences", "1"}});
  Client client(server.address());
  ReadCompletion running(client.StartComplete(EndlessRequest()));
  ASSERT_TRUE(server.ComesToRun(1));
  const auto waiting = StartEndless(&client, {.timeout = milliseconds(300)});
  EXPECT_EQ(waiting->Finish().code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(WaitUntil([&] { return server.Metric("polysketch_num_requests_waiting") == 0; }));
  EXPECT_EQ(server.Metric("polysketch_num_requests_running"), 1);
  running.Cancel();
  ExpectSlotIsFree(server);
}

TEST_P(EveryKind, AnErrorLeavesNothingBehind) {
  const Server server({.flags = {"--max-sequences", "1"}});
  Client client(server.address());
  const auto stream = client.StartRaw(GetParam().method);
  if (IsScore()) {  // in the middle of a running call
    v1::ScoreRequest chunk;
    chunk.mutable_tokens()->add_ids(5);
    stream->Write(chunk.SerializeAsString());
    ASSERT_TRUE(server.ComesToRun(1));
    chunk.mutable_tokens()->add_ids(-1);
    stream->Write(chunk.SerializeAsString());
  } else {
    v1::CompleteRequest request = EndlessRequest();
    request.mutable_sampling()->set_top_p(2);
    stream->Write(request.SerializeAsString());
  }
  EXPECT_EQ(stream->Finish().code(), Code::kInvalidArgument);
  ExpectSlotIsFree(server);
}

TEST_P(EveryKind, ShutdownCutsWhatDoesNotEndInTime) {
  Server server({.flags = {"--drain-timeout", "300ms"}});
  Client client(server.address());
  const auto stream = StartEndless(&client);
  ASSERT_TRUE(server.ComesToRun(1));
  server.process().Signal(SIGTERM);
  EXPECT_EQ(stream->Finish().code(), Code::kUnavailable);
  EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
}

TEST_P(EveryKind, ALostConnectionFreesTheSlot) {
  const Server server({.flags = {"--max-sequences", "1"}});
  {
    Client client(server.address());
    const auto stream = StartEndless(&client);
    ASSERT_TRUE(server.ComesToRun(1));
  }
  ExpectSlotIsFree(server);
}

TEST(Drain, FinishesRunningStreamsAndRefusesNewOnes) {
  Server server;
  const v1::CompleteRequest request = Greedy("It was late in the afternoon", 600);
  Client client(server.address());
  const Completion undisturbed = client.Complete(request);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.ToString();

  const auto health = client.WatchHealth("polysketch.v1.PolySketch");
  Health state;
  ASSERT_TRUE(health->Read(&state));
  EXPECT_EQ(state, Health::kServing);
  // Waits for its first token, so that it runs when the signal comes; its reader is slow, so that
  // it runs on.
  Client slow_client(server.address(), {.small_windows = true});
  v1::CompleteRequest slow_request = request;
  slow_request.set_logprobs(20);
  const auto stream = slow_client.StartComplete(slow_request);
  v1::CompleteResponse response;
  ASSERT_TRUE(stream->Read(&response));
  server.process().Signal(SIGTERM);

  ASSERT_TRUE(health->Read(&state));
  EXPECT_EQ(state, Health::kNotServing);
  // Health tells first: a call may slip in before the door is shut, and then it is served.
  EXPECT_TRUE(WaitUntil([&] {
    const Status refused = client.Complete(Greedy("Then", 2)).status;
    return refused.code() == Code::kUnavailable;
  }));
  EXPECT_TRUE(server.process().Running());

  std::vector<int32_t> tokens;
  do {
    tokens.insert(tokens.end(), response.delta().tokens().begin(), response.delta().tokens().end());
  } while (stream->Read(&response));
  const Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(tokens, undisturbed.tokens);
  EXPECT_FALSE(health->Read(&state)) << "watches end with the server";
  EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
}

// Nothing of such a call has run: another replica can do all of it.
TEST(Drain, RefusesCallsWhoseInputStillArrives) {
  Server server;
  Client client(server.address());
  const auto health = client.WatchHealth("polysketch.v1.PolySketch");
  Health state;
  ASSERT_TRUE(health->Read(&state));
  const auto stream = client.StartRaw("/polysketch.v1.PolySketch/CompleteStream");
  v1::CompleteStreamRequest request, chunk;
  request.mutable_request()->set_max_tokens(4);
  chunk.set_text("some words ");
  stream->Write(request.SerializeAsString());
  server.process().Signal(SIGTERM);
  ASSERT_TRUE(health->Read(&state));
  EXPECT_EQ(state, Health::kNotServing);
  // Longer than last messages have.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  stream->Write(chunk.SerializeAsString());
  const Status status = stream->Finish();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "the server is draining");
  EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
}

TEST(Drain, RefusesHttpRequestsWhoseBodyStillArrives) {
  Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const testing::HttpSocket upload(server.http_address());
  upload.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60\r\n\r\n{\"prompt\":");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  server.process().Signal(SIGTERM);
  const std::string answer = upload.ReadAll();
  EXPECT_NE(answer.find("HTTP/1.1 503 "), std::string::npos) << answer;
  EXPECT_NE(answer.find("the server is draining"), std::string::npos) << answer;
  EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
}

TEST(Signals, OthersHaveNoEffect) {
  Server server;
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ})
    server.process().Signal(signal);
  Client client(server.address());
  const Completion completion = client.Complete(Greedy("Then", 4));
  EXPECT_TRUE(completion.status.ok()) << completion.status.ToString();
}

// "grpc-timeout: 99999999H" is a form that gRPC allows, 11,400 years.
TEST(Deadlines, AFarOneIsNone) {
  const Server server;
  Client client(server.address());
  const auto stream = client.StartComplete(
      Greedy("Then", 4), {.timeout = std::chrono::hours(24 * 365) * int64_t{400}});
  EXPECT_TRUE(stream->Finish().ok());
}

TEST(Drain, AnIdleServerEndsAtOnceOnASignal) {
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT}) {
    Server server;
    server.process().Signal(signal);
    EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
  }
}

// The store's own patience is 10 seconds.
TEST(Drain, EndsInTimeWhenTheStoreHangs) {
  testing::ScriptedRedis store({"+PONG\r\n", "$0\r\n\r\n", "*2\r\n$1\r\n0\r\n*0\r\n"});
  Server server({.flags = {"--state-store", StrCat("redis://127.0.0.1:", store.port()),
                           "--drain-timeout", "300ms"}});
  Client client(server.address());
  const auto stream = client.StartComplete(EndlessRequest());
  ASSERT_TRUE(server.ComesToRun(1));
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(std::chrono::seconds(20)), 1)
      << "a completion was lost: " << server.process().StandardError();
  EXPECT_FALSE(stream->Finish().ok());
}

// A connection that reaches its age is replaced by the client's library; no call notices.
TEST(Connections, AgeWithoutLosingCalls) {
  const Server server({.flags = {"--max-connection-age", "300ms"}});
  Client client(server.address());
  const auto stream = client.StartComplete(EndlessRequest());
  v1::CompleteResponse response;
  ASSERT_TRUE(stream->Read(&response));
  // The old connection stays as long as the stream is on it.
  EXPECT_TRUE(WaitUntil([&] {
    const Completion completion = client.Complete(Greedy("Then", 2));
    EXPECT_TRUE(completion.status.ok()) << completion.status.ToString();
    return !completion.status.ok() || server.Metric("polysketch_connections") >= 2;
  }));
  ASSERT_TRUE(stream->Read(&response)) << "its stream goes on";
  stream->Cancel();
  EXPECT_EQ(stream->Finish().code(), Code::kCancelled);
  EXPECT_TRUE(server.BecomesIdle());
}

}  // namespace
}  // namespace polysketch::e2e
