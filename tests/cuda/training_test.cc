// The training kernels through their C interface: forward and gradients against the float64
// reference (which tests/kernels/attention_gradient_test.cc holds against finite differences and
// the authors' code), on the recorded inputs and on random ones; and the forward against what
// serves.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cuda/cuda_test.h"
#include "tests/cuda/training_case.h"
#include "tests/cuda/training_error.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/recording.h"
#include "tests/kernels/sketch_gradient.h"

namespace polysketch {
namespace {

using testing::Random;
using testing::Recording;
using testing::RunTraining;
using testing::TrainingProblem;
using testing::TrainingResult;
using testing::definition::HeadRows;

// batch, heads, tokens; head_dim, near_dim, sketch_dim, near_power, block.
polysketch_attention_shape Shape(int64_t batch, int64_t heads, int64_t tokens, int head_dim,
                                 int near_dim, int sketch_dim, int near_power, int block) {
  return {batch, heads, tokens,          head_dim, near_dim, sketch_dim, near_power,
          block, 1.0f,  POLYSKETCH_BF16, 0,        0,        2};
}

// The linear form, with the stabiliser of its kinds.
polysketch_attention_shape Linear(int64_t batch, int64_t heads, int64_t tokens, int head_dim,
                                  int features, int block) {
  polysketch_attention_shape shape = Shape(batch, heads, tokens, head_dim, 0, features, 0, block);
  shape.far_power = 1;
  shape.stabilizer = 1e-6f;
  return shape;
}

polysketch_attention_shape Gated(polysketch_attention_shape shape) {
  shape.decay_gate = 1;
  return shape;
}

// The shapes, then those with a decay gate that may have one.
std::vector<polysketch_attention_shape> WithGates(std::vector<polysketch_attention_shape> shapes) {
  for (size_t i = 0, n = shapes.size(); i < n; ++i) {
    if (shapes[i].sketch_dim > 0) shapes.push_back(Gated(shapes[i]));
  }
  return shapes;
}

std::string Describe(const polysketch_attention_shape& shape) {
  return StrCat(shape.batch, "x", shape.heads, " heads, ", shape.tokens, " tokens, d ",
                shape.head_dim, " near ", shape.near_dim, "^", shape.near_power, " sketch ",
                shape.sketch_dim, "^", shape.far_power, " block ", shape.block,
                shape.decay_gate == 1 ? " gated" : "");
}

// The same bits: of the outputs and of every gradient.
void ExpectSame(const TrainingResult& got, const TrainingResult& want,
                const polysketch_attention_shape& shape) {
  EXPECT_EQ(got.out, want.out) << Describe(shape);
  EXPECT_EQ(got.near_q, want.near_q) << Describe(shape);
  EXPECT_EQ(got.near_k, want.near_k) << Describe(shape);
  EXPECT_EQ(got.far_q, want.far_q) << Describe(shape);
  EXPECT_EQ(got.far_k, want.far_k) << Describe(shape);
  EXPECT_EQ(got.v, want.v) << Describe(shape);
  EXPECT_EQ(got.log_decay, want.log_decay) << Describe(shape);
}

class TrainingTest : public testing::CudaTest {
 protected:
  // The gradients of tokens [begin, end) computed as a chunk: those of what the chunk puts out alone.
  static void ExpectCutGradients(const TrainingProblem& problem, int64_t begin, int64_t end,
                                 const TrainingResult& chunk) {
    const TrainingProblem seen = testing::ChunkOf(problem, 0, end);
    const AttentionSpec spec = problem.spec();
    for (size_t h = 0; h < seen.heads.size(); ++h) {
      std::vector<double> g = seen.g[h];
      std::fill(g.begin(), g.begin() + begin * problem.shape.head_dim, 0);
      const HeadRows want = testing::definition::AttendHeadGradients(spec, seen.heads[h], end, g);
      const testing::TrainingErrorModel model(spec, seen.heads[h], end, g);
      const HeadRows& error = model.error().rows;
      const std::string what =
          StrCat(Describe(problem.shape), ", tokens ", begin, " to ", end, ", head ", h, ": ");
      const auto compare = [&](const auto& got, std::vector<double> HeadRows::*member,
                               const char* name) {
        if ((want.*member).empty()) return;
        const auto cut = [&](const std::vector<double>& rows) {
          const auto width = static_cast<int64_t>(rows.size()) / end;
          return std::vector<double>(rows.begin() + begin * width, rows.end());
        };
        Compare(got[h], cut(want.*member), cut(error.*member), what + name);
      };
      compare(chunk.v, &HeadRows::v, "v");
      compare(chunk.near_q, &HeadRows::near_q, "near_q");
      compare(chunk.near_k, &HeadRows::near_k, "near_k");
      compare(chunk.far_q, &HeadRows::far_q, "far_q");
      compare(chunk.far_k, &HeadRows::far_k, "far_k");
      compare(chunk.log_decay, &HeadRows::log_decay, "log_decay");
    }
  }

