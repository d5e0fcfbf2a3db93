// What a reader makes of a stream's events, with the rules that every stream must keep.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request/request.h"
#include "gtest/gtest.h"

namespace polysketch::testing {

// One choice of a completion, without what was echoed.
struct CollectedChoice {
  std::vector<int32_t> tokens;
  std::vector<std::optional<float>> logprobs;
  std::string text;
  std::optional<ChoiceEvent> end;  // of several

  bool operator==(const CollectedChoice& other) const {
    return tokens == other.tokens && logprobs == other.logprobs && text == other.text &&
           end.has_value() == other.end.has_value() &&
           (!end || (end->reason == other.end->reason && end->seed == other.end->seed &&
                     end->matched_stop == other.end->matched_stop &&
                     end->logprob_sum == other.end->logprob_sum));
  }
};

struct Collected {
  std::vector<int32_t> tokens;  // generated
  std::vector<int32_t> echoed;
  std::vector<std::optional<float>> logprobs;  // of echoed and generated tokens
  std::vector<std::vector<TokenLogprob>> tops;
  std::string text;  // all of it, Finish included
  std::map<int, CollectedChoice> choices;
  std::vector<float> scores;
  std::vector<ProgressEvent> progress;
  std::optional<FinishEvent> finish;

  void Add(const Event& event) {
    ASSERT_FALSE(finish.has_value()) << "an event after the FinishEvent";
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      EXPECT_TRUE(!token->echoed || tokens.empty()) << "an echoed token after a generated one";
      (token->echoed ? echoed : tokens).push_back(token->token);
      logprobs.push_back(token->logprob);
      tops.push_back(token->top);
      text += token->text;
      if (token->echoed) return;
      CollectedChoice& choice = choices[token->choice];
      EXPECT_FALSE(choice.end.has_value()) << "a token after the end of its choice";
      choice.tokens.push_back(token->token);
      choice.logprobs.push_back(token->logprob);
      choice.text += token->text;
    } else if (const auto* end = std::get_if<ChoiceEvent>(&event)) {
      CollectedChoice& choice = choices[end->choice];
      EXPECT_FALSE(choice.end.has_value()) << "a choice that ended twice";
      choice.end = *end;
      choice.text += end->text;
      text += end->text;
    } else if (const auto* score = std::get_if<ScoreEvent>(&event)) {
      EXPECT_EQ(score->first, static_cast<int64_t>(scores.size()) + 1);
      EXPECT_FALSE(score->logprobs.empty());
      scores.insert(scores.end(), score->logprobs.begin(), score->logprobs.end());
    } else if (const auto* at = std::get_if<ProgressEvent>(&event)) {
      progress.push_back(*at);
    } else {
      finish = std::get<FinishEvent>(event);
      text += finish->text;
      if (!finish->text.empty()) choices[0].text += finish->text;
    }
  }
  // Takes what is there now.
  void Drain(EventStream* stream) {
    for (Event event; stream->TryPop(&event);) Add(event);
  }
};

}  // namespace polysketch::testing
