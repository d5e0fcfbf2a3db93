#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace polysketch {

Scheduler::Scheduler(LanguageModel* model, const SequenceContext& context,
                     const SchedulerOptions& options)
    : context_(context),
      options_(options),
      model_(model),
      states_(model, options.slot_memory, options.preempted_memory),
      budget_(options.step_budget),
      batch_builder_(context.max_step_tokens),
      executor_(model, context.max_step_tokens, options.sampling_threads,
                options.batch_notifications),
      waiting_(options.aging) {
  states_.Fill();
}

void Scheduler::Add(std::unique_ptr<Sequence> sequence) {
  waiting_.Add({.sequence = std::move(sequence), .since = context_.now()});
}

void Scheduler::End(RequestId id, FinishReason reason, const Status& status) {
  ForEach([&](Sequence& sequence) {
    if (sequence.id() == id) sequence.End(reason, status);
  });
  Sweep();
}

void Scheduler::EndAll(FinishReason reason, const Status& status) {
  ForEach([&](Sequence& sequence) { sequence.End(reason, status); });
  Sweep();
}

void Scheduler::MigrateAll() {
  ForEach([](Sequence& sequence) { sequence.Migrate(); });
  Sweep();
}

bool Scheduler::Tick() {
  const Clock::time_point now = context_.now();
  EndDue(now);
  Admit(now);
  bool stepped = Step(now);
  // One that lacks input is found to lack it when a step is composed: its slot is for another then.
  while (!stepped && Admit(now)) stepped = Step(now);
  const bool swept = Sweep();  // room for a waiting one
  return stepped || swept;
}

Scheduler::Counts Scheduler::counts() const {
  Counts counts;
  counts.running = running();
  for (const Slot& slot : running_) {
    counts.state_bytes += slot.state->bytes();
    counts.idle += slot.sequence->idle();
  }
  for (const Waiting& waiting : waiting_.list()) {
    if (waiting.state == nullptr) {
      ++counts.waiting;
      if (waiting.source == nullptr) counts.waiting_tokens += waiting.sequence->UnreadTokens();
    } else {
      counts.preempted_bytes += waiting.state->bytes();
      ++counts.preempted;
      counts.able += !waiting.sequence->idle();
    }
  }
  return counts;
}

Clock::time_point Scheduler::StallDeadline(const Sequence& sequence) const {
  Clock::time_point earliest = Clock::time_point::max();
  if (const auto since = sequence.stream().full_since())
    earliest = *since + options_.stall_deadline;
  if (const auto since = sequence.starved_since())
    earliest = std::min(earliest, *since + options_.stall_deadline);
  return earliest;
}

Clock::time_point Scheduler::NextDeadline() const {
  Clock::time_point earliest = Clock::time_point::max();
  ForEach([&](const Sequence& sequence) {
    earliest = std::min({earliest, sequence.deadline(), StallDeadline(sequence)});
  });
  return earliest;
}

void Scheduler::EndDue(Clock::time_point now) {
  ForEach([&](Sequence& sequence) {
    if (sequence.deadline() <= now) {
      sequence.End(FinishReason::kDeadline,
                   Status(Code::kDeadlineExceeded, "the request's deadline has passed"));
    }
    if (StallDeadline(sequence) > now) return;
    const auto limit =
        std::chrono::duration_cast<std::chrono::milliseconds>(options_.stall_deadline).count();
    const char* what =
        sequence.starved_since() ? "the client sent no input" : "the client read nothing";
    sequence.End(FinishReason::kStalled,
                 Status(Code::kAborted, StrCat(what, " for ", limit, " ms")));
  });
  Sweep();
}

bool Scheduler::GrowReservation(Slot* slot, int64_t tokens) {
  if (!states_.growing()) return true;
  const size_t needed = states_.BytesFor(slot->state->position() + tokens);
  if (needed <= slot->reserved) return true;
  if (!states_.Reserve(needed - slot->reserved)) {
    slot->sequence->End(
        FinishReason::kError,
        ResourceExhausted("no memory for a state of ", slot->state->position() + tokens,
                          " tokens: ", states_.reserved(), " of ", states_.limit(),
                          " bytes are taken"));
    return false;
  }
  slot->reserved = needed;
  return true;
}

