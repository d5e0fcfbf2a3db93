// The memory that the workers of a host hold together, in a page that they share. A worker notes
// what it holds while it works; one that brings the sum above the limit wakes the host, which ends
// the worker that holds the most: small grammars live beside large ones.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>

#include "base/descriptor.h"

namespace polysketch::grammar_host {

// The host sends it to a worker that has to end because of the memory of all workers.
inline constexpr int kEndSignal = SIGUSR1;

// Made by the host before its first worker. Forked workers have a copy that refers to the same
// page.
class WorkerMemory {
 public:
  static constexpr int kMaxWorkers = 512;

  // `limit`: bytes of all workers together.
  explicit WorkerMemory(int64_t limit);
  WorkerMemory(const WorkerMemory&) = delete;
  WorkerMemory& operator=(const WorkerMemory&) = delete;
  bool ok() const { return held_ != nullptr && pressure_.ok(); }

  // Of the host.

  // Forks a worker. Returns 0 in the worker, -1 if there is none.
  pid_t Fork();
  // Readable while a worker has seen the sum above the limit.
  int pressure() const { return pressure_.get(); }
  // Forgets the workers that have ended.
  void Reap();
  // Ends the workers that hold the most, until the others are within the limit.
  void Relieve();

  // Of a worker. Notes what it holds: the pages of its own since the fork. Async-signal-safe.
  void Note();

 private:
  struct Worker {
    pid_t pid = 0;  // 0: none
    bool ending = false;
  };

  int64_t Held(int worker) const { return held_[worker].load(std::memory_order_relaxed); }

  const int64_t limit_;
  const int64_t page_bytes_;
  std::atomic<int64_t>* held_ = nullptr;  // [kMaxWorkers] bytes, shared
  Descriptor pressure_;                   // an eventfd
  std::array<Worker, kMaxWorkers> workers_;
  // Of a worker:
  int own_ = -1;
  int64_t inherited_ = 0;  // bytes that it had when it was forked
  Descriptor statm_;
};

}  // namespace polysketch::grammar_host
