// Weights: matrices as a checkpoint stores them, matrices as a backend packs them, and the groups
// of weights that one op reads.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/data_type.h"

namespace polysketch {

// A dense matrix as a checkpoint stores it: row-major, any alignment. Refers to memory that it does
// not own.
struct HostMatrix {
  const void* data = nullptr;  // kQ4: two elements a byte
  DataType type = DataType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  // Quantised types only (docs/model-format.md, "Quantised tensors"). kQ8: float32, one for each
  // column, or one for each row if `scale_rows`. kQ4: bf16 [ceil(rows / 32), cols].
  const void* scales = nullptr;
  bool scale_rows = false;
};

// A weight matrix [in, out] in the layout of the backend that packed it. Immutable.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  DataType type() const { return type_; }
  // Bytes that one pass over the matrix reads, scales included.
  int64_t bytes() const { return bytes_; }

 protected:
  Matrix(int64_t in, int64_t out, DataType type)
      : Matrix(in, out, type, MatrixBytes(in, out, type)) {}
  Matrix(int64_t in, int64_t out, DataType type, int64_t bytes)
      : in_(in), out_(out), type_(type), bytes_(bytes) {}

 private:
  int64_t in_, out_;
  DataType type_;
  int64_t bytes_;
};

// kLayer: (x - mean) / sqrt(variance + epsilon) * scale + bias, biased variance. kRms:
// x / sqrt(mean of x^2 + epsilon) * scale.
enum class NormKind { kLayer, kRms };

// A norm of rows of `width` elements.
struct NormWeights {
  const float* scale = nullptr;  // [width]
  const float* bias = nullptr;   // [width]; null in kRms
  NormKind kind = NormKind::kLayer;
  float epsilon = 1e-5f;
};

// gelu in its tanh form, or silu: g / (1 + exp(-g)). kUngatedGelu: gelu of the values themselves,
// and no gate.
enum class GateKind { kGelu, kSilu, kUngatedGelu };

// Columns of MlpWeights::up.
inline int64_t UpColumns(GateKind gate, int64_t hidden) {
  return gate == GateKind::kUngatedGelu ? hidden : 2 * hidden;
}

// An MLP: up [D, 2 hidden] yields [u, g], down [hidden, D] takes u * gate(g); without a gate up [D,
// hidden] yields u, and down takes gelu(u). A norm of its input.
struct MlpWeights {
  NormWeights norm;  // [D]
  const Matrix* up = nullptr;
  const Matrix* down = nullptr;
  GateKind gate = GateKind::kGelu;
  const float* up_bias = nullptr;    // of up's columns, or null
  const float* down_bias = nullptr;  // [D], or null
};

// The norms of heads of queries and keys, each [d] (Backend::RopeAndNorms).
struct HeadNorms {
  NormWeights q, k;
  bool before_rotation = false;
};

// The learned sketch g (docs/attention.md): two branches of two levels, each level
// x -> LayerNorm(x) up -> gelu -> down. g(x) = sqrt(r) tanh(x1 * x2 / sqrt(r)), x1 and x2 the
// outputs of the branches.
struct SketchNetwork {
  struct Level {
    NormWeights norm;    // [in]
    const Matrix* up;    // [in, 8 r]
    const Matrix* down;  // [8 r, r]
  };
  Level branch[2][2];  // [branch][level]; in = d at level 0, r at level 1
  int input = 0;       // d
  int size = 0;        // r
};

// The random sketch f (docs/attention.md), of degree 2^levels: level 0 holds 2^levels matrices
// [d, r], level l holds 2^(levels - l) matrices [r, r]. Each level multiplies its products in
// pairs, which halves the number of vectors, until one is left. The matrices are always kF32.
struct RandomSketch {
  std::span<const std::span<const Matrix* const>> levels;
  int input = 0;  // d
  int size = 0;   // r
};

}  // namespace polysketch
