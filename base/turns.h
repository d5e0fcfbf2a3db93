// Whose turn it is: virtual times of principals, and of the parts of each, in units of work done
// (hierarchical start-time fair queueing: Goyal, Vin and Cheng, 1996). The next turn is that of the
// principal with the least time, and of its parts of the one with the least.
//
// One without work restarts at the time of the others: it accumulates no credit while it has no
// work, and keeps its debt if it has none for a moment.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/principal.h"

namespace polysketch {

// The times of siblings. Not thread-safe.
class VirtualTimes {
 public:
  int64_t Of(std::string_view name) const {
    const auto found = ahead_.find(name);
    return found == ahead_.end() ? now_ : found->second;
  }
  void Charge(std::string_view name, int64_t work) {
    if (const auto found = ahead_.find(name); found != ahead_.end()) {
      found->second += work;
    } else if (work > 0) {
      ahead_.emplace(name, now_ + work);
    }
  }
  // Advances to `time`, the least of names with work. Time does not run back.
  void AdvanceTo(int64_t time) {
    if (time <= now_) return;
    now_ = time;
    std::erase_if(ahead_, [this](const auto& one) { return one.second <= now_; });
  }
  int64_t now() const { return now_; }
  // Number of names that are ahead of the others. Only these are stored.
  size_t size() const { return ahead_.size(); }

 private:
  int64_t now_ = 0;
  std::map<std::string, int64_t, std::less<>> ahead_;  // all > now_
};

// Not thread-safe.
class Turns {
 public:
  // In the order of turns. The times of parts compare within a principal only.
  struct Time {
    int64_t principal = 0;
    int64_t part = 0;
    auto operator<=>(const Time&) const = default;
  };

  Time Of(const Principal& who) const {
    const auto parts = parts_.find(who.name);
    return {principals_.Of(who.name), parts == parts_.end() ? 0 : parts->second.Of(who.part)};
  }
  void Charge(const Principal& who, int64_t work) {
    if (work <= 0) return;
    principals_.Charge(who.name, work);
    parts_[who.name].Charge(who.part, work);
  }
  // Advances to the least time of principals with work: principal_of(one) for each of a range.
  template <typename Working, typename PrincipalOf>
  void AdvanceTo(const Working& working, const PrincipalOf& principal_of) {
    std::map<std::string_view, Time> least;
    for (const auto& one : working) {
      const Principal& who = principal_of(one);
      const Time time = Of(who);
      const auto [at, added] = least.try_emplace(who.name, time);
      if (!added) at->second.part = std::min(at->second.part, time.part);
    }
    if (least.empty()) return;
    const auto first = std::min_element(
        least.begin(), least.end(),
        [](const auto& a, const auto& b) { return a.second.principal < b.second.principal; });
    principals_.AdvanceTo(first->second.principal);
    for (const auto& [name, time] : least) {
      if (const auto parts = parts_.find(name); parts != parts_.end())
        parts->second.AdvanceTo(time.part);
    }
    // Parts that all stand at one time are as if they were new, and so are those of a principal
    // that has neither work nor debt.
    std::erase_if(parts_, [&](const auto& one) {
      const auto& [name, times] = one;
      return times.size() == 0 ||
             (!least.contains(name) && principals_.Of(name) == principals_.now());
    });
  }
  // Number of principals that are ahead of the others.
  size_t size() const { return principals_.size(); }

 private:
  VirtualTimes principals_;
  std::map<std::string, VirtualTimes, std::less<>> parts_;
};

}  // namespace polysketch
