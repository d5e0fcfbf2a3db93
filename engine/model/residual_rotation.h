// A rotation of the residual stream, for products whose activations are quantised by row.
//
// A few channels of the residual stream of a transformer are a hundred times larger than the
// others. They alone set the scale of a row, and the others lose their bits. An orthogonal matrix R
// spreads each channel over all of them. RMSNorm without its scale commutes with R. So the model
// computes the same function after its weights have changed once, when they are loaded:
//   E -> E R                             the embedding
//   W -> R^T diag(s) W                   each matrix [D, out] that reads the stream, after a norm with scale s
//   W -> W R, b -> b R                   each matrix [in, D] and bias that write to it
//   s -> 1
// and a tied embedding takes rows that were multiplied by R^T diag(s) R, s the scale of the final
// norm.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace polysketch {

// R = diag(signs) B: fixed random signs, then for each prime factor p of the width the symmetric
// orthogonal matrix [1 1; 1 -1] / sqrt(2) (p = 2) or I - 2/p (odd p; all elements of order 1 /
// sqrt(p) for p = 3), as a Kronecker product. Computed in float64 in a fixed order, without
// functions of libm whose last bit may differ: the same weights give the same bits on every
// machine.
class ResidualRotation {
 public:
  explicit ResidualRotation(int width);

  int width() const { return width_; }

  // v -> v diag(scale) R for `count` vectors [width]; `scale`: [width], or empty for ones.
  // Rows of a matrix [count, width].
  void RotateRows(std::span<float> matrix, std::span<const float> scale, ThreadPool* pool) const {
    Rotate(matrix, width_, 1, scale, pool);
  }
  // Columns of a matrix [width, count].
  void RotateColumns(std::span<float> matrix, ThreadPool* pool) const {
    Rotate(matrix, 1, static_cast<int64_t>(matrix.size()) / width_, {}, pool);
  }
  // R^T diag(scale) R [width, width], which is symmetric.
  std::vector<float> Conjugate(std::span<const float> scale, ThreadPool* pool) const;

 private:
  // Element k of vector i is values[i * vector_stride + k * element_stride].
  void Rotate(std::span<float> values, int64_t vector_stride, int64_t element_stride,
              std::span<const float> scale, ThreadPool* pool) const;

  int width_;
  std::vector<int> factors_;   // primes, whose product is width_
  std::vector<double> signs_;  // [width]; of magnitude 2^(-k/2), k factors of 2
};

}  // namespace polysketch
