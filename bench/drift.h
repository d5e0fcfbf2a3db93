// The cost of a numeric format: the perplexity of a text under it and under float32.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "bench/model_bench.h"

namespace polysketch::bench {

struct DriftRow {
  std::string weights;
  std::string state;
  int64_t tokens = 0;  // scored
  double perplexity = 0;
  double change = 0;      // relative to float32 weights and state
  double max_token = 0;   // maximum |change| of the log-probability of a token
  double mean_token = 0;  // mean |change| of the log-probability of a token
};

// Scores the first `tokens` tokens (uint16, little-endian) of `file` as one sequence with float32
// weights and state of the baseline, then with every weight format of the options in every state
// format. Calls on_row for each row as it is finished.
Status RunDrift(const BenchOptions& options, const std::string& file, int64_t tokens,
                const std::function<void(const DriftRow&)>& on_row);

}  // namespace polysketch::bench
