#include "engine/model/batch.h"

#include "base/check.h"
#include "kernels/backend.h"

namespace polysketch {

void Batch::Add(SequenceState* state, std::span<const int32_t> tokens, OutputRows output_rows) {
  PS_CHECK(!tokens.empty());
  const auto first = std::ssize(tokens_);
  const auto rows = std::ssize(tokens);
  segments_.push_back({state, static_cast<int>(first), static_cast<int>(rows)});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (int64_t i = 0; i < rows; ++i) positions_.push_back(state->position() + i);
  if (output_rows == OutputRows::kNone) return;
  for (int64_t i = output_rows == OutputRows::kAll ? 0 : rows - 1; i < rows; ++i) {
    output_rows_.push_back(first + i);
  }
}

void Batch::Clear() {
  tokens_.clear();
  positions_.clear();
  segments_.clear();
  output_rows_.clear();
  far_mass_ = nullptr;
}

Batch OneSegment(SequenceState* state, std::span<const int32_t> tokens, OutputRows output_rows) {
  Batch batch;
  batch.Add(state, tokens, output_rows);
  return batch;
}

}  // namespace polysketch
