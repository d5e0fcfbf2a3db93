// polysketch score --by-depth.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "clients/cpp/input.h"
#include "clients/cpp/rpc.h"

namespace polysketch {

struct DepthOptions {
  bool by_depth = false;
  std::optional<int64_t> window;
  std::optional<int64_t> warm_up;  // default: half a window
  std::vector<int64_t> edges;      // empty: DefaultDepthEdges
  int32_t concurrency = 4;

  void AddTo(CLI::App* command);
  // INVALID_ARGUMENT names the option, what was expected and what was found.
  Status Check() const;
};

// Scores the input as one text and in windows from fresh starts, and prints both by depth. Returns
// the exit status.
int ScoreByDepth(const DepthOptions& options, const InputOptions& input, size_t chunk_tokens,
                 bool show_progress, const CallOptions& call);

}  // namespace polysketch
