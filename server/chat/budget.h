// What rendering one prompt may cost. A template that asks for more fails before the work is done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/status.h"

namespace polysketch::chat {

// Holds memory before it is taken. An error ends the rendering.
using HoldMemory = std::function<Status(int64_t bytes)>;

class Budget {
 public:
  // `hold` null: memory is not counted.
  explicit Budget(HoldMemory hold = nullptr) : hold_(std::move(hold)) {}

  static constexpr int64_t kSteps = 1'000'000;
  static constexpr int64_t kBytes = int64_t{512} << 20;
  // The bytes of one element: a copy of a value, or a visit of it.
  static constexpr size_t kElement = 48;
  // A text of its own: a character of a string, a part of a split one.
  static constexpr size_t kText = 192;

  // One expression or statement.
  Status Step() {
    if (--steps_ >= 0) return Status();
    return InvalidArgument("expected at most ", kSteps, " steps, found a template that needs more");
  }
  // An operation on that many bytes. It takes about a nanosecond for each.
  Status Spend(size_t bytes) {
    bytes_ -= static_cast<int64_t>(std::min(bytes, size_t{INT64_MAX / 2}));
    if (bytes_ >= 0) return hold_ ? Hold() : Status();
    return InvalidArgument("expected work on at most ", kBytes,
                           " bytes, found a template that needs more");
  }
  // The same for `count` times `each` bytes.
  Status Spend(size_t count, size_t each) {
    size_t bytes = 0;
    return Spend(__builtin_mul_overflow(count, each, &bytes) ? SIZE_MAX : bytes);
  }

 private:
  // What work makes takes no more bytes than it has cost.
  Status Hold() {
    constexpr int64_t kPart = 64 << 10;
    if (kBytes - bytes_ <= held_) return Status();
    const int64_t more = kBytes - bytes_ - held_ + kPart;
    PS_RETURN_IF_ERROR(hold_(more));
    held_ += more;
    return Status();
  }

  const HoldMemory hold_;
  int64_t held_ = 0;
  int64_t steps_ = kSteps;
  int64_t bytes_ = kBytes;
};

}  // namespace polysketch::chat
