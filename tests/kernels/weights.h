// Weights as a checkpoint holds them, at an odd address, and the structures that ops take, packed
// by one backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/half.h"
#include "kernels/backend.h"
#include "kernels/quantize.h"
#include "tests/testing/random.h"

namespace polysketch::testing {

class HostWeights {
 public:
  HostWeights(const std::vector<float>& values, int64_t rows, int64_t cols, DataType type)
      : rows_(rows), cols_(cols), type_(type), bytes_(values.size() * DataTypeBytes(type) + 1) {
    for (size_t i = 0; i < values.size(); ++i) {
      char* out = bytes_.data() + 1 + i * DataTypeBytes(type);
      if (type == DataType::kF32) {
        std::memcpy(out, &values[i], 4);
      } else {
        const uint16_t bits =
            type == DataType::kF16 ? FloatToF16(values[i]) : FloatToBf16(values[i]);
        std::memcpy(out, &bits, 2);
      }
    }
  }
  HostMatrix matrix() const { return {bytes_.data() + 1, type_, rows_, cols_}; }

 private:
  int64_t rows_, cols_;
  DataType type_;
  std::vector<char> bytes_;
};

// A matrix quantised as docs/model-format.md stores it, q8 or q4, at odd addresses.
class StoredQuantized {
 public:
  StoredQuantized(const std::vector<float>& values, int64_t rows, int64_t cols, DataType type)
      : rows_(rows), cols_(cols), type_(type) {
    if (type == DataType::kQ8) {
      integers_.resize(1 + rows * cols);
      scales_.resize(1 + cols * 4);
      for (int64_t n = 0; n < cols; ++n) {
        const QuantScale scale = QuantScale::Of(LargestMagnitude(&values[n], rows, cols));
        std::memcpy(&scales_[1 + n * 4], &scale.scale, 4);
        for (int64_t k = 0; k < rows; ++k) {
          integers_[1 + k * cols + n] = Quantize(values[k * cols + n], scale);
        }
      }
      return;
    }
    const int64_t groups = Q4Groups(rows), half = kQ4Group / 2;
    integers_.resize(1 + groups * half * cols);
    scales_.resize(1 + groups * cols * 2);
    for (int64_t n = 0; n < cols; ++n) {
      for (int64_t g = 0; g < groups; ++g) {
        float x[kQ4Group] = {};
        int8_t q[kQ4Group] = {};
        const int64_t count = std::min(kQ4Group, rows - g * kQ4Group);
        for (int64_t k = 0; k < count; ++k) x[k] = values[(g * kQ4Group + k) * cols + n];
        const uint16_t scale = QuantizeGroupQ4(x, count, q);
        std::memcpy(&scales_[1 + (g * cols + n) * 2], &scale, 2);
        for (int64_t j = 0; j < half; ++j) {
          integers_[1 + (g * half + j) * cols + n] =
              static_cast<char>((q[j] + 8) | ((q[half + j] + 8) << 4));
        }
      }
    }
  }
  HostMatrix matrix() const {
    return {integers_.data() + 1, type_, rows_, cols_, scales_.data() + 1, false};
  }

 private:
  int64_t rows_, cols_;
  DataType type_;
  std::vector<char> integers_, scales_;
};

// A sketch network with random weights.
class NetworkWeights {
 public:
  // `gain` multiplies the last matrices.
  NetworkWeights(int d, int r, DataType type, Random* random, double gain = 2) : d_(d), r_(r) {
    for (auto& branch : levels_) {
      for (int level = 0; level < 2; ++level) {
        const int in = level == 0 ? d : r, hidden = 8 * r;
        branch[level].scale = random->Normals(in, 0.2, 1);
        branch[level].bias = random->Normals(in, 0.2);
        const auto up = random->Normals(in * hidden, 1 / std::sqrt(in));
        const auto down = random->Normals(hidden * r, gain / std::sqrt(hidden));
        branch[level].up = std::make_unique<HostWeights>(up, in, hidden, type);
        branch[level].down = std::make_unique<HostWeights>(down, hidden, r, type);
      }
    }
  }

  struct Packed {
    std::vector<std::unique_ptr<const Matrix>> matrices;
    SketchNetwork network;
  };
  // Valid while this object lives.
  std::unique_ptr<Packed> Pack(Backend& backend, DataType type) const {
    auto packed = std::make_unique<Packed>();
    const auto pack = [&](const HostWeights& w) {
      packed->matrices.push_back(backend.PackMatrix(w.matrix(), false, type));
      return packed->matrices.back().get();
    };
    for (int branch = 0; branch < 2; ++branch) {
      for (int level = 0; level < 2; ++level) {
        const Level& weights = levels_[branch][level];
        packed->network.branch[branch][level] = {
            {weights.scale.data(), weights.bias.data()}, pack(*weights.up), pack(*weights.down)};
      }
    }
    packed->network.input = d_;
    packed->network.size = r_;
    return packed;
  }

 private:
  struct Level {
    std::vector<float> scale, bias;
    std::unique_ptr<HostWeights> up, down;
  };
  int d_, r_;
  Level levels_[2][2];
};

// A random sketch of degree 2^levels.
class SketchWeights {
 public:
  SketchWeights(int d, int r, int levels, DataType type, Random* random) : d_(d), r_(r) {
    for (int level = 0; level < levels; ++level) {
      const int in = level == 0 ? d : r;
      levels_.emplace_back();
      for (int i = 0; i < 1 << (levels - level); ++i) {
        levels_.back().emplace_back(random->Normals(in * r, std::pow(r, -0.25)), in, r, type);
      }
    }
  }
  // The given matrices: each [d, r] at level 0, each [r, r] at level 1, if there is one.
  SketchWeights(int d, int r, const std::vector<std::vector<float>>& level0,
                const std::vector<std::vector<float>>& level1 = {})
      : d_(d), r_(r), levels_(level1.empty() ? 1 : 2) {
    for (const auto& matrix : level0) levels_[0].emplace_back(matrix, d, r, DataType::kF32);
    for (const auto& matrix : level1) levels_[1].emplace_back(matrix, r, r, DataType::kF32);
  }

  struct Packed {
    std::vector<std::unique_ptr<const Matrix>> matrices;
    std::vector<std::vector<const Matrix*>> pointers;
    std::vector<std::span<const Matrix* const>> spans;
    RandomSketch sketch;
  };
  std::unique_ptr<Packed> Pack(Backend& backend, DataType type) const {
    auto packed = std::make_unique<Packed>();
    for (const auto& level : levels_) {
      packed->pointers.emplace_back();
      for (const HostWeights& w : level) {
        packed->matrices.push_back(backend.PackMatrix(w.matrix(), false, type));
        packed->pointers.back().push_back(packed->matrices.back().get());
      }
    }
    for (const auto& level : packed->pointers) packed->spans.emplace_back(level);
    packed->sketch = {packed->spans, d_, r_};
    return packed;
  }

 private:
  int d_, r_;
  std::vector<std::vector<HostWeights>> levels_;
};

}  // namespace polysketch::testing
