#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/attention_general.cuh"
#include "kernels/cuda/attention_shape.cuh"
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/attention_tensor.cuh"

namespace polysketch::cuda {
namespace {

static_assert(kPartKeysTensor == kPartKeys);

// Segments are planned together while their partial sums stay below this.
constexpr int64_t kPartialBytes = int64_t{256} << 20;
// Shared memory that the tensor core kernels may ask for on every architecture (sm_80: 163 KB).
constexpr int64_t kSharedLimit = 160 << 10;
constexpr int kMoveThreads = 128;
constexpr unsigned kMoveSlices = 64;

int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

template <int D>
bool Fits(const AttentionSpec& spec) {
  return TilesShared<D>(spec.far_dim(), spec.near_dim()) <= kSharedLimit &&
         FoldShared<D>(spec.far_dim()) <= kSharedLimit;
}

// The head size of the tensor core kernels that take this spec; 0: the general ones do.
int TensorHeadSize(const AttentionSpec& spec) {
  const bool features = spec.kv_cache() || spec.sketched() || spec.features() % 16 == 0;
  if (spec.state_format != StateFormat::kBf16 || !features || spec.near_dim() % 8 != 0) return 0;
  switch (spec.head_dim) {
    case 32:
      return Fits<32>(spec) ? 32 : 0;
    case 64:
      return Fits<64>(spec) ? 64 : 0;
    case 128:
      return Fits<128>(spec) ? 128 : 0;
    default:
      return 0;
  }
}

AttentionShape ShapeOf(const AttentionSpec& spec, int layer, const AttentionInput& input,
                       float* out) {
  AttentionShape shape;
  shape.heads = spec.heads;
  shape.d = spec.head_dim;
  shape.far_dim = spec.far_dim();
  shape.near_dim = spec.near_dim();
  shape.block = spec.block;
  shape.features = spec.features();
  shape.tiles = spec.sketched() ? spec.far_dim() / 8 : 0;
  switch (spec.kind) {
    case AttentionKind::kSoftmax:
      shape.near_power = 0;
      shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_dim)));
      break;
    case AttentionKind::kPolynomial:
      shape.near_power = spec.power;
      break;
    case AttentionKind::kLinear:
    case AttentionKind::kPerformer:
      shape.near_power = 1;
      break;
    default:
      shape.near_power = spec.mixed() ? spec.near_power : 2;
  }
  shape.stabilizer = spec.stabilizer;
  shape.layer = layer;
  shape.near_q = input.near_q;
  shape.near_k = input.near_k;
  shape.far_q = input.far_q;
  shape.far_k = input.far_k;
  shape.v = input.v;
  shape.v_stride = input.v_stride;
  shape.out = out;
  return shape;
}

// Of one block's sums of all heads.
int64_t PartialBytes(const AttentionSpec& spec) {
  return int64_t{spec.heads} * std::max(1, spec.features()) * (spec.head_dim + 1) * 4;
}

unsigned Slices(int64_t elements) { return std::min(kMoveSlices, CeilDiv(elements, kMoveThreads)); }

template <typename Job>
dim3 Grid(const std::vector<Job>& jobs, const AttentionShape& shape, unsigned depth) {
  return dim3(static_cast<unsigned>(jobs.size()), static_cast<unsigned>(shape.heads), depth);
}

template <typename Job>
unsigned LargestCount(const std::vector<Job>& jobs) {
  int32_t count = 0;
  for (const Job& job : jobs) count = std::max(count, job.count);
  return static_cast<unsigned>(count);
}

// The kernels for elements T and states of Format, every shape.
template <typename T, typename Format>
struct GeneralKernels {
  Device* device;
  AttentionShape shape;

