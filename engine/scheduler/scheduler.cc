#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace polysketch {

Scheduler::Scheduler(LanguageModel* model, const SequenceContext& context,
                     const SchedulerOptions& options)
    : context_(context),
      options_(options),
      states_(model, options.state_memory),
      batch_builder_(context.max_step_tokens),
      executor_(model, context.max_step_tokens) {}

void Scheduler::Add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

void Scheduler::End(RequestId id, FinishReason reason, const Status& status) {
  for (const auto& sequence : waiting_) {
    if (sequence->id() == id) sequence->End(reason, status);
  }
  for (const Slot& slot : running_) {
    if (slot.sequence->id() == id) slot.sequence->End(reason, status);
  }
  Sweep();
}

void Scheduler::EndAll(FinishReason reason, const Status& status) {
  for (const auto& sequence : waiting_) sequence->End(reason, status);
  for (const Slot& slot : running_) slot.sequence->End(reason, status);
  Sweep();
}

void Scheduler::MigrateAll() {
  for (const auto& sequence : waiting_) sequence->Migrate();
  for (const Slot& slot : running_) slot.sequence->Migrate();
  Sweep();
}

bool Scheduler::Tick() {
  EndDue(context_.now());
  Admit();
  const bool stepped = Step();
  const bool swept = Sweep();  // room for a waiting one
  return stepped || swept;
}

size_t Scheduler::state_bytes() const {
  size_t bytes = 0;
  for (const Slot& slot : running_) bytes += slot.state->bytes();
  return bytes;
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
  for (const auto& sequence : waiting_) earliest = std::min(earliest, sequence->deadline());
  for (const Slot& slot : running_) {
    earliest = std::min({earliest, slot.sequence->deadline(), StallDeadline(*slot.sequence)});
  }
  return earliest;
}

void Scheduler::EndDue(Clock::time_point now) {
  const auto end_at_deadline = [&](Sequence& sequence) {
    if (sequence.deadline() > now) return;
    sequence.End(FinishReason::kDeadline,
                 Status(Code::kDeadlineExceeded, "the request's deadline has passed"));
  };
  for (const auto& sequence : waiting_) end_at_deadline(*sequence);
  for (const Slot& slot : running_) {
    Sequence& sequence = *slot.sequence;
    end_at_deadline(sequence);
    if (StallDeadline(sequence) > now) continue;
    const auto limit =
        std::chrono::duration_cast<std::chrono::milliseconds>(options_.stall_deadline).count();
    const char* what =
        sequence.starved_since() ? "the client sent no input" : "the client read nothing";
    sequence.End(FinishReason::kStalled,
                 Status(Code::kAborted, StrCat(what, " for ", limit, " ms")));
  }
  Sweep();
}

void Scheduler::Admit() {
  while (!waiting_.empty() && running() < options_.max_sequences) {
    const size_t bytes = states_.BytesFor(std::max<int64_t>(1, waiting_.front()->StateTokens()));
    if (!states_.Reserve(bytes))
      break;  // first come, first served: smaller ones behind do not overtake it for ever
    Slot slot{std::move(waiting_.front()), states_.Acquire(), bytes};
    waiting_.pop_front();
    PS_CHECK(slot.state->position() == 0);
    if (const SavedState* start = slot.sequence->start_state()) {
      const Status status = slot.state->Load(start->position, start->bytes);
      if (!status.ok()) slot.sequence->End(FinishReason::kError, status);
    }
    slot.sequence->OnAdmitted();
    running_.push_back(std::move(slot));
  }
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

bool Scheduler::Step() {
  std::vector<BatchBuilder::Candidate> candidates;
  std::vector<Slot*> slots;
  parked_ = 0;
  for (Slot& slot : running_) {
    if (slot.sequence->stream().Full()) {
      ++parked_;
      continue;
    }
    if (slot.sequence->ended()) continue;
    const int64_t ready = slot.sequence->ReadyTokens();
    if (ready == 0 || slot.sequence->ended()) continue;
    candidates.push_back({slot.sequence->id(), ready, slot.sequence->decoding()});
    slots.push_back(&slot);
  }
  std::vector<int64_t> shares;
  batch_builder_.Share(candidates, &shares);

  std::vector<StepExecutor::Item> batch;
  int prefill_tokens = 0;
  int decode_tokens = 0;
  // Decoding rows first: their tokens go out before the logits of long scores are computed.
  for (const bool decoding : {true, false}) {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (candidates[i].decoding != decoding || shares[i] == 0) continue;
      if (!GrowReservation(slots[i], shares[i])) continue;
      batch.push_back({slots[i]->sequence.get(), slots[i]->state.get(), shares[i]});
      (decoding ? decode_tokens : prefill_tokens) += static_cast<int>(shares[i]);
    }
  }
  if (batch.empty()) return false;

  const Clock::time_point start = context_.now();
  executor_.Run(batch);
  ++steps_;
  for (const auto& item : batch) {
    if (!item.sequence->ended()) item.sequence->MaybeReportProgress();
  }
  context_.observer->OnStep(static_cast<int>(batch.size()), prefill_tokens, decode_tokens,
                            context_.now() - start);
  context_.observer->OnStepParts(executor_.parts());
  return true;
}

bool Scheduler::Sweep() {
  // Out of the lists first: readers of a FinishEvent may ask for the counts.
  std::vector<Slot> over;
  for (auto& sequence : waiting_) {
    if (sequence->ended()) over.push_back({std::move(sequence), nullptr, 0});
  }
  std::erase(waiting_, nullptr);
  for (Slot& slot : running_) {
    if (slot.sequence->ended()) over.push_back(std::move(slot));
  }
  std::erase_if(running_, [](const Slot& slot) { return slot.sequence == nullptr; });
  for (Slot& slot : over) Finish(std::move(slot));
  return !over.empty();
}

void Scheduler::Finish(Slot slot) {
  slot.sequence->OnLeaving(slot.state.get());
  if (slot.state != nullptr) states_.Release(std::move(slot.state));
  states_.Unreserve(slot.reserved);
  options_.on_ending(slot.sequence->id());
  slot.sequence->PushFinish();
}

}  // namespace polysketch