  // ExpectState in the linear form: keys are rounded once, with a decay gate.
  static void ExpectLinearState(const TrainingProblem& problem, const std::vector<float>& state) {
    const int r = problem.shape.sketch_dim, d = problem.shape.head_dim;
    const int64_t tokens = problem.shape.tokens;
    ASSERT_EQ(std::ssize(state), std::ssize(problem.heads) * r * (d + 1));
    for (size_t h = 0; h < problem.heads.size(); ++h) {
      const HeadRows& rows = problem.heads[h];
      std::vector<double> kept(tokens, 1);  // after the last token
      for (int64_t s = tokens - 1; s > 0 && !rows.log_decay.empty(); --s) {
        kept[s - 1] = kept[s] * std::exp(rows.log_decay[s]);
      }
      const float* head = state.data() + h * static_cast<size_t>(r * (d + 1));
      for (int i = 0; i < r * (d + 1); ++i) {
        const int f = i < r * d ? i / d : i - r * d;
        double want = 0, size = 0;
        for (int64_t s = 0; s < tokens; ++s) {
          const double v = i < r * d ? rows.v[s * d + i % d] : 1;
          const double term = kept[s] * rows.near_k[s * r + f] * v;
          want += term;
          size += std::abs(term);
        }
        const double rounding = rows.log_decay.empty() ? 0x1p-20 : testing::kBf16U;
        ASSERT_NEAR(head[i], want, rounding * size + 1e-30)
            << Describe(problem.shape) << " head " << h << " element " << i;
      }
    }
  }

  // The state after all tokens. The products of keys are rounded to bf16, once each; with a decay
  // gate, so is one of their factors before.
  static void ExpectState(const TrainingProblem& problem, const std::vector<float>& state) {
    if (problem.shape.far_power == 1) return ExpectLinearState(problem, state);
    const int r = problem.shape.sketch_dim, d = problem.shape.head_dim, tiles = r / 8;
    const size_t features = static_cast<size_t>(tiles) * (tiles + 1) / 2 * 64;
    const int64_t tokens = problem.shape.tokens;
    ASSERT_EQ(state.size(), problem.heads.size() * features * (d + 1));
    for (size_t h = 0; h < problem.heads.size(); ++h) {
      const HeadRows& rows = problem.heads[h];
      const std::vector<double>& y = problem.shape.near_dim > 0 ? rows.far_k : rows.near_k;
      std::vector<double> kept(tokens, 1);  // after the last token
      for (int64_t s = tokens - 1; s > 0 && !rows.log_decay.empty(); --s) {
        kept[s - 1] = kept[s] * std::exp(rows.log_decay[s]);
      }
      const float* head = state.data() + h * features * (d + 1);
      size_t f = 0;
      for (int I = 0; I < tiles; ++I) {
        for (int J = I; J < tiles; ++J) {
          for (int pair = 0; pair < 64; ++pair, ++f) {
            for (int c = 0; c <= d; ++c) {
              double want = 0, size = 0;
              for (int64_t s = 0; s < tokens; ++s) {
                const double term = kept[s] * y[s * r + 8 * I + pair / 8] *
                                    y[s * r + 8 * J + pair % 8] * (c < d ? rows.v[s * d + c] : 1);
                want += term;
                size += std::abs(term);
              }
              const size_t at = c < d ? f * d + c : features * d + f;
              const int roundings = rows.log_decay.empty() ? 1 : 2;
              ASSERT_NEAR(head[at], want, roundings * size * testing::kBf16U)
                  << Describe(problem.shape) << " head " << h << " element " << at;
            }
          }
        }
      }
    }
  }

