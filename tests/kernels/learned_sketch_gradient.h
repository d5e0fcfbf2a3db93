// The learned sketch and its gradients in float64 by the definition (docs/attention.md), and the
// deviation that roundings of the kernels' operands bring.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/testing/random.h"

namespace polysketch::testing {

// Parameters of the network, or their gradients, laid out as torch.nn.Linear's.
struct SketchLevelValues {
  std::vector<double> scale, bias;  // [in]
  std::vector<double> up, down;     // [8 r][in], [r][8 r]
};
struct SketchValues {
  SketchLevelValues level[2][2];  // [branch][level]

  // Calls visit(values of *this, values of other) for each array.
  template <typename Other, typename Visit>
  void ForArrays(Other& other, const Visit& visit) {
    for (int branch = 0; branch < 2; ++branch) {
      for (int i = 0; i < 2; ++i) {
        auto &a = level[branch][i], &b = other.level[branch][i];
        visit(a.scale, b.scale);
        visit(a.bias, b.bias);
        visit(a.up, b.up);
        visit(a.down, b.down);
      }
    }
  }
};

struct SketchProblem {
  int d = 0, r = 0;
  int64_t rows = 0;
  SketchValues parameters;
  std::vector<double> x, g;  // [rows][d]; [rows][r], the gradient by the sketches
};
struct SketchResult {
  std::vector<double> out, x_gradient;  // [rows][r], [rows][d]
  SketchValues gradients;
};

// What a step keeps of a value. Exact: all.
struct ExactOperands {
  double Bf16(double x) { return x; }
  double Tanh(double x) { return std::tanh(x); }
};
// A rounding to bf16 is off by at most 2^-8 of the value, uniformly at worst, the kernels' tanh by
// 2^-11.
struct RoundedOperands {
  Random random;
  double Bf16(double x) { return x * (1 + random.Uniform(-0x1p-8, 0x1p-8)); }
  double Tanh(double x) { return std::tanh(x) * (1 + random.Uniform(-0x1p-11, 0x1p-11)); }
};

template <typename Operands>
class SketchDefinition {
 public:
  SketchDefinition(const SketchProblem& problem, Operands operands)
      : problem_(problem), operands_(operands), hidden_(8 * problem.r) {}

  SketchResult Run() {
    const int d = problem_.d, r = problem_.r;
    SketchResult result;
    result.gradients = problem_.parameters;
    result.gradients.ForArrays(result.gradients, [](auto& x, auto&) { x.assign(x.size(), 0); });
    for (int64_t row = 0; row < problem_.rows; ++row) {
      const Row x(&problem_.x[row * d], &problem_.x[row * d] + d);
      Row results[2][2];  // [level][branch], as kept
      double joined[2][256];
      for (int branch = 0; branch < 2; ++branch) {
        const auto& levels = problem_.parameters.level[branch];
        const Row middle = Down(levels[0], Hidden(levels[0], x));
        const Row last = Down(levels[1], Hidden(levels[1], middle));
        for (int i = 0; i < r; ++i) joined[branch][i] = last[i];
        results[0][branch] = Rounded(middle);
        results[1][branch] = Rounded(last);
      }
      const double root = std::sqrt(r);
      Row gradient[2] = {Row(r), Row(r)};
      for (int i = 0; i < r; ++i) {
        result.out.push_back(
            operands_.Bf16(root * operands_.Tanh(joined[0][i] * joined[1][i] / root)));
        for (int branch = 0; branch < 2; ++branch) {
          const double own = results[1][branch][i], other = results[1][1 - branch][i];
          const double tanh = operands_.Tanh(own * other / root);
          gradient[branch][i] = problem_.g[row * r + i] * (1 - tanh * tanh) * other;
        }
      }
      Row of_x(d);
      for (int branch = 0; branch < 2; ++branch) {
        const auto& levels = problem_.parameters.level[branch];
        auto& to = result.gradients.level[branch];
        const Row middle = Backward(levels[1], results[0][branch], gradient[branch], &to[1]);
        const Row part = Backward(levels[0], x, middle, &to[0]);
        for (int i = 0; i < d; ++i) of_x[i] = operands_.Bf16(of_x[i] + part[i]);
      }
      result.x_gradient.insert(result.x_gradient.end(), of_x.begin(), of_x.end());
    }
    return result;
  }

 private:
  using Row = std::vector<double>;

  Row Rounded(const Row& x) {
    Row y;
    for (const double value : x) y.push_back(operands_.Bf16(value));
    return y;
  }

  // (x - mean) / sigma; stores 1 / sigma.
  static Row Standardised(const Row& x, double* inverse) {
    double mean = 0, variance = 0;
    for (const double value : x) mean += value / static_cast<double>(x.size());
    for (const double value : x) {
      variance += (value - mean) * (value - mean) / static_cast<double>(x.size());
    }
    *inverse = 1 / std::sqrt(variance + 1e-5);
    Row y;
    for (const double value : x) y.push_back((value - mean) * *inverse);
    return y;
  }

