#include "kernels/cuda/attention_plan.h"

#include <algorithm>

namespace polysketch::cuda {
namespace {

constexpr int64_t kMaxParts = 65535;  // maximum depth of a grid

// Turns segments into jobs and counts the workspace that they need. One class does both, so that
// the plan and the needs cannot differ.
class Planner {
 public:
  Planner(const PlanShape& shape, const WorkspaceNeeds& total, const WorkspaceAddresses& addresses)
      : shape_(shape), spec_(*shape.spec), layout_(spec_), total_(total), addresses_(addresses) {}

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
  HeadArray InState(const CudaState& state, int64_t offset) const {
    return {reinterpret_cast<uint64_t>(state.memory()) + offset, layout_.size,
            layout_.size * spec_.heads};
  }
  TokenArrays Buffer(const CudaState& state) const {
    return {InState(state, layout_.far_keys), InState(state, layout_.near_keys),
            InState(state, layout_.values), InState(state, layout_.decay_sums)};
  }
  // The tokens of the workspace from `token` on.
  TokenArrays Gathered(int64_t token) const {
    const auto array = [&](uint64_t base, int64_t bytes) {  // of a token
      return HeadArray{base + token * bytes, total_.tokens * bytes, 0};
    };
    return {array(addresses_.far_keys, spec_.far_dim() * layout_.element),
            array(addresses_.near_keys, spec_.near_dim() * layout_.element),
            array(addresses_.values, spec_.head_dim * layout_.element),
            array(addresses_.decay_sums, sizeof(float))};
  }
  HeadArray Snapshot(int64_t index, int64_t offset) const {
    return {addresses_.snapshots + index * spec_.heads * shape_.snapshot_bytes + offset,
            shape_.snapshot_bytes, 0};
  }

  void AddRecurrent(const Segment& segment) {
    const auto& state = static_cast<const CudaState&>(*segment.state);
    const int64_t b = spec_.block, position = state.position();
    const int64_t first_block = position / b, last_block = (position + segment.rows - 1) / b;
    const int64_t offset = position % b;
    const HeadArray sums = InState(state, 0), weights = InState(state, layout_.z);
    if (offset == 0 && position > 0 && shape_.walks) {
      plan.early_walks.jobs.push_back({Buffer(state), sums, weights, -1, 1});
    } else if (offset == 0 && position > 0) {
      plan.early_folds.jobs.push_back({Buffer(state), needs.partials});
      plan.early_scans.jobs.push_back(
          {sums, weights, needs.partials++, -1, 1, InState(state, layout_.decay_sums)});
    }
    if (first_block == last_block) {
      plan.stores.jobs.push_back({Buffer(state), nullptr, 0, segment.first_row, segment.rows,
                                  static_cast<int32_t>(offset)});
      Queries({Buffer(state), nullptr, sums, weights, first_block, 0, segment.first_row,
               segment.rows, static_cast<int32_t>(offset), first_block > 0},
              true);
      return;
    }

    // The workspace gets all tokens of the blocks that the segment touches, one after the other.
    const int64_t gathered = needs.tokens;
    needs.tokens += (last_block - first_block + 1) * b;
    if (offset > 0) {
      plan.copies.jobs.push_back({Buffer(state), Gathered(gathered), static_cast<int32_t>(offset)});
    }
    plan.stores.jobs.push_back({Gathered(gathered), nullptr, 0, segment.first_row, segment.rows,
                                static_cast<int32_t>(offset)});
    const int64_t folds = last_block - first_block;
    const int64_t snapshots = needs.snapshots;
    AddBlocks(gathered, sums, weights, snapshots, static_cast<int32_t>(folds));
    needs.snapshots += folds;

    int64_t row = 0;
    for (int64_t block = first_block; block <= last_block; ++block) {
      const int64_t i = block - first_block;
      const int64_t from = block == first_block ? offset : 0;
      const int64_t count = std::min<int64_t>(b - from, segment.rows - row);
      // The last block reads what the scan leaves in the state.
      const bool snapshot = i < folds;
      const HeadArray far = snapshot ? Snapshot(snapshots + i, 0) : sums;
      const HeadArray z = snapshot ? Snapshot(snapshots + i, shape_.snapshot_z) : weights;
      AttendJob job{Gathered(gathered + i * b),
                    nullptr,
                    far,
                    z,
                    block,
                    0,
                    static_cast<int32_t>(segment.first_row + row),
                    static_cast<int32_t>(count),
                    static_cast<int32_t>(from),
                    block > 0};
      if (shape_.walks) {
        job.walk = static_cast<int32_t>(plan.walks.jobs.size()) - 1;
        job.stored = static_cast<int32_t>(i + 1);
      }
      Queries(job, true);
      row += count;
    }
    const int64_t tail = position + segment.rows - last_block * b;
    plan.late_stores.jobs.push_back({Buffer(state), nullptr, 0,
                                     static_cast<int32_t>(segment.first_row + segment.rows - tail),
                                     static_cast<int32_t>(tail), 0});
  }

  // Adds `count` full blocks, from token `first` of the workspace on, to a state.
  void AddBlocks(int64_t first, const HeadArray& sums, const HeadArray& weights, int64_t snapshots,
                 int32_t count) {
    if (shape_.walks) {
      plan.walks.jobs.push_back({Gathered(first), sums, weights, snapshots, count});
      ++needs.walks;
      return;
    }
    plan.scans.jobs.push_back(
        {sums, weights, needs.partials, snapshots, count, Gathered(first).decay_sums});
    for (int32_t i = 0; i < count; ++i) {
      plan.folds.jobs.push_back({Gathered(first + i * spec_.block), needs.partials++});
    }
  }

