// The choices of a request with n > 1 or best_of > 1: sequences that share a prompt, a stream and
// one FinishEvent.
//
// With best_of == n events go out as they come. With best_of > n they are kept until the last
// choice has ended; then the n of the highest cumulative log-probability go out, best first.
//
// Used by the engine thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace polysketch {

class ChoiceGroup {
 public:
  ChoiceGroup(std::shared_ptr<EventStream> stream, int n, int best_of);

  int size() const { return static_cast<int>(choices_.size()); }
  bool ranked() const { return size() > n_; }
  // One more choice is alive (the first is from the beginning).
  void Add() { ++alive_; }
  bool last_alive() const { return alive_ == 1; }

  void Push(int choice, Event event);
  // The choice has ended. The last to end gives what the request ends with.
  std::optional<FinishEvent> Finish(int choice, FinishEvent finish);

 private:
  struct Choice {
    std::vector<TokenEvent> kept;
    std::optional<FinishEvent> finish;
  };
  static ChoiceEvent ToEvent(int index, const FinishEvent& finish);
  void PushRanked();
  FinishEvent Whole() const;

  const std::shared_ptr<EventStream> stream_;
  const int n_;
  int alive_ = 1;
  std::vector<Choice> choices_;
};

}  // namespace polysketch
