// Writes log lines to a file descriptor on a thread of its own: a reader of the log that stalls
// must not stall the program. Lines that do not fit into the buffer are dropped and counted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace polysketch {

// Thread-safe. The thread is never joined: it may be blocked in write(2).
class LogWriter {
 public:
  // Buffers at most `limit` bytes. `dropped_line` makes the line that reports dropped lines, which
  // follows the lines before them.
  LogWriter(int fd, size_t limit, std::string (*dropped_line)(uint64_t count));

  // Does not block. A line ends with \n.
  void Write(std::string_view line);
  // Waits until the lines before this call are written, at most `patience`. Returns whether they
  // are.
  bool Flush(std::chrono::milliseconds patience);
  // Lines dropped since the start.
  uint64_t dropped() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace polysketch
