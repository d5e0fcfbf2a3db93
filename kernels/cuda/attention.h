// The attention op of the cuda backend: plans a step once, runs it for every layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device.h"

namespace polysketch::cuda {

class AttentionRunner {
 public:
  explicit AttentionRunner(Device* device) : device_(device) {}

  // Plans and uploads what Run of any layer of the step needs; Run does the same when it was not
  // called.
  void Prepare(const AttentionSpec& spec, std::span<const Segment> segments);
  // Makes the room that any step of so many rows and segments needs; of a KV kind, whose states
  // have so many blocks together.
  void Reserve(const AttentionSpec& spec, int64_t rows, int64_t segments, int64_t blocks);
  // What the launches of the prepared step depend on, appended.
  void AppendShape(std::vector<int64_t>* shape) const;
  void Run(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
           const AttentionInput& input, float* out);

 private:
  // The plan of some of a step's segments, and its job lists on the device.
  struct Group {
    AttentionPlan plan;
    const FoldJob *early_folds, *folds;
    const ScanJob *early_scans, *scans;
    const CopyJob* copies;
    const StoreJob *stores, *late_stores;
    const AttendJob *tiles, *few;
  };
  // What a plan depends on.
  struct Key {
    const uint8_t* memory;  // of the state; null in KV kinds, which are known by their blocks
    int64_t position;
    int32_t first_row, rows;
    bool operator==(const Key&) const = default;
  };

  WorkspacePlaces Workspace(const AttentionSpec& spec, const PlanShape& shape,
                            const WorkspaceNeeds& needs);
  void Upload();
  // visit(list of jobs, place of its address on the device) for each list of a group.
  template <typename AnyGroup, typename Visit>
  static void ForLists(AnyGroup& group, const Visit& visit);
  template <typename Kernels>
  void RunGroup(const Kernels& kernels, const Group& group);

  Device* const device_;
  // The plan of the last call: every layer of a step asks for the same one.
  std::vector<Key> keys_;
  std::vector<uint8_t*> blocks_;  // of KV states, segment by segment
  AttentionSpec planned_spec_;
  PlanShape shape_;
  std::vector<Group> groups_;
  DeviceArray<uint8_t> jobs_;
  DeviceArray<uint8_t> far_keys_, near_keys_, values_, snapshots_;
  DeviceArray<uint8_t*> tables_;
  DeviceArray<float> partials_, results_;
};

}  // namespace polysketch::cuda