int64_t Scheduler::MaxDrafts() const {
  int64_t decoding = 0;
  for (const Slot& slot : running_) {
    decoding += slot.sequence->decoding() && !slot.sequence->stream().Full();
  }
  if (decoding == 0) return 0;
  const int64_t rows = std::min<int64_t>(kMaxDraftRows, context_.max_step_tokens);
  return std::max<int64_t>(rows / decoding - 1, 0);
}

std::vector<Scheduler::Share> Scheduler::Candidates(Clock::time_point now) {
  std::vector<Share> shares;
  const int64_t max_drafts = MaxDrafts();
  const int64_t block = model_->block();
  for (Slot& slot : running_) {
    Sequence& sequence = *slot.sequence;
    if (sequence.stream().Full() || sequence.ended() || sequence.storing()) continue;
    // A segment whose end may be taken back stays in the block of its first token: a block that
    // was folded is no longer known token by token.
    const int64_t in_block = block == 0 ? max_drafts : block - 1 - slot.state->position() % block;
    const int64_t ready = sequence.ReadyTokens(std::min(max_drafts, in_block));
    if (ready == 0 || sequence.ended()) continue;
    const int level = AgedLevel(slot.level, now - slot.last_served, options_.aging);
    shares.push_back({&slot,
                      {.ready = ready,
                       .decoding = sequence.decoding(),
                       .level = level,
                       .last_turn = slot.last_turn}});
  }
  return shares;
}

bool Scheduler::BeginsWithFold(const SequenceState& state) const {
  const int64_t block = model_->block();
  return block > 0 && state.position() > 0 && state.position() % block == 0;
}

void Scheduler::FitToBlock(const Slot& slot, int64_t most,
                           BatchBuilder::Candidate* candidate) const {
  const int64_t block = model_->block();
  if (block == 0) return;
  const SequenceState& state = *slot.state;
  if (BeginsWithFold(state)) candidate->surcharge = budget_.FoldTokens();
  const int64_t left = block - state.position() % block;
  const int64_t steps = (left + most - 1) / most;
  int64_t& ready = candidate->ready;
  ready = std::min(ready, (left + steps - 1) / steps);
}

std::vector<int64_t> Scheduler::ShareTokens(std::vector<Share>* shares) {
  std::map<std::string_view, size_t> indices;
  std::vector<int64_t> times;
  std::vector<BatchBuilder::Candidate> candidates;
  int64_t decode_rows = 0;
  const bool storing = AnyStores();
  for (const auto& [slot, candidate] : *shares) {
    const auto [at, added] = indices.try_emplace(slot->sequence->tenant(), times.size());
    if (added) times.push_back(tenants_.VirtualTime(at->first));
    candidates.push_back(candidate);
    candidates.back().tenant = at->second;
    if (candidate.decoding) decode_rows += candidate.ready;
  }
  // Half of the budget is for states that are being stored.
  const int64_t prompt_tokens = budget_.PromptTokens(decode_rows) / (storing ? 2 : 1);
  if (prompt_tokens < context_.max_step_tokens) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!candidates[i].decoding) FitToBlock(*(*shares)[i].slot, prompt_tokens, &candidates[i]);
    }
  }
  // Those that wait for a slot want something too.
  int64_t least = times.empty() ? 0 : *std::min_element(times.begin(), times.end());
  for (const Waiting& waiting : waiting_.list()) {
    if (!waiting.sequence->idle())
      least = std::min(least, tenants_.VirtualTime(waiting.sequence->tenant()));
  }
  tenants_.AdvanceTo(least);

  std::vector<int64_t> tokens = batch_builder_.Share(candidates, prompt_tokens, times);
  for (size_t i = 0; i < tokens.size(); ++i) {
    (*shares)[i].slot->last_turn = candidates[i].last_turn;
    tenants_.Charge((*shares)[i].slot->sequence->tenant(), tokens[i]);
  }
  return tokens;
}

