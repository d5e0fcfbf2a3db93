// Plans the attention of a step: turns its segments into jobs for the kernels (attention_jobs.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention_jobs.h"
#include "kernels/cuda/state.h"

namespace polysketch::cuda {

// Sizes of the workspace arrays, in the units of the jobs.
struct WorkspaceNeeds {
  int64_t tokens = 0;     // gathered tokens
  int64_t partials = 0;   // folded blocks
  int64_t snapshots = 0;  // far states
  int64_t parts = 0;      // rows of results of parts
  int64_t blocks = 0;     // of KV states
  int64_t walks = 0;      // jobs in `walks`
  int64_t few = 0;        // jobs in `few`

  // Raises each size to that of `other`.
  void Include(const WorkspaceNeeds& other);
};

// Device addresses of the workspace arrays. Heads are kv heads. T: of the block buffer (HeadLayout::element).
struct WorkspaceAddresses {
  uint64_t far_keys = 0;    // [heads][tokens][far_dim] of T
  uint64_t near_keys = 0;   // [heads][tokens][near_dim] of T
  uint64_t values = 0;      // [heads][tokens][d] of T
  uint64_t decay_sums = 0;  // [heads][tokens] of float32; with a decay gate
  uint64_t snapshots = 0;   // [snapshots][heads]: PlanShape
  uint64_t tables = 0;      // [blocks]: addresses of KV blocks, segment by segment

  bool operator==(const WorkspaceAddresses&) const = default;
};

template <typename Job>
struct JobList {
  std::vector<Job> jobs;
  const Job* on_device = nullptr;
};

// Jobs of a group of segments that share the workspace. The lists run in this order.
struct AttentionPlan {
  // Blocks that were full when the segment began, folded from the state's buffer.
  JobList<FoldJob> early_folds;
  JobList<ScanJob> early_scans;
  JobList<WalkJob> early_walks;  // instead of early folds and scans
  JobList<CopyJob> copies;
  JobList<StoreJob> stores;
  JobList<FoldJob> folds;
  JobList<ScanJob> scans;
  JobList<WalkJob> walks;    // instead of folds and scans
  JobList<AttendJob> tiles;  // many rows
  JobList<AttendJob> few;    // at most `few_rows` rows
  JobList<StoreJob> late_stores;
  int64_t max_parts = 0;  // of a job in `few`
  int32_t max_rows = 0;   // of a job in `few`

  // Calls visit(list) for every list of a plan.
  template <typename Plan, typename Visit>
  static void ForLists(Plan& plan, const Visit& visit) {
    visit(plan.early_folds);
    visit(plan.early_scans);
    visit(plan.early_walks);
    visit(plan.copies);
    visit(plan.stores);
    visit(plan.folds);
    visit(plan.scans);
    visit(plan.walks);
    visit(plan.tiles);
    visit(plan.few);
    visit(plan.late_stores);
  }
};

struct PlanShape {
  const AttentionSpec* spec = nullptr;
  int64_t tile_rows = 1;  // maximum rows of a job in `tiles`
  int64_t few_rows = 0;   // maximum rows of a job in `few`
  int64_t far_parts = 0;  // parts of the far sum
  bool walks = false;     // whether blocks are added by WalkJobs
  // A snapshot of one head: what queries read of S, and z at snapshot_z; of a walk GroupStateBytes.
  int64_t snapshot_bytes = 0, snapshot_z = 0;
};

// Parts of the near sum of keys [0, keys) of a block.
constexpr int64_t kPartKeys = 64;
inline int64_t NearParts(int64_t keys) { return (keys + kPartKeys - 1) / kPartKeys; }
// Whether a window is one of blocks. The rows of a job then have the same window.
inline bool HasBlockWindow(const AttentionSpec& spec) {
  return spec.window > 0 && spec.window_kind == WindowKind::kBlocks;
}

WorkspaceNeeds NeedsOf(const PlanShape& shape, std::span<const Segment> segments);
// At least the needs of any step of `rows` rows and `segments` segments; `blocks` is the number of
// blocks of all KV states together, in the layers of one group.
WorkspaceNeeds MaxNeeds(const PlanShape& shape, int64_t rows, int64_t segments, int64_t blocks);
AttentionPlan MakePlan(const PlanShape& shape, std::span<const Segment> segments,
                       const WorkspaceNeeds& needs, const WorkspaceAddresses& addresses);

}  // namespace polysketch::cuda
