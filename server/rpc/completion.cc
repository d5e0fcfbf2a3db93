#include "server/rpc/completion.h"

#include <utility>

namespace polysketch {

Status Completion::Start(v1::CompleteRequest message, std::string state) {
  message_ = std::move(message);
  state_ = std::move(state);
  PS_RETURN_IF_ERROR(CheckFields());
  if (message_.session().empty() && message_.resume_token().empty()) return Submit();
  const auto submit = [this, call = call_->shared_from_this()] {
    if (Status status = Submit(); !status.ok()) call->Fail(status);
  };
  const bool large = message_.ByteSizeLong() > kInlineRequestBytes;
  call_->service()->stores->Post([this, submit, large] {
    if (Status status = LoadStart(); !status.ok()) return call_->Fail(status);
    if (!large) return submit();
    call_->service()->tokenizers->Post(submit);
  });
  return Status();
}

Status Completion::CheckFields() const {
  if (message_.return_state() && form_ == CompletionForm::kUnary) {
    return InvalidArgument("return_state: expected in Complete or CompleteWithState only");
  }
  const bool in_session = !message_.session().empty();
  const bool resumed = !message_.resume_token().empty();
  const bool with_state = !state_.empty();
  if ((in_session && resumed) || (in_session && with_state) || (resumed && with_state)) {
    return InvalidArgument("session: expected one of a session, a resume_token and a state");
  }
  if (!in_session && message_.has_expected_position()) {
    return InvalidArgument("expected_position: expected with a session only");
  }
  if (!resumed) return Status();
  v1::CompleteRequest rest = message_;
  rest.clear_resume_token();
  rest.clear_return_state();
  if (rest.ByteSizeLong() == 0) return Status();
  return InvalidArgument(
      "resume_token: expected no other field but return_state: a resumed completion keeps its own");
}

Status Completion::LoadStart() {
  if (!message_.resume_token().empty()) return LoadMigrated();
  request_.keep = true;
  PS_ASSIGN_OR_RETURN(request_.start,
                      call_->AcquireSession(message_.session(), ExpectedPosition(message_)));
  return Status();
}

Status Completion::LoadMigrated() {
  PS_ASSIGN_OR_RETURN(request_.start, call_->model().sessions->GetMigrated(
                                          call_->tenant(), message_.resume_token()));
  if (!request_.start->generation) {
    return InvalidArgument("resume_token: expected a migrated completion");
  }
  const Generation& generation = *request_.start->generation;
  if (generation.session.empty()) return Status();
  // Only the lease is used: the snapshot of the migrated completion is newer than the session's.
  request_.keep = true;
  return call_->AcquireSession(generation.session, generation.session_tokens).status();
}

Status Completion::Submit() {
  if (!state_.empty()) PS_RETURN_IF_ERROR(DecodeState());
  if (message_.resume_token().empty()) {
    PS_RETURN_IF_ERROR(Convert());
  } else {
    request_.params = request_.start->generation->params;
  }
  const bool return_state = message_.return_state();
  request_.keep = request_.keep || return_state;
  message_.Clear();
  std::unique_ptr<Renderer> renderer =
      NewCompletionRenderer(call_, form_, request_.params, return_state);
  return call_->Submit(std::move(request_), std::move(renderer));
}

Status Completion::DecodeState() {
  const SnapshotCodec& codec = call_->model().sessions->options().codec;
  PS_ASSIGN_OR_RETURN(request_.start, codec.Decode(state_));
  state_ = {};
  if (!request_.start->generation) return Status();
  return InvalidArgument("state: expected one of return_state, found a migrated completion");
}

Status Completion::Convert() {
  const RequestRules& rules = call_->model().rules;
  PS_ASSIGN_OR_RETURN(request_.params, ToGenerateParams(message_, rules));
  PS_ASSIGN_OR_RETURN(request_.info.priority, ToPriority(message_, rules));
  PS_ASSIGN_OR_RETURN(request_.cache, ToCacheParams(message_.cache()));
  PS_ASSIGN_OR_RETURN(request_.prompt,
                      ToPrompt(message_.prompt(), rules, request_.start != nullptr));
  return Status();
}

}  // namespace polysketch
