// The choices of a request with n > 1 or best_of > 1: sequences that share a prompt, a stream and
// one FinishEvent.
//
// With best_of == n events are pushed as they come. With best_of > n they are held until the last
// choice has ended; then the n choices of the highest cumulative log-probability are pushed, best
// first.
//
// A request that migrated after its choices forked generates them again when it resumes. Events
// that were sent before the migration are not pushed a second time.
//
// Used by the engine thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/request/event_stream.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

class ChoiceGroup {
 public:
  // `before`: what the client received of each choice before a migration; empty for a request that
  // did not migrate.
  ChoiceGroup(std::shared_ptr<EventStream> stream, int n, int best_of,
              std::vector<MigratedChoice> before);

  int size() const { return static_cast<int>(choices_.size()); }
  bool ranked() const { return size() > n_; }
  const std::vector<MigratedChoice>& before() const { return before_; }
  // Adds one choice to those that have not ended. The first choice is counted from the start.
  void Add() { ++alive_; }
  // Called when the choices fork. `beginning` makes the snapshot from which they can be generated
  // again.
  void Part(std::function<Snapshot()> beginning) { beginning_ = std::move(beginning); }
  bool last_alive() const { return alive_ == 1; }

  void Push(int choice, Event event);
  // Ends a choice. Returns the FinishEvent of the request if it was the last choice.
  std::optional<FinishEvent> Finish(int choice, FinishEvent finish);

 private:
  struct Choice {
    int64_t tokens = 0;  // generated, including those sent before a migration
    std::vector<TokenEvent> held;
    std::optional<FinishEvent> finish;
  };
  static ChoiceEvent ToEvent(int index, const FinishEvent& finish);
  void PushRanked();
  FinishEvent RequestFinish() const;
  MigratedChoice Before(int choice) const {
    return before_.empty() ? MigratedChoice() : before_[static_cast<size_t>(choice)];
  }
  std::shared_ptr<const Snapshot> MigrationSnapshot() const;

  const std::shared_ptr<EventStream> stream_;
  const int n_;
  const std::vector<MigratedChoice> before_;
  int alive_ = 1;
  std::function<Snapshot()> beginning_;  // empty until the choices fork
  std::vector<Choice> choices_;
};

}  // namespace polysketch
