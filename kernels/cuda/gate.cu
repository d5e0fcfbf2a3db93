#include "kernels/cuda/mlp_gate.cuh"

#include "kernels/cuda/backend.h"
#include "kernels/cuda/norm_row.cuh"

namespace polysketch::cuda {
namespace {

__global__ void GateKernel(GateKind gate, const float* up, int64_t rows, int hidden, float* out) {
  AfterEarlierKernels();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * hidden) return;
  if (gate == GateKind::kUngatedGelu) {
    out[i] = Gelu(up[i]);
    return;
  }
  const float* row = up + i / hidden * 2 * hidden;
  const int64_t column = i % hidden;
  out[i] = Gated(gate, row[column], row[hidden + column]);
}

// out: [rows][padded], rounded to 16 bits, zero from `hidden` on. A thread has four columns.
template <bool kBf16>
__global__ void GateHalvesKernel(GateKind gate, const float* up, int64_t rows, int hidden,
                                 bool aligned, int padded, uint16_t* out) {
  AfterEarlierKernels();
  const int quads = padded / 4;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= rows * quads) return;
  const int64_t m = i / quads;
  const int column = static_cast<int>(i % quads) * 4;
  const float* row = up + m * (gate == GateKind::kUngatedGelu ? 1 : 2) * hidden;
  Quad u = LoadQuad(row, column, hidden, aligned);
  if (gate == GateKind::kUngatedGelu) {
    for (int c = 0; c < 4; ++c) u.v[c] = Gelu(u.v[c]);
  } else {
    const Quad g = LoadQuad(row + hidden, column, hidden, aligned);
    for (int c = 0; c < 4; ++c) u.v[c] = Gated(gate, u.v[c], g.v[c]);
  }
  StoreHalves<kBf16>(u, hidden - column, out + m * padded + column);
}

}  // namespace

void CudaBackend::GateToHalves(GateKind gate, const float* up, int64_t rows, int64_t hidden,
                               const CudaMatrix& w, uint16_t* out) {
  device_->LaunchDependent(
      w.type() == DataType::kBf16 ? GateHalvesKernel<true> : GateHalvesKernel<false>,
      dim3(CeilDiv(rows * (w.padded_in() / 4), 256)), 256, 0, gate, up, rows,
      static_cast<int>(hidden), AlignedQuads(hidden, {up}), static_cast<int>(w.padded_in()), out);
}

void CudaBackend::Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) {
  device_->LaunchDependent(GateKernel, dim3(CeilDiv(rows * hidden, 256)), 256, 0, gate, up, rows,
                           hidden, out);
}

}  // namespace polysketch::cuda
