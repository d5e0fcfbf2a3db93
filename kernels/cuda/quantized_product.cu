// Products with weights of 8 and of 4 bits (kernels/quantize.h): rows are quantised, then few of them
// are multiplied here, many on tensor cores (quantized_tiles.cuh). All sums are of integers and
// exact, so that every order of a sum gives the same bits. Up to kPreparedRows rows every thread block
// quantises itself, after their norm if there is one, and the product takes the gate of its sums.
//
// The time of few rows is that of reading the weights: a thread reads 16 bytes of them at a time,
// four columns of one word each, and has every kSlices-th unit of k (16 k of 8 bits, a group of 32 k
// of 4 bits).
#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/half_product.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quantized_operands.h"
#include "kernels/cuda/quantized_rows.cuh"
#include "kernels/cuda/quantized_tiles.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kColumns = 16;  // of a thread block; a thread has four
constexpr int kColumnLanes = kColumns / 4;
constexpr int kSliceLanes = kWarpSize / kColumnLanes;
constexpr int kSlices = kWarps * kSliceLanes;
static_assert(kColumns == kQuantColumns);

// One thread block for each row; out: [rows][padded].
template <bool kGate>
__global__ void __launch_bounds__(kThreads)
    QuantizeRows(const QuantRows rows, int8_t* out, float* scales) {
  AfterEarlierKernels();
  const int64_t row = blockIdx.x;
  const float scale = QuantizeRow<kWarps, kGate>(rows, rows.x + row * rows.stride,
                                                 out + row * rows.padded, SharedMemory<float>());
  if (threadIdx.x == 0) scales[row] = scale;
}

// sums[c] += the products of a word of x and one of each of four columns.
__device__ __forceinline__ void AddWords(uint32_t x, const uint4& w, int32_t (&sums)[4]) {
  sums[0] = Dot4(x, w.x, sums[0]);
  sums[1] = Dot4(x, w.y, sums[1]);
  sums[2] = Dot4(x, w.z, sums[2]);
  sums[3] = Dot4(x, w.w, sums[3]);
}

// Integers of 4 bits, which are stored plus 8, as signed ones.
__device__ __forceinline__ uint4 SignedHalves(const uint4& w) {
  constexpr uint32_t kEights = 0x88888888u;
  return {w.x ^ kEights, w.y ^ kEights, w.z ^ kEights, w.w ^ kEights};
}
// The lower or upper four bits of each byte, each times 16, as signed bytes.
__device__ __forceinline__ uint4 UpperHalves(const uint4& w) {
  constexpr uint32_t kUpper = 0xf0f0f0f0u;
  return {w.x & kUpper, w.y & kUpper, w.z & kUpper, w.w & kUpper};
}
__device__ __forceinline__ uint4 LowerHalves(const uint4& w) {
  return UpperHalves({w.x << 4, w.y << 4, w.z << 4, w.w << 4});
}

// sums[c] += the products of a row's unit and four columns. w[i]: word row i of the columns; scales:
// of 4 bits, a byte for each column.
template <bool kQ4>
__device__ __forceinline__ void AddUnit(const uint4* x, const uint4 (&w)[4], uint32_t scales,
                                        int32_t (&sums)[4]) {
  const uint4 first = x[0];
  const uint32_t lower[4] = {first.x, first.y, first.z, first.w};
  if constexpr (!kQ4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) AddWords(lower[i], w[i], sums);
  } else {
    const uint4 second = x[1];
    const uint32_t upper[4] = {second.x, second.y, second.z, second.w};
    int32_t group[4] = {};  // 16 times the sum of the group
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      AddWords(lower[i], LowerHalves(w[i]), group);
      AddWords(upper[i], UpperHalves(w[i]), group);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[c] += (group[c] >> 4) * SignedByte(scales, c);
  }
}

// What a product of few rows has besides.
struct FewArguments {
  QuantRows
      from;  // R <= kPreparedRows: the rows that are quantised first, in place of x and x_scales
  bool gated;
  GateKind gate;  // of the sums; `out` has the columns of the result then
};

// At most: each thread block quantises its rows. More rows of each would take longer than a launch.
constexpr int64_t kPreparedRows = 4;

// Whether a result has a column of u and one of g.
__host__ __device__ __forceinline__ bool HasPairs(const FewArguments& few) {
  return few.gated && few.gate != GateKind::kUngatedGelu;
}

// The column of w that belongs to a column of the block. Of pairs half of them are columns of u and the
// other half those of g.
__device__ __forceinline__ int ColumnOf(const QuantArguments& p, const FewArguments& few, int c) {
  const int block = static_cast<int>(blockIdx.x);
  if (!HasPairs(few)) return block * kColumns + c;
  constexpr int kHalf = kColumns / 2;
  return block * kHalf + (c < kHalf ? c : p.columns / 2 + c - kHalf);
}

