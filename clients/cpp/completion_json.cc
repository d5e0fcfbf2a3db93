#include "clients/cpp/completion_json.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

namespace polysketch {
namespace {

constexpr char kCancelled[] = "cancelled";

// Adds text, finish_reason, matched_stop and stop_token. finish: a Finish or a ChoiceFinish.
template <typename Finish>
void AddEnd(const std::string& text, const Finish& finish, Json* json) {
  (*json)["text"] = text + finish.text();
  (*json)["finish_reason"] = ReasonName(finish.reason());
  if (!finish.matched_stop().empty()) (*json)["matched_stop"] = finish.matched_stop();
  if (finish.has_stop_token()) (*json)["stop_token"] = finish.stop_token();
}

void AddFinish(const v1::Finish& finish, Json* json) {
  if (!finish.resume_token().empty()) (*json)["resume_token"] = finish.resume_token();
  AddCacheMiss(finish.cache_miss(), json);
  if (finish.has_session()) (*json)["session"] = MessageToJson(finish.session());
  (*json)["seed"] = std::to_string(finish.seed());
  (*json)["usage"] = MessageToJson(finish.usage());
  (*json)["timings"] = MessageToJson(finish.timings());
}

void AddChoiceFinish(const v1::ChoiceFinish& finish, const CompletionFields& fields, Json* json) {
  (*json)["seed"] = std::to_string(finish.seed());
  (*json)["completion_tokens"] = finish.completion_tokens();
  if (fields.logprob_sums) (*json)["logprob_sum"] = finish.logprob_sum();
}

}  // namespace

std::string ReasonName(v1::FinishReason reason) {
  if (!v1::FinishReason_IsValid(reason)) return "unspecified";
  std::string name = v1::FinishReason_Name(reason).substr(std::strlen("FINISH_REASON_"));
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  return name;
}

CompletionFields::CompletionFields(const v1::CompleteRequest& request)
    : choices(request.n() > 1 || request.best_of() > 1),
      logprobs(request.has_logprobs()),
      logprob_sums(request.has_logprobs() || request.best_of() > std::max(request.n(), 1)) {}

void CompletionJson::Part::Add(const v1::Delta& delta) {
  for (const int32_t token : delta.tokens()) tokens.push_back(token);
  for (const v1::TokenLogprob& logprob : delta.logprobs()) {
    logprobs.push_back(MessageToJson(logprob));
  }
  text += delta.text();
}

void CompletionJson::Part::Add(const Part& other) {
  tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
  logprobs.insert(logprobs.end(), other.logprobs.begin(), other.logprobs.end());
  text += other.text;
}

void CompletionJson::Add(const v1::Delta& delta) {
  if (delta.echoed()) return echo_.Add(delta);
  fields_.choices = fields_.choices || delta.choice() > 0;
  choices_[delta.choice()].output.Add(delta);
}

void CompletionJson::Add(const v1::ChoiceFinish& finish) {
  fields_.choices = true;
  choices_[finish.choice()].finish = finish;
  choices_[finish.choice()].ended = true;
}

CompletionJson::Part CompletionJson::Top() const {
  Part top = echo_;
  const auto only = choices_.find(0);
  if (!fields_.choices && only != choices_.end()) top.Add(only->second.output);
  return top;
}

void CompletionJson::AddTokens(const Part& part, Json* json) const {
  (*json)["tokens"] = part.tokens;
  if (fields_.logprobs || !part.logprobs.empty()) (*json)["logprobs"] = part.logprobs;
}

Json CompletionJson::Finish(const v1::Finish& finish) const {
  const Part top = Top();
  Json json;
  AddEnd(top.text, finish, &json);
  AddFinish(finish, &json);
  AddTokens(top, &json);
  if (fields_.choices) json["choices"] = ChoicesToJson();
  return json;
}

Json CompletionJson::Cancel() const {
  const Part top = Top();
  size_t tokens = 0;
  for (const auto& [index, choice] : choices_) tokens += choice.output.tokens.size();
  Json json;
  json["text"] = top.text;
  json.update(CancelledToJson(static_cast<int64_t>(tokens)));
  AddTokens(top, &json);
  if (fields_.choices) json["choices"] = ChoicesToJson();
  return json;
}

Json CompletionJson::ChoicesToJson() const {
  Json list = Json::array();
  for (const auto& [index, choice] : choices_) {
    Json json;
    json["choice"] = index;
    AddEnd(choice.output.text, choice.finish, &json);
    if (choice.ended) {
      AddChoiceFinish(choice.finish, fields_, &json);
    } else {
      json["finish_reason"] = kCancelled;
    }
    AddTokens(choice.output, &json);
    list.push_back(std::move(json));
  }
  return list;
}

Json DeltaToJson(const v1::Delta& delta, const CompletionFields& fields) {
  Json json;
  if (fields.choices || delta.choice() > 0) json["choice"] = delta.choice();
  if (delta.echoed()) json["echoed"] = true;
  json["text"] = delta.text();
  Json& tokens = json["tokens"] = Json::array();
  for (const int32_t token : delta.tokens()) tokens.push_back(token);
  if (!fields.logprobs && delta.logprobs().empty()) return json;
  Json& logprobs = json["logprobs"] = Json::array();
  for (const v1::TokenLogprob& one : delta.logprobs()) logprobs.push_back(MessageToJson(one));
  return json;
}

Json ChoiceFinishToJson(const v1::ChoiceFinish& finish, const CompletionFields& fields) {
  Json json;
  json["choice"] = finish.choice();
  AddEnd("", finish, &json);
  AddChoiceFinish(finish, fields, &json);
  return json;
}

Json FinishToJson(const v1::Finish& finish) {
  Json json;
  AddEnd("", finish, &json);
  AddFinish(finish, &json);
  return json;
}

Json CancelledToJson(int64_t tokens) {
  Json json;
  json["finish_reason"] = kCancelled;
  json["usage"]["completion_tokens"] = tokens;
  return json;
}

}  // namespace polysketch
