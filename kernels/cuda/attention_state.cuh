// The kernels that store keys and values in the buffers, and that scan states. All paths of
// attention use them.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention_decay.cuh"
#include "kernels/cuda/attention_format.cuh"
#include "kernels/cuda/attention_shape.cuh"
#include "kernels/cuda/attention_walk.cuh"

namespace polysketch::cuda {

constexpr int kStoreChunk = 8;  // elements

// Stores chunk `chunk` of a row of `width` elements, rounded to T.
template <typename T>
__device__ __forceinline__ void StoreChunk(const float* from, int width, int chunk, T* to) {
  const int first = chunk * kStoreChunk;
  from += first;
  to += first;
  const uint64_t places = reinterpret_cast<uint64_t>(from) | reinterpret_cast<uint64_t>(to);
  if (sizeof(T) == 2 && first + kStoreChunk <= width && places % 16 == 0) {
    *reinterpret_cast<uint4*>(to) = RoundEight(from);
    return;
  }
  for (int i = 0; i < min(kStoreChunk, width - first); ++i) Round(from[i], to + i);
}

// StoreChunk of a row that is rounded already, if `rounded` is not null; `offset` is that of the row.
// Such rows are whole chunks.
template <typename T>
__device__ __forceinline__ void StoreChunk(const float* floats, const Bf16* rounded, int64_t offset,
                                           int width, int chunk, T* to) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (rounded != nullptr) {
      const int first = chunk * kStoreChunk;
      *reinterpret_cast<uint4*>(to + first) =
          *reinterpret_cast<const uint4*>(rounded + offset + first);
      return;
    }
  }
  StoreChunk(floats + offset, width, chunk, to);
}

// Sets chunk `chunk` of a row of `width` elements to zero.
template <typename T>
__device__ __forceinline__ void ClearChunk(int width, int chunk, T* to) {
  const int first = chunk * kStoreChunk;
  for (int i = first; i < min(first + kStoreChunk, width); ++i) Round(0.0f, to + i);
}

__host__ __device__ constexpr int StoreChunks(int width, int chunk = kStoreChunk) {
  return (width + chunk - 1) / chunk;
}

// Elements of a chunk of keys and values.
template <typename Format>
constexpr int CacheChunk() {
  return Format::kMxCache ? kMxBlock : kStoreChunk;
}

// Stores chunk `chunk` of a token's key or value of `width` elements, the row at `offset` of floats or of rounded
// rows, in an array of a block. 8-bit numbers are those of elements rounded to bf16, so that either has the same.
template <typename Format>
__device__ __forceinline__ void StoreInCache(const AttentionShape& shape, const float* floats,
                                             const Bf16* rounded, int64_t offset, int width,
                                             int chunk, int64_t token, uint8_t* array) {
  if constexpr (Format::kMxCache) {
    const int first = chunk * kMxBlock, count = min(kMxBlock, width - first);
    const auto element = [&](int64_t i) {
      const int64_t at = offset + first + i;
      return WidenBf16(rounded != nullptr ? rounded[at] : RoundBf16(floats[at]));
    };
    const int64_t scales = MxScalesAt(static_cast<int64_t>(shape.block) * width);
    MakeMxRow(count, element, array + token * width + first,
              array + scales + token * MxScales(width) + chunk);
  } else {
    using T = typename Format::Element;
    StoreChunk(floats, rounded, offset, width, chunk, reinterpret_cast<T*>(array) + token * width);
  }
}

