#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "kernels/cuda/attention_few.cuh"
#include "kernels/cuda/attention_general.cuh"
#include "kernels/cuda/attention_shape.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_state.cuh"
#include "kernels/cuda/attention_steps.cuh"
#include "kernels/cuda/attention_tensor.cuh"

namespace polysketch::cuda {
namespace {

static_assert(kPartKeysTensor == kPartKeys);

// Segments are planned in groups whose partial sums take at most this number of bytes.
constexpr int64_t kPartialBytes = int64_t{256} << 20;
constexpr int kMoveThreads = 128;
constexpr unsigned kMoveSlices = 64;
constexpr unsigned kStoreSlices = 1024;

int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

template <int D>
bool Fits(const AttentionSpec& spec, int64_t shared_limit) {
  const int64_t fold =
      spec.decay_gate ? FoldShared<D, true>(spec.far_dim()) : FoldShared<D, false>(spec.far_dim());
  return TilesShared<D>(spec.far_dim(), spec.near_dim()) <= shared_limit && fold <= shared_limit;
}

// The head size of the tensor core kernels for this spec, or 0 if only the general kernels fit.
// These alone compute the polynomials of polynomial_square: the others have no registers left.
int TensorHeadSize(const AttentionSpec& spec, int64_t shared_limit) {
  if (spec.kind == AttentionKind::kPolynomialSquare) return 0;
  const bool features = spec.kv_cache() || spec.sketched() || spec.features() % 16 == 0;
  if (spec.state_format == StateFormat::kF32 || !features || spec.near_dim() % 8 != 0) return 0;
  switch (spec.head_dim) {
    case 32:
      return Fits<32>(spec, shared_limit) ? 32 : 0;
    case 64:
      return Fits<64>(spec, shared_limit) ? 64 : 0;
    case 128:
      return Fits<128>(spec, shared_limit) ? 128 : 0;
    default:
      return 0;
  }
}

AttentionShape ShapeOf(const AttentionSpec& spec, int layer, const AttentionInput& input,
                       const Bf16Rows& rows, const AttentionOutput& out) {
  AttentionShape shape;
  shape.heads = spec.heads;
  shape.kv_heads = spec.key_heads();
  shape.group = Divisor(spec.query_group());
  shape.block_parts = Divisor(NearParts(spec.block));
  shape.d = spec.head_dim;
  shape.far_dim = spec.far_dim();
  shape.near_dim = spec.near_dim();
  shape.block = spec.block;
  shape.features = spec.features();
  shape.tiles = (spec.far_part() ? spec.FarPart() : spec).sketched() ? spec.far_dim() / 8 : 0;
  shape.near_power = spec.near_degree();
  if (spec.kind == AttentionKind::kSoftmax) {
    shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.head_dim)));
  } else if (spec.kind == AttentionKind::kPolynomialSquare) {
    shape.scale = 1 / spec.beta;
    shape.offset = spec.alpha;
    shape.coefficients = input.coefficients;
  }
  shape.stabilizer = spec.stabilizer;
  shape.sinks = spec.sinks;
  shape.sliding = spec.window_kind == WindowKind::kSliding;
  shape.far_length = spec.far_length;
  shape.layer = layer;
  shape.near_q = input.near_q;
  shape.near_k = input.near_k;
  shape.far_q = input.far_q;
  shape.far_k = input.far_k;
  shape.v = input.v;
  shape.v_stride = input.v_stride;
  shape.rows = rows;
  shape.out = out.floats;
  shape.out_halves = out.halves;
  shape.out_bf16 = out.bf16;
  shape.log_decay = input.log_decay;
  return shape;
}

// Bytes of the partial sums of one block, all heads.
int64_t PartialBytes(const AttentionSpec& spec) {
  return int64_t{spec.key_heads()} * std::max(1, spec.features()) * (spec.head_dim + 1) * 4;
}

unsigned Slices(int64_t elements) { return std::min(kMoveSlices, CeilDiv(elements, kMoveThreads)); }

template <typename Job>
dim3 Grid(const JobList<Job>& list, int heads, unsigned depth) {
  return dim3(static_cast<unsigned>(list.jobs.size()), static_cast<unsigned>(heads), depth);
}

