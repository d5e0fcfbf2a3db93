#include "server/rpc/completion.h"

#include <iterator>
#include <utility>

#include "engine/sampler/sampling_params.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

// The limit of a key replaces that of the server, so that single keys may go first.
int MaxPriority(const RequestRules& rules, const Caller* caller) {
  return caller == nullptr ? rules.max_priority
                           : caller->key().max_priority.value_or(rules.max_priority);
}

}  // namespace

Status Completion::Start(v1::CompleteRequest message, std::string state,
                         std::function<Status()> ready) {
  message_ = std::move(message);
  state_ = std::move(state);
  PS_RETURN_IF_ERROR(CheckFields());
  const auto convert = [this, ready = std::move(ready)] {
    PS_RETURN_IF_ERROR(Convert());
    return ready();
  };
  if (message_.session().empty() && !resumes()) return convert();
  const auto fail = [call = call_->shared_from_this()](const Status& status) {
    if (!status.ok()) call->Fail(status);
  };
  const bool large = message_.ByteSizeLong() > kInlineRequestBytes;
  call_->service()->stores->Post([this, convert, fail, large] {
    if (const Status status = LoadStart(); !status.ok()) return fail(status);
    if (!large) return fail(convert());
    call_->service()->tokenizers->Post([convert, fail] { fail(convert()); });
  });
  return Status();
}

Status Completion::CheckFields() const {
  if (message_.return_state() && form_ == CompletionForm::kUnary) {
    return InvalidArgument("return_state: expected in Complete or CompleteStream only");
  }
  const bool in_session = !message_.session().empty();
  const bool resumed = resumes();
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
  if (resumes()) return LoadMigrated();
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

Status Completion::Convert() {
  if (resumes()) {
    request_.params = request_.start->generation->params;
    return Status();
  }
  const RequestRules& rules = call_->model().rules;
  PS_ASSIGN_OR_RETURN(request_.params, ToGenerateParams(message_, rules));
  PS_ASSIGN_OR_RETURN(request_.info.priority,
                      ToPriority(message_, MaxPriority(rules, call_->caller())));
  PS_ASSIGN_OR_RETURN(request_.cache, ToCacheParams(message_.cache()));
  PS_RETURN_IF_ERROR(Prefixed(
      "prompt.", tokenizer_.Append(message_.prompt(), rules, continues(), &request_.prompt)));
  message_.clear_prompt();
  return Status();
}

Status Completion::AddPrompt(const v1::CompleteStreamRequest& chunk) {
  if (resumes()) return InvalidArgument("resume_token: expected no prompt beside it");
  const RequestRules& rules = call_->model().rules;
  PS_RETURN_IF_ERROR(tokenizer_.Append(chunk, rules, continues(), &request_.prompt));
  const int64_t found = std::ssize(request_.prompt);
  if (found <= rules.max_prompt_tokens) return Status();
  return InvalidArgument("prompt: expected at most ", rules.max_prompt_tokens, " tokens, found ",
                         found, " or more");
}

Status Completion::FinishPrompt() {
  if (!tokenizer_.started() && !continues())
    return InvalidArgument("prompt: expected text or tokens, found neither");
  PS_RETURN_IF_ERROR(Prefixed("prompt.", tokenizer_.Finish(&request_.prompt)));
  if (continues() && request_.prompt.empty()) return Status();
  const RequestRules& rules = call_->model().rules;
  return ValidatePrompt(request_.prompt, rules.vocab_size, rules.max_prompt_tokens);
}

Status Completion::Submit() {
  PS_RETURN_IF_ERROR(FinishPrompt());
  if (!state_.empty()) PS_RETURN_IF_ERROR(DecodeState());
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

}  // namespace polysketch
