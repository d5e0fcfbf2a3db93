// Attention inputs for tests, and a runner that packs any mix of sequences into steps, as a model
// does.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/testing/guarded_floats.h"
#include "tests/testing/random.h"

namespace polysketch::testing {

// One layer's inputs of one sequence, [tokens, heads, .], keys and values [tokens, kv heads, .].
// Far rows stay empty where they are the near ones, or unused.
struct AttentionRows {
  std::vector<float> near_q, near_k, far_q, far_k, v;
  std::vector<float> log_decay = {};     // [tokens, kv heads]; with a decay gate
  std::vector<float> coefficients = {};  // [heads, power + 1]; polynomial_square
  bool operator==(const AttentionRows&) const = default;
};

struct Sequence {
  int tokens = 0;
  std::vector<AttentionRows> layers;
  bool operator==(const Sequence&) const = default;
};

inline const std::vector<float>& FarQueries(const AttentionSpec& spec, const AttentionRows& rows) {
  return spec.keeps_far_keys() ? rows.far_q : rows.near_q;
}
inline const std::vector<float>& FarKeys(const AttentionSpec& spec, const AttentionRows& rows) {
  return spec.keeps_far_keys() ? rows.far_k : rows.near_k;
}

// The attention of the layers of a test.
class Layers {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): most tests have one layer
  Layers(const AttentionSpec& spec, int count = 1) : specs_(static_cast<size_t>(count), spec) {}
  explicit Layers(std::vector<AttentionSpec> specs) : specs_(std::move(specs)) {}

  // NOLINTNEXTLINE(google-explicit-constructor): what a backend takes
  operator std::span<const AttentionSpec>() const { return specs_; }
  int size() const { return static_cast<int>(specs_.size()); }
  const AttentionSpec& operator[](int layer) const { return specs_[static_cast<size_t>(layer)]; }
  auto begin() const { return specs_.begin(); }
  auto end() const { return specs_.end(); }

 private:
  std::vector<AttentionSpec> specs_;
};

// As many layers of each spec.
inline std::vector<Layers> InLayers(const std::vector<AttentionSpec>& specs, int count) {
  std::vector<Layers> models;
  models.reserve(specs.size());
  for (const AttentionSpec& spec : specs) models.emplace_back(spec, count);
  return models;
}

inline AttentionSpec MakeSpec(AttentionKind kind, int heads, int head_dim, int size, int block) {
  AttentionSpec spec;
  spec.kind = kind;
  spec.heads = heads;
  spec.head_dim = head_dim;
  spec.block = block;
  if (spec.sketched()) spec.sketch_size = size;
  if (kind == AttentionKind::kSymmetricPower) spec.sketch_size = head_dim;
  if (kind == AttentionKind::kAffineSquare) spec.sketch_size = head_dim + 1;
  if (kind == AttentionKind::kPolynomialSquare) {
    spec.power = 3;  // which has a root
    spec.alpha = 0.25f;
    spec.beta = 1.5f;
  }
  if (spec.traits().far == FarRows::kFeatures) spec.num_features = head_dim;
  if (kind == AttentionKind::kPerformer) spec.num_features = size;
  spec.stabilizer = spec.traits().stabilizer;
  return spec;
}

inline constexpr auto& kAllKinds = kAllAttentionKinds;

// Whether the sketch of a head is as wide as the head: a wide head has thousands of features.
inline bool SketchesWholeHeads(AttentionKind kind) {
  return kind == AttentionKind::kSymmetricPower || kind == AttentionKind::kAffineSquare;
}

// Coefficients of either sign, others in each layer and head; the same for all sequences, as in a
// model.
inline std::vector<float> CoefficientsFor(const AttentionSpec& spec, int layer) {
  std::vector<float> coefficients;
  if (spec.kind != AttentionKind::kPolynomialSquare) return coefficients;
  for (int head = 0; head < spec.heads; ++head) {
    for (int i = 0; i <= spec.power; ++i) {
      const double magnitude = (1 + 0.25 * head + 0.125 * layer) / (1 + i);
      coefficients.push_back(static_cast<float>((i + head) % 3 == 2 ? -magnitude : magnitude));
    }
  }
  return coefficients;
}

// The specs, then a copy with a decay gate of each that may have one.
inline std::vector<AttentionSpec> WithDecayGates(std::vector<AttentionSpec> specs) {
  for (size_t i = 0, n = specs.size(); i < n; ++i) {
    if (specs[i].kv_cache()) continue;
    specs.push_back(specs[i]);
    specs.back().decay_gate = true;
  }
  return specs;
}

