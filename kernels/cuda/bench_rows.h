// The ops that work row by row in polysketch-cuda-bench.
#pragma once

#include "kernels/cuda/bench_timer.h"
#include "kernels/cuda/ops.h"

namespace polysketch::cuda {

void BenchRows(Bench* bench, Context* ctx);

}  // namespace polysketch::cuda
