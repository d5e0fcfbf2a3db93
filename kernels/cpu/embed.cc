#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/cpu/backend.h"

#include "kernels/cpu/isa_begin.inc"

void CpuBackend::Embed(const Matrix& embedding, std::span<const int32_t> tokens,
                       std::span<const int64_t> positions, float* out) {
  PS_CHECK(positions.empty() || tokens.size() == positions.size());
  const PackedMatrix& matrix = Packed(embedding);
  const int width = static_cast<int>(matrix.in()), pairs = width / 2;
  if (!positions.empty() && (!embed_rotations_ || embed_rotations_->size() != pairs)) {
    embed_rotations_.emplace(PositionThetas(width));
  }
  context_.ParallelRows(std::ssize(tokens), 1, [&](int64_t first, int64_t last, int thread) {
    float* cosines = context_.Scratch(thread, 2 * pairs);
    float* sines = cosines + pairs;
    Rotations::Start start;
    for (int64_t m = first; m < last; ++m) {
      float* row = out + m * width;
      matrix.Column(tokens[m], row);
      if (positions.empty()) continue;
      embed_rotations_->CosSin(positions[m], &start, cosines, sines);
      for (int i = 0; i < pairs; ++i) {
        row[2 * i] += sines[i];
        row[2 * i + 1] += cosines[i];
      }
    }
  });
}

#include "kernels/cpu/isa_end.inc"
