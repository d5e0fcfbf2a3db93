#include "clients/cpp/completion_output.h"

#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "clients/cpp/json.h"

namespace polysketch {
namespace {

// "stop" of FINISH_REASON_STOP.
std::string ReasonName(v1::FinishReason reason) {
  if (!v1::FinishReason_IsValid(reason)) return "unspecified";
  std::string name = v1::FinishReason_Name(reason).substr(std::strlen("FINISH_REASON_"));
  for (char& c : name) c = static_cast<char>(std::tolower(c));
  return name;
}

// Text and tokens of a choice, or of the echoed prompt.
struct Part {
  void Add(const v1::Delta& delta) {
    for (const int32_t token : delta.tokens()) tokens.push_back(token);
    for (const v1::TokenLogprob& logprob : delta.logprobs()) {
      logprobs.push_back(MessageToJson(logprob));
    }
    text += delta.text();
  }
  void Add(const Part& other) {
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    logprobs.insert(logprobs.end(), other.logprobs.begin(), other.logprobs.end());
    text += other.text;
  }
  // finish: a Finish or a ChoiceFinish.
  template <typename Finish>
  void PrintHead(const Finish& finish, Json* json) const {
    (*json)["text"] = text + finish.text();
    (*json)["finish_reason"] = ReasonName(finish.reason());
    if (!finish.matched_stop().empty()) (*json)["matched_stop"] = finish.matched_stop();
  }
  void PrintTokens(bool with_logprobs, Json* json) const {
    (*json)["tokens"] = tokens;
    if (with_logprobs || !logprobs.empty()) (*json)["logprobs"] = logprobs;
  }

  Json tokens = Json::array();
  Json logprobs = Json::array();
  std::string text;
};

class JsonOutput final : public CompletionOutput {
 public:
  JsonOutput(bool with_choices, bool with_logprobs)
      : with_choices_(with_choices), with_logprobs_(with_logprobs) {}

  void Add(const v1::Delta& delta) override {
    if (delta.echoed()) return echo_.Add(delta);
    with_choices_ = with_choices_ || delta.choice() > 0;
    choices_[delta.choice()].output.Add(delta);
  }
  void Add(const v1::ChoiceFinish& finish) override {
    with_choices_ = true;
    choices_[finish.choice()].finish = finish;
  }

  void Finish(const v1::Finish& finish) override {
    Part top = echo_;
    if (!with_choices_) top.Add(choices_[0].output);
    Json json;
    top.PrintHead(finish, &json);
    if (!finish.resume_token().empty()) json["resume_token"] = finish.resume_token();
    AddCacheMiss(finish.cache_miss(), &json);
    if (finish.has_session()) json["session"] = MessageToJson(finish.session());
    json["seed"] = finish.seed();
    json["usage"] = MessageToJson(finish.usage());
    json["timings"] = MessageToJson(finish.timings());
    top.PrintTokens(with_logprobs_, &json);
    if (with_choices_) json["choices"] = ChoicesToJson();
    PrintJson(json);
  }

 private:
  struct Choice {
    Part output;
    v1::ChoiceFinish finish;
  };

  Json ChoicesToJson() const {
    Json list = Json::array();
    for (const auto& [index, choice] : choices_) {
      Json json;
      json["choice"] = index;
      choice.output.PrintHead(choice.finish, &json);
      json["seed"] = choice.finish.seed();
      json["completion_tokens"] = choice.finish.completion_tokens();
      json["logprob_sum"] = choice.finish.logprob_sum();
      choice.output.PrintTokens(with_logprobs_, &json);
      list.push_back(std::move(json));
    }
    return list;
  }

  bool with_choices_;
  const bool with_logprobs_;
  Part echo_;
  std::map<int32_t, Choice> choices_;  // by index
};

class TextOutput final : public CompletionOutput {
 public:
  explicit TextOutput(bool print_ids) : print_ids_(print_ids) {}

  void Add(const v1::Delta& delta) override {
    if (!print_ids_) return Write(delta.text());
    for (const int32_t token : delta.tokens()) Write(std::to_string(token) + " ");
  }
  // With best_of, the only choice.
  void Add(const v1::ChoiceFinish& finish) override {
    if (!print_ids_) Write(finish.text());
  }

  void Finish(const v1::Finish& finish) override {
    if (!print_ids_) Write(finish.text());
    Abort();
    if (isatty(STDERR_FILENO) == 1) PrintStatistics(finish);
    if (finish.resume_token().empty()) return;
    std::fprintf(stderr, "polysketch: the server is shutting down; continue with --resume %s\n",
                 finish.resume_token().c_str());
  }
  // Ends the line.
  void Abort() override {
    if (last_ != '\n') Write("\n");
  }

 private:
  static void PrintStatistics(const v1::Finish& finish) {
    const v1::Timings& timings = finish.timings();
    const int64_t tokens = finish.usage().completion_tokens();
    std::fprintf(stderr, "[%lld prompt tokens, %lld output tokens; first token after %.3f s",
                 static_cast<long long>(finish.usage().prompt_tokens()),
                 static_cast<long long>(tokens), timings.first_token_seconds());
    if (tokens > 1 && timings.decode_seconds() > 0) {
      std::fprintf(stderr, ", then %.1f tokens/s", double(tokens - 1) / timings.decode_seconds());
    }
    std::fprintf(stderr, "; finish reason: %s]\n", ReasonName(finish.reason()).c_str());
  }

  void Write(const std::string& text) {
    if (text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    last_ = text.back();
  }

  const bool print_ids_;
  char last_ = '\n';
};

}  // namespace

std::unique_ptr<CompletionOutput> NewJsonOutput(bool with_choices, bool with_logprobs) {
  return std::make_unique<JsonOutput>(with_choices, with_logprobs);
}

std::unique_ptr<CompletionOutput> NewTextOutput(bool print_ids) {
  return std::make_unique<TextOutput>(print_ids);
}

}  // namespace polysketch
