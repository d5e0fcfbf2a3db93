#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

__device__ float Element(const void* data, DataType type, const float* scales, int64_t index,
                         int64_t column) {
  switch (type) {
    case DataType::kF32:
      return static_cast<const float*>(data)[index];
    case DataType::kBf16:
      return WidenBf16(static_cast<const uint16_t*>(data)[index]);
    case DataType::kQ8:
      return static_cast<float>(static_cast<const int8_t*>(data)[index]) * scales[column];
    case DataType::kF16:
    case DataType::kQ4:  // CudaMatrix stores q4 as q8
      break;
  }
  return WidenF16(static_cast<const uint16_t*>(data)[index]);
}

// One thread for each pair of columns of a row. The product theta * t is exact in float64.
// `positions` null: no position encoding.
__global__ void EmbedKernel(const void* data, DataType type, const float* scales, int64_t row_size,
                            int width, const int32_t* tokens, const int64_t* positions,
                            int64_t rows, const float* thetas, float* out) {
  const int pairs = width / 2;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * pairs) return;
  const int64_t m = i / pairs;
  const int pair = static_cast<int>(i % pairs);
  const int64_t column = tokens[m];
  float* to = out + m * width + 2 * pair;
  to[0] = Element(data, type, scales, 2 * pair * row_size + column, column);
  to[1] = Element(data, type, scales, (2 * pair + 1) * row_size + column, column);
  if (positions == nullptr) return;
  const double angle = static_cast<double>(thetas[pair]) * static_cast<double>(positions[m]);
  to[0] += static_cast<float>(sin(angle));
  to[1] += static_cast<float>(cos(angle));
}

}  // namespace

void CudaBackend::Embed(const Matrix& embedding, std::span<const int32_t> tokens,
                        std::span<const int64_t> positions, float* out) {
  PS_CHECK(positions.empty() || tokens.size() == positions.size());
  const CudaMatrix& matrix = Cast(embedding);
  const int width = static_cast<int>(matrix.in());
  const int64_t rows = std::ssize(tokens);
  const float* thetas = Thetas(&embedding_thetas_, width, PositionThetas);
  UpdateTokens(tokens);
  if (!positions.empty()) UpdatePositions(positions);
  device_->Launch(EmbedKernel, dim3(CeilDiv(rows * (width / 2), 128)), 128, 0, matrix.data(),
                  matrix.type(), matrix.scales(), matrix.padded_out(), width, tokens_.data(),
                  positions.empty() ? nullptr : positions_.data(), rows, thetas, out);
}

}  // namespace polysketch::cuda
