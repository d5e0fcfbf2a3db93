#include "server/openai/completion_run.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "server/http/http_errors.h"
#include "server/openai/growing_json.h"

namespace polysketch {
namespace {

// Memory of what a response collects: the text of its JSON in parts, whole, and after its header.
// Of a stream these are events with the echo of the prompt, whose parts are copied more often.
constexpr int64_t kReplyCopies = 3, kEchoCopies = 6;
constexpr int64_t kIdBytes = 8;          // of a token id in JSON
constexpr int64_t kLogprobsBytes = 128;  // of log-probabilities without tokens
constexpr int64_t kToolCopies = 2;       // what a reader of calls holds, and the calls
// The end of a response is made at once, on a thread that others wait for.
constexpr int64_t kMaxReplyJson = int64_t{64} << 20;
constexpr int64_t kHeldPart = 64 << 10;
constexpr char kEventStream[] = "text/event-stream; charset=utf-8";

std::string_view FinishReasonText(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_MIGRATED:
      return "migrated";
    default:
      return "stop";
  }
}

// The status of a call, whose prompt is one of `prompts` of a request.
Status OfPrompt(const Status& status, size_t prompt, size_t prompts) {
  if (prompts == 1) return status;
  const std::string name = StrCat("prompt[", prompt, "]");
  return Renamed(status, {{"prompt.text", name}, {"prompt.tokens.ids", name}, {"prompt", name}});
}

}  // namespace

int64_t UnixSeconds() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
      .count();
}

CompletionRun::CompletionRun(std::shared_ptr<HttpExchange> exchange, CompletionJob job,
                             std::unique_ptr<AnswerForm> form, ServiceContext* service, Hooks hooks)
    : exchange_(std::move(exchange)),
      job_(std::move(job)),
      form_(std::move(form)),
      service_(service),
      tokenizer_(service->model.load()->rules.tokenizer),
      hooks_(std::move(hooks)),
      job_memory_(exchange_->NewMemory(RequestPhase::kRequest)),
      reply_memory_(exchange_->NewMemory(RequestPhase::kReply)),
      unsubmitted_(job_.calls()),
      running_(job_.calls()) {
  const auto answers =
      static_cast<int64_t>(job_.calls() * sizeof(AnswerChoice)) * int64_t{job_.options.choices};
  held_ = job_memory_.Hold(job_.MemoryBytes() + answers);
  // What the form repeats of the request.
  int64_t repeated = EscapedBytes(job_.options.prefix) * job_.options.choices;
  for (size_t i = 0; job_.options.token_ids && i < job_.calls(); ++i) {
    const v1::Prompt& prompt = job_.prompts.empty() ? job_.common.prompt() : job_.prompts[i];
    repeated += kIdBytes * prompt.tokens().ids_size() * job_.options.choices;
  }
  if (held_.ok()) held_ = HoldReply(repeated);
}

