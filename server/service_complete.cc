#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "server/engine_call.h"
#include "server/service.h"
#include "server/wire.h"

namespace polysketch {
namespace {

// A slow reader gets its backlog in messages of at most this many tokens.
constexpr int kMostDeltaTokens = 256;

// What the streaming and the unary form share: from bytes to a running request.
class GenerateCall : public EngineCall {
 public:
  void Start(const grpc::ByteBuffer* request) {
    Pin();
    if (Status status = call_.Admission(); !status.ok()) return Reject(status);
    if (request->Length() <= kInlineRequestBytes) return Run(*request);
    call_.service()->tokenizers->Post(
        [self = std::static_pointer_cast<GenerateCall>(shared_from_this()), bytes = *request] {
          self->Run(bytes);
        });
  }

 protected:
  using EngineCall::EngineCall;

  void Append(const TokenEvent& event, v1::Delta* delta) const {
    AppendToken(event, with_logprobs_, call_.model()->rules.tokenizer, delta);
  }

 private:
  void Run(const grpc::ByteBuffer& bytes) {
    if (Status status = ParseAndSubmit(bytes); !status.ok()) Reject(status);
  }

  Status ParseAndSubmit(const grpc::ByteBuffer& bytes) {
    const RequestRules& rules = call_.model()->rules;
    v1::CompleteRequest message;
    PS_RETURN_IF_ERROR(ParseMessage(bytes, &message));
    GenerateRequest request;
    PS_ASSIGN_OR_RETURN(request.params, ToGenerateParams(message, rules));
    PS_ASSIGN_OR_RETURN(request.prompt, ToPrompt(message.prompt(), rules));
    with_logprobs_ = request.params.logprobs.has_value();  // before Submit: events may come at once
    return Submit(std::move(request));
  }

  bool with_logprobs_ = false;
};

class CompleteCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public GenerateCall {
 public:
  CompleteCall(ServiceContext* service, grpc::CallbackServerContext* context)
      : GenerateCall("Complete", service, context) {}

  void OnWriteDone(bool ok) override { WriteDone(ok); }
  void OnCancel() override { Cancelled(); }
  void OnDone() override { RpcDone(); }

 private:
  std::optional<grpc::ByteBuffer> Render(Event event) override {
    v1::CompleteResponse response;
    if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
      ToProto(*progress, response.mutable_progress());
    } else if (const auto* first = std::get_if<TokenEvent>(&event)) {
      v1::Delta* delta = response.mutable_delta();
      Append(*first, delta);
      while (delta->tokens_size() < kMostDeltaTokens) {
        std::optional<Event> next = NextEvent();
        if (!next.has_value()) break;
        const auto* token = std::get_if<TokenEvent>(&*next);
        if (token == nullptr || token->echoed != first->echoed) {
          HoldBack(std::move(*next));
          break;
        }
        Append(*token, delta);
      }
    } else {
      return std::nullopt;  // not an event of a completion
    }
    return SerializeMessage(response);
  }
  grpc::ByteBuffer RenderFinish(const FinishEvent& finish) override {
    v1::CompleteResponse response;
    ToProto(finish, response.mutable_finish());
    return SerializeMessage(response);
  }
  void StartMessage(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void FinishWith(const grpc::ByteBuffer* last_message) override {
    StartWriteAndFinish(last_message, grpc::WriteOptions(), grpc::Status::OK);
  }
  void FinishWith(const grpc::Status& status) override { Finish(status); }
};

class CompleteUnaryCall final : public grpc::ServerUnaryReactor, public GenerateCall {
 public:
  CompleteUnaryCall(ServiceContext* service, grpc::CallbackServerContext* context,
                    grpc::ByteBuffer* response)
      : GenerateCall("CompleteUnary", service, context), response_(response) {}

  void OnCancel() override { Cancelled(); }
  void OnDone() override { RpcDone(); }

 private:
  std::optional<grpc::ByteBuffer> Render(Event event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) Append(*token, &all_);
    return std::nullopt;
  }
  grpc::ByteBuffer RenderFinish(const FinishEvent& finish) override {
    v1::CompleteUnaryResponse response;
    ToProto(finish, response.mutable_finish());
    response.set_text(all_.text() + response.finish().text());
    response.mutable_finish()->clear_text();
    response.mutable_tokens()->Swap(all_.mutable_tokens());
    response.mutable_logprobs()->Swap(all_.mutable_logprobs());
    return SerializeMessage(response);
  }
  void StartMessage(const grpc::ByteBuffer*) override {}
  void FinishWith(const grpc::ByteBuffer* last_message) override {
    *response_ = *last_message;
    Finish(grpc::Status::OK);
  }
  void FinishWith(const grpc::Status& status) override { Finish(status); }

  grpc::ByteBuffer* const response_;
  v1::Delta all_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* PolySketchService::Complete(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<CompleteCall>(context_, context);
  call->Start(request);
  return call.get();  // pinned until OnDone, which cannot come before this returns
}

grpc::ServerUnaryReactor* PolySketchService::CompleteUnary(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  const auto call = std::make_shared<CompleteUnaryCall>(context_, context, response);
  call->Start(request);
  return call.get();
}

}  // namespace polysketch
