// A thread block computes all rows, or 16 kMTiles of them, of a few columns. Every warp starts
// copies of weights as far ahead as shared memory allows, 4 KB a stage and 8 stages, since the time
// is that of reading the weights: many small blocks with 28 KB each in flight. Then the chains over
// k follow, one for each tile of 16 x 8 outputs, at the latency of a tensor core instruction for 16
// k. The left operand is small. With kWhole it is prepared once, as a whole, while the weights
// arrive: rounded from float32, after a norm if there is one. Otherwise it is 16-bit already,
// and copied stage by stage beside the weights.
#include "kernels/cuda/skinny_product.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/mlp_gate.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/planted.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kStageBytes = kThreads * 16;  // of weights: one copy a thread
constexpr size_t kMaxShared = 99 << 10;     // what a block may have on every device

// The shape of a block's work.
template <int kMTiles_, int kColumns_, bool kWhole_, bool kNorm_ = false>
struct Tile {
  static constexpr int kMTiles = kMTiles_;    // of 16 rows
  static constexpr int kColumns = kColumns_;  // 8, 16, 32 or 64
  static constexpr bool kWhole = kWhole_;
  static constexpr bool kNorm = kNorm_;  // norms x, for which a thread needs many registers
  static constexpr int kRows = 16 * kMTiles;
  static constexpr int kDepth = kStageBytes / 2 / kColumns;  // of a stage
  // Rows of shared tiles have an odd number of 16-byte words, so that ldmatrix has no bank
  // conflicts; rows of 8 columns have none anyway.
  static constexpr int kWRow = kColumns == 8 ? 8 : kColumns + 8;
  static constexpr int kXRow = kDepth + 8;
  static constexpr int kWHalves = kDepth * kWRow;
  static constexpr int kStageHalves = kWHalves + (kWhole ? 0 : kRows * kXRow);
  static constexpr int kStages = kStageHalves * 2 * 8 <= kMaxShared ? 8 : 6;
  // Warps beside each other take other columns, warps below each other other rows.
  static constexpr int kWarpsDown = kMTiles > 1 ? 2 : 1;
  static constexpr int kWarpsAcross = kWarps / kWarpsDown;
  static constexpr int kWarpM = kMTiles / kWarpsDown;  // 16-row tiles of a warp
  static constexpr int kNTiles = kColumns / 8;
  static constexpr int kWarpN = kNTiles <= kWarpsAcross ? 1 : kNTiles / kWarpsAcross;
  static constexpr int kSumRow = kColumns + 4;

  static size_t Shared(int64_t rows, int64_t padded_in) {
    const int64_t stages = kStages * kStageHalves * 2;
    const int64_t x =
        kWhole ? std::min<int64_t>(rows, kRows) * (padded_in + 8) * 2 + kWarps * 4 : 0;
    const int64_t sums = kRows * kSumRow * 4;
    return static_cast<size_t>(std::max(stages, sums) + x);
  }
};

// The arguments of a product. x is of floats or of halves.
struct Arguments {
  const float* floats;
  const uint16_t* halves;
  NormWeights norm;  // kNorm only
  bool aligned;
  int rows, in, padded_in;
  const uint16_t* w;
  int columns, padded_out;
  float* out;
  const float* bias;
  bool accumulate;
  uint16_t* gated;  // null: no gate
  GateKind gate;
  SkinnyPrefetch prefetch;
};

// The blocks of the grid share the ranges.
__device__ __forceinline__ void Prefetch(const SkinnyPrefetch& prefetch) {
  constexpr int64_t kPiece = 4096;
  const int64_t thread = static_cast<int64_t>(threadIdx.x) * gridDim.x * gridDim.y +
                         blockIdx.y * gridDim.x + blockIdx.x;
  const int64_t threads = static_cast<int64_t>(kThreads) * gridDim.x * gridDim.y;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const SkinnyPrefetch::Range& range = prefetch.next[i];
    for (int64_t at = thread * kPiece; at < range.bytes; at += threads * kPiece) {
      const int64_t left = range.bytes - at;
      PrefetchRange(range.data + at, static_cast<unsigned>(left < kPiece ? left : kPiece));
    }
  }
}

