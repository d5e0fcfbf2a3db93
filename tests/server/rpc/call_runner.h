// Runs calls of every RPC to their answers, without sockets: the handlers of the server, a router
// and an engine with a small model, in this process. Used by tests and by the fuzz target
// `requests`.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "engine/engine.h"
#include "engine/session/session_table.h"
#include "server/convert/status_map.h"
#include "server/convert/wire.h"
#include "server/gateway/vllm_engine.h"
#include "server/metrics/metrics.h"
#include "server/net/router.h"
#include "server/rpc/service.h"
// Its tokenizer has the name of that of tests/server/rpc.
#define FakeTokenizer LetterTokenizer
#include "tests/engine/testing/fake_model.h"
#undef FakeTokenizer

namespace polysketch::testing {

// Encodes too: a letter or a space is its id, another byte one of the four ids of bytes.
class RunnerTokenizer final : public LetterTokenizer {
 public:
  RunnerTokenizer() {
    SetControlPieces({{.text = "</s>", .id = kFakeEos}, {.text = "<s>", .id = kFakeBos}});
  }
  Result<std::vector<int32_t>> Encode(std::string_view text) const override {
    if (ValidUtf8Prefix(text) != text.size()) return InvalidArgument("expected UTF-8");
    std::vector<int32_t> ids;
    for (const char c : text) {
      const int letter = c - 'A' + 3;
      ids.push_back(c == ' ' ? 2 : letter >= 3 && letter < 60 ? letter : 60 + (c & 3));
    }
    return ids;
  }
  std::string_view Piece(int32_t id) const override {
    return id < 60 ? LetterTokenizer::Piece(id) : "<byte>";
  }
};

// One call. Run reports the ends of operations on its own thread.
class RunnerCall final : public CallContext {
 public:
  RunnerCall(std::string method, const std::vector<std::string>& messages)
      : method_(std::move(method)), messages_(messages) {}

  std::string_view method() const override { return method_; }
  std::string peer() const override { return "ipv4:127.0.0.1:4711"; }
  std::vector<std::string_view> Metadata(std::string_view) const override { return {}; }
  std::chrono::system_clock::time_point deadline() const override {
    return std::chrono::system_clock::time_point::max();
  }
  void AddInitialMetadata(const std::string&, const std::string&) override {}

  void StartRead(grpc::ByteBuffer* message) override {
    PS_CHECK(!input_ended_) << method_ << " reads after the end of its input";
    Post([this, message] {
      const bool more = read_ < messages_.size();
      input_ended_ = !more;
      if (more) {
        const grpc::Slice slice(messages_[read_++]);
        *message = grpc::ByteBuffer(&slice, 1);
      }
      reactor_->OnReadDone(more);
    });
  }
  void StartWrite(const grpc::ByteBuffer* message) override {
    answers_.push_back(*message);
    Post([this] { reactor_->OnWriteDone(true); });
  }
  void StartWriteAndFinish(const grpc::ByteBuffer* message) override {
    answers_.push_back(*message);
    Finish(Status());
  }
  void Finish(const Status& status) override {
    Post([this, status] {
      status_ = status;
      ended_ = true;
    });
  }
  void TryCancel() override {
    Post([this] {
      cancelled_ = true;
      reactor_->OnCancel();
    });
  }
  bool IsCancelled() const override { return cancelled_; }

  // Runs the call to its end.
  void Run(const Router& router) {
    reactor_ = router.Start(this);
    while (!ended_) Take()();
    reactor_->OnDone();
  }
  const Status& status() const { return status_; }
  const std::vector<grpc::ByteBuffer>& answers() const { return answers_; }