  static void ExpectReference(const TrainingProblem& problem, const TrainingResult& result) {
    const AttentionSpec spec = problem.spec();
    double worst = 0;
    for (size_t h = 0; h < problem.heads.size(); ++h) {
      const HeadRows& rows = problem.heads[h];
      const int64_t tokens = problem.shape.tokens;
      const HeadRows want =
          testing::definition::AttendHeadGradients(spec, rows, tokens, problem.g[h]);
      const testing::TrainingErrorModel model(spec, rows, tokens, problem.g[h]);
      const testing::TrainingError& error = model.error();
      const std::string what = StrCat(Describe(problem.shape), ", head ", h, ": ");
      const auto compare = [&](const auto& got, const std::vector<double>& expected,
                               const std::vector<double>& deviation, const char* name) {
        if (expected.empty()) return;
        worst = std::max(worst, Compare(got[h], expected, deviation, what + name));
      };
      compare(result.out, testing::definition::AttendHead(spec, rows, tokens).out, error.out,
              "out");
      compare(result.v, want.v, error.rows.v, "v");
      compare(result.near_q, want.near_q, error.rows.near_q, "near_q");
      compare(result.near_k, want.near_k, error.rows.near_k, "near_k");
      compare(result.far_q, want.far_q, error.rows.far_q, "far_q");
      compare(result.far_k, want.far_k, error.rows.far_k, "far_k");
      compare(result.log_decay, want.log_decay, error.rows.log_decay, "log_decay");
    }
    // A tolerance that nothing comes near to would hide faults.
    EXPECT_GT(worst, 0.1) << Describe(problem.shape);
  }
};

TEST_F(TrainingTest, EveryShapeIsTheReference) {
  Random random(1);
  std::vector<polysketch_attention_shape> shapes = {
      Shape(1, 2, 70, 64, 64, 32, 4, 32),  // mixed, a ragged last block
      Shape(2, 1, 75, 64, 0, 32, 2, 32),   // sketched
      Shape(1, 1, 90, 64, 64, 0, 4, 0),    // polynomial, several parts
      Shape(1, 1, 50, 32, 32, 8, 2, 20),   // blocks that are no multiple of 16
      Shape(1, 1, 40, 32, 32, 24, 3, 16),  //
      Shape(1, 1, 40, 32, 0, 64, 2, 16),   // sketches wider than values
      Shape(1, 2, 75, 64, 0, 72, 2, 32),   // by a constant and its padding
      Shape(1, 1, 40, 32, 0, 72, 2, 16),    Shape(1, 1, 20, 128, 0, 136, 2, 16),
      Shape(1, 1, 45, 128, 128, 16, 4, 24), Shape(1, 1, 5, 32, 0, 8, 2, 1),  // blocks of one token
      Shape(1, 1, 150, 64, 64, 16, 4, 140),  // blocks of several parts and tiles
      Linear(1, 2, 70, 64, 64, 32),         Linear(1, 1, 50, 32, 32, 20),
      Linear(1, 1, 45, 128, 128, 24),       Linear(2, 1, 40, 32, 64, 16),
      Linear(1, 1, 150, 64, 32, 140)};
  if (!testing::Emulated()) shapes.push_back(Shape(1, 2, 1000, 64, 64, 32, 4, 256));
  bool tokens_first = false;
  for (const polysketch_attention_shape& shape : WithGates(shapes)) {
    const TrainingProblem problem = testing::RandomProblem(shape, &random);
    ExpectReference(problem, RunTraining(problem, POLYSKETCH_F32, tokens_first));
    tokens_first = !tokens_first;
  }
}

// Few heads and many blocks: the walk over states is cut into ranges.
TEST_F(TrainingTest, RangesOfBlocks) {
  Random random(2);
  for (const auto& shape :
       WithGates({Shape(1, 1, 400, 32, 0, 8, 2, 16), Linear(1, 1, 400, 32, 32, 16)})) {
    const TrainingProblem problem = testing::RandomProblem(shape, &random);
    ExpectReference(problem, RunTraining(problem));
  }
}

// Chunks with the state carried have the bits of the whole, and gradients that end at their starts.
TEST_F(TrainingTest, ChunksWithCarriedStates) {
  struct Split {
    polysketch_attention_shape shape;
    std::vector<int64_t> sizes;  // all but the last are multiples of the block
  };
  Random random(7);
  for (const Split& split : {Split{Shape(1, 2, 224, 64, 64, 32, 4, 32), {32, 96, 64, 32}},
                             Split{Shape(2, 1, 75, 64, 0, 32, 2, 16), {16, 48, 11}},
                             Split{Shape(1, 1, 60, 64, 64, 16, 3, 20), {20, 40}},
                             Split{Shape(1, 1, 96, 128, 128, 8, 4, 24), {48, 48}},
                             // Alone, these would be cut into ranges.
                             Split{Shape(1, 1, 400, 32, 0, 8, 2, 16), {320, 80}},
                             Split{Gated(Shape(1, 2, 224, 64, 64, 32, 4, 32)), {32, 96, 64, 32}},
                             Split{Gated(Shape(2, 1, 75, 32, 0, 16, 2, 16)), {16, 48, 11}},
                             Split{Linear(1, 2, 96, 64, 64, 16), {16, 48, 32}},
                             Split{Gated(Linear(2, 1, 75, 32, 32, 16)), {16, 48, 11}}}) {
    const TrainingProblem problem = testing::RandomProblem(split.shape, &random);
    const int64_t tokens = split.shape.tokens;
    testing::TrainingStates of_whole, carried;
    of_whole.wants_after = tokens % split.shape.block == 0;
    const TrainingResult whole =
        RunTraining(testing::ChunkOf(problem, 0, tokens), POLYSKETCH_F32, false, &of_whole);
    ExpectReference(problem, whole);
    if (of_whole.wants_after) ExpectState(problem, of_whole.after);
    int64_t begin = 0;
    for (const int64_t size : split.sizes) {
      carried.wants_after = size % split.shape.block == 0;
      const TrainingResult chunk =
          RunTraining(testing::ChunkOf(problem, begin, begin + size), POLYSKETCH_F32,
                      /*tokens_first=*/begin % 32 == 0, &carried);
      for (size_t h = 0; h < problem.heads.size(); ++h) {
        const auto expect_same = [&](const std::vector<float>& got, const std::vector<float>& want,
                                     const char* name) {
          const size_t first = want.size() / tokens * begin;
          for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(got[i], want[first + i]) << Describe(split.shape) << " from token " << begin
                                               << ", head " << h << " " << name << " element " << i;
          }
        };
        expect_same(chunk.out[h], whole.out[h], "out");
        // In the sketched form the gradients of near queries are those of the sketches.
        expect_same(chunk.near_q[h], whole.near_q[h], "near_q");
        if (!chunk.far_q.empty()) expect_same(chunk.far_q[h], whole.far_q[h], "far_q");
        const auto denominators = [&](const TrainingResult& result, int64_t count) {
          const auto from = result.denominators.begin() + static_cast<int64_t>(h) * count;
          return std::vector<float>(from, from + count);
        };
        expect_same(denominators(chunk, size), denominators(whole, tokens), "denominators");
      }
      ExpectCutGradients(problem, begin, begin + size, chunk);
      carried.before = std::move(carried.after);
      carried.after.clear();
      begin += size;
    }
    EXPECT_EQ(carried.before, of_whole.after) << Describe(split.shape);
  }
}

// A chunk of whole blocks from a state of zeros is a sequence of its own.
TEST_F(TrainingTest, AStateOfZeros) {
  Random random(8);
  for (const auto& shape :
       WithGates({Shape(1, 2, 90, 64, 64, 32, 4, 40), Shape(1, 1, 12, 32, 0, 8, 2, 16)})) {
    const TrainingProblem problem = testing::RandomProblem(shape, &random);
    const TrainingResult alone = RunTraining(problem);
    testing::TrainingStates states;
    size_t floats = 0;
    ASSERT_EQ(polysketch_attention_state(&shape, &floats), POLYSKETCH_ATTENTION_OK);
    states.before.assign(problem.heads.size() * floats, 0);
    const TrainingResult chunk =
        RunTraining(testing::ChunkOf(problem, 0, shape.tokens), POLYSKETCH_F32, false, &states);
    ExpectSame(chunk, alone, shape);
  }
}

// Near rows narrower than values are rows with zeros after them.
TEST_F(TrainingTest, NarrowNearRows) {
  Random random(5);
  TrainingProblem wide = testing::RandomProblem(Shape(1, 1, 40, 32, 32, 8, 4, 16), &random);
  TrainingProblem narrow = wide;
  narrow.shape.near_dim = 24;
  for (const auto member : {&HeadRows::near_q, &HeadRows::near_k}) {
    std::vector<double>& rows = wide.heads[0].*member;
    std::vector<double>& cut = narrow.heads[0].*member;
    cut.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i % 32 < 24) {
        cut.push_back(rows[i]);
      } else {
        rows[i] = 0;
      }
    }
  }
  const TrainingResult of_wide = RunTraining(wide), of_narrow = RunTraining(narrow);
  EXPECT_EQ(of_narrow.out, of_wide.out);
  EXPECT_EQ(of_narrow.v, of_wide.v);
  EXPECT_EQ(of_narrow.far_q, of_wide.far_q);
  for (size_t i = 0; i < of_narrow.near_q[0].size(); ++i) {
    ASSERT_EQ(of_narrow.near_q[0][i], of_wide.near_q[0][i / 24 * 32 + i % 24]) << "element " << i;
    ASSERT_EQ(of_narrow.near_k[0][i], of_wide.near_k[0][i / 24 * 32 + i % 24]) << "element " << i;
  }
}