template <typename Job>
unsigned MaxCount(const JobList<Job>& list) {
  int32_t count = 0;
  for (const Job& job : list.jobs) count = std::max(count, job.count);
  return static_cast<unsigned>(count);
}

// What blocks are folded into: sums, and with a decay gate G_b of each block.
struct Partials {
  float *sums, *decays;
};

// The kernels for states of Format, for every shape. GATED, here and below: with a decay gate. WINDOW: of a
// model with a window, whose far part alone has the gate.
template <typename Format, bool GATED, bool WINDOW>
struct GeneralKernels {
  static constexpr bool kGatedQueries = GATED && !WINDOW;
  Device* device;
  AttentionShape shape;

  void Store(const JobList<StoreJob>& list, int32_t* counters = nullptr, int64_t count = 0) const {
    // Of a thread each, or, in caches of 8-bit numbers, of a warp.
    const int64_t cached = Format::kMxCache ? 2 * MxScales(shape.d) * kWarpSize
                                            : StoreChunks(shape.near_dim) + StoreChunks(shape.d);
    const int64_t chunks = cached + StoreChunks(shape.far_dim);
    const unsigned depth = std::min(kStoreSlices, CeilDiv(MaxCount(list) * chunks, kMoveThreads));
    const size_t shared = GATED ? kMoveThreads * sizeof(float) : 0;
    device->LaunchDependent(StoreTokens<typename Format::Cache, GATED>,
                            Grid(list, shape.kv_heads, depth), kMoveThreads, shared, shape,
                            list.on_device, counters, static_cast<int>(count));
  }
  void Copy(const JobList<CopyJob>& list) const {
    device->Launch(CopyTokens<typename Format::Element, GATED>, Grid(list, shape.kv_heads, 16),
                   kMoveThreads, 0, shape, list.on_device);
  }
  void Scan(const JobList<ScanJob>& list, const Partials& partials, uint8_t* snapshots,
            const PlanShape& plan) const {
    const unsigned slices = Slices(int64_t{shape.features} * (shape.d + 1));
    device->Launch(ScanStates<Format, GATED>, Grid(list, shape.kv_heads, slices), kMoveThreads, 0,
                   shape, list.on_device, partials.sums, partials.decays, snapshots,
                   plan.snapshot_bytes, plan.snapshot_z);
  }
  void Walk(const JobList<WalkJob>& list, uint8_t*, const PlanShape&, int32_t*) const {
    PS_CHECK(list.jobs.empty());
  }
  void Fold(const JobList<FoldJob>& list, const Partials& partials) const {
    const unsigned slices = Slices(int64_t{shape.features} * (shape.d + 1));
    device->Launch(FoldGeneral<typename Format::Cache, GATED>, Grid(list, shape.kv_heads, slices),
                   kMoveThreads, 0, shape, list.on_device, partials.sums, partials.decays);
  }
  void Tiles(const JobList<AttendJob>& list, int32_t*, bool) const {
    const size_t shared = GeneralShared(shape.d, shape.far_dim, shape.near_dim) * sizeof(float);
    device->Launch(AttendGeneral<Format, kGatedQueries>, Grid(list, shape.heads, MaxCount(list)),
                   kGeneralThreads, shared, shape, list.on_device);
  }
  void Few(const AttentionPlan& plan, float*, int32_t*) const { PS_CHECK(plan.few.jobs.empty()); }
};

// POLYSKETCH_CUDA_STEPS=off: AttendParts computes all jobs of few rows.
bool WantsSteps() {
  const char* wish = std::getenv("POLYSKETCH_CUDA_STEPS");
  return wish == nullptr || std::strcmp(wish, "off") != 0;
}

