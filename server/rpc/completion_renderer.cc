#include "server/rpc/completion_renderer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "server/convert/wire.h"

namespace polysketch {
namespace {

// Bytes of a state in one message: below the 4 MiB that gRPC accepts by default.
constexpr size_t kStatePartBytes = size_t{1} << 20;

// Request memory is held in parts of this size, so that few tokens change the count.
constexpr int64_t kHeldPart = 64 << 10;

// Stores the snapshot of a migrated completion. Returns its resume token.
Result<std::string> StoreMigrated(EngineCall* call, const Snapshot& snapshot) {
  Snapshot migrated = snapshot;
  if (const SessionLease* lease = call->lease()) {
    migrated.generation->session = lease->id();
    migrated.generation->session_tokens = lease->tokens();
  }
  return call->model().sessions->PutMigrated(call->tenant(), migrated,
                                             call->service()->migration_ttl);
}

// Makes the Finish of a completion. Stores its snapshot, if it has one, in the session or for a
// resume.
Result<v1::Finish> ToFinish(EngineCall* call, const FinishEvent& event) {
  v1::Finish finish;
  ToProto(event, &finish);
  if (event.reason == FinishReason::kMigrated) {
    PS_ASSIGN_OR_RETURN(*finish.mutable_resume_token(), StoreMigrated(call, *event.snapshot));
  } else if (SessionLease* lease = call->lease()) {
    PS_ASSIGN_OR_RETURN(const SessionInfo session,
                        call->model().sessions->Commit(std::move(*lease), event.snapshot));
    ToProto(session, finish.mutable_session());
  }
  return finish;
}

class StreamRenderer final : public Renderer {
 public:
  // `slot`: null for messages of bytes.
  StreamRenderer(EngineCall* call, const GenerateParams& params, bool return_state,
                 ResponseSlot slot = nullptr)
      : call_(call),
        with_logprobs_(params.logprobs.has_value()),
        return_state_(return_state),
        slot_(std::move(slot)) {}

  std::optional<grpc::ByteBuffer> Render(Event event, EventQueue* events) override {
    v1::CompleteResponse response;
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      AddTokens(*token, events, response.mutable_delta());
    } else if (const auto* choice = std::get_if<ChoiceEvent>(&event)) {
      ToProto(*choice, response.mutable_choice());
    } else if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
      ToProto(*progress, response.mutable_progress());
    } else {
      return std::nullopt;  // not an event of a completion
    }
    return MessageOf(std::move(response));
  }

  Result<Messages> RenderFinish(const FinishEvent& event) override {
    v1::CompleteResponse response;
    PS_ASSIGN_OR_RETURN(*response.mutable_finish(), ToFinish(call_, event));
    Messages messages;
    if (return_state_ && event.reason != FinishReason::kMigrated)
      PS_RETURN_IF_ERROR(AddState(*event.snapshot, &messages));
    messages.push_back(MessageOf(std::move(response)));
    return messages;
  }

 private:
  grpc::ByteBuffer MessageOf(v1::CompleteResponse response) const {
    if (!slot_) return SerializeMessage(response);
    slot_(std::move(response));
    return {};
  }

  // Adds `first`, and the tokens after it that are ready and belong to the same delta.
  void AddTokens(const TokenEvent& first, EventQueue* events, v1::Delta* delta) const {
    const Tokenizer* tokenizer = call_->model().rules.tokenizer;
    AppendToken(first, with_logprobs_, tokenizer, delta);
    while (delta->tokens_size() < kMaxDeltaTokens) {
      std::optional<Event> next = events->Next();
      if (!next.has_value()) return;
      const auto* token = std::get_if<TokenEvent>(&*next);
      if (token == nullptr || token->echoed != first.echoed || token->choice != first.choice)
        return events->PutBack(*std::move(next));
      AppendToken(*token, with_logprobs_, tokenizer, delta);
    }
  }

  Status AddState(const Snapshot& snapshot, Messages* messages) const {
    // The encoded state, and its parts.
    const size_t size = snapshot.state == nullptr ? 0 : snapshot.state->saved_bytes();
    PS_RETURN_IF_ERROR(call_->HoldReply(2 * static_cast<int64_t>(size)));
    const std::string state = call_->model().sessions->options().codec.Encode(snapshot);
    for (size_t first = 0; first < state.size(); first += kStatePartBytes) {
      v1::CompleteResponse part;
      part.set_state(state.substr(first, kStatePartBytes));
      messages->push_back(SerializeMessage(part));
    }
    return Status();
  }

