// The definition of attention, in float64: for every token all pairs s <= t, no state, no blocks
// but those of the mixed kinds. Beside each output stands how far a float32 computation may be off.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/half.h"
#include "kernels/backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/noisy.h"

namespace polysketch::testing {

struct OracleOutput {
  std::vector<double> value;  // [tokens, heads, d]
  // What float32 arithmetic in the order of backend.h may add, as kDeviations standard deviations.
  std::vector<double> tolerance;
  // What reading S as bf16 may add to that.
  std::vector<double> bf16_tolerance;
  // What 8-bit integers (kernels/state_bytes.h) may add: reading S, and rounding the features of
  // folds, of queries, queries and weights to 16 bits; and the part of it that is neither of S nor
  // of folds.
  std::vector<double> byte_tolerance, word_tolerance;
  // What reading the copy of S on a GPU (kernels/cuda/mx_int8.h) may add.
  std::vector<double> copy_tolerance;
  // What splitting the features of a fold into two bf16 (docs/numerics.md) may add.
  std::vector<double> split_tolerance;
  // With a decay gate: how far G as float32 sums (backend.h), which `value` follows, may be off.
  std::vector<double> sums_tolerance;
};

namespace oracle {

// Whether token t attends to token s, which is not after it.
inline bool Sees(const AttentionSpec& spec, int t, int s) {
  if (spec.window == 0 || s < spec.sinks) return true;
  if (spec.window_kind == WindowKind::kBlocks) return s / spec.window + 1 >= t / spec.window;
  return t - s < spec.window;
}

// The tokens before a window of blocks.
inline int Left(const AttentionSpec& spec, int t) {
  return std::max(0, (t / spec.window - 1) * spec.window);
}

// The last token whose decay the weight of token s has at t, which sees it in its window or not.
inline int LastDecay(const AttentionSpec& spec, int t, int s, bool sees) {
  if (!spec.far_part()) return t;
  return sees ? s : Left(spec, t) - 1;
}

inline bool SmallerMagnitude(float a, float b) { return std::abs(a) < std::abs(b); }

// The scales of a copy of S [features, d] as 8-bit integers (kernels/state_bytes.h).
struct ByteScales {
  std::vector<double> row, column;

  void Set(const std::vector<double>& s, int features, int d) {
    row.assign(features, 0);
    column.assign(d, 0);
    for (int i = 0; i < features * d; ++i) column[i % d] = std::max(column[i % d], std::abs(s[i]));
    for (int i = 0; i < features * d; ++i) {
      if (column[i % d] > 0)
        row[i / d] = std::max(row[i / d], std::abs(s[i]) / column[i % d] / 127);
    }
  }
};

// The variances of S [features, d] that folds bring which round the features of a block's tokens,
// times the scales of the tokens' values, to 16 bits: an integer of a value times half a step of
// the feature's largest product in the block, uniform.
struct FoldRoundings {
  std::vector<double> variances;
  std::vector<double> steps;  // of the features, in this block

  FoldRoundings(int features, int d)
      : variances(static_cast<size_t>(features) * d), steps(features) {}
  // Begins a block: what is kept of S is multiplied by `kept`.
  void Begin(double kept) {
    for (double& variance : variances) variance *= Square(kept);
    std::ranges::fill(steps, 0);
  }
  void Step(int f, double product) { steps[f] = std::max(steps[f], std::abs(product) / 32767); }
  // Ends the block. squares [d]: sums over its tokens of the squares of values over their scales.
  void End(const std::vector<double>& squares) {
    const size_t d = squares.size();
    for (size_t f = 0; f < steps.size(); ++f) {
      for (size_t i = 0; i < d; ++i) variances[f * d + i] += Square(steps[f]) * squares[i] / 12;
    }
  }
};

// The step of element i of a row of S [d] in the copy on a GPU (kernels/cuda/mx_int8.h).
inline double CopyStep(const double* row, int d, int i) {
  double largest = 0;
  for (int j = i / 32 * 32; j < std::min(d, i / 32 * 32 + 32); ++j) {
    largest = std::max(largest, std::abs(row[j]));
  }
  return largest == 0 ? 0 : std::exp2(std::floor(std::log2(largest * (1 + 0x1p-7))) - 6);
}

// Feature f of a far query or key x [far_dim].
inline double Feature(const AttentionSpec& spec, const float* x, int f) {
  const int r = spec.far_dim();
  return spec.sketched() ? static_cast<double>(x[f / r]) * x[f % r] : x[f];
}

// The variances [d] that the copies of S [features, d] bring to what the query q [far_dim] reads,
// times `decayed`. Those of one byte only where the spec has such a copy.
struct ReadErrors {
  std::vector<double> bf16, bytes, words, copy;