// Shared memory of a product of R rows.
template <int R>
struct FewMemory {
  static constexpr bool kPrepares = R <= kPreparedRows;
  static constexpr int kSums = kWarps * R * kColumns;         // of warps
  static constexpr int kPlain = kSums + (kPrepares ? 8 : 0);  // with R scales and kWarps floats
  static_assert(kPlain % 4 == 0 && (!kPrepares || R + kWarps <= 8));  // rows: aligned to 16 bytes
  static size_t Bytes(int64_t padded_in) {
    return kPlain * sizeof(float) + (kPrepares ? R * padded_in : 0);
  }
};

// Quantises rows [0, R) of a product: a warp each, or one row by all warps.
template <int R>
__device__ __forceinline__ void PrepareRows(const QuantArguments& p, const QuantRows& from,
                                            float* scales, int8_t* xs) {
  const auto prepare = [&]<int kRowWarps>(int r) {
    // Rows that x does not have repeat the last one: their sums are not stored.
    const int64_t row = r < p.rows ? r : p.rows - 1;
    const float scale = QuantizeRow<kRowWarps, false>(from, from.x + row * from.stride,
                                                      xs + r * p.padded_in, scales + R);
    if (threadIdx.x % (kRowWarps * kWarpSize) == 0) scales[r] = scale;
  };
  if constexpr (R == 1) {
    prepare.template operator()<kWarps>(0);
  } else {
    static_assert(R == kWarps);
    prepare.template operator()<1>(static_cast<int>(threadIdx.x) / kWarpSize);
  }
  __syncthreads();
}

// blockIdx: 16 columns, R rows.
template <int R, bool kQ4>
__global__ void __launch_bounds__(kThreads)
    QuantizedProduct(const QuantArguments p, const FewArguments few) {
  using Memory = FewMemory<R>;
  constexpr int kUnit = kQ4 ? static_cast<int>(kQ4Group) : 16;
  auto* of_warps = SharedMemory<int32_t>();  // [kWarps][R][kColumns]
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int first = warp * kSliceLanes + lane / kColumnLanes;
  const int column = ColumnOf(p, few, lane % kColumnLanes * 4);
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * R;
  const auto words = [&](int unit) {
    return p.w + static_cast<int64_t>(unit) * 4 * p.padded_out + column;
  };
  float* scales = nullptr;  // of prepared rows
  int8_t* xs = nullptr;
  if constexpr (Memory::kPrepares) {
    scales = reinterpret_cast<float*>(of_warps) + Memory::kSums;
    xs = reinterpret_cast<int8_t*>(of_warps + Memory::kPlain);
    for (int unit = first; unit * kUnit < p.padded_in; unit += kSlices) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        PrefetchToL2(words(unit) + static_cast<int64_t>(i) * p.padded_out);
    }
  }
  AfterEarlierKernels();
  if constexpr (Memory::kPrepares) PrepareRows<R>(p, few.from, scales, xs);

  int32_t sums[R][4] = {};
  for (int unit = first; unit * kUnit < p.padded_in; unit += kSlices) {
    const uint32_t* from = words(unit);
    uint4 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(i) * p.padded_out);
      if constexpr (kQ4) w[i] = SignedHalves(w[i]);
    }
    uint32_t of_groups = 0;
    if constexpr (kQ4) {
      of_groups = *reinterpret_cast<const uint32_t*>(
          p.group_scales + static_cast<int64_t>(unit) * p.padded_out + column);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int8_t* x;
      if constexpr (Memory::kPrepares) {
        x = xs + r * p.padded_in;
      } else {
        x = p.x + (row0 + r < p.rows ? row0 + r : p.rows - 1) * p.padded_in;
      }
      AddUnit<kQ4>(reinterpret_cast<const uint4*>(x + unit * kUnit), w, of_groups, sums[r]);
    }
  }

#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      int32_t sum = sums[r][c];
#pragma unroll
      for (int distance = kColumnLanes; distance < kWarpSize; distance *= 2) {
        sum += __shfl_xor_sync(kFullWarp, sum, distance);
      }
      if (lane < kColumnLanes) of_warps[(warp * R + r) * kColumns + 4 * lane + c] = sum;
    }
  }
  __syncthreads();
  // The sum of a column of the block with its bias.
  const auto value = [&](int r, int c) {
    int32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += of_warps[(i * R + r) * kColumns + c];
    const int own = ColumnOf(p, few, c);
    const float x_scale = Memory::kPrepares ? scales[r] : p.x_scales[row0 + r];
    const float scaled = static_cast<float>(sum) * (x_scale * p.column_scales[own]);
    return p.bias == nullptr ? scaled : scaled + p.bias[own];
  };
  const bool pairs = HasPairs(few);
  const int columns = pairs ? kColumns / 2 : kColumns, width = pairs ? p.columns / 2 : p.columns;
  for (int i = threadIdx.x; i < R * columns; i += kThreads) {
    const int r = pairs ? i / (kColumns / 2) : i / kColumns, c = i - r * columns;
    const int own = static_cast<int>(blockIdx.x) * columns + c;
    if (row0 + r >= p.rows || own >= width) continue;
    float* to = p.out + (row0 + r) * width + own;
    const float x = value(r, c);
    if (pairs) {
      *to = Gated(few.gate, x, value(r, kColumns / 2 + c));
    } else if (few.gated) {
      *to = Gelu(x);
    } else {
      *to = p.accumulate ? x + *to : x;
    }
  }
}

