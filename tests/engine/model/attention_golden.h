// Attention against outputs recorded from the authors' code (tests/data/attention, float64),
// through the op interface of a backend with float32 states. random_sketch_mixed has no recording:
// its parts have, and the whole is checked against the definition, which the recordings confirm
// here.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "kernels/new_backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/attention_oracle.h"
#include "tests/kernels/noisy.h"
#include "tests/kernels/recording.h"
#include "tests/kernels/weights.h"

namespace polysketch::testing {

// Runs the rows and compares with `want`, [tokens, heads, d]; `extra` (may be empty) widens each
// tolerance by the errors of the inputs.
inline void ExpectOutput(Backend& backend, const AttentionSpec& spec, const Sequence& sequence,
                         const std::vector<double>& want, const std::vector<double>& extra,
                         const std::string& what) {
  const OracleOutput oracle = AttentionOracle(spec, sequence.layers[0], sequence.tokens);
  ASSERT_EQ(oracle.value.size(), want.size());
  const auto out = RunAlone(backend, spec, sequence, {sequence.tokens});
  for (size_t i = 0; i < want.size(); ++i) {
    const double of_inputs = extra.empty() ? 0 : extra[i];
    // The definition as this tree understands it is what the authors' code computes.
    ASSERT_NEAR(oracle.value[i], want[i], 1e-12 * (1 + std::abs(want[i])) + of_inputs)
        << what << " element " << i;
    ASSERT_NEAR(out[0][i], want[i], oracle.tolerance[i] + of_inputs) << what << " element " << i;
  }
}

inline void ExpectPolynomial(Backend& backend) {
  for (const std::string name : {"polynomial_p2", "polynomial_p4", "polynomial_p8"}) {
    const Recording recording(name);
    for (int b = 0; b < recording.extent("out", 0); ++b) {
      AttentionSpec spec =
          MakeSpec(AttentionKind::kPolynomial, 2, recording.extent("value", 3), 0, 32);
      spec.power = recording.Int("power");
      const Sequence sequence{static_cast<int>(recording.extent("value", 2)),
                              {{recording.Rows("query", b),
                                recording.Rows("key", b),
                                {},
                                {},
                                recording.Rows("value", b)}}};
      ExpectOutput(backend, spec, sequence, recording.DoubleRows("out", b), {}, name);
      if (spec.power != 2) continue;
      const AttentionSpec recurrent =
          MakeSpec(AttentionKind::kSymmetricPower, 2, recording.extent("value", 3), 0, 16);
      ExpectOutput(backend, recurrent, sequence, recording.DoubleRows("out", b), {}, name);
    }
  }
}

inline void ExpectSquared(Backend& backend) {
  const Recording recording("squared");
  for (int b = 0; b < recording.extent("out", 0); ++b) {
    const AttentionSpec spec =
        MakeSpec(AttentionKind::kLearnedSketch, 2, recording.extent("value", 3),
                 recording.extent("query", 3), recording.Int("block"));
    const Sequence sequence{static_cast<int>(recording.extent("value", 2)),
                            {{recording.Rows("query", b),
                              recording.Rows("key", b),
                              {},
                              {},
                              recording.Rows("value", b)}}};
    ExpectOutput(backend, spec, sequence, recording.DoubleRows("out", b), {}, "squared");
  }
}

// The op of both mixed kinds is the same: they differ in what makes the far rows.
inline void ExpectMixed(Backend& backend) {
  const Recording recording("mixed_p4");
  for (const AttentionKind kind :
       {AttentionKind::kLearnedSketchMixed, AttentionKind::kRandomSketchMixed}) {
    for (int b = 0; b < recording.extent("out", 0); ++b) {
      AttentionSpec spec = MakeSpec(kind, 2, recording.extent("value", 3),
                                    recording.extent("query", 3), recording.Int("block"));
      spec.near_power = recording.Int("power");
      const Sequence sequence{
          static_cast<int>(recording.extent("value", 2)),
          {{recording.Rows("query_near", b), recording.Rows("key_near", b),
            recording.Rows("query", b), recording.Rows("key", b), recording.Rows("value", b)}}};
      ExpectOutput(backend, spec, sequence, recording.DoubleRows("out", b), {}, "mixed_p4");
    }
  }
}

// Rows of a recording under its random sketch: by the op, and in float64 with their error.
struct SketchedRows {
  std::vector<float> by_op;
  NoisyRow exact;
};

inline SketchedRows Sketch(Backend& backend, const Recording& recording, const std::string& name,
                           int b) {
  const int d = recording.extent("sketch1", 0), r = recording.extent("sketch1", 1);
  const SketchWeights weights(d, r, {recording.Floats("sketch1"), recording.Floats("sketch2")});
  const std::vector<float> x = recording.Rows(name, b);
  const int64_t rows = x.size() / d;
  SketchedRows out;
  out.by_op.resize(rows * r);
  backend.ApplyRandomSketch(weights.Pack(backend, DataType::kF32)->sketch, x.data(), rows,
                            out.by_op.data());
  const auto reference = NewReferenceBackend();
  const auto exact = weights.Pack(*reference, DataType::kF32);
  for (int64_t m = 0; m < rows; ++m) {
    const NoisyRow row = Exact(x.data() + m * d, d);
    const NoisyRow left = NoisyMultiply(row, *exact->sketch.levels[0][0]);
    const NoisyRow right = NoisyMultiply(row, *exact->sketch.levels[0][1]);
    for (int i = 0; i < r; ++i) out.exact.push_back(NoisyProduct(left[i], right[i]));
  }
  return out;
}

// How far o_t may move when far rows carry their errors: sum over far s of 2 |f.f| error(f.f) |v_s
// - o_t| / denominator. The matrices were applied in float64; here they are rounded to float32
// first, which is within the same error.
inline std::vector<double> ErrorOfSketches(const AttentionSpec& spec, const SketchedRows& q,
                                           const SketchedRows& k, const std::vector<float>& v,
                                           const std::vector<double>& out) {
  const int heads = spec.heads, d = spec.head_dim, r = spec.sketch_size;
  const int tokens = static_cast<int>(v.size()) / (heads * d);
  std::vector<double> error(out.size());
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < heads; ++h) {
      double denominator = spec.stabilizer;
      std::vector<double> sum(d);
      for (int s = 0; s <= t; ++s) {
        double dot = 0, variance = 0;
        for (int i = 0; i < r; ++i) {
          const Noisy product =
              NoisyProduct(q.exact[(t * heads + h) * r + i], k.exact[(s * heads + h) * r + i]);
          dot += product.value;
          variance += Square(product.error);
        }
        denominator += dot * dot;
        for (int i = 0; i < d; ++i) {
          sum[i] += 2 * std::abs(dot) * std::sqrt(variance) *
                    std::abs(v[(s * heads + h) * d + i] - out[(t * heads + h) * d + i]);
        }
      }
      for (int i = 0; i < d; ++i) {
        error[(t * heads + h) * d + i] = kDeviations * sum[i] / denominator;
      }
    }
  }
  return error;
}

