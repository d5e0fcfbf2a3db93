// Single ops, with the shapes of a model.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "bench/ceilings.h"
#include "bench/model_bench.h"

namespace polysketch::bench {

struct KernelRow {
  std::string op;
  std::string shape;
  double microseconds = 0;  // median
  double gflop_per_s = 0;
  double fma_share = 0;    // share of the float32 peak
  double gbyte_per_s = 0;  // of weights or state that the call reads
};

// Measures the dense products, the learned sketch and attention of a layer of the model on the CPU,
// for 1, 32 and 512 rows. Calls on_row for each row as it is finished.
Status RunKernelBench(const BenchOptions& options, const ProductPeaks& peaks,
                      const std::function<void(const KernelRow&)>& on_row);

}  // namespace polysketch::bench