// The recorded inputs of the authors' functions, rounded to bf16.
TEST_F(TrainingTest, RecordedInputs) {
  for (const std::string name : {"squared", "mixed_p4", "polynomial_p2", "polynomial_p4",
                                 "polynomial_p8", "random_gaussian"}) {
    const Recording recording(name);
    const bool random = recording.Has("sketch1"), mixed = recording.Has("query_near");
    const bool sketched = recording.Has("block");
    const auto width = [&](const char* array) {
      return static_cast<int>(recording.extent(array, 3));
    };
    const int heads = testing::Emulated() ? 1 : 2;
    TrainingProblem problem{Shape(1, heads, recording.extent("value", 2), width("value"),
                                  mixed      ? width("query_near")
                                  : sketched ? 0
                                             : width("query"),
                                  !sketched ? 0
                                  : random  ? static_cast<int>(recording.extent("sketch1", 1))
                                            : width("query"),
                                  recording.Has("power") ? recording.Int("power") : 2,
                                  sketched ? recording.Int("block") : 0),
                            {},
                            {}};
    for (int h = 0; h < heads; ++h) {
      const auto rounded = [&](const char* array, bool sketch) {
        std::vector<double> values = recording.Head(array, h);
        if (sketch) values = testing::DegreeTwoSketch(recording, values);
        for (double& x : values) x = testing::AsBf16(x);
        return values;
      };
      HeadRows rows{{}, {}, {}, {}, rounded("value", false), {}};
      (mixed ? rows.far_q : rows.near_q) = rounded("query", random);
      (mixed ? rows.far_k : rows.near_k) = rounded("key", random);
      if (mixed) {
        rows.near_q = rounded("query_near", false);
        rows.near_k = rounded("key_near", false);
      }
      problem.heads.push_back(rows);
      problem.g.push_back(rounded("g", false));
    }
    const TrainingResult result = RunTraining(problem);
    ExpectReference(problem, result);
    if (random) continue;  // recorded by the unsketched rows: the reference's test goes through f

    // Against what was recorded. A gradient has 2 p + 2 factors; if each were off by a whole
    // rounding (2^-8), all in one direction, it would be off by that many.
    const int power = mixed || !sketched ? problem.shape.near_power : 2;
    for (int h = 0; h < heads; ++h) {
      const auto expect = [&](const std::vector<float>& got, const char* array) {
        const std::vector<double> want = recording.Head(array, h);
        double difference = 0, size = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          difference += testing::Square(got[i] - want[i]);
          size += testing::Square(want[i]);
        }
        EXPECT_LT(std::sqrt(difference / size), (2 * power + 2) * 0x1p-8) << name << " " << array;
      };
      expect(result.v[h], "grad_value");
      expect((mixed ? result.far_q : result.near_q)[h], "grad_query");
      expect((mixed ? result.far_k : result.near_k)[h], "grad_key");
      if (!mixed) continue;
      expect(result.near_q[h], "grad_query_near");
      expect(result.near_k[h], "grad_key_near");
    }
  }
}