  EngineCall* const call_;
  const bool with_logprobs_;
  const bool return_state_;
  const ResponseSlot slot_;
};

class UnaryRenderer final : public Renderer {
 public:
  UnaryRenderer(EngineCall* call, const GenerateParams& params)
      : call_(call),
        with_logprobs_(params.logprobs.has_value()),
        several_choices_(params.best_of > 1),
        collected_(call, with_logprobs_) {}

  std::optional<grpc::ByteBuffer> Render(Event event, EventQueue* /*events*/) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      if (!collected_.Hold(*token).ok()) return std::nullopt;
      const bool shared = token->echoed || !several_choices_;  // the echo precedes all choices
      AppendToken(*token, with_logprobs_, call_->model().rules.tokenizer,
                  shared ? &output_ : &choices_[token->choice].output);
    } else if (const auto* choice = std::get_if<ChoiceEvent>(&event)) {
      ToProto(*choice, &choices_[choice->choice].finish);
    }
    return std::nullopt;
  }

  Result<Messages> RenderFinish(const FinishEvent& event) override {
    v1::CompleteUnaryResponse response;
    PS_ASSIGN_OR_RETURN(*response.mutable_finish(), ToFinish(call_, event));
    MoveOutput(&output_, response.mutable_finish(), &response);
    for (auto& [index, choice] : choices_) {
      v1::Choice* out = response.add_choices();
      MoveOutput(&choice.output, &choice.finish, out);
      *out->mutable_finish() = std::move(choice.finish);
    }
    Messages messages = {SerializeMessage(response)};
    (void)call_->HoldReply(static_cast<int64_t>(messages[0].Length()));  // less
    return messages;
  }

 private:
  struct Choice {
    v1::Delta output;
    v1::ChoiceFinish finish;
  };

  // Moves the text of the output and of the finish to `to`.
  template <typename Finish, typename To>
  static void MoveOutput(v1::Delta* output, Finish* finish, To* to) {
    to->set_text(output->text() + finish->text());
    finish->clear_text();
    to->mutable_tokens()->Swap(output->mutable_tokens());
    to->mutable_logprobs()->Swap(output->mutable_logprobs());
  }

  EngineCall* const call_;
  const bool with_logprobs_;
  const bool several_choices_;
  CollectedReply collected_;  // memory of output_ and choices_
  v1::Delta output_;
  std::map<int, Choice> choices_;  // empty for a request with one choice
};

}  // namespace

Status CollectedReply::Hold(const TokenEvent& token) {
  const auto alternatives =
      with_logprobs_ ? std::make_optional<int64_t>(std::ssize(token.top)) : std::nullopt;
  collected_ += UnaryTokenBytes(alternatives) + 2 * std::ssize(token.text);
  if (collected_ <= held_) return Status();
  const int64_t limit = MaxUnaryBytes(*call_->service());
  if (collected_ > limit) {
    return call_->RefuseReply(ResourceExhausted(
        "the response takes more than ", limit,
        " bytes (a quarter of --request-memory); call Complete, which streams, or ask for less"));
  }
  held_ = collected_ + kHeldPart;
  return call_->HoldReply(held_);
}

int64_t UnaryTokenBytes(std::optional<int64_t> alternatives) {
  constexpr int64_t kToken = 32;         // its id, in the message and on the wire
  constexpr int64_t kLogprob = 112;      // a TokenLogprob with its array
  constexpr int64_t kAlternative = 160;  // an Alternative with its piece
  return kToken + (alternatives.has_value() ? kLogprob + kAlternative * *alternatives : 0);
}

int64_t MaxUnaryBytes(const ServiceContext& service) {
  const int64_t most = kMaxReplyBytes;
  return service.memory == nullptr ? most : std::min(most, service.memory->limit() / 4);
}

std::unique_ptr<Renderer> NewCompletionRenderer(EngineCall* call, CompletionForm form,
                                                const GenerateParams& params, bool return_state) {
  if (form == CompletionForm::kUnary) return std::make_unique<UnaryRenderer>(call, params);
  return std::make_unique<StreamRenderer>(call, params, return_state);
}

std::unique_ptr<Renderer> NewDirectRenderer(EngineCall* call, const GenerateParams& params,
                                            ResponseSlot slot) {
  return std::make_unique<StreamRenderer>(call, params, /*return_state=*/false, std::move(slot));
}

}  // namespace polysketch
