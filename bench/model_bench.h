// Tokens a second of a whole model: prefill of a prompt, and decoding behind tokens really
// processed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/ceilings.h"
#include "bench/timed_backend.h"
#include "kernels/backend.h"

namespace polysketch::bench {

struct BenchOptions {
  std::string model;           // folder
  std::string device = "cpu";  // cpu | cuda | reference
  // With cuda: what that device reaches, measured elsewhere; 0: unknown, shares are 0.
  double device_bandwidth = 0;            // bytes a second
  double device_flops = 0;                // of 16-bit products
  int threads = 0;                        // > 0
  std::vector<std::string> stages;        // "prefill", "decode"
  std::vector<int64_t> prefill_contexts;  // prompt lengths
  std::vector<int64_t> decode_contexts;   // tokens before the measurement, batch 1 ...
  std::vector<int> batches;               // ... and these more, at each decode context
  std::vector<std::optional<DataType>> formats;
  std::optional<StateFormat> state_format;  // unset: as precise as the weights
  int max_step_tokens = 512;
  int decode_blocks = 3;  // a decode measurement is the median of so many whole blocks
  int repeats = 3;        // of short measurements; their median is reported
  bool profile = false;   // time every op; costs a row about a percent
};

struct BenchRow {
  std::string stage;
  int64_t context = 0;
  int batch = 1;
  std::string weights;
  std::string state;
  int threads = 0;
  double tokens_per_s = 0;
  double seconds = 0;          // measured, median
  int64_t tokens = 0;          // in that time
  double gflop_per_s = 0;      // useful operations (bench/cost.h)
  double fma_share = 0;        // of the machine's float32 peak; of a device's 16-bit one
  double step_bytes = 0;       // decode: bytes that one step must read
  double gbyte_per_s = 0;      // decode: step_bytes a second
  double bandwidth = 0;        // decode: GB/s that this machine reads from a set of that size
  double bandwidth_1 = 0;      // the same by one thread; 0 on a device
  double bandwidth_share = 0;  // median over blocks, each beside the bandwidth around it
  std::vector<OpTotals> ops;   // with `profile`: over the whole measurement, longest first
};

// Runs every stage of every format; on_row is called as rows are finished.
Result<std::vector<BenchRow>> RunModelBench(const BenchOptions& options, const ProductPeaks& peaks,
                                            const std::function<void(const BenchRow&)>& on_row);

}  // namespace polysketch::bench
