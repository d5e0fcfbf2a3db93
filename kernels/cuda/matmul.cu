// Dense products. The kernels here run on every device; if cuBLASLt is linked (cublas.cu), it
// computes the 16-bit products. Each output element is one chain over k in order, from zero,
// whatever the number of rows: in float32 one fused multiply-add for each k, in the 16-bit formats
// one tensor core instruction for each 16 k.
#include "base/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/float_tile.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/quantize.h"

namespace polysketch::cuda {
namespace {

__device__ void Finish(float sum, const float* bias, bool accumulate, int64_t column, float* out) {
  if (bias != nullptr) sum += bias[column];
  if (accumulate) sum += *out;
  *out = sum;
}

constexpr int kFloatColumns = 4 * kFloatStep;  // of a tile

__global__ void __launch_bounds__(kFloatThreads)
    FloatProduct(const float* x, int64_t rows, int64_t in, const float* w, int64_t columns,
                 const float* bias, bool accumulate, float* out) {
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kFloatRows;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kFloatColumns;
  float sums[4][4] = {};
  AddFloatProducts(
      in, [=](int r, int64_t k) { return row0 + r < rows ? x[(row0 + r) * in + k] : 0.0f; },
      [=](int64_t k, int c) { return column0 + c < columns ? w[k * columns + column0 + c] : 0.0f; },
      sums);
  for (int r = 0; r < 4; ++r) {
    for (int c = 0; c < 4; ++c) {
      const int64_t row = row0 + threadIdx.x / kFloatStep + kFloatStep * r;
      const int64_t column = column0 + threadIdx.x % kFloatStep + kFloatStep * c;
      if (row >= rows || column >= columns) continue;
      Finish(sums[r][c], bias, accumulate, column, out + row * columns + column);
    }
  }
}

constexpr int kHalfDepth = 32;
constexpr int kHalfColumns = 64;
constexpr int kHalfThreads = 128;
constexpr int kHalfStages = 3;
// Rows of shared tiles are 16 bytes longer than their data, so that ldmatrix has no bank conflicts.
constexpr int kXRow = kHalfDepth + 8;
constexpr int kWRow = kHalfColumns + 8;

template <int kRows>
constexpr int StageHalves() {
  return kRows * kXRow + kHalfDepth * kWRow;
}

template <int kRows>
__device__ void LoadStage(const uint16_t* x, int64_t rows, int64_t row0, int64_t padded_in,
                          const uint16_t* w, int64_t padded_out, int64_t column0, int64_t k0,
                          uint16_t* stage) {
  if (k0 < padded_in) {
    for (int i = threadIdx.x; i < kRows * kHalfDepth / 8; i += kHalfThreads) {
      const int r = i / (kHalfDepth / 8), k = i % (kHalfDepth / 8) * 8;
      const bool inside = row0 + r < rows;
      CopyAsync16(stage + r * kXRow + k, x + (inside ? row0 + r : 0) * padded_in + k0 + k, inside);
    }
    uint16_t* ws = stage + kRows * kXRow;
    for (int i = threadIdx.x; i < kHalfDepth * kHalfColumns / 8; i += kHalfThreads) {
      const int k = i / (kHalfColumns / 8), c = i % (kHalfColumns / 8) * 8;
      CopyAsync16(ws + k * kWRow + c, w + (k0 + k) * padded_out + column0 + c, true);
    }
  }
  CommitCopies();
}

// A tile of kRows x 64 outputs by four warps: 2 x 2 of 32 x 32, or 1 x 4 of 16 x 16 for few rows.
template <int kRows, bool kBf16>
__global__ void __launch_bounds__(kHalfThreads)
    HalfProduct(const uint16_t* x, int64_t rows, int64_t padded_in, const uint16_t* w,
                int64_t columns, int64_t padded_out, const float* bias, bool accumulate,
                float* out) {
  constexpr int kWarpsDown = kRows / 32 > 0 ? kRows / 32 : 1;
  constexpr int kMTiles = kRows / kWarpsDown / 16;
  constexpr int kWarpColumns = kHalfColumns * kWarpsDown / 4;
  constexpr int kNTiles = kWarpColumns / 8;
  auto* shared = SharedMemory<uint16_t>();
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kRows;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kHalfColumns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp % kWarpsDown * (kRows / kWarpsDown);
  const int warp_column = warp / kWarpsDown * kWarpColumns;

  float sums[kMTiles][kNTiles][4] = {};
  for (int s = 0; s < kHalfStages - 1; ++s) {
    LoadStage<kRows>(x, rows, row0, padded_in, w, padded_out, column0, s * kHalfDepth,
                     shared + s * StageHalves<kRows>());
  }
  int stage = 0;
  for (int64_t k0 = 0; k0 < padded_in; k0 += kHalfDepth) {
    WaitCopies<kHalfStages - 2>();
    __syncthreads();  // all threads see this stage and have read the one before it
    LoadStage<kRows>(x, rows, row0, padded_in, w, padded_out, column0,
                     k0 + (kHalfStages - 1) * kHalfDepth,
                     shared + (stage + kHalfStages - 1) % kHalfStages * StageHalves<kRows>());
    const uint16_t* xs = shared + stage * StageHalves<kRows>();
    const uint16_t* ws = xs + kRows * kXRow;
#pragma unroll
    for (int k = 0; k < kHalfDepth; k += 16) {
      uint32_t a[kMTiles][4];
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        LoadMatrix4(a[m], xs + (warp_row + 16 * m + lane % 16) * kXRow + k + lane / 16 * 8);
      }
#pragma unroll
      for (int n = 0; n < kNTiles; n += 2) {
        uint32_t b[4];  // rows k, k + 8 of columns 8 n; then of 8 (n + 1)
        LoadMatrix4T(b, ws + (k + lane % 16) * kWRow + warp_column + 8 * n + lane / 16 * 8);
#pragma unroll
        for (int m = 0; m < kMTiles; ++m) {
          MmaHalf<kBf16>(sums[m][n], a[m], b[0], b[1]);
          MmaHalf<kBf16>(sums[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
    stage = (stage + 1) % kHalfStages;
  }
  for (int m = 0; m < kMTiles; ++m) {
    for (int n = 0; n < kNTiles; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int64_t row = row0 + warp_row + 16 * m + lane / 4 + i / 2 * 8;
        const int64_t column = column0 + warp_column + 8 * n + lane % 4 * 2 + i % 2;
        if (row >= rows || column >= columns) continue;
        Finish(sums[m][n][i], bias, accumulate, column, out + row * columns + column);
      }
    }
  }
}

__global__ void RoundRows(const float* x, int64_t rows, int64_t width, int64_t padded, bool bf16,
                          uint16_t* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * padded) return;
  const int64_t row = i / padded, column = i % padded;
  const float value = column < width ? x[row * width + column] : 0.0f;
  out[i] = bf16 ? RoundBf16(value) : RoundF16(value);
}

// Quantises a row (kernels/quantize.h). One thread block for each row.
__global__ void QuantizeRows(const float* x, int64_t width, int8_t* out, float* scales) {
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
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float q = rintf(row[i] * inverse);
    out[blockIdx.x * width + i] = static_cast<int8_t>(q == q ? fminf(fmaxf(q, -127), 127) : 0.0f);
  }
}

// One thread for each output element.
__global__ void ByteProduct(const int8_t* x, const float* x_scales, int64_t in, const int8_t* w,
                            const float* w_scales, int64_t columns, const float* bias,
                            bool accumulate, float* out) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const int8_t* row = x + blockIdx.y * in;
  int32_t sum = 0;
  for (int64_t k = 0; k < in; ++k) sum += static_cast<int32_t>(row[k]) * w[k * columns + column];
  const float value = static_cast<float>(sum) * (x_scales[blockIdx.y] * w_scales[column]);
  Finish(value, bias, accumulate, column, out + blockIdx.y * columns + column);
}

constexpr int64_t kMaxGridY = 65535;

template <int kRows>
void LaunchHalf(Device* device, const uint16_t* x, int64_t rows, const CudaMatrix& w,
                const float* bias, bool accumulate, float* out) {
  const dim3 grid(CeilDiv(w.out(), kHalfColumns), CeilDiv(rows, kRows));
  const size_t shared = kHalfStages * StageHalves<kRows>() * sizeof(uint16_t);
  device->Launch(w.type() == DataType::kBf16 ? HalfProduct<kRows, true> : HalfProduct<kRows, false>,
                 grid, kHalfThreads, shared, x, rows, w.padded_in(), w.halves(), w.out(),
                 w.padded_out(), bias, accumulate, out);
}

}  // namespace

void CudaBackend::MatMulHalf(const float* x, int64_t rows, const CudaMatrix& w, const float* bias,
                             bool accumulate, float* out) {
  const int64_t size = rows * w.padded_in();
  uint16_t* rounded = halves_.Grow(device_.get(), size);
  device_->Launch(RoundRows, dim3(CeilDiv(size, 256)), 256, 0, x, rows, w.in(), w.padded_in(),
                  w.type() == DataType::kBf16, rounded);
  if (library_ != nullptr && library_->Product(rounded, rows, w, bias, accumulate, out)) {
    return;
  }
  if (rows <= 16) {
    LaunchHalf<16>(device_.get(), rounded, rows, w, bias, accumulate, out);
  } else {
    LaunchHalf<64>(device_.get(), rounded, rows, w, bias, accumulate, out);
  }
}

void CudaBackend::MatMul(const float* x, int64_t rows, const Matrix& matrix, const float* bias,
                         bool accumulate, float* out) {
  if (rows == 0) return;
  const CudaMatrix& w = Cast(matrix);
  if (rows > kMaxGridY) {
    MatMul(x, kMaxGridY, w, bias, accumulate, out);
    MatMul(x + kMaxGridY * w.in(), rows - kMaxGridY, w, bias, accumulate,
           out + kMaxGridY * w.out());
    return;
  }
  if (w.half()) {
    MatMulHalf(x, rows, w, bias, accumulate, out);
  } else if (w.type() == DataType::kF32) {
    const dim3 grid(CeilDiv(w.out(), kFloatColumns), CeilDiv(rows, kFloatRows));
    device_->Launch(FloatProduct, grid, kFloatThreads, FloatTileShared<4>(), x, rows, w.in(),
                    w.floats(), w.out(), bias, accumulate, out);
  } else {
    PS_CHECK(w.in() < kQuantLongest) << w.in();
    int8_t* quantised = bytes_.Grow(device_.get(), rows * w.in());
    float* scales = floats_[3].Grow(device_.get(), rows);
    device_->Launch(QuantizeRows, dim3(static_cast<unsigned>(rows)), 128, kWarpSize * sizeof(float),
                    x, w.in(), quantised, scales);
    device_->Launch(ByteProduct, dim3(CeilDiv(w.out(), 128), static_cast<unsigned>(rows)), 128, 0,
                    quantised, scales, w.in(), w.bytes8(), w.scales(), w.out(), bias, accumulate,
                    out);
  }
}

}  // namespace polysketch::cuda