  ReadErrors(const AttentionSpec& spec, const float* q, double decayed,
             const std::vector<double>& s, const ByteScales& scales, const FoldRoundings& fold)
      : bf16(spec.head_dim), bytes(spec.head_dim), words(spec.head_dim), copy(spec.head_dim) {
    const int d = spec.head_dim, features = static_cast<int>(s.size()) / d;
    // S is symmetric in (i, j), so errors of two features add up as one.
    const int twice = spec.sketched() ? 2 : 1;
    double largest = 0;  // of the features times the scales of their rows
    for (int f = 0; f < features && spec.byte_copy(); ++f) {
      largest = std::max(largest, std::abs(Feature(spec, q, f)) * scales.row[f]);
    }
    for (int f = 0; f < features; ++f) {
      const double phi = decayed * Feature(spec, q, f);
      const double* row = &s[f * d];
      // bf16 keeps 8 bits: an error of up to 2^-8 of each element, uniform: a variance of a third
      // of its square.
      const double half = twice * Square(phi * 0x1p-8) / 3;
      for (int i = 0; i < d; ++i) bf16[i] += half * Square(row[i]);
      // An integer is off by up to half a step, uniform.
      for (int i = 0; i < d; ++i) {
        copy[i] += twice * Square(phi * CopyStep(row, d, i)) / 12;
      }
      if (!spec.byte_copy() || scales.row[f] == 0) continue;
      // An integer is off by up to half a step, uniform: a variance of a twelfth of the step's
      // square. So are the features, times scales, whose step is 1/32767 of the largest.
      const double step = twice * Square(phi * scales.row[f]) / 12;
      const double word = twice * Square(decayed * largest / 32767 / scales.row[f]) / 12;
      const double folds = twice * Square(phi);
      for (int i = 0; i < d; ++i) {
        bytes[i] += step * Square(scales.column[i]) + folds * fold.variances[f * d + i];
        words[i] += word * Square(row[i]);
      }
    }
  }
};

// P((dot + alpha) / beta) and its derivative by dot, with coefficients a_0 to a_p.
struct PolynomialOfDot {
  double value = 0, slope = 0;
  double absolute = 0;  // sum of the magnitudes of the terms

