// The cache lines that a decode step reads and writes of a head under StateFormat::kQ8
// (attention_prefetch.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_prefetch.h"
#include "kernels/cpu/attention_queries.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/integer_tile.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/state.h"

#include "kernels/cpu/isa_begin.inc"

// The lines of a decode step's head. They are the same for all heads with the same number of tokens
// in the block buffer.
class HeadLines {
 public:
  HeadLines(const AttentionSpec& spec, const HeadLayout& layout, FloatParts* parts)
      : spec_(spec),
        layout_(layout),
        padding_(std::max<int64_t>({kPairsOfASum * kLinesOfAPair,
                                    (spec.features() / kLanes + 1) * kLinesOfAFeatureVector,
                                    (std::max<int64_t>(spec.block, spec.near_dim()) / kLanes + 1) *
                                        kLinesOfAScaledVector})),
        offsets_(reinterpret_cast<int32_t*>(parts->Next(MaxLines() + padding_))) {}

  // Those of the head, whose next token is the one at `block_offset` of a block. has_past: whether
  // there is a far state.
  LinePrefetcher Of(const HeadState& state, int64_t block_offset, bool has_past) {
    if (block_offset != block_offset_ || has_past != has_past_) {
      block_offset_ = block_offset;
      has_past_ = has_past;
      Fill(state);
    }
    return {state.s, offsets_, count_};
  }

 private:
  static constexpr int64_t kLine = 64;

  // S is not among them.
  int64_t MaxLines() const {
    constexpr int64_t kArrays = 16;
    return (layout_.size - layout_.z) / (kLine / sizeof(float)) + spec_.far_dim() + kArrays;
  }

  void Fill(const HeadState& state) {
    const int64_t tokens = block_offset_ + 1, dp = layout_.padded_dim;
    const int64_t panels = (tokens + kKeyPanel - 1) / kKeyPanel;
    const int64_t near_pairs = (spec_.near_dim() + 1) / 2;
    count_ = 0;
    const auto add = [&](const void* data, int64_t bytes, int64_t stride = kLine) {
      const auto first = static_cast<const char*>(data) - reinterpret_cast<const char*>(state.s);
      for (int64_t i = 0; i < bytes; i += stride) {
        offsets_[count_++] = static_cast<int32_t>(first + i);
      }
    };
    if (spec_.mixed()) {
      // What the token is appended to; it writes one line of each row of the keys.
      const int64_t row = kKeyPanel * static_cast<int64_t>(sizeof(float));
      add(state.far_keys + KeyIndex(spec_.far_dim(), 0, block_offset_), spec_.far_dim() * row, row);
      add(Bf16(state.near_keys) + block_offset_ * spec_.near_dim(), 2 * spec_.near_dim());
    } else {
      add(state.far_keys, panels * spec_.far_dim() * kKeyPanel * sizeof(float));
    }
    add(Bf16(state.values) + block_offset_ / 2 * 2 * dp, 4 * dp);
    if (has_past_) {
      const int64_t copy_pairs = (spec_.features() + 1) / 2;
      add(state.z, (layout_.copy - layout_.z) * sizeof(float) + copy_pairs * 2 * dp);
    }
    if (spec_.decay_gate) add(state.decay_sums, tokens * sizeof(float));
    if (spec_.mixed()) {
      add(state.key_bytes, KeyPairIndex(near_pairs, 0, panels * kKeyPanel));
      add(state.key_scales, tokens * sizeof(float));
    }
    add(state.value_scales, tokens * sizeof(float));
    add(state.value_bytes, (tokens + 1) / 2 * 2 * dp);
    std::fill_n(offsets_ + count_, padding_, offsets_[count_ - 1]);
  }

  const AttentionSpec& spec_;
  const HeadLayout& layout_;
  const int64_t padding_;  // the most lines that a loop takes
  int32_t* const offsets_;
  int64_t count_ = 0;
  int64_t block_offset_ = -1;
  bool has_past_ = false;
};

#include "kernels/cpu/isa_end.inc"
