// What a reader makes of a stream's events, with the rules that every stream must keep.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "gtest/gtest.h"

namespace polysketch::testing {

struct Collected {
  std::vector<int32_t> tokens;  // generated
  std::vector<int32_t> echoed;
  std::vector<std::optional<float>> logprobs;  // of echoed and generated tokens
  std::vector<std::vector<TokenLogprob>> tops;
  std::string text;  // all of it, Finish included
  std::vector<float> scores;
  std::vector<ProgressEvent> progress;
  std::optional<FinishEvent> finish;

  void Add(const Event& event) {
    ASSERT_FALSE(finish.has_value()) << "an event behind the FinishEvent";
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      EXPECT_TRUE(!token->echoed || tokens.empty()) << "an echoed token behind a generated one";
      (token->echoed ? echoed : tokens).push_back(token->token);
      logprobs.push_back(token->logprob);
      tops.push_back(token->top);
      text += token->text;
    } else if (const auto* score = std::get_if<ScoreEvent>(&event)) {
      EXPECT_EQ(score->first, static_cast<int64_t>(scores.size()) + 1);
      EXPECT_FALSE(score->logprobs.empty());
      scores.insert(scores.end(), score->logprobs.begin(), score->logprobs.end());
    } else if (const auto* at = std::get_if<ProgressEvent>(&event)) {
      progress.push_back(*at);
    } else {
      finish = std::get<FinishEvent>(event);
      text += finish->text;
    }
  }
  // Takes what is there now.
  void Drain(EventStream* stream) {
    for (Event event; stream->TryPop(&event);) Add(event);
  }
};

}  // namespace polysketch::testing
