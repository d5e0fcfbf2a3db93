// Request memory: what calls make the server hold, the refusals at its limit, and that every end of
// a call gives back what it held.
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <thread>

#include "tests/server/rpc/server_fixture.h"

namespace polysketch {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr auto kUpload = static_cast<size_t>(RequestPhase::kUpload);
constexpr auto kRequest = static_cast<size_t>(RequestPhase::kRequest);
constexpr auto kReply = static_cast<size_t>(RequestPhase::kReply);

// A byte is a token, and a text may be cut anywhere. Each part takes `delay`.
class SlowTokenizer final : public testing::FakeTokenizer {
 public:
  explicit SlowTokenizer(std::chrono::microseconds delay) : delay_(delay) {}
  size_t NextCut(std::string_view text, size_t from) const override {
    return from < text.size() ? from : std::string_view::npos;
  }
  Result<std::vector<int32_t>> EncodePart(std::string_view part, bool) const override {
    std::this_thread::sleep_for(delay_);
    return Encode(part);
  }

 private:
  const std::chrono::microseconds delay_;
};

// A call of any method whose client does only what the test asks for.
class RawCall {
 public:
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
      : stub_(channel),
        call_(stub_.PrepareCall(&context_, "/polysketch.v1.PolySketch/" + method, &queue_)) {
    call_->StartCall(this);
    Next();
  }
  ~RawCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  void Write(const google::protobuf::Message& message) {
    const grpc::Slice slice(message.SerializeAsString());
    call_->Write(grpc::ByteBuffer(&slice, 1), this);
    Next();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, this);
    Next();
    return status;
  }

 private:
  void Next() {
    void* tag = nullptr;
    bool ok = false;
    queue_.Next(&tag, &ok);
  }
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class MemoryServiceTest : public testing::ServerFixture {
 protected:
  void Configure(ServerConfig* config) override {
    config->request_memory = 12 * kMiB;  // of which a client may hold 9
    config->stall_deadline = milliseconds(2000);
  }
  int64_t Held(size_t phase) const { return server_->memory().stats().bytes[phase]; }
  uint64_t Refused(size_t phase) const { return server_->memory().stats().refused[phase]; }
  bool NothingIsHeld() {
    return Eventually([this] {
      const auto stats = server_->memory().stats();
      return stats.bytes == decltype(stats.bytes){};
    });
  }
  // A client that takes 64 KiB of what it does not read.
  std::shared_ptr<grpc::Channel> NarrowChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
    return grpc::CreateCustomChannel(server_->address(), ChannelCredentials(), arguments);
  }
  static v1::TokenizeRequest Text(size_t bytes) {
    v1::TokenizeRequest request;
    request.set_text(std::string(bytes, 'a'));
    return request;
  }
  static v1::CompleteRequest LongEndless(int tokens) {
    v1::CompleteRequest request = Endless();
    request.mutable_prompt()->mutable_tokens()->mutable_ids()->Resize(tokens, 5);
    request.mutable_prompt()->mutable_tokens()->set_ids(0, testing::FakeEngine::kEndless);
    return request;
  }

  const SlowTokenizer quick_{std::chrono::microseconds(0)};
};

TEST_F(MemoryServiceTest, UploadsThatNeverEndAreRefusedAtTheLimit) {
  Ready();
  v1::CompleteStreamRequest state, request, tokens;
  state.set_state(std::string(kMiB / 2, 'x'));
  request.mutable_request()->set_max_tokens(1);
  tokens.mutable_tokens()->mutable_ids()->Resize(256 << 10, 5);  // 256 KiB, held as 1 MiB
  std::vector<std::unique_ptr<RawCall>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::make_unique<RawCall>(channel_, "CompleteWithState"));
    calls.back()->Write(state);
    calls.push_back(std::make_unique<RawCall>(channel_, "CompleteStream"));
    calls.back()->Write(request);
    calls.back()->Write(tokens);
  }
  EXPECT_TRUE(Eventually([this] { return Held(kUpload) >= 4 * kMiB; }));
  EXPECT_TRUE(Eventually([this] { return Refused(kUpload) + Refused(kRequest) >= 2; }));
  EXPECT_LE(Held(kUpload) + Held(kRequest), 9 * kMiB);
  tokens.mutable_tokens()->mutable_ids()->Resize(1 << 20, 5);
  calls.push_back(std::make_unique<RawCall>(channel_, "CompleteStream"));
  calls.back()->Write(request);
  calls.back()->Write(tokens);
  // By the call, or by the relay while the message arrives: its reset has no message.
  const grpc::Status status = calls.back()->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  // Before the calls are cancelled: on a busy machine the end of an upload is seen before its
  // cancellation, and the engine gets a request that is cancelled next.
  EXPECT_EQ(engine_.submitted(), 0);
  calls.clear();
  EXPECT_TRUE(NothingIsHeld());
}