// The kernels with tensor cores, for the operations that take the most time.
template <int D, typename Format, bool GATED, bool WINDOW>
struct TensorKernels : GeneralKernels<Format, GATED, WINDOW> {
  using General = GeneralKernels<Format, GATED, WINDOW>;
  using General::device;
  using General::kGatedQueries;
  using General::shape;
  void Fold(const JobList<FoldJob>& list, const Partials& partials) const {
    device->Launch(FoldTensor<typename Format::Cache, D, GATED>,
                   Grid(list, shape.kv_heads, CeilDiv(shape.features, kPartFeatures)), kFoldThreads,
                   FoldShared<D, GATED>(shape.far_dim), shape, list.on_device, partials.sums,
                   partials.decays);
  }
  void Tiles(const JobList<AttendJob>& list, int32_t*, bool) const {
    if constexpr (!kGatedQueries) {
      if (shape.near_power == 0 && shape.far_dim == 0 &&
          SoftmaxShared<D>() <= device->shared_limit()) {
        device->Launch(AttendSoftmax<typename Format::Cache, D, WINDOW>, Grid(list, shape.heads, 1),
                       kTileThreads, SoftmaxShared<D>(), shape, list.on_device);
        return;
      }
    }
    device->Launch(AttendTiles<Format, D, kGatedQueries, WINDOW>, Grid(list, shape.heads, 1),
                   kTileThreads, TilesShared<D>(shape.far_dim, shape.near_dim), shape,
                   list.on_device);
  }
  // Whether AttendSteps may compute the jobs of few rows: of one token each, which give every
  // multiprocessor an item.
  bool InSteps(const AttentionPlan& plan, const HeadTiles& tiles) const {
    return WantsSteps() && plan.max_rows == 1 && plan.max_parts <= kMaxStepParts &&
           std::ssize(plan.few.jobs) * tiles.Of(shape, 1) >= device->multiprocessors();
  }
  // Returns whether the ring fits a thread block of this device.
  template <int STAGES>
  bool Steps(const AttentionPlan& plan, const HeadTiles& tiles) const {
    const int64_t shared = StepMemory<D, STAGES>::Bytes(shape.far_dim, shape.near_dim, tiles.heads);
    if (shared > device->shared_limit()) return false;
    const auto blocks = static_cast<unsigned>(device->multiprocessors());
    const int of_job = tiles.Of(shape, 1);
    device->LaunchDependent(AttendSteps<Format, D, kGatedQueries, WINDOW, STAGES>, dim3(blocks),
                            kStepThreads<STAGES>, shared, shape, plan.few.on_device, tiles,
                            static_cast<int>(std::ssize(plan.few.jobs)) * of_job, Divisor(of_job));
    return true;
  }
  // AttendSteps with as many heads a tile, and then as many stages, as fit.
  bool Steps(const AttentionPlan& plan) const {
    for (const int heads : {kMaxStepHeads, kMaxStepHeads / 2, 1}) {
      const HeadTiles tiles(shape.group.value(), heads);
      if (!device->rehearsing() && !InSteps(plan, tiles)) continue;
      if (Steps<kStepStages>(plan, tiles) || Steps<kFewStepStages>(plan, tiles)) return true;
    }
    return false;
  }
  void Few(const AttentionPlan& plan, float* results, int32_t* arrivals) const {
    if constexpr (D <= 64) {  // rings of larger heads fit few devices
      if (Steps(plan) && !device->rehearsing()) return;
    }
    const HeadTiles tiles(shape.group.value(), kFewRows);
    const int64_t rows = std::max(plan.max_rows, tiles.heads);
    const bool join = (rows - 1) * (plan.max_parts + 16) > kOwnJoinWork;
    device->LaunchDependent(
        AttendParts<Format, D, kGatedQueries, WINDOW>,
        Grid(plan.few, tiles.Of(shape, plan.max_rows), static_cast<unsigned>(plan.max_parts)),
        kWarpSize, PartsShared<D>(shape.far_dim, shape.near_dim), shape, plan.few.on_device, tiles,
        results, join ? nullptr : arrivals);
    if (!join && !device->rehearsing()) return;
    device->LaunchDependent(JoinResults<D, kGatedQueries, WINDOW>,
                            Grid(plan.few, shape.heads, static_cast<unsigned>(plan.max_rows)),
                            kWarpSize, JoinShared<D>(), shape, plan.few.on_device, results);
  }
};

