// Products with weights of 8 and of 4 bits (kernels/quantize.h): rows are quantised, then few of them
// are multiplied here, many on tensor cores (quantized_tiles.cuh). All sums are of integers and
// exact, so that every order of a sum gives the same bits.
//
// The time of few rows is that of reading the weights: a thread reads 16 bytes of them at a time,
// four columns of one word each, and has every kSlices-th unit of k (16 k of 8 bits, a group of 32 k
// of 4 bits).
#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/half_product.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quantized_tiles.cuh"
#include "kernels/quantize.h"

namespace polysketch::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kColumns = 16;  // of a thread block; a thread has four
constexpr int kColumnLanes = kColumns / 4;
constexpr int kSliceLanes = kWarpSize / kColumnLanes;
constexpr int kSlices = kWarps * kSliceLanes;
static_assert(kColumns == kQuantColumns);

// Quantises a row; out: [padded], zero from `width` on. One thread block for each row.
__global__ void QuantizeRows(const float* x, int64_t width, int64_t padded, int8_t* out,
                             float* scales) {
  AfterEarlierKernels();
  auto* scratch = SharedMemory<float>();
  const float* row = x + blockIdx.x * width;
  float largest = 0;
  bool bad = false;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    largest = fmaxf(largest, fabsf(row[i]));
    bad = bad || row[i] != row[i];  // fmaxf drops a NaN
  }
  largest = BlockMax(largest, static_cast<int>(blockDim.x), scratch);
  const float nan_count = BlockSum(bad ? 1.0f : 0.0f, static_cast<int>(blockDim.x), scratch);
  if (nan_count > 0) largest = BitsFloat(0x7fc00000u);
  const bool tiny = largest < kQuantTiny;
  const float inverse = tiny ? 0.0f : kQuantMax / largest;
  if (threadIdx.x == 0) scales[blockIdx.x] = tiny ? 0.0f : largest / kQuantMax;
  for (int64_t i = threadIdx.x; i < padded; i += blockDim.x) {
    const float q = i < width ? rintf(row[i] * inverse) : 0.0f;
    out[blockIdx.x * padded + i] = static_cast<int8_t>(q == q ? fminf(fmaxf(q, -127), 127) : 0.0f);
  }
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

// blockIdx: 16 columns, R rows.
template <int R, bool kQ4>
__global__ void __launch_bounds__(kThreads) QuantizedProduct(const QuantArguments p) {
  AfterEarlierKernels();
  constexpr int kUnit = kQ4 ? static_cast<int>(kQ4Group) : 16;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int column = static_cast<int>(blockIdx.x) * kColumns + lane % kColumnLanes * 4;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * R;
  int32_t sums[R][4] = {};
  for (int unit = warp * kSliceLanes + lane / kColumnLanes; unit * kUnit < p.padded_in;
       unit += kSlices) {
    const uint32_t* from = p.w + static_cast<int64_t>(unit) * 4 * p.padded_out + column;
    uint4 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(i) * p.padded_out);
      if constexpr (kQ4) w[i] = SignedHalves(w[i]);
    }
    uint32_t scales = 0;
    if constexpr (kQ4) {
      scales = *reinterpret_cast<const uint32_t*>(
          p.group_scales + static_cast<int64_t>(unit) * p.padded_out + column);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      // Rows that x does not have repeat the last one: their sums are not stored.
      const int64_t row = row0 + r < p.rows ? row0 + r : p.rows - 1;
      AddUnit<kQ4>(reinterpret_cast<const uint4*>(p.x + row * p.padded_in + unit * kUnit), w,
                   scales, sums[r]);
    }
  }

  auto* of_warps = SharedMemory<int32_t>();  // [kWarps][R][kColumns]
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
  for (int i = threadIdx.x; i < R * kColumns; i += kThreads) {
    const int64_t row = row0 + i / kColumns;
    const int own = static_cast<int>(blockIdx.x) * kColumns + i % kColumns;
    if (row >= p.rows || own >= p.columns) continue;
    int32_t sum = of_warps[i];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) sum += of_warps[other * R * kColumns + i];
    Finish(static_cast<float>(sum) * (p.x_scales[row] * p.column_scales[own]), p.bias, p.accumulate,
           own, p.out + row * p.columns + own);
  }
}

template <int R>
void LaunchFew(Device* device, bool q4, const QuantArguments& p) {
  device->LaunchDependent(q4 ? QuantizedProduct<R, true> : QuantizedProduct<R, false>,
                          dim3(CeilDiv(p.columns, kColumns), CeilDiv(p.rows, R)), kThreads,
                          kWarps * R * kColumns * sizeof(int32_t), p);
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

void CudaBackend::MatMulQuantized(const float* x, int64_t rows, const CudaMatrix& w,
                                  const float* bias, bool accumulate, float* out) {
  PS_CHECK(w.in() <= kQuantLongest) << w.in();
  int8_t* quantised = bytes_.Grow(device_.get(), rows * w.padded_in());
  float* scales = floats_[3].Grow(device_.get(), rows);
  device_->LaunchDependent(QuantizeRows, dim3(static_cast<unsigned>(rows)), 128,
                           kWarpSize * sizeof(float), x, w.in(), w.padded_in(), quantised, scales);
  const QuantArguments p{quantised,
                         scales,
                         rows,
                         static_cast<int>(w.padded_in()),
                         w.words(),
                         w.column_scales(),
                         w.group_scales(),
                         static_cast<int>(w.out()),
                         static_cast<int>(w.padded_out()),
                         bias,
                         accumulate,
                         out,
                         AlignedQuads(w.out(), {bias, out})};
  const bool q4 = w.type() == DataType::kQ4;
  if (rows == 1) return LaunchFew<1>(device_.get(), q4, p);
  if (rows <= 4) return LaunchFew<4>(device_.get(), q4, p);
  if (rows <= kFewRows) return LaunchFew<8>(device_.get(), q4, p);
  if (ManyTiles(rows, w)) return LaunchTiles<128>(device_.get(), q4, p);
  LaunchTiles<64>(device_.get(), q4, p);
}

}  // namespace polysketch::cuda
