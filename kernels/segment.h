// A segment of a batch.
#pragma once

namespace polysketch {

class SequenceState;

// The consecutive tokens of one sequence in a batch: rows [first_row, first_row + rows) of the
// batch are the sequence's tokens at positions [state->position(), state->position() + rows).
struct Segment {
  SequenceState* state = nullptr;
  int first_row = 0;
  int rows = 0;
};

}  // namespace polysketch
