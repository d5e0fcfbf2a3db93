// Complete, CompleteUnary and CompleteWithState.
#include <optional>
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
  RequestInput(EngineCall* call, CompletionForm form) : completion_(call, form) {}

  Status OnMessage(const grpc::ByteBuffer& bytes) override {
    v1::CompleteRequest request;
    PS_RETURN_IF_ERROR(ParseMessage(bytes, &request));
    return completion_.Start(std::move(request), "");
  }
  Status OnEnd() override { return InvalidArgument("expected a CompleteRequest, found none"); }

 private:
  Completion completion_;
};

// Input of CompleteWithState: the parts of a state, then a CompleteRequest, then the end of the
// input.
class StateInput final : public CallInput {
 public:
  explicit StateInput(EngineCall* call) : call_(call), completion_(call, CompletionForm::kStream) {}

  Status OnMessage(const grpc::ByteBuffer& bytes) override {
    v1::CompleteWithStateRequest message;
    PS_RETURN_IF_ERROR(ParseMessage(bytes, &message));
    if (request_.has_value()) {
      return InvalidArgument("request: expected it last and once, found another message");
    }
    if (message.has_request()) {
      request_ = std::move(*message.mutable_request());
    } else if (message.part_case() == v1::CompleteWithStateRequest::kState) {
      PS_RETURN_IF_ERROR(AddState(message.state()));
    } else {
      return InvalidArgument("part: expected a state or a request, found neither");
    }
    call_->Read();
    return Status();
  }

  Status OnEnd() override {
    if (!request_.has_value()) {
      return InvalidArgument("request: expected one after the state, found none");
    }
    return completion_.Start(*std::move(request_), std::move(state_));
  }

 private:
  Status AddState(const std::string& part) {
    // The size of a snapshot of the largest state.
    const DecodeLimits& limits = call_->model().sessions->options().codec.limits;
    const size_t max_bytes = limits.max_state_bytes + (size_t{1} << 20);
    if (state_.size() + part.size() > max_bytes) {
      return InvalidArgument("state: expected at most ", max_bytes, " bytes");
    }
    state_ += part;
    return Status();
  }

  EngineCall* const call_;
  Completion completion_;
  std::string state_;
  std::optional<v1::CompleteRequest> request_;
};

}  // namespace

void AddCompletionMethods(ServiceContext* context, Router* router) {
  AddEngineMethod<RequestInput>("Complete", context, router, CompletionForm::kStream);
  AddEngineMethod<RequestInput>("CompleteUnary", context, router, CompletionForm::kUnary);
  AddEngineMethod<StateInput>("CompleteWithState", context, router);
}

}  // namespace polysketch