  void Store(const std::vector<StoreJob>& jobs, const StoreJob* on_device) const {
    const unsigned depth = std::min(kMoveSlices, LargestCount(jobs));
    device->Launch(StoreTokens<T>, Grid(jobs, shape, depth), kMoveThreads, 0, shape, on_device);
  }
  void Copy(const std::vector<CopyJob>& jobs, const CopyJob* on_device) const {
    device->Launch(CopyTokens<T>, Grid(jobs, shape, 16), kMoveThreads, 0, shape, on_device);
  }
  void Scan(const std::vector<ScanJob>& jobs, const ScanJob* on_device, const float* partials,
            uint8_t* snapshots, const PlanShape& plan) const {
    const unsigned slices = Slices(int64_t{shape.features} * (shape.d + 1));
    device->Launch(ScanStates<Format>, Grid(jobs, shape, slices), kMoveThreads, 0, shape, on_device,
                   partials, snapshots, plan.snapshot_bytes, plan.snapshot_z);
  }
  void Fold(const std::vector<FoldJob>& jobs, const FoldJob* on_device, float* partials) const {
    const unsigned slices = Slices(int64_t{shape.features} * (shape.d + 1));
    device->Launch(FoldGeneral<T>, Grid(jobs, shape, slices), kMoveThreads, 0, shape, on_device,
                   partials);
  }
  void Tiles(const std::vector<AttendJob>& jobs, const AttendJob* on_device) const {
    const size_t shared = GeneralShared(shape.d, shape.far_dim, shape.near_dim) * sizeof(float);
    device->Launch(AttendGeneral<T>, Grid(jobs, shape, LargestCount(jobs)), kGeneralThreads, shared,
                   shape, on_device);
  }
  void Few(const AttentionPlan& plan, const AttendJob*, float*) const {
    PS_CHECK(plan.few.empty());
  }
};

// The same with tensor cores where it counts.
template <int D>
struct TensorKernels : GeneralKernels<Bf16, PlaneState> {
  void Fold(const std::vector<FoldJob>& jobs, const FoldJob* on_device, float* partials) const {
    device->Launch(FoldTensor<D>, Grid(jobs, shape, CeilDiv(shape.features, kPartFeatures)),
                   kFoldThreads, FoldShared<D>(shape.far_dim), shape, on_device, partials);
  }
  void Tiles(const std::vector<AttendJob>& jobs, const AttendJob* on_device) const {
    device->Launch(AttendTiles<D>, Grid(jobs, shape, 1), kTileThreads,
                   TilesShared<D>(shape.far_dim, shape.near_dim), shape, on_device);
  }
  void Few(const AttentionPlan& plan, const AttendJob* on_device, float* results) const {
    const auto parts = static_cast<unsigned>(plan.max_parts);
    device->Launch(AttendParts<D>, Grid(plan.few, shape, parts), kWarpSize,
                   PartsShared<D>(shape.far_dim, shape.near_dim), shape, on_device, results);
    device->Launch(JoinParts<D>, Grid(plan.few, shape, 1), D, 0, shape, on_device, results);
  }
};

PlanShape PlanShapeOf(const AttentionSpec& spec) {
  PlanShape shape;
  const int tensor = TensorHeadSize(spec);
  if (tensor == 0) {
    shape.tile_rows = 64;
  } else {
    shape.tile_rows = tensor == 128 ? TileRows<128>() : TileRows<64>();
    static_assert(TileRows<32>() == TileRows<64>());
    shape.few_rows = 16;
    shape.far_parts = (spec.features() + kPartFeatures - 1) / kPartFeatures;
  }
  const int64_t element = spec.state_format == StateFormat::kBf16 ? 2 : 4;
  shape.snapshot_z = Align(int64_t{spec.features()} * spec.head_dim * element);
  shape.snapshot_bytes = shape.snapshot_z + Align(int64_t{spec.features()} * 4);
  return shape;
}

}  // namespace

void AttentionRunner::Run(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                          const AttentionInput& input, float* out) {
  Prepare(spec, segments);
  if (!device_->status().ok()) return;
  const AttentionShape shape = ShapeOf(spec, layer, input, out);
  for (const Group& group : groups_) {
    switch (TensorHeadSize(spec)) {
      case 32:
        RunGroup(TensorKernels<32>{device_, shape}, group);
        break;
      case 64:
        RunGroup(TensorKernels<64>{device_, shape}, group);
        break;
      case 128:
        RunGroup(TensorKernels<128>{device_, shape}, group);
        break;
      default:
        if (spec.state_format == StateFormat::kBf16) {
          RunGroup(GeneralKernels<Bf16, PlaneState>{device_, shape}, group);
        } else {
          RunGroup(GeneralKernels<float, PlainState>{device_, shape}, group);
        }
    }
  }
}

