#include "server/rpc/request_bytes.h"

#include <iterator>

#include "engine/request/events.h"
#include "engine/speculation/ngram_drafter.h"

namespace polysketch {
namespace {

// Of a prompt: the request, the engine's copy of it, and its history.
constexpr int64_t kPromptTokenBytes = 3 * sizeof(int32_t);
// Of the parameters of a choice: as they are stored, the sampler's, and the stop matcher's.
constexpr int64_t kParamCopies = 3;
// Of an output token that a choice keeps, to be continued or computed again: in a vector that
// doubles.
constexpr int64_t kOutputTokenBytes = 2 * sizeof(int32_t);
constexpr int64_t kRankedTextBytes = 32;  // of a token with its text

int64_t ParamBytes(const GenerateParams& params) {
  size_t bytes = sizeof(params) + params.stop_token_ids.size() * sizeof(int32_t) +
                 params.sampling.logit_bias.size() * sizeof(params.sampling.logit_bias[0]);
  for (const std::string& stop : params.stop) bytes += sizeof(stop) + stop.size();
  if (params.grammar) bytes += params.grammar->text.size();
  return static_cast<int64_t>(bytes);
}

}  // namespace

int64_t EngineRequestBytes(const GenerateRequest& request, int64_t default_draft_tokens,
                           int64_t default_max_tokens) {
  const GenerateParams& params = request.params;
  const int64_t prompt = std::ssize(request.prompt);
  const int64_t output = params.max_tokens.value_or(default_max_tokens);
  int64_t choice = kParamCopies * ParamBytes(params) + kOutputTokenBytes * output;
  if (params.draft_tokens.value_or(default_draft_tokens) > 0)
    choice += NgramDrafter::MemoryBytes(prompt);
  int64_t bytes = kPromptTokenBytes * prompt + params.best_of * choice;
  if (params.best_of > params.n) {
    const int64_t top = params.logprobs.value_or(0) * int64_t{sizeof(TokenLogprob)};
    bytes += params.best_of * output * (int64_t{sizeof(TokenEvent)} + kRankedTextBytes + top);
  }
  return bytes;
}

}  // namespace polysketch
