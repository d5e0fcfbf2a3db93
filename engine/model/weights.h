// The immutable weights of a model, packed for a backend.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace polysketch {

// H heads of queries, Hkv of keys and of values, all of d.
struct LayerWeights {
  NormWeights attn_norm;            // [D]
  const Matrix* qkv = nullptr;      // [D, (H + 2 Hkv) d]
  const float* qkv_bias = nullptr;  // null: none, as of the other biases
  const Matrix* out = nullptr;      // [H d, D]
  const float* out_bias = nullptr;  // [D]
  MlpWeights mlp;
  // Of the heads of queries and of keys, before their rotation (FrameSpec::head_norms) or after it.
  // [d]; without a scale: none
  NormWeights q_norm, k_norm;
  NormWeights near_q_norm, near_k_norm;  // [d]; mixed kinds
  SketchNetwork network;                 // learned kinds, and far parts of learned_sketch
  RandomSketch random_sketch;            // random kinds; its spans point into random_levels
  std::vector<std::vector<const Matrix*>> random_matrices;
  std::vector<std::span<const Matrix* const>> random_levels;
  const Matrix* omega = nullptr;     // [d, m]; performer
  const Matrix* gate = nullptr;      // [D, Hkv]; with a decay gate
  const float* gate_bias = nullptr;  // [Hkv]
  // Of the far part of a window: affine maps of each head, [H, d, r] and [H, r] of queries, [Hkv,
  // d, r] and [Hkv, r] of keys (Backend::HeadMaps). They are f(q) and f(k), or of linear their
  // features (Backend::LinearFeatures), those of queries times factors [H]. Of learned_sketch they
  // take the network's sketches: d is r.
  const float *far_q = nullptr, *far_q_bias = nullptr, *far_q_factors = nullptr;
  const float *far_k = nullptr, *far_k_bias = nullptr;
  // polynomial_square: a_0 to a_p of each head, [H, p + 1]. affine_square: the terms (c, f) of each
  // head, with which c + f q'.k' is its polynomial, [H, 2].
  const float* coefficients = nullptr;
};

struct ModelWeights {
  const Matrix* embedding = nullptr;  // E^T [D, V]
  const Matrix* output = nullptr;     // [D, V], of the logits; `embedding` where they are tied
  const float* output_bias = nullptr;
  NormWeights final_norm;
  // [D, D]: its product with the final norm's output is what `output` takes (residual_rotation.h).
  // Null: `output` takes the norm's output.
  const Matrix* final_rotation = nullptr;
  std::vector<LayerWeights> layers;
  // Size in bytes, and number of elements, of all packed matrices and vectors.
  int64_t bytes = 0;
  int64_t parameters = 0;

  std::vector<std::unique_ptr<const Matrix>> matrices;
  std::vector<BackendArray> vectors;
};

}  // namespace polysketch
