// The training kernels in polysketch-cuda-bench.
#pragma once

#include "kernels/cuda/bench_timer.h"

namespace polysketch::cuda {

void BenchTraining(Bench* bench);

}  // namespace polysketch::cuda