void CompletionRun::Start() {
  if (!held_.ok()) {
    std::lock_guard lock(mutex_);
    return Fail(held_);
  }
  answer_.choices.resize(job_.calls() * static_cast<size_t>(job_.options.choices));
  for (AnswerChoice& choice : answer_.choices) {
    choice.reader = job_.options.reasoning;
    if (!job_.options.marks.empty()) choice.filter.emplace(tokenizer_, job_.options.marks);
    choice.prefix = job_.options.prefix;
  }
  if (job_.options.token_ids) answer_.prompt_ids.resize(job_.calls());
  answer_.echoes.resize(job_.calls());
  answer_.prompt_tokens.resize(job_.calls());
  answer_.resume_tokens.resize(job_.calls());
  decoders_.resize(job_.calls());
  for (size_t prompt = 0; prompt < job_.calls(); ++prompt) {
    HttpCall::Callbacks callbacks;
    if (job_.options.stream) {
      callbacks.on_submitted = [self = shared_from_this(), prompt](int64_t tokens) {
        std::lock_guard lock(self->mutex_);
        self->OnSubmitted(prompt, tokens);
      };
    }
    callbacks.on_response = [self = shared_from_this(),
                             prompt](const v1::CompleteResponse& response) {
      self->OnResponse(prompt, response);
    };
    callbacks.on_finish = [self = shared_from_this(), prompt](const Status& status) {
      self->OnFinish(prompt, status);
    };
    v1::CompleteRequest request = job_.Request(prompt);
    if (job_.options.token_ids) {
      const auto& ids = request.prompt().tokens().ids();
      answer_.prompt_ids[prompt].assign(ids.begin(), ids.end());
    }
    if (job_.options.logprobs || job_.options.reasoning) {
      // The text of the response begins after the prompt, although its tokens come.
      const bool hidden = request.echo() && !job_.options.echo;
      if (hidden) request.set_echo(false);
      decoders_[prompt] = TextDecoder(tokenizer_, request);
      if (hidden) request.set_echo(true);
    }
    calls_.push_back(HttpCall::StartCompletion(service_, exchange_, std::move(request),
                                               std::move(callbacks), job_.options.chat));
  }
  job_.common = {};
  std::vector<v1::Prompt>().swap(job_.prompts);
  exchange_->SetCallbacks(
      [self = shared_from_this()] {
        for (const auto& call : self->calls_) call->OnSent();
      },
      [self = shared_from_this()] {
        for (const auto& call : self->calls_) call->Cancel();
      });
}

void CompletionRun::CancelAll() {
  exchange_->Post([self = shared_from_this()] {
    for (const auto& call : self->calls_) call->Cancel();
  });
}

// A request of which one prompt is refused gets a status: nothing is sent before the last is taken.
void CompletionRun::OnSubmitted(size_t prompt, int64_t tokens) {
  if (answer_.prompt_tokens[prompt].has_value()) return;
  answer_.prompt_tokens[prompt] = tokens;
  if (--unsubmitted_ > 0) return;
  if (ended_ || !job_.options.stream) return;
  StartStream();
  for (const AnswerChoice& choice : answer_.choices) {
    if (!choice.reasoning.empty() || !choice.prefix.empty() || !choice.text.empty() ||
        !choice.finish_reason.empty())
      SendChoice(&choice);
  }
}

void CompletionRun::OnResponse(size_t prompt, const v1::CompleteResponse& response) {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  if (response.has_delta()) {
    const Status held = OnDelta(prompt, response.delta());
    if (!held.ok()) Fail(held);
  } else if (response.has_choice()) {
    EndChoice(prompt, response.choice().choice(), response.choice());
  } else if (response.has_finish()) {
    OnFinishMessage(prompt, response.finish());
  }
}

void CompletionRun::OnFinish(size_t prompt, const Status& status) {
  std::lock_guard lock(mutex_);
  --running_;
  if (ended_) return;
  if (!status.ok()) return Fail(OfPrompt(status, prompt, answer_.prompt_tokens.size()));
  if (running_ > 0) return;
  if (answer_.migrated() && !job_.options.migrates) return Fail(Draining());
  if (!hooks_.before_end) return Complete();
  hooks_.before_end(answer_, [self = shared_from_this()](const Status& last) {
    std::lock_guard lock(self->mutex_);
    if (self->ended_) return;
    last.ok() ? self->Complete() : self->Fail(last);
  });
}

// A resumed completion has the choices of its first request.
AnswerChoice* CompletionRun::ChoiceOf(size_t prompt, int choice) {
  const size_t index =
      prompt * static_cast<size_t>(job_.options.choices) + static_cast<size_t>(choice);
  if (index >= answer_.choices.size()) answer_.choices.resize(index + 1);
  return &answer_.choices[index];
}

