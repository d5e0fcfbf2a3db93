#include <algorithm>

#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/cpu/backend.h"

#include "kernels/cpu/isa_begin.h"

void CpuBackend::Embed(const Matrix& embedding, std::span<const int32_t> tokens,
                       std::span<const int64_t> positions, float* out) {
  PS_CHECK(positions.empty() || tokens.size() == positions.size());
  const PackedMatrix& matrix = Packed(embedding);
  const int width = static_cast<int>(matrix.in()), pairs = width / 2;
  // Computed once: powers in float64 would take a noticeable part of a decode step.
  if (std::ssize(position_thetas_) != pairs) position_thetas_ = PositionThetas(width);
  context_.ParallelRows(std::ssize(tokens), 1, [&](int64_t first, int64_t last, int thread) {
    float* cosines = context_.Scratch(thread, 2 * pairs);
    float* sines = cosines + pairs;
    std::fill_n(cosines, 2 * pairs, 0.0f);
    for (int64_t m = first; m < last; ++m) {
      if (!positions.empty()) CosSin(position_thetas_, positions[m], cosines, sines);
      float* row = out + m * width;
      for (int i = 0; i < pairs; ++i) {
        row[2 * i] = matrix.At(2 * i, tokens[m]) + sines[i];
        row[2 * i + 1] = matrix.At(2 * i + 1, tokens[m]) + cosines[i];
      }
    }
  });
}

#include "kernels/cpu/isa_end.h"
