#include "clients/cpp/score_by_depth.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <span>
#include <string>
#include <utility>

#include "clients/cpp/depth_losses.h"
#include "clients/cpp/depth_report.h"
#include "clients/cpp/fresh_windows.h"
#include "clients/cpp/input_rpc.h"
#include "clients/cpp/terminal.h"
#include "clients/cpp/window_scorer.h"

namespace polysketch {
namespace {

constexpr int64_t kDefaultWindow = 4096;
// A window is one message, which servers take by default.
constexpr int64_t kMaxWindow = 1 << 18;

WindowShape Shape(const DepthOptions& options) {
  const int64_t length = options.window.value_or(kDefaultWindow);
  return {.length = length, .warm_up = options.warm_up.value_or(length / 2)};
}

Status ParseEdges(const std::string& text, std::vector<int64_t>* edges) {
  edges->clear();
  bool good = true;
  for (size_t begin = 0; good && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int64_t edge = 0;
    good = ParseValue(text.substr(begin, end - begin), &edge).ok() &&
           edge > (edges->empty() ? -1 : edges->back());
    edges->push_back(edge);
    begin = end + 1;
  }
  if (good && edges->size() >= 2) return Status();
  return InvalidArgument("expected two or more increasing numbers of tokens, as in 0,4096,65536, ",
                         "found '", text, "'");
}

class DepthScore {
 public:
  DepthScore(const DepthOptions& options, const CallOptions& call)
      : edges_(options.edges.empty() ? DefaultDepthEdges() : options.edges),
        shape_(Shape(options)),
        call_(call),
        losses_(edges_),
        cutter_(shape_),
        scorer_(call, options.concurrency,
                [this](const FreshWindow& window, const std::vector<double>& fresh) {
                  AddLosses(window, fresh);
                }) {}

  // Returns the exit status.
  int Run(const InputOptions& input, size_t chunk_tokens, bool show_progress);

 private:
  // Takes results of the deep score. Returns whether more are wanted.
  bool OnResponse(const v1::ScoreResponse& response);
  // Scores what counts within the edges. Returns false if the score is to end.
  bool Submit(std::vector<FreshWindow> windows);
  void AddLosses(const FreshWindow& window, const std::vector<double>& fresh);
  // After the deep score: waits for the last windows. Returns the exit status.
  int FinishWindows();
  // Reports an error on stderr, if one ended the score besides the deep call's own.
  int Fail(const std::string& error) const;
  void Print(const char* finish_reason) const;