// KV kinds with fewer heads of keys and values than of queries: groups of several sizes, one group
// alone, and groups larger than a kernel's tile of queries.
inline std::vector<AttentionSpec> GroupedSpecs() {
  struct Shape {
    int heads, kv_heads, head_dim, block;
  };
  constexpr Shape kShapes[] = {
      {4, 2, 10, 16}, {9, 3, 32, 3}, {6, 1, 7, 1}, {13, 1, 33, 32}, {50, 2, 16, 8}};
  std::vector<AttentionSpec> specs;
  for (const AttentionKind kind :
       {AttentionKind::kSoftmax, AttentionKind::kPolynomial, AttentionKind::kPolynomialSquare}) {
    for (const Shape& shape : kShapes) {
      specs.push_back(MakeSpec(kind, shape.heads, shape.head_dim, 0, shape.block));
      specs.back().kv_heads = shape.kv_heads;
    }
  }
  return specs;
}

// The same of recurrent kinds: with and without gates, in every state format, and one of each kind
// of features.
inline std::vector<AttentionSpec> GroupedRecurrentSpecs() {
  struct Shape {
    int heads, kv_heads, head_dim, block;
  };
  constexpr Shape kShapes[] = {{4, 2, 10, 16}, {9, 3, 16, 3}, {13, 1, 7, 8}, {24, 2, 16, 32}};
  std::vector<AttentionSpec> specs;
  const auto add = [&](AttentionKind kind, const Shape& shape, bool gated, StateFormat format) {
    specs.push_back(MakeSpec(kind, shape.heads, shape.head_dim, 11, shape.block));
    specs.back().kv_heads = shape.kv_heads;
    specs.back().decay_gate = gated;
    specs.back().state_format = format;
  };
  for (const StateFormat format : {StateFormat::kF32, StateFormat::kBf16, StateFormat::kQ8}) {
    for (const Shape& shape : kShapes) {
      add(AttentionKind::kSymmetricPower, shape, shape.block > 3, format);
      specs.back().stabilizer = 1e-6f;
    }
  }
  add(AttentionKind::kRandomSketch, kShapes[0], true, StateFormat::kF32);
  add(AttentionKind::kLinear, kShapes[1], true, StateFormat::kBf16);
  add(AttentionKind::kLearnedSketchMixed, kShapes[2], true, StateFormat::kQ8);
  return specs;
}

// KV kinds with windows: shorter and longer than blocks, of one token, beginning at the start of a
// block and within it; with sinks in a part of a block, in several, and more of them than the
// window.
inline std::vector<AttentionSpec> WindowSpecs() {
  struct Shape {
    int heads, kv_heads, head_dim, block, window;
    WindowKind kind;
    int sinks;
  };
  constexpr auto kSliding = WindowKind::kSliding, kBlocks = WindowKind::kBlocks;
  constexpr Shape kShapes[] = {{2, 2, 10, 8, 5, kSliding, 0},  {4, 2, 16, 8, 20, kSliding, 3},
                               {2, 1, 7, 8, 17, kSliding, 11}, {6, 2, 32, 16, 16, kBlocks, 0},
                               {13, 1, 33, 8, 7, kBlocks, 9},  {2, 1, 16, 32, 40, kSliding, 4},
                               {3, 3, 10, 1, 3, kSliding, 2},  {2, 2, 10, 8, 1, kSliding, 0},
                               {1, 1, 6, 1, 1, kSliding, 1},   {2, 1, 64, 8, 8, kBlocks, 1}};
  std::vector<AttentionSpec> specs;
  for (const Shape& shape : kShapes) {
    specs.push_back(MakeSpec(AttentionKind::kSoftmax, shape.heads, shape.head_dim, 0, shape.block));
    specs.back().kv_heads = shape.kv_heads;
    specs.back().window = shape.window;
    specs.back().window_kind = shape.kind;
    specs.back().sinks = shape.sinks;
  }
  for (const AttentionKind kind : {AttentionKind::kPolynomial, AttentionKind::kPolynomialSquare}) {
    specs.push_back(MakeSpec(kind, 2, 10, 0, 8));
    specs.back().window = 13;
    specs.back().sinks = 2;
  }
  return specs;
}

