// The attention op of the cuda backend: plans a step once for each group of layers (LayerGroup) and runs
// the plan in every layer of the group.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/device.h"

namespace polysketch::cuda {

struct AttentionShape;

using StoreStep = std::function<void(const StoredStep&)>;

class AttentionRunner {
 public:
  explicit AttentionRunner(Device* device) : device_(device) {}

  // Plans the step of these layers and uploads its job lists. Does nothing for a group whose last plan is
  // that of this step. Finish ends the step.
  void Prepare(std::span<const AttentionSpec> layers, std::span<const Segment> segments);
  // Allocates the workspace of any step of at most `rows` rows and `segments` segments in layers of this
  // attention; `blocks` is the number of blocks of all KV states together.
  void Reserve(const AttentionSpec& spec, int64_t rows, int64_t segments, int64_t blocks);
  // Appends what the launches of the prepared step of these layers depend on.
  void AppendShape(std::span<const AttentionSpec> layers, std::vector<int64_t>* shape);
  // Gives up the blocks that windows have left after a step of these segments.
  void Finish(std::span<const Segment> segments);
  // Runs one layer. Outside Prepare and Finish it prepares the step first, and the last layer of a group
  // gives up such blocks.
  void Run(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
           const AttentionInput& input, const AttentionOutput& out) {
    Run(spec, layer, segments, input, Bf16Rows(), out, nullptr);
  }
  // The same with `rows` in place of the queries and keys of `input`, only if TakesBf16Rows; and
  // with `store`, if it is not null, in place of the kernel that stores keys and values.
  void Run(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
           const AttentionInput& input, const Bf16Rows& rows, const AttentionOutput& out,
           const StoreStep& store);
  bool TakesBf16Rows(const AttentionSpec& spec) const;

 private:
  // What a plan depends on, for each segment.
  struct Key {
    int64_t position, dropped;
    const uint8_t* sums;
    int32_t first_row, rows;
    bool operator==(const Key&) const = default;
  };
  // The last step of the layers with one attention, and its plans.
  struct Step {
    explicit Step(const AttentionSpec& attention, int64_t shared_limit);

    const AttentionSpec spec;
    PlanShape shape;
    std::vector<Key> keys;
    std::vector<uint8_t*> pieces;  // of the states, segment by segment
    WorkspaceAddresses addresses;
    std::vector<AttentionPlan> plans;
    DeviceArray<uint8_t> jobs;
    DeviceArray<uint8_t*> tables;
  };

  Step& StepOf(const AttentionSpec& spec);
  void Prepare(Step* step, std::span<const Segment> segments);
  // Grows the workspace, and returns its addresses.
  WorkspaceAddresses Workspace(Step* step, const WorkspaceNeeds& needs);
  void Upload(Step* step);
  // GATED: with a decay gate. WINDOW: with a window, whose far part has the gate.
  template <bool GATED, bool WINDOW>
  void RunKernels(const AttentionShape& shape, const Step& step, const AttentionPlan& plan,
                  const StoreStep& store);
  // Format: one of attention_format.cuh, other than PlainState.
  template <typename Format, bool GATED, bool WINDOW>
  void RunNarrow(const AttentionShape& shape, const Step& step, const AttentionPlan& plan,
                 const StoreStep& store);
  template <typename Kernels>
  void RunPlan(const Kernels& kernels, const Step& step, const AttentionPlan& plan,
               const StoreStep& store);

  Device* const device_;
  std::list<Step> steps_;  // one for each attention of the models
  bool prepared_ = false;  // between Prepare and Finish
  // The workspace, which all layers share.
  DeviceArray<uint8_t> far_keys_, near_keys_, values_, decay_sums_, snapshots_;
  DeviceArray<float> partials_, decays_, results_;
  DeviceArray<int32_t> counters_;  // of walks and of parts; set to zero in every layer
};

}  // namespace polysketch::cuda
