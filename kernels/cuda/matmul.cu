// Dense products; those of quantised weights are in quantized_product.cu. The kernels here run on every device. Each output element is one chain over k in
// order, from zero, whatever the number of rows: in float32 one fused multiply-add for each k, in
// the 16-bit formats one tensor core instruction for each 16 k. If cuBLASLt is linked (cublas.cu),
// it computes 16-bit products of many rows, and those of few rows too if its bits are not those of
// the chain.
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/float_tile.cuh"
#include "kernels/cuda/half_product.cuh"
#include "kernels/cuda/log_sigmoid.cuh"
#include "kernels/cuda/norm_row.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/skinny_product.h"

namespace polysketch::cuda {
namespace {

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

// FloatProduct for at most 32 columns, of which its tiles would be mostly empty: a warp has a row, and a
// lane a column. Matrix and rows pass through shared memory, so that the chains wait for memory once;
// the matrix is read before earlier kernels have ended. kDecay: of a decay gate, whose rows are normed
// first, and whose results pass through LogSigmoid.
constexpr int kNarrowRows = 4;      // of a thread block
constexpr int kNarrowDepth = 1024;  // maximum number of k at a time
constexpr int kNarrowMatrix = 8192;
constexpr size_t kNarrowShared = (kNarrowMatrix + kNarrowRows * kNarrowDepth) * sizeof(float);

template <bool kDecay>
__global__ void __launch_bounds__(kNarrowRows* kWarpSize)
    NarrowFloatProduct(const float* x, int64_t rows, int64_t in, const NormWeights norm,
                       bool aligned, const float* w, int columns, const float* bias,
                       bool accumulate, float* out) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int column = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kNarrowRows + warp;
  const bool active = row < rows && column < columns;
  const int depth = min(kNarrowDepth, kNarrowMatrix / columns / 4 * 4);
  auto* ws = SharedMemory<float>();                      // [depth][columns]
  float* xs = ws + kNarrowMatrix + warp * kNarrowDepth;  // of the row
  const float* from = x + row * in;
  RowStatistics of_row;
  float sum = 0;
  for (int64_t first = 0; first < in; first += depth) {
    const int count = in - first < depth ? static_cast<int>(in - first) : depth;
    if (first > 0) __syncthreads();  // all sums over the last part are complete
    for (int i = threadIdx.x; i < count * columns; i += kNarrowRows * kWarpSize) {
      CopyAsync4(ws + i, w + first * columns + i, true);
    }
    if (first == 0) AfterEarlierKernels();
    if constexpr (kDecay) {
      const int width = static_cast<int>(in);
      if (first == 0 && row < rows) of_row = StatisticsOf<1>(from, width, norm, aligned, nullptr);
      for (int i = 4 * column; row < rows && i < count; i += 4 * kWarpSize) {
        const Quad normed =
            LoadNormed(from, static_cast<int>(first) + i, width, norm, aligned, of_row);
        *reinterpret_cast<float4*>(xs + i) =
            make_float4(normed.v[0], normed.v[1], normed.v[2], normed.v[3]);
      }
    } else {
      for (int i = column; row < rows && i < count; i += kWarpSize) {
        CopyAsync4(xs + i, from + first + i, true);
      }
    }
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();
    if (!active) continue;
#pragma unroll 16
    for (int k = 0; k < count; ++k) sum = fmaf(xs[k], ws[k * columns + column], sum);
  }
  if (!active) return;
  if constexpr (kDecay) {
    out[row * columns + column] = LogSigmoid(bias == nullptr ? sum : sum + bias[column]);
  } else {
    Finish(sum, bias, accumulate, column, out + row * columns + column);
  }
}

__global__ void RoundRows(const float* x, int64_t rows, int64_t width, int64_t padded, bool bf16,
                          uint16_t* out) {
  AfterEarlierKernels();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * padded) return;
  const int64_t row = i / padded, column = i % padded;
  const float value = column < width ? x[row * width + column] : 0.0f;
  out[i] = bf16 ? RoundBf16(value) : RoundF16(value);
}

