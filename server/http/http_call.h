// An RPC of polysketch.v1 that an HTTP request starts: the transport of its reactor, in place of
// gRPC. So both protocols have the same checks, limits, metrics and errors.
#pragma once

#include <google/protobuf/message.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/convert/wire.h"
#include "server/http/http_exchange.h"
#include "server/net/router.h"
#include "server/rpc/direct_completion.h"

namespace polysketch {

class HttpCall final : public CallContext, public std::enable_shared_from_this<HttpCall> {
 public:
  struct Callbacks {
    // CallContext::OnSubmitted. Null: not reported.
    std::function<void(int64_t prompt_tokens)> on_submitted = nullptr;
    // Receives each message of the response; may send to the exchange. Not called after on_finish.
    std::function<void(const grpc::ByteBuffer& message)> on_message = nullptr;
    // The same for a completion.
    std::function<void(v1::CompleteResponse response)> on_response = nullptr;
    // Called once, with the status of the RPC.
    std::function<void(const Status& status)> on_finish;
  };

  // Starts the RPC `method` of polysketch.v1.PolySketch with one message. Metadata are the headers
  // of the HTTP request. Callbacks run on any thread, one at a time. Called on the thread of the
  // HTTP server.
  static std::shared_ptr<HttpCall> Start(const Router& router,
                                         std::shared_ptr<HttpExchange> exchange,
                                         std::string_view method,
                                         const google::protobuf::Message& request,
                                         Callbacks callbacks);

  // Starts the RPC Complete, whose request and responses stay messages. The transport has admitted
  // the caller. `service` outlives the call. `chat`: CallContext::is_chat. Otherwise as Start.
  static std::shared_ptr<HttpCall> StartCompletion(ServiceContext* service,
                                                   std::shared_ptr<HttpExchange> exchange,
                                                   v1::CompleteRequest request, Callbacks callbacks,
                                                   bool chat);

  // Both are called on the thread of the HTTP server, when HttpExchange reports so.
  void OnSent();
  void Cancel();

  // --- CallContext ---
  std::string_view method() const override { return method_; }
  std::string peer() const override { return exchange_->request().peer; }
  bool is_grpc() const override { return false; }
  bool is_chat() const override { return chat_; }
  std::vector<std::string_view> Metadata(std::string_view key) const override;
  std::chrono::system_clock::time_point deadline() const override {
    return std::chrono::system_clock::time_point::max();
  }
  // The HTTP server returns x-request-id itself.
  void AddInitialMetadata(const std::string&, const std::string&) override {}
  void OnSubmitted(int64_t prompt_tokens) override {
    if (callbacks_.on_submitted) callbacks_.on_submitted(prompt_tokens);
  }
  void StartRead(grpc::ByteBuffer* message) override;
  void StartWrite(const grpc::ByteBuffer* message) override;
  void StartWriteAndFinish(const grpc::ByteBuffer* message) override;
  void Finish(const Status& status) override;
  void TryCancel() override;
  bool IsCancelled() const override;

 private:
  HttpCall(std::shared_ptr<HttpExchange> exchange, std::string_view method, Callbacks callbacks)
      : exchange_(std::move(exchange)),
        method_(StrCat("/", kPolySketchService, "/", method)),
        callbacks_(std::move(callbacks)) {}
  static std::shared_ptr<HttpCall> New(std::shared_ptr<HttpExchange> exchange,
                                       std::string_view method, Callbacks callbacks);
  // Passes a message of the response on.
  void Receive(const grpc::ByteBuffer& message);
  // Posts `report` to the thread of the HTTP server, unless the RPC has ended by then.
  void Report(std::function<void(CallReactor*)> report);

  const std::shared_ptr<HttpExchange> exchange_;
  const std::string method_;
  Callbacks callbacks_;  // empty after OnDone
  bool chat_ = false;
  CallReactor* reactor_ = nullptr;                // set in Start
  std::optional<v1::CompleteResponse> response_;  // of the next message; its reactor's until then
  mutable std::mutex mutex_;
  std::shared_ptr<HttpCall> pinned_;  // until OnDone
  // Guarded by mutex_:
  grpc::ByteBuffer request_;
  bool read_ = false;     // the request was read
  bool blocked_ = false;  // a write ends when the client has read more
  bool cancelled_ = false;
  bool finished_ = false;
};

// Memory of a message: the message itself, its JSON and the text of that, in bytes of its
// serialized form.
inline constexpr int64_t kJsonOfMessage = 12;

// Starts the unary RPC `method`. `done` receives its response or its status, once, on any thread;
// the memory of the response, of its JSON and of the text of that is counted until `done` returns.
// Called on the thread of the HTTP server. `router` outlives the call.
template <typename Response>
std::shared_ptr<HttpCall> CallUnary(const Router& router,
                                    const std::shared_ptr<HttpExchange>& exchange,
                                    std::string_view method,
                                    const google::protobuf::Message& request,
                                    std::function<void(const Result<Response>&)> done) {
  struct Outcome {
    HeldMemory held;
    Result<Response> response = Internal("expected a response, found none");
  };
  const auto outcome = std::make_shared<std::optional<Outcome>>(
      Outcome{.held = exchange->NewMemory(RequestPhase::kReply)});
  const auto parse = [](const grpc::ByteBuffer& message, HeldMemory* held) -> Result<Response> {
    PS_RETURN_IF_ERROR(held->Hold(kJsonOfMessage * static_cast<int64_t>(message.Length())));
    Response parsed;
    PS_RETURN_IF_ERROR(ParseMessage(message, &parsed));
    return parsed;
  };
  HttpCall::Callbacks callbacks;
  callbacks.on_message = [outcome, parse](const grpc::ByteBuffer& message) {
    (*outcome)->response = parse(message, &(*outcome)->held);
  };
  callbacks.on_finish = [outcome, done = std::move(done)](const Status& status) {
    if (!status.ok()) (*outcome)->response = status;
    done((*outcome)->response);
    outcome->reset();  // the callbacks live on until the thread of the server has ended the call
  };
  return HttpCall::Start(router, exchange, method, request, std::move(callbacks));
}

}  // namespace polysketch
