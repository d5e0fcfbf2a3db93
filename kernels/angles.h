// Angles of RoPE and of the sinusoidal position encoding, for all backends. theta is rounded to
// float32, as in the authors' code, so theta * t is exact in double for positions below 2^29, and
// sine and cosine are those of the exact angle.
#pragma once

#include <cstdint>
#include <vector>

namespace polysketch {

// theta_i = 10000^(-2i/d), i < d/2, each rounded to float32.
std::vector<float> RopeThetas(int head_dim);
// theta_i = 10000^(-i/(D/2)), i < D/2, each rounded to float32.
std::vector<float> PositionThetas(int width);

// Writes the cosine and sine of position * thetas[i], each rounded once to float32. cos_out,
// sin_out [thetas.size()].
void CosSin(const std::vector<float>& thetas, int64_t position, float* cos_out, float* sin_out);

}  // namespace polysketch
