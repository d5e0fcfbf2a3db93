// Append: the input is collected first (four bytes a token, up to --max-prompt-tokens) and then
// runs as one request, so that the session holds all of the input or nothing of it.
#include <memory>
#include <optional>
#include <utility>

#include "server/convert/chunk_tokenizer.h"
#include "server/convert/wire.h"
#include "server/rpc/engine_call.h"
#include "server/rpc/service.h"

namespace polysketch {
namespace {

class AppendRenderer final : public Renderer {
 public:
  explicit AppendRenderer(EngineCall* call) : call_(call) {}

  std::optional<grpc::ByteBuffer> Render(Event event, EventQueue* /*events*/) override {
    const auto* progress = std::get_if<ProgressEvent>(&event);
    if (progress == nullptr) return std::nullopt;
    v1::AppendResponse response;
    ToProto(*progress, response.mutable_progress());
    return SerializeMessage(response);
  }

  Result<Messages> RenderFinish(const FinishEvent& finish) override {
    if (finish.reason == FinishReason::kMigrated) {
      // Nothing was stored: the client can append again, on another replica.
      return Unavailable("the server is shutting down; the session is as it was")
          .WithReason(Reason::kDraining);
    }
    PS_ASSIGN_OR_RETURN(
        const SessionInfo session,
        call_->model().sessions->Commit(std::move(*call_->lease()), finish.snapshot));
    v1::AppendResponse response;
    ToProto(finish, &response);
    ToProto(session, response.mutable_session());
    return Messages{SerializeMessage(response)};
  }

 private:
  EngineCall* const call_;
};

class AppendInput final : public CallInput {
 public:
  explicit AppendInput(EngineCall* call)
      : call_(call), tokenizer_([call](int64_t bytes) { return call->HoldInput(bytes); }) {}

  Status OnMessage(const grpc::ByteBuffer& bytes) override {
    v1::AppendRequest message;
    PS_RETURN_IF_ERROR(call_->Parse(bytes, &message));
    if (started_) {
      if (!message.session().empty() || message.has_expected_position()) {
        return InvalidArgument("session: expected in the first message only");
      }
      return AddAndRead(message);
    }
    started_ = true;
    const std::string session = message.session();
    call_->PostToSession(session,
                         [this, call = call_->shared_from_this(), message = std::move(message)] {
                           if (Status status = Begin(message); !status.ok()) call->Fail(status);
                         });
    return Status();
  }

  Status OnEnd() override {
    if (!started_) return InvalidArgument("session: expected one, found no message");
    PS_RETURN_IF_ERROR(tokenizer_.Finish(&request_.prompt));
    PS_RETURN_IF_ERROR(CheckLength());
    if (request_.prompt.empty()) {
      return InvalidArgument("input: expected text or tokens, found none");
    }
    request_.params.max_tokens = 0;
    request_.keep = true;
    return call_->Submit(std::move(request_), std::make_unique<AppendRenderer>(call_));
  }

 private:
  // On a thread of the session.
  Status Begin(const v1::AppendRequest& first) {
    PS_ASSIGN_OR_RETURN(request_.start,
                        call_->AcquireSession(first.session(), ExpectedPosition(first)));
    return AddAndRead(first);
  }

  Status AddAndRead(const v1::AppendRequest& message) {
    const bool continued = request_.start != nullptr;
    PS_RETURN_IF_ERROR(
        tokenizer_.Append(message, call_->model().rules, continued, &request_.prompt));
    PS_RETURN_IF_ERROR(CheckLength());
    call_->Read();
    return Status();
  }

  Status CheckLength() const {
    const int64_t max_tokens = call_->model().rules.max_prompt_tokens;
    if (static_cast<int64_t>(request_.prompt.size()) <= max_tokens) return Status();
    return InvalidArgument("input: expected at most ", max_tokens, " tokens (--max-prompt-tokens)");
  }

  EngineCall* const call_;
  bool started_ = false;
  ChunkTokenizer tokenizer_;
  GenerateRequest request_;
};

}  // namespace

void AddAppendMethod(ServiceContext* context, Router* router) {
  AddEngineMethod<AppendInput>("Append", context, router);
}

}  // namespace polysketch
