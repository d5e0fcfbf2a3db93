// A completion as JSON: one object of all responses, or an object for each response.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "clients/cpp/json.h"
#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

// "stop" of FINISH_REASON_STOP.
std::string ReasonName(v1::FinishReason reason);

// What a request asks for, and its JSON has.
struct CompletionFields {
  explicit CompletionFields(const v1::CompleteRequest& request);

  bool choices;       // n or best_of above 1
  bool logprobs;      // of tokens
  bool logprob_sums;  // of choices: the server computes them with logprobs and best_of only
};

// Collects the responses to a request.
class CompletionJson {
 public:
  explicit CompletionJson(const v1::CompleteRequest& request) : fields_(request) {}

  void Add(const v1::Delta& delta);
  void Add(const v1::ChoiceFinish& finish);
  // The whole completion. It lists choices, too, if a response named one: a resumed completion does
  // not repeat n.
  Json Finish(const v1::Finish& finish) const;
  // What has arrived of a cancelled completion: the finish reason is "cancelled".
  Json Cancel() const;

 private:
  // Text and tokens of a choice, or of the echoed prompt.
  struct Part {
    void Add(const v1::Delta& delta);
    void Add(const Part& other);

    Json tokens = Json::array();
    Json logprobs = Json::array();
    std::string text;
  };
  struct Choice {
    Part output;
    v1::ChoiceFinish finish;
    bool ended = false;
  };

  Part Top() const;
  void AddTokens(const Part& part, Json* json) const;
  Json ChoicesToJson() const;

  CompletionFields fields_;
  Part echo_;
  std::map<int32_t, Choice> choices_;  // by index
};

// One response to a request, as CompletionJson names its fields.
Json DeltaToJson(const v1::Delta& delta, const CompletionFields& fields);
Json ChoiceFinishToJson(const v1::ChoiceFinish& finish, const CompletionFields& fields);
// The last response: alone in having "usage".
Json FinishToJson(const v1::Finish& finish);
// In place of the last response of a cancelled completion. tokens: those that arrived.
Json CancelledToJson(int64_t tokens);

}  // namespace polysketch
