// The learned sketch for training through its C interface: outputs and gradients against the float64
// definition, which is compared with finite differences; the bits of serving, of any schedule and of
// rows among other rows; refusals.
#include "kernels/cuda/training/polysketch_sketch.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/half.h"
#include "kernels/cuda/training/polysketch_attention.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/device_array.h"
#include "tests/kernels/learned_sketch_gradient.h"
#include "tests/kernels/noisy.h"
#include "tests/kernels/weights.h"

namespace polysketch {
namespace {

using testing::Random;
using testing::SketchLevelValues;
using testing::SketchProblem;
using testing::SketchValues;
using testing::TestArray;

double AsBf16(double x) { return Bf16ToFloat(FloatToBf16(static_cast<float>(x))); }

// Rows and gradients of bf16, float32 parameters. The last matrices are large enough for the tanh of
// the join to bend.
SketchProblem RandomSketchProblem(int d, int r, int64_t rows, Random* random) {
  SketchProblem problem{d, r, rows, {}, {}, {}};
  const auto draw = [&](size_t size, double scale, double mean = 0) {
    std::vector<double> values(size);
    for (double& x : values) x = static_cast<float>(mean + scale * random->Normal());
    return values;
  };
  for (auto& branch : problem.parameters.level) {
    for (int level = 0; level < 2; ++level) {
      const int in = level == 0 ? d : r, hidden = 8 * r;
      branch[level] = {draw(in, 0.2, 1), draw(in, 0.2), draw(hidden * in, 1 / std::sqrt(in)),
                       draw(hidden * r, 2 / std::sqrt(hidden))};
    }
  }
  problem.x = draw(rows * d, 1);
  problem.g = draw(rows * r, 1);
  for (auto* values : {&problem.x, &problem.g}) {
    for (double& x : *values) x = AsBf16(x);
  }
  return problem;
}

// The problem with the matrices that the kernels multiply.
SketchProblem Rounded(SketchProblem problem) {
  for (auto& branch : problem.parameters.level) {
    for (SketchLevelValues& level : branch) {
      for (auto* matrix : {&level.up, &level.down}) {
        for (double& x : *matrix) x = AsBf16(x);
      }
    }
  }
  return problem;
}

// Parameters, or their gradients, on the device.
class DeviceNetwork {
 public:
  explicit DeviceNetwork(const SketchValues& values) {
    for (int branch = 0; branch < 2; ++branch) {
      for (int level = 0; level < 2; ++level) {
        const SketchLevelValues& from = values.level[branch][level];
        network_.level[branch][level] = {Add(from.scale), Add(from.bias), Add(from.up),
                                         Add(from.down)};
      }
    }
  }
  const polysketch_sketch_network& network() const { return network_; }
  // All arrays, in order.
  std::vector<std::vector<float>> ToHost() const {
    std::vector<std::vector<float>> values;
    for (const auto& array : arrays_) values.push_back(array->ToHost());
    return values;
  }

