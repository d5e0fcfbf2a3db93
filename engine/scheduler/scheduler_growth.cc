// Growth: under KvAdmission::kPreempt a sequence of a KV kind is admitted with the memory of the
// tokens that are known, and gets more as it grows. Between two steps only, so that no index or
// pointer of a step changes.
//
// Where memory is full, sequences are preempted until the growing one has its next token's, perhaps
// itself. The first to go, of all that could be in the step:
//   - an idle one whose state fits preempted memory;
//   - one that is not the only one of its client;
//   - one of the client with the lowest priority, of these the client that holds most;
//   - in that client one of the part that holds most, of the lowest level, admitted last.
// So of a part the sequence of the highest level that was admitted first is never preempted for
// others to grow, and a client keeps one sequence while another has two. Then the states go that
// forks wait for: their tokens are processed again by each fork. What remains is the growing
// sequence alone, which fits: a request whose longest state exceeds slot memory was refused. Only a
// score may exceed it.
#include <algorithm>
#include <climits>
#include <tuple>

#include "engine/scheduler/scheduler.h"

namespace polysketch {

size_t Scheduler::BytesToStart(const Sequence& sequence) const {
  const int64_t longest = std::max<int64_t>(1, sequence.StateTokens());
  if (!grows_) return states_.BytesFor(longest);
  const int64_t unit = options_.growth_tokens;
  const int64_t known = (sequence.KnownTokens() + unit - 1) / unit * unit;
  // One whose state was dropped has room to do as much as it does again.
  const int64_t room = std::max(unit, sequence.missing());
  return states_.BytesFor(std::min(longest, known + room));
}

size_t Scheduler::BytesToKeep(const Slot& slot) const {
  if (!grows_) return slot.own.bytes;
  const int64_t tokens = std::max<int64_t>(1, slot.state().position());
  return std::min(slot.own.bytes, std::max(states_.BytesFor(tokens), slot.state().bytes()));
}

void Scheduler::GrowStates(Clock::time_point now) {
  if (!grows_) return;
  std::vector<const Sequence*> growing;  // in order of admission
  for (const Slot& slot : running_) {
    const Sequence& sequence = *slot.sequence;
    if (sequence.ended() || slot.copying() || sequence.idle()) continue;
    // The last token of a score is not processed.
    const bool goes_on =
        sequence.decoding() || sequence.missing() > 0 || sequence.UnprocessedInput() > 1;
    if (!goes_on) continue;
    const int64_t length = slot.state().position() + 1;
    if (states_.BytesFor(length) > slot.own.bytes) growing.push_back(slot.sequence.get());
  }
  for (const Sequence* sequence : growing) {
    while (GrowOrPreempt(sequence, now)) {
    }
  }
}

bool Scheduler::GrowOrPreempt(const Sequence* sequence, Clock::time_point now) {
  const auto at = std::find_if(running_.begin(), running_.end(),
                               [&](const Slot& slot) { return slot.sequence.get() == sequence; });
  if (at == running_.end()) return false;  // preempted
  const int64_t length = at->state().position() + 1;
  const int64_t unit = options_.growth_tokens;
  const int64_t more = std::min((length + unit - 1) / unit * unit, sequence->StateTokens());
  if (Grow(&*at, std::max(more, length)) || Grow(&*at, length)) return false;
  const std::optional<size_t> victim = GrowthVictim();
  const bool itself = victim && &running_[*victim] == &*at;
  if (victim && !itself) {
    Preempt(*victim, nullptr, now);
    return true;
  }
  // Memory may come back when states are copied: one step later.
  const bool copying = std::any_of(running_.begin(), running_.end(), [&](const Slot& slot) {
    return slot.sequence.get() != sequence && (slot.sequence->ended() || slot.copying());
  });
  if (copying) return false;
  if (itself && running_.size() > 1) {
    Preempt(*victim, nullptr, now);
    return false;
  }
  if (DropSource()) return true;
  EndWithoutMemory(&*at, length);
  return false;
}

bool Scheduler::Grow(Slot* slot, int64_t length) {
  const size_t needed = states_.BytesFor(length);
  if (needed <= slot->own.bytes) return true;
  if (!states_.Reserve(needed - slot->own.bytes)) return false;
  slot->own.bytes = needed;
  return true;
}

std::optional<size_t> Scheduler::GrowthVictim() const {
  const Holdings holdings = FindHoldings();
  std::map<std::string_view, std::pair<int, int>> clients;  // number of slots, lowest priority
  for (const Slot& slot : running_) {
    auto& [slots, lowest] = clients.try_emplace(slot.sequence->client(), 0, INT_MAX).first->second;
    ++slots;
    lowest = std::min(lowest, slot.sequence->priority());
  }
  const size_t room = states_.preempted_limit() - states_.preempted();
  size_t droppable = 0;
  for (const Waiting& waiting : waiting_.list()) {
    if (waiting.may_drop()) droppable += waiting.own.bytes;
  }
  const auto rank = [&](size_t i) {
    const Slot& slot = running_[i];
    const auto& [slots, lowest] = clients.at(slot.sequence->client());
    const bool lends = slot.sequence->idle() && BytesToKeep(slot) <= room;
    return std::tuple(!lends, slots == 1, lowest, -holdings.at(slot.sequence->client()).share(),
                      -holdings.at(slot.sequence->part()).share(), slot.level,
                      -static_cast<int64_t>(i));
  };
  std::optional<std::pair<decltype(rank(0)), size_t>> first;
  for (size_t i = 0; i < running_.size(); ++i) {
    const Slot& slot = running_[i];
    if (slot.copying() || slot.sequence->ended()) continue;
    if (!slot.sequence->DropCost() && BytesToKeep(slot) > room + droppable) continue;
    const std::pair candidate(rank(i), i);
    if (!first || candidate < *first) first = candidate;
  }
  if (!first) return std::nullopt;
  return first->second;
}

bool Scheduler::DropSource() {
  const ForkSource* source = nullptr;  // the one that has forks for the shortest time
  for (const Waiting& waiting : waiting_.list()) {
    if (waiting.source != nullptr && waiting.source->readers == 0) source = waiting.source.get();
  }
  if (source == nullptr) return false;
  ++dropped_states_;
  for (Waiting& waiting : waiting_) {
    if (waiting.source.get() != source) continue;
    waiting.sequence->OnDropped(/*to_source=*/false);
    dropped_tokens_ += waiting.sequence->missing();
    waiting.preempted = true;
    waiting.source = nullptr;  // the last one frees it
  }
  return true;
}

void Scheduler::EndWithoutMemory(Slot* slot, int64_t length) {
  slot->sequence->End(FinishReason::kError,
                      ResourceExhausted("no memory for a state of ", length, " tokens: needs ",
                                        states_.BytesFor(length), " bytes, has ", slot->own.bytes,
                                        ", and ", states_.limit() - states_.reserved(), " of ",
                                        states_.limit(), " are free"));
}

int64_t Scheduler::FitReservation(Slot* slot, int64_t tokens) {
  if (!states_.kv_kind()) return tokens;
  const int64_t position = slot->state().position();
  if (Grow(slot, position + tokens)) return tokens;
  if (!grows_) {
    EndWithoutMemory(slot, position + tokens);
    return 0;
  }
  while (tokens > 0 && states_.BytesFor(position + tokens) > slot->own.bytes) --tokens;
  return tokens;
}

}  // namespace polysketch
