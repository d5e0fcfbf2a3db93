// Angles of RoPE and of the sinusoidal position encoding, shared by the backends: exact for every
// position a double can hold. theta is rounded to float32 as in the authors' code; theta * t is
// then exact in double (24 + 29 bits), so sin and cos see the true angle even at millions of
// tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace polysketch {

// theta_i = 10000^(-2i/d), i < d/2, each rounded to float32.
std::vector<float> RopeThetas(int head_dim);
// theta_i = 10000^(-i/(D/2)), i < D/2, each rounded to float32.
std::vector<float> PositionThetas(int width);

// cos_out[i], sin_out[i] of position * thetas[i], rounded once to float32.
void CosSin(const std::vector<float>& thetas, int64_t position, float* cos_out, float* sin_out);

}  // namespace polysketch
