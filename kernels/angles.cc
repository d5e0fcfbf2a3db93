#include "kernels/angles.h"

#include <cmath>
#include <cstddef>

namespace polysketch {

std::vector<float> RopeThetas(int head_dim) {
  std::vector<float> thetas(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    thetas[i] = static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim));
  }
  return thetas;
}

std::vector<float> PositionThetas(int width) {
  const int half = width / 2;
  std::vector<float> thetas(half);
  for (int i = 0; i < half; ++i) {
    thetas[i] = static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / half));
  }
  return thetas;
}

void CosSin(const std::vector<float>& thetas, int64_t position, float* cos_out, float* sin_out) {
  for (size_t i = 0; i < thetas.size(); ++i) {
    const double angle = static_cast<double>(thetas[i]) * static_cast<double>(position);
    cos_out[i] = static_cast<float>(std::cos(angle));
    sin_out[i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace polysketch