// Whether a result has a column of u and one of g.
__host__ __device__ __forceinline__ bool HasPairs(const Arguments& p) {
  return p.gated != nullptr && p.gate != GateKind::kUngatedGelu;
}

// The column of w that belongs to a column of the block's tile. Of pairs half of a tile are columns of
// u and the other half those of g.
template <typename T>
__device__ __forceinline__ int ColumnOf(const Arguments& p, int c) {
  const int block = static_cast<int>(blockIdx.x);
  if (!HasPairs(p)) return block * T::kColumns + c;
  constexpr int kHalf = T::kColumns / 2;
  return block * kHalf + (c < kHalf ? c : p.columns / 2 + c - kHalf);
}

// Rows [0, rows) of x as halves: xs [rows][padded_in + 8].
template <typename T, bool kBf16>
__device__ __forceinline__ void PrepareRows(const Arguments& p, int row0, int rows, uint16_t* xs) {
  const int x_row = p.padded_in + 8;
  if (T::kNorm && p.in > kRegisterNorm) {
    auto* scratch = reinterpret_cast<float*>(xs + rows * x_row);
    for (int r = 0; r < rows; ++r) {
      LongNormToHalves<kWarps, kBf16>(p.floats + static_cast<int64_t>(row0 + r) * p.in, p.in,
                                      p.norm, p.aligned, p.padded_in, xs + r * x_row, scratch);
    }
  } else if constexpr (T::kNorm) {
    for (int r = threadIdx.x / kWarpSize; r < rows; r += kWarps) {
      NormRowToHalves<kBf16>(p.floats + static_cast<int64_t>(row0 + r) * p.in, p.in, p.norm,
                             p.aligned, p.padded_in, xs + r * x_row);
    }
  } else if (p.floats != nullptr) {
    const int quads = p.padded_in / 4;
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * quads; i += kThreads) {
      const int r = i / quads, k = i % quads * 4;
      const float* row = p.floats + static_cast<int64_t>(row0 + r) * p.in;
      StoreHalves<kBf16>(LoadQuad(row, k, p.in, p.aligned), p.in - k, xs + r * x_row + k);
    }
  } else {
    const int words = p.padded_in / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * words; i += kThreads) {
      const int r = i / words, k = i % words * 8;
      *reinterpret_cast<uint4*>(xs + r * x_row + k) = *reinterpret_cast<const uint4*>(
          p.halves + static_cast<int64_t>(row0 + r) * p.padded_in + k);
    }
  }
}

// Starts the copies of a stage's weights, and of its x without kWhole.
template <typename T>
__device__ __forceinline__ void LoadStage(const Arguments& p, int row0, int k0, const uint16_t* w,
                                          int w_offset, uint16_t* stage) {
  if (k0 < p.padded_in) {
    const int k = static_cast<int>(threadIdx.x) / T::kNTiles;
    CopyAsync16(stage + w_offset, w, k0 + k < p.padded_in);
    if constexpr (!T::kWhole) {
      constexpr int kWords = T::kDepth / 8;
      for (int i = threadIdx.x; i < T::kRows * kWords; i += kThreads) {
        const int r = i / kWords, c = i % kWords * 8;
        const bool inside = row0 + r < p.rows && k0 + c < p.padded_in;
        CopyAsync16(
            stage + T::kWHalves + r * T::kXRow + c,
            inside ? p.halves + static_cast<int64_t>(row0 + r) * p.padded_in + k0 + c : p.halves,
            inside);
      }
    }
  }
  CommitCopies();
}

