// The cost of a numeric format: the perplexity of a text under it and under float32.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "bench/model_bench.h"

namespace polysketch::bench {

struct DriftText {
  std::string file;  // uint16, little-endian
  int64_t tokens = 65536;
  int64_t min_depth = 1;  // tokens with fewer before them are read and do not count
};

struct DriftRow {
  std::string weights;
  std::string state;
  int64_t tokens = 0;  // that count
  double perplexity = 0;
  double change = 0;      // relative to float32 weights and state
  double max_token = 0;   // maximum |change| of the log-probability of a token
  double mean_token = 0;  // mean |change| of the log-probability of a token
};

// Scores the first tokens of the text as one sequence with float32 weights and state of the
// baseline, then with every weight format of the options in every state format. Calls on_row for
// each row as it is finished.
Status RunDrift(const BenchOptions& options, const DriftText& text,
                const std::function<void(const DriftRow&)>& on_row);

}  // namespace polysketch::bench