// blockIdx: job, kv head, slice. A thread stores a chunk of a row of one of the arrays at a time. Sets
// the counters [count] of the kernels that follow to zero. GATED, here and below: with a decay gate.
template <typename Format, bool GATED>
__global__ void StoreTokens(AttentionShape shape, const StoreJob* jobs, int32_t* counters,
                            int count) {
  AfterEarlierKernels();
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0) ClearCounters(counters, count);
  const StoreJob& job = jobs[blockIdx.x];
  const int head = blockIdx.y, layer = shape.layer;
  if constexpr (GATED) StoreDecaySums(shape, job, head);
  using T = typename Format::Element;
  auto* near_keys = Array<uint8_t>(job.to.near_keys, job.table, job.place, layer, head);
  auto* values = Array<uint8_t>(job.to.values, job.table, job.place, layer, head);
  // In unmixed kinds the far keys equal the near keys; the workspace has both.
  T* far_keys =
      shape.far_dim > 0 ? Array<T>(job.to.far_keys, job.table, job.place, layer, head) : nullptr;
  constexpr int kChunk = CacheChunk<Format>();
  const int near = StoreChunks(shape.near_dim, kChunk);
  const int near_and_values = near + StoreChunks(shape.d, kChunk);
  const int chunks = near_and_values + StoreChunks(shape.far_dim);
  RowPieces at(chunks, static_cast<int>(blockIdx.z * blockDim.x + threadIdx.x),
               static_cast<int>(gridDim.z * blockDim.x));
  for (const int rows = job.count; at.row < rows; at.Next()) {
    const int row = at.row, chunk = at.piece;
    const int64_t m = job.row + row, token = job.first + row, of_head = m * shape.kv_heads + head;
    if (chunk < near) {
      StoreInCache<Format>(shape, shape.near_k, shape.rows.near_k, of_head * shape.near_dim,
                           shape.near_dim, chunk, token, near_keys);
    } else if (chunk < near_and_values) {
      StoreInCache<Format>(shape, shape.v, nullptr,
                           m * shape.v_stride + static_cast<int64_t>(head) * shape.d, shape.d,
                           chunk - near, token, values);
    } else if (row < job.sinks && !PS_PLANTED(FAR_SINKS)) {
      ClearChunk(shape.far_dim, chunk - near_and_values, far_keys + token * shape.far_dim);
    } else {
      StoreChunk(shape.far_k, shape.rows.far_k, of_head * shape.far_dim, shape.far_dim,
                 chunk - near_and_values, far_keys + token * shape.far_dim);
    }
  }
}

template <typename T>
__device__ void CopyArray(const HeadArray& from, const HeadArray& to, int layer, int head,
                          int64_t size) {
  const T* source = At<T>(from, layer, head);
  T* target = At<T>(to, layer, head);
  for (int64_t i = static_cast<int64_t>(blockIdx.z) * blockDim.x + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.z) * blockDim.x) {
    target[i] = source[i];
  }
}

// blockIdx: job, kv head, slice.
template <typename T, bool GATED>
__global__ void CopyTokens(AttentionShape shape, const CopyJob* jobs) {
  const CopyJob& job = jobs[blockIdx.x];
  const int head = blockIdx.y, layer = shape.layer;
  CopyArray<T>(job.from.far_keys, job.to.far_keys, layer, head, job.count * shape.far_dim);
  CopyArray<T>(job.from.near_keys, job.to.near_keys, layer, head, job.count * shape.near_dim);
  CopyArray<T>(job.from.values, job.to.values, layer, head, job.count * shape.d);
  if constexpr (GATED) {
    CopyArray<float>(job.from.decay_sums, job.to.decay_sums, layer, head, job.count);
  }
}

constexpr int kScanAhead = 4;  // partial sums that a thread loads at a time

