// A step's attention as jobs for the kernels (attention_jobs.h).
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
};

// Where the workspace arrays lie: addresses on the device.
struct WorkspacePlaces {
  uint64_t far_keys = 0;   // [heads][tokens][far_dim] of T
  uint64_t near_keys = 0;  // [heads][tokens][near_dim]
  uint64_t values = 0;     // [heads][tokens][d]
  uint64_t snapshots = 0;  // [snapshots][heads]: S as it is read, then z
  uint64_t tables = 0;     // [blocks]: addresses of blocks, segment by segment
};

// One group of segments that share the workspace. The lists run in this order.
struct AttentionPlan {
  // Blocks that were full when the segment began, folded from the state's buffer.
  std::vector<FoldJob> early_folds;
  std::vector<ScanJob> early_scans;
  std::vector<CopyJob> copies;
  std::vector<StoreJob> stores;
  std::vector<FoldJob> folds;
  std::vector<ScanJob> scans;
  std::vector<AttendJob> tiles;  // many rows
  std::vector<AttendJob> few;    // at most `few_rows`
  std::vector<StoreJob> late_stores;
  int64_t max_parts = 0;  // of a job in `few`
};

struct PlanShape {
  const AttentionSpec* spec = nullptr;
  int64_t tile_rows = 1;       // rows of a job in `tiles`
  int64_t few_rows = 0;        // jobs of at most so many rows go to `few`
  int64_t far_parts = 0;       // parts of the far sum
  int64_t snapshot_bytes = 0;  // S as it is read, and z, of one head
  int64_t snapshot_z = 0;      // offset of z in it
};

// Parts of the near sum of keys [0, keys) of a block.
constexpr int64_t kPartKeys = 64;
inline int64_t NearParts(int64_t keys) { return (keys + kPartKeys - 1) / kPartKeys; }

WorkspaceNeeds NeedsOf(const PlanShape& shape, std::span<const Segment> segments);
// At least the needs of any step of so many rows and segments, whose states have so many blocks
// together if they are of a KV kind.
WorkspaceNeeds MostNeeds(const PlanShape& shape, int64_t rows, int64_t segments, int64_t blocks);
AttentionPlan MakePlan(const PlanShape& shape, std::span<const Segment> segments,
                       const WorkspaceNeeds& needs, const WorkspacePlaces& places);

}  // namespace polysketch::cuda
