// The kinds of attention and what sets them apart. docs/attention.md has the equations. The Python
// copies (tools/polysketch_tools/model_config.py) are compared with the table by
// tests/tools/attention_kinds_test.py.
#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>

namespace polysketch {

enum class AttentionKind {
  kSoftmax,             // near only: exp(q.k / sqrt(d)), a KV cache
  kPolynomial,          // near only: (q'.k')^p, a KV cache
  kRandomSketch,        // (f(q').f(k'))^2
  kLearnedSketch,       // (g(q).g(k))^2
  kLearnedSketchMixed,  // own block (q''.k'')^near_power, earlier blocks (g(q).g(k))^2
  kRandomSketchMixed,   // the same with f
  kLinear,              // phi(q).phi(k), phi = elu + 1
  kPerformer,           // phi(q).phi(k), FAVOR+ positive features
  kSymmetricPower,      // (q'.k')^2, the sketch is q' itself: r = d
  kPolynomialSquare,    // near only: P((q'.k' + alpha) / beta)^2, a KV cache
  kAffineSquare,        // the same with P of degree 1, which has a sketch: r = d + 1
};

// What the far part of a recurrent kind reads of a query or a key.
enum class FarRows {
  kNone,         // a KV kind
  kRandom,       // a sketch by random matrices
  kLearned,      // a sketch by a network
  kHead,         // the normed head as a sketch
  kHeadAndOne,   // the normed head and a constant as a sketch
  kFeatures,     // d features
  kOwnFeatures,  // features of a number of their own
};

struct AttentionTraits {
  std::string_view name;  // of config.json
  FarRows far;
  bool mixed = false;         // whether the near part has weights of its own
  bool qk_norm = false;       // AttentionSpec::qk_norm
  bool coefficients = false;  // AttentionSpec::has_coefficients
  float stabilizer = 1;       // c of the denominator
  // Of a near dot product in its weight, unless AttentionSpec says it; 0: it is an exponent.
  int near_degree = 2;
  // The values of `power` in config.json, and the one of a config without it; 0: it is required.
  int min_power = 2, max_power = 64, default_power = 4;
};

inline constexpr AttentionTraits kAttentionTraits[] = {
    // in the order of AttentionKind, one line for each
    // clang-format off
    {.name = "softmax", .far = FarRows::kNone, .stabilizer = 0, .near_degree = 0},
    {.name = "polynomial", .far = FarRows::kNone, .qk_norm = true},
    {.name = "random_sketch", .far = FarRows::kRandom, .qk_norm = true},
    {.name = "learned_sketch", .far = FarRows::kLearned},
    {.name = "learned_sketch_mixed", .far = FarRows::kLearned, .mixed = true},
    {.name = "random_sketch_mixed", .far = FarRows::kRandom, .mixed = true, .qk_norm = true},
    {.name = "linear", .far = FarRows::kFeatures, .stabilizer = 1e-6f, .near_degree = 1},
    {.name = "performer", .far = FarRows::kOwnFeatures, .stabilizer = 1e-6f, .near_degree = 1},
    {.name = "symmetric_power", .far = FarRows::kHead, .qk_norm = true, .default_power = 2},
    {.name = "polynomial_square", .far = FarRows::kNone, .qk_norm = true, .coefficients = true, .min_power = 1, .max_power = 8, .default_power = 0},
    {.name = "affine_square", .far = FarRows::kHeadAndOne, .qk_norm = true, .coefficients = true, .min_power = 1, .max_power = 1, .default_power = 1},
    // clang-format on
};
inline constexpr int kAttentionKinds = static_cast<int>(std::size(kAttentionTraits));
static_assert(kAttentionKinds == static_cast<int>(AttentionKind::kAffineSquare) + 1);

inline constexpr auto kAllAttentionKinds = [] {
  std::array<AttentionKind, kAttentionKinds> kinds{};
  for (int i = 0; i < kAttentionKinds; ++i) kinds[i] = static_cast<AttentionKind>(i);
  return kinds;
}();

constexpr const AttentionTraits& TraitsOf(AttentionKind kind) {
  return kAttentionTraits[static_cast<size_t>(kind)];
}
// The kind of a name of config.json.
constexpr std::optional<AttentionKind> AttentionKindOf(std::string_view name) {
  for (const AttentionKind kind : kAllAttentionKinds) {
    if (TraitsOf(kind).name == name) return kind;
  }
  return std::nullopt;
}
constexpr std::string_view AttentionKindName(AttentionKind kind) { return TraitsOf(kind).name; }

}  // namespace polysketch
