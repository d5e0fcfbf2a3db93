#include "tests/e2e/rpc.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch::e2e {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return Status();
  return Status(static_cast<Code>(status.error_code()), status.error_message());
}

Health FromGrpc(HealthCheckResponse::ServingStatus status) {
  switch (status) {
    case HealthCheckResponse::SERVING:
      return Health::kServing;
    case HealthCheckResponse::NOT_SERVING:
      return Health::kNotServing;
    case HealthCheckResponse::SERVICE_UNKNOWN:
      return Health::kServiceUnknown;
    default:
      return Health::kUnknown;
  }
}

// A context with what the options ask for, and their way back.
class Call {
 public:
  explicit Call(const CallOptions& options) : initial_metadata_(options.initial_metadata) {
    if (options.timeout) {
      // Not a time_point, which ends in 2262.
      context_.set_deadline(
          gpr_time_add(gpr_now(GPR_CLOCK_REALTIME),
                       gpr_time_from_millis(options.timeout->count(), GPR_TIMESPAN)));
    }
    for (const auto& [key, value] : options.metadata) context_.AddMetadata(key, value);
  }

  grpc::ClientContext* context() { return &context_; }

  Status Ended(const grpc::Status& status) {
    if (initial_metadata_ != nullptr) {
      for (const auto& [key, value] : context_.GetServerInitialMetadata()) {
        (*initial_metadata_)[std::string(key.data(), key.size())].assign(value.data(),
                                                                         value.size());
      }
    }
    return FromGrpc(status);
  }

 private:
  grpc::ClientContext context_;
  std::map<std::string, std::string>* const initial_metadata_;
};

// Interface: a ReadStream or a Stream of Response. Grpc: the reader (and writer) that it wraps.
template <typename Interface, typename Response, typename Grpc>
class StreamOf : public Interface {
 public:
  explicit StreamOf(const CallOptions& options) : call_(options) {}
  ~StreamOf() override {
    StreamOf::Cancel();
    if (!finished_) static_cast<void>(StreamOf::Finish());
  }
  Call* call() { return &call_; }
  void Start(std::unique_ptr<Grpc> grpc) { grpc_ = std::move(grpc); }

  bool Read(Response* response) override { return grpc_->Read(response); }
  void Cancel() override { call_.context()->TryCancel(); }
  Status Finish() override {
    Response dropped;
    while (Read(&dropped)) {
    }
    finished_ = true;
    return call_.Ended(grpc_->Finish());
  }

 protected:
  Call call_;
  std::unique_ptr<Grpc> grpc_;
  bool finished_ = false;
};

using CompleteStreamImpl =
    StreamOf<CompleteStream, v1::CompleteResponse, grpc::ClientReader<v1::CompleteResponse>>;

class ScoreStreamImpl
    : public StreamOf<ScoreStream, v1::ScoreResponse,
                      grpc::ClientReaderWriter<v1::ScoreRequest, v1::ScoreResponse>> {
 public:
  using StreamOf::StreamOf;
  bool Write(const v1::ScoreRequest& request) override { return grpc_->Write(request); }
  void WritesDone() override { grpc_->WritesDone(); }
};

