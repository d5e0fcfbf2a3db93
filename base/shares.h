// What principals, and the parts of each, hold of a pool: bytes, threads, connections, places. One
// mechanism for all pools, which has two rules:
//
//   - Fits: a principal may hold three times what it leaves free (dynamic thresholds: Choudhury and
//     Hahne, 1998). One principal alone gets three quarters of the pool, two get three sevenths
//     each, and any number of them leave room for one that comes later. A part may hold three times
//     what it leaves its principal, so that a part alone gets nine sixteenths. This is for what
//     cannot be taken back.
//   - HoldsMore: what can be taken back gives way, first of the principal that holds the most, and
//     of its parts the one that holds the most (longest queue drop: Suter, Lakshman, Stiliadis and
//     Choudhury, 1998). So those that ask for more than their share converge to equal ones, and
//     what no other asks for is free for any.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "base/principal.h"

namespace polysketch {

inline constexpr int64_t kShareOfFree = 3;

// Not thread-safe.
class Shares {
 public:
  struct Held {
    int64_t principal = 0;
    int64_t part = 0;
    auto operator<=>(const Held&) const = default;  // NOLINT(modernize-use-nullptr)
  };

  void Add(const Principal& who, int64_t amount) {
    if (amount == 0) return;
    const auto at = held_.try_emplace(who.name).first;
    const auto part = at->second.parts.try_emplace(who.part).first;
    total_ += amount;
    at->second.amount += amount;
    part->second += amount;
    if (part->second == 0) at->second.parts.erase(part);
    if (at->second.parts.empty()) held_.erase(at);
  }
  void Remove(const Principal& who, int64_t amount) { Add(who, -amount); }

  int64_t total() const { return total_; }
  // Number of principals that hold something.
  int64_t size() const { return std::ssize(held_); }
  Held Of(const Principal& who) const {
    const auto at = held_.find(who.name);
    if (at == held_.end()) return {};
    const auto part = at->second.parts.find(who.part);
    return {at->second.amount, part == at->second.parts.end() ? 0 : part->second};
  }

  // Whether one may hold `more`, of the `free` that the pool has. A part without a name is the
  // principal itself. `first`: a holder of nothing may take whatever is free, since pieces are
  // large.
  bool Fits(const Principal& who, int64_t more, int64_t free, bool first = false) const {
    if (more > free) return false;
    const Held held = Of(who);
    const auto fits = [&](int64_t own, int64_t left) {
      return (first && own == 0) || (left >= 0 && own + more <= kShareOfFree * left);
    };
    if (!fits(held.principal, free - more)) return false;
    if (who.part.empty()) return true;
    // What the principal may take beyond `more`.
    const int64_t left =
        (kShareOfFree * (free - more) - held.principal - more) / (kShareOfFree + 1);
    return fits(held.part, left);
  }
  // Whether one holds more than an equal share of `pool`: the principal, and the part as much as an
  // equal share of that. If all together hold more than the pool, one does.
  bool AboveEqual(const Principal& who, int64_t pool) const {
    const auto at = held_.find(who.name);
    if (at == held_.end()) return false;
    const auto& [amount, parts] = at->second;
    const auto part = parts.find(who.part);
    return amount > pool / size() && part != parts.end() &&
           part->second >= amount / std::ssize(parts);
  }
  // What a principal that names no part may hold of a pool in which no other holds anything.
  static constexpr int64_t Alone(int64_t pool) { return pool / (kShareOfFree + 1) * kShareOfFree; }

  // Whether `other` gives way to one that would take `more`: it holds more even then.
  bool HoldsMore(const Principal& other, const Principal& newcomer, int64_t more) const {
    const Held theirs = Of(other), own = Of(newcomer);
    if (other.name != newcomer.name) return theirs.principal > own.principal + more;
    return other.part != newcomer.part && theirs.part > own.part + more;
  }

 private:
  struct Parts {
    int64_t amount = 0;
    std::map<std::string, int64_t, std::less<>> parts;  // those that hold something
  };

  int64_t total_ = 0;
  std::map<std::string, Parts, std::less<>> held_;  // those that hold something
};

}  // namespace polysketch
