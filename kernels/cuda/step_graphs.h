// Whole steps as CUDA graphs. A decode step has some hundred launches of a few microseconds each; a
// recording of them is one launch.
//
// Everything that the launches of a step depend on, besides device memory, is its shape: a list of
// numbers. The first step of a shape runs directly, while arrays of the workspace grow; the second
// step is recorded; later ones are replayed. The caller first uploads what changes from step to
// step (tokens, positions, job lists) to the same addresses. All recordings are dropped when an
// array of the workspace moves, since they hold addresses. At most `max` shapes are kept; the least
// recently used one is dropped.
//
// POLYSKETCH_CUDA_GRAPHS=off runs every step directly.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "kernels/cuda/device.h"

namespace polysketch::cuda {

class StepGraphs {
 public:
  using Shape = std::vector<int64_t>;
  static constexpr size_t kMax = 64;

  explicit StepGraphs(Device* device, size_t max = kMax);
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Runs `ops`, or replays what it launched for the same shape.
  void Run(Shape shape, const std::function<void()>& ops);

  struct Counts {
    int64_t direct = 0, recorded = 0, replayed = 0;
    int64_t dropped = 0;  // recordings
  };
  const Counts& counts() const { return counts_; }
  bool enabled() const { return enabled_; }

 private:
  struct Entry {
    Shape shape;
    Device::Recording recording;  // none: not recorded yet
    bool recordable = true;
  };

  // Returns the entry of a shape, moved to the front, or a new one without a graph.
  Entry* Find(Shape shape, bool* found);
  void Record(Entry* entry, const std::function<void()>& ops);
  void Drop(Entry* entry);
  void DropAll();

  Device* const device_;
  const size_t max_;
  const bool enabled_;
  uint64_t moves_ = 0;        // Device::moves() of the recordings
  std::list<Entry> entries_;  // most recently used first
  Counts counts_;
};

}  // namespace polysketch::cuda
