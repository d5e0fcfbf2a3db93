// The float64 gradients of attention (tests/kernels/attention_gradient.h): against finite
// differences for every kind, and against the gradients of the authors' functions
// (tests/data/attention).
#include "tests/kernels/attention_gradient.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "tests/kernels/attention_case.h"
#include "tests/kernels/recording.h"
#include "tests/kernels/sketch_gradient.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;
using testing::Recording;
using testing::definition::HeadRows;

HeadRows Widened(const testing::AttentionRows& rows) {
  const auto widen = [](const std::vector<float>& x) {
    return std::vector<double>(x.begin(), x.end());
  };
  return {widen(rows.near_q), widen(rows.near_k),    widen(rows.far_q),       widen(rows.far_k),
          widen(rows.v),      widen(rows.log_decay), widen(rows.coefficients)};
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

TEST(AttentionGradientTest, IsTheFiniteDifference) {
  Random random(1);
  const int tokens = 11;
  std::vector<AttentionSpec> specs;
  for (const AttentionKind kind : testing::kAllKinds) {
    specs.push_back(testing::MakeSpec(kind, 1, 5, 6, 3));
  }
  for (const AttentionSpec& spec : testing::WithDecayGates(specs)) {
    HeadRows rows = Widened(testing::RandomSequence(spec, tokens, &random).layers[0]);
    std::vector<double> g(tokens * spec.head_dim);
    for (double& x : g) x = random.Normal();
    const auto loss = [&] {
      const testing::definition::HeadOutput output =
          testing::definition::AttendHead(spec, rows, tokens);
      double sum = 0;
      for (size_t i = 0; i < g.size(); ++i) sum += output.out[i] * g[i];
      return sum;
    };
    const HeadRows gradients = testing::definition::AttendHeadGradients(spec, rows, tokens, g);
    for (const auto member :
         {&HeadRows::near_q, &HeadRows::near_k, &HeadRows::far_q, &HeadRows::far_k, &HeadRows::v,
          &HeadRows::log_decay, &HeadRows::coefficients}) {
      std::vector<double>& values = rows.*member;
      const std::vector<double>& gradient = gradients.*member;
      ASSERT_EQ(gradient.size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        // Five points: an error of h^4 / 30 of the fifth derivative, and 2^-52 of the loss / h.
        constexpr double kStep = 1e-3;
        const double x = values[i];
        const auto at = [&](double steps) {
          values[i] = x + steps * kStep;
          return loss();
        };
        const double difference = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * kStep);
        values[i] = x;
        ASSERT_NEAR(gradient[i], difference, 1e-8 * (1 + Largest(gradient)))
            << testing::Describe(spec) << " element " << i;
      }
    }
  }
}

void ExpectGradient(const std::vector<double>& got, const std::vector<double>& want,
                    const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  // float64 on both sides; the recorded ones were rounded to float32.
  const double tolerance = 0x1p-23 * Largest(want);
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance) << what << " element " << i;
  }
}

TEST(AttentionGradientTest, IsThatOfTheAuthorsCode) {
  for (const std::string name : {"squared", "mixed_p4", "polynomial_p2", "polynomial_p4",
                                 "polynomial_p8", "random_gaussian", "random_hadamard"}) {
    const Recording recording(name);
    AttentionSpec spec;
    spec.heads = 1;
    spec.head_dim = static_cast<int>(recording.extent("value", 3));
    const bool mixed = recording.Has("query_near"), random = recording.Has("sketch1");
    spec.kind = mixed                    ? AttentionKind::kLearnedSketchMixed
                : random                 ? AttentionKind::kRandomSketch
                : recording.Has("block") ? AttentionKind::kLearnedSketch
                                         : AttentionKind::kPolynomial;
    spec.block = recording.Has("block") ? recording.Int("block") : 1;
    if (recording.Has("power")) spec.power = spec.near_power = recording.Int("power");
    const int64_t tokens = recording.extent("value", 2);
    spec.sketch_size = static_cast<int>(random ? 32 : recording.extent("query", 3));
    for (int h = 0; h < recording.extent("value", 1); ++h) {
      const auto rows_of = [&](const std::string& array) { return recording.Head(array, h); };
      HeadRows rows{{}, {}, {}, {}, rows_of("value"), {}};
      const std::vector<double> query = rows_of("query"), key = rows_of("key");
      (mixed ? rows.far_q : rows.near_q) = query;
      (mixed ? rows.far_k : rows.near_k) = key;
      if (mixed) {
        rows.near_q = rows_of("query_near");
        rows.near_k = rows_of("key_near");
      }
      if (random) {
        rows.near_q = testing::DegreeTwoSketch(recording, query);
        rows.near_k = testing::DegreeTwoSketch(recording, key);
      }
      HeadRows got = testing::definition::AttendHeadGradients(spec, rows, tokens, rows_of("g"));
      if (random) {
        got.near_q = testing::DegreeTwoSketchGradient(recording, query, got.near_q);
        got.near_k = testing::DegreeTwoSketchGradient(recording, key, got.near_k);
      }
      ExpectGradient(mixed ? got.far_q : got.near_q, rows_of("grad_query"), name + " query");
      ExpectGradient(mixed ? got.far_k : got.near_k, rows_of("grad_key"), name + " key");
      ExpectGradient(got.v, rows_of("grad_value"), name + " value");
      if (mixed) {
        ExpectGradient(got.near_q, rows_of("grad_query_near"), name + " near query");
        ExpectGradient(got.near_k, rows_of("grad_key_near"), name + " near key");
      }
    }
  }
}

}  // namespace
}  // namespace polysketch
