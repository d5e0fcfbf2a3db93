#include "clients/cpp/completion_output.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "clients/cpp/completion_json.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

class JsonOutput final : public CompletionOutput {
 public:
  explicit JsonOutput(const v1::CompleteRequest& request) : json_(request) {}

  void Add(const v1::Delta& delta) override { json_.Add(delta); }
  void Add(const v1::ChoiceFinish& finish) override { json_.Add(finish); }
  void Finish(const v1::Finish& finish) override { PrintJson(json_.Finish(finish)); }
  void Cancel() override { PrintJson(json_.Cancel()); }

 private:
  CompletionJson json_;
};

class JsonStreamOutput final : public CompletionOutput {
 public:
  explicit JsonStreamOutput(const v1::CompleteRequest& request) : fields_(request) {}

  void Add(const v1::Delta& delta) override {
    if (!delta.echoed()) tokens_ += delta.tokens_size();
    Print(DeltaToJson(delta, fields_));
  }
  void Add(const v1::ChoiceFinish& finish) override { Print(ChoiceFinishToJson(finish, fields_)); }
  void Finish(const v1::Finish& finish) override { Print(FinishToJson(finish)); }
  void Cancel() override { Print(CancelledToJson(tokens_)); }

 private:
  static void Print(const Json& json) {
    PrintJson(json);
    std::fflush(stdout);
  }

  const CompletionFields fields_;
  int64_t tokens_ = 0;
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
                 TerminalText(STDERR_FILENO, finish.resume_token()).c_str());
  }
  void Cancel() override { Abort(); }
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
    const std::string shown = TerminalText(STDOUT_FILENO, text);
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
    last_ = text.back();
  }

  const bool print_ids_;
  char last_ = '\n';
};

}  // namespace

std::unique_ptr<CompletionOutput> NewJsonOutput(const v1::CompleteRequest& request) {
  return std::make_unique<JsonOutput>(request);
}

std::unique_ptr<CompletionOutput> NewJsonStreamOutput(const v1::CompleteRequest& request) {
  return std::make_unique<JsonStreamOutput>(request);
}

std::unique_ptr<CompletionOutput> NewTextOutput(bool print_ids) {
  return std::make_unique<TextOutput>(print_ids);
}

}  // namespace polysketch
