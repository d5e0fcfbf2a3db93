#include "engine/snapshot/generation_bytes.h"

#include "engine/sampler/sampling_params.h"
#include "engine/snapshot/fields.h"

namespace polysketch {
namespace {

template <typename Fields, typename G>
void Visit(Fields& fields, G& g) {
  auto& params = g.params;
  auto& sampling = params.sampling;
  fields(sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty,
         sampling.frequency_penalty, sampling.presence_penalty, sampling.top_k, sampling.logit_bias,
         sampling.seed, params.max_tokens);
  fields.Each(params.stop, [&](auto& stop) { fields(stop); });
  fields(params.stop_token_ids, params.logprobs, params.draft_tokens, params.ignore_eos,
         params.include_stop_in_output, params.echo);
  fields(g.seed, g.max_tokens, g.prompt_tokens, g.cached_tokens, g.generated, g.echoed, g.counts,
         g.logprob_sum, g.session, g.session_tokens, g.held, g.decoder.at_start, g.decoder.pending);
}

// Written after the other fields if best_of > 1 or a later field is there.
template <typename Fields, typename G>
void VisitChoices(Fields& fields, G& g) {
  fields(g.params.n, g.params.best_of);
  fields.Each(g.choices, [&](auto& choice) { fields(choice.sent, choice.ended); });
}

// In the place of the kind of a grammar: flags follow.
constexpr uint8_t kNoGrammar = 255;

// Flags of a generation, in a byte that is there if it is not 0. kRules: rules of its tokens
// follow.
constexpr uint8_t kClientStart = 1, kControlText = 2, kRules = 4;

bool HasRules(const GenerateParams& params) {
  return params.min_tokens > 0 || !params.sampling.allowed_token_ids.empty() ||
         !params.sampling.bad_words.empty();
}

uint8_t FlagsOf(const Generation& generation) {
  return static_cast<uint8_t>((generation.client_start ? kClientStart : 0) |
                              (generation.params.skip_special_tokens ? 0 : kControlText) |
                              (HasRules(generation.params) ? kRules : 0));
}

// Written after the flags with kRules. The output of a grammar is written with it.
template <typename Fields, typename G>
void VisitRules(Fields& fields, G& g) {
  fields(g.params.min_tokens, g.params.sampling.allowed_token_ids);
  fields.Each(g.params.sampling.bad_words, [&](auto& word) { fields(word); });
  if (!g.params.grammar) fields(g.output);
}

Status ReadGrammar(FieldReader& fields, Generation* generation) {
  uint8_t kind = 0;
  fields(kind);
  if (kind == kNoGrammar) return Status();
  if (kind > static_cast<uint8_t>(GrammarSource::Kind::kStructuralTag))
    return DataLoss("snapshot: generation: expected a kind of grammar, found ", int{kind});
  GrammarSource& grammar = generation->params.grammar.emplace();
  grammar.kind = static_cast<GrammarSource::Kind>(kind);
  fields(grammar.text, grammar.compact, generation->output);
  return Status();
}

}  // namespace

std::string GenerationBytes(const Generation& generation) {
  FieldWriter fields;
  Visit(fields, generation);
  const std::optional<GrammarSource>& grammar = generation.params.grammar;
  const uint8_t flags = FlagsOf(generation);
  const bool scored_later = generation.scored_from > 0 || grammar || flags != 0;
  if (generation.params.best_of > 1 || scored_later) VisitChoices(fields, generation);
  if (scored_later) fields(generation.scored_from);
  if (grammar)
    fields(static_cast<uint8_t>(grammar->kind), grammar->text, grammar->compact, generation.output);
  if (flags != 0) {
    if (!grammar) fields(kNoGrammar);
    fields(flags);
    if ((flags & kRules) != 0) VisitRules(fields, generation);
  }
  return std::move(fields).Take();
}

Result<Generation> ReadGeneration(std::string_view bytes) {
  FieldReader fields(bytes);
  Generation generation;
  Visit(fields, generation);
  GenerateParams& params = generation.params;
  const auto more = [&] { return fields.ok() && !fields.Finished(); };
  if (more()) {
    VisitChoices(fields, generation);
    const bool scored_later = more();
    if (scored_later) fields(generation.scored_from);
    if (more()) {
      PS_RETURN_IF_ERROR(ReadGrammar(fields, &generation));
      const bool flagged = more();
      uint8_t flags = 0;
      if (flagged) fields(flags);
      const bool ruled = (flags & kRules) != 0;
      if (ruled) VisitRules(fields, generation);
      if (flagged != (flags != 0) || flags > (kClientStart | kControlText | kRules) ||
          ruled != HasRules(params) || (!flagged && !params.grammar))
        return DataLoss("snapshot: generation: expected other fields");
      generation.client_start = (flags & kClientStart) != 0;
      params.skip_special_tokens = (flags & kControlText) == 0;
    }
    if ((params.best_of < 2 && !scored_later) || generation.choices.size() > kMaxChoices) {
      return DataLoss("snapshot: generation: expected 2 to ", kMaxChoices, " choices, found ",
                      generation.choices.size(), " of ", params.best_of);
    }
  }
  if (!fields.Finished()) return DataLoss("snapshot: generation: expected other fields");
  if (params.stop.size() > kMaxStopStrings) {
    return DataLoss("snapshot: generation: expected at most ", kMaxStopStrings,
                    " stop strings, found ", params.stop.size());
  }
  return generation;
}

}  // namespace polysketch