inline void ExpectRandomSketch(Backend& backend) {
  for (const std::string name : {"random_gaussian", "random_hadamard"}) {
    const Recording recording(name);
    const AttentionSpec spec =
        MakeSpec(AttentionKind::kRandomSketch, 2, recording.extent("value", 3),
                 recording.extent("sketch1", 1), recording.Int("block"));
    for (int b = 0; b < recording.extent("out", 0); ++b) {
      const SketchedRows q = Sketch(backend, recording, "query", b);
      const SketchedRows k = Sketch(backend, recording, "key", b);
      const std::vector<float> v = recording.Rows("value", b);
      const std::vector<double> want = recording.DoubleRows("out", b);
      const Sequence sequence{static_cast<int>(recording.extent("value", 2)),
                              {{q.by_op, k.by_op, {}, {}, v}}};
      ExpectOutput(backend, spec, sequence, want, ErrorOfSketches(spec, q, k, v, want), name);
    }
  }
}

// Attention with a decay gate against its definition over all pairs, and the log decays that it is
// given (tests/tools/decay_gate_goldens.py).
inline void ExpectDecayGate(Backend& backend) {
  const struct {
    const char* name;
    std::vector<AttentionKind> kinds;
  } forms[] = {{"mixed", {AttentionKind::kLearnedSketchMixed, AttentionKind::kRandomSketchMixed}},
               {"squared",
                {AttentionKind::kLearnedSketch, AttentionKind::kRandomSketch,
                 AttentionKind::kSymmetricPower}},
               {"features", {AttentionKind::kLinear, AttentionKind::kPerformer}}};
  for (const auto& form : forms) {
    const Recording recording(form.name, "decay_gate");
    const std::vector<float> gate = recording.Floats("gate");
    const std::vector<double> exact = recording.Doubles("log_decay_exact");
    std::vector<float> log_decay(gate.size());
    backend.LogSigmoid(gate.data(), std::ssize(gate), log_decay.data());
    for (size_t i = 0; i < gate.size(); ++i) {  // the tolerance of op_test.cc
      ASSERT_NEAR(log_decay[i], exact[i], 9 * kU * std::abs(exact[i])) << form.name << " " << i;
    }
    for (const AttentionKind kind : form.kinds) {
      AttentionSpec spec = MakeSpec(kind, 2, recording.extent("value", 3),
                                    recording.extent("query", 3), recording.Int("block"));
      spec.decay_gate = true;
      AttentionRows rows{recording.Rows("query", 0), recording.Rows("key", 0),      {}, {},
                         recording.Rows("value", 0), recording.Rows("log_decay", 0)};
      if (spec.mixed()) {
        rows = {recording.Rows("query_near", 0), recording.Rows("key_near", 0),
                recording.Rows("query", 0),      recording.Rows("key", 0),
                recording.Rows("value", 0),      recording.Rows("log_decay", 0)};
      }
      const Sequence sequence{static_cast<int>(recording.extent("value", 2)), {rows}};
      const OracleOutput oracle = AttentionOracle(spec, rows, sequence.tokens);
      ExpectOutput(backend, spec, sequence, recording.DoubleRows("out", 0), oracle.sums_tolerance,
                   Describe(spec));
    }
  }
}

