// A sequence's share of a step.
#pragma once

namespace polysketch {

class SequenceState;

// Rows [first_row, first_row + rows) of the packed batch hold the sequence's tokens at positions
// [state->position(), state->position() + rows).
struct Segment {
  SequenceState* state = nullptr;
  int first_row = 0;
  int rows = 0;
};

}  // namespace polysketch
