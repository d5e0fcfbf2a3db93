#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace polysketch {
namespace {

// How often a late mask is looked for while nothing else is to be done.
constexpr std::chrono::milliseconds kMaskInterval{1};

}  // namespace

Scheduler::Scheduler(LanguageModel* model, const SequenceContext& context,
                     const SchedulerOptions& options)
    : context_(context),
      options_(options),
      model_(model),
      states_(model, options.slot_memory, options.preempted_memory),
      grows_(states_.kv_kind() && options.kv_admission == KvAdmission::kPreempt),
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

void Scheduler::End(std::span<const RequestId> ids, FinishReason reason, const Status& status) {
  if (ids.empty()) return;
  const std::unordered_set<RequestId> ending(ids.begin(), ids.end());
  ForEach([&](Sequence& sequence) {
    if (ending.contains(sequence.id())) sequence.End(reason, status);
  });
  RemoveEnded();
}

void Scheduler::EndWaiting(const std::map<RequestId, Status>& ids) {
  if (ids.empty()) return;
  for (const Waiting& waiting : waiting_.list()) {
    const auto found = ids.find(waiting.sequence->id());
    if (found != ids.end() && waiting.starts_anew())
      waiting.sequence->End(FinishReason::kError, found->second);
  }
  RemoveEnded();
}

void Scheduler::EndAll(FinishReason reason, const Status& status) {
  ForEach([&](Sequence& sequence) { sequence.End(reason, status); });
  RemoveEnded();
}

void Scheduler::MigrateAll() {
  ForEach([](Sequence& sequence) { sequence.Migrate(); });
  RemoveEnded();
}

bool Scheduler::Tick() {
  const Clock::time_point now = context_.now();
  EndDue(now);
  Admit(now);
  bool stepped = Step(now);
  // A sequence without input is found to be idle only when a step is composed. Then another
  // sequence can have its slot.
  while (!stepped && Admit(now)) stepped = Step(now);
  const bool removed = RemoveEnded();  // makes room for a waiting sequence
  return stepped || removed || Saving();
}

bool Scheduler::Saving() const {
  bool saving = false;
  ForEach([&](const Sequence& sequence) { saving |= sequence.ended() && sequence.storing(); });
  return saving;
}

EngineStats Scheduler::stats() const {
  EngineStats stats{.running = running(),
                    .preemptions = preemptions_,
                    .dropped_states = dropped_states_,
                    .dropped_tokens = dropped_tokens_,
                    .state_bytes = states_.reserved(),
                    .state_bytes_limit = states_.limit(),
                    .preempted_bytes = states_.preempted(),
                    .preempted_bytes_limit = states_.preempted_limit(),
                    .steps = steps_};
  for (const Slot& slot : running_) stats.idle += slot.sequence->idle();
  for (const Waiting& waiting : waiting_.list()) {
    if (waiting.preempted) {
      ++stats.preempted;
      stats.preempted_ready += waiting.has_state() && !waiting.sequence->idle();
    } else {
      ++stats.waiting;
      if (waiting.source == nullptr) stats.waiting_tokens += waiting.sequence->UnprocessedInput();
    }
  }
  return stats;
}

Clock::time_point Scheduler::StallDeadline(const Sequence& sequence) const {
  Clock::time_point earliest = Clock::time_point::max();
  for (const auto& since : {sequence.stream().full_since(), sequence.starved_since()}) {
    if (since) earliest = std::min(earliest, *since + options_.stall_deadline);
  }
  return earliest;
}

Clock::time_point Scheduler::NextDeadline() const {
  Clock::time_point earliest = Clock::time_point::max();
  ForEach([&](const Sequence& sequence) {
    if (sequence.awaits_mask()) earliest = std::min(earliest, context_.now() + kMaskInterval);
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
  RemoveEnded();
}

void Scheduler::ForEach(const std::function<void(Sequence&)>& visit) const {
  for (const Waiting& waiting : waiting_.list()) visit(*waiting.sequence);
  for (const Slot& slot : running_) visit(*slot.sequence);
}

void Scheduler::FailTogether() {
  std::unordered_map<RequestId, const Sequence*> failed;
  ForEach([&failed](const Sequence& sequence) {
    if (sequence.slots() > 1 && sequence.ended() && !sequence.finish().status.ok())
      failed.emplace(sequence.id(), &sequence);
  });
  if (failed.empty()) return;
  ForEach([&failed](Sequence& sequence) {
    const auto first = failed.find(sequence.id());
    if (first != failed.end())
      sequence.End(first->second->finish().reason, first->second->finish().status);
  });
}

bool Scheduler::RemoveEnded() {
  FailTogether();
  // All are removed from the lists before any is finished: the reader of a FinishEvent may read the
  // stats.
  std::vector<Slot> ended;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto waiting = at++;
    if (!waiting->sequence->ended() || waiting->sequence->storing()) continue;
    Waiting taken = waiting_.Take(waiting);
    states_.ReleasePreempted(taken.preempted_bytes);
    Slot& slot = ended.emplace_back();
    slot.sequence = std::move(taken.sequence);
    slot.own.state = std::move(taken.own.state);
  }
  for (Slot& slot : running_) {
    if (!slot.sequence->ended() || slot.sequence->storing()) continue;
    waiting_.OnServed(*slot.sequence, context_.now());
    ended.push_back(std::move(slot));
  }
  std::erase_if(running_, [](const Slot& slot) { return slot.sequence == nullptr; });
  for (Slot& slot : ended) Finish(std::move(slot));
  return !ended.empty();
}

void Scheduler::Finish(Slot slot) {
  slot.sequence->OnLeaving();
  if (slot.own.state != nullptr) states_.Release(std::move(slot.own.state));
  states_.Unreserve(slot.own.slot_bytes());
  if (slot.sequence->last_of_request()) options_.on_ending(*slot.sequence);
  slot.sequence->PushFinish();
}

}  // namespace polysketch
