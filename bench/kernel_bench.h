// One op at a time, at the shapes that a model gives it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/ceilings.h"
#include "bench/model_bench.h"

namespace polysketch::bench {

struct KernelRow {
  std::string op;
  std::string shape;
  double microseconds = 0;  // median
  double gflop_per_s = 0;
  double fma_share = 0;    // of the float32 peak
  double gbyte_per_s = 0;  // weights or state that the call reads
};

// The dense products, the sketch, attention and the small ops of the model's first layer shapes,
// for 1, 32 and 512 rows.
Result<std::vector<KernelRow>> RunKernelBench(const BenchOptions& options,
                                              const ProductPeaks& peaks,
                                              const std::function<void(const KernelRow&)>& on_row);

}  // namespace polysketch::bench
