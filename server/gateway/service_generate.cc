// Generate and Abort.
#include <google/protobuf/message.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/gateway/generate_request.h"
#include "server/gateway/running_generations.h"
#include "server/gateway/vllm_engine.h"
#include "server/rpc/completion.h"
#include "server/rpc/unary_call.h"

namespace polysketch {
namespace {

constexpr size_t kMaxRequestIdBytes = 512;

class GenerateInput final : public CallInput {
 public:
  GenerateInput(EngineCall* call, std::shared_ptr<RunningGenerations> running)
      : call_(call), running_(std::move(running)) {}

  Status OnMessage(const grpc::ByteBuffer& bytes) override {
    v1::CompleteRequest complete;
    GenerateForm form;
    PS_RETURN_IF_ERROR(Translate(bytes, &complete, &form));
    CompletionVariant variant;
    variant.migrates = false;
    variant.new_renderer = [call = call_, form](const GenerateRequest& request) {
      return NewGenerateRenderer(call, form, request);
    };
    completion_.emplace(call_, form.stream ? CompletionForm::kStream : CompletionForm::kUnary,
                        std::move(variant));
    return NameGenerateFields(completion_->Start(
        std::move(complete), "", [completion = &*completion_] { return completion->Submit(); }));
  }
  Status OnEnd() override { return InvalidArgument("expected a GenerateRequest, found none"); }

 private:
  Status Translate(const grpc::ByteBuffer& bytes, v1::CompleteRequest* complete,
                   GenerateForm* form) {
    vllm_engine::GenerateRequest request;
    PS_RETURN_IF_ERROR(call_->Parse(bytes, &request));
    PS_RETURN_IF_ERROR(call_->HoldMessage(2 * static_cast<int64_t>(request.SpaceUsedLong())));
    if (request.request_id().size() > kMaxRequestIdBytes) {
      return InvalidArgument("request_id: expected at most ", kMaxRequestIdBytes, " bytes, found ",
                             request.request_id().size());
    }
    PS_ASSIGN_OR_RETURN(*complete, ToCompleteRequest(request, call_->model().rules));
    *form = FormOf(request);
    if (!request.request_id().empty()) entry_ = running_->Add(request.request_id(), call_);
    return Status();
  }

  EngineCall* const call_;
  const std::shared_ptr<RunningGenerations> running_;
  std::unique_ptr<RunningGenerations::Entry> entry_;
  std::optional<Completion> completion_;
};

}  // namespace

void AddGenerateMethods(ServiceContext* context, Router* router) {
  const auto running = std::make_shared<RunningGenerations>();
  AddEngineMethod<GenerateInput>({"Generate", kVllmService}, context, router, running);
  const auto abort = [running](const UnaryInput& input) -> Result<grpc::ByteBuffer> {
    vllm_engine::AbortRequest request;
    PS_RETURN_IF_ERROR(ParseUnary(input, &request));
    for (const std::string& id : request.request_ids()) running->Abort(input.info.tenant, id);
    return SerializeMessage(vllm_engine::AbortResponse());
  };
  AddUnaryWork({"Abort", kVllmService}, abort, context, router);
}

}  // namespace polysketch
