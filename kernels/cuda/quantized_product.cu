// Products with weights of 8 and of 4 bits (kernels/quantize.h). The time of few rows is that of
// reading the weights, so a thread reads 16 bytes of them at a time: four columns of one word each,
// a word being 4 k of 8 bits or 8 k of 4 bits (matrix.h). Each word is multiplied by words of the
// quantised rows, four integers an instruction.
//
// A thread has every kSlices-th unit of k: 16 k of 8 bits, whose sum of integers is exact in any
// order, or one group of 32 k of 4 bits. The float32 sums of groups are joined by a fixed tree, and
// neither the cut nor the tree depends on the number of rows.
#include <type_traits>

#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"
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

struct Arguments {
  const int8_t* x;        // [rows][padded_in]
  const float* x_scales;  // [rows]
  int64_t rows;
  int padded_in;
  const uint32_t* w;             // words [padded_in / 4 or 8][padded_out]
  const float* column_scales;    // 8 bits: [out]
  const uint16_t* group_scales;  // 4 bits: bf16 [groups][padded_out]
  int columns, padded_out;
  const float* bias;
  bool accumulate;
  float* out;
};

// sums[c] += the products of a word of x and one of each of four columns.
__device__ __forceinline__ void AddWords(uint32_t x, const uint4& w, int32_t (&sums)[4]) {
  sums[0] = Dot4(x, w.x, sums[0]);
  sums[1] = Dot4(x, w.y, sums[1]);
  sums[2] = Dot4(x, w.z, sums[2]);
  sums[3] = Dot4(x, w.w, sums[3]);
}

// The lower or upper four bits of each byte, each times 16, as signed bytes.
__device__ __forceinline__ uint4 LowerHalves(const uint4& w) {
  constexpr uint32_t kUpper = 0xf0f0f0f0u;
  return {w.x << 4 & kUpper, w.y << 4 & kUpper, w.z << 4 & kUpper, w.w << 4 & kUpper};
}
__device__ __forceinline__ uint4 UpperHalves(const uint4& w) {
  constexpr uint32_t kUpper = 0xf0f0f0f0u;
  return {w.x & kUpper, w.y & kUpper, w.z & kUpper, w.w & kUpper};
}

// The sums of one unit of k: w[i] is word row i of four columns, x the unit's words of a row.
__device__ __forceinline__ void AddUnit(const uint4* x, const uint4 (&w)[4], const float (&)[4],
                                        int32_t (&sums)[4]) {
  const uint4 words = x[0];
  AddWords(words.x, w[0], sums);
  AddWords(words.y, w[1], sums);
  AddWords(words.z, w[2], sums);
  AddWords(words.w, w[3], sums);
}
__device__ __forceinline__ void AddUnit(const uint4* x, const uint4 (&w)[4],
                                        const float (&scales)[4], float (&sums)[4]) {
  int32_t group[4] = {};  // 16 times the sum of the group
  const uint4 first = x[0], second = x[1];
  AddWords(first.x, LowerHalves(w[0]), group);
  AddWords(first.y, UpperHalves(w[0]), group);
  AddWords(first.z, LowerHalves(w[1]), group);
  AddWords(first.w, UpperHalves(w[1]), group);
  AddWords(second.x, LowerHalves(w[2]), group);
  AddWords(second.y, UpperHalves(w[2]), group);
  AddWords(second.z, LowerHalves(w[3]), group);
  AddWords(second.w, UpperHalves(w[3]), group);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    sums[c] = fmaf(static_cast<float>(group[c] >> 4), scales[c], sums[c]);
  }
}

// blockIdx: 16 columns, R rows.
template <int R, bool kQ4>
__global__ void __launch_bounds__(kThreads) QuantizedProduct(const Arguments p) {
  AfterEarlierKernels();
  using Sum = std::conditional_t<kQ4, float, int32_t>;
  constexpr int kUnit = kQ4 ? static_cast<int>(kQ4Group) : 16;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int column = static_cast<int>(blockIdx.x) * kColumns + lane % kColumnLanes * 4;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * R;
  Sum sums[R][4] = {};
  for (int unit = warp * kSliceLanes + lane / kColumnLanes; unit * kUnit < p.padded_in;
       unit += kSlices) {
    const uint32_t* from = p.w + static_cast<int64_t>(unit) * 4 * p.padded_out + column;
    uint4 w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = *reinterpret_cast<const uint4*>(from + static_cast<int64_t>(i) * p.padded_out);
    }
    float scales[4] = {};
    if constexpr (kQ4) {
      const uint2 pairs = *reinterpret_cast<const uint2*>(
          p.group_scales + static_cast<int64_t>(unit) * p.padded_out + column);
      scales[0] = WidenBf16(static_cast<Bf16>(pairs.x));
      scales[1] = WidenBf16(static_cast<Bf16>(pairs.x >> 16));
      scales[2] = WidenBf16(static_cast<Bf16>(pairs.y));
      scales[3] = WidenBf16(static_cast<Bf16>(pairs.y >> 16));
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      // Rows that x does not have repeat the last one: their sums are not stored.
      const int64_t row = row0 + r < p.rows ? row0 + r : p.rows - 1;
      AddUnit(reinterpret_cast<const uint4*>(p.x + row * p.padded_in + unit * kUnit), w, scales,
              sums[r]);
    }
  }

  auto* of_warps = SharedMemory<Sum>();  // [kWarps][R][kColumns]
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      Sum sum = sums[r][c];
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
    Sum sum = of_warps[i];
#pragma unroll
    for (int other = 1; other < kWarps; ++other) sum += of_warps[other * R * kColumns + i];
    float value;
    if constexpr (kQ4) {
      value = sum * p.x_scales[row];
    } else {
      value = static_cast<float>(sum) * (p.x_scales[row] * p.column_scales[own]);
    }
    float* to = p.out + row * p.columns + own;
    if (p.bias != nullptr) value += p.bias[own];
    if (p.accumulate) value += *to;
    *to = value;
  }
}

template <int R>
void Launch(Device* device, bool q4, const Arguments& p) {
  device->LaunchDependent(q4 ? QuantizedProduct<R, true> : QuantizedProduct<R, false>,
                          dim3(CeilDiv(p.columns, kColumns), CeilDiv(p.rows, R)), kThreads,
                          kWarps * R * kColumns * sizeof(float), p);
}

}  // namespace

void CudaBackend::MatMulQuantized(const float* x, int64_t rows, const CudaMatrix& w,
                                  const float* bias, bool accumulate, float* out) {
  PS_CHECK(w.in() < kQuantLongest) << w.in();
  int8_t* quantised = bytes_.Grow(device_.get(), rows * w.padded_in());
  float* scales = floats_[3].Grow(device_.get(), rows);
  device_->LaunchDependent(QuantizeRows, dim3(static_cast<unsigned>(rows)), 128,
                           kWarpSize * sizeof(float), x, w.in(), w.padded_in(), quantised, scales);
  const Arguments p{quantised,
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
                    out};
  const bool q4 = w.type() == DataType::kQ4;
  if (rows == 1) return Launch<1>(device_.get(), q4, p);
  if (rows <= 4) return Launch<4>(device_.get(), q4, p);
  Launch<8>(device_.get(), q4, p);
}

}  // namespace polysketch::cuda
