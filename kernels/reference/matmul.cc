#include <algorithm>

#include "base/check.h"
#include "base/half.h"
#include "kernels/host_matrix.h"
#include "kernels/quantize.h"
#include "kernels/reference/backend.h"
#include "kernels/reference/matrix.h"
#include "kernels/reference/row.h"

namespace polysketch::reference {
namespace {

float RoundTo(DataType type, float value) {
  switch (type) {
    case DataType::kF32:
      return value;
    case DataType::kF16:
      return F16ToFloat(FloatToF16(value));
    case DataType::kBf16:
      return Bf16ToFloat(FloatToBf16(value));
    case DataType::kQ8:
    case DataType::kQ4:
      break;  // quantised by columns
  }
  return value;
}

void PackColumnQ8(const HostMatrix& w, bool transpose, int64_t n, ReferenceMatrix* matrix) {
  std::vector<float> column(matrix->in());
  std::vector<int8_t> q(matrix->in());
  const float scale = QuantizeColumnQ8(w, transpose, matrix->in(), n, column.data(), q.data());
  for (int64_t k = 0; k < matrix->in(); ++k) {
    matrix->at(k, n) = q[k];
    matrix->scale(k, n) = scale;
  }
}

void PackColumnQ4(const HostMatrix& w, bool transpose, int64_t n, ReferenceMatrix* matrix) {
  for (int64_t first = 0; first < matrix->in(); first += kQ4Group) {
    const int64_t count = std::min(kQ4Group, matrix->in() - first);
    int8_t q[kQ4Group];
    const float scale = Bf16ToFloat(QuantizeColumnGroupQ4(w, transpose, first, count, n, q));
    for (int64_t k = 0; k < count; ++k) {
      matrix->at(first + k, n) = q[k];
      matrix->scale(first + k, n) = scale;
    }
  }
}

// Integers of activations times integers of weights, each times its scale.
Row MultiplyRowQuantized(const Row& x, const ReferenceMatrix& matrix) {
  const std::vector<float> values(x.begin(), x.end());
  const QuantScale scale = QuantScale::Of(LargestMagnitude(values.data(), matrix.in(), 1));
  Row y(matrix.out());
  for (int64_t i = 0; i < matrix.in(); ++i) {
    const double q = Quantize(values[i], scale);
    for (int64_t o = 0; o < matrix.out(); ++o) {
      y[o] += q * matrix.at(i, o) * static_cast<double>(matrix.scale(i, o));
    }
  }
  for (double& value : y) value *= static_cast<double>(scale.scale);
  return y;
}

}  // namespace

std::unique_ptr<const Matrix> ReferenceBackend::PackMatrix(const HostMatrix& w, bool transpose,
                                                           DataType type) {
  const int64_t in = transpose ? w.cols : w.rows;
  const int64_t out = transpose ? w.rows : w.cols;
  auto matrix = std::make_unique<ReferenceMatrix>(in, out, type);
  PS_CHECK(!IsQuantized(type) || in <= kQuantLongest) << in;
  for (int64_t o = 0; o < out; ++o) {
    if (type == DataType::kQ8) {
      PackColumnQ8(w, transpose, o, matrix.get());
    } else if (type == DataType::kQ4) {
      PackColumnQ4(w, transpose, o, matrix.get());
    } else {
      for (int64_t i = 0; i < in; ++i) {
        matrix->at(i, o) = RoundTo(type, ReadPacked(w, transpose, i, o));
      }
    }
  }
  return matrix;
}

const ReferenceMatrix& Cast(const Matrix& matrix) {
  const auto* mine = dynamic_cast<const ReferenceMatrix*>(&matrix);
  PS_CHECK(mine != nullptr) << "a matrix of another backend";
  return *mine;
}

Row MultiplyRow(const Row& x, const Matrix& w) {
  const ReferenceMatrix& matrix = Cast(w);
  PS_CHECK(static_cast<int64_t>(x.size()) == w.in()) << x.size() << " != " << w.in();
  if (IsQuantized(w.type())) return MultiplyRowQuantized(x, matrix);
  Row y(w.out());
  for (int64_t i = 0; i < w.in(); ++i) {
    const float* row = matrix.row(i);
    for (int64_t o = 0; o < w.out(); ++o) y[o] += x[i] * row[o];
  }
  return y;
}

void ReferenceBackend::MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias,
                              bool accumulate, float* out) {
  for (int64_t m = 0; m < rows; ++m) {
    const Row y = MultiplyRow(Row(x + m * w.in(), x + (m + 1) * w.in()), w);
    float* out_row = out + m * w.out();
    for (int64_t o = 0; o < w.out(); ++o) {
      double value = y[o];
      if (bias != nullptr) value += bias[o];
      if (accumulate) value += out_row[o];
      out_row[o] = static_cast<float>(value);
    }
  }
}

}  // namespace polysketch::reference
