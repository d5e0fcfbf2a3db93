#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <vector>

#include "clients/cpp/commands.h"
#include "clients/cpp/input.h"
#include "clients/cpp/input_rpc.h"
#include "clients/cpp/json.h"
#include "clients/cpp/score_by_depth.h"

namespace polysketch {
namespace {

struct ScoreOptions {
  InputOptions input;
  v1::ScoreRequest first;  // session fields
  int32_t chunk_tokens = 4096;
  bool far_mass = false;
  bool progress = false;
  DepthOptions depth;
};

struct ScoredTokens {
  std::vector<float> logprobs;
  std::vector<bool> greedy;
};

// The finish message of what has been scored, if the user cancels the rest.
v1::ScoreFinish PartialFinish(const std::vector<float>& logprobs, bool in_session, double seconds) {
  v1::ScoreFinish finish;
  double sum = 0;
  for (const float logprob : logprobs) sum += logprob;
  finish.set_tokens(static_cast<int64_t>(logprobs.size()) + (in_session ? 0 : 1));
  finish.set_logprob_sum(sum);
  finish.set_perplexity(std::exp(-sum / static_cast<double>(logprobs.size())));
  finish.mutable_timings()->set_total_seconds(seconds);
  return finish;
}

// Prints far masses: of each head, then of each layer by range of positions.
void PrintFarMass(const v1::ScoreFinish& finish) {
  struct Layer {
    int64_t queries = 0;
    double mass = 0;  // sum over the queries of the mean over the heads
    std::vector<double> heads;
  };
  std::map<int32_t, Layer> layers;
  std::map<int64_t, std::map<int32_t, double>> ranges;  // means over heads, by first position
  for (const v1::FarMass& range : finish.far_mass()) {
    Layer& layer = layers[range.layer()];
    layer.heads.resize(static_cast<size_t>(range.shares_size()));
    layer.queries += range.queries();
    const auto queries = static_cast<double>(range.queries());
    double sum = 0;
    for (int head = 0; head < range.shares_size(); ++head) {
      layer.heads[static_cast<size_t>(head)] += queries * range.shares(head);
      sum += range.shares(head);
    }
    const double mean = sum / range.shares_size();
    layer.mass += queries * mean;
    ranges[range.first()][range.layer()] = mean;
  }
  std::printf("\nfar mass\n%10s%10s  heads\n", "layer", "mean");
  for (const auto& [number, layer] : layers) {
    const auto queries = static_cast<double>(layer.queries);
    std::printf("%10d%10.4f ", number, layer.mass / queries);
    for (const double head : layer.heads) std::printf(" %.4f", head / queries);
    std::printf("\n");
  }
  std::printf("%10s%10s  layers\n", "from", "mean");
  for (const auto& [first, range] : ranges) {
    double sum = 0;
    for (const auto& [layer, mean] : range) sum += mean;
    std::printf("%10lld%10.4f ", static_cast<long long>(first),
                sum / static_cast<double>(range.size()));
    for (const auto& [layer, mean] : range) std::printf(" %.4f", mean);
    std::printf("\n");
  }
}

// finish_reason: empty for a score of the whole input.
void PrintResult(const v1::ScoreFinish& finish, const ScoredTokens& scored,
                 const char* finish_reason, bool json) {
  if (!json) {
    std::printf("tokens      %lld\nperplexity  %.6g\nlogprob     %.6g (sum)\nseconds     %.3f\n",
                static_cast<long long>(finish.tokens()), finish.perplexity(), finish.logprob_sum(),
                finish.timings().total_seconds());
    if (finish.far_mass_size() > 0) PrintFarMass(finish);
    return;
  }
  Json result;
  result["tokens"] = finish.tokens();
  result["perplexity"] = finish.perplexity();
  result["logprob_sum"] = finish.logprob_sum();
  if (*finish_reason != '\0') result["finish_reason"] = finish_reason;
  result["timings"] = MessageToJson(finish.timings());
  Json& array = result["logprobs"] = Json::array();
  for (const float logprob : scored.logprobs) array.push_back(FloatToJson(logprob));
  result["greedy"] = scored.greedy;
  for (const v1::FarMass& range : finish.far_mass()) {
    result["far_mass"].push_back(MessageToJson(range));
  }
  PrintJson(result);
}

int Score(ScoreOptions options, const CallOptions& call) {
  options.first.set_session(call.session);
  options.first.set_far_mass(options.far_mass);
  const InputRpc<v1::ScoreRequest, v1::ScoreResponse> rpc = {
      .method = &v1::PolySketch::Stub::Score,
      .chunk_tokens = static_cast<size_t>(options.chunk_tokens),
      .first = options.first};
  const auto start = std::chrono::steady_clock::now();
  ProgressLine progress("scoring", options.progress);
  ScoredTokens scored;
  v1::ScoreFinish finish;
  const int code =
      CallWithInput(call, options.input, rpc, &progress, [&](const v1::ScoreResponse& response) {
        const v1::ScoreLogprobs& part = response.logprobs();
        scored.logprobs.insert(scored.logprobs.end(), part.logprobs().begin(),
                               part.logprobs().end());
        scored.greedy.insert(scored.greedy.end(), part.greedy().begin(), part.greedy().end());
        if (response.has_finish()) finish = response.finish();
        return true;
      });
  if (code == kExitOk) PrintResult(finish, scored, "", call.json);
  if (code == kExitInterrupted && !scored.logprobs.empty()) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const bool in_session = !options.first.session().empty();
    PrintResult(PartialFinish(scored.logprobs, in_session, elapsed.count()), scored, "cancelled",
                call.json);
  }
  return code;
}

int ScoreOrByDepth(const ScoreOptions& options, const CallOptions& call) {
  const DepthOptions& depth = options.depth;
  if (const Status status = depth.Check(); !status.ok()) return ReportUsageError(status);
  if (!depth.by_depth) return Score(options, call);
  if (!call.session.empty() || options.first.has_expected_position()) {
    return ReportUsageError(InvalidArgument("--by-depth: expected no --session"));
  }
  if (options.far_mass)
    return ReportUsageError(InvalidArgument("--by-depth: expected no --far-mass"));
  return ScoreByDepth(depth, options.input, static_cast<size_t>(options.chunk_tokens),
                      options.progress, call);
}

}  // namespace