// Outputs of squares of polynomials, from a state too, are their definition within this, where
// values are of order one.
inline constexpr double kDefinitionTolerance = 1e-5;

// The rows that a model of kind affine_square makes of the normed ones of a recording of degree 1,
// by the op: c + f q'.k' with the terms (c, f) of each head.
inline AttentionRows AffineRows(Backend& backend, const AttentionSpec& spec,
                                const AttentionRows& rows) {
  const int heads = spec.heads, d = spec.head_dim;
  std::vector<float> terms;
  for (int h = 0; h < heads; ++h) {
    const double factor = rows.coefficients[2 * h + 1] / spec.beta;
    terms.push_back(static_cast<float>(rows.coefficients[2 * h] + factor * spec.alpha));
    terms.push_back(static_cast<float>(factor));
  }
  const int64_t count = std::ssize(rows.near_q) / d;
  AttentionRows affine{std::vector<float>(count * spec.far_dim()),
                       std::vector<float>(count * spec.far_dim()),
                       {},
                       {},
                       rows.v};
  backend.AffineFeatures(rows.near_q.data(), count, d, terms.data(), heads, affine.near_q.data());
  backend.AffineFeatures(rows.near_k.data(), count, d, nullptr, heads, affine.near_k.data());
  return affine;
}

// Squares of polynomials against their definition over all pairs
// (tests/tools/polynomial_square_goldens.py), degree 1 as affine_square too.
inline void ExpectPolynomialSquare(Backend& backend) {
  for (const std::string name : {"degree1", "degree2", "degree3", "degree8"}) {
    const Recording recording(name, "polynomial_square");
    const int d = static_cast<int>(recording.extent("value", 3));
    AttentionSpec spec = MakeSpec(AttentionKind::kPolynomialSquare, 2, d, 0, 16);
    spec.power = static_cast<int>(recording.extent("coefficients", 1)) - 1;
    spec.alpha = recording.Floats("alpha")[0];
    spec.beta = recording.Floats("beta")[0];
    AttentionRows rows{
        recording.Rows("query", 0), recording.Rows("key", 0), {}, {}, recording.Rows("value", 0)};
    rows.coefficients = recording.Floats("coefficients");
    const Sequence sequence{static_cast<int>(recording.extent("value", 2)), {rows}};
    const std::vector<double> want = recording.DoubleRows("out", 0);
    ExpectOutput(backend, spec, sequence, want, {}, name);
    std::vector<std::vector<float>> outs = {
        RunAlone(backend, spec, sequence, {sequence.tokens})[0]};
    if (spec.power == 1) {
      AttentionSpec affine = MakeSpec(AttentionKind::kAffineSquare, 2, d, 0, 16);
      affine.alpha = spec.alpha;
      affine.beta = spec.beta;
      const Sequence recurrent{sequence.tokens, {AffineRows(backend, affine, rows)}};
      outs.push_back(RunAlone(backend, affine, recurrent, {sequence.tokens})[0]);
      outs.push_back(RunAlone(backend, affine, recurrent, std::vector<int>(sequence.tokens, 1))[0]);
      EXPECT_EQ(outs[1], outs[2]) << "token by token";
    }
    for (const std::vector<float>& out : outs) {
      ASSERT_EQ(out.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(out[i], want[i], kDefinitionTolerance) << name << " element " << i;
      }
    }
  }
}

// random_sketch_mixed: near rows of mixed_p4, far rows sketched from random_*.
inline void ExpectRandomSketchMixedIsItsParts(Backend& backend) {
  const Recording mixed("mixed_p4");
  for (const std::string name : {"random_gaussian", "random_hadamard"}) {
    const Recording random(name);
    AttentionSpec spec = MakeSpec(AttentionKind::kRandomSketchMixed, 2, mixed.extent("value", 3),
                                  random.extent("sketch1", 1), mixed.Int("block"));
    spec.near_power = mixed.Int("power");
    const Sequence sequence{static_cast<int>(mixed.extent("value", 2)),
                            {{mixed.Rows("query_near", 0), mixed.Rows("key_near", 0),
                              Sketch(backend, random, "query", 0).by_op,
                              Sketch(backend, random, "key", 0).by_op, mixed.Rows("value", 0)}}};
    const OracleOutput want = AttentionOracle(spec, sequence.layers[0], sequence.tokens);
    ExpectOutput(backend, spec, sequence, want.value, {}, name);
    // Within the first block nothing is far: those outputs are the recorded ones of mixed_p4.
    const std::vector<double> recorded = mixed.DoubleRows("out", 0);
    for (int i = 0; i < spec.block * spec.heads * spec.head_dim; ++i) {
      ASSERT_NEAR(want.value[i], recorded[i], 1e-12 * (1 + std::abs(recorded[i]))) << i;
    }
  }
}

}  // namespace polysketch::testing
