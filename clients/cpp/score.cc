#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "clients/cpp/commands.h"
#include "clients/cpp/input.h"
#include "clients/cpp/input_rpc.h"
#include "clients/cpp/json.h"

namespace polysketch {
namespace {

struct ScoreOptions {
  InputOptions input;
  int32_t chunk_tokens = 4096;
  bool progress = false;
};

// The finish message of what has been scored, if the user cancels the rest.
v1::ScoreFinish PartialFinish(const std::vector<float>& logprobs, double seconds) {
  v1::ScoreFinish finish;
  double sum = 0;
  for (const float logprob : logprobs) sum += logprob;
  finish.set_tokens(static_cast<int64_t>(logprobs.size()) + 1);
  finish.set_logprob_sum(sum);
  finish.set_perplexity(std::exp(-sum / static_cast<double>(logprobs.size())));
  finish.mutable_timings()->set_total_seconds(seconds);
  return finish;
}

// finish_reason: empty for a score of the whole input.
void PrintResult(const v1::ScoreFinish& finish, const std::vector<float>& logprobs,
                 const char* finish_reason, bool json) {
  if (!json) {
    std::printf("tokens      %lld\nperplexity  %.6g\nlogprob     %.6g (sum)\nseconds     %.3f\n",
                static_cast<long long>(finish.tokens()), finish.perplexity(), finish.logprob_sum(),
                finish.timings().total_seconds());
    return;
  }
  Json result;
  result["tokens"] = finish.tokens();
  result["perplexity"] = finish.perplexity();
  result["logprob_sum"] = finish.logprob_sum();
  if (*finish_reason != '\0') result["finish_reason"] = finish_reason;
  result["timings"] = MessageToJson(finish.timings());
  Json& array = result["logprobs"] = Json::array();
  for (const float logprob : logprobs) array.push_back(FloatToJson(logprob));
  PrintJson(result);
}

int Score(const ScoreOptions& options, const CallOptions& call) {
  const InputRpc<v1::ScoreRequest, v1::ScoreResponse> rpc = {
      .method = &v1::PolySketch::Stub::Score,
      .chunk_tokens = static_cast<size_t>(options.chunk_tokens)};
  const auto start = std::chrono::steady_clock::now();
  ProgressLine progress("scoring", options.progress);
  std::vector<float> logprobs;
  v1::ScoreFinish finish;
  const int code =
      CallWithInput(call, options.input, rpc, &progress, [&](const v1::ScoreResponse& response) {
        const auto& values = response.logprobs().logprobs();
        logprobs.insert(logprobs.end(), values.begin(), values.end());
        if (response.has_finish()) finish = response.finish();
      });
  if (code == kExitOk) PrintResult(finish, logprobs, "", call.json);
  if (code == kExitInterrupted && !logprobs.empty()) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    PrintResult(PartialFinish(logprobs, elapsed.count()), logprobs, "cancelled", call.json);
  }
  return code;
}

}  // namespace

void AddScore(CommandLine* line) {
  const auto options = std::make_shared<ScoreOptions>();
  CLI::App* const command = AddCallCommand(
      line->app, "score", "Prints the perplexity of a text of any length.", line,
      [=] { return Score(*options, line->call); },
      "--json adds the log-probability of each token after the first, given all tokens before it.\n"
      "Ctrl-C prints the result of the tokens that are scored.");
  options->input.AddText(command);
  options->input.AddTokens(command);
  AddNumber(command, "--chunk-tokens", "N",
            "Tokens of a request message, or 4 N bytes. Does not change the result.", 1, 1 << 20,
            &options->chunk_tokens);
  AddFlag(command, "--progress", kProgressHelp, &options->progress);
}

}  // namespace polysketch