template <typename Kernels>
void AttentionRunner::RunGroup(const Kernels& kernels, const Group& group) {
  const AttentionPlan& plan = group.plan;
  // A grid of no jobs is not launched.
  kernels.Fold(plan.early_folds, group.early_folds, partials_.data());
  kernels.Scan(plan.early_scans, group.early_scans, partials_.data(), snapshots_.data(), shape_);
  kernels.Copy(plan.copies, group.copies);
  kernels.Store(plan.stores, group.stores);
  kernels.Fold(plan.folds, group.folds, partials_.data());
  kernels.Scan(plan.scans, group.scans, partials_.data(), snapshots_.data(), shape_);
  kernels.Tiles(plan.tiles, group.tiles);
  kernels.Few(plan, group.few, results_.data());
  kernels.Store(plan.late_stores, group.late_stores);
}

void AttentionRunner::Prepare(const AttentionSpec& spec, std::span<const Segment> segments) {
  std::vector<Key> keys;
  std::vector<uint8_t*> blocks;
  for (const Segment& segment : segments) {
    auto& state = static_cast<CudaState&>(*segment.state);
    if (spec.kv_cache()) {
      state.Reserve(state.position() + segment.rows);
      blocks.insert(blocks.end(), state.blocks().begin(), state.blocks().end());
    }
    keys.push_back({state.memory(), state.position(), segment.first_row, segment.rows});
  }
  if (keys == keys_ && blocks == blocks_ && spec == planned_spec_) return;
  keys_ = std::move(keys);
  blocks_ = std::move(blocks);
  planned_spec_ = spec;
  shape_ = PlanShapeOf(planned_spec_);
  shape_.spec = &planned_spec_;

  // Groups, and the largest needs of any.
  const int64_t partial_bytes = PartialBytes(spec);
  std::vector<std::span<const Segment>> parts;
  std::vector<WorkspaceNeeds> needs;
  size_t first = 0;
  int64_t partials = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const int64_t more = NeedsOf(shape_, segments.subspan(i, 1)).partials;
    if (i > first && (partials + more) * partial_bytes > kPartialBytes) {
      parts.push_back(segments.subspan(first, i - first));
      first = i;
      partials = 0;
    }
    partials += more;
  }
  if (first < segments.size()) parts.push_back(segments.subspan(first));
  PS_CHECK(blocks_.empty() || parts.size() == 1) << "tables are those of one group";
  WorkspaceNeeds largest;
  for (const auto& part : parts) {
    needs.push_back(NeedsOf(shape_, part));
    largest.tokens = std::max(largest.tokens, needs.back().tokens);
    largest.partials = std::max(largest.partials, needs.back().partials);
    largest.snapshots = std::max(largest.snapshots, needs.back().snapshots);
    largest.parts = std::max(largest.parts, needs.back().parts);
    largest.blocks = std::max(largest.blocks, needs.back().blocks);
  }
  const WorkspacePlaces places = Workspace(spec, shape_, largest);
  device_->CopyIn(tables_.data(), blocks_.data(), blocks_.size() * sizeof(uint8_t*));
  groups_.clear();
  for (size_t i = 0; i < parts.size(); ++i) {
    groups_.emplace_back().plan = MakePlan(shape_, parts[i], needs[i], places);
  }
  Upload();
}

