// The learned sketch in one kernel: norm, product, gelu, product, twice for each branch, and the
// product of the branches, with nothing stored in memory in between. A warp keeps 16 rows in its
// registers: the sums of one product are the operand of the next (ptx.cuh: elements 0 and 1 of two
// neighbouring C tiles are an A fragment). Weights pass through shared memory in chunks of 64
// hidden columns; a chunk is copied while the one before it is used.
#include <utility>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kRows = kWarps * 16;
constexpr int kChunk = 64;  // hidden columns of a stage
constexpr int kPad = 8;     // elements after each shared row, so that there are no bank conflicts

struct LevelWeights {
  const float *scale, *bias;  // [in]
  const uint16_t *up, *down;  // [in][up_row], [8 r][down_row]
  int up_row, down_row;
};
struct NetworkWeights {
  LevelWeights level[2][2];  // [branch][level]
};

template <int D, int R>
constexpr int StageHalves() {
  return (D > R ? D : R) * (kChunk + kPad) + kChunk * (R + kPad);
}

// Starts the copy of one chunk of the matrices of one level.
template <int IN, int R>
__device__ void LoadChunk(const LevelWeights& weights, int chunk, uint16_t* stage) {
  for (int i = threadIdx.x; i < IN * kChunk / 8; i += kThreads) {
    const int row = i / (kChunk / 8), column = i % (kChunk / 8) * 8;
    CopyAsync16(stage + row * (kChunk + kPad) + column,
                weights.up + row * weights.up_row + chunk * kChunk + column, true);
  }
  uint16_t* down = stage + IN * (kChunk + kPad);
  for (int i = threadIdx.x; i < kChunk * R / 8; i += kThreads) {
    const int row = i / (R / 8), column = i % (R / 8) * 8;
    CopyAsync16(down + row * (R + kPad) + column,
                weights.down + (chunk * kChunk + row) * weights.down_row + column, true);
  }
}

// Starts the copy of stage `index`. Stages are counted over chunks, then levels, then branches.
template <int D, int R>
__device__ void LoadStage(const NetworkWeights& net, int index, uint16_t* stage) {
  constexpr int kChunks = 8 * R / kChunk;
  if (index < 4 * kChunks) {
    const LevelWeights& weights = net.level[index / (2 * kChunks)][index / kChunks % 2];
    if (index / kChunks % 2 == 0) {
      LoadChunk<D, R>(weights, index % kChunks, stage);
    } else {
      LoadChunk<R, R>(weights, index % kChunks, stage);
    }
  }
  CommitCopies();
}

__device__ __forceinline__ float QuadSum(float value) {
  value += __shfl_xor_sync(kFullWarp, value, 1);
  return value + __shfl_xor_sync(kFullWarp, value, 2);
}

// x: 16 rows as C tiles, x[n] has columns 8n to 8n + 7. a: their layer norm, rounded, as A
// fragments.
template <int IN, bool kBf16>
__device__ __forceinline__ void Normalise(const float (&x)[IN / 8][4], const LevelWeights& weights,
                                          uint32_t (&a)[IN / 16][4]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int n = 0; n < IN / 8; ++n) sum += x[n][2 * half] + x[n][2 * half + 1];
    const float mean = QuadSum(sum) / IN;
#pragma unroll
    for (int n = 0; n < IN / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float centred = x[n][2 * half + i] - mean;
        squares = fmaf(centred, centred, squares);
      }
    }
    const float inverse = 1.0f / sqrtf(QuadSum(squares) / IN + 1e-5f);
#pragma unroll
    for (int n = 0; n < IN / 8; ++n) {
      float y[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 8 * n + 2 * t + i;
        y[i] = fmaf((x[n][2 * half + i] - mean) * inverse, weights.scale[column],
                    weights.bias[column]);
      }
      a[n / 2][n % 2 * 2 + half] = PackHalf<kBf16>(y[0], y[1]);
    }
  }
}

__device__ __forceinline__ float FastGelu(float x) {
  return 0.5f * x * (1.0f + FastTanh(GeluArgument(x)));
}

// out += gelu(a up) down over one chunk.
template <int IN, int R, bool kBf16>
__device__ __forceinline__ void AddChunk(const uint32_t (&a)[IN / 16][4], const uint16_t* stage,
                                         float (&out)[R / 8][4]) {
  const int lane = threadIdx.x % kWarpSize;
  const uint16_t* up = stage + lane % 16 * (kChunk + kPad) + lane / 16 * 8;
  const uint16_t* down = stage + IN * (kChunk + kPad) + lane % 16 * (R + kPad) + lane / 16 * 8;
#pragma unroll
  for (int hidden = 0; hidden < kChunk; hidden += 16) {
    float sums[2][4] = {};
    uint32_t b[4];
#pragma unroll
    for (int k = 0; k < IN / 16; ++k) {
      LoadMatrix4T(b, up + 16 * k * (kChunk + kPad) + hidden);
      MmaHalf<kBf16>(sums[0], a[k], b[0], b[1]);
      MmaHalf<kBf16>(sums[1], a[k], b[2], b[3]);
    }
    uint32_t h[4];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      h[2 * n] = PackHalf<kBf16>(FastGelu(sums[n][0]), FastGelu(sums[n][1]));
      h[2 * n + 1] = PackHalf<kBf16>(FastGelu(sums[n][2]), FastGelu(sums[n][3]));
    }
#pragma unroll
    for (int n = 0; n < R / 8; n += 2) {
      LoadMatrix4T(b, down + hidden * (R + kPad) + 8 * n);
      MmaHalf<kBf16>(out[n], h, b[0], b[1]);
      MmaHalf<kBf16>(out[n + 1], h, b[2], b[3]);
    }
  }
}

