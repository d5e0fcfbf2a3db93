#pragma once

#include <cstdint>

#include "kernels/cuda/ops.h"

namespace polysketch::cuda {

// g for networks of 16-bit matrices and sizes that the kernel takes; false: nothing was done.
bool LearnedSketchFused(Context& ctx, const SketchNetwork& net, const float* x, int64_t rows,
                        float* out);

}  // namespace polysketch::cuda