// The forward has the bits of the backend that serves, for the same bf16 rows.
TEST_F(TrainingTest, ForwardIsWhatServes) {
  Random random(3);
  for (const auto& shape :
       WithGates({Shape(1, 2, 150, 64, 64, 32, 4, 40), Shape(1, 1, 70, 32, 0, 16, 2, 16),
                  Shape(1, 1, 60, 128, 128, 16, 4, 24), Linear(1, 2, 90, 64, 64, 32)})) {
    const TrainingProblem problem = testing::RandomProblem(shape, &random);
    const TrainingResult result = RunTraining(problem);
    AttentionSpec spec = problem.spec();
    spec.heads = static_cast<int>(shape.heads);
    spec.state_format = StateFormat::kBf16;
    const auto rows = [&](std::vector<double> HeadRows::*member, int width) {
      std::vector<float> values;
      for (int64_t t = 0; t < shape.tokens && width > 0; ++t) {
        for (const HeadRows& head : problem.heads) {
          const auto begin = (head.*member).begin() + t * width;
          values.insert(values.end(), begin, begin + width);
        }
      }
      return values;
    };
    const int far = spec.mixed() ? spec.far_dim() : 0;
    const testing::Sequence sequence{
        static_cast<int>(shape.tokens),
        {{rows(&HeadRows::near_q, spec.near_dim()), rows(&HeadRows::near_k, spec.near_dim()),
          rows(&HeadRows::far_q, far), rows(&HeadRows::far_k, far),
          rows(&HeadRows::v, spec.head_dim), rows(&HeadRows::log_decay, spec.decay_gate ? 1 : 0)}}};
    const auto served = testing::RunAlone(*cuda_, spec, sequence, {sequence.tokens});
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int h = 0; h < spec.heads; ++h) {
        for (int i = 0; i < spec.head_dim; ++i) {
          ASSERT_EQ(served[0][(t * spec.heads + h) * spec.head_dim + i],
                    result.out[h][t * spec.head_dim + i])
              << Describe(shape) << " token " << t << " element " << i;
        }
      }
    }
  }
}

