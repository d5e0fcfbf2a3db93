#include <cstdio>
#include <utility>
#include <vector>

#include "clients/cpp/commands.h"
#include "clients/cpp/input.h"
#include "clients/cpp/input_rpc.h"
#include "clients/cpp/json.h"

namespace polysketch {
namespace {

struct ScoreOptions {
  CallOptions call;
  InputOptions input;
  int32_t chunk_tokens = 4096;
  bool progress = false;
};

void PrintResult(const v1::ScoreFinish& finish, const std::vector<float>& logprobs, bool json) {
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
  result["timings"] = MessageToJson(finish.timings());
  Json& array = result["logprobs"] = Json::array();
  for (const float logprob : logprobs) array.push_back(FloatToJson(logprob));
  PrintJson(result);
}

int Score(const ScoreOptions& options, InputFile* file) {
  const InputRpc<v1::ScoreRequest, v1::ScoreResponse> rpc = {
      .method = &v1::PolySketch::Stub::Score,
      .chunk_tokens = static_cast<size_t>(options.chunk_tokens)};
  ProgressLine progress("scoring", options.progress);
  std::vector<float> logprobs;
  v1::ScoreFinish finish;
  const int code = CallWithInput(options.call, options.input, file, rpc, &progress,
                                 [&](const v1::ScoreResponse& response) {
                                   const auto& values = response.logprobs().logprobs();
                                   logprobs.insert(logprobs.end(), values.begin(), values.end());
                                   if (response.has_finish()) finish = response.finish();
                                 });
  if (code == kExitOk) PrintResult(finish, logprobs, options.call.json);
  return code;
}

}  // namespace

int RunScore(Arguments args, CallOptions call) {
  ScoreOptions run;
  run.call = std::move(call);
  Options options(
      "score (--prompt TEXT | --prompt-file F | --prompt-tokens F) [options]",
      "Perplexity of a text of any length; with --json also the log-probability of each token\n"
      "given all before it (one fewer than there are tokens).");
  run.input.AddText(&options);
  run.input.AddTokens(&options);
  options.Value("--chunk-tokens", "N",
                "send N ids (4 N bytes of text) at a time; never changes the result; default 4096",
                &run.chunk_tokens);
  options.Switch("--progress", "show how far it is, also without a terminal", &run.progress);
  if (const auto exit_code = ParseArguments(&options, &run.call, &args)) return *exit_code;

  if (run.chunk_tokens < 1 || run.chunk_tokens > 1 << 20) {
    return ReportUsageError(
        InvalidArgument("--chunk-tokens: expected 1 to 1048576, found ", run.chunk_tokens));
  }
  if (const Status status = run.input.Check(); !status.ok()) return ReportUsageError(status);
  const auto file = run.input.Open();
  if (!file.ok()) return ReportUsageError(file.status());
  return Score(run, file->get());
}

}  // namespace polysketch
