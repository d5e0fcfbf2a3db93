// The input of a step: the tokens of one or more sequences, packed into one array.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/segment.h"

namespace polysketch {

// The rows of a segment whose final hidden rows a step returns.
enum class OutputRows { kNone, kLast, kAll };

class Batch {
 public:
  // Appends a segment of tokens [m], m >= 1, at positions [state->position(), state->position() +
  // m). A state is in one segment only.
  void Add(SequenceState* state, std::span<const int32_t> tokens, OutputRows output_rows);
  void Clear();

  // [M] over all segments.
  std::span<const int32_t> tokens() const { return tokens_; }
  std::span<const int64_t> positions() const { return positions_; }
  std::span<const Segment> segments() const { return segments_; }
  // The rows of the batch whose hidden rows the step returns, ascending.
  std::span<const int64_t> output_rows() const { return output_rows_; }
  // Where Step writes the far mass of every query: [M, heads] for each layer of
  // LanguageModel::FarHeads in order. Null after Clear: it is not wanted.
  float* far_mass() const { return far_mass_; }
  void set_far_mass(float* far_mass) { far_mass_ = far_mass; }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> positions_;
  std::vector<Segment> segments_;
  std::vector<int64_t> output_rows_;
  float* far_mass_ = nullptr;
};

// A batch of one segment.
Batch OneSegment(SequenceState* state, std::span<const int32_t> tokens, OutputRows output_rows);

}  // namespace polysketch
