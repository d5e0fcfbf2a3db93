// What a numeric format costs: the perplexity of a text under it, beside the one under float32.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/model_bench.h"

namespace polysketch::bench {

struct DriftRow {
  std::string weights;
  std::string state;
  int64_t tokens = 0;  // scored
  double perplexity = 0;
  double change = 0;       // relative to float32 weights and state
  double worst_token = 0;  // largest |change| of a token's log-probability
  double mean_token = 0;   // mean |change|
};

// Scores the first `tokens` tokens (uint16, little-endian) of `file` in one sequence with float32
// weights and state, then with every format of the options in both state formats.
Result<std::vector<DriftRow>> RunDrift(const BenchOptions& options, const std::string& file,
                                       int64_t tokens,
                                       const std::function<void(const DriftRow&)>& on_row);

}  // namespace polysketch::bench