TEST_F(MemoryServiceTest, ASilentAppendEndsAndFreesItsSession) {
  Ready();
  const SessionInfo session = sessions_->Create({""}, false, std::chrono::seconds(0)).value();
  v1::AppendRequest request;
  request.set_session(session.id);
  request.mutable_tokens()->mutable_ids()->Resize(100000, 5);
  RawCall silent(channel_, "Append");
  silent.Write(request);
  EXPECT_TRUE(Eventually([this] { return Held(kUpload) == 400000; }));
  EXPECT_EQ(silent.Finish().error_code(), StatusCode::ABORTED);
  EXPECT_TRUE(NothingIsHeld());
  EXPECT_TRUE(Eventually([&] { return sessions_->Acquire({""}, session.id, std::nullopt).ok(); }));
}

TEST_F(MemoryServiceTest, APromptIsHeldUntilTheCallEnds) {
  Ready();
  for (const bool deadline : {false, true}) {
    grpc::ClientContext context;
    if (deadline) context.set_deadline(std::chrono::system_clock::now() + milliseconds(300));
    const auto reader = stub_->Complete(&context, LongEndless(100000));
    v1::CompleteResponse response;
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_GE(Held(kRequest), 1200000);
    if (!deadline) context.TryCancel();
    while (reader->Read(&response)) {
    }
    (void)reader->Finish();
    EXPECT_TRUE(NothingIsHeld());
  }
  {
    grpc::ClientContext context;
    v1::CompleteRequest bad = LongEndless(100000);
    bad.set_max_tokens(-1);
    v1::CompleteUnaryResponse response;
    EXPECT_EQ(stub_->CompleteUnary(&context, bad, &response).error_code(),
              StatusCode::INVALID_ARGUMENT);
    EXPECT_TRUE(NothingIsHeld());
  }
  {
    RawCall gone(NewChannel(), "Complete");
    gone.Write(LongEndless(100000));
    EXPECT_TRUE(Eventually([this] { return Held(kRequest) >= 1200000; }));
  }
  EXPECT_TRUE(NothingIsHeld());
  grpc::ClientContext context;
  v1::CompleteUnaryResponse response;
  const grpc::Status large = stub_->CompleteUnary(&context, LongEndless(800000), &response);
  EXPECT_EQ(large.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(large.error_message().starts_with(
      "request memory: expected at most 9437184 bytes of a client (of --request-memory 12582912), "
      "found 960"))
      << large.error_message();
  EXPECT_TRUE(large.error_message().ends_with("; send less at once")) << large.error_message();
  EXPECT_TRUE(NothingIsHeld());
}

TEST_F(MemoryServiceTest, AFullBudgetSaysWhenToTryAgain) {
  Ready();
  RawCall first(channel_, "Complete");
  first.Write(LongEndless(500000));  // 6 MB
  EXPECT_TRUE(Eventually([this] { return Held(kRequest) >= 6000000; }));
  grpc::ClientContext context;
  v1::CompleteUnaryResponse response;
  EXPECT_EQ(stub_->CompleteUnary(&context, LongEndless(500000), &response).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  const auto& trailer = context.GetServerTrailingMetadata();
  const auto delay = trailer.find("retry-after-ms");
  ASSERT_NE(delay, trailer.end());
  EXPECT_EQ(std::string(delay->second.data(), delay->second.size()), "1000");
}

TEST_F(MemoryServiceTest, AUnaryCallWaitsForItsMessageAsLongAsTheStallDeadline) {
  Ready();
  RawCall silent(channel_, "Tokenize");
  const grpc::Status status = silent.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(),
            "the client sent no request for longer than the stall deadline");
}

TEST_F(MemoryServiceTest, RepliesThatAreNotReadAreBoundedAndDropped) {
  served_.rules.tokenizer = &quick_;
  Ready();
  std::vector<std::unique_ptr<RawCall>> calls;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 40; ++i) {
    calls.push_back(std::make_unique<RawCall>(NarrowChannel(), "Tokenize"));
    calls.back()->Write(Text(96 << 10));  // a reply of 4 bytes for each: 384 KiB
  }
  EXPECT_TRUE(Eventually([this] { return Refused(kReply) + Refused(kRequest) >= 4; }));
  EXPECT_GE(Held(kReply), 4 * kMiB);
  EXPECT_LE(Held(kReply), 9 * kMiB);
  EXPECT_TRUE(NothingIsHeld());  // while the clients are still there
  EXPECT_GE(std::chrono::steady_clock::now() - begin, config_.stall_deadline);
}

