#include "engine/scheduler/choices.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace polysketch {

ChoiceGroup::ChoiceGroup(std::shared_ptr<EventStream> stream, int n, int best_of,
                         std::vector<MigratedChoice> before)
    : stream_(std::move(stream)),
      n_(n),
      before_(std::move(before)),
      choices_(static_cast<size_t>(best_of)) {}

void ChoiceGroup::Push(int choice, Event event) {
  auto* token = std::get_if<TokenEvent>(&event);
  if (token == nullptr || token->echoed) return stream_->Push(std::move(event));
  token->choice = choice;
  Choice& of = choices_[static_cast<size_t>(choice)];
  const MigratedChoice before = Before(choice);
  if (before.ended || ++of.tokens <= before.sent) return;
  if (ranked()) {
    of.held.push_back(std::move(*token));
  } else {
    stream_->Push(std::move(event));
  }
}

std::optional<FinishEvent> ChoiceGroup::Finish(int choice, FinishEvent finish) {
  const bool ended = finish.status.ok() && finish.reason != FinishReason::kMigrated;
  if (!ranked() && ended && !Before(choice).ended) stream_->Push(ToEvent(choice, finish));
  choices_[static_cast<size_t>(choice)].finish = std::move(finish);
  if (--alive_ > 0) return std::nullopt;
  FinishEvent whole = RequestFinish();
  const bool migrated = whole.reason == FinishReason::kMigrated;
  if (migrated && beginning_) whole.snapshot = MigrationSnapshot();
  if (ranked() && whole.status.ok() && !migrated) PushRanked();
  return whole;
}

std::shared_ptr<const Snapshot> ChoiceGroup::MigrationSnapshot() const {
  auto snapshot = std::make_shared<Snapshot>(beginning_());
  std::vector<MigratedChoice>& sent = snapshot->generation->choices;
  sent.clear();
  for (int i = 0; i < size(); ++i) {
    const Choice& choice = choices_[static_cast<size_t>(i)];
    sent.push_back(Before(i));
    if (ranked()) continue;
    sent.back().ended |= choice.finish->reason != FinishReason::kMigrated;
    sent.back().sent = std::max(sent.back().sent, choice.tokens);
  }
  return snapshot;
}

ChoiceEvent ChoiceGroup::ToEvent(int index, const FinishEvent& finish) {
  return {.choice = index,
          .reason = finish.reason,
          .text = finish.text,
          .matched_stop = finish.matched_stop,
          .stop_token = finish.stop_token,
          .seed = finish.seed,
          .completion_tokens = finish.usage.completion_tokens,
          .logprob_sum = finish.logprob_sum};
}

void ChoiceGroup::PushRanked() {
  std::vector<size_t> order(choices_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
    return choices_[a].finish->logprob_sum > choices_[b].finish->logprob_sum;
  });
  for (int rank = 0; rank < n_; ++rank) {
    Choice& choice = choices_[order[static_cast<size_t>(rank)]];
    for (TokenEvent& token : choice.held) {
      token.choice = rank;
      stream_->Push(std::move(token));
    }
    stream_->Push(ToEvent(rank, *choice.finish));
  }
}

FinishEvent ChoiceGroup::RequestFinish() const {
  // Choice 0 exists from the start. A choice that failed determines the status of the request.
  FinishEvent whole = *choices_[0].finish;
  whole.text.clear();
  whole.matched_stop.clear();
  whole.stop_token.reset();
  whole.usage.completion_tokens = 0;
  for (const Choice& choice : choices_) {
    if (!choice.finish) continue;  // the request ended before it forked
    if (whole.status.ok() && !choice.finish->status.ok()) {
      whole.status = choice.finish->status;
      whole.reason = choice.finish->reason;
    }
    if (whole.status.ok() && choice.finish->reason == FinishReason::kMigrated) {
      whole.reason = FinishReason::kMigrated;
    }
    whole.usage.completion_tokens += choice.finish->usage.completion_tokens;
    whole.timings.decode = std::max(whole.timings.decode, choice.finish->timings.decode);
    whole.timings.total = std::max(whole.timings.total, choice.finish->timings.total);
  }
  return whole;
}

}  // namespace polysketch
