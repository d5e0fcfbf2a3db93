#include "kernels/angles.h"
#include "kernels/cpu/ops.h"

#include "kernels/cpu/isa_begin.h"

void Embed(Context& ctx, const PackedMatrix& embedding, const std::vector<float>& thetas,
           std::span<const int32_t> tokens, std::span<const int64_t> positions, float* out) {
  const int width = static_cast<int>(embedding.in());
  const int pairs = static_cast<int>(thetas.size());
  ctx.ParallelRows(static_cast<int64_t>(tokens.size()), 1,
                   [&](int64_t first, int64_t last, int thread) {
                     float* cosines = ctx.Scratch(thread, 2 * pairs);
                     float* sines = cosines + pairs;
                     for (int64_t m = first; m < last; ++m) {
                       CosSin(thetas, positions[m], cosines, sines);
                       float* row = out + m * width;
                       for (int i = 0; i < pairs; ++i) {
                         row[2 * i] = embedding.At(2 * i, tokens[m]) + sines[i];
                         row[2 * i + 1] = embedding.At(2 * i + 1, tokens[m]) + cosines[i];
                       }
                     }
                   });
}

#include "kernels/cpu/isa_end.h"
