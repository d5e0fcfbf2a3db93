// Attention and the product after it. Rows that the next kernel rounds are stored rounded: those of
// the result for the product, and those of queries and keys for attention.
#include <algorithm>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/learned_sketch_step.cuh"

namespace polysketch::cuda {

bool CudaBackend::OneTokenEach(std::span<const Segment> segments) {
  return std::ranges::all_of(segments, [](const Segment& segment) { return segment.rows == 1; });
}

void CudaBackend::AttentionProduct(const AttentionSpec& spec, int layer,
                                   std::span<const Segment> segments, const AttentionInput& input,
                                   const Bf16Rows& rows, const StoreStep& store, int64_t count,
                                   const CudaMatrix& w, const float* bias, float* attended,
                                   float* x) {
  if (!PassesHalves(count, w)) {
    attention_.Run(spec, layer, segments, input, rows, {.floats = attended}, store);
    return MatMul(attended, count, w, bias, /*accumulate=*/true, x);
  }
  uint16_t* halves = halves_.Grow(device_.get(), count * w.in());
  attention_.Run(spec, layer, segments, input, rows,
                 {.halves = halves, .bf16 = w.type() == DataType::kBf16}, store);
  HalvesMatMul(halves, count, w, bias, true, x);
}

void CudaBackend::AttentionMatMul(const AttentionSpec& spec, int layer,
                                  std::span<const Segment> segments, const AttentionInput& input,
                                  int64_t rows, const Matrix& w, float* attended, float* x) {
  AttentionProduct(spec, layer, segments, input, Bf16Rows(), nullptr, rows, Cast(w), nullptr,
                   attended, x);
}

void CudaBackend::MixedSketchAttention(const AttentionSpec& spec, int layer,
                                       std::span<const Segment> segments,
                                       const MixedSketchInput& input, const Matrix& matrix,
                                       float* x) {
  const CudaMatrix& w = Cast(matrix);
  const int64_t rows = std::ssize(input.positions), heads = rows * spec.heads;
  if (!attention_.TakesBf16Rows(spec) || !SketchIsFused(*input.network) || input.thetas.empty() ||
      !NormsHeads(spec.head_dim,
                  {input.qkv, input.qk, input.near_qk, input.near_q_norm.scale,
                   input.near_q_norm.bias, input.near_k_norm.scale, input.near_k_norm.bias})) {
    return Backend::MixedSketchAttention(spec, layer, segments, input, matrix, x);
  }
  // The sketch networks read queries and keys as floats, since they norm them.
  auto* near_q = reinterpret_cast<uint16_t*>(input.near_qk);
  auto* far_q = reinterpret_cast<uint16_t*>(input.sketch);
  const Bf16Rows rounded{near_q, near_q + heads * spec.head_dim, far_q,
                         far_q + heads * spec.far_dim()};
  AttentionInput values;
  values.v = input.qkv + 2 * int64_t{spec.heads} * spec.head_dim;
  values.v_stride = 3 * int64_t{spec.heads} * spec.head_dim;
  values.log_decay = input.log_decay;
  const bool decoding = SketchTakesStep(*input.network, 2 * heads) && OneTokenEach(segments);
  SketchStep step{{input.qkv, UpdateAngles(input.positions, spec.shape(), input.thetas), rows,
                   spec.heads, spec.heads, spec.head_dim},
                  input.near_q_norm,
                  input.near_k_norm,
                  {},
                  spec.decay_gate ? input.log_decay : nullptr,
                  near_q,
                  far_q};
  const auto store = [&](const StoredStep& stored) {
    step.heads.rows = stored.tokens;
    step.stored = stored;
    RunSketchStep(*input.network, step);
  };
  if (decoding && !segments.empty()) {
    return AttentionProduct(spec, layer, segments, values, rounded, store, rows, w, nullptr,
                            input.attended, x);
  }
  if (decoding) RunSketchStep(*input.network, step);  // a rehearsal
  RopeAndHeadNorms(input.qkv, input.positions, spec.shape(), input.thetas,
                   {input.near_q_norm, input.near_k_norm}, input.qk,
                   input.qk + heads * spec.head_dim,
                   {.bf16 = {near_q, near_q + heads * spec.head_dim}});
  RunFusedSketch(*input.network, input.qk, 2 * heads, nullptr, far_q);
  AttentionProduct(spec, layer, segments, values, rounded, nullptr, rows, w, nullptr,
                   input.attended, x);
}

}  // namespace polysketch::cuda