// Windows with a far part: of one block and of several, with sinks that fill a part of a block,
// whole blocks, more than the window; lengths that sequences pass and that they do not.
inline std::vector<AttentionSpec> FarWindowSpecs() {
  struct Shape {
    int heads, kv_heads, head_dim, block, window, sinks, far_size, far_length;
    AttentionKind far_kind = AttentionKind::kSymmetricPower;
    bool decay_gate = false;
  };
  constexpr Shape kShapes[] = {{2, 2, 10, 8, 8, 0, 16, 40},
                               {6, 2, 32, 16, 32, 4, 16, 1000},
                               {13, 1, 33, 8, 24, 9, 32, 60},
                               {2, 1, 16, 1, 3, 2, 16, 20},
                               {4, 2, 64, 32, 32, 40, 16, 90},
                               {6, 2, 32, 16, 32, 4, 64, 60, AttentionKind::kLinear},
                               {2, 2, 10, 8, 8, 0, 16, 40, AttentionKind::kLinear},
                               {6, 2, 32, 16, 32, 4, 16, 60, AttentionKind::kSymmetricPower, true},
                               {4, 2, 64, 32, 64, 40, 16, 90, AttentionKind::kSymmetricPower, true},
                               {2, 2, 10, 8, 8, 0, 16, 40, AttentionKind::kLinear, true}};
  std::vector<AttentionSpec> specs;
  for (const Shape& shape : kShapes) {
    AttentionSpec spec =
        MakeSpec(AttentionKind::kSoftmax, shape.heads, shape.head_dim, 0, shape.block);
    spec.kv_heads = shape.kv_heads;
    spec.window = shape.window;
    spec.window_kind = WindowKind::kBlocks;
    spec.sinks = shape.sinks;
    spec.far_kind = shape.far_kind;
    spec.far_size = shape.far_size;
    spec.far_length = shape.far_length;
    spec.decay_gate = shape.decay_gate;
    specs.push_back(spec);
  }
  return specs;
}

// Softmax over caches of several spans (docs/numerics.md): spans that begin at the start of a
// block, within it, and between panels of a block; windows whose first span has masked tokens, with
// sinks apart. A test runs four blocks and some tokens more.
inline std::vector<AttentionSpec> SpanSpecs() {
  struct Shape {
    int heads, kv_heads, head_dim, block, window, sinks;
  };
  constexpr Shape kShapes[] = {
      {3, 1, 10, 256, 0, 0}, {2, 1, 16, 96, 0, 0}, {6, 3, 7, 128, 150, 5}, {2, 2, 6, 192, 300, 70}};
  std::vector<AttentionSpec> specs;
  for (const Shape& shape : kShapes) {
    specs.push_back(MakeSpec(AttentionKind::kSoftmax, shape.heads, shape.head_dim, 0, shape.block));
    specs.back().kv_heads = shape.kv_heads;
    specs.back().window = shape.window;
    specs.back().sinks = shape.sinks;
  }
  return specs;
}

// Models whose layers differ: in what they keep of the past, in blocks, in heads and in width.
inline std::vector<Layers> Mixtures() {
  AttentionSpec full = MakeSpec(AttentionKind::kSoftmax, 4, 10, 0, 8);
  full.kv_heads = 2;
  AttentionSpec window = full, blocks = full;
  window.window = 11;
  window.sinks = 3;
  blocks.window = 6;
  blocks.window_kind = WindowKind::kBlocks;
  AttentionSpec gated = MakeSpec(AttentionKind::kLearnedSketchMixed, 2, 10, 11, 12);
  gated.decay_gate = true;
  const AttentionSpec sketched = MakeSpec(AttentionKind::kRandomSketch, 3, 16, 11, 8);
  const AttentionSpec polynomial = MakeSpec(AttentionKind::kPolynomial, 2, 10, 0, 16);
  AttentionSpec far = blocks;
  far.window = 8;
  far.sinks = 3;
  far.far_size = 16;
  far.far_length = 30;
  std::vector<AttentionSpec> narrow = {sketched, window, gated, full};
  for (AttentionSpec& spec : narrow) spec.state_format = StateFormat::kQ8;
  AttentionSpec half = window, bytes = blocks;
  half.state_format = StateFormat::kF16;
  bytes.state_format = StateFormat::kQ8;
  AttentionSpec half_far = far, bytes_far = far;
  half_far.state_format = StateFormat::kF16;
  half_far.decay_gate = true;
  bytes_far.state_format = StateFormat::kQ8;
  return {Layers({full, window, gated, polynomial, window}),
          Layers({window, blocks, window}),
          Layers({sketched, full, gated}),
          Layers(narrow),
          Layers({half, gated, full, bytes}),
          Layers({full, far, window, far}),
          Layers({half_far, gated, bytes_far})};
}