// sums += x w over 32 k: ws and xs point to the first of them.
template <typename T, bool kBf16>
__device__ __forceinline__ void Multiply32(const uint16_t* xs, int x_row, int last_row, int warp_m,
                                           const uint16_t* ws, int warp_n,
                                           float (&sums)[T::kWarpM][T::kWarpN][4]) {
  const int lane = threadIdx.x % kWarpSize;
  uint32_t b[T::kWarpN][4];  // rows k, k + 8, k + 16, k + 24 of 8 columns
#pragma unroll
  for (int n = 0; n < T::kWarpN; ++n) {
    LoadMatrix4T(b[n], ws + lane * T::kWRow + (warp_n + n) * 8);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int m = 0; m < T::kWarpM; ++m) {
      // Rows that x does not have repeat the last one: their sums are not stored.
      const int row = min(16 * (warp_m + m) + lane % 16, last_row);
      uint32_t a[4];
      LoadMatrix4(a, xs + row * x_row + 16 * half + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < T::kWarpN; ++n) {
        MmaHalf<kBf16>(sums[m][n], a, b[n][2 * half], b[n][2 * half + 1]);
      }
    }
  }
}

// Stores the sums of the block's rows: sums [kRows][kSumRow] in shared memory.
template <typename T, bool kBf16>
__device__ __forceinline__ void StoreSums(const Arguments& p, int row0, int rows,
                                          const float* sums) {
  const auto with_bias = [&](int r, int c) {
    const float sum = sums[r * T::kSumRow + c];
    return p.bias == nullptr ? sum : sum + p.bias[ColumnOf<T>(p, c)];
  };
  if (HasPairs(p)) {
    constexpr int kHalf = T::kColumns / 2;
    const int hidden = p.columns / 2;
    for (int i = threadIdx.x; i < rows * kHalf; i += kThreads) {
      const int r = i / kHalf, c = i % kHalf;
      const float value = Gated(p.gate, with_bias(r, c), with_bias(r, kHalf + c));
      const int64_t at = static_cast<int64_t>(row0 + r) * hidden + ColumnOf<T>(p, c);
      p.gated[at] = static_cast<uint16_t>(PackHalf<kBf16>(value, 0.0f));
    }
    return;
  }
  for (int i = threadIdx.x; i < rows * T::kColumns; i += kThreads) {
    const int r = i / T::kColumns, c = i % T::kColumns, column = ColumnOf<T>(p, c);
    if (column >= p.columns) continue;
    const int64_t at = static_cast<int64_t>(row0 + r) * p.columns + column;
    const float sum = with_bias(r, c);
    if (p.gated != nullptr) {
      p.gated[at] = static_cast<uint16_t>(PackHalf<kBf16>(Gelu(sum), 0.0f));
    } else {
      p.out[at] = p.accumulate ? sum + p.out[at] : sum;
    }
  }
}