// The kernels by warpgroups where they exist, which compute the same bits as those above.
template <int NEAR, int POWER, typename Format, bool GATED>
struct GroupKernels : TensorKernels<64, Format, GATED, false> {
  using TensorKernels<64, Format, GATED, false>::device;
  using TensorKernels<64, Format, GATED, false>::shape;
  void Walk(const JobList<WalkJob>& list, uint8_t* snapshots, const PlanShape& plan,
            int32_t* counters) const {
    const dim3 grid(static_cast<unsigned>(shape.features / kWalkFeatures),
                    static_cast<unsigned>(shape.kv_heads), static_cast<unsigned>(list.jobs.size()));
    const int groups = WalkMemory::Groups(GATED, device->shared_limit());
    device->Launch(WalkSegments<Format, GATED>, grid, groups * kWarpgroup,
                   WalkMemory::Bytes(GATED, groups), shape, list.on_device, snapshots,
                   plan.snapshot_bytes, Progress(counters));
  }
  void Tiles(const JobList<AttendJob>& list, int32_t* counters, bool after_walk) const {
    const dim3 grid(static_cast<unsigned>(shape.heads), static_cast<unsigned>(list.jobs.size()));
    device->LaunchEarly(after_walk, AttendGroups<NEAR, POWER, GATED>, grid, kGroupThreads,
                        GroupMemory::Bytes(shape.far_dim), shape, list.on_device,
                        Progress(counters));
  }
  WalkProgress Progress(int32_t* counters) const {
    return {counters, shape.features, shape.kv_heads};
  }
};

// Whether GroupKernels exist for this spec.
bool HasGroupKernels(const AttentionSpec& spec, int64_t shared_limit) {
  return TensorHeadSize(spec, shared_limit) == 64 &&
         HasGroupShape(spec.head_dim, spec.sketched(), spec.near_dim(), spec.near_degree()) &&
         std::max(GroupMemory::Bytes(spec.far_dim()), WalkMemory::Bytes(spec.decay_gate, 1)) <=
             shared_limit;
}

PlanShape PlanShapeOf(const AttentionSpec& spec, int64_t shared_limit) {
  PlanShape shape;
  const int tensor = TensorHeadSize(spec, shared_limit);
  if (tensor == 0) {
    shape.tile_rows = 64;
  } else {
    const bool softmax = spec.kind == AttentionKind::kSoftmax && !spec.far_part() &&
                         SoftmaxShared<128>() <= shared_limit;
    shape.tile_rows = tensor == 128 && !softmax ? TileRows<128>() : TileRows<64>();
    static_assert(TileRows<32>() == TileRows<64>() && kSoftmaxRows == TileRows<64>());
    shape.few_rows = kFewRows;
    shape.far_parts = (spec.features() + kPartFeatures - 1) / kPartFeatures;
  }
  shape.walks = HasGroupKernels(spec, shared_limit);
  static_assert(TileRows<64>() == kGroupRows);
  shape.snapshot_z = HeadLayout(spec).read_bytes;
  shape.snapshot_bytes = shape.walks ? GroupStateBytes(spec.features())
                                     : shape.snapshot_z + Align(int64_t{spec.features()} * 4);
  return shape;
}

// Counters of `walks` walks (WalkProgress).
int64_t CountersOfWalks(const AttentionSpec& spec, int64_t walks) {
  return walks * spec.key_heads() * WalkCounters(spec.features());
}
// Counters of a layer: of the walks, then an arrival counter for each tile of the jobs of few rows, which
// has at least one head.
int64_t CountersOf(const AttentionSpec& spec, int64_t walks, int64_t few) {
  return CountersOfWalks(spec, walks) + few * spec.heads;
}

}  // namespace

bool AttentionRunner::TakesBf16Rows(const AttentionSpec& spec) const {
  return TensorHeadSize(spec, device_->shared_limit()) != 0;
}

AttentionRunner::Step::Step(const AttentionSpec& attention, int64_t shared_limit)
    : spec(attention), shape(PlanShapeOf(spec, shared_limit)) {
  shape.spec = &spec;
}

AttentionRunner::Step& AttentionRunner::StepOf(const AttentionSpec& spec) {
  const auto step = std::ranges::find(steps_, spec, &Step::spec);
  return step != steps_.end() ? *step : steps_.emplace_back(spec, device_->shared_limit());
}