 private:
  void Post(std::function<void()> event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    posted_.notify_one();
  }
  std::function<void()> Take() {
    std::unique_lock lock(mutex_);
    const bool posted =
        posted_.wait_for(lock, std::chrono::seconds(60), [this] { return !events_.empty(); });
    PS_CHECK(posted) << method_ << " does not end";
    std::function<void()> event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  const std::string method_;
  const std::vector<std::string>& messages_;
  size_t read_ = 0;
  std::atomic<bool> input_ended_ = false;
  std::vector<grpc::ByteBuffer> answers_;  // one write is outstanding at a time
  CallReactor* reactor_ = nullptr;
  Status status_;
  bool ended_ = false;
  bool cancelled_ = false;
  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<std::function<void()>> events_;  // guarded by mutex_
};

// An input of the fuzz target `requests`: the first byte selects the RPC. The rest is one message,
// or for an RPC that takes a stream, messages with two bytes of length before each.
struct CallInput {
  std::string method;
  std::vector<std::string> messages;
};

// The RPCs, in the order of kChecks of tests/fuzz/requests.cc.
inline constexpr struct {
  const char* service;
  const char* name;
  bool stream;
} kFuzzedCalls[] = {{kPolySketchService, "Complete", false},
                    {kPolySketchService, "CompleteStream", true},
                    {kPolySketchService, "CompleteWithState", true},
                    {kPolySketchService, "Score", true},
                    {kPolySketchService, "Append", true},
                    {kPolySketchService, "Detokenize", false},
                    {kPolySketchService, "Tokenize", false},
                    {kPolySketchService, "CreateSession", false},
                    {kPolySketchService, "ForkSession", false},
                    {kPolySketchService, "SnapshotSession", false},
                    {kPolySketchService, "RestoreSession", false},
                    {kPolySketchService, "ListSessions", false},
                    {kPolySketchService, "DeleteSession", false},
                    {kPolySketchService, "GetModel", false},
                    {kVllmService, "Generate", false}};

// Requires a byte.
inline CallInput CallOfInput(std::string_view bytes) {
  const auto& call = kFuzzedCalls[static_cast<uint8_t>(bytes[0]) % std::size(kFuzzedCalls)];
  CallInput input = {std::string("/") + call.service + "/" + call.name, {}};
  bytes.remove_prefix(1);
  if (!call.stream) {
    input.messages.emplace_back(bytes);
    return input;
  }
  while (bytes.size() >= 2) {
    const size_t length = static_cast<uint8_t>(bytes[0]) | static_cast<uint8_t>(bytes[1]) << 8;
    input.messages.emplace_back(bytes.substr(2, length));
    bytes.remove_prefix(2 + input.messages.back().size());
  }
  return input;
}

class CallRunner {
 public:
  CallRunner() : memory_(int64_t{64} << 20), router_(&connections_, nullptr, &refusals_) {
    EngineOptions options;
    options.max_step_tokens = 32;
    options.max_new_tokens = kMaxNewTokens;
    options.default_max_tokens = 8;
    options.max_prompt_tokens = 4096;
    options.eos_ids = {kFakeEos};
    auto engine = Engine::Create(&model_, &tokenizer_, options);
    PS_CHECK(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
    SessionOptions sessions;
    sessions.memory = 1 << 20;
    sessions.codec.limits = {{kFakeVocab, kMaxNewTokens, true}, 0};
    sessions_ = std::make_unique<SessionTable>(std::move(sessions));
    served_.engine = engine_.get();
    served_.sessions = sessions_.get();
    served_.folder = "/nowhere";
    served_.rules = {.tokenizer = &tokenizer_,
                     .add_bos = true,
                     .bos_id = kFakeBos,
                     .vocab_size = kFakeVocab,
                     .max_prompt_tokens = 4096,
                     .max_new_tokens = kMaxNewTokens,
                     .default_max_tokens = 8,
                     .max_priority = 8};
    context_.connections = &connections_;
    context_.metrics = &metrics_;
    context_.refusals = &refusals_;
    context_.memory = &memory_;
    context_.tokenizers = &tokenizers_;
    context_.writers = std::make_shared<Executor>(1);
    context_.stores = std::make_shared<Executor>(1);
    context_.sessions = std::make_shared<Executor>(1);
    context_.grammars = std::make_shared<Executor>(1);
    context_.model = &served_;
    AddCompletionMethods(&context_, &router_);
    AddScoreMethod(&context_, &router_);
    AddSessionMethods(&context_, &router_);
    AddAppendMethod(&context_, &router_);
    AddTextMethods(&context_, &router_);
    AddVllmEngineMethods(&context_, "", &router_);
  }
  ~CallRunner() {
    for (Executor* executor : {context_.writers.get(), context_.stores.get(),
                               context_.sessions.get(), context_.grammars.get()})
      executor->Stop();
    engine_.reset();
  }

  // "/polysketch.v1.PolySketch/Tokenize", of all RPCs.
  static std::vector<std::string> Methods() {
    std::vector<std::string> methods;
    for (const char* service : {kPolySketchService, kVllmService}) {
      const auto* found =
          google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
      PS_CHECK(found != nullptr) << service;
      for (int i = 0; i < found->method_count(); ++i)
        methods.push_back("/" + found->full_name() + "/" + found->method(i)->name());
    }
    return methods;
  }

  // Runs a call, and checks what every answer promises: messages of the type of the RPC, or an
  // error that can be shown.
  Status Run(const std::string& method, const std::vector<std::string>& messages) {
    RunnerCall call(method, messages);
    call.Run(router_);
    const auto* rpc = Rpc(method);
    for (const grpc::ByteBuffer& bytes : call.answers()) {
      const auto answer = NewMessage(rpc->output_type());
      const Status parsed = ParseMessage(bytes, answer.get());
      PS_CHECK(parsed.ok()) << method << ": " << parsed.ToString();
    }
    const Status& status = call.status();
    if (status.ok()) {
      PS_CHECK(rpc->server_streaming() ? !call.answers().empty() : call.answers().size() == 1)
          << method << ": " << call.answers().size() << " messages";
    } else {
      const std::string message = ToGrpcStatus(status).error_message();
      PS_CHECK(!message.empty() && message.size() <= 4096) << method << ": " << message.size();
      PS_CHECK(ValidUtf8Prefix(message) == message.size()) << method << ": " << message;
      PS_CHECK(status.code() != Code::kInternal && status.code() != Code::kUnknown)
          << method << ": " << message;
    }
    return status;
  }
  // Runs an input of the fuzz target: as it is; a message of Complete as one of CompleteUnary too;
  // and, of an RPC whose first message names a session, with one that exists. Then no session is
  // left.
  void RunInput(std::string_view bytes) {
    CallInput input = CallOfInput(bytes);
    (void)Run(input.method, input.messages);
    if (input.method.ends_with("/Complete")) (void)Run(input.method + "Unary", input.messages);
    if (!input.messages.empty() && NameSession(input.method, &input.messages[0]))
      (void)Run(input.method, input.messages);
    const auto made = sessions_->List("");
    PS_CHECK(made.ok()) << made.status().ToString();
    for (const SessionInfo& session : made->sessions) (void)sessions_->Delete("", session.id);
    for (const SnapshotInfo& snapshot : made->snapshots) (void)sessions_->Delete("", snapshot.key);
  }
  // A session that exists.
  std::string NewSession() {
    const auto created =
        sessions_->Create(SessionUser{.tenant = ""}, false, std::chrono::seconds(3600));
    return created.ok() ? created->id : "";
  }

 private:
  static constexpr int kMaxNewTokens = 32;

  static const google::protobuf::MethodDescriptor* Rpc(const std::string& method) {
    const auto* rpc = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
        method.substr(1, method.find('/', 1) - 1) + "." + method.substr(method.rfind('/') + 1));
    PS_CHECK(rpc != nullptr) << method;
    return rpc;
  }
  static std::unique_ptr<google::protobuf::Message> NewMessage(
      const google::protobuf::Descriptor* type) {
    return std::unique_ptr<google::protobuf::Message>(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
  }
  // Names a new session in a message that has a field for one, if it can be parsed.
  bool NameSession(const std::string& method, std::string* bytes) {
    const auto message = NewMessage(Rpc(method)->input_type());
    const auto* field = message->GetDescriptor()->FindFieldByName("session");
    if (field == nullptr || !message->ParseFromString(*bytes)) return false;
    message->GetReflection()->SetString(message.get(), field, NewSession());
    *bytes = message->SerializeAsString();
    return true;
  }

  FakeModel model_;
  RunnerTokenizer tokenizer_;
  Metrics metrics_;
  Refusals refusals_;
  RequestMemory memory_;
  ConnectionTable connections_{ConnectionLimits()};
  TokenizerPool tokenizers_{2};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SessionTable> sessions_;
  ServedModel served_;
  ServiceContext context_;
  Router router_;
};

}  // namespace polysketch::testing