template <typename T, bool kBf16>
__global__ void __launch_bounds__(kThreads, 2) SkinnyKernel(const Arguments p) {
  auto* stages = SharedMemory<uint16_t>();
  const int row0 = static_cast<int>(blockIdx.y) * T::kRows;
  const int rows = min(p.rows - row0, T::kRows);
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int warp_m = warp / T::kWarpsAcross * T::kWarpM;
  const int warp_n = warp % T::kWarpsAcross * T::kWarpN;

  // The 16 bytes of each stage that this thread copies.
  const int w_k = static_cast<int>(threadIdx.x) / T::kNTiles;
  const int w_column = static_cast<int>(threadIdx.x) % T::kNTiles * 8;
  const int w_offset = w_k * T::kWRow + w_column;
  const uint16_t* w = p.w + static_cast<int64_t>(w_k) * p.padded_out + ColumnOf<T>(p, w_column);
  const int64_t w_step = static_cast<int64_t>(T::kDepth) * p.padded_out;

  uint16_t* xs = stages + T::kStages * T::kStageHalves;
  if constexpr (!T::kWhole) {
    for (int s = 0; s < T::kStages - 1; ++s) {
      if (s * T::kDepth + w_k < p.padded_in) PrefetchToL2(w + s * w_step);
    }
    AfterEarlierKernels();
  }
  for (int s = 0; s < T::kStages - 1; ++s) {
    LoadStage<T>(p, row0, s * T::kDepth, w, w_offset, stages + s * T::kStageHalves);
    w += w_step;
  }
  Prefetch(p.prefetch);
  if constexpr (T::kWhole) {
    AfterEarlierKernels();
    PrepareRows<T, kBf16>(p, row0, rows, xs);
  }

  float sums[T::kWarpM][T::kWarpN][4] = {};
  int stage = 0;
  for (int k0 = 0; k0 < p.padded_in; k0 += T::kDepth) {
    WaitCopies<T::kStages - 2>();
    // All threads see this stage and have read the one before it.
    if (!PS_PLANTED(SKINNY_STAGE_BARRIER)) __syncthreads();
    const int next = stage == 0 ? T::kStages - 1 : stage - 1;
    LoadStage<T>(p, row0, k0 + (T::kStages - 1) * T::kDepth, w, w_offset,
                 stages + next * T::kStageHalves);
    w += w_step;
    if (warp_n < T::kNTiles) {
      const uint16_t* ws = stages + stage * T::kStageHalves;
      const uint16_t* from = T::kWhole ? xs + k0 : ws + T::kWHalves;
      const int x_row = T::kWhole ? p.padded_in + 8 : T::kXRow;
      if (p.padded_in - k0 >= T::kDepth) {
#pragma unroll
        for (int k = 0; k < T::kDepth; k += 32) {
          Multiply32<T, kBf16>(from + k, x_row, rows - 1, warp_m, ws + k * T::kWRow, warp_n, sums);
        }
      } else {
        for (int k = 0; k < p.padded_in - k0; k += 32) {
          Multiply32<T, kBf16>(from + k, x_row, rows - 1, warp_m, ws + k * T::kWRow, warp_n, sums);
        }
      }
    }
    stage = stage + 1 == T::kStages ? 0 : stage + 1;
  }

  // All stages have been read.
  if (!PS_PLANTED(SKINNY_SUMS_BARRIER)) __syncthreads();
  auto* shared_sums = reinterpret_cast<float*>(stages);
  if (warp_n < T::kNTiles) {
    for (int m = 0; m < T::kWarpM; ++m) {
      for (int n = 0; n < T::kWarpN; ++n) {
        for (int i = 0; i < 4; ++i) {
          const int r = 16 * (warp_m + m) + lane / 4 + i / 2 * 8;
          shared_sums[r * T::kSumRow + 8 * (warp_n + n) + lane % 4 * 2 + i % 2] = sums[m][n][i];
        }
      }
    }
  }
  __syncthreads();
  StoreSums<T, kBf16>(p, row0, rows, shared_sums);
}

template <bool kNorm>
using Few8 = Tile<1, 8, true, kNorm>;
template <bool kNorm>
using Few16 = Tile<1, 16, true, kNorm>;
template <bool kNorm>
using Few32 = Tile<1, 32, true, kNorm>;
using Whole16 = Tile<2, 16, true>;
using Whole32 = Tile<2, 32, true>;
using Staged16 = Tile<2, 16, false>;
using Staged32 = Tile<2, 32, false>;
using Staged64 = Tile<4, 64, false>;

template <typename T>
void Launch(Device* device, const CudaMatrix& w, const Arguments& p) {
  const int columns = HasPairs(p) ? T::kColumns / 2 : T::kColumns;
  const int64_t width = HasPairs(p) ? w.out() / 2 : w.out();
  device->LaunchDependent(
      w.type() == DataType::kBf16 ? SkinnyKernel<T, true> : SkinnyKernel<T, false>,
      dim3(CeilDiv(width, columns), CeilDiv(p.rows, T::kRows)), kThreads,
      T::Shared(p.rows, p.padded_in), p);
}