constexpr int64_t kMaxGridY = 65535;

template <typename T, bool kGate>
void LaunchHalf(Device* device, const uint16_t* x, int64_t rows, const CudaMatrix& w,
                const HalfOutput& output) {
  const dim3 grid(CeilDiv(w.out(), T::kColumns), CeilDiv(rows, T::kRows));
  device->LaunchDependent(
      w.type() == DataType::kBf16 ? HalfProduct<T, true, kGate> : HalfProduct<T, false, kGate>,
      grid, T::kThreads, T::kShared, x, rows, w.padded_in(), w.halves(), w.out(), w.padded_out(),
      output);
}

using HalfTile16 = HalfTile<16, 64, 3>;
using HalfTile64 = HalfTile<64, 64, 3>;
using HalfTile128 = HalfTile<128, 128, 4>;

// A step of more rows reads more of the states than the L2 holds between two products.
constexpr int64_t kPrefetchRows = 16;
// Larger matrices would drive others out of the L2.
constexpr int64_t kMaxPrefetch = int64_t{12} << 20;

}  // namespace

// A product reads rows that are padded with zeros, and its grid has a limit.
bool CudaBackend::PassesHalves(int64_t rows, const CudaMatrix& w) {
  return w.half() && w.padded_in() == w.in() && rows <= kMaxGridY;
}

bool CudaBackend::HasOurBits(const CudaMatrix& w) const {
  return library_ == nullptr || w.library_has_our_bits();
}

bool CudaBackend::Skinny(int64_t rows, const CudaMatrix& w) const {
  return w.half() && rows <= kSkinnyRows && HasOurBits(w);
}

void CudaBackend::RunSkinny(int64_t rows, const CudaMatrix& w, const SkinnyInput& input,
                            const SkinnyOutput& output) {
  SkinnyPrefetch prefetch;
  if (rows <= kPrefetchRows && in_step_) {
    prefetch.next[0] = following_[w.halves()];
    prefetch.next[1] = following_[reinterpret_cast<const uint16_t*>(prefetch.next[0].data)];
  }
  SkinnyProduct(device_.get(), rows, w, input, output, prefetch);
}

void CudaBackend::OnProduct(const CudaMatrix& w) {
  if (!in_step_) return;
  const int64_t bytes = w.padded_in() * w.padded_out() * 2;
  if (previous_ != nullptr && bytes <= kMaxPrefetch) {
    following_[previous_] = {reinterpret_cast<const uint8_t*>(w.halves()), bytes};
  }
  previous_ = w.halves();
}

uint16_t* CudaBackend::Rounded(const float* x, int64_t rows, const CudaMatrix& w) {
  const int64_t size = rows * w.padded_in();
  uint16_t* rounded = halves_.Grow(device_.get(), size);
  device_->LaunchDependent(RoundRows, dim3(CeilDiv(size, 256)), 256, 0, x, rows, w.in(),
                           w.padded_in(), w.type() == DataType::kBf16, rounded);
  return rounded;
}

bool CudaBackend::ManyTiles(int64_t rows, const CudaMatrix& w) const {
  return CeilDiv(w.out(), HalfTile128::kColumns) * CeilDiv(rows, HalfTile128::kRows) >=
         static_cast<unsigned>(device_->multiprocessors());
}

void CudaBackend::PortableProduct(const uint16_t* x, int64_t rows, const CudaMatrix& w,
                                  const float* bias, bool accumulate, float* out) {
  const HalfOutput output{.floats = out, .bias = bias, .accumulate = accumulate};
  if (rows <= 16) {
    LaunchHalf<HalfTile16, false>(device_.get(), x, rows, w, output);
  } else if (ManyTiles(rows, w)) {
    LaunchHalf<HalfTile128, false>(device_.get(), x, rows, w, output);
  } else {
    LaunchHalf<HalfTile64, false>(device_.get(), x, rows, w, output);
  }
}