template <int R>
void LaunchFew(Device* device, bool q4, const QuantArguments& p, const FewArguments& few) {
  const bool pairs = HasPairs(few);
  const dim3 grid(CeilDiv(pairs ? p.columns / 2 : p.columns, pairs ? kColumns / 2 : kColumns),
                  CeilDiv(p.rows, R));
  device->LaunchDependent(q4 ? QuantizedProduct<R, true> : QuantizedProduct<R, false>, grid,
                          kThreads, FewMemory<R>::Bytes(p.padded_in), p, few);
}

// Whether the product quantises its rows.
bool Prepares(int64_t rows, const CudaMatrix& w) {
  return rows <= kPreparedRows && FewMemory<kPreparedRows>::Bytes(w.padded_in()) <= kPlainShared;
}

template <typename T>
void LaunchTiles(Device* device, const QuantArguments& p) {
  static_assert(T::kDepth == kQuantDepth);
  static_assert(T::kShared <= 99 << 10);  // what every device has
  device->LaunchDependent(QuantizedTiles<T>,
                          dim3(CeilDiv(p.columns, T::kColumns), CeilDiv(p.rows, T::kRows)),
                          T::kThreads, T::kShared, p);
}

template <int kSide>
void LaunchTiles(Device* device, bool q4, const QuantArguments& p) {
  if (q4) return LaunchTiles<QuantTile<kSide, kSide, true>>(device, p);
  LaunchTiles<QuantTile<kSide, kSide, false>>(device, p);
}

// More rows are multiplied on tensor cores. Without them the time grows with every eight rows; with
// them it is that of a chain of stages, whatever the rows of a tile.
constexpr int64_t kFewRows = 32;

}  // namespace

bool CudaBackend::QuantizedGates(GateKind gate, int64_t rows, const CudaMatrix& w) {
  // A block has eight columns of u, and those of g, aligned to 16 bytes.
  return Prepares(rows, w) && (gate == GateKind::kUngatedGelu || w.out() % kColumns == 0);
}

void CudaBackend::MatMulQuantized(const QuantInput& input, int64_t rows, const CudaMatrix& w,
                                  const QuantOutput& output) {
  PS_CHECK(w.in() <= kQuantLongest) << w.in();
  const int width = static_cast<int>(w.in()), padded = static_cast<int>(w.padded_in());
  const NormWeights norm = input.norm == nullptr ? NormWeights() : *input.norm;
  const QuantRows from{input.floats,
                       width,
                       padded,
                       static_cast<int>(input.gate ? UpColumns(*input.gate, width) : width),
                       AlignedQuads(width, {input.floats, norm.scale, norm.bias}),
                       norm,
                       input.gate.value_or(GateKind::kGelu)};
  QuantArguments p{nullptr,
                   nullptr,
                   rows,
                   padded,
                   w.words(),
                   w.column_scales(),
                   w.group_scales(),
                   static_cast<int>(w.out()),
                   static_cast<int>(w.padded_out()),
                   output.bias,
                   output.accumulate,
                   output.floats,
                   AlignedQuads(w.out(), {output.bias, output.floats})};
  const FewArguments few{from, output.gate.has_value(), output.gate.value_or(GateKind::kGelu)};
  const bool q4 = w.type() == DataType::kQ4;
  if (!input.gate && Prepares(rows, w)) {
    return rows == 1 ? LaunchFew<1>(device_.get(), q4, p, few)
                     : LaunchFew<kPreparedRows>(device_.get(), q4, p, few);
  }
  PS_CHECK(!few.gated);
  int8_t* quantised = bytes_.Grow(device_.get(), rows * padded);
  float* scales = floats_[3].Grow(device_.get(), rows);
  device_->LaunchDependent(input.gate ? QuantizeRows<true> : QuantizeRows<false>,
                           dim3(static_cast<unsigned>(rows)), kThreads, kWarps * sizeof(float),
                           from, quantised, scales);
  p.x = quantised;
  p.x_scales = scales;
  if (rows <= kFewRows) return LaunchFew<8>(device_.get(), q4, p, few);
  if (ManyTiles(rows, w)) return LaunchTiles<128>(device_.get(), q4, p);
  LaunchTiles<64>(device_.get(), q4, p);
}

void CudaBackend::MlpQuantized(const MlpWeights& mlp, int64_t rows, float* x, float* scratch) {
  const CudaMatrix &up = Cast(*mlp.up), &down = Cast(*mlp.down);
  const QuantInput normed{.floats = x, .norm = &mlp.norm};
  QuantOutput to_up{.floats = scratch, .bias = mlp.up_bias};
  QuantInput to_down{.floats = scratch};
  (QuantizedGates(mlp.gate, rows, up) ? to_up.gate : to_down.gate) = mlp.gate;
  MatMulQuantized(normed, rows, up, to_up);
  MatMulQuantized(to_down, rows, down, {.floats = x, .bias = mlp.down_bias, .accumulate = true});
}

}  // namespace polysketch::cuda