// The formats besides float32 that change what a layer keeps.
inline std::vector<StateFormat> NarrowFormats(const AttentionSpec& spec) {
  return {spec.kv_cache() ? StateFormat::kF16 : StateFormat::kBf16, StateFormat::kQ8};
}

// The specs, then copies of each in the other state formats.
inline std::vector<AttentionSpec> WithStateFormats(std::vector<AttentionSpec> specs) {
  for (size_t i = 0, n = specs.size(); i < n; ++i) {
    for (const StateFormat format : NarrowFormats(specs[i])) {
      specs.push_back(specs[i]);
      specs.back().state_format = format;
    }
  }
  return specs;
}

// Rows whose dot products are of order one; far rows of sketches with their zero columns, features
// that are positive where the kind makes them so. Gates that keep most of the past, and now and
// then forget it.
inline AttentionRows RandomRows(const AttentionSpec& spec, int layer, int tokens, Random* random) {
  const auto far_rows = [&](int heads) {
    const int width = spec.far_dim();
    const bool sketched = (spec.far_part() ? spec.FarPart() : spec).sketched();
    const int used = spec.sketched() ? spec.sketch_size : width;
    std::vector<float> rows(static_cast<size_t>(tokens) * heads * width);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (static_cast<int>(i % width) >= used) continue;
      rows[i] = static_cast<float>(sketched ? random->Normal() / std::pow(used, 0.25)
                                            : random->Uniform(0.01, 2) / std::sqrt(used));
    }
    return rows;
  };
  const auto near_rows = [&](int heads) {
    if (!spec.mixed() && !spec.kv_cache()) return far_rows(heads);
    const double scale = spec.kind == AttentionKind::kSoftmax ? 1 : std::pow(spec.head_dim, -0.25);
    return random->Normals(static_cast<size_t>(tokens) * heads * spec.head_dim, scale);
  };
  AttentionRows rows;
  rows.coefficients = CoefficientsFor(spec, layer);
  rows.near_q = near_rows(spec.heads);
  rows.near_k = near_rows(spec.key_heads());
  if (spec.keeps_far_keys()) {
    rows.far_q = far_rows(spec.heads);
    rows.far_k = far_rows(spec.key_heads());
  }
  rows.v = random->Normals(static_cast<size_t>(tokens) * spec.key_heads() * spec.head_dim);
  for (int i = 0; spec.decay_gate && i < tokens * spec.key_heads(); ++i) {
    const double top = random->Int(0, 19) == 0 ? 12 : 0.1;
    rows.log_decay.push_back(static_cast<float>(-random->Uniform(0, top)));
  }
  return rows;
}

inline Sequence RandomSequence(const Layers& layers, int tokens, Random* random) {
  Sequence sequence{tokens, {}};
  for (int i = 0; i < layers.size(); ++i) {
    sequence.layers.push_back(RandomRows(layers[i], i, tokens, random));
  }
  return sequence;
}

// A sequence on its way through a backend: how far it is, its state, and the outputs so far.
struct Runner {
  Runner(Backend& backend, const Layers& layers, const Sequence& sequence)
      : sequence(&sequence),
        state(backend.NewState(layers)),
        outputs(static_cast<size_t>(layers.size())) {}

  const Sequence* sequence;
  std::unique_ptr<SequenceState> state;
  std::vector<std::vector<float>> outputs;  // [layer] of [tokens, heads, d]
};

// The next `rows` tokens of a sequence.
struct Part {
  Runner* runner;
  int rows;
};

// What a step calls in place of Attention.
using AttendFn = std::function<void(int layer, std::span<const Segment> segments,
                                    const AttentionInput& input, float* out)>;