  PolynomialOfDot(const AttentionSpec& spec, const float* coefficients, double dot) {
    const double x = (dot + spec.alpha) / static_cast<double>(spec.beta);
    for (int i = 0; i <= spec.power; ++i) {
      value += coefficients[i] * std::pow(x, i);
      absolute += std::abs(coefficients[i] * std::pow(x, i));
      if (i > 0) slope += i * coefficients[i] * std::pow(x, i - 1) / spec.beta;
    }
  }
};

// coefficients: of the head, in polynomial_square.
inline double WeightOfDot(const AttentionSpec& spec, bool near, double dot,
                          const float* coefficients) {
  switch (spec.kind) {
    case AttentionKind::kPolynomialSquare:
      return Square(PolynomialOfDot(spec, coefficients, dot).value);
    case AttentionKind::kSoftmax:
      return std::exp(dot / std::sqrt(spec.head_dim));
    case AttentionKind::kPolynomial:
      return std::pow(dot, spec.power);
    case AttentionKind::kLinear:
    case AttentionKind::kPerformer:
      return dot;
    default:
      return std::pow(dot, near && spec.mixed() ? spec.near_power : 2);
  }
}

// Degree of the weight in the dot product: each factor carries the rounding errors of a dot
// product.
inline double Degree(const AttentionSpec& spec, bool near) {
  switch (spec.kind) {
    case AttentionKind::kSoftmax:
    case AttentionKind::kLinear:
    case AttentionKind::kPerformer:
      return 1;
    case AttentionKind::kPolynomial:
      return spec.power;
    default:
      return near && spec.mixed() ? spec.near_power : 2;
  }
}

// How far float32 may be off in a weight of polynomial_square, as a standard deviation. absolute:
// of the dot product, a sum of `width` terms. x has three roundings more; Horner's rule has two for
// each coefficient, of at most the terms' magnitudes. An error of P enters its square with 2 |P|,
// and squared near a root.
inline double PolynomialSquareError(const AttentionSpec& spec, const float* coefficients,
                                    double dot, double absolute, int width) {
  const PolynomialOfDot polynomial(spec, coefficients, dot);
  const double of_dot =
      kU * (absolute * std::sqrt(width + 4.0) + 2 * (std::abs(dot) + std::abs(spec.alpha)));
  const double error = std::hypot(polynomial.slope * of_dot,
                                  kU * polynomial.absolute * std::sqrt(2.0 * spec.power + 2));
  return error * (2 * std::abs(polynomial.value) + error) + kU * Square(polynomial.value);
}

// The coefficients of a head, or null.
inline const float* CoefficientsOf(const AttentionSpec& spec, const AttentionRows& rows, int head) {
  return rows.coefficients.empty() ? nullptr : &rows.coefficients[head * (spec.power + 1)];
}

// G of each token and kv head [tokens, kv heads], in two parts: the float32 sum over the tokens of
// its block, and the exact sum of the earlier blocks' last ones. Zero without a decay gate.
struct DecaySums {
  std::vector<float> in_block;
  std::vector<double> before;
  std::vector<double> error;  // worst case of the float32 additions up to the token