void AttentionRunner::Run(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                          const AttentionInput& input, const Bf16Rows& rows,
                          const AttentionOutput& out, const StoreStep& store) {
  Step& step = StepOf(spec);
  Prepare(&step, segments);
  if (!device_->status().ok()) return;
  const auto place_in = [layer](const Segment& segment) {
    return static_cast<const CudaState&>(*segment.state).PlaceOf(layer);
  };
  const int place = segments.empty() ? 0 : place_in(segments.front());
  const AttentionShape shape = ShapeOf(spec, place, input, rows, out);
  for (const AttentionPlan& plan : step.plans) {
    if (spec.decay_gate && spec.window > 0) {
      RunKernels<true, true>(shape, step, plan, store);
    } else if (spec.decay_gate) {
      RunKernels<true, false>(shape, step, plan, store);
    } else if (spec.window > 0) {
      RunKernels<false, true>(shape, step, plan, store);
    } else {
      RunKernels<false, false>(shape, step, plan, store);
    }
  }
  if (prepared_) return;  // Finish follows
  for (const Segment& segment : segments) {
    auto& state = static_cast<CudaState&>(*segment.state);
    if (place + 1 == state.group(spec).layers) state.Drop(spec, state.position() + segment.rows);
  }
}

template <bool GATED, bool WINDOW>
void AttentionRunner::RunKernels(const AttentionShape& shape, const Step& step,
                                 const AttentionPlan& plan, const StoreStep& store) {
  if (step.spec.state_format == StateFormat::kF32) {
    RunPlan(GeneralKernels<PlainState, GATED, WINDOW>{device_, shape}, step, plan, store);
  } else if (step.spec.state_format == StateFormat::kBf16) {
    RunNarrow<PlaneState, GATED, WINDOW>(shape, step, plan, store);
  } else if constexpr (WINDOW) {
    RunNarrow<ByteCache, GATED, WINDOW>(shape, step, plan, store);
  } else if (GATED || !step.spec.kv_cache()) {
    RunNarrow<ByteState, GATED, WINDOW>(shape, step, plan, store);
  } else if constexpr (!GATED) {
    RunNarrow<ByteCache, GATED, WINDOW>(shape, step, plan, store);
  }
}

template <typename Format, bool GATED, bool WINDOW>
void AttentionRunner::RunNarrow(const AttentionShape& shape, const Step& step,
                                const AttentionPlan& plan, const StoreStep& store) {
  if constexpr (!WINDOW && !Format::kMxCache) {
    if (step.shape.walks) {
      return WithGroupShape(shape.near_dim, shape.near_power, [&]<int NEAR, int POWER>() {
        RunPlan(GroupKernels<NEAR, POWER, Format, GATED>{{{device_, shape}}}, step, plan, store);
      });
    }
  }
  switch (TensorHeadSize(step.spec, device_->shared_limit())) {
    case 32:
      return RunPlan(TensorKernels<32, Format, GATED, WINDOW>{{device_, shape}}, step, plan, store);
    case 64:
      return RunPlan(TensorKernels<64, Format, GATED, WINDOW>{{device_, shape}}, step, plan, store);
    case 128:
      return RunPlan(TensorKernels<128, Format, GATED, WINDOW>{{device_, shape}}, step, plan,
                     store);
    default:
      RunPlan(GeneralKernels<Format, GATED, WINDOW>{device_, shape}, step, plan, store);
  }
}

template <typename Kernels>
void AttentionRunner::RunPlan(const Kernels& kernels, const Step& step, const AttentionPlan& plan,
                              const StoreStep& store) {
  const Partials partials{partials_.data(), decays_.data()};
  // A kernel with an empty list is not launched.
  kernels.Fold(plan.early_folds, partials);
  kernels.Scan(plan.early_scans, partials, snapshots_.data(), step.shape);
  kernels.Walk(plan.early_walks, nullptr, step.shape, nullptr);
  kernels.Copy(plan.copies);
  const int64_t walks = std::ssize(plan.walks.jobs), few = std::ssize(plan.few.jobs);
  const auto counters = static_cast<int32_t>(CountersOf(step.spec, walks, few));
  if (store != nullptr) {
    store({plan.stores.on_device, std::ssize(plan.stores.jobs), kernels.shape.layer, counters,
           counters_.data()});
  } else {
    kernels.Store(plan.stores, counters_.data(), counters);
  }
  kernels.Fold(plan.folds, partials);
  kernels.Scan(plan.scans, partials, snapshots_.data(), step.shape);
  kernels.Walk(plan.walks, snapshots_.data(), step.shape, counters_.data());
  kernels.Tiles(plan.tiles, counters_.data(), !plan.walks.jobs.empty());
  kernels.Few(plan, results_.data(), counters_.data() + CountersOfWalks(step.spec, walks));
  kernels.Store(plan.late_stores);
}

