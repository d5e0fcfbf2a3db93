// The immutable weights of a PolySketchFormer, packed for a backend.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_config.h"
#include "kernels/backend.h"

namespace polysketch {

struct LayerWeights {
  NormWeights attn_norm, mlp_norm;       // [D]
  const Matrix* qkv = nullptr;           // [D, 3D]
  const Matrix* out = nullptr;           // [D, D]
  const Matrix* up = nullptr;            // [D, 2h]
  const Matrix* down = nullptr;          // [h, D]
  NormWeights qk_norm;                   // [d]; ModelConfig::has_qk_norm
  NormWeights near_q_norm, near_k_norm;  // [d]; mixed kinds
  SketchNetwork network;                 // learned kinds
  RandomSketch random_sketch;            // random kinds; its spans point into random_levels
  std::vector<std::vector<const Matrix*>> random_matrices;
  std::vector<std::span<const Matrix* const>> random_levels;
  const Matrix* omega = nullptr;     // [d, m]; performer
  const Matrix* gate = nullptr;      // [D, H]; with a decay gate
  const float* gate_bias = nullptr;  // [H]
  // polynomial_square: a_0 to a_p of each head, [H, p + 1]. affine_square: the terms (c, f) of each
  // head, with which c + f q'.k' is its polynomial, [H, 2].
  const float* coefficients = nullptr;
};

class ModelWeights {
 public:
  // Reads every tensor that the config requires. INVALID_ARGUMENT names one that is missing, has
  // another shape or is not required. `type`: the format of the dense matrices, the embedding and
  // the sketch networks; as stored when unset. kQ4 applies to qkv, out, up and down where they
  // are large enough to gain, and means kQ8 elsewhere. Random matrices (random sketches, omega) and
  // decay gates stay float32: they are small, and rounding would change the estimator, or what
  // remains of a token after thousands of others.
  static Result<std::unique_ptr<ModelWeights>> Load(Checkpoint* checkpoint,
                                                    const ModelConfig& config, Backend* backend,
                                                    std::optional<DataType> type);

  const Matrix& embedding() const { return *embedding_; }  // E^T [D, V]
  const float* softmax_bias() const { return softmax_bias_; }
  const NormWeights& final_norm() const { return final_norm_; }
  const LayerWeights& layer(int i) const { return layers_[i]; }
  // Size in bytes, and number of elements, of all packed matrices and vectors.
  int64_t bytes() const { return bytes_; }
  int64_t parameters() const { return parameters_; }

 private:
  class Loader;

  const Matrix* embedding_ = nullptr;
  const float* softmax_bias_ = nullptr;
  NormWeights final_norm_;
  std::vector<LayerWeights> layers_;
  int64_t bytes_ = 0;
  int64_t parameters_ = 0;
  std::vector<std::unique_ptr<const Matrix>> matrices_;
  std::vector<BackendArray> vectors_;
};

}  // namespace polysketch
