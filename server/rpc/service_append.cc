// Append: input of any length goes into a session. It is collected first (four bytes a token, up to
// --max-prompt-tokens) and then runs as one request, so that the session holds all of it or
// nothing.
#include <memory>
#include <utility>

#include "server/convert/wire.h"
#include "server/rpc/service.h"
#include "server/rpc/stream_call.h"

namespace polysketch {
namespace {

class AppendCall final : public BidiCall<EngineCall> {
 public:
  AppendCall(ServiceContext* service, grpc::CallbackServerContext* context)
      : BidiCall("Append", service, context) {}

 private:
  std::shared_ptr<AppendCall> Self() {
    return std::static_pointer_cast<AppendCall>(shared_from_this());
  }

  // --- input ---

  Status Take(const grpc::ByteBuffer& bytes) override {
    v1::AppendRequest message;
    PS_RETURN_IF_ERROR(ParseMessage(bytes, &message));
    if (started_) {
      if (!message.session().empty() || message.has_expected_position()) {
        return InvalidArgument("session: expected in the first message only");
      }
      PS_RETURN_IF_ERROR(TakeInput(message));
      Read();
      return Status();
    }
    started_ = true;
    call_.service()->stores->Post([self = Self(), message = std::move(message)] {
      Status status = self->TakeSession(message);
      if (status.ok()) status = self->TakeInput(message);
      if (!status.ok()) return self->Fail(status);
      self->Read();
    });
    return Status();
  }

  // Store thread.
  Status TakeSession(const v1::AppendRequest& message) {
    std::optional<int64_t> expected;
    if (message.has_expected_position()) expected = message.expected_position();
    PS_ASSIGN_OR_RETURN(SessionLease lease, call_.model()->sessions->Acquire(
                                                call_.info().tenant, message.session(), expected));
    request_.start = lease.snapshot();
    std::lock_guard lock(mutex_);
    if (ended_) return Status(Code::kCancelled, "the call ended before its session was read");
    lease_.emplace(std::move(lease));
    return Status();
  }

  Status TakeInput(const v1::AppendRequest& message) {
    if (message.input_case() == v1::AppendRequest::INPUT_NOT_SET) return Status();
    if (kind_ != v1::AppendRequest::INPUT_NOT_SET && kind_ != message.input_case()) {
      return InvalidArgument("input: expected chunks of one kind, found text and tokens");
    }
    kind_ = message.input_case();
    const RequestRules& rules = call_.model()->rules;
    if (message.has_tokens()) {
      const auto& ids = message.tokens().ids();
      PS_RETURN_IF_ERROR(
          CheckTokenIds("tokens.ids", std::span(ids.data(), ids.size()), rules.vocab_size));
      return AddTokens({ids.begin(), ids.end()});
    }
    PS_RETURN_IF_ERROR(RequireTokenizer(rules, "text"));
    if (encoder_ == nullptr) {
      const bool continued = request_.start != nullptr;
      encoder_ = std::make_unique<IncrementalEncoder>(rules.tokenizer, continued);
      if (rules.add_bos && !continued) request_.prompt.push_back(rules.bos_id);
    }
    return AddText(encoder_->Append(message.text()));
  }

  Status AddText(const Result<std::vector<int32_t>>& encoded) {
    if (!encoded.ok())
      return Status(encoded.status().code(), StrCat("text: ", encoded.status().message()));
    return AddTokens(*encoded);
  }

  Status AddTokens(const std::vector<int32_t>& ids) {
    std::vector<int32_t>& prompt = request_.prompt;
    const auto most = static_cast<size_t>(call_.model()->rules.max_prompt_tokens);
    if (ids.size() > most - std::min(most, prompt.size())) {
      return InvalidArgument("input: expected at most ", most, " tokens (--max-prompt-tokens)");
    }
    prompt.insert(prompt.end(), ids.begin(), ids.end());
    return Status();
  }

  void CloseInput() override {
    if (Status status = SubmitAll(); !status.ok()) Fail(status);
  }

  Status SubmitAll() {
    if (!started_) return InvalidArgument("session: expected one, found no message");
    if (encoder_ != nullptr) PS_RETURN_IF_ERROR(AddText(encoder_->Finish()));
    if (request_.prompt.empty()) {
      return InvalidArgument("input: expected text or tokens, found none");
    }
    request_.params.max_tokens = 0;
    request_.keep = true;
    return Submit(std::move(request_));
  }

  // --- output ---

  std::optional<grpc::ByteBuffer> Render(Event event) override {
    const auto* progress = std::get_if<ProgressEvent>(&event);
    if (progress == nullptr) return std::nullopt;
    v1::AppendResponse response;
    ToProto(*progress, response.mutable_progress());
    return SerializeMessage(response);
  }
  bool NeedsStore(const FinishEvent&) const override { return true; }
  Status Store(const FinishEvent& finish) override {
    if (finish.reason == FinishReason::kMigrated) {
      // Nothing was added: the client appends again, elsewhere.
      return Unavailable("the server is shutting down; the session is as it was");
    }
    PS_ASSIGN_OR_RETURN(session_,
                        call_.model()->sessions->Commit(*std::move(lease_), finish.snapshot));
    return Status();
  }
  std::vector<grpc::ByteBuffer> RenderFinish(const FinishEvent& finish) override {
    v1::AppendResponse response;
    ToProto(finish, &response);
    ToProto(session_, response.mutable_session());
    return {SerializeMessage(response)};
  }
  void OnEnded() override { lease_.reset(); }

  bool started_ = false;
  v1::AppendRequest::InputCase kind_ = v1::AppendRequest::INPUT_NOT_SET;
  std::unique_ptr<IncrementalEncoder> encoder_;
  GenerateRequest request_;
  std::optional<SessionLease> lease_;  // guarded by mutex_ until the call has ended
  SessionInfo session_;                // set by Store
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PolySketchService::Append(
    grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<AppendCall>(context_, context);
  call->Begin();
  return call.get();
}

}  // namespace polysketch