class HealthStreamImpl : public HealthStream {
 public:
  HealthStreamImpl(grpc::health::v1::Health::Stub* stub, const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    reader_ = stub->Watch(&context_, request);
  }
  ~HealthStreamImpl() override {
    HealthStreamImpl::Cancel();
    if (!finished_) static_cast<void>(HealthStreamImpl::Finish());
  }
  bool Read(Health* health) override {
    HealthCheckResponse response;
    if (!reader_->Read(&response)) return false;
    *health = FromGrpc(response.status());
    return true;
  }
  void Cancel() override { context_.TryCancel(); }
  Status Finish() override {
    Health dropped;
    while (Read(&dropped)) {
    }
    finished_ = true;
    return FromGrpc(reader_->Finish());
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader_;
  bool finished_ = false;
};

// One operation at a time on a queue of its own.
class RawStream : public ByteStream {
 public:
  RawStream(grpc::GenericStub* stub, const std::string& method, const CallOptions& options)
      : call_(options), stream_(stub->PrepareCall(call_.context(), method, &queue_)) {
    stream_->StartCall(this);
    WaitForOperation();
  }
  ~RawStream() override {
    RawStream::Cancel();
    if (!finished_) static_cast<void>(RawStream::Finish());
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  bool Write(const std::string& bytes) override {
    const grpc::Slice slice(bytes);
    stream_->Write(grpc::ByteBuffer(&slice, 1), this);
    return WaitForOperation();
  }
  void WritesDone() override {
    stream_->WritesDone(this);
    WaitForOperation();
  }
  bool Read(std::string* bytes) override {
    grpc::ByteBuffer buffer;
    stream_->Read(&buffer, this);
    if (!WaitForOperation()) return false;
    grpc::Slice slice;
    PS_CHECK(buffer.DumpToSingleSlice(&slice).ok());
    bytes->assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
    return true;
  }
  void Cancel() override { call_.context()->TryCancel(); }
  Status Finish() override {
    std::string dropped;
    while (Read(&dropped)) {
    }
    finished_ = true;
    grpc::Status status;
    stream_->Finish(&status, this);
    WaitForOperation();
    return call_.Ended(status);
  }

 private:
  bool WaitForOperation() {
    void* tag;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  Call call_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  bool finished_ = false;
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address, const ChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  if (options.small_windows) {
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  }
  const auto channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  if (options.connect_first) {
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
    EXPECT_TRUE(channel->WaitForConnected(deadline)) << address;
  }
  return channel;
}

// Appends the message's tokens to the completion.
template <typename Message>  // Delta or CompleteUnaryResponse
void Append(const Message& message, Completion* completion) {
  completion->text += message.text();
  completion->tokens.insert(completion->tokens.end(), message.tokens().begin(),
                            message.tokens().end());
  for (const v1::TokenLogprob& logprob : message.logprobs()) {
    completion->details.push_back(logprob);
    if (logprob.has_logprob()) completion->logprobs.push_back(logprob.logprob());
  }
}

}  // namespace

struct Client::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : polysketch(channel), health(channel), generic(channel) {}
  v1::PolySketch::Stub polysketch;
  grpc::health::v1::Health::Stub health;
  grpc::GenericStub generic;
};

Client::Client(const std::string& address, const ChannelOptions& options)
    : stubs_(std::make_unique<Stubs>(Connect(address, options))) {}

Client::~Client() = default;

std::unique_ptr<CompleteStream> Client::StartComplete(const v1::CompleteRequest& request,
                                                      const CallOptions& options) {
  auto stream = std::make_unique<CompleteStreamImpl>(options);
  stream->Start(stubs_->polysketch.Complete(stream->call()->context(), request));
  return stream;
}

std::unique_ptr<ScoreStream> Client::StartScore(const CallOptions& options) {
  auto stream = std::make_unique<ScoreStreamImpl>(options);
  stream->Start(stubs_->polysketch.Score(stream->call()->context()));
  return stream;
}

Completion Client::Complete(const v1::CompleteRequest& request, const CallOptions& options) {
  Completion completion;
  const auto stream = StartComplete(request, options);
  v1::CompleteResponse response;
  while (stream->Read(&response)) {
    PS_CHECK(completion.finish.reason() == v1::FINISH_REASON_UNSPECIFIED)
        << "a message after the finish: " << response.ShortDebugString();
    ++completion.messages;
    if (response.has_delta()) Append(response.delta(), &completion);
    if (response.has_progress()) ++completion.progress_messages;
    if (response.has_finish()) {
      completion.finish = response.finish();
      completion.text += response.finish().text();
    }
  }
  completion.status = stream->Finish();
  return completion;
}

Completion Client::CompleteUnary(const v1::CompleteRequest& request, const CallOptions& options) {
  Completion completion;
  Call call(options);
  v1::CompleteUnaryResponse response;
  completion.status =
      call.Ended(stubs_->polysketch.CompleteUnary(call.context(), request, &response));
  Append(response, &completion);
  completion.finish = response.finish();
  return completion;
}

Score Client::ScoreAll(const std::function<bool(v1::ScoreRequest*)>& next,
                       const CallOptions& options) {
  Score score;
  const auto stream = StartScore(options);
  std::thread writer([&] {
    v1::ScoreRequest request;
    while (next(&request)) {
      if (!stream->Write(request)) return;
    }
    stream->WritesDone();
  });
  v1::ScoreResponse response;
  while (stream->Read(&response)) {
    if (response.has_logprobs()) {
      const v1::ScoreLogprobs& values = response.logprobs();
      if (score.logprobs.empty()) score.first = values.first();
      const int64_t expected = score.first + std::ssize(score.logprobs);
      PS_CHECK(values.first() == expected)
          << "expected first = " << expected << ", found " << values.first();
      score.greedy.insert(score.greedy.end(), values.greedy().begin(), values.greedy().end());
      score.logprobs.insert(score.logprobs.end(), values.logprobs().begin(),
                            values.logprobs().end());
    }
    if (response.has_finish()) score.finish = response.finish();
  }
  writer.join();
  score.status = stream->Finish();
  return score;
}

Score Client::ScoreTokens(const std::vector<int32_t>& tokens, size_t chunk,
                          const CallOptions& options) {
  size_t sent = 0;
  return ScoreAll(
      [&](v1::ScoreRequest* request) {
        const size_t count = std::min(chunk, tokens.size() - sent);
        const auto begin = tokens.begin() + static_cast<ptrdiff_t>(sent);
        request->mutable_tokens()->mutable_ids()->Assign(begin,
                                                         begin + static_cast<ptrdiff_t>(count));
        sent += count;
        return count > 0;
      },
      options);
}

Status Client::Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
  grpc::ClientContext context;
  return FromGrpc(stubs_->polysketch.Tokenize(&context, request, response));
}

