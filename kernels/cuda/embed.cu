#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/quantize.h"

namespace polysketch::cuda {
namespace {

// The embedding matrix [width, vocabulary] as CudaMatrix stores it.
struct Embedding {
  const void* data;
  const float* column_scales;
  const int8_t* group_scales;
  DataType type;
  int64_t padded_out;

  __device__ float At(int i, int64_t token) const {
    const int64_t index = i * padded_out + token;
    switch (type) {
      case DataType::kF32:
        return static_cast<const float*>(data)[index];
      case DataType::kBf16:
        return WidenBf16(static_cast<const uint16_t*>(data)[index]);
      case DataType::kF16:
        return WidenF16(static_cast<const uint16_t*>(data)[index]);
      case DataType::kQ8: {
        const uint32_t word = Word(i / 4, token);
        return static_cast<float>(static_cast<int8_t>(word >> 8 * (i % 4) & 0xff)) *
               column_scales[token];
      }
      case DataType::kQ4: {
        const int group = i / static_cast<int>(kQ4Group), j = i % static_cast<int>(kQ4Group);
        const uint32_t byte = Word(4 * group + j % 16 / 4, token) >> 8 * (j % 4) & 0xff;
        const int q = static_cast<int>(j < 16 ? byte & 0xf : byte >> 4) - 8;
        return static_cast<float>(q * group_scales[group * padded_out + token]) *
               column_scales[token];
      }
    }
    return 0;
  }
  __device__ uint32_t Word(int row, int64_t token) const {
    return static_cast<const uint32_t*>(data)[row * padded_out + token];
  }
};

// One thread for each pair of columns of a row. The product theta * t is exact in float64.
// `positions` null: no position encoding.
__global__ void EmbedKernel(Embedding embedding, int width, const int32_t* tokens,
                            const int64_t* positions, int64_t rows, const float* thetas,
                            float* out) {
  const int pairs = width / 2;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * pairs) return;
  const int64_t m = i / pairs;
  const int pair = static_cast<int>(i % pairs);
  float* to = out + m * width + 2 * pair;
  to[0] = embedding.At(2 * pair, tokens[m]);
  to[1] = embedding.At(2 * pair + 1, tokens[m]);
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
  const auto [thetas, added] = embedding_thetas_.try_emplace(width);
  if (added) {
    const std::vector<float> host = PositionThetas(width);
    thetas->second = DeviceArray<float>(device_.get(), host.size());
    device_->CopyIn(thetas->second.data(), host.data(), host.size() * sizeof(float));
  }
  UpdateTokens(tokens);
  if (!positions.empty()) UpdatePositions(positions);
  const Embedding table{matrix.data(), matrix.column_scales(), matrix.group_scales(), matrix.type(),
                        matrix.padded_out()};
  device_->Launch(EmbedKernel, dim3(CeilDiv(rows * (width / 2), 128)), 128, 0, table, width,
                  tokens_.data(), positions.empty() ? nullptr : positions_.data(), rows,
                  thetas->second.data(), out);
}

}  // namespace polysketch::cuda
