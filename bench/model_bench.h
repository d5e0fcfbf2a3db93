// Tokens a second of a whole model: prefill of a prompt, and decoding after a prompt that was
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
  std::string model;     // folder
  std::string baseline;  // of --drift: the folder whose float32 is compared with; empty: model
  std::string device = "cpu";  // cpu | cuda | reference
  // Limits of a cuda device, measured elsewhere. 0: unknown, shares are 0.
  double device_bandwidth = 0;  // bytes a second
  double device_flops = 0;      // operations a second of 16-bit products
  int threads = 0;              // > 0
  std::vector<std::string> stages = {"prefill", "decode"};
  std::vector<int64_t> prefill_contexts = {512, 262144};  // prompt lengths
  std::vector<int64_t> decode_contexts = {4096, 262144};  // tokens before a decode measurement
  std::vector<int> batches = {32};                        // at each decode context, besides 1
  std::vector<DataType> formats;
  std::optional<StateFormat> state_format;  // unset: as precise as the weights
  int max_step_tokens = 0;                  // > 0
  int decode_blocks = 3;  // blocks of a decode measurement; the median is reported
  int repeats = 3;        // runs of a short prefill measurement; the median is reported
  // Whether the sequences of a batch have KV caches of their own. Else they hold the blocks of one.
  bool own_caches = false;
  // Whether states of decode measurements have random values, where no prompt was processed.
  bool random_states = false;
  bool profile = false;  // measures every op, which slows a row by about 1 percent
};

struct BenchRow {
  std::string stage;
  std::string attention;  // the kind, as config.json names it
  int64_t context = 0;
  int batch = 1;
  std::string weights;
  std::string state;
  int threads = 0;
  double tokens_per_s = 0;
  double seconds = 0;          // median
  int64_t tokens = 0;          // processed in `seconds`
  double gflop_per_s = 0;      // useful operations (bench/cost.h)
  double fma_share = 0;        // share of the float32 peak; of a device's 16-bit peak
  int64_t state_bytes = 0;     // decode: memory of a sequence's state after `context` tokens
  double step_bytes = 0;       // decode: bytes that a step must read
  double gbyte_per_s = 0;      // decode: rate of step_bytes
  double bandwidth = 0;        // decode: GB/s that the machine reads from step_bytes of memory
  double bandwidth_1 = 0;      // as `bandwidth`, by one thread; 0 on a device
  double bandwidth_share = 0;  // median over blocks, each with the bandwidth before and after it
  std::vector<OpTotals> ops = {};  // with `profile`: of the last repeat, longest first
};

// Runs every stage of every format; calls on_row for each row as it is finished. An error of the
// device ends it without the row that it occurred in.
Status RunModelBench(const BenchOptions& options, const ProductPeaks& peaks,
                     const std::function<void(const BenchRow&)>& on_row);

}  // namespace polysketch::bench