void AttentionRunner::Finish(std::span<const Segment> segments) {
  prepared_ = false;
  for (const Segment& segment : segments) {
    auto& state = static_cast<CudaState&>(*segment.state);
    for (const LayerGroup& group : state.groups()) {
      state.Drop(group.spec, state.position() + segment.rows);
    }
  }
}

void AttentionRunner::Prepare(std::span<const AttentionSpec> layers,
                              std::span<const Segment> segments) {
  prepared_ = true;
  // A plan has addresses of the workspace: one that was made before the workspace moved is made again.
  for (int pass = 0; pass < 2; ++pass) {
    for (const LayerGroup& group : LayerGroups(layers)) Prepare(&StepOf(group.spec), segments);
  }
}

void AttentionRunner::Prepare(Step* step, std::span<const Segment> segments) {
  const AttentionSpec& spec = step->spec;
  std::vector<Key> keys;
  std::vector<uint8_t*> pieces;
  for (const Segment& segment : segments) {
    auto& state = static_cast<CudaState&>(*segment.state);
    state.Reserve(spec, state.position() + segment.rows);
    const LayerGroup& group = state.group(spec);
    pieces.insert(pieces.end(), group.pieces.begin(), group.pieces.end());
    keys.push_back({state.position(), group.dropped, group.sums, segment.first_row, segment.rows});
  }
  if (keys == step->keys && pieces == step->pieces && !step->plans.empty() &&
      Workspace(step, {}) == step->addresses) {
    return;
  }
  step->keys = std::move(keys);
  step->pieces = std::move(pieces);

  // Cuts the segments into groups, and finds the largest needs of a group.
  const int64_t partial_bytes = PartialBytes(spec);
  std::vector<std::span<const Segment>> parts;
  std::vector<WorkspaceNeeds> needs;
  size_t first = 0;
  int64_t partials = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const int64_t more = NeedsOf(step->shape, segments.subspan(i, 1)).partials;
    if (i > first && (partials + more) * partial_bytes > kPartialBytes) {
      parts.push_back(segments.subspan(first, i - first));
      first = i;
      partials = 0;
    }
    partials += more;
  }
  // The plan of a step without segments has no jobs: when it is rehearsed, it loads the kernels.
  if (first < segments.size() || segments.empty()) parts.push_back(segments.subspan(first));
  // The tables of all groups are uploaded together.
  WorkspaceNeeds largest;
  int64_t blocks = 0;
  for (const auto& part : parts) {
    needs.push_back(NeedsOf(step->shape, part));
    largest.Include(needs.back());
    blocks += needs.back().blocks;
  }
  largest.blocks = blocks;
  step->addresses = Workspace(step, largest);
  if (spec.kv_cache()) {
    device_->CopyIn(step->tables.data(), step->pieces.data(),
                    step->pieces.size() * sizeof(uint8_t*));
  }
  step->plans.clear();
  WorkspaceAddresses addresses = step->addresses;
  for (size_t i = 0; i < parts.size(); ++i) {
    step->plans.push_back(MakePlan(step->shape, parts[i], needs[i], addresses));
    addresses.tables += static_cast<uint64_t>(needs[i].blocks) * sizeof(uint8_t*);
  }
  Upload(step);
}

