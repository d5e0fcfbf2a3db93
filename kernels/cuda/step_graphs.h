// Whole steps as CUDA graphs. A decoding step is some hundred launches of a few microseconds each;
// recorded once, they start as one.
//
// What a step's launches depend on besides device memory is its shape: a list of numbers. The first
// step of a shape runs as it is (the arrays of the workspace grow then), the second is recorded,
// all later ones are replayed. What changes from step to step (tokens, positions, job lists) has to
// be uploaded to the same places before. When an array of the workspace moves, all recordings are
// dropped, for they hold addresses. At most kMax shapes are remembered, the least recently used
// goes.
//
// POLYSKETCH_CUDA_GRAPHS=off runs every step as it is.
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

  explicit StepGraphs(Device* device);
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Runs `ops`, or what it launched for the same shape.
  void Run(Shape shape, const std::function<void()>& ops);

  struct Counts {
    int64_t direct = 0, recorded = 0, replayed = 0;
    int64_t dropped = 0;  // recordings that could not be used any more
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Entry {
    Shape shape;
    cudaGraphExec_t graph = nullptr;  // null: not recorded yet
    bool recordable = true;
  };

  // The entry of a shape, in front; a new one without a graph if there was none.
  Entry* Find(Shape shape, bool* found);
  void Record(Entry* entry, const std::function<void()>& ops);
  void Drop(Entry* entry);
  void DropAll();

  Device* const device_;
  const bool on_;
  uint64_t moves_ = 0;        // of the device, that the recordings know
  std::list<Entry> entries_;  // most recently used first
  Counts counts_;
};

}  // namespace polysketch::cuda
