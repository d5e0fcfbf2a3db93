// What clients of a simulation ask for, and what each of them gets alone.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/engine/testing/collected.h"

namespace polysketch::testing {

struct SimulatedRequest {
  GenerateParams params;
  std::vector<int32_t> tokens;  // the prompt, or the text of a score
  bool score = false;
  Collected alone;
  int64_t session_tokens = 0;  // tokens of the session after this turn
};

// Turns of a session, in order.
using SimulatedSession = std::vector<SimulatedRequest>;

// The same ones in every simulation.
struct SimulatedRequests {
  static constexpr int kMaxTokens = 40;  // of an output

  SimulatedRequests(int requests, int sessions);

  std::vector<SimulatedRequest> single;
  std::vector<SimulatedSession> sessions;
};

}  // namespace polysketch::testing