  const std::vector<int64_t> edges_;
  const WindowShape shape_;
  const CallOptions& call_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<std::string> protocol_error_;
  DepthLosses losses_;  // of the thread that scorer_ calls back, until it is stopped or finished
  WindowCutter cutter_;
  WindowScorer scorer_;  // last: its threads use the members above
};

int DepthScore::Run(const InputOptions& input, size_t chunk_tokens, bool show_progress) {
  InputRpc<v1::ScoreRequest, v1::ScoreResponse> rpc = {.method = &v1::PolySketch::Stub::Score,
                                                       .chunk_tokens = chunk_tokens};
  rpc.first.set_return_tokens(true);
  ProgressLine progress("scoring", show_progress);
  int code = CallWithInput(call_, input, rpc, &progress, [this](const v1::ScoreResponse& response) {
    return OnResponse(response);
  });
  if (code == kExitOk) code = FinishWindows();
  scorer_.Stop();
  if (code == kExitOk) {
    Print("");
  } else if (code != kExitUsage && losses_.Total().tokens > 0) {
    Print(code == kExitInterrupted ? "cancelled" : "error");
  }
  return code;
}

bool DepthScore::OnResponse(const v1::ScoreResponse& response) {
  const v1::ScoreLogprobs& part = response.logprobs();
  if (part.tokens_size() != part.logprobs_size()) {
    protocol_error_ = "the server returns no token ids; is it older than this client?";
    return false;
  }
  const int64_t room = edges_.back() - cutter_.text_tokens();
  const auto count = static_cast<size_t>(std::min<int64_t>(room, part.logprobs_size()));
  return Submit(cutter_.Append(std::span(part.tokens().data(), count),
                               std::span(part.logprobs().data(), count))) &&
         cutter_.text_tokens() < edges_.back();
}

bool DepthScore::Submit(std::vector<FreshWindow> windows) {
  for (FreshWindow& window : windows) {
    const int64_t end = window.first + std::ssize(window.deep);
    if (end <= edges_.front()) continue;
    if (!scorer_.Submit(std::move(window))) return false;
  }
  return true;
}

void DepthScore::AddLosses(const FreshWindow& window, const std::vector<double>& fresh) {
  for (size_t i = 0; i < fresh.size(); ++i) {
    losses_.Add(window.first + static_cast<int64_t>(i), window.deep[i], fresh[i]);
  }
}

int DepthScore::FinishWindows() {
  if (Interrupted()) return Fail("interrupted");
  if (protocol_error_) return Fail(*protocol_error_);
  const int64_t tokens = cutter_.text_tokens();
  if (!scorer_.error() && tokens <= std::max(shape_.length + 1, edges_.front())) {
    return ReportUsageError(
        InvalidArgument("--by-depth: expected a text, or a last edge, of more than ",
                        std::max(shape_.length + 1, edges_.front()),
                        " tokens (one window, and the first edge), ", "found ", tokens));
  }
  {
    const CancelOnInterrupt cancel_on_interrupt([this] { scorer_.Stop(); });
    if (Submit(cutter_.Finish())) scorer_.Finish();
  }
  if (const auto error = scorer_.error()) return Fail(*error);
  return Interrupted() ? Fail("interrupted") : kExitOk;
}

int DepthScore::Fail(const std::string& error) const {
  std::cerr << "polysketch: " << TerminalText(STDERR_FILENO, error) << "\n";
  return Interrupted() ? kExitInterrupted : kExitFailed;
}

void DepthScore::Print(const char* finish_reason) const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const DepthReport report = {
      .shape = shape_, .seconds = elapsed.count(), .finish_reason = finish_reason};
  if (call_.json) {
    PrintJson(DepthJson(losses_, report));
  } else {
    PrintDepthTable(losses_, report);
  }
}

}  // namespace

void DepthOptions::AddTo(CLI::App* command) {
  SetOptionGroup(command, "Loss by depth");
  AddFlag(command, "--by-depth",
          "Prints nats a token by depth, the number of tokens before the token, beside\n"
          "the same tokens from fresh starts, in place of the perplexity.",
          &by_depth);
  AddOption(command, "--window", "N",
            "Tokens that a fresh start reads. Default: 4096. A token of the text counts\n"
            "in one window.",
            &window);
  AddOption(command, "--warm-up", "N",
            "First tokens of a window that do not count, because too few tokens precede\n"
            "them there: windows overlap by N. Default: half a window. 0: windows follow\n"
            "each other, and all of their tokens count.",
            &warm_up);
  AddOption(command, "--edges", "N,N,...",
            "Bounds of the buckets of depth. The text is read to the last one. Default:\n"
            "1, 512 and its doubles, to the end of the text.",
            [this](const std::string& text) { return ParseEdges(text, &edges); });
  AddNumber(command, "--concurrency", "N", "Windows in flight beside the text as a whole.", 1, 1024,
            &concurrency);
}

Status DepthOptions::Check() const {
  if (!by_depth && (window || warm_up || !edges.empty())) {
    return InvalidArgument("--window, --warm-up and --edges: expected with --by-depth only");
  }
  const WindowShape shape = Shape(*this);
  if (shape.length < 2 || shape.length > kMaxWindow) {
    return InvalidArgument("--window: expected a number from 2 to ", kMaxWindow, ", found ",
                           shape.length);
  }
  if (shape.warm_up < 0 || shape.warm_up >= shape.length) {
    return InvalidArgument("--warm-up: expected a number from 0 to ", shape.length - 1,
                           ", less than a window, found ", shape.warm_up);
  }
  return Status();
}

int ScoreByDepth(const DepthOptions& options, const InputOptions& input, size_t chunk_tokens,
                 bool show_progress, const CallOptions& call) {
  return DepthScore(options, call).Run(input, chunk_tokens, show_progress);
}

}  // namespace polysketch
