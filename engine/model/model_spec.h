// ModelSpec: what a model computes. Each format of a model folder says its models in these terms
// (engine/model/model_format.h), and DecoderModel computes them all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention_spec.h"
#include "kernels/matrix.h"

namespace polysketch {

// Factors of a frame, as Granite has them. The weights take them over when they are read.
struct FrameScales {
  float embedding = 1;
  float residual = 1;  // of what attention and MLP add to the stream
  float queries = 1;   // of q.k / sqrt(head_dim)
  float logits = 1;
};

// What all layers share: x += attention(norm(x)) out, x += mlp(norm(x)), and what precedes and
// follows them.
struct FrameSpec {
  int width = 0;       // D, of the residual stream
  int mlp_hidden = 0;  // h
  int vocab_size = 0;  // V, rows of the embedding as it is stored
  // Whether the tokenizer may have fewer tokens than V: the rows after them are padding.
  bool padded_vocabulary = false;
  NormKind norm = NormKind::kLayer;
  float epsilon = 1e-5f;  // of all norms of the frame
  GateKind gate = GateKind::kGelu;
  bool qkv_bias = false;  // of a decay gate too, where a layer has one
  bool out_bias = false;  // of the projection of the attention's output
  bool mlp_bias = false;  // of both matrices
  // Norms of each head's queries and keys before their rotation.
  bool head_norms = false;
  bool sinusoids = false;  // added to the embedding
  // Rotation by position: of pair i of a head by position * rope_thetas[i]. [head_dim / 2]
  std::vector<float> rope_thetas;
  float rope_scale =
      1;  // of rotated queries and rotated keys; the queries' weights take over its square
  bool tied = true;  // the embedding makes the logits too
  bool output_bias = false;
  FrameScales scales = {};
};

struct LayerSpec {
  AttentionSpec attention;
  bool rope = true;  // queries and keys are rotated
};

struct ModelSpec {
  std::string architecture, model_type;  // as config.json names them: "LlamaForCausalLM", "llama"
  FrameSpec frame;
  std::vector<LayerSpec> layers;  // at least one
  // Tokens of the longest sequence that the positions allow; 0: no limit.
  int64_t context_limit = 0;
  int context_length = 0;  // tokens in training; informative
  bool add_bos = false;    // text prompts begin with bos_id, where their tokenizer does not say so
  int bos_id = -1;         // -1: none
  // Each ends an output, unless generation_config.json names others.
  std::vector<int32_t> stop_ids;

  // The attention of all layers, in order.
  std::vector<AttentionSpec> Attention() const {
    std::vector<AttentionSpec> all;
    for (const LayerSpec& layer : layers) all.push_back(layer.attention);
    return all;
  }
};

}  // namespace polysketch