// Whether columns of 16 leave few enough thread blocks: about as many as there are multiprocessors.
bool Fits(Device* device, int64_t columns, int width, int blocks_down) {
  return CeilDiv(columns, width) * blocks_down * 5 <=
         static_cast<unsigned>(device->multiprocessors()) * 6;
}

constexpr int64_t kFewRows = 16;
// Every thread block norms its rows itself: up to this number that costs less than a launch.
constexpr int64_t kNormedRows = 16;
constexpr int64_t kVocabulary = 8192;  // as many columns fill the device in tiles of 64 x 64

template <bool kNorm>
void LaunchFew(Device* device, const CudaMatrix& w, const Arguments& p) {
  const bool pairs = HasPairs(p);
  if (!pairs && Fits(device, w.out(), 8, 1)) return Launch<Few8<kNorm>>(device, w, p);
  if (!pairs && Fits(device, w.out(), 16, 1)) return Launch<Few16<kNorm>>(device, w, p);
  Launch<Few32<kNorm>>(device, w, p);
}

bool WholeFits(int64_t rows, const CudaMatrix& w) {
  if (rows <= kFewRows) {
    return std::max({Few8<false>::Shared(rows, w.padded_in()),
                     Few16<false>::Shared(rows, w.padded_in()),
                     Few32<false>::Shared(rows, w.padded_in())}) <= kMaxShared;
  }
  return std::max(Whole16::Shared(rows, w.padded_in()), Whole32::Shared(rows, w.padded_in())) <=
         kMaxShared;
}

}  // namespace

bool SkinnyTakes(int64_t rows, const CudaMatrix& w, const SkinnyInput& input) {
  if (input.halves != nullptr) return true;
  if (input.norm != nullptr && rows > kNormedRows) return false;
  if (rows > kFewRows && w.out() >= kVocabulary) return false;
  return WholeFits(rows, w);
}

bool SkinnyGates(GateKind gate, const CudaMatrix& w) {
  return w.out() % (gate == GateKind::kUngatedGelu ? 32 : 64) == 0;
}

void SkinnyProduct(Device* device, int64_t rows, const CudaMatrix& w, const SkinnyInput& input,
                   const SkinnyOutput& output, const SkinnyPrefetch& prefetch) {
  PS_CHECK(rows >= 1 && rows <= kSkinnyRows && SkinnyTakes(rows, w, input)) << rows;
  const NormWeights norm = input.norm == nullptr ? NormWeights() : *input.norm;
  const Arguments p{input.floats,
                    input.halves,
                    norm,
                    AlignedQuads(w.in(), {input.floats, norm.scale, norm.bias}),
                    static_cast<int>(rows),
                    static_cast<int>(w.in()),
                    static_cast<int>(w.padded_in()),
                    w.halves(),
                    static_cast<int>(w.out()),
                    static_cast<int>(w.padded_out()),
                    output.floats,
                    output.bias,
                    output.accumulate,
                    output.gated,
                    output.gate,
                    prefetch};
  const bool pairs = HasPairs(p);
  if (rows <= kFewRows && WholeFits(rows, w)) {
    return input.norm == nullptr ? LaunchFew<false>(device, w, p) : LaunchFew<true>(device, w, p);
  }
  const bool narrow = !pairs && Fits(device, w.out(), 16, static_cast<int>(CeilDiv(rows, 32)));
  if (input.halves == nullptr) {
    return narrow ? Launch<Whole16>(device, w, p) : Launch<Whole32>(device, w, p);
  }
  if (!pairs && w.out() >= kVocabulary && rows > 32) return Launch<Staged64>(device, w, p);
  return narrow ? Launch<Staged16>(device, w, p) : Launch<Staged32>(device, w, p);
}

}  // namespace polysketch::cuda
