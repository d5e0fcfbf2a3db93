// Complete, CompleteUnary, CompleteStream and CompleteWithState.
#include <iterator>
#include <string>
#include <utility>

#include "server/convert/wire.h"
#include "server/rpc/completion.h"
#include "server/rpc/service.h"

namespace polysketch {
namespace {

// Input of Complete and CompleteUnary: one CompleteRequest.
class RequestInput final : public CallInput {
 public:
  RequestInput(EngineCall* call, CompletionForm form) : call_(call), completion_(call, form) {}

  Status OnMessage(const grpc::ByteBuffer& bytes) override {
    v1::CompleteRequest request;
    PS_RETURN_IF_ERROR(call_->Parse(bytes, &request));
    return completion_.Start(std::move(request), "", [this] { return completion_.Submit(); });
  }
  Status OnEnd() override { return InvalidArgument("expected a CompleteRequest, found none"); }

 private:
  EngineCall* const call_;
  Completion completion_;
};

// Input of CompleteStream and CompleteWithState: the parts of a state, then a CompleteRequest, then
// chunks of its prompt.
class PartsInput final : public CallInput {
 public:
  explicit PartsInput(EngineCall* call) : call_(call), completion_(call, CompletionForm::kStream) {}

  // The messages of both RPCs have the same fields.
  Status OnMessage(const grpc::ByteBuffer& bytes) override {
    v1::CompleteStreamRequest message;
    PS_RETURN_IF_ERROR(call_->Parse(bytes, &message));
    switch (message.part_case()) {
      case v1::CompleteStreamRequest::kState:
        PS_RETURN_IF_ERROR(AddState(message.state()));
        break;
      case v1::CompleteStreamRequest::kRequest:
        return StartCompletion(std::move(*message.mutable_request()));
      case v1::CompleteStreamRequest::kText:
      case v1::CompleteStreamRequest::kTokens:
        if (!started_) return InvalidArgument("request: expected one before the prompt");
        PS_RETURN_IF_ERROR(completion_.AddPrompt(message));
        break;
      case v1::CompleteStreamRequest::PART_NOT_SET:
        return InvalidArgument("part: expected a state, a request, text or tokens, found none");
    }
    call_->Read();
    return Status();
  }

  Status OnEnd() override {
    if (!started_) return InvalidArgument("request: expected one, found none");
    return completion_.Submit();
  }

 private:
  Status StartCompletion(v1::CompleteRequest request) {
    if (started_) return InvalidArgument("request: expected one, found another");
    started_ = true;
    return completion_.Start(std::move(request), std::move(state_), [this] {
      call_->Read();
      return Status();
    });
  }

  Status AddState(const std::string& part) {
    if (started_) return InvalidArgument("state: expected before the request");
    // The size of a snapshot of the largest state.
    const DecodeLimits& limits = call_->model().sessions->options().codec.limits;
    const size_t max_bytes = limits.max_state_bytes + (size_t{1} << 20);
    if (state_.size() + part.size() > max_bytes) {
      return InvalidArgument("state: expected at most ", max_bytes, " bytes");
    }
    // Twice: the text doubles its memory when it grows.
    PS_RETURN_IF_ERROR(call_->HoldInput(2 * std::ssize(part)));
    state_ += part;
    return Status();
  }

  EngineCall* const call_;
  Completion completion_;
  std::string state_;     // moved to the completion
  bool started_ = false;  // the request has arrived
};

}  // namespace

void AddCompletionMethods(ServiceContext* context, Router* router) {
  AddEngineMethod<RequestInput>("Complete", context, router, CompletionForm::kStream);
  AddEngineMethod<RequestInput>("CompleteUnary", context, router, CompletionForm::kUnary);
  AddEngineMethod<PartsInput>("CompleteStream", context, router);
  AddEngineMethod<PartsInput>("CompleteWithState", context, router);
}

}  // namespace polysketch
