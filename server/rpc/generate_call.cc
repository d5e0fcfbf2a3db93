#include "server/rpc/generate_call.h"

#include <utility>

#include "server/convert/wire.h"

namespace polysketch {

void GenerateCall::Start(const grpc::ByteBuffer& request) {
  Pin();
  if (Status status = call_.Admission(); !status.ok()) return Reject(status);
  if (request.Length() <= kInlineRequestBytes) return Run(request);
  call_.service()->tokenizers->Post([self = Self(), request] { self->Run(request); });
}

void GenerateCall::Run(const grpc::ByteBuffer& request, std::string state) {
  state_ = std::move(state);
  if (Status status = Parse(request); !status.ok()) return Reject(status);
  const bool needs_store = !message_.session().empty() || !message_.resume_token().empty();
  if (!needs_store) return RunOrReject(&GenerateCall::RunParsed);
  const bool large = request.Length() > kInlineRequestBytes;
  call_.service()->stores->Post([self = Self(), large] {
    if (Status status = self->TakeStart(); !status.ok()) return self->Reject(status);
    if (!large) return self->RunOrReject(&GenerateCall::RunParsed);
    self->call_.service()->tokenizers->Post(
        [self] { self->RunOrReject(&GenerateCall::RunParsed); });
  });
}

void GenerateCall::RunOrReject(Status (GenerateCall::*step)()) {
  if (Status status = (this->*step)(); !status.ok()) Reject(status);
}

Status GenerateCall::Parse(const grpc::ByteBuffer& bytes) {
  PS_RETURN_IF_ERROR(ParseMessage(bytes, &message_));
  return_state_ = message_.return_state();
  if (return_state_ && !CanReturnState()) {
    return InvalidArgument("return_state: expected in Complete or CompleteWithState only");
  }
  const int starts = (message_.session().empty() ? 0 : 1) +
                     (message_.resume_token().empty() ? 0 : 1) + (state_.empty() ? 0 : 1);
  if (starts > 1) {
    return InvalidArgument("session: expected one of a session, a resume_token and a state");
  }
  if (message_.session().empty() && message_.has_expected_position()) {
    return InvalidArgument("expected_position: expected with a session only");
  }
  if (message_.resume_token().empty()) return Status();
  v1::CompleteRequest rest = message_;
  rest.clear_resume_token();
  rest.clear_return_state();
  if (rest.ByteSizeLong() == 0) return Status();
  return InvalidArgument(
      "resume_token: expected no other field but return_state: a resumed completion keeps its own");
}

Status GenerateCall::TakeStart() {
  SessionTable* sessions = call_.model()->sessions;
  const std::string& tenant = call_.info().tenant;
  if (!message_.resume_token().empty()) return Resume();
  std::optional<int64_t> expected;
  if (message_.has_expected_position()) expected = message_.expected_position();
  PS_ASSIGN_OR_RETURN(SessionLease lease, sessions->Acquire(tenant, message_.session(), expected));
  request_.start = lease.snapshot();
  return Hold(std::move(lease));
}

Status GenerateCall::Resume() {
  SessionTable* sessions = call_.model()->sessions;
  const std::string& tenant = call_.info().tenant;
  PS_ASSIGN_OR_RETURN(request_.start, sessions->GetMigrated(tenant, message_.resume_token()));
  if (!request_.start->generation) {
    return InvalidArgument("resume_token: expected a stopped completion");
  }
  const Generation& generation = *request_.start->generation;
  if (generation.session.empty()) return Status();
  PS_ASSIGN_OR_RETURN(SessionLease lease,
                      sessions->Acquire(tenant, generation.session, generation.session_tokens));
  return Hold(std::move(lease));
}

Status GenerateCall::Hold(SessionLease lease) {
  std::lock_guard lock(mutex_);
  if (ended_) return Status(Code::kCancelled, "the call ended before its session was read");
  in_session_ = true;
  lease_.emplace(std::move(lease));
  return Status();
}

Status GenerateCall::RunParsed() {
  const RequestRules& rules = call_.model()->rules;
  if (!state_.empty()) {
    PS_ASSIGN_OR_RETURN(request_.start, call_.model()->sessions->options().codec.Decode(state_));
    state_ = {};
    if (request_.start->generation) {
      return InvalidArgument("state: expected one that return_state gave, found a stopped one");
    }
  }
  if (!message_.resume_token().empty()) {
    const GenerateParams& params = request_.start->generation->params;
    with_logprobs_ = params.logprobs.has_value();
    several_choices_ = params.best_of > 1;
  } else {
    PS_ASSIGN_OR_RETURN(request_.params, ToGenerateParams(message_, rules));
    PS_ASSIGN_OR_RETURN(request_.info.priority, ToPriority(message_, rules));
    PS_ASSIGN_OR_RETURN(request_.cache, ToCacheParams(message_.cache()));
    const bool continued = request_.start != nullptr;
    PS_ASSIGN_OR_RETURN(request_.prompt, ToPrompt(message_.prompt(), rules, continued));
    with_logprobs_ = request_.params.logprobs.has_value();
    several_choices_ = request_.params.best_of > 1;
  }
  message_.Clear();
  request_.keep = in_session_ || return_state_;
  return Submit(std::move(request_));  // events may come at once
}

bool GenerateCall::NeedsStore(const FinishEvent& finish) const {
  return finish.reason == FinishReason::kMigrated || in_session_ || return_state_;
}

Status GenerateCall::Store(const FinishEvent& finish) {
  SessionTable* sessions = call_.model()->sessions;
  if (finish.reason == FinishReason::kMigrated) {
    Snapshot stopped = *finish.snapshot;
    if (in_session_) {
      stopped.generation->session = lease_->id();
      stopped.generation->session_tokens = lease_->tokens();
    }
    PS_ASSIGN_OR_RETURN(resume_token_, sessions->PutMigrated(call_.info().tenant, stopped,
                                                             call_.service()->migration_ttl));
    return Status();
  }
  if (in_session_) {
    PS_ASSIGN_OR_RETURN(session_, sessions->Commit(*std::move(lease_), finish.snapshot));
  }
  if (return_state_) returned_state_ = sessions->options().codec.Encode(*finish.snapshot);
  return Status();
}

void GenerateCall::FillFinish(const FinishEvent& event, v1::Finish* finish) const {
  ToProto(event, finish);
  finish->set_resume_token(resume_token_);
  if (session_.has_value()) ToProto(*session_, finish->mutable_session());
}

}  // namespace polysketch
