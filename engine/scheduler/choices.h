// The choices of a request with n > 1 or best_of > 1: sequences that share a prompt, a stream and
// one FinishEvent.
//
// With best_of == n events go out as they come. With best_of > n they are kept until the last
// choice has ended; then the n of the highest cumulative log-probability go out, best first.
//
// A request that was stopped behind its prompt begins again when it is resumed, and what the client
// has of its choices does not go out a second time.
//
// Used by the engine thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/request/request.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

class ChoiceGroup {
 public:
  // `before`: of a request that is resumed; else empty.
  ChoiceGroup(std::shared_ptr<EventStream> stream, int n, int best_of,
              std::vector<MigratedChoice> before);

  int size() const { return static_cast<int>(choices_.size()); }
  bool ranked() const { return size() > n_; }
  // What the client had when the request was resumed; else empty.
  const std::vector<MigratedChoice>& before() const { return before_; }
  // One more choice is alive (the first is from the beginning).
  void Add() { ++alive_; }
  // They part. `beginning` makes the snapshot that the request can begin again from.
  void Part(std::function<Snapshot()> beginning) { beginning_ = std::move(beginning); }
  bool last_alive() const { return alive_ == 1; }

  void Push(int choice, Event event);
  // The choice has ended. The last to end gives what the request ends with.
  std::optional<FinishEvent> Finish(int choice, FinishEvent finish);

 private:
  struct Choice {
    int64_t tokens = 0;  // pushed, those that went out before too
    std::vector<TokenEvent> kept;
    std::optional<FinishEvent> finish;
  };
  static ChoiceEvent ToEvent(int index, const FinishEvent& finish);
  void PushRanked();
  FinishEvent Whole() const;
  // What the client had of a choice when the request was resumed.
  MigratedChoice Before(int choice) const {
    return before_.empty() ? MigratedChoice() : before_[static_cast<size_t>(choice)];
  }
  // Some are to go on elsewhere.
  std::shared_ptr<const Snapshot> Stopped() const;

  const std::shared_ptr<EventStream> stream_;
  const int n_;
  const std::vector<MigratedChoice> before_;
  int alive_ = 1;
  std::function<Snapshot()> beginning_;  // empty until they part
  std::vector<Choice> choices_;
};

}  // namespace polysketch