void CudaBackend::PortableGate(GateKind gate, const uint16_t* x, int64_t rows, const CudaMatrix& w,
                               uint16_t* gated) {
  OnProduct(w);
  if (ManyTiles(rows, w)) {
    LaunchHalf<HalfTile128, true>(device_.get(), x, rows, w, {.gated = gated, .gate = gate});
  } else {
    LaunchHalf<HalfTile64, true>(device_.get(), x, rows, w, {.gated = gated, .gate = gate});
  }
}

void CudaBackend::HalvesMatMul(const uint16_t* x, int64_t rows, const CudaMatrix& w,
                               const float* bias, bool accumulate, float* out) {
  OnProduct(w);
  // Our kernels add the bias first, the library adds it last.
  const bool bias_and_sum = bias != nullptr && accumulate;
  if (Skinny(rows, w)) {
    RunSkinny(rows, w, {.halves = x}, {.floats = out, .bias = bias, .accumulate = accumulate});
  } else if (library_ == nullptr || bias_and_sum ||
             !library_->Product(x, rows, w, bias, accumulate, out)) {
    PortableProduct(x, rows, w, bias, accumulate, out);
  }
}

void CudaBackend::MatMulHalf(const float* x, int64_t rows, const CudaMatrix& w, const float* bias,
                             bool accumulate, float* out) {
  const SkinnyInput input{.floats = x};
  if (Skinny(rows, w) && SkinnyTakes(rows, w, input)) {
    OnProduct(w);
    RunSkinny(rows, w, input, {.floats = out, .bias = bias, .accumulate = accumulate});
  } else {
    HalvesMatMul(Rounded(x, rows, w), rows, w, bias, accumulate, out);
  }
}

void CudaBackend::NormMatMul(const float* x, int64_t rows, const NormWeights& norm,
                             const Matrix& matrix, const float* bias, float* normed, float* out) {
  if (rows == 0) return;
  const CudaMatrix& w = Cast(matrix);
  const SkinnyInput input{.floats = x, .norm = &norm};
  if (Skinny(rows, w) && SkinnyTakes(rows, w, input)) {
    OnProduct(w);
    RunSkinny(rows, w, input, {.floats = out, .bias = bias});
  } else if (w.half()) {
    HalvesMatMul(NormToHalves(x, rows, norm, w), rows, w, bias, false, out);
  } else if (IsQuantized(w.type())) {
    MatMulQuantized({.floats = x, .norm = &norm}, rows, w, {.floats = out, .bias = bias});
  } else {
    Backend::NormMatMul(x, rows, norm, matrix, bias, normed, out);
  }
}

void CudaBackend::NormMatMulDecay(const float* x, int64_t rows, const NormWeights& norm,
                                  const Matrix& matrix, const float* bias, const Matrix& gate,
                                  const float* gate_bias, float* normed, float* out,
                                  float* log_decay) {
  if (rows == 0) return;
  const CudaMatrix& w = Cast(gate);
  if (w.type() != DataType::kF32 || w.out() > kWarpSize) {
    return Backend::NormMatMulDecay(x, rows, norm, matrix, bias, gate, gate_bias, normed, out,
                                    log_decay);
  }
  NormMatMul(x, rows, norm, matrix, bias, normed, out);
  device_->LaunchDependent(NarrowFloatProduct<true>, dim3(CeilDiv(rows, kNarrowRows)),
                           kNarrowRows * kWarpSize, kNarrowShared, x, rows, w.in(), norm,
                           AlignedQuads(w.in(), {x, norm.scale, norm.bias}), w.floats(),
                           static_cast<int>(w.out()), gate_bias, false, log_decay);
}

