// The attention op of the cuda backend: plans a step once and runs the plan in every layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/device.h"

namespace polysketch::cuda {

struct AttentionShape;

class AttentionRunner {
 public:
  explicit AttentionRunner(Device* device) : device_(device) {}

  // Plans the step and uploads its job lists. Does nothing if the plan of the last call is that of
  // this step.
  void Prepare(const AttentionSpec& spec, std::span<const Segment> segments);
  // Allocates the workspace of any step of at most `rows` rows and `segments` segments; `blocks` is
  // the number of blocks of all KV states together.
  void Reserve(const AttentionSpec& spec, int64_t rows, int64_t segments, int64_t blocks);
  // Appends what the launches of the prepared step depend on.
  void AppendShape(std::vector<int64_t>* shape) const;
  // Prepares the step and runs one layer.
  void Run(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
           const AttentionInput& input, const AttentionOutput& out) {
    Run(spec, layer, segments, input, Bf16Rows(), out);
  }
  // The same with `rows` in place of the queries and keys of `input`. Only if TakesBf16Rows.
  void Run(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
           const AttentionInput& input, const Bf16Rows& rows, const AttentionOutput& out);
  bool TakesBf16Rows(const AttentionSpec& spec) const;

 private:
  // What a plan depends on, for each segment.
  struct Key {
    const uint8_t* memory;  // of the state; null in KV kinds, where the blocks count
    int64_t position;
    int32_t first_row, rows;
    bool operator==(const Key&) const = default;
  };

  WorkspaceAddresses Workspace(const AttentionSpec& spec, const PlanShape& shape,
                               const WorkspaceNeeds& needs);
  void Upload();
  // GATED: with a decay gate.
  template <bool GATED>
  void RunKernels(const AttentionShape& shape, const AttentionPlan& plan);
  template <typename Kernels>
  void RunPlan(const Kernels& kernels, const AttentionPlan& plan);

  Device* const device_;
  // The last step, and its plans.
  std::vector<Key> keys_;
  std::vector<uint8_t*> blocks_;  // of KV states, segment by segment
  AttentionSpec planned_spec_;
  PlanShape shape_;
  std::vector<AttentionPlan> plans_;
  DeviceArray<uint8_t> jobs_;
  DeviceArray<uint8_t> far_keys_, near_keys_, values_, decay_sums_, snapshots_;
  DeviceArray<uint8_t*> tables_;
  DeviceArray<float> partials_, results_;
  DeviceArray<int32_t> counters_;  // of walks and of parts; set to zero in every layer
};

}  // namespace polysketch::cuda
