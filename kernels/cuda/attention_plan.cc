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
    const LayerGroup& group = static_cast<const CudaState&>(*segment.state).group(spec_);
    if (spec_.kv_cache()) {
      AddCached(segment, group);
    } else {
      AddRecurrent(segment, group.pieces.front());
    }
  }

  AttentionPlan plan;
  WorkspaceNeeds needs;

 private:
  // An array of every head of a piece of memory (LayerGroup).
  HeadArray InPiece(const uint8_t* piece, int64_t offset) const {
    return {reinterpret_cast<uint64_t>(piece) + offset, layout_.size,
            layout_.size * spec_.key_heads()};
  }
  TokenArrays Buffer(const uint8_t* piece) const {
    return {InPiece(piece, layout_.far_keys), InPiece(piece, layout_.near_keys),
            InPiece(piece, layout_.values), InPiece(piece, layout_.decay_sums)};
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
  // The far state of a recurrent kind, and that of a window.
  FarSums StateIn(const uint8_t* piece) const {
    return {InPiece(piece, 0), InPiece(piece, layout_.z), InPiece(piece, layout_.read)};
  }
  FarSums StateIn(const LayerGroup& group) const {
    return {InSums(group, 0), InSums(group, layout_.z), InSums(group, layout_.read)};
  }
  // An array of every head of the sums of a far part.
  HeadArray InSums(const LayerGroup& group, int64_t offset) const {
    return {reinterpret_cast<uint64_t>(group.sums) + offset, layout_.sums,
            layout_.sums * spec_.key_heads()};
  }
  HeadArray Snapshot(int64_t index, int64_t offset) const {
    return {addresses_.snapshots + index * spec_.key_heads() * shape_.snapshot_bytes + offset,
            shape_.snapshot_bytes, 0};
  }

  void AddRecurrent(const Segment& segment, const uint8_t* memory) {
    const int64_t b = spec_.block, position = segment.state->position();
    const int64_t first_block = position / b, last_block = (position + segment.rows - 1) / b;
    const int64_t offset = position % b;
    const FarSums state = StateIn(memory);
    const TokenArrays buffer = Buffer(memory);
    if (offset == 0 && position > 0 && shape_.walks) {
      plan.early_walks.jobs.push_back({buffer, state, -1, 1});
    } else if (offset == 0 && position > 0) {
      plan.early_folds.jobs.push_back({buffer, needs.partials});
      plan.early_scans.jobs.push_back({state, needs.partials++, -1, 1});
    }
    if (first_block == last_block) {
      plan.stores.jobs.push_back(
          {buffer, nullptr, 0, segment.first_row, segment.rows, static_cast<int32_t>(offset)});
      AttendJob job{.keys = buffer,
                    .sums = state.read,
                    .weights = state.weights,
                    .row = segment.first_row,
                    .count = segment.rows,
                    .block_offset = static_cast<int32_t>(offset),
                    .past = first_block > 0};
      if (job.past != 0 && ReadsSnapshots(job)) {
        const int64_t snapshot = needs.snapshots;
        AddBlocks(0, state, 0);
        UseSnapshot(snapshot, 0, &job);
      }
      Queries(job, true);
      return;
    }

    // The workspace gets all tokens of the blocks that the segment touches, one after the other.
    const int64_t gathered = needs.tokens;
    needs.tokens += (last_block - first_block + 1) * b;
    if (offset > 0) {
      plan.copies.jobs.push_back({buffer, Gathered(gathered), static_cast<int32_t>(offset)});
    }
    plan.stores.jobs.push_back({Gathered(gathered), nullptr, 0, segment.first_row, segment.rows,
                                static_cast<int32_t>(offset)});
    const int64_t folds = last_block - first_block;
    const int64_t snapshots = needs.snapshots;
    AddBlocks(gathered, state, static_cast<int32_t>(folds));

    int64_t row = 0;
    for (int64_t block = first_block; block <= last_block; ++block) {
      const int64_t i = block - first_block;
      const int64_t from = block == first_block ? offset : 0;
      const int64_t count = std::min<int64_t>(b - from, segment.rows - row);
      AttendJob job{.keys = Gathered(gathered + i * b),
                    .sums = state.read,
                    .weights = state.weights,
                    .row = static_cast<int32_t>(segment.first_row + row),
                    .count = static_cast<int32_t>(count),
                    .block_offset = static_cast<int32_t>(from),
                    .past = block > 0};
      // The last block may read what is left in the state.
      const bool snapshot = i < folds || ReadsSnapshots(job);
      if (snapshot) UseSnapshot(snapshots, i, &job);
      Queries(job, !(snapshot && shape_.walks));
      row += count;
    }
    const int64_t tail = position + segment.rows - last_block * b;
    plan.late_stores.jobs.push_back({buffer, nullptr, 0,
                                     static_cast<int32_t>(segment.first_row + segment.rows - tail),
                                     static_cast<int32_t>(tail), 0});
  }

  // Whether the queries of many rows read a snapshot of the state alone.
  bool ReadsSnapshots(const AttendJob& job) const {
    return shape_.walks && job.count > shape_.few_rows;
  }
  // Sets the state that a job reads to snapshot first + i; `first` is that of the AddBlocks before.
  void UseSnapshot(int64_t first, int64_t i, AttendJob* job) const {
    job->sums = Snapshot(first + i, 0);
    job->weights = Snapshot(first + i, shape_.snapshot_z);
    if (!shape_.walks) return;
    job->walk = static_cast<int32_t>(plan.walks.jobs.size()) - 1;
    job->stored = static_cast<int32_t>(i + 1);
  }

  // Adds `count` full blocks, from token `first` of the workspace on, to a state. The queries of each
  // block, and of many rows after the last, read the next snapshot.
  void AddBlocks(int64_t first, const FarSums& state, int32_t count) {
    const int64_t snapshots = needs.snapshots;
    if (shape_.walks) {
      plan.walks.jobs.push_back({Gathered(first), state, snapshots, count});
      ++needs.walks;
      needs.snapshots += count + 1;
      return;
    }
    plan.scans.jobs.push_back({state, needs.partials, snapshots, count});
    for (int32_t i = 0; i < count; ++i) {
      plan.folds.jobs.push_back({Gathered(first + i * spec_.block), needs.partials++});
    }
    needs.snapshots += count;
  }

  void AddCached(const Segment& segment, const LayerGroup& group) {
    const int64_t b = spec_.block, sink_blocks = spec_.SinkTokens() / b;
    const auto* table =
        reinterpret_cast<uint8_t* const*>(addresses_.tables + needs.blocks * sizeof(uint8_t*));
    needs.blocks += std::ssize(group.pieces);
    // The memory for the results of parts grows with the past. It is spent on decoding, and not on
    // the ends of a prompt's chunk.
    const bool few = segment.rows <= shape_.few_rows;
    const int64_t position = segment.state->position(), snapshots = needs.snapshots;
    const int64_t folded = Folded(position), end = Folded(position + segment.rows);
    // The queries of a single row read what is left in the state.
    AddLeft(group, folded, end, Folded(position + 1) < end);
    for (int64_t row = 0; row < segment.rows;) {
      const int64_t token = position + row, block = token / b;
      int64_t count = std::min<int64_t>(segment.rows - row, b - token % b);
      if (blocks_) count = std::min<int64_t>(count, spec_.window - token % spec_.window);
      const TokenArrays keys = Buffer(nullptr);
      const auto first_row = static_cast<int32_t>(segment.first_row + row);
      const auto offset = static_cast<int32_t>(token % b);
      const int64_t place = block < sink_blocks ? block : block - group.dropped;
      plan.stores.jobs.push_back(
          {keys, table, place, first_row, static_cast<int32_t>(count), offset,
           static_cast<int32_t>(std::clamp<int64_t>(spec_.sinks - token, 0, count))});
      const int64_t left = Folded(token + 1);
      AttendJob job{.keys = keys,
                    .table = table,
                    .sums = InSums(group, layout_.read),
                    .weights = InSums(group, layout_.z),
                    .row = first_row,
                    .count = static_cast<int32_t>(count),
                    .block_offset = offset,
                    .past = left > 0,
                    .block = static_cast<int32_t>(block),
                    .sink_blocks = static_cast<int32_t>(sink_blocks),
                    .dropped = static_cast<int32_t>(group.dropped)};
      if (left < end) UseSnapshot(snapshots, (left - folded) / spec_.window, &job);
      Queries(job, few);
      row += count;
    }
  }

  // The first tokens, whole blocks, that the sums of a far part have after `position` tokens.
  int64_t Folded(int64_t position) const {
    return spec_.far_part() && position > 0 ? spec_.FirstVisible(position - 1) : 0;
  }

  // Adds the blocks of the tokens [first, last), which have left a window, to the sums of its far part. If
  // `read`, the queries before each window of them read the next snapshot.
  void AddLeft(const LayerGroup& group, int64_t first, int64_t last, bool read) {
    if (first == last) return;
    const int64_t b = spec_.block, sink_blocks = spec_.SinkTokens() / b;
    plan.scans.jobs.push_back({.state = StateIn(group),
                               .partial = needs.partials,
                               .snapshots = read ? needs.snapshots : -1,
                               .count = static_cast<int32_t>((last - first) / b),
                               .period = static_cast<int32_t>(spec_.window / b)});
    if (read) needs.snapshots += (last - first) / spec_.window;
    for (int64_t block = first / b; block < last / b; ++block) {
      const int64_t place = block < sink_blocks ? block : block - group.dropped;
      plan.folds.jobs.push_back(
          {Buffer(group.pieces[static_cast<size_t>(place)]), needs.partials++});
    }
  }

  // The part of a key, counted as AttendJob counts them.
  int64_t PartOf(int64_t token) const {
    return token / spec_.block * NearParts(spec_.block) + token % spec_.block / kPartKeys;
  }

  // Sets the near parts of a job, and returns the number of all its parts. A part without a key that a
  // row attends to adds nothing to it, so that neighbouring rows change no bit.
  int64_t SetParts(AttendJob* job) const {
    const int64_t token = int64_t{job->block} * spec_.block + job->block_offset;
    const int64_t end = PartOf(token + job->count - 1) + 1;
    if (spec_.window > 0) {
      const int64_t sinks = spec_.sinks > 0 ? std::min(PartOf(spec_.sinks - 1) + 1, end) : 0;
      const int64_t first = std::max(sinks, PartOf(spec_.FirstVisible(token)));
      job->sink_parts = static_cast<int32_t>(sinks);
      job->first_part = static_cast<int32_t>(first);
      job->reach =
          static_cast<int32_t>(blocks_ ? spec_.window + token % spec_.window : spec_.window - 1);
    }
    return (job->past != 0 ? shape_.far_parts : 0) + job->sink_parts + end - job->first_part;
  }

  // Adds queries of one block: part by part if `few` and the rows are few, else cut into tiles.
  void Queries(AttendJob job, bool few) {
    const int64_t parts = SetParts(&job);
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
      SetParts(&job);
      plan.tiles.jobs.push_back(job);
    }
  }

  const PlanShape& shape_;
  const AttentionSpec& spec_;
  const bool blocks_ = HasBlockWindow(spec_);
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
    // A segment of few rows reads the blocks of its window, two that it shares with others, and the sinks.
    int64_t read = blocks;
    if (spec.window > 0) {
      const int64_t visible = 2 * int64_t{spec.window} + shape.few_rows + spec.SinkTokens();
      read = std::min(read, segments * (visible / b + 2));
    }
    max.parts = shape.few_rows * read * NearParts(b);
    max.few = std::min(rows, segments * shape.few_rows);
    if (spec.far_part()) {
      // The blocks that the rows let leave the window, a window at a time.
      max.partials = std::min(blocks, rows / b + segments * (spec.window / b));
      max.snapshots = rows / spec.window + segments;
      max.parts += max.few * shape.far_parts;
    }
    return max;
  }
  // A segment of n >= 2 rows that touches k >= 2 blocks fills k - 2 of them: k b <= n + 2 b.
  max.tokens = rows + 2 * b * std::min(segments, rows / 2);
  max.walks = shape.walks ? segments : 0;
  // Before each block that the segments fill; of a walk one more.
  max.snapshots = rows / b + segments + max.walks;
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
