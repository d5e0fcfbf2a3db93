// What a step processes.
#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "base/memory_limit.h"
#include "engine/scheduler/scheduler.h"

namespace polysketch {

bool Scheduler::Step(Clock::time_point now) {
  const Clock::time_point copies_begin = context_.now();
  const bool copied = CopyStates(now);
  GrowStates(now);
  const Clock::time_point begin = context_.now();
  const StepPlan plan = PlanStep(now, begin - copies_begin);
  if (plan.segments.empty()) return copied;

  executor_.Run(plan.segments);
  ++steps_;
  for (Slot* slot : plan.slots) {
    if (slot->sequence->ended()) continue;
    if (slot->missing && slot->sequence->missing() == 0) {
      const Clock::time_point then = context_.now();
      slot->settled = then + (then - slot->admitted);
    }
    slot->missing = slot->sequence->missing() > 0;
    slot->sequence->MaybeReportProgress();
    Fork(slot, now);
  }
  const Clock::time_point end = context_.now();
  budget_.OnStep(plan.decode_tokens, plan.chunks, plan.folds, end - begin);
  context_.observer->OnStep(static_cast<int>(plan.segments.size()), plan.prefill_tokens,
                            plan.decode_tokens, end - now);
  StepParts parts = executor_.parts();
  parts.copying = begin - copies_begin;
  context_.observer->OnStepParts(parts);
  return true;
}

Scheduler::StepPlan Scheduler::PlanStep(Clock::time_point now, std::chrono::nanoseconds copying) {
  Candidates shares = FindCandidates(now);
  const std::vector<int64_t> tokens = ShareTokens(&shares, copying);
  StepPlan plan;
  size_t growth = 0;  // bytes of KV caches
  // Decoding rows first: their tokens are sent before the logits of long scores are computed.
  for (const bool decoding : {true, false}) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      Slot* slot = shares.slots[i];
      if (shares.candidates[i].decoding != decoding || tokens[i] == 0) continue;
      const int64_t count = FitReservation(slot, tokens[i]);
      if (count == 0 || !MemoryFor(slot, count, &growth)) continue;
      slot->last_served = now;
      if (!decoding) {
        const int64_t middle = slot->state().position() + count / 2;
        plan.chunks.push_back({count, model_->KeysRead(middle)});
        plan.folds += slot->state().FoldsNext();
      }
      plan.segments.push_back({slot->sequence.get(), slot->own.state.get(), count});
      plan.slots.push_back(slot);
      (decoding ? plan.decode_tokens : plan.prefill_tokens) += static_cast<int>(count);
    }
  }
  return plan;
}

Scheduler::Candidates Scheduler::FindCandidates(Clock::time_point now) {
  Candidates shares;
  const int64_t max_drafts = MaxDrafts();
  for (Slot& slot : running_) {
    Sequence& sequence = *slot.sequence;
    if (sequence.stream().Full() || sequence.ended() || slot.copying()) continue;
    // The drafts after the next token must be removable.
    const int64_t removable = slot.state().Removable(slot.state().position() + 1);
    const int64_t ready = sequence.ReadyTokens(std::min(max_drafts, removable));
    if (ready == 0 || sequence.ended()) continue;
    shares.slots.push_back(&slot);
    shares.candidates.push_back(
        {.ready = ready,
         .decoding = sequence.decoding(),
         .priority = sequence.priority(),
         .level = AgedLevel(slot.level, now - slot.last_served, options_.aging),
         .last_turn = slot.last_turn});
  }
  RaiseStarved(&shares, now);
  return shares;
}

void Scheduler::RaiseStarved(Candidates* shares, Clock::time_point now) const {
  std::map<std::string_view, Clock::time_point> served;  // the last prompt of each client
  for (size_t i = 0; i < shares->slots.size(); ++i) {
    if (shares->candidates[i].decoding) continue;
    const Slot& slot = *shares->slots[i];
    Clock::time_point& last = served[slot.sequence->client()];
    last = std::max(last, slot.last_served);
  }
  if (served.size() < 2) return;
  for (size_t i = 0; i < shares->slots.size(); ++i) {
    BatchBuilder::Candidate& candidate = shares->candidates[i];
    if (candidate.decoding) continue;
    const Clock::time_point last = served.at(shares->slots[i]->sequence->client());
    if (now - last > options_.slice) candidate.priority = std::numeric_limits<int>::max();
  }
}

int64_t Scheduler::MaxDrafts() const {
  const int64_t decoding = std::count_if(running_.begin(), running_.end(), [](const Slot& slot) {
    return slot.sequence->decoding() && !slot.sequence->stream().Full();
  });
  if (decoding == 0) return 0;
  const int64_t rows = std::min<int64_t>(kMaxDraftRows, context_.max_step_tokens);
  return std::max<int64_t>(rows / decoding - 1, 0);
}

void Scheduler::FitToBlock(const SequenceState& state, int64_t max_tokens,
                           BatchBuilder::Candidate* candidate) const {
  const int64_t left = state.TokensToFold();
  if (left == 0) return;
  if (state.FoldsNext()) candidate->surcharge = budget_.FoldTime();
  const int64_t steps = (left + max_tokens - 1) / max_tokens;
  candidate->ready = std::min(candidate->ready, (left + steps - 1) / steps);
}