// blockIdx: job, kv head, slice of the elements. A thread adds all partial sums to its elements.
template <typename Format, bool GATED>
__global__ void ScanStates(AttentionShape shape, const ScanJob* jobs, const float* partials,
                           [[maybe_unused]] const float* decays, uint8_t* snapshots,
                           int64_t snapshot_bytes, int64_t snapshot_z) {
  const ScanJob job = jobs[blockIdx.x];
  const int head = blockIdx.y;
  const int64_t sums = static_cast<int64_t>(shape.features) * shape.d;
  const int64_t elements = sums + shape.features;
  uint8_t* S = At<uint8_t>(job.state.sums, shape.layer, head);
  uint8_t* read = At<uint8_t>(job.state.read, shape.layer, head);
  float* z = At<float>(job.state.weights, shape.layer, head);
  if constexpr (GATED) decays += job.partial * shape.kv_heads + head;
  partials += (job.partial * shape.kv_heads + head) * elements;
  if (job.snapshots >= 0) snapshots += (job.snapshots * shape.kv_heads + head) * snapshot_bytes;
  const int64_t next_partial = shape.kv_heads * elements;
  const int64_t next_snapshot = shape.kv_heads * snapshot_bytes;
  // Whole warps, where they make a copy.
  const int64_t end = Format::kCopy ? (elements + kMxBlock - 1) / kMxBlock * kMxBlock : elements;
  for (int64_t e = static_cast<int64_t>(blockIdx.z) * blockDim.x + threadIdx.x; e < end;
       e += static_cast<int64_t>(gridDim.z) * blockDim.x) {
    const bool is_sum = e < sums, is_weight = !is_sum && e < elements;
    float value = is_sum ? Format::Load(S, sums, e) : is_weight ? z[e - sums] : 0.0f;
    const float* partial = partials + e;
    uint8_t* snapshot = snapshots;
    int until_next = 0;  // additions before the next snapshot
    for (int first = 0; first < job.count; first += kScanAhead) {
      float ahead[kScanAhead];
#pragma unroll
      for (int i = 0; i < kScanAhead; ++i) {
        if (first + i < job.count) ahead[i] = e < elements ? partial[i * next_partial] : 0.0f;
      }
      partial += kScanAhead * next_partial;
#pragma unroll
      for (int i = 0; i < kScanAhead; ++i) {
        if (first + i >= job.count) break;
        if (job.snapshots >= 0 && until_next-- == 0) {
          until_next = job.period - 1;
          Format::StoreRead(value, is_sum, snapshot, sums, e);
          if (is_weight) reinterpret_cast<float*>(snapshot + snapshot_z)[e - sums] = value;
          snapshot += next_snapshot;
        }
        if constexpr (GATED) {
          const int64_t block = first + i;
          value = fmaf(expf(decays[block * shape.kv_heads]), value, ahead[i]);
        } else {
          value += ahead[i];
        }
      }
    }
    if (is_sum) Format::Store(value, S, sums, e);
    if (is_weight) z[e - sums] = value;
    if constexpr (Format::kCopy) Format::StoreRead(value, is_sum, read, sums, e);
  }
}

// Adds blocks to the states of a segment, and stores the states before each block and after the last
// as the queries of warpgroups read them. blockIdx: 64 features, kv head, job.
template <typename Format, bool GATED>
__global__ void __launch_bounds__(kWalkThreads, 2)
    WalkSegments(AttentionShape shape, const WalkJob* jobs, uint8_t* snapshots,
                 int64_t snapshot_bytes, WalkProgress progress) {
  LetNextKernelBegin();
  const WalkJob job = jobs[blockIdx.z];
  const int head = blockIdx.y, feature = WalkFeature();
  const int64_t size = static_cast<int64_t>(shape.features) * 64;
  uint8_t* S = At<uint8_t>(job.state.sums, shape.layer, head);
  float* z = At<float>(job.state.weights, shape.layer, head);
  const bool is_read = job.snapshots >= 0;  // by queries, which wait for the states
  const auto store = [&](const WalkSums& state, int index) {
    if (!is_read) return;
    progress.Storing(blockIdx.z, head, feature, index);
    const int64_t snapshot = (job.snapshots + index) * shape.kv_heads + head;
    StoreTiles<Format::kCopy>(feature, state,
                              reinterpret_cast<Bf16*>(snapshots + snapshot * snapshot_bytes));
  };
  WalkSums state;
  if (WalkPlace().group == 0) {
    state.Clear();
    state.Visit(
        feature,
        [&](int64_t at, float* low, float* high) {
          *low = Format::Load(S, size, at);
          *high = Format::Load(S, size, at + 1);
        },
        [&](int64_t f, float* weight) { *weight = z[f]; });
    store(state, 0);
  }
  const WalkRows rows{{At<Bf16>(job.from.far_keys, shape.layer, head), shape.far_dim},
                      {At<Bf16>(job.from.values, shape.layer, head), 64},
                      static_cast<int64_t>(job.count) * shape.block,
                      shape.block,
                      GATED ? At<float>(job.from.decay_sums, shape.layer, head) : nullptr};
  if (WalkBlocks<GATED>(rows, shape.tiles, &state,
                        [&](int block, WalkSums* sums) { store(*sums, block + 1); })) {
    state.Visit(
        feature,
        [&](int64_t at, const float* low, const float* high) {
          Format::Store(*low, S, size, at);
          Format::Store(*high, S, size, at + 1);
        },
        [&](int64_t f, const float* weight) { z[f] = *weight; });
    if constexpr (Format::kCopy) {
      StoreCopy(feature, state, At<uint8_t>(job.state.read, shape.layer, head), size);
    }
  }
  if (is_read) progress.End(blockIdx.z, head, feature, job.count + 1);
}

}  // namespace polysketch::cuda
