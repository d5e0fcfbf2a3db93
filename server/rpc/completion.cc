#include "server/rpc/completion.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/sampler/sampling_params.h"
#include "engine/snapshot/snapshot_file.h"
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
  const auto fail = [call = call_->shared_from_this()](const Status& status) {
    if (!status.ok()) call->Fail(status);
  };
  const auto convert = [this, ready = std::move(ready), fail] {
    PS_RETURN_IF_ERROR(Convert());
    return request_.params.grammar ? CompileGrammar(ready, fail) : ready();
  };
  if (message_.session().empty() && !resumes()) return convert();
  const auto bytes = static_cast<int64_t>(message_.ByteSizeLong());
  const auto load = [this, convert, fail, bytes] {
    if (const Status status = LoadStart(); !status.ok()) return fail(status);
    if (bytes <= int64_t{kInlineRequestBytes}) return fail(convert());
    call_->PostToTokenizers(bytes, [convert, fail] { fail(convert()); });
  };
  if (resumes()) {
    call_->PostToStores(load);
  } else {
    call_->PostToSession(message_.session(), load);
  }
  return Status();
}

Status Completion::CompileGrammar(const std::function<Status()>& ready,
                                  const std::function<void(const Status&)>& fail) {
  GrammarCompiler* const grammars = call_->model().rules.grammars;
  if (grammars == nullptr) {
    return FailedPrecondition("structured_output: needs a tokenizer, and this model has none")
        .WithReason(Reason::kTokenizerMissing);
  }
  // A compiled grammar does not wait for those that are being compiled.
  request_.grammar = grammars->Find(*request_.params.grammar);
  if (request_.grammar != nullptr) return ready();
  call_->PostToGrammars([this, grammars, ready, fail] {
    auto grammar = grammars->Compile(*request_.params.grammar, call_->principal());
    if (!grammar.ok()) return fail(grammar.status());
    request_.grammar = *std::move(grammar);
    fail(ready());
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
  PS_ASSIGN_OR_RETURN(request_.start, call_->LoadMigrated(message_.resume_token()));
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
  message_ = {};
  PS_RETURN_IF_ERROR(CheckReply());
  request_.migrates = variant_.migrates;
  std::unique_ptr<Renderer> renderer =
      variant_.new_renderer ? variant_.new_renderer(request_)
                            : NewCompletionRenderer(call_, form_, request_.params, return_state);
  return call_->Submit(std::move(request_), std::move(renderer));
}

// A response that cannot fit is refused before its prompt is processed.
Status Completion::CheckReply() const {
  if (form_ != CompletionForm::kUnary || !request_.params.echo) return Status();
  const GenerateParams& params = request_.params;
  const int64_t tokens = std::ssize(request_.prompt);
  const int64_t scored = std::max<int64_t>(tokens - params.logprobs_from, 0);
  const int64_t found = params.logprobs.has_value() ? (tokens - scored) * UnaryTokenBytes(0) +
                                                          scored * UnaryTokenBytes(*params.logprobs)
                                                    : tokens * UnaryTokenBytes(std::nullopt);
  const int64_t limit = MaxUnaryBytes(*call_->service());
  if (found <= limit) return Status();
  return InvalidArgument("echo: expected a response that takes at most ", limit,
                         " bytes (a quarter of --request-memory), found about ", found, " for ",
                         tokens, " echoed tokens with ", params.logprobs.value_or(0),
                         " alternatives each; call Complete, which streams, or ask for less");
}

Status Completion::DecodeState() {
  const SnapshotCodec& codec = call_->model().sessions->options().codec;
  PS_RETURN_IF_ERROR(call_->HoldInput(
      std::min(DecodedStateBytes(state_), static_cast<int64_t>(codec.limits.max_state_bytes))));
  PS_ASSIGN_OR_RETURN(request_.start, codec.Decode(state_));
  request_.client_start = true;
  state_ = {};
  if (!request_.start->generation) return Status();
  return InvalidArgument("state: expected one of return_state, found a migrated completion");
}

}  // namespace polysketch