  Row Normed(const SketchLevelValues& level, const Row& standardised) {
    Row y(standardised.size());
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] = operands_.Bf16(standardised[i] * level.scale[i] + level.bias[i]);
    }
    return y;
  }

  // gelu of up normed, and its slopes if they are wanted.
  Row Gelu(const SketchLevelValues& level, const Row& normed, Row* slopes) {
    Row h(hidden_);
    for (int o = 0; o < hidden_; ++o) {
      double s = 0;
      for (size_t i = 0; i < normed.size(); ++i) s += level.up[o * normed.size() + i] * normed[i];
      const double factor = std::sqrt(2 / M_PI);
      const double tanh = operands_.Tanh(factor * (s + 0.044715 * s * s * s));
      h[o] = operands_.Bf16(s / 2 * (1 + tanh));
      if (slopes == nullptr) continue;
      slopes->push_back(0.5 * (1 + tanh) +
                        s / 2 * (1 - tanh * tanh) * factor * (1 + 3 * 0.044715 * s * s));
    }
    return h;
  }

  Row Hidden(const SketchLevelValues& level, const Row& x) {
    double inverse;
    return Gelu(level, Normed(level, Standardised(x, &inverse)), nullptr);
  }

  Row Down(const SketchLevelValues& level, const Row& h) const {
    Row y(problem_.r);
    for (int o = 0; o < problem_.r; ++o) {
      for (int i = 0; i < hidden_; ++i) y[o] += level.down[o * hidden_ + i] * h[i];
    }
    return y;
  }

  // Returns the gradient by x, and adds those of the parameters.
  Row Backward(const SketchLevelValues& level, const Row& x, const Row& gradient,
               SketchLevelValues* to) {
    double inverse;
    const Row standardised = Standardised(x, &inverse), normed = Normed(level, standardised);
    Row slopes;
    const Row h = Gelu(level, normed, &slopes), g = Rounded(gradient);
    const size_t in = x.size();
    Row of_normed(in);
    for (int o = 0; o < hidden_; ++o) {
      double of_h = 0;
      for (int i = 0; i < problem_.r; ++i) {
        of_h += level.down[i * hidden_ + o] * g[i];
        to->down[i * hidden_ + o] += g[i] * h[o];
      }
      const double of_s = operands_.Bf16(of_h * slopes[o]);
      for (size_t i = 0; i < in; ++i) {
        to->up[o * in + i] += of_s * normed[i];
        of_normed[i] += of_s * level.up[o * in + i];
      }
    }
    double mean = 0, along = 0;
    for (size_t i = 0; i < in; ++i) {
      to->scale[i] += of_normed[i] * standardised[i];
      to->bias[i] += of_normed[i];
      of_normed[i] *= level.scale[i];
      mean += of_normed[i] / static_cast<double>(in);
      along += of_normed[i] * standardised[i] / static_cast<double>(in);
    }
    for (size_t i = 0; i < in; ++i) {
      of_normed[i] = operands_.Bf16(inverse * (of_normed[i] - mean - standardised[i] * along));
    }
    return of_normed;
  }

  const SketchProblem& problem_;
  Operands operands_;
  const int hidden_;
};

inline SketchResult ExactSketch(const SketchProblem& problem) {
  return SketchDefinition<ExactOperands>(problem, {}).Run();
}

// The root of the mean squared difference from `exact` of every element, over runs whose roundings
// are drawn.
inline SketchResult SketchDeviations(const SketchProblem& problem, const SketchResult& exact,
                                     int runs) {
  SketchResult squares = exact;
  const auto clear = [](auto& x, auto&) { x.assign(x.size(), 0); };
  const auto each = [](SketchResult& a, auto& b, const auto& visit) {
    visit(a.out, b.out);
    visit(a.x_gradient, b.x_gradient);
    a.gradients.ForArrays(b.gradients, visit);
  };
  each(squares, squares, clear);
  for (int run = 0; run < runs; ++run) {
    SketchResult difference =
        SketchDefinition<RoundedOperands>(problem, {Random(1000 + run)}).Run();
    each(difference, exact, [](auto& x, const auto& y) {
      for (size_t i = 0; i < x.size(); ++i) x[i] -= y[i];
    });
    each(squares, difference, [&](auto& x, const auto& y) {
      for (size_t i = 0; i < x.size(); ++i) x[i] += y[i] * y[i] / runs;
    });
  }
  each(squares, squares, [](auto& x, auto&) {
    for (double& value : x) value = std::sqrt(value);
  });
  return squares;
}

}  // namespace polysketch::testing
