#include "engine/snapshot/check.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "engine/sampler/sampling_params.h"
#include "engine/sampler/stop_matcher.h"

namespace polysketch {
namespace {

// More tokens than any sequence has, and few enough that sums of counts do not overflow.
constexpr int64_t kMaxTokens = int64_t{1} << 48;

bool IsCount(int64_t value, int64_t max) { return value >= 0 && value <= max; }

Status CheckTokens(std::string_view field, std::span<const int32_t> tokens, int vocab_size) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size) {
      return InvalidArgument("snapshot: ", field, ": expected ids in [0, ", vocab_size, "), found ",
                             token);
    }
  }
  return Status();
}

Status CheckCounts(const Generation& generation, int vocab_size) {
  int64_t total = 0;
  int32_t last = -1;
  for (const auto& [token, count] : generation.counts) {
    if (token <= last || token >= vocab_size || count < 1) {
      return InvalidArgument("snapshot: counts: expected ids in order with their counts, found ",
                             token, " ", count, " times");
    }
    last = token;
    total += count;
  }
  const int64_t expected = generation.params.sampling.has_penalties() ? generation.generated : 0;
  if (total != expected) {
    return InvalidArgument("snapshot: counts: expected ", expected, " in all, found ", total);
  }
  return Status();
}

Status CheckChoices(const Generation& generation) {
  const GenerateParams& params = generation.params;
  const std::vector<MigratedChoice>& choices = generation.choices;
  if (params.best_of > 1 && generation.generated > 0) {
    return InvalidArgument("snapshot: generation: expected no tokens before several choices part");
  }
  if (choices.empty()) return Status();
  const bool ranked = params.best_of > params.n;  // nothing is sent before every choice has ended
  bool fit = params.best_of > 1 && std::ssize(choices) == params.best_of;
  for (const MigratedChoice& choice : choices) {
    fit = fit && IsCount(choice.sent, ranked ? 0 : generation.max_tokens);
    fit = fit && !(ranked && choice.ended);
  }
  if (fit) return Status();
  return InvalidArgument("snapshot: choices: expected what was sent of each of ", params.best_of,
                         ", found ", choices.size());
}

Status CheckGeneration(const Generation& generation, int64_t pending,
                       const SnapshotLimits& limits) {
  PS_RETURN_IF_ERROR(ValidateGenerate(generation.params, limits.vocab_size, limits.max_new_tokens,
                                      limits.has_tokenizer));
  const bool counts_fit = IsCount(generation.max_tokens, limits.max_new_tokens) &&
                          IsCount(generation.generated, generation.max_tokens) &&
                          IsCount(generation.prompt_tokens, kMaxTokens) &&
                          IsCount(generation.cached_tokens, kMaxTokens) &&
                          IsCount(generation.echoed, pending) &&
                          IsCount(generation.scored_from, pending);
  // A completion that generated all its tokens has ended, and one that is decoding has no pending
  // token that is still to be returned.
  if (!counts_fit || (generation.max_tokens > 0 && generation.generated == generation.max_tokens) ||
      (generation.generated > 0 && generation.echoed != pending)) {
    return InvalidArgument("snapshot: generation: expected counts that fit each other, found ",
                           generation.generated, " of ", generation.max_tokens, " tokens, ",
                           generation.echoed, " of ", pending, " echoed");
  }
  if (!(generation.logprob_sum < std::numeric_limits<double>::infinity())) {
    return InvalidArgument("snapshot: logprob_sum: expected a number, found ",
                           generation.logprob_sum);
  }
  // Without a grammar: what bad words need, of which the longest has one token more.
  int64_t output = generation.params.grammar ? generation.generated : 0;
  if (!generation.params.grammar) {
    for (const std::vector<int32_t>& word : generation.params.sampling.bad_words)
      output = std::max(output, std::min(std::ssize(word) - 1, generation.generated));
  }
  if (std::ssize(generation.output) != output) {
    return InvalidArgument("snapshot: output: expected ", output, " tokens, found ",
                           generation.output.size());
  }
  PS_RETURN_IF_ERROR(CheckTokens("output", generation.output, limits.vocab_size));
  PS_RETURN_IF_ERROR(CheckChoices(generation));
  PS_RETURN_IF_ERROR(CheckCounts(generation, limits.vocab_size));
  StopMatcher matcher(generation.params.stop, generation.params.include_stop_in_output);
  std::string out;
  matcher.Append(generation.held, &out, /*may_end=*/false);
  if (!out.empty()) {
    return InvalidArgument("snapshot: held text: expected the beginning of a stop string");
  }
  if (!IsUtf8Beginning(generation.decoder.pending)) {
    return InvalidArgument("snapshot: partial character: expected the beginning of one");
  }
  return Status();
}

}  // namespace

Status CheckSnapshot(const Snapshot& snapshot, const SnapshotLimits& limits) {
  if (snapshot.position() > kMaxTokens) {
    return InvalidArgument("snapshot: position: expected at most ", kMaxTokens, ", found ",
                           snapshot.position());
  }
  if (snapshot.pending.empty()) {
    return InvalidArgument("snapshot: pending: expected at least one token, found none");
  }
  PS_RETURN_IF_ERROR(CheckTokens("pending", snapshot.pending, limits.vocab_size));
  PS_RETURN_IF_ERROR(CheckTokens("tail", snapshot.history.tail, limits.vocab_size));
  if (snapshot.history.tail.size() > TokenHistory::kTail) {
    return InvalidArgument("snapshot: tail: expected at most ", TokenHistory::kTail,
                           " tokens, found ", snapshot.history.tail.size());
  }
  if (snapshot.history.seen.words().size() != TokenSet(limits.vocab_size).words().size()) {
    return InvalidArgument("snapshot: seen: expected a set of ", limits.vocab_size, " ids");
  }
  int32_t largest = -1;
  snapshot.history.seen.ForEach([&](int32_t token) { largest = token; });
  PS_RETURN_IF_ERROR(CheckTokens("seen", {&largest, largest < 0 ? 0u : 1u}, limits.vocab_size));
  if (!snapshot.generation) return Status();
  return CheckGeneration(*snapshot.generation, static_cast<int64_t>(snapshot.pending.size()),
                         limits);
}

}  // namespace polysketch