TEST_F(MemoryServiceTest, AUnaryCompletionIsBoundedBeforeItIsBuilt) {
  Ready();
  v1::CompleteRequest request;
  request.mutable_prompt()->set_text(std::string(10000, 'a'));
  request.set_max_tokens(0);
  request.set_echo(true);
  request.set_logprobs(20);
  grpc::ClientContext context;
  v1::CompleteUnaryResponse response;
  const grpc::Status status = stub_->CompleteUnary(&context, request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(status.error_message().starts_with(
      "echo: expected a response that takes at most 3145728 bytes (a quarter of --request-memory), "
      "found about 33440000 for 10000 echoed tokens with 20 alternatives each; call Complete"))
      << status.error_message();
  EXPECT_EQ(engine_.submitted(), 0);
  // An output of unknown length ends when it has become too large.
  grpc::ClientContext endless;
  const grpc::Status large = stub_->CompleteUnary(&endless, Endless(), &response);
  EXPECT_EQ(large.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(large.error_message().starts_with("the response takes more than 3145728 bytes"))
      << large.error_message();
  EXPECT_TRUE(Eventually([this] { return engine_.cancelled() == 1; }));
  EXPECT_TRUE(NothingIsHeld());
}

// Long texts of one client, beside another client.
class TokenizerServiceTest : public MemoryServiceTest {
 protected:
  static constexpr size_t kLong = 4000000;  // half a second
  static constexpr int kCalls = 40;

  void Configure(ServerConfig* config) override {
    config->request_memory = 1024 * kMiB;
    config->stall_deadline = std::chrono::seconds(60);
    config->max_message_bytes = 5 * kMiB;
  }
  void Flood() {
    served_.rules.tokenizer = &tokenizer_;
    Ready();
    flood_channel_ = NewChannel();
    for (int i = 0; i < kCalls; ++i) {
      calls_.push_back(std::make_unique<RawCall>(flood_channel_, "Tokenize"));
      calls_.back()->Write(Text(kLong));
    }
    EXPECT_TRUE(Eventually([this] { return Held(kRequest) > int64_t{kLong} * kCalls / 2; }));
  }
  // The time that a call of another client takes.
  template <typename Call>
  milliseconds Time(const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    const grpc::Status status = call();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  }
  grpc::Status TokenizeText(size_t bytes) {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    const grpc::Status status = stub_->Tokenize(&context, Text(bytes), &response);
    EXPECT_EQ(response.tokens_size(), bytes);
    return status;
  }
  grpc::Status StreamPrompt() {
    grpc::ClientContext context;
    const auto stream = stub_->CompleteStream(&context);
    v1::CompleteStreamRequest part;
    part.mutable_request()->set_max_tokens(1);
    stream->Write(part);
    part.set_text("abc");
    stream->Write(part);
    stream->WritesDone();
    v1::CompleteResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }

  const SlowTokenizer tokenizer_{std::chrono::microseconds(500)};
  std::shared_ptr<grpc::Channel> flood_channel_;
  std::vector<std::unique_ptr<RawCall>> calls_;
};

// Alone the flood takes 20 s, and each call here less than 0.1 s.
TEST_F(TokenizerServiceTest, OtherClientsHaveTheirTurn) {
  Flood();
  EXPECT_LT(Time([this] { return TokenizeText(200000); }), milliseconds(2000));
  EXPECT_LT(Time([this] { return StreamPrompt(); }), milliseconds(2000));
  for (const auto& call : calls_) call->Cancel();
  EXPECT_TRUE(NothingIsHeld());
  EXPECT_LT(Time([this] { return TokenizeText(200000); }), milliseconds(2000));
}

TEST_F(TokenizerServiceTest, ADrainDropsWhatWaits) {
  Flood();
  const auto begin = std::chrono::steady_clock::now();
  server_->Drain(milliseconds(500));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(2500));
}

}  // namespace
}  // namespace polysketch
