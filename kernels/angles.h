// Angles of RoPE and of the sinusoidal position encoding, for all backends. theta is rounded to
// float32, as in the authors' code, so theta * t is exact in double for positions below 2^29, and
// sine and cosine are those of the exact angle. From there on they are those of the rounded angle.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polysketch {

inline constexpr int64_t kExactPositions = int64_t{1} << 29;

// theta_i = base^(-2i/d), i < d/2, each rounded to float32.
std::vector<float> RopeThetas(int head_dim, double base = 10000);
// theta_i = 10000^(-i/(D/2)), i < D/2, each rounded to float32.
std::vector<float> PositionThetas(int width);

// Writes the cosine and sine of position * thetas[i], each rounded once to float32. cos_out,
// sin_out [thetas.size()].
void CosSin(std::span<const float> thetas, int64_t position, float* cos_out, float* sin_out);

// The same for many neighbouring positions, at a fraction of the time: the rotation at a multiple
// of kRun is turned by one of kRun rotations of a table. Both are float64, so that values are right
// to 1e-15 before they are rounded. The bits depend on the position alone.
class Rotations {
 public:
  // A multiple of kRun and its rotations [size()]; a caller keeps it from one position to the next.
  struct Start {
    int64_t position = -1;
    std::vector<double> cos, sin;
  };

  explicit Rotations(std::vector<float> thetas);
  int64_t size() const { return static_cast<int64_t>(thetas_.size()); }
  const std::vector<float>& thetas() const { return thetas_; }
  // position: not negative. cos_out, sin_out [size()].
  void CosSin(int64_t position, Start* start, float* cos_out, float* sin_out) const;

 private:
  static constexpr int64_t kRun = 16;
  std::vector<float> thetas_;
  std::vector<double> cos_, sin_;  // [kRun][size()]
};

}  // namespace polysketch
