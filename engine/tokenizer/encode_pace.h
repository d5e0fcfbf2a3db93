// The pace of a thread that encodes long texts: between parts it lets other work go first, or
// stops.
#pragma once

#include <cstddef>

namespace polysketch {

class EncodePace {
 public:
  virtual ~EncodePace() = default;
  // Called after every kBytes of text, at the end of a part. Returns false if no caller needs the
  // ids any more: the encoder then fails with CANCELLED.
  virtual bool Continue(size_t bytes) = 0;

  static constexpr size_t kBytes = 64 << 10;

  // The pace of this thread; null: none.
  static EncodePace*& OfThread();
};

}  // namespace polysketch
