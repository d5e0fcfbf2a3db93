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

__host__ __device__ constexpr int StoreChunks(int width) {
  return (width + kStoreChunk - 1) / kStoreChunk;
}

// Stores the keys and values of a job in a cache of 8-bit numbers, of which the slices of the grid and their
// warps take the blocks in turn. The numbers are those of elements rounded to bf16, so that rows of floats
// and rounded ones have the same.
__device__ __forceinline__ void StoreMxTokens(const AttentionShape& shape, const StoreJob& job,
                                              int head, uint8_t* near_keys, uint8_t* values) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, d = shape.d;  // that of keys too
  const int blocks = static_cast<int>(MxScales(d));
  const auto warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int64_t scales = MxScalesAt(static_cast<int64_t>(shape.block) * d);
  RowPieces at(2 * blocks,
               static_cast<int>(blockIdx.z) * warps + static_cast<int>(threadIdx.x) / kWarpSize,
               static_cast<int>(gridDim.z) * warps);
  for (; at.row < job.count; at.Next()) {
    const bool is_key = at.piece < blocks;
    const int block = is_key ? at.piece : at.piece - blocks, column = block * kMxBlock + lane;
    const int64_t m = job.row + at.row, token = job.first + at.row;
    const int64_t key = (m * shape.kv_heads + head) * d + column;
    const bool inside = column < d;
    float value = 0;
    if (inside && is_key && shape.rows.near_k != nullptr) {
      value = WidenBf16(shape.rows.near_k[key]);
    } else if (inside) {
      value = is_key ? shape.near_k[key]
                     : shape.v[m * shape.v_stride + static_cast<int64_t>(head) * d + column];
      value = WidenBf16(RoundBf16(value));
    }
    uint8_t* array = is_key ? near_keys : values;
    StoreMxBlock(value, inside, array + token * d + MxPlace(d, column),
                 array + scales + token * blocks + block);
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
  T* near_keys = Array<T>(job.to.near_keys, job.table, job.place, layer, head);
  T* values = Array<T>(job.to.values, job.table, job.place, layer, head);
  // In unmixed kinds the far keys equal the near keys; the workspace has both.
  T* far_keys =
      shape.far_dim > 0 ? Array<T>(job.to.far_keys, job.table, job.place, layer, head) : nullptr;
  if constexpr (Format::kMxCache) {
    StoreMxTokens(shape, job, head, reinterpret_cast<uint8_t*>(near_keys),
                  reinterpret_cast<uint8_t*>(values));
  }
  const int near = Format::kMxCache ? 0 : StoreChunks(shape.near_dim);
  const int near_and_values = near + (Format::kMxCache ? 0 : StoreChunks(shape.d));
  const int chunks = near_and_values + StoreChunks(shape.far_dim);
  if (chunks == 0) return;
  RowPieces at(chunks, static_cast<int>(blockIdx.z * blockDim.x + threadIdx.x),
               static_cast<int>(gridDim.z * blockDim.x));
  for (const int rows = job.count; at.row < rows; at.Next()) {
    const int row = at.row, chunk = at.piece;
    const int64_t m = job.row + row, token = job.first + row, of_head = m * shape.kv_heads + head;
    if (chunk < near) {
      StoreChunk(shape.near_k, shape.rows.near_k, of_head * shape.near_dim, shape.near_dim, chunk,
                 near_keys + token * shape.near_dim);
    } else if (chunk < near_and_values) {
      StoreChunk(shape.v + m * shape.v_stride + static_cast<int64_t>(head) * shape.d, shape.d,
                 chunk - near, values + token * shape.d);
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
  // Where a copy is made, rows and their end are whole warps.
  const int width = Format::kCopy ? static_cast<int>(MxScales(shape.d)) * kMxBlock : shape.d;
  const int64_t places = static_cast<int64_t>(shape.features) * width;
  const int64_t end = places + (Format::kCopy ? MxScales(shape.features) * kMxBlock
                                              : static_cast<int64_t>(shape.features));
  for (int64_t place = static_cast<int64_t>(blockIdx.z) * blockDim.x + threadIdx.x; place < end;
       place += static_cast<int64_t>(gridDim.z) * blockDim.x) {
    StateElement element{shape.features, shape.d, 0, 0};
    int64_t e = place;
    if constexpr (Format::kCopy) {
      element.row = static_cast<int>(place) / width;
      element.column = static_cast<int>(place) % width;
      e = place < places ? element.at() : sums + place - places;
    } else {
      element.column = static_cast<int>(place);
    }
    const bool is_sum = place < places && (!Format::kCopy || element.column < shape.d);
    const bool is_weight = Format::kCopy ? place >= places && e < elements : !is_sum;
    const bool inside = !Format::kCopy || is_sum || is_weight;
    float value = is_sum ? Format::Load(S, sums, e) : is_weight ? z[e - sums] : 0.0f;
    const float* partial = partials + e;
    uint8_t* snapshot = snapshots;
    int until_next = 0;  // additions before the next snapshot
    for (int first = 0; first < job.count; first += kScanAhead) {
      float ahead[kScanAhead];
#pragma unroll
      for (int i = 0; i < kScanAhead; ++i) {
        if (first + i < job.count) ahead[i] = inside ? partial[i * next_partial] : 0.0f;
      }
      partial += kScanAhead * next_partial;
#pragma unroll
      for (int i = 0; i < kScanAhead; ++i) {
        if (first + i >= job.count) break;
        if (job.snapshots >= 0 && until_next-- == 0) {
          until_next = job.period - 1;
          Format::StoreRead(value, is_sum, snapshot, element);
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
    if constexpr (Format::kCopy) Format::StoreRead(value, is_sum, read, element);
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
