#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/convert/wire.h"
#include "server/gateway/generate_request.h"
#include "server/rpc/completion_renderer.h"

namespace polysketch {
namespace {

void AddTop(const TokenEvent& token, int alternatives, vllm_engine::TopLogProbs* top) {
  const auto count = std::min(token.top.size(), static_cast<size_t>(alternatives));
  for (size_t i = 0; i < count; ++i) {
    top->add_token_ids(static_cast<uint32_t>(token.top[i].token));
    top->add_values(token.top[i].logprob);
  }
}

void AddOutput(const TokenEvent& token, int alternatives, vllm_engine::OutputLogProbs* logprobs) {
  logprobs->add_token_ids(static_cast<uint32_t>(token.token));
  logprobs->add_token_logprobs(token.logprob.value_or(0));
  AddTop(token, alternatives, logprobs->add_top_logprobs());
}

void AddPrompt(const TokenEvent& token, int alternatives, vllm_engine::InputLogProbs* logprobs) {
  logprobs->add_token_ids(static_cast<uint32_t>(token.token));
  auto* value = logprobs->add_token_logprobs();
  if (token.logprob.has_value()) value->set_value(*token.logprob);
  AddTop(token, alternatives, logprobs->add_top_logprobs());
}

class GenerateRenderer final : public Renderer {
 public:
  GenerateRenderer(EngineCall* call, const GenerateForm& form, const GenerateRequest& request)
      : call_(call),
        form_(form),
        prompt_tokens_(static_cast<uint32_t>(request.prompt.size())),
        collected_(call, request.params.logprobs.has_value()),
        choices_(static_cast<size_t>(request.params.n)) {}

  std::optional<grpc::ByteBuffer> Render(Event event, EventQueue* events) override {
    if (const auto* choice = std::get_if<ChoiceEvent>(&event)) {
      End(*choice, &ChoiceOf(choice->choice));
      return std::nullopt;
    }
    const auto* token = std::get_if<TokenEvent>(&event);
    if (token == nullptr) return std::nullopt;
    if (token->echoed) {
      if (collected_.Hold(*token).ok()) AddPrompt(*token, *form_.prompt_logprobs, &prompt_);
      return std::nullopt;
    }
    if (form_.stream) return Chunk(*token, events);
    if (collected_.Hold(*token).ok()) Collect(*token, &ChoiceOf(token->choice));
    return std::nullopt;
  }

  Result<Messages> RenderFinish(const FinishEvent& event) override {
    if (choices_.size() == 1) End(event, &choices_[0]);
    Messages messages;
    int64_t bytes = 0;
    for (size_t i = 0; i < choices_.size(); ++i) {
      messages.push_back(Complete(event.usage, i));
      bytes += static_cast<int64_t>(messages.back().Length());
    }
    if (!form_.stream) (void)call_->HoldReply(bytes);  // less
    return messages;
  }

 private:
  struct Choice {
    vllm_engine::GenerateComplete complete;
    uint32_t tokens = 0;
  };

  Choice& ChoiceOf(int index) { return choices_[static_cast<size_t>(index)]; }

  void Collect(const TokenEvent& token, Choice* choice) const {
    ++choice->tokens;
    choice->complete.add_output_ids(static_cast<uint32_t>(token.token));
    if (form_.logprobs)
      AddOutput(token, *form_.logprobs, choice->complete.mutable_output_logprobs());
  }

  // The chunk of `first` and of the tokens after it that are ready and belong to the same choice.
  grpc::ByteBuffer Chunk(const TokenEvent& first, EventQueue* events) {
    vllm_engine::GenerateResponse response;
    vllm_engine::GenerateStreamChunk* chunk = response.mutable_chunk();
    Choice& choice = ChoiceOf(first.choice);
    AddToChunk(first, &choice, chunk);
    while (chunk->token_ids_size() < kMaxDeltaTokens) {
      std::optional<Event> next = events->Next();
      if (!next.has_value()) break;
      const auto* token = std::get_if<TokenEvent>(&*next);
      if (token == nullptr || token->choice != first.choice) {
        events->PutBack(*std::move(next));
        break;
      }
      AddToChunk(*token, &choice, chunk);
    }
    chunk->set_index(static_cast<uint32_t>(first.choice));
    chunk->set_prompt_tokens(prompt_tokens_);
    chunk->set_completion_tokens(choice.tokens);
    TakePrompt(chunk);
    return SerializeMessage(response);
  }

  void AddToChunk(const TokenEvent& token, Choice* choice,
                  vllm_engine::GenerateStreamChunk* chunk) const {
    ++choice->tokens;
    chunk->add_token_ids(static_cast<uint32_t>(token.token));
    if (form_.logprobs) AddOutput(token, *form_.logprobs, chunk->mutable_output_logprobs());
  }

  // Moves the log-probabilities of the prompt, which are sent once, to `message`.
  template <typename Message>
  void TakePrompt(Message* message) {
    if (prompt_.token_ids_size() > 0) message->mutable_input_logprobs()->Swap(&prompt_);
  }

  // `event`: a ChoiceEvent, or the FinishEvent of the only choice.
  template <typename Ending>
  static void End(const Ending& event, Choice* choice) {
    vllm_engine::GenerateComplete& complete = choice->complete;
    complete.set_finish_reason(event.reason == FinishReason::kLength ? "length" : "stop");
    if (event.reason != FinishReason::kStop) return;
    if (!event.matched_stop.empty()) {
      complete.set_matched_stop_str(event.matched_stop);
    } else if (event.stop_token) {
      complete.set_matched_token_id(static_cast<uint32_t>(*event.stop_token));
    }
  }

  grpc::ByteBuffer Complete(const Usage& usage, size_t index) {
    Choice& choice = choices_[index];
    vllm_engine::GenerateResponse response;
    vllm_engine::GenerateComplete* complete = response.mutable_complete();
    complete->Swap(&choice.complete);
    complete->set_index(static_cast<uint32_t>(index));
    complete->set_prompt_tokens(static_cast<uint32_t>(usage.prompt_tokens));
    complete->set_completion_tokens(choice.tokens);
    complete->set_cached_tokens(static_cast<uint32_t>(usage.cached_tokens));
    TakePrompt(complete);
    return SerializeMessage(response);
  }

  EngineCall* const call_;
  const GenerateForm form_;
  const uint32_t prompt_tokens_;
  CollectedReply collected_;
  vllm_engine::InputLogProbs prompt_;
  std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<Renderer> NewGenerateRenderer(EngineCall* call, const GenerateForm& form,
                                              const GenerateRequest& request) {
  return std::make_unique<GenerateRenderer>(call, form, request);
}

}  // namespace polysketch