void AttentionRunner::Reserve(const AttentionSpec& spec, int64_t rows, int64_t segments,
                              int64_t blocks) {
  PlanShape shape = PlanShapeOf(spec);
  shape.spec = &spec;
  WorkspaceNeeds most = MostNeeds(shape, rows, segments, blocks);
  // Those of a group: Prepare.
  const int64_t of_one = MostNeeds(shape, rows, 1, blocks).partials;
  most.partials = std::min(most.partials, std::max(kPartialBytes / PartialBytes(spec), of_one));
  Workspace(spec, shape, most);
  // A store, a copy, a scan and a fold at each end of a segment, and for each block or tile a fold
  // and queries. Lists are aligned to 16 bytes.
  const int64_t pieces = rows / std::min<int64_t>(shape.tile_rows, spec.block) + 1;
  const int64_t groups =
      most.partials > 0 ? 1 + (rows / spec.block + 2 * segments) / most.partials : 1;
  jobs_.Grow(device_, (10 * segments + 2 * pieces) * sizeof(AttendJob) + groups * 9 * 16);
}

WorkspacePlaces AttentionRunner::Workspace(const AttentionSpec& spec, const PlanShape& shape,
                                           const WorkspaceNeeds& needs) {
  const int64_t element = spec.state_format == StateFormat::kBf16 ? 2 : 4;
  const int64_t tokens = needs.tokens * spec.heads * element;
  const auto grow = [&](DeviceArray<uint8_t>* array, int64_t bytes) {
    return reinterpret_cast<uint64_t>(array->Grow(device_, bytes));
  };
  WorkspacePlaces places;
  places.far_keys = grow(&far_keys_, tokens * spec.far_dim());
  places.near_keys = grow(&near_keys_, tokens * spec.near_dim());
  places.values = grow(&values_, tokens * spec.head_dim);
  places.snapshots = grow(&snapshots_, needs.snapshots * spec.heads * shape.snapshot_bytes);
  partials_.Grow(device_, needs.partials * spec.heads * spec.features() * (spec.head_dim + 1));
  places.tables = reinterpret_cast<uint64_t>(tables_.Grow(device_, needs.blocks));
  results_.Grow(device_, needs.parts * spec.heads * (spec.head_dim + 2));
  return places;
}

template <typename AnyGroup, typename Visit>
void AttentionRunner::ForLists(AnyGroup& group, const Visit& visit) {
  const AttentionPlan& plan = group.plan;
  visit(plan.early_folds, &group.early_folds);
  visit(plan.early_scans, &group.early_scans);
  visit(plan.copies, &group.copies);
  visit(plan.stores, &group.stores);
  visit(plan.folds, &group.folds);
  visit(plan.scans, &group.scans);
  visit(plan.tiles, &group.tiles);
  visit(plan.few, &group.few);
  visit(plan.late_stores, &group.late_stores);
}

void AttentionRunner::AppendShape(std::vector<int64_t>* shape) const {
  shape->push_back(std::ssize(groups_));
  for (const Group& group : groups_) {
    // Grids: numbers of jobs, and the largest count of rows or tokens. The lists lie behind each
    // other, so their addresses follow from these numbers too.
    ForLists(group, [&](const auto& jobs, auto) { shape->push_back(std::ssize(jobs)); });
    shape->push_back(LargestCount(group.plan.stores));
    shape->push_back(LargestCount(group.plan.late_stores));
    shape->push_back(LargestCount(group.plan.tiles));
    shape->push_back(group.plan.max_parts);
  }
}

void AttentionRunner::Upload() {
  std::vector<uint8_t> bytes;
  const auto append = [&](const auto& jobs) {
    const size_t offset = bytes.size();
    const size_t size = jobs.size() * sizeof(jobs[0]);
    bytes.resize(offset + (size + 15) / 16 * 16);
    if (size > 0) std::memcpy(bytes.data() + offset, jobs.data(), size);
    return offset;
  };
  std::vector<size_t> offsets;
  for (Group& group : groups_) {
    ForLists(group, [&](const auto& jobs, auto) { offsets.push_back(append(jobs)); });
  }
  uint8_t* base = jobs_.Grow(device_, bytes.size());
  device_->CopyIn(base, bytes.data(), bytes.size());
  size_t next = 0;
  for (Group& group : groups_) {
    ForLists(group, [&](const auto& jobs, auto* pointer) {
      using Job = typename std::decay_t<decltype(jobs)>::value_type;
      *pointer = reinterpret_cast<const Job*>(base + offsets[next++]);
    });
  }
}

}  // namespace polysketch::cuda