void CudaBackend::Mlp(const MlpWeights& mlp, int64_t rows, float* x, float* scratch) {
  if (rows == 0) return;
  const CudaMatrix &up = Cast(*mlp.up), &down = Cast(*mlp.down);
  if (rows > kMaxGridY) return Backend::Mlp(mlp, rows, x, scratch);
  if (IsQuantized(up.type()) && IsQuantized(down.type())) {
    return MlpQuantized(mlp, rows, x, scratch);
  }
  if (!up.half() || down.type() != up.type()) return Backend::Mlp(mlp, rows, x, scratch);
  const int64_t hidden = down.in();
  uint16_t* gated = gated_.Grow(device_.get(), rows * down.padded_in());
  SkinnyInput input{.floats = x, .norm = &mlp.norm};
  const bool skinny = Skinny(rows, up);
  // Whether a product can take the gate.
  const bool gates = SkinnyGates(mlp.gate, up);
  if (!skinny || !SkinnyTakes(rows, up, input)) {
    input = {.halves = NormToHalves(x, rows, mlp.norm, up)};
  }
  if (skinny) OnProduct(up);
  if (skinny && gates) {
    RunSkinny(rows, up, input, {.bias = mlp.up_bias, .gated = gated, .gate = mlp.gate});
  } else if (library_ == nullptr && gates && mlp.gate != GateKind::kUngatedGelu &&
             mlp.up_bias == nullptr) {
    // The library's product and the gate's kernel are faster: 135 us beside 260 us for 8192 rows on
    // an H200.
    PortableGate(mlp.gate, input.halves, rows, up, gated);
  } else {
    float* both = scratch + rows * up.in();
    if (skinny) {
      RunSkinny(rows, up, input, {.floats = both, .bias = mlp.up_bias});
    } else {
      HalvesMatMul(input.halves, rows, up, mlp.up_bias, false, both);
    }
    GateToHalves(mlp.gate, both, rows, hidden, down, gated);
  }
  HalvesMatMul(gated, rows, down, mlp.down_bias, true, x);
}

// The library may sum in another order. Both must give the bits of one number for matrices of this
// shape, whatever the number of rows, or one of them computes all products with it.
bool CudaBackend::LibraryHasOurBits(const CudaMatrix& w) {
  const auto key = std::tuple(w.in(), w.out(), w.type());
  const auto [entry, added] = library_has_our_bits_.try_emplace(key, false);
  if (added) entry->second = CompareWithLibrary(w);
  return entry->second;
}

bool CudaBackend::CompareWithLibrary(const CudaMatrix& w) {
  constexpr int64_t kRows[] = {128, 65, 1};
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> x(kRows[0] * w.padded_in());
  for (uint16_t& value : x) {
    value = w.type() == DataType::kBf16 ? FloatToBf16(normal(engine)) : FloatToF16(normal(engine));
  }
  const int64_t size = kRows[0] * w.out();
  DeviceArray<uint16_t> x_device(device_.get(), x.size());
  DeviceArray<float> out(device_.get(), size);
  device_->CopyIn(x_device.data(), x.data(), x.size() * sizeof(uint16_t));
  std::vector<float> ours(size), theirs(size);
  PortableProduct(x_device.data(), kRows[0], w, nullptr, false, out.data());
  device_->CopyOut(ours.data(), out.data(), size * sizeof(float));
  for (const int64_t rows : kRows) {
    if (!library_->Product(x_device.data(), rows, w, nullptr, false, out.data())) return true;
    device_->CopyOut(theirs.data(), out.data(), rows * w.out() * sizeof(float));
    if (std::memcmp(ours.data(), theirs.data(), rows * w.out() * sizeof(float)) != 0) return false;
  }
  return true;
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
  } else if (w.type() == DataType::kF32 && w.out() <= kWarpSize) {
    device_->LaunchDependent(NarrowFloatProduct<false>, dim3(CeilDiv(rows, kNarrowRows)),
                             kNarrowRows * kWarpSize, kNarrowShared, x, rows, w.in(), NormWeights(),
                             false, w.floats(), static_cast<int>(w.out()), bias, accumulate, out);
  } else if (w.type() == DataType::kF32) {
    const dim3 grid(CeilDiv(w.out(), kFloatColumns), CeilDiv(rows, kFloatRows));
    device_->Launch(FloatProduct, grid, kFloatThreads, FloatTileShared<4>(), x, rows, w.in(),
                    w.floats(), w.out(), bias, accumulate, out);
  } else {
    MatMulQuantized({.floats = x}, rows, w,
                    {.floats = out, .bias = bias, .accumulate = accumulate});
  }
}

}  // namespace polysketch::cuda
