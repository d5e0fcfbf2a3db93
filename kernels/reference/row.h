// Parts of ops that other ops use too, on one row in float64.
#pragma once

#include <vector>

#include "kernels/matrix.h"

namespace polysketch::reference {

using Row = std::vector<double>;

Row NormRow(const Row& x, const NormWeights& norm);
Row MultiplyRow(const Row& x, const Matrix& w);
// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
double Gelu(double x);
// x / (1 + exp(-x))
double Silu(double x);

}  // namespace polysketch::reference
