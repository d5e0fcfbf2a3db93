#include "kernels/cuda/attention_plan.h"

#include <algorithm>

namespace polysketch::cuda {
namespace {

constexpr int64_t kMaxParts = 65535;  // the depth of a grid

// Walks the segments; the sizes it counts are the workspace needs, so that what is planned and what
// is asked for cannot differ.
class Planner {
 public:
  Planner(const PlanShape& shape, const WorkspaceNeeds& total, const WorkspacePlaces& places)
      : shape_(shape), spec_(*shape.spec), layout_(spec_), total_(total), places_(places) {}

  void Add(const Segment& segment) {
    if (spec_.kv_cache()) {
      AddCached(segment);
    } else {
      AddRecurrent(segment);
    }
  }

  AttentionPlan plan;
  WorkspaceNeeds needs;

 private:
  Place InState(const CudaState& state, int64_t offset) const {
    return {reinterpret_cast<uint64_t>(state.memory()) + offset, layout_.size,
            layout_.size * spec_.heads};
  }
  TokenArrays Buffer(const CudaState& state) const {
    return {InState(state, layout_.far_keys), InState(state, layout_.near_keys),
            InState(state, layout_.values)};
  }
  // Tokens from `token` of the workspace on.
  TokenArrays Gathered(int64_t token) const {
    const auto place = [&](uint64_t base, int64_t dim) {
      const int64_t row = dim * layout_.element;
      return Place{base + token * row, total_.tokens * row, 0};
    };
    return {place(places_.far_keys, spec_.far_dim()), place(places_.near_keys, spec_.near_dim()),
            place(places_.values, spec_.head_dim)};
  }
  Place Snapshot(int64_t index, int64_t offset) const {
    return {places_.snapshots + index * spec_.heads * shape_.snapshot_bytes + offset,
            shape_.snapshot_bytes, 0};
  }

  void AddRecurrent(const Segment& segment) {
    const auto& state = static_cast<const CudaState&>(*segment.state);
    const int64_t b = spec_.block, position = state.position();
    const int64_t first_block = position / b, last_block = (position + segment.rows - 1) / b;
    const int64_t place = position % b;
    const Place sums = InState(state, 0), weights = InState(state, layout_.z);
    if (place == 0 && position > 0) {
      plan.early_folds.push_back({Buffer(state), needs.partials});
      plan.early_scans.push_back({sums, weights, needs.partials++, -1, 1});
    }
    if (first_block == last_block) {
      plan.stores.push_back({Buffer(state), nullptr, 0, segment.first_row, segment.rows,
                             static_cast<int32_t>(place)});
      Queries({Buffer(state), nullptr, sums, weights, first_block, 0, segment.first_row,
               segment.rows, static_cast<int32_t>(place), first_block > 0},
              true);
      return;
    }

    // All tokens of the blocks that the segment touches, side by side.
    const int64_t gathered = needs.tokens;
    needs.tokens += (last_block - first_block + 1) * b;
    if (place > 0) {
      plan.copies.push_back({Buffer(state), Gathered(gathered), static_cast<int32_t>(place)});
    }
    plan.stores.push_back({Gathered(gathered), nullptr, 0, segment.first_row, segment.rows,
                           static_cast<int32_t>(place)});
    const int64_t folds = last_block - first_block;
    const int64_t snapshots = needs.snapshots;
    plan.scans.push_back({sums, weights, needs.partials, snapshots, static_cast<int32_t>(folds)});
    for (int64_t i = 0; i < folds; ++i) {
      plan.folds.push_back({Gathered(gathered + i * b), needs.partials++});
    }
    needs.snapshots += folds;

    int64_t row = 0;
    for (int64_t block = first_block; block <= last_block; ++block) {
      const int64_t i = block - first_block;
      const int64_t from = block == first_block ? place : 0;
      const int64_t count = std::min<int64_t>(b - from, segment.rows - row);
      // The last block reads what the scan leaves in the state.
      const bool snapshot = i < folds;
      const Place far = snapshot ? Snapshot(snapshots + i, 0) : sums;
      const Place z = snapshot ? Snapshot(snapshots + i, shape_.snapshot_z) : weights;
      Queries({Gathered(gathered + i * b), nullptr, far, z, block, 0,
               static_cast<int32_t>(segment.first_row + row), static_cast<int32_t>(count),
               static_cast<int32_t>(from), block > 0},
              true);
      row += count;
    }
    const int64_t tail = position + segment.rows - last_block * b;
    plan.late_stores.push_back({Buffer(state), nullptr, 0,
                                static_cast<int32_t>(segment.first_row + segment.rows - tail),
                                static_cast<int32_t>(tail), 0});
  }