 private:
  float* Add(const std::vector<double>& values) {
    arrays_.push_back(
        std::make_unique<TestArray<float>>(std::vector<float>(values.begin(), values.end())));
    return arrays_.back()->data();
  }
  std::vector<std::unique_ptr<TestArray<float>>> arrays_;
  polysketch_sketch_network network_{};
};

std::vector<uint16_t> Halves(const std::vector<double>& values) {
  std::vector<uint16_t> halves;
  for (const double x : values) halves.push_back(FloatToBf16(static_cast<float>(x)));
  return halves;
}
std::vector<float> Floats(const std::vector<uint16_t>& halves) {
  std::vector<float> values;
  for (const uint16_t x : halves) values.push_back(Bf16ToFloat(x));
  return values;
}

struct DeviceResult {
  std::vector<float> out, x_gradient;
  std::vector<std::vector<float>> gradients;  // scale, bias, up, down of each level and branch
};

DeviceResult RunSketch(const SketchProblem& problem) {
  const polysketch_sketch_shape shape{problem.rows, problem.d, problem.r};
  size_t kept_bytes = 0, workspace_bytes = 0;
  EXPECT_EQ(polysketch_sketch_sizes(&shape, &kept_bytes, &workspace_bytes), POLYSKETCH_ATTENTION_OK)
      << polysketch_attention_error();
  const DeviceNetwork network(problem.parameters), gradients(problem.parameters);
  const TestArray<uint16_t> x(Halves(problem.x)), g(Halves(problem.g));
  const TestArray<uint16_t> out(problem.g.size()), x_gradient(problem.x.size());
  const TestArray<uint8_t> kept(kept_bytes), workspace(workspace_bytes);
  EXPECT_EQ(polysketch_sketch_forward(&shape, &network.network(), x.data(), out.data(), kept.data(),
                                      nullptr),
            POLYSKETCH_ATTENTION_OK)
      << polysketch_attention_error();
  EXPECT_EQ(polysketch_sketch_backward(&shape, &network.network(), x.data(), kept.data(), g.data(),
                                       x_gradient.data(), &gradients.network(), workspace.data(),
                                       workspace_bytes, nullptr),
            POLYSKETCH_ATTENTION_OK)
      << polysketch_attention_error();
  return {Floats(out.ToHost()), Floats(x_gradient.ToHost()), gradients.ToHost()};
}

using SketchTrainingTest = testing::CudaTest;

TEST_F(SketchTrainingTest, TheDefinitionHasTheFiniteDifferences) {
  Random random(1);
  SketchProblem problem = RandomSketchProblem(6, 3, 4, &random);
  const auto loss = [&] {
    const testing::SketchResult result = testing::ExactSketch(problem);
    double sum = 0;
    for (size_t i = 0; i < problem.g.size(); ++i) sum += problem.g[i] * result.out[i];
    return sum;
  };
  testing::SketchResult result = testing::ExactSketch(problem);
  const double step = 1e-5;
  const auto compare = [&](std::vector<double>& values, const std::vector<double>& gradient) {
    ASSERT_EQ(values.size(), gradient.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = values[i];
      values[i] = value + step;
      const double above = loss();
      values[i] = value - step;
      const double below = loss();
      values[i] = value;
      // The error of a central difference: step^2 / 6 of the third derivative, 2^-52 loss / step.
      EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-6) << "element " << i;
    }
  };
  compare(problem.x, result.x_gradient);
  problem.parameters.ForArrays(result.gradients, compare);
}

TEST_F(SketchTrainingTest, EveryShapeIsTheDefinition) {
  struct Sizes {
    int d, r;
    int64_t rows;
  };
  Random random(2);
  // Less than a tile, whole tiles, a ragged last one, several thread blocks.
  const std::vector<Sizes> shapes = {
      {32, 16, 1}, {32, 16, 128}, {32, 32, 37}, {64, 16, 45}, {64, 32, 150}};
  for (const auto& [d, r, rows] : shapes) {
    const SketchProblem problem = RandomSketchProblem(d, r, rows, &random);
    const DeviceResult got = RunSketch(problem);
    const SketchProblem rounded = Rounded(problem);
    testing::SketchResult want = testing::ExactSketch(rounded);
    testing::SketchResult deviation = testing::SketchDeviations(rounded, want, 16);
    const std::string what = StrCat(rows, " rows ", d, " to ", r, ": ");
    double worst = Compare(got.out, want.out, deviation.out, what + "out");
    worst =
        std::max(worst, Compare(got.x_gradient, want.x_gradient, deviation.x_gradient, what + "x"));
    size_t array = 0;
    want.gradients.ForArrays(deviation.gradients, [&](const auto& values, const auto& error) {
      const char* names[] = {"scale", "bias", "up", "down"};
      worst = std::max(worst, Compare(got.gradients[array], values, error,
                                      StrCat(what, names[array % 4], " of array ", array)));
      ++array;
    });
    // A tolerance that nothing comes near to would hide faults.
    EXPECT_GT(worst, 0.1) << what;
  }
}

// More tiles than thread blocks, of the same rows again and again: each has the gradient by x of one
// tile, and those of parameters add up.
TEST_F(SketchTrainingTest, SeveralTilesOfAThreadBlock) {
  Random random(6);
  const int tiles = 133, rows = 128;
  const SketchProblem tile = RandomSketchProblem(32, 16, rows, &random);
  SketchProblem all = tile;
  all.rows = rows * tiles;
  for (int i = 1; i < tiles; ++i) {
    all.x.insert(all.x.end(), tile.x.begin(), tile.x.end());
    all.g.insert(all.g.end(), tile.g.begin(), tile.g.end());
  }
  const DeviceResult one = RunSketch(tile), many = RunSketch(all);
  for (size_t i = 0; i < all.x.size(); ++i) {
    ASSERT_EQ(many.x_gradient[i], one.x_gradient[i % tile.x.size()]) << "element " << i;
  }
  for (size_t array = 0; array < one.gradients.size(); ++array) {
    double largest = 0;
    for (const float x : one.gradients[array]) largest = std::max(largest, std::abs(double{x}));
    for (size_t i = 0; i < one.gradients[array].size(); ++i) {
      const double want = double{tiles} * one.gradients[array][i];
      // 133 additions, each rounded (2^-24) at up to the sum; and the second tile's partial sums.
      ASSERT_NEAR(many.gradients[array][i], want,
                  tiles * 0x1p-24 * std::abs(want) + 0x1p-19 * largest)
          << "array " << array << " element " << i;
    }
  }
}

TEST_F(SketchTrainingTest, AnySchedule) {
  Random random(3);
  const SketchProblem problem = RandomSketchProblem(32, 16, 300, &random);
  const DeviceResult want = RunSketch(problem);
  for (int i = 0; i < Scale(3, 20); ++i) {
    testing::SeedSchedule(300 + i);
    const DeviceResult again = RunSketch(problem);
    EXPECT_EQ(again.out, want.out);
    EXPECT_EQ(again.x_gradient, want.x_gradient);
    EXPECT_EQ(again.gradients, want.gradients);
  }
}

// A row has the bits of serving, and its gradient those that it has alone.
TEST_F(SketchTrainingTest, RowsHaveTheBitsOfServing) {
  Random random(4);
  const int d = 64, r = 32;
  const int64_t rows = 70;
  const SketchProblem problem = RandomSketchProblem(d, r, rows, &random);
  const DeviceResult got = RunSketch(problem);

  std::vector<std::unique_ptr<const testing::HostWeights>> weights;
  std::vector<std::unique_ptr<const Matrix>> matrices;
  SketchNetwork network;
  network.input = d;
  network.size = r;
  std::vector<std::vector<float>> kept;
  const auto keep = [&](const std::vector<double>& values) {
    kept.emplace_back(values.begin(), values.end());
    return kept.back().data();
  };
  kept.reserve(8);
  for (int branch = 0; branch < 2; ++branch) {
    for (int level = 0; level < 2; ++level) {
      const SketchLevelValues& from = problem.parameters.level[branch][level];
      const int in = level == 0 ? d : r, hidden = 8 * r;
      const auto pack = [&](const std::vector<double>& matrix, int inputs, int outputs) {
        std::vector<float> transposed(matrix.size());
        for (int o = 0; o < outputs; ++o) {
          for (int i = 0; i < inputs; ++i) {
            transposed[i * outputs + o] = static_cast<float>(matrix[o * inputs + i]);
          }
        }
        weights.push_back(
            std::make_unique<testing::HostWeights>(transposed, inputs, outputs, DataType::kBf16));
        matrices.push_back(cuda_->PackMatrix(weights.back()->matrix(), false, DataType::kBf16));
        return matrices.back().get();
      };
      network.branch[branch][level] = {{keep(from.scale), keep(from.bias)},
                                       pack(from.up, in, hidden),
                                       pack(from.down, hidden, r)};
    }
  }
  std::vector<float> served(rows * r);
  const std::vector<float> x(problem.x.begin(), problem.x.end());
  cuda_->LearnedSketch(network, x.data(), rows, served.data());
  for (size_t i = 0; i < served.size(); ++i) {
    ASSERT_EQ(got.out[i], static_cast<float>(AsBf16(served[i]))) << "element " << i;
  }

  SketchProblem last = problem;
  last.rows = 1;
  last.x.assign(problem.x.end() - d, problem.x.end());
  last.g.assign(problem.g.end() - r, problem.g.end());
  const DeviceResult alone = RunSketch(last);
  for (int i = 0; i < d; ++i) {
    ASSERT_EQ(alone.x_gradient[i], got.x_gradient[(rows - 1) * d + i]) << "element " << i;
  }
}

TEST_F(SketchTrainingTest, MistakesAreNamed) {
  Random random(5);
  const SketchProblem problem = RandomSketchProblem(32, 16, 3, &random);
  const DeviceNetwork network(problem.parameters);
  const TestArray<uint16_t> x(3 * 32), out(3 * 16);
  const auto expect = [&](int status, const polysketch_sketch_shape& shape, const void* input,
                          const char* message) {
    EXPECT_EQ(
        polysketch_sketch_forward(&shape, &network.network(), input, out.data(), nullptr, nullptr),
        status);
    EXPECT_STREQ(polysketch_attention_error(), message);
  };
  expect(POLYSKETCH_ATTENTION_INVALID, {0, 32, 16}, x.data(),
         "expected 1 to 2147483647 rows, found 0");
  expect(POLYSKETCH_ATTENTION_UNSUPPORTED, {3, 128, 16}, x.data(),
         "learned sketch: expected input_dim 32 or 64 and sketch_dim 16 or 32, found 128 and 16");
  expect(POLYSKETCH_ATTENTION_INVALID, {3, 32, 16}, nullptr,
         "x: expected an address that is a multiple of 4 and not null");
  if (!testing::Emulated()) return;
  testing::SetSharedLimit(64 << 10);
  const polysketch_sketch_shape shape{3, 64, 32};
  size_t kept = 0, workspace = 0;
  EXPECT_EQ(polysketch_sketch_sizes(&shape, &kept, &workspace), POLYSKETCH_ATTENTION_UNSUPPORTED);
  EXPECT_STREQ(polysketch_attention_error(),
               "expected a device with 165376 bytes of shared memory for a thread block (learned "
               "sketch, 64 to 32), found 65536");
  testing::SetSharedLimit(testing::kH100Shared);
}

}  // namespace
}  // namespace polysketch
