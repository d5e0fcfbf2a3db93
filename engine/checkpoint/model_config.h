// ModelConfig: the contents of config.json (docs/model-format.md), which define what a checkpoint
// computes. They are checked before anything is allocated.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"
#include "kernels/attention_spec.h"

namespace polysketch {

// The attention of a layer.
struct LayerConfig {
  AttentionKind attention = AttentionKind::kLearnedSketchMixed;
  // p: polynomial, random kinds, polynomial_square; 2 in symmetric_power, 1 in affine_square.
  int power = 4;
  int near_power = 4;   // the mixed kinds' near part
  int sketch_size = 0;  // r: the sketched kinds, otherwise 0
  // b: block size in tokens. Defines the model in the mixed kinds; affects only speed in the
  // others.
  int grain_size = 256;
  int num_features = 0;     // m: performer, otherwise 0
  std::string sketch_kind;  // "gaussian" or "srht": random kinds, informative
  // polynomial_square and affine_square: P is a polynomial of (q'.k' + alpha) / beta.
  double alpha = 0;
  double beta = 1;
  bool head_coefficients = false;    // whether each head has coefficients of its own
  bool learned_coefficients = true;  // whether training changes them; informative
  bool decay_gate = false;  // a gate per layer and head lets earlier tokens fade; recurrent kinds
  // As in AttentionSpec; KV kinds.
  int window = 0;
  WindowKind window_kind = WindowKind::kSliding;
  int sinks = 0;

  const AttentionTraits& traits() const { return TraitsOf(attention); }
  bool is_kv() const { return traits().far == FarRows::kNone; }
  bool is_mixed() const { return traits().mixed; }
  bool is_learned_sketch() const { return traits().far == FarRows::kLearned; }
  bool is_random_sketch() const { return traits().far == FarRows::kRandom; }
  // Whether config.json says the size of the sketch.
  bool is_sketched() const { return is_learned_sketch() || is_random_sketch(); }
  bool has_coefficients() const { return traits().coefficients; }
  bool has_qk_norm() const { return traits().qk_norm; }
  // Degree of a random sketch, p / 2, a power of two; the number of its level-0 matrices.
  int sketch_degree() const { return power / 2; }
};

// The attention of a model is that of each layer for which `layers` has no other.
struct ModelConfig : LayerConfig {
  // Constants of the format.
  static constexpr int kSketchLevels = 2;     // of the learned sketch network
  static constexpr int kSketchExpansion = 8;  // hidden size of that network / sketch_size

  int vocab_size = 0;  // V
  int emb_dim = 0;     // D
  int num_heads = 0;   // H
  int num_layers = 0;
  std::vector<LayerConfig> layers;   // empty, or one for each layer
  int context_length = 0;            // tokens in training; informative, not a limit
  bool sinusoidal_positions = true;  // added to the embedding; RoPE is in every model
  bool add_bos = false;              // text prompts begin with bos_id
  int bos_id = -1;                   // -1: none
  int eos_id = -1;                   // -1: none

  // Reads config.json of the folder. INVALID_ARGUMENT for a field that is unknown, missing or
  // wrong; the message names the field, what was expected and what was found.
  static Result<ModelConfig> Load(const ModelFolder& folder);
  // Parses the text of a config.json. Every error message begins with `source`.
  static Result<ModelConfig> Parse(std::string_view json_text, std::string_view source);
  // The same of a config.json that has been parsed.
  static Result<ModelConfig> FromJson(const nlohmann::json& object, std::string_view source);

  int head_dim() const { return emb_dim / num_heads; }        // d
  int mlp_hidden() const { return 8 * emb_dim / 3 / 8 * 8; }  // h
  const LayerConfig& layer(int i) const {
    return layers.empty() ? *this : layers[static_cast<size_t>(i)];
  }
  // The attention of layer `i`.
  AttentionSpec attention_spec(StateFormat state_format, int i = 0) const;
};

}  // namespace polysketch