std::vector<int64_t> Scheduler::Times(Candidates* shares) {
  std::map<std::string_view, size_t> indices;  // of clients and parts
  std::vector<int64_t> times;
  for (size_t i = 0; i < shares->slots.size(); ++i) {
    const Sequence& sequence = *shares->slots[i]->sequence;
    const Turns::Time time = turns_.Of(sequence.principal());
    const auto index = [&](const std::string& who, int64_t of) {
      const auto [at, added] = indices.try_emplace(who, times.size());
      if (added) times.push_back(of);
      return at->second;
    };
    shares->candidates[i].client = index(sequence.client(), time.principal);
    shares->candidates[i].part = static_cast<int64_t>(index(sequence.part(), time.part));
  }
  return times;
}

std::vector<int64_t> Scheduler::ShareTokens(Candidates* shares, std::chrono::nanoseconds copying) {
  auto& [slots, candidates] = *shares;
  std::vector<int64_t> times = Times(shares);
  int64_t decode_rows = 0;
  for (const auto& candidate : candidates) decode_rows += candidate.decoding ? candidate.ready : 0;
  const double prompt_time = budget_.PromptTime(decode_rows, copying);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (candidates[i].decoding) continue;
    candidates[i].cost = budget_.TokenTime(model_->KeysRead(slots[i]->state().position()));
    const int64_t tokens = std::max(BatchBuilder::kMinTokens,
                                    BatchBuilder::Affordable(prompt_time, candidates[i].cost));
    if (tokens < context_.max_step_tokens) FitToBlock(slots[i]->state(), tokens, &candidates[i]);
  }
  // The clients of sequences that wait for a slot demand tokens too.
  std::vector<const Sequence*> working;
  working.reserve(slots.size());
  for (const Slot* slot : slots) working.push_back(slot->sequence.get());
  for (const Waiting& waiting : waiting_.list()) {
    if (!waiting.sequence->idle()) working.push_back(waiting.sequence.get());
  }
  turns_.AdvanceTo(working,
                   [](const Sequence* one) -> const Principal& { return one->principal(); });

  std::vector<int64_t> tokens = batch_builder_.Share(candidates, prompt_time, times);
  for (size_t i = 0; i < tokens.size(); ++i) {
    slots[i]->last_turn = candidates[i].last_turn;
    turns_.Charge(slots[i]->sequence->principal(), tokens[i]);
  }
  return tokens;
}

bool Scheduler::MemoryFor(Slot* slot, int64_t tokens, size_t* growth) {
  if (!states_.kv_kind()) return true;
  const int64_t length = slot->state().position() + tokens;
  const size_t more =
      states_.BytesFor(length) - states_.BytesFor(length - tokens) + slot->state().BytesToCopy();
  if (more == 0) return true;
  *growth += more;
  if (MemoryFits(*growth)) return true;
  *growth -= more;
  slot->sequence->End(FinishReason::kError,
                      ResourceExhausted("no memory for a state of ", length,
                                        " tokens: the process has a limit (ulimit -v)"));
  return false;
}

bool Scheduler::CopyStates(Clock::time_point now) {
  const bool awaited = std::any_of(running_.begin(), running_.end(), [](const Slot& slot) {
    return slot.sequence->decoding() && !slot.sequence->idle() && !slot.copying();
  });
  const auto max = awaited && options_.step_budget.count() > 0
                       ? std::chrono::nanoseconds(options_.step_budget) / 2
                       : std::chrono::nanoseconds::max();
  const Clock::time_point start = context_.now();
  std::chrono::nanoseconds taken{0}, longest{0};
  bool copied = false;
  // Returns whether there is time for more.
  const auto copy = [&](const auto& part) {
    if (copied && taken + longest > max) return false;
    part();
    copied = true;
    const std::chrono::nanoseconds before = taken;
    taken = context_.now() - start;
    longest = std::max(longest, taken - before);
    return true;
  };
  for (Slot& slot : running_) {
    while (slot.copying()) {
      if (!copy([&] { CopyParts(&slot, now); })) return true;
    }
  }
  for (Waiting& waiting : waiting_) {
    while (waiting.sequence->ended() && waiting.sequence->storing()) {
      if (!copy([&] { SaveParts(waiting.sequence.get(), *waiting.own.state); })) return true;
    }
  }
  return copied;
}

void Scheduler::SaveParts(Sequence* sequence, const SequenceState& state) {
  sequence->StoreState(state, model_->pool());
  const Status status = model_->status();
  if (!status.ok() && sequence->ended()) sequence->EndInstead(status);
}

void Scheduler::CopyParts(Slot* slot, Clock::time_point now) {
  Sequence& sequence = *slot->sequence;
  if (slot->own.loader == nullptr) return SaveParts(&sequence, slot->state());
  const Status status = slot->own.loader->Continue(&slot->state(), model_->pool());
  if (!status.ok()) return sequence.End(FinishReason::kError, status);
  if (!slot->own.loader->done()) return;
  const std::unique_ptr<StateLoader> loader = std::move(slot->own.loader);
  if (loader->from_outside()) sequence.OnLoaded(&slot->state());
  Fork(slot, now);
}

}  // namespace polysketch