Status Client::Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) {
  grpc::ClientContext context;
  return FromGrpc(stubs_->polysketch.Detokenize(&context, request, response));
}

Result<v1::Session> Client::CreateSession() {
  grpc::ClientContext context;
  v1::Session session;
  const Status status = FromGrpc(stubs_->polysketch.CreateSession(&context, {}, &session));
  if (!status.ok()) return status;
  return session;
}

Result<v1::Session> Client::AppendSession(const std::string& session,
                                          const std::vector<int32_t>& tokens,
                                          int64_t expected_position) {
  grpc::ClientContext context;
  const auto stream = stubs_->polysketch.Append(&context);
  v1::AppendRequest request;
  request.set_session(session);
  request.set_expected_position(expected_position);
  request.mutable_tokens()->mutable_ids()->Assign(tokens.begin(), tokens.end());
  stream->Write(request);
  stream->WritesDone();
  v1::AppendResponse response;
  v1::Session appended;
  while (stream->Read(&response)) {
    if (response.has_session()) appended = response.session();
  }
  if (Status status = FromGrpc(stream->Finish()); !status.ok()) return status;
  return appended;
}

Result<v1::Snapshot> Client::SnapshotSession(const std::string& session) {
  grpc::ClientContext context;
  v1::SnapshotSessionRequest request;
  request.set_session(session);
  v1::Snapshot snapshot;
  const grpc::Status status = stubs_->polysketch.SnapshotSession(&context, request, &snapshot);
  if (!status.ok()) return FromGrpc(status);
  return snapshot;
}

Status Client::GetModel(v1::GetModelResponse* response) {
  grpc::ClientContext context;
  return FromGrpc(stubs_->polysketch.GetModel(&context, v1::GetModelRequest(), response));
}

Result<Health> Client::CheckHealth(const std::string& service) {
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = stubs_->health.Check(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  return FromGrpc(response.status());
}

std::unique_ptr<HealthStream> Client::WatchHealth(const std::string& service) {
  return std::make_unique<HealthStreamImpl>(&stubs_->health, service);
}

std::unique_ptr<ByteStream> Client::StartRaw(const std::string& method,
                                             const CallOptions& options) {
  return std::make_unique<RawStream>(&stubs_->generic, method, options);
}

Status Client::CallRaw(const std::string& method, const std::string& bytes) {
  RawStream stream(&stubs_->generic, method, {});
  stream.Write(bytes);
  stream.WritesDone();
  return stream.Finish();
}

v1::CompleteRequest Greedy(const std::string& prompt, int max_tokens) {
  v1::CompleteRequest request;
  request.mutable_prompt()->set_text(prompt);
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

v1::CompleteRequest Greedy(const std::vector<int32_t>& prompt, int max_tokens) {
  v1::CompleteRequest request = Greedy(std::string(), max_tokens);
  request.mutable_prompt()->mutable_tokens()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  return request;
}

}  // namespace polysketch::e2e