  void AddCached(const Segment& segment) {
    const auto& state = static_cast<const CudaState&>(*segment.state);
    const int64_t b = spec_.block;
    const auto* table =
        reinterpret_cast<uint8_t* const*>(places_.tables + needs.blocks * sizeof(uint8_t*));
    needs.blocks += std::ssize(state.blocks());
    // The results of parts grow with the past: of decoding they are worth their room, of the ends
    // of a prompt's chunk not.
    const bool few = segment.rows <= shape_.few_rows;
    for (int64_t row = 0; row < segment.rows;) {
      const int64_t token = state.position() + row;
      const int64_t count = std::min<int64_t>(segment.rows - row, b - token % b);
      // Addresses within a block of the cache.
      const auto place = [&](int64_t offset) {
        return Place{static_cast<uint64_t>(offset), layout_.size, layout_.size * spec_.heads};
      };
      const TokenArrays keys = {Place(), place(layout_.near_keys), place(layout_.values)};
      const auto first_row = static_cast<int32_t>(segment.first_row + row);
      const auto in_block = static_cast<int32_t>(token % b);
      plan.stores.push_back(
          {keys, table, token / b, first_row, static_cast<int32_t>(count), in_block});
      Queries({keys, table, Place(), Place(), token / b, 0, first_row, static_cast<int32_t>(count),
               in_block, 0},
              few);
      row += count;
    }
  }

  // Queries of one block: as few, part by part, if they may be and are; else cut into tiles.
  void Queries(AttendJob job, bool few) {
    const int64_t earlier = spec_.kv_cache() ? job.block * NearParts(spec_.block) : 0;
    const int64_t parts =
        (job.past != 0 ? shape_.far_parts : 0) + earlier + NearParts(job.place + job.count);
    if (few && job.count <= shape_.few_rows && parts <= kMaxParts) {
      job.partial = needs.parts;
      needs.parts += parts * job.count;
      plan.max_parts = std::max(plan.max_parts, parts);
      plan.few.push_back(job);
      return;
    }
    const int32_t rows = job.count, row = job.row, place = job.place;
    for (int32_t i = 0; i < rows; i += job.count) {
      job.row = row + i;
      job.place = place + i;
      job.count = static_cast<int32_t>(std::min<int64_t>(rows - i, shape_.tile_rows));
      plan.tiles.push_back(job);
    }
  }

  const PlanShape& shape_;
  const AttentionSpec& spec_;
  const HeadLayout layout_;
  const WorkspaceNeeds total_;
  const WorkspacePlaces places_;
};

}  // namespace

WorkspaceNeeds NeedsOf(const PlanShape& shape, std::span<const Segment> segments) {
  Planner planner(shape, WorkspaceNeeds(), WorkspacePlaces());
  for (const Segment& segment : segments) planner.Add(segment);
  return planner.needs;
}

WorkspaceNeeds MostNeeds(const PlanShape& shape, int64_t rows, int64_t segments, int64_t blocks) {
  const AttentionSpec& spec = *shape.spec;
  const int64_t b = spec.block;
  WorkspaceNeeds most;
  if (spec.kv_cache()) {
    most.blocks = blocks;
    most.parts = shape.few_rows * blocks * NearParts(b);
    return most;
  }
  // A segment of n >= 2 rows that touches k >= 2 blocks has all of k - 2: k b <= n + 2 b.
  most.tokens = rows + 2 * b * std::min(segments, rows / 2);
  most.snapshots = rows / b + segments;
  most.partials = most.snapshots + segments;  // blocks that were full before
  // Few rows of a block: the ends of a segment, or all of it where blocks are small.
  const int64_t few = b <= shape.few_rows ? rows : std::min(rows, 2 * segments * shape.few_rows);
  most.parts = few * (shape.far_parts + NearParts(b));
  return most;
}

AttentionPlan MakePlan(const PlanShape& shape, std::span<const Segment> segments,
                       const WorkspaceNeeds& needs, const WorkspacePlaces& places) {
  Planner planner(shape, needs, places);
  for (const Segment& segment : segments) planner.Add(segment);
  return std::move(planner.plan);
}

}  // namespace polysketch::cuda