Status CompletionRun::HoldReply(int64_t bytes) {
  collected_ += bytes;
  const bool stream = job_.options.stream;
  const int64_t copies = kReplyCopies + (job_.options.tools ? kToolCopies : 0);
  const int64_t kept = (stream ? kEchoCopies : copies) * collected_ + form_->KeptBytes();
  if (kept <= reply_memory_.bytes()) return Status();
  const RequestMemory* const memory = reply_memory_.budget();
  const int64_t most =
      memory == nullptr ? kMaxReplyJson : std::min(memory->limit() / 4, kMaxReplyJson);
  if (collected_ > most) {
    return ResourceExhausted("the response takes more than ", most,
                             " bytes (a quarter of --request-memory, 64 MiB at most); ",
                             stream ? "" : "set stream, or ", "ask for less");
  }
  return reply_memory_.HoldOnly(kept + kHeldPart);
}

Status CompletionRun::OnDelta(size_t prompt, const v1::Delta& delta) {
  AnswerChoice* choice = ChoiceOf(prompt, delta.choice());
  EchoedPrompt* const echo = delta.echoed() ? &answer_.echoes[prompt] : nullptr;
  if (echo != nullptr && job_.options.prompt_logprobs) {
    const auto before = std::ssize(echo->prompt_logprobs);
    AppendPromptLogprobs(delta, *job_.options.prompt_logprobs, tokenizer_, &echo->prompt_logprobs);
    PS_RETURN_IF_ERROR(
        HoldReply((std::ssize(echo->prompt_logprobs) - before) * job_.options.choices));
    if (!job_.options.echo) return Status();
  }
  if (echo == nullptr) {
    CountTokens(prompt, delta, choice);
    if (job_.options.token_ids) {
      choice->token_ids.insert(choice->token_ids.end(), delta.tokens().begin(),
                               delta.tokens().end());
    }
    AddText(delta.text(), /*ends=*/false, choice);
  } else {
    echo->text += delta.text();
  }
  int64_t bytes = EscapedBytes(delta.text());
  if (job_.options.token_ids) bytes += kIdBytes * delta.tokens_size();
  if (delta.tokens_size() > 0) choice->last_token = delta.tokens(delta.tokens_size() - 1);
  if (job_.options.logprobs) {
    if (!choice->logprobs.has_value()) {
      choice->logprobs.emplace(
          job_.options.chat ? Logprobs::Form::kChat : Logprobs::Form::kCompletion, tokenizer_,
          decoders_[prompt], job_.options.tokens_as_ids, job_.options.alternatives);
      bytes += kLogprobsBytes;
    }
    bytes += choice->logprobs->Add(delta);
    if (echo != nullptr) {
      const LogprobColumns echoed = choice->logprobs->TakeColumns();
      for (size_t i = 0; i < echoed.size(); ++i) AppendElements(echoed[i], &echo->logprobs[i]);
    }
  }
  if (echo == nullptr && job_.options.stream) {
    SendChoice(choice);
    return HoldReply(0);
  }
  if (echo == nullptr) return HoldReply(bytes);
  // The prompt comes once, and belongs to each choice.
  for (int other = 0; other < job_.options.choices; ++other) {
    AnswerChoice* const of = ChoiceOf(prompt, other);
    of->echo = echo;
    if (other != delta.choice()) of->logprobs = choice->logprobs;
  }
  return HoldReply(job_.options.stream ? bytes : bytes * job_.options.choices);
}

// A delta has as many tokens as were ready, and its text may lag behind them: reasoning is counted
// token by token.
void CompletionRun::CountTokens(size_t prompt, const v1::Delta& delta, AnswerChoice* choice) {
  if (choice->filter.has_value()) {
    for (const int32_t token : delta.tokens()) choice->filter->Add(token);
  }
  if (!choice->reader.has_value() || !decoders_[prompt].has_value()) {
    choice->tokens += delta.tokens_size();
    return;
  }
  if (!choice->counter.has_value())
    choice->counter.emplace(*job_.options.reasoning, *decoders_[prompt]);
  for (const int32_t token : delta.tokens()) {
    ++choice->tokens;
    if (choice->counter->IsReasoning(token)) choice->reasoning_tokens = choice->tokens;
  }
}

