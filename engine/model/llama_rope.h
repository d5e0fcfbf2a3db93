// The rotations of queries and keys that config.json of transformers describes: rope_theta and rope_scaling of
// transformers 4, rope_parameters of transformers 5.
#pragma once

#include <string_view>
#include <vector>

#include "engine/checkpoint/json_field_reader.h"

namespace polysketch {

inline constexpr int kPositionsLimit = 1 << 28;
// Of factors: their products and the squares of these stay far within float32.
inline constexpr double kScaleLeast = 1e-4, kScaleMost = 1e4;

struct LlamaRope {
  std::vector<float> thetas = {};  // FrameSpec::rope_thetas
  float scale = 1;                 // FrameSpec::rope_scale
  int length = 0;                  // tokens that it is made for
};

// head_dim: even. length: max_position_embeddings. theta: rope_theta of a config that has none. An error is one
// of `fields`; source: as JsonFieldReader has it.
LlamaRope ReadLlamaRope(int head_dim, int length, double theta, std::string_view source,
                        JsonFieldReader* fields);

}  // namespace polysketch