// The same bits under every schedule; bf16 outputs are the float32 ones rounded.
TEST_F(TrainingTest, AnyScheduleAnyType) {
  Random random(4);
  const TrainingProblem problem =
      testing::RandomProblem(Shape(1, 1, 90, 32, 32, 16, 4, 40), &random);
  const TrainingResult whole = RunTraining(problem);
  for (int i = 0; i < Scale(2, 20); ++i) {
    testing::SeedSchedule(200 + i);
    const TrainingResult again = RunTraining(problem, POLYSKETCH_F32, i % 2 == 0);
    EXPECT_EQ(again.out, whole.out);
    EXPECT_EQ(again.near_q, whole.near_q);
    EXPECT_EQ(again.near_k, whole.near_k);
    EXPECT_EQ(again.far_q, whole.far_q);
    EXPECT_EQ(again.far_k, whole.far_k);
    EXPECT_EQ(again.v, whole.v);
  }
  const TrainingResult narrow = RunTraining(problem, POLYSKETCH_BF16);
  const auto rounded = [](std::vector<std::vector<float>> heads) {
    for (auto& head : heads) {
      for (float& x : head) x = static_cast<float>(testing::AsBf16(x));
    }
    return heads;
  };
  EXPECT_EQ(narrow.out, rounded(whole.out));
  EXPECT_EQ(narrow.v, rounded(whole.v));  // it does not depend on out
}

// Inputs of float16 are those of bf16 that they round to; outputs of float16 are the float32 ones
// rounded.
TEST_F(TrainingTest, Float16) {
  Random random(6);
  for (const auto& shape : {Shape(1, 3, 90, 32, 32, 16, 4, 40), Shape(2, 1, 50, 64, 0, 32, 2, 16),
                            Shape(1, 1, 40, 32, 32, 0, 4, 0)}) {
    TrainingProblem wide = testing::RandomProblem(shape, &random);
    // Values of 11 bits; those of bf16 next to them.
    TrainingProblem narrow = wide;
    const auto spread = [&](std::vector<double>* of_wide, std::vector<double>* of_narrow) {
      for (size_t i = 0; i < of_wide->size(); ++i) {
        const double value = (*of_wide)[i] * random.Uniform(0.99, 1.01);
        (*of_wide)[i] = F16ToFloat(FloatToF16(static_cast<float>(value)));
        (*of_narrow)[i] = testing::AsBf16((*of_wide)[i]);
      }
    };
    for (size_t h = 0; h < wide.heads.size(); ++h) {
      for (const auto member : {&HeadRows::near_q, &HeadRows::near_k, &HeadRows::far_q,
                                &HeadRows::far_k, &HeadRows::v}) {
        spread(&(wide.heads[h].*member), &(narrow.heads[h].*member));
      }
      spread(&wide.g[h], &narrow.g[h]);
    }
    wide.shape.input_type = POLYSKETCH_F16;
    const TrainingResult want = RunTraining(narrow), got = RunTraining(wide);
    ExpectSame(got, want, shape);
    const TrainingResult halves = RunTraining(wide, POLYSKETCH_F16);
    for (size_t h = 0; h < want.out.size(); ++h) {
      for (size_t i = 0; i < want.out[h].size(); ++i) {
        ASSERT_EQ(halves.out[h][i], F16ToFloat(FloatToF16(want.out[h][i]))) << "element " << i;
        ASSERT_EQ(halves.v[h][i], F16ToFloat(FloatToF16(want.v[h][i]))) << "element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace polysketch