void CompletionRun::AddText(const std::string& generated, bool ends, AnswerChoice* choice) {
  std::string filtered;
  if (choice->filter.has_value()) filtered = choice->filter->Take(generated, ends);
  const std::string& text = choice->filter.has_value() ? filtered : generated;
  if (!choice->reader.has_value()) {
    choice->text += text;
    return;
  }
  const auto add = [&](ReasoningReader::Parts parts) {
    if (job_.options.include_reasoning) choice->reasoning += parts.reasoning;
    choice->text += parts.answer;
  };
  add(choice->reader->Take(text));
  if (ends) add(choice->reader->Finish());
}

template <typename End>
void CompletionRun::EndChoice(size_t prompt, int index, const End& end) {
  AnswerChoice* choice = ChoiceOf(prompt, index);
  AddText(end.text(), /*ends=*/true, choice);
  if (!job_.options.stream) {
    if (const Status held = HoldReply(EscapedBytes(end.text())); !held.ok()) return Fail(held);
  }
  choice->finish_reason = FinishReasonText(end.reason());
  // One of the template's ends an answer as a control piece does.
  if (std::ranges::find(job_.options.turn_ends, end.matched_stop()) == job_.options.turn_ends.end())
    choice->matched_stop = end.matched_stop();
  if (end.has_stop_token()) choice->stop_token = end.stop_token();
  if (job_.options.stream) SendChoice(choice);
}

void CompletionRun::OnFinishMessage(size_t prompt, const v1::Finish& finish) {
  v1::Usage& usage = answer_.usage;
  usage.set_prompt_tokens(usage.prompt_tokens() + finish.usage().prompt_tokens());
  usage.set_completion_tokens(usage.completion_tokens() + finish.usage().completion_tokens());
  usage.set_cached_tokens(usage.cached_tokens() + finish.usage().cached_tokens());
  if (finish.has_session()) answer_.session = finish.session();
  answer_.resume_tokens[prompt] = finish.resume_token();
  // Choices without a message about their end: the only one, and those that were migrated.
  const auto choices = static_cast<int>(answer_.choices_of_prompt());
  for (int i = 0; i < choices && !ended_; ++i) {
    AnswerChoice* const choice = ChoiceOf(prompt, i);
    if (!choice->finish_reason.empty()) continue;
    if (choices == 1) choice->tokens = finish.usage().completion_tokens();
    EndChoice(prompt, i, finish);
  }
  OnSubmitted(prompt, finish.usage().prompt_tokens());
}

void CompletionRun::Fail(const Status& cause) {
  ended_ = true;
  CancelAll();
  if (hooks_.on_failure) hooks_.on_failure();
  const Status status =
      Renamed(cause.WithMessage(NameGrammarField(cause.message(), job_.options.grammar)),
              job_.options.field_names);
  if (!started_) return ReplyError(exchange_.get(), status);
  exchange_->OnRefused(status);
  exchange_->Send(form_->Failure(status));
  exchange_->EndStream();
}

void CompletionRun::Complete() {
  ended_ = true;
  if (!job_.options.stream) {
    std::string body = form_->Whole(&answer_);
    // Less than before: the exchange copies the body, and holds its own.
    (void)reply_memory_.HoldOnly((kReplyCopies - 1) * std::ssize(body));
    exchange_->Reply(200, kJsonType, std::move(body));
    return reply_memory_.Release();
  }
  StartStream();
  exchange_->Send(form_->End(answer_));
  exchange_->EndStream();
}

void CompletionRun::SendChoice(const AnswerChoice* choice) {
  if (unsubmitted_ > 0) return;
  exchange_->Send(form_->Piece(static_cast<size_t>(choice - answer_.choices.data()), &answer_));
}

void CompletionRun::StartStream() {
  if (std::exchange(started_, true)) return;
  exchange_->StartStream(kEventStream, form_->Silence());
  exchange_->Send(form_->Begin(answer_));
}

}  // namespace polysketch