// The stages in order. Next() returns the next stage once it is copied; after Done() it may be
// overwritten.
template <int D, int R>
struct Stages {
  const NetworkWeights& net;
  uint16_t* memory;
  int index = 0;

  __device__ const uint16_t* Next() {
    LoadStage<D, R>(net, index + 1, memory + (index + 1) % 2 * StageHalves<D, R>());
    WaitCopies<1>();
    __syncthreads();
    return memory + index++ % 2 * StageHalves<D, R>();
  }
  __device__ void Done() { __syncthreads(); }
};

template <int IN, int D, int R, bool kBf16>
__device__ __forceinline__ void Level(const float (&x)[IN / 8][4], const LevelWeights& weights,
                                      Stages<D, R>* stages, float (&out)[R / 8][4]) {
  uint32_t a[IN / 16][4];
  Normalise<IN, kBf16>(x, weights, a);
#pragma unroll
  for (int n = 0; n < R / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] = 0;
  }
  for (int chunk = 0; chunk < 8 * R / kChunk; ++chunk) {
    AddChunk<IN, R, kBf16>(a, stages->Next(), out);
    stages->Done();
  }
}

template <int D, int R, bool kBf16>
__global__ void __launch_bounds__(kThreads)
    SketchKernel(NetworkWeights net, const float* x, int64_t rows, float* out) {
  const int lane = threadIdx.x % kWarpSize, g = lane / 4, t = lane % 4;
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kWarpSize * 16 + g;
  Stages<D, R> stages{net, SharedMemory<uint16_t>()};
  LoadStage<D, R>(net, 0, stages.memory);
  float first[R / 8][4], second[R / 8][4];
#pragma unroll
  for (int branch = 0; branch < 2; ++branch) {
    float input[D / 8][4];
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = row0 + i / 2 * 8;
        input[n][i] = row < rows ? x[row * D + 8 * n + 2 * t + i % 2] : 0.0f;
      }
    }
    float middle[R / 8][4];
    Level<D, D, R, kBf16>(input, net.level[branch][0], &stages, middle);
    Level<R, D, R, kBf16>(middle, net.level[branch][1], &stages, branch == 0 ? first : second);
  }
  WaitCopies<0>();
  const float root = sqrtf(static_cast<float>(R));
#pragma unroll
  for (int n = 0; n < R / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = row0 + i / 2 * 8;
      if (row >= rows) continue;
      out[row * R + 8 * n + 2 * t + i % 2] = root * tanhf(first[n][i] * second[n][i] / root);
    }
  }
}

template <int D, int R>
bool Launch(Device* device, bool bf16, const NetworkWeights& net, const float* x, int64_t rows,
            float* out) {
  device->Launch(bf16 ? SketchKernel<D, R, true> : SketchKernel<D, R, false>,
                 dim3(CeilDiv(rows, kRows)), kThreads, 2 * StageHalves<D, R>() * sizeof(uint16_t),
                 net, x, rows, out);
  return true;
}

template <int D>
bool LaunchFor(Device* device, int r, bool bf16, const NetworkWeights& net, const float* x,
               int64_t rows, float* out) {
  switch (r) {
    case 16:
      return Launch<D, 16>(device, bf16, net, x, rows, out);
    case 32:
      return Launch<D, 32>(device, bf16, net, x, rows, out);
    case 64:
      return Launch<D, 64>(device, bf16, net, x, rows, out);
    default:
      return false;
  }
}

}  // namespace

bool CudaBackend::LearnedSketchFused(const SketchNetwork& net, const float* x, int64_t rows,
                                     float* out) {
  const CudaMatrix& first = Cast(*net.branch[0][0].up);
  if (!first.half()) return false;
  const bool bf16 = first.type() == DataType::kBf16;
  NetworkWeights weights;
  for (int branch = 0; branch < 2; ++branch) {
    for (int level = 0; level < 2; ++level) {
      const SketchNetwork::Level& from = net.branch[branch][level];
      const CudaMatrix &up = Cast(*from.up), &down = Cast(*from.down);
      if (up.type() != first.type() || down.type() != first.type()) return false;
      weights.level[branch][level] = {from.norm.scale,
                                      from.norm.bias,
                                      up.halves(),
                                      down.halves(),
                                      static_cast<int>(up.padded_out()),
                                      static_cast<int>(down.padded_out())};
    }
  }
  switch (net.input) {
    case 32:
      return LaunchFor<32>(device_.get(), net.size, bf16, weights, x, rows, out);
    case 64:
      return LaunchFor<64>(device_.get(), net.size, bf16, weights, x, rows, out);
    case 128:
      return LaunchFor<128>(device_.get(), net.size, bf16, weights, x, rows, out);
    default:
      return false;
  }
}

}  // namespace polysketch::cuda