void AddScore(CommandLine* line) {
  const auto options = std::make_shared<ScoreOptions>();
  CLI::App* const command = AddCallCommand(
      line->app, "score", "Prints the perplexity of a text of any length.", line,
      [=] { return ScoreOrByDepth(*options, line->call); },
      "--json adds the log-probability of each token after the first, given all tokens before it,\n"
      "and whether the token is the one of greedy sampling.\n"
      "Ctrl-C prints the result of the tokens that are scored.\n"
      "--by-depth shows how much a text gains from what the model has read of it. Its standard\n"
      "errors take means of 512 tokens as independent values. Its result is also printed, up to\n"
      "where it is known, if the server ends a call; the exit status is 1 then.");
  options->input.AddText(command);
  options->input.AddTokens(command);
  AddNumber(command, "--chunk-tokens", "N",
            "Tokens of a request message, or 4 N bytes. Does not change the result.", 1, 1 << 20,
            &options->chunk_tokens);
  AddOption(command, "--session", "ID",
            "The input follows the tokens of this session, which stays as it is.",
            &line->call.session);
  AddOption(command, "--expected-position", "N", "Fails unless the session holds N tokens.",
            &options->first, &v1::ScoreRequest::set_expected_position);
  AddFlag(
      command, "--far-mass",
      "Adds the far mass: the share of the queries' denominators that comes from the state, by\n"
      "layer, head and range of positions.",
      &options->far_mass);
  AddFlag(command, "--progress", kProgressHelp, &options->progress);
  options->depth.AddTo(command);
}

}  // namespace polysketch