void AttentionRunner::Reserve(const AttentionSpec& spec, int64_t rows, int64_t segments,
                              int64_t blocks) {
  Step& step = StepOf(spec);
  WorkspaceNeeds max = MaxNeeds(step.shape, rows, segments, blocks);
  // Prepare limits a group's partial sums, but a group has at least one segment.
  const int64_t of_one = MaxNeeds(step.shape, rows, 1, blocks).partials, folds = max.partials;
  max.partials = std::min(max.partials, std::max(kPartialBytes / PartialBytes(spec), of_one));
  Workspace(&step, max);
  // At most a store, a copy, a scan and a fold at each end of a segment, a fold and queries for each block
  // or tile, and the folds of windows. Lists are aligned to 16 bytes.
  int64_t pieces = rows / std::min<int64_t>(step.shape.tile_rows, spec.block) + 1;
  if (HasBlockWindow(spec)) pieces += rows / spec.window + segments;
  if (spec.far_part()) pieces += folds;
  const int64_t groups = max.partials > 0 ? 1 + 2 * folds / max.partials : 1;
  step.jobs.Grow(device_, (10 * segments + 2 * pieces) * sizeof(AttendJob) + groups * 10 * 16);
}

WorkspaceAddresses AttentionRunner::Workspace(Step* step, const WorkspaceNeeds& needs) {
  const AttentionSpec& spec = step->spec;
  const int64_t heads = spec.key_heads();
  const int64_t tokens = needs.tokens * heads * HeadLayout(spec).element;
  const auto grow = [&](DeviceArray<uint8_t>* array, int64_t bytes) {
    return reinterpret_cast<uint64_t>(array->Grow(device_, bytes));
  };
  WorkspaceAddresses addresses;
  addresses.far_keys = grow(&far_keys_, tokens * spec.far_dim());
  addresses.near_keys = grow(&near_keys_, tokens * spec.near_dim());
  addresses.values = grow(&values_, tokens * spec.head_dim);
  if (spec.decay_gate) addresses.decay_sums = grow(&decay_sums_, needs.tokens * heads * 4);
  addresses.snapshots = grow(&snapshots_, needs.snapshots * heads * step->shape.snapshot_bytes);
  partials_.Grow(device_, needs.partials * heads * spec.features() * (spec.head_dim + 1));
  if (spec.decay_gate) decays_.Grow(device_, needs.partials * heads);
  addresses.tables = reinterpret_cast<uint64_t>(step->tables.Grow(device_, needs.blocks));
  results_.Grow(device_, needs.parts * spec.heads * RowResult(spec.head_dim));
  counters_.Grow(device_, CountersOf(spec, needs.walks, needs.few));
  return addresses;
}

void AttentionRunner::AppendShape(std::span<const AttentionSpec> layers,
                                  std::vector<int64_t>* shape) {
  for (const LayerGroup& group : LayerGroups(layers)) {
    const Step& step = StepOf(group.spec);
    shape->push_back(std::ssize(step.plans));
    for (const AttentionPlan& plan : step.plans) {
      // The grids: numbers of jobs, and the largest count of rows or tokens. The lists are stored one
      // after the other, so these numbers determine their addresses too.
      AttentionPlan::ForLists(plan,
                              [&](const auto& list) { shape->push_back(std::ssize(list.jobs)); });
      shape->push_back(MaxCount(plan.stores));
      shape->push_back(MaxCount(plan.late_stores));
      shape->push_back(MaxCount(plan.tiles));
      shape->push_back(plan.max_parts);
      shape->push_back(plan.max_rows);
    }
  }
}

void AttentionRunner::Upload(Step* step) {
  std::vector<uint8_t> bytes;
  const auto for_lists = [&](const auto& visit) {
    for (AttentionPlan& plan : step->plans) AttentionPlan::ForLists(plan, visit);
  };
  for_lists([&](const auto& list) {
    const auto* first = reinterpret_cast<const uint8_t*>(list.jobs.data());
    bytes.insert(bytes.end(), first, first + list.jobs.size() * sizeof(list.jobs[0]));
    bytes.resize((bytes.size() + 15) / 16 * 16);
  });
  const uint8_t* address = step->jobs.Grow(device_, bytes.size());
  for_lists([&](auto& list) {
    list.on_device = reinterpret_cast<decltype(list.on_device)>(address);
    address += (list.jobs.size() * sizeof(list.jobs[0]) + 15) / 16 * 16;
  });
  device_->CopyIn(step->jobs.data(), bytes.data(), bytes.size());
}

}  // namespace polysketch::cuda