  DecaySums(const AttentionSpec& spec, const AttentionRows& rows, int tokens) {
    const int heads = spec.key_heads();
    const size_t size = static_cast<size_t>(tokens) * heads;
    in_block.resize(size);
    before.resize(size);
    error.resize(size);
    for (size_t i = 0; spec.decay_gate && i < size; ++i) {
      const bool first = static_cast<int>(i) < heads;
      const size_t last = i - heads;
      const bool starts = static_cast<int>(i) / heads % spec.block == 0;
      in_block[i] = (starts ? 0 : in_block[last]) + rows.log_decay[i];
      before[i] = first ? 0 : before[last] + (starts ? in_block[last] : 0);
      error[i] = (first ? 0 : error[last]) + kU * std::abs(in_block[i]);
    }
  }
  double Total(size_t i) const { return before[i] + in_block[i]; }
};

}  // namespace oracle

// x as float16: 11 significant bits, fewer below 2^-14, no more than 65,504.
inline double NearestF16(double x) {
  int exponent;
  std::frexp(x, &exponent);
  const double step = std::ldexp(1, std::max(exponent, -13) - 11);
  return std::clamp(std::nearbyint(x / step) * step, -65504.0, 65504.0);
}

// The rows as a KV cache keeps them: float16, or multiples of a scale for each row and head that is
// the 127th part of the largest element to 16 significant bits.
inline void RoundForKvCache(const AttentionSpec& spec, std::vector<float>* rows) {
  for (size_t i = 0; i < rows->size(); i += spec.head_dim) {
    float* x = &(*rows)[i];
    if (spec.state_format == StateFormat::kF16) {
      for (int j = 0; j < spec.head_dim; ++j) x[j] = static_cast<float>(NearestF16(x[j]));
    } else if (spec.state_format == StateFormat::kQ8) {
      const float part =
          std::abs(*std::max_element(x, x + spec.head_dim, oracle::SmallerMagnitude)) / 127;
      if (part == 0) continue;
      int exponent;
      const double mantissa = std::frexp(part, &exponent);
      const auto scale =
          static_cast<float>(std::ldexp(std::floor(std::ldexp(mantissa, 16) + 0.5), exponent - 16));
      for (int j = 0; j < spec.head_dim; ++j) x[j] = std::nearbyint(x[j] * (1 / scale)) * scale;
    }
  }
}

// The rows as a block buffer of that spec keeps them (AttentionSpec::narrow_block), or a KV cache.
inline AttentionRows RowsAsKept(const AttentionSpec& spec, AttentionRows rows) {
  if (spec.kv_cache()) {
    RoundForKvCache(spec, &rows.near_k);
    RoundForKvCache(spec, &rows.v);
  }
  const auto narrow = [](std::vector<float>* values) {
    for (float& value : *values) value = Bf16ToFloat(FloatToBf16(value));
  };
  if (spec.narrow_block()) narrow(&rows.v);
  if (spec.narrow_block() && spec.mixed()) narrow(&rows.near_k);
  return rows;
}

// The rows as queries and, values, folds read them from the block buffer: under kQ8 values, and
// near keys of mixed kinds, as 8-bit integers (kernels/state_bytes.h).
inline AttentionRows RowsAsRead(const AttentionSpec& spec, AttentionRows rows) {
  const auto quantize = [](std::vector<float>* values, int width) {
    for (size_t i = 0; i < values->size(); i += width) {
      float largest = 0;
      for (int j = 0; j < width; ++j) largest = std::max(largest, std::abs((*values)[i + j]));
      for (int j = 0; j < width && largest > 0; ++j) {
        const float integer = std::nearbyint((*values)[i + j] * (127 / largest));
        (*values)[i + j] = integer * (largest / 127);
      }
    }
  };
  if (spec.byte_copy()) quantize(&rows.v, spec.head_dim);
  if (spec.byte_copy() && spec.mixed()) quantize(&rows.near_k, spec.near_dim());
  return rows;
}

inline OracleOutput AttentionOracle(const AttentionSpec& spec, const AttentionRows& given,
                                    int tokens) {
  const AttentionRows rows = RowsAsKept(spec, given), read_rows = RowsAsRead(spec, rows);
  // Of the tokens that have left a window, whose values are kept, then folded as in a recurrent
  // kind.
  const bool far_window = spec.far_part();
  const AttentionSpec far_spec = far_window ? spec.FarPart() : spec;
  const AttentionRows far_rows =
      far_window ? RowsAsRead(far_spec, RowsAsKept(far_spec, rows)) : read_rows;
  const int heads = spec.heads, kv_heads = spec.key_heads(), d = spec.head_dim;
  OracleOutput out;
  for (auto* array :
       {&out.value, &out.tolerance, &out.bf16_tolerance, &out.byte_tolerance, &out.copy_tolerance,
        &out.word_tolerance, &out.split_tolerance, &out.sums_tolerance}) {
    array->resize(static_cast<size_t>(tokens) * heads * d);
  }
  const std::vector<float>& far_q = FarQueries(spec, rows);
  const std::vector<float>& far_k = FarKeys(spec, rows);
  const int r = spec.far_dim();
  const int features = far_spec.sketched() ? r * r : r;
  const oracle::DecaySums decay(spec, rows, tokens);
  for (int h = 0; h < heads; ++h) {
    const int kv = h * kv_heads / heads;
    std::vector<double> sums(static_cast<size_t>(features) * d);  // S of the blocks before t's
    oracle::ByteScales scales;
    scales.Set(sums, features, d);
    oracle::FoldRoundings fold(features, d);
    for (int t = 0; t < tokens; ++t) {
      // The tokens that are folded before t, block by block.
      int fold_first = 0, fold_last = 0;
      if (far_window && t > 0) {
        fold_first = oracle::Left(spec, t - 1);
        fold_last = oracle::Left(spec, t);
      } else if (!spec.kv_cache() && t > 0 && t % spec.block == 0) {
        fold_first = t - spec.block;
        fold_last = t;
      }
      const double far_factor =
          far_window && t > spec.far_length ? static_cast<double>(spec.far_length) / t : 1;
      for (; fold_first < fold_last; fold_first += spec.block) {
        const int fold_begin = far_window ? std::max(fold_first, spec.sinks) : fold_first;
        const int fold_end = fold_first + spec.block;
        const float last = decay.in_block[(fold_end - 1) * kv_heads + kv];
        for (double& sum : sums) sum *= std::exp(last);
        fold.Begin(std::exp(last));
        const auto value_of = [&](int s) { return &far_rows.v[(s * kv_heads + kv) * d]; };
        const auto scale_of = [&](int s) {
          const float* v = value_of(s);
          return std::abs(*std::max_element(v, v + d, oracle::SmallerMagnitude)) / 127;
        };
        for (int s = fold_begin; s < fold_end; ++s) {
          const double kept =
              std::exp(static_cast<double>(last) - decay.in_block[s * kv_heads + kv]);
          for (int f = 0; f < features; ++f) {
            const double phi = kept * oracle::Feature(far_spec, &far_k[(s * kv_heads + kv) * r], f);
            for (int i = 0; i < d; ++i) sums[f * d + i] += phi * value_of(s)[i];
            if (far_spec.byte_copy()) fold.Step(f, phi * scale_of(s));
          }
        }
        if (far_spec.byte_copy()) {
          std::vector<double> squares(d);
          for (int s = fold_begin; s < fold_end; ++s) {
            for (int i = 0; i < d && scale_of(s) > 0; ++i) {
              squares[i] += Square(value_of(s)[i] / scale_of(s));
            }
          }
          fold.End(squares);
          scales.Set(sums, features, d);
        }
      }

      // Of each sum: its value, the sum of its absolute terms, and the variance that rounding
      // errors of its terms bring.
      std::vector<double> numerator(d), absolute_numerator(d), numerator_variance(d);
      double denominator = spec.stabilizer, absolute_denominator = spec.stabilizer;
      double denominator_variance = 0;
      // The same for errors of the decay gate's factors, which tokens share.
      std::vector<double> numerator_decay(d), numerator_sums(d);
      double denominator_decay = 0, denominator_sums = 0;
      // Variances by rounding the near query, and the weights times the values' scales, to 16 bits.
      std::vector<double> numerator_words(d), steps(d);
      double denominator_words = 0, top_weight = 0;
      std::vector<double> numerator_split(d);  // variance by splitting features
      for (int s = 0; s <= t; ++s) {
        const bool sees = oracle::Sees(spec, t, s);
        if (!sees && !far_window) continue;
        const AttentionSpec& of = sees ? spec : far_spec;
        const AttentionRows& from = sees ? read_rows : far_rows;
        const bool in_block = far_window ? sees : s / spec.block == t / spec.block;
        const bool near = far_window ? sees : !spec.mixed() || in_block;
        const int width = near ? spec.near_dim() : r;
        const float* q = &(near ? rows.near_q : far_q)[(t * heads + h) * width];
        const float* k = &(near ? read_rows.near_k : far_k)[(s * kv_heads + kv) * width];
        double dot = 0, absolute_dot = 0, key_squares = 0, top_query = 0, term_squares = 0;
        for (int i = 0; i < width; ++i) {
          dot += static_cast<double>(q[i]) * k[i];
          absolute_dot += std::abs(static_cast<double>(q[i]) * k[i]);
          key_squares += Square(k[i]);
          term_squares += Square(static_cast<double>(q[i]) * k[i]);
          top_query = std::max<double>(top_query, std::abs(q[i]));
        }
        const size_t row_t = oracle::LastDecay(spec, t, s, sees) * kv_heads + kv,
                     row_s = s * kv_heads + kv;
        const double exponent = decay.Total(row_t) - decay.Total(row_s);
        const double left = std::exp(exponent) * (sees ? 1 : far_factor);
        const float* coefficients = oracle::CoefficientsOf(spec, rows, h);
        const double weight = left * oracle::WeightOfDot(of, near, dot, coefficients);
        // A dot product of n terms is off by about sqrt(n) u sum |q k|; a power multiplies that by
        // its degree, an exponential turns it into a relative error.
        const bool polynomial_square = spec.kind == AttentionKind::kPolynomialSquare;
        const double absolute =
            of.kind == AttentionKind::kSoftmax ? weight * (1 + absolute_dot / std::sqrt(d))
            : polynomial_square                ? weight
                                : left * oracle::WeightOfDot(of, near, absolute_dot, nullptr);
        const double error =
            polynomial_square
                ? oracle::PolynomialSquareError(spec, coefficients, dot, absolute_dot, width)
                : kU * absolute * oracle::Degree(of, near) * std::sqrt(width + 4.0);
        denominator += weight;
        absolute_denominator += absolute;
        denominator_variance += Square(error);
        // A difference of two sums is rounded once, an exponential is off by 2 ulp (4 u), a product
        // by u: once for the query, once for the fold and once for each block between them.
        const int blocks = t / spec.block - s / spec.block;
        const double gate = spec.decay_gate ? kU * (std::abs(exponent) + 6.0 * (blocks + 2)) : 0;
        const double summed = decay.error[row_t] - decay.error[row_s];
        denominator_decay += gate * absolute;
        denominator_sums += summed * absolute;
        // Of the weight, by rounding the query: a step of 1/32767 of its largest element.
        const double words = in_block && spec.mixed()
                                 ? left * oracle::Degree(spec, near) *
                                       std::pow(std::abs(dot), oracle::Degree(spec, near) - 1) *
                                       top_query / 32767 * std::sqrt(key_squares / 12)
                                 : 0;
        denominator_words += Square(words);
        double top_value = 0;
        for (int i = 0; i < d; ++i) {
          const double v = std::abs(from.v[(s * kv_heads + kv) * d + i]);
          top_value = std::max(top_value, v);
          numerator_words[i] += Square(words * v);
        }
        if (in_block && !spec.kv_cache()) {
          // A weight times its value's scale is off by half a step of the largest of them.
          top_weight = std::max(top_weight, std::abs(weight) * top_value / 127);
          for (int i = 0; i < d && top_value > 0; ++i) {
            steps[i] += Square(read_rows.v[(s * kv_heads + kv) * d + i] * 127 / top_value) / 12;
          }
        }
        // A feature of a folded token is off by up to 2^-16 of it, uniform: a variance of a third
        // of the square. The feature (i, j) is also (j, i): errors of two add up as one.
        const double split = in_block        ? 0
                             : of.sketched() ? 2 * Square(left * term_squares)
                                             : Square(left) * term_squares;
        for (int i = 0; i < d; ++i) {
          const double v = from.v[(s * kv_heads + kv) * d + i];
          numerator_split[i] += split * Square(v * 0x1p-16) / 3;
          numerator[i] += weight * v;
          absolute_numerator[i] += absolute * std::abs(v);
          numerator_variance[i] += Square(error * v);
          numerator_decay[i] += gate * absolute * std::abs(v);
          numerator_sums[i] += summed * absolute * std::abs(v);
        }
      }

      // Roundings of the sums themselves: over a block, over the blocks before, over the features,
      // over the near tokens.
      const double roundings = 2.0 * spec.block + static_cast<double>(t) / spec.block + features +
                               (spec.kv_cache() ? t : 0);
      const double denominator_error =
          std::sqrt(denominator_variance + roundings * Square(kU * absolute_denominator)) +
          denominator_decay;
      // A gated query of a recurrent kind reads S times what its block keeps up to it.
      const double decayed = far_window ? far_factor : std::exp(decay.in_block[t * kv_heads + kv]);
      const oracle::ReadErrors read(far_spec, &far_q[(t * heads + h) * r], decayed, sums, scales,
                                    fold);
      for (int i = 0; i < d; ++i) {
        const size_t index = (t * heads + h) * d + i;
        const double value = numerator[i] / denominator;
        const double numerator_error =
            std::sqrt(numerator_variance[i] + roundings * Square(kU * absolute_numerator[i])) +
            numerator_decay[i];
        out.value[index] = value;
        out.tolerance[index] =
            kDeviations * std::hypot(numerator_error, value * denominator_error) / denominator +
            3 * kU * std::abs(value);
        const double words = read.words[i] + numerator_words[i] +
                             Square(value) * denominator_words +
                             Square(top_weight / 32767) * steps[i];
        out.bf16_tolerance[index] = kDeviations * std::sqrt(read.bf16[i]) / denominator;
        out.byte_tolerance[index] = kDeviations * std::sqrt(read.bytes[i] + words) / denominator;
        out.copy_tolerance[index] = kDeviations * std::sqrt(read.copy[i]) / denominator;
        out.word_tolerance[index] = kDeviations * std::sqrt(words) / denominator;
        out.split_tolerance[index] = kDeviations * std::sqrt(numerator_split[i]) / denominator;
        out.sums_tolerance[index] =
            (numerator_sums[i] + std::abs(value) * denominator_sums) / denominator;
      }
    }
  }
  return out;
}

}  // namespace polysketch::testing
