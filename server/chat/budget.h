// What rendering one prompt may cost. A template that asks for more fails before the work is done.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace polysketch::chat {

class Budget {
 public:
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
    if (bytes_ >= 0) return Status();
    return InvalidArgument("expected work on at most ", kBytes,
                           " bytes, found a template that needs more");
  }
  // The same for `count` times `each` bytes.
  Status Spend(size_t count, size_t each) {
    size_t bytes = 0;
    return Spend(__builtin_mul_overflow(count, each, &bytes) ? SIZE_MAX : bytes);
  }

 private:
  int64_t steps_ = kSteps;
  int64_t bytes_ = kBytes;
};

}  // namespace polysketch::chat