bool Scheduler::Step(Clock::time_point now) {
  const bool stores = AnyStores();
  std::vector<Share> shares = Candidates(now);
  const std::vector<int64_t> tokens = ShareTokens(&shares);
  std::vector<StepExecutor::ScheduledSegment> batch;
  std::vector<Slot*> slots;
  int prefill_tokens = 0;
  int64_t folds = 0;
  int decode_tokens = 0;
  // Decoding rows first: their tokens go out before the logits of long scores are computed.
  for (const bool decoding : {true, false}) {
    for (size_t i = 0; i < shares.size(); ++i) {
      const auto& [slot, candidate] = shares[i];
      if (candidate.decoding != decoding || tokens[i] == 0) continue;
      if (!GrowReservation(slot, tokens[i])) continue;
      slot->last_served = now;
      folds += !decoding && BeginsWithFold(*slot->state);
      batch.push_back({slot->sequence.get(), slot->state.get(), tokens[i]});
      slots.push_back(slot);
      (decoding ? decode_tokens : prefill_tokens) += static_cast<int>(tokens[i]);
    }
  }
  if (batch.empty()) return StoreStates(/*foreseen=*/true);

  executor_.Run(batch);
  ++steps_;
  for (Slot* slot : slots) {
    if (slot->sequence->ended()) continue;
    slot->sequence->MaybeReportProgress();
    Fork(slot, now);
  }
  const std::chrono::nanoseconds duration = context_.now() - now;
  budget_.OnStep(decode_tokens, prefill_tokens, folds, duration);
  StoreStates(stores);
  const std::chrono::nanoseconds whole = context_.now() - now;
  context_.observer->OnStep(static_cast<int>(batch.size()), prefill_tokens, decode_tokens, whole);
  StepParts parts = executor_.parts();
  parts.storing = whole - duration;
  context_.observer->OnStepParts(parts);
  return true;
}

bool Scheduler::AnyStores() const {
  return std::any_of(running_.begin(), running_.end(),
                     [](const Slot& slot) { return slot.sequence->storing(); });
}

bool Scheduler::StoreStates(bool foreseen) {
  const bool awaited = std::any_of(running_.begin(), running_.end(), [](const Slot& slot) {
    return slot.sequence->decoding() && !slot.sequence->idle() && !slot.sequence->storing();
  });
  if (awaited && !foreseen) return false;
  const auto most = awaited && options_.step_budget.count() > 0
                        ? std::chrono::nanoseconds(options_.step_budget) / 2
                        : std::chrono::nanoseconds::max();
  const Clock::time_point start = context_.now();
  std::chrono::nanoseconds taken{0}, longest{0};
  bool stored = false;
  for (Slot& slot : running_) {
    while (slot.sequence->storing()) {
      if (stored && taken + longest > most) return true;
      slot.sequence->StoreState(*slot.state, model_->pool());
      stored = true;
      const std::chrono::nanoseconds before = taken;
      taken = context_.now() - start;
      longest = std::max(longest, taken - before);
    }
  }
  return stored;
}

void Scheduler::ForEach(const std::function<void(Sequence&)>& visit) const {
  for (const Waiting& waiting : waiting_.list()) visit(*waiting.sequence);
  for (const Slot& slot : running_) visit(*slot.sequence);
}

void Scheduler::FailTogether() {
  std::vector<const Sequence*> failed;
  ForEach([&failed](const Sequence& sequence) {
    if (sequence.places() > 1 && sequence.ended() && !sequence.finish().status.ok())
      failed.push_back(&sequence);
  });
  for (const Sequence* first : failed) {
    ForEach([first](Sequence& sequence) {
      if (sequence.id() == first->id())
        sequence.End(first->finish().reason, first->finish().status);
    });
  }
}

bool Scheduler::Sweep() {
  FailTogether();
  // Out of the lists first: readers of a FinishEvent may ask for the counts.
  std::vector<Slot> over;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto waiting = at++;
    if (!waiting->sequence->ended()) continue;
    Waiting taken = waiting_.Take(waiting);
    states_.ReleasePreempted(taken.preempted_bytes);
    over.push_back({.sequence = std::move(taken.sequence),
                    .state = std::move(taken.state),
                    .last_served = {}});
  }
  for (Slot& slot : running_) {
    if (slot.sequence->ended() && !slot.sequence->storing()) over.push_back(std::move(slot));
  }
  std::erase_if(running_, [](const Slot& slot) { return slot.sequence == nullptr; });
  for (Slot& slot : over) Finish(std::move(slot));
  return !over.empty();
}

void Scheduler::Finish(Slot slot) {
  slot.sequence->OnLeaving(slot.state.get());
  if (slot.state != nullptr) states_.Release(std::move(slot.state));
  states_.Unreserve(slot.reserved + slot.fork_reserved);
  if (slot.sequence->last_of_request()) options_.on_ending(*slot.sequence);
  slot.sequence->PushFinish();
}

}  // namespace polysketch
