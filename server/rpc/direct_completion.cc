#include "server/rpc/direct_completion.h"

#include <memory>
#include <utility>

#include "server/rpc/completion.h"

namespace polysketch {
namespace {

// Its message is there: what the client sends has no bytes.
class DirectInput final : public CallInput {
 public:
  DirectInput(EngineCall* call, v1::CompleteRequest request, ResponseSlot slot)
      : call_(call),
        request_(std::move(request)),
        completion_(call, CompletionForm::kStream, VariantOf(call, std::move(slot))) {}

  Status OnMessage(const grpc::ByteBuffer& /*bytes*/) override {
    PS_RETURN_IF_ERROR(call_->HoldMessage(static_cast<int64_t>(request_.SpaceUsedLong())));
    const auto bytes = static_cast<int64_t>(request_.ByteSizeLong());
    if (bytes <= int64_t{kInlineRequestBytes}) return Start();
    call_->PostToTokenizers(bytes, [self = call_->shared_from_this(), this] {
      if (const Status status = Start(); !status.ok()) self->Fail(status);
    });
    return Status();
  }
  Status OnEnd() override { return InvalidArgument("expected a CompleteRequest, found none"); }

 private:
  static CompletionVariant VariantOf(EngineCall* call, ResponseSlot slot) {
    CompletionVariant variant;
    variant.new_renderer = [call, slot = std::move(slot)](const GenerateRequest& request) {
      return NewDirectRenderer(call, request.params, slot);
    };
    return variant;
  }
  Status Start() {
    return completion_.Start(std::move(request_), "", [this] { return completion_.Submit(); });
  }

  EngineCall* const call_;
  v1::CompleteRequest request_;
  Completion completion_;
};

}  // namespace

CallReactor* StartCompletion(ServiceContext* service, CallContext* context,
                             v1::CompleteRequest request, ResponseSlot slot) {
  const auto call = std::make_shared<EngineCall>("Complete", service, context);
  call->Start(std::make_unique<DirectInput>(call.get(), std::move(request), std::move(slot)));
  return call.get();
}

}  // namespace polysketch