  void AddCached(const Segment& segment) {
    const auto& state = static_cast<const CudaState&>(*segment.state);
    const int64_t b = spec_.block;
    const auto* table =
        reinterpret_cast<uint8_t* const*>(addresses_.tables + needs.blocks * sizeof(uint8_t*));
    needs.blocks += std::ssize(state.blocks());
    // The memory for the results of parts grows with the past. It is spent on decoding, and not on
    // the ends of a prompt's chunk.
    const bool few = segment.rows <= shape_.few_rows;
    for (int64_t row = 0; row < segment.rows;) {
      const int64_t token = state.position() + row;
      const int64_t count = std::min<int64_t>(segment.rows - row, b - token % b);
      const auto in_block = [&](int64_t offset) {
        return HeadArray{static_cast<uint64_t>(offset), layout_.size, layout_.size * spec_.heads};
      };
      const TokenArrays keys = {HeadArray(), in_block(layout_.near_keys), in_block(layout_.values),
                                HeadArray()};
      const auto first_row = static_cast<int32_t>(segment.first_row + row);
      const auto offset = static_cast<int32_t>(token % b);
      plan.stores.jobs.push_back(
          {keys, table, token / b, first_row, static_cast<int32_t>(count), offset});
      Queries({keys, table, HeadArray(), HeadArray(), token / b, 0, first_row,
               static_cast<int32_t>(count), offset, 0},
              few);
      row += count;
    }
  }

  // Adds queries of one block: part by part if `few` and the rows are few, else cut into tiles.
  void Queries(AttendJob job, bool few) {
    const int64_t earlier = spec_.kv_cache() ? job.block * NearParts(spec_.block) : 0;
    const int64_t parts =
        (job.past != 0 ? shape_.far_parts : 0) + earlier + NearParts(job.block_offset + job.count);
    if (few && job.count <= shape_.few_rows && parts <= kMaxParts) {
      job.partial = needs.parts;
      needs.parts += parts * job.count;
      plan.max_parts = std::max(plan.max_parts, parts);
      plan.max_rows = std::max(plan.max_rows, job.count);
      plan.few.jobs.push_back(job);
      ++needs.few;
      return;
    }
    const int32_t rows = job.count, row = job.row, offset = job.block_offset;
    for (int32_t i = 0; i < rows; i += job.count) {
      job.row = row + i;
      job.block_offset = offset + i;
      job.count = static_cast<int32_t>(std::min<int64_t>(rows - i, shape_.tile_rows));
      plan.tiles.jobs.push_back(job);
    }
  }

  const PlanShape& shape_;
  const AttentionSpec& spec_;
  const HeadLayout layout_;
  const WorkspaceNeeds total_;
  const WorkspaceAddresses addresses_;
};

}  // namespace

void WorkspaceNeeds::Include(const WorkspaceNeeds& other) {
  tokens = std::max(tokens, other.tokens);
  partials = std::max(partials, other.partials);
  snapshots = std::max(snapshots, other.snapshots);
  parts = std::max(parts, other.parts);
  blocks = std::max(blocks, other.blocks);
  walks = std::max(walks, other.walks);
  few = std::max(few, other.few);
}

WorkspaceNeeds NeedsOf(const PlanShape& shape, std::span<const Segment> segments) {
  Planner planner(shape, WorkspaceNeeds(), WorkspaceAddresses());
  for (const Segment& segment : segments) planner.Add(segment);
  return planner.needs;
}

WorkspaceNeeds MaxNeeds(const PlanShape& shape, int64_t rows, int64_t segments, int64_t blocks) {
  const AttentionSpec& spec = *shape.spec;
  const int64_t b = spec.block;
  WorkspaceNeeds max;
  if (spec.kv_cache()) {
    max.blocks = blocks;
    max.parts = shape.few_rows * blocks * NearParts(b);
    max.few = shape.few_rows > 0 ? rows : 0;
    return max;
  }
  // A segment of n >= 2 rows that touches k >= 2 blocks fills k - 2 of them: k b <= n + 2 b.
  max.tokens = rows + 2 * b * std::min(segments, rows / 2);
  max.snapshots = rows / b + segments;
  max.walks = shape.walks ? segments : 0;
  // Blocks that were full before, and those of the segments.
  max.partials = shape.walks ? 0 : max.snapshots + segments;
  // Jobs of few rows: the ends of a segment, or all of it if blocks are small.
  const int64_t few = b <= shape.few_rows ? rows : std::min(rows, 2 * segments * shape.few_rows);
  max.parts = few * (shape.far_parts + NearParts(b));
  if (few > 0) max.few = b <= shape.few_rows ? rows : std::min(rows, 2 * segments);
  return max;
}

AttentionPlan MakePlan(const PlanShape& shape, std::span<const Segment> segments,
                       const WorkspaceNeeds& needs, const WorkspaceAddresses& addresses) {
  Planner planner(shape, needs, addresses);
  for (const Segment& segment : segments) planner.Add(segment);
  return std::move(planner.plan);
}

}  // namespace polysketch::cuda
