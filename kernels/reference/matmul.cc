#include "base/check.h"
#include "base/half.h"
#include "kernels/host_matrix.h"
#include "kernels/quantize.h"
#include "kernels/reference/matrix.h"
#include "kernels/reference/ops.h"

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
      return value;  // quantised by columns, once they are complete
  }
  return value;
}

void QuantizeColumns(ReferenceMatrix* matrix) {
  PS_CHECK(matrix->in() <= kQuantLongest) << matrix->in();
  for (int64_t o = 0; o < matrix->out(); ++o) {
    const QuantScale scale =
        QuantScale::Of(LargestMagnitude(matrix->row(0) + o, matrix->in(), matrix->out()));
    for (int64_t i = 0; i < matrix->in(); ++i) matrix->at(i, o) = Quantize(matrix->at(i, o), scale);
    matrix->scales().push_back(scale.scale);
  }
}

// Integers of activations times integers of weights, scaled once.
Row MultiplyRowQ8(const Row& x, const ReferenceMatrix& matrix) {
  const std::vector<float> values(x.begin(), x.end());
  const QuantScale scale = QuantScale::Of(LargestMagnitude(values.data(), matrix.in(), 1));
  Row y(matrix.out());
  for (int64_t i = 0; i < matrix.in(); ++i) {
    const double q = Quantize(values[i], scale);
    for (int64_t o = 0; o < matrix.out(); ++o) y[o] += q * matrix.at(i, o);
  }
  for (int64_t o = 0; o < matrix.out(); ++o) {
    y[o] *= static_cast<double>(matrix.scales()[o]) * static_cast<double>(scale.scale);
  }
  return y;
}

}  // namespace

std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose, DataType type) {
  const int64_t in = transpose ? w.cols : w.rows;
  const int64_t out = transpose ? w.rows : w.cols;
  auto matrix = std::make_unique<ReferenceMatrix>(in, out, type);
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t o = 0; o < out; ++o) {
      matrix->at(i, o) = RoundTo(type, ReadElement(w, transpose ? o * w.cols + i : i * w.cols + o));
    }
  }
  if (type == DataType::kQ8) QuantizeColumns(matrix.get());
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
  if (w.type() == DataType::kQ8) return MultiplyRowQ8(x, matrix);
  Row y(w.out());
  for (int64_t i = 0; i < w.in(); ++i) {
    const float* row = matrix.row(i);
    for (int64_t o = 0; o < w.out(); ++o) y[o] += x[i] * row[o];
  }
  return y;
}

void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
            float* out) {
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