// One step over all layers. v lies in the last part of joint q, k, v rows, whose other parts must
// not be read.
inline void Step(Backend& backend, const Layers& layers, const std::vector<Part>& parts,
                 const AttendFn& attend = nullptr) {
  std::vector<Segment> segments;
  int rows = 0;
  for (const Part& part : parts) {
    segments.push_back({part.runner->state.get(), rows, part.rows});
    rows += part.rows;
  }
  for (int layer = 0; layer < layers.size(); ++layer) {
    const AttentionSpec& spec = layers[layer];
    const int heads = spec.heads, kv_heads = spec.key_heads(), d = spec.head_dim;
    // Packs [tokens, width] slices of every part.
    const auto pack = [&](auto member, int width) {
      std::vector<float> packed;
      for (const Part& part : parts) {
        const std::vector<float>& all = part.runner->sequence->layers[layer].*member;
        const auto begin = all.begin() + part.runner->state->position() * width;
        packed.insert(packed.end(), begin, begin + static_cast<int64_t>(part.rows) * width);
      }
      return packed;
    };
    const GuardedFloats near_q(pack(&AttentionRows::near_q, heads * spec.near_dim()));
    const GuardedFloats near_k(pack(&AttentionRows::near_k, kv_heads * spec.near_dim()));
    const int far_width = spec.keeps_far_keys() ? spec.far_dim() : 0;
    const GuardedFloats far_q(pack(&AttentionRows::far_q, heads * far_width));
    const GuardedFloats far_k(pack(&AttentionRows::far_k, kv_heads * far_width));
    const GuardedFloats log_decay(pack(&AttentionRows::log_decay, spec.decay_gate ? kv_heads : 0));
    const std::vector<float> v = pack(&AttentionRows::v, kv_heads * d);
    const int stride = (heads + 2 * kv_heads) * d, v_offset = (heads + kv_heads) * d;
    std::vector<float> qkv(static_cast<size_t>(rows) * stride,
                           std::numeric_limits<float>::quiet_NaN());
    for (int m = 0; m < rows; ++m) {
      std::copy_n(v.begin() + m * kv_heads * d, kv_heads * d, qkv.begin() + m * stride + v_offset);
    }
    AttentionInput input;
    input.near_q = near_q.data();
    input.near_k = near_k.data();
    if (spec.has_far_part()) {
      input.far_q = spec.keeps_far_keys() ? far_q.data() : near_q.data();
      input.far_k = spec.keeps_far_keys() ? far_k.data() : near_k.data();
    }
    input.v = qkv.data() + v_offset;
    input.v_stride = stride;
    input.log_decay = log_decay.data();
    const GuardedFloats coefficients(parts[0].runner->sequence->layers[layer].coefficients);
    input.coefficients = coefficients.data();
    GuardedFloats out(static_cast<size_t>(rows) * heads * d);
    if (attend) {
      attend(layer, segments, input, out.data());
    } else {
      backend.Attention(spec, layer, segments, input, out.data());
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const float* begin = out.data() + segments[i].first_row * heads * d;
      std::vector<float>& outputs = parts[i].runner->outputs[layer];
      outputs.insert(outputs.end(), begin, begin + parts[i].rows * heads * d);
    }
  }
  for (const Part& part : parts) part.runner->state->Advance(part.rows);
}

// All outputs of a sequence that runs alone, in the given parts.
inline std::vector<std::vector<float>> RunAlone(Backend& backend, const Layers& layers,
                                                const Sequence& sequence,
                                                const std::vector<int>& parts,
                                                const AttendFn& attend = nullptr) {
  Runner runner(backend, layers, sequence);
  for (const int rows : parts) Step(backend, layers, {{&runner, rows}}, attend);
  return runner.outputs;
}

inline std::string DescribeLayer(const AttentionSpec& spec) {
  const std::string window =
      spec.window == 0
          ? ""
          : StrCat(spec.window_kind == WindowKind::kBlocks ? " blocks" : " window", spec.window,
                   " sinks", spec.sinks, " far ", AttentionKindName(spec.far_kind), " ",
                   spec.far_size, "/", spec.far_length);
  return StrCat(AttentionKindName(spec.kind), " heads ", spec.heads, "/", spec.key_heads(), " d",
                spec.head_dim, " r", spec.sketch_size, " m", spec.num_features, " b", spec.block,
                " ", StateFormatName(spec.state_format), spec.decay_gate ? " gated" : "", window);
}

inline std::string Describe(const Layers& layers) {
  std::string all = StrCat(layers.size(), " layers: ");
  for (int i = 0; i < layers.size(); ++i) {
    if (i == 0 || layers[i] != layers[i - 1])
      all += StrCat(i > 0 ? ", " : "", DescribeLayer(layers[i]));
  }
  return all;
}

}  // namespace polysketch::testing
