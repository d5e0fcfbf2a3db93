// A training-shaped attention problem: bf16 inputs, its exact answer a head, and a run of it
// through the C interface (kernels/cuda/training/polysketch_attention.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/half.h"
#include "kernels/attention_spec.h"
#include "kernels/cuda/training/polysketch_attention.h"
#include "tests/cuda/device_array.h"
#include "tests/kernels/attention_gradient.h"
#include "tests/testing/random.h"

namespace polysketch::testing {

// Rounds to what bf16 holds.
inline double AsBf16(double x) { return Bf16ToFloat(FloatToBf16(static_cast<float>(x))); }

struct TrainingProblem {
  polysketch_attention_shape shape{};
  std::vector<definition::HeadRows> heads;  // batch * heads, all values of bf16
  std::vector<std::vector<double>> g;       // [tokens][d] each

  // The kind with these sums. In the sketched form near rows stand for far ones too.
  AttentionSpec spec() const {
    AttentionSpec spec;
    spec.heads = 1;
    spec.head_dim = shape.head_dim;
    spec.kind = shape.sketch_dim == 0  ? AttentionKind::kPolynomial
                : shape.far_power == 1 ? AttentionKind::kPerformer
                : shape.near_dim == 0  ? AttentionKind::kLearnedSketch
                                       : AttentionKind::kLearnedSketchMixed;
    spec.sketch_size = spec.num_features = shape.sketch_dim;
    spec.block = shape.sketch_dim == 0 ? static_cast<int>(shape.tokens) : shape.block;
    spec.power = spec.near_power = shape.near_power;
    spec.stabilizer = shape.stabilizer;
    spec.decay_gate = shape.decay_gate == 1;
    return spec;
  }
};

// Rows whose dot products are of order one, and positive in the linear form, as those of feature maps
// are; gates that keep most of the past, and now and then forget
// it.
inline TrainingProblem RandomProblem(const polysketch_attention_shape& shape, Random* random) {
  TrainingProblem problem{shape, {}, {}};
  const auto rows = [&](int width, double scale) {
    std::vector<double> values(shape.tokens * width);
    for (double& x : values) x = AsBf16(scale * random->Normal());
    return values;
  };
  const auto far_rows = [&](int width) {
    std::vector<double> values =
        rows(width, shape.far_power == 1 ? 1 / std::sqrt(width) : std::pow(width, -0.25));
    for (double& x : values) x = shape.far_power == 1 ? std::abs(x) : x;
    return values;
  };
  const auto unit = [](int width) { return std::pow(width, -0.25); };
  for (int64_t h = 0; h < shape.batch * shape.heads; ++h) {
    definition::HeadRows head;
    if (shape.near_dim > 0) {
      head.near_q = rows(shape.near_dim, unit(shape.near_dim));
      head.near_k = rows(shape.near_dim, unit(shape.near_dim));
    }
    if (shape.sketch_dim > 0) {
      (shape.near_dim > 0 ? head.far_q : head.near_q) = far_rows(shape.sketch_dim);
      (shape.near_dim > 0 ? head.far_k : head.near_k) = far_rows(shape.sketch_dim);
    }
    head.v = rows(shape.head_dim, 1);
    for (int64_t t = 0; t < shape.tokens && shape.decay_gate == 1; ++t) {
      const double top = random->Int(0, 19) == 0 ? 12 : 0.1;
      head.log_decay.push_back(static_cast<float>(-random->Uniform(0, top)));
    }
    problem.heads.push_back(std::move(head));
    problem.g.push_back(rows(shape.head_dim, 1));
  }
  return problem;
}

// A tensor of the problem on the device. Tokens before heads, or heads before tokens with a gap
// after each row: strides are used, not assumed.
class TrainingTensor {
 public:
  TrainingTensor(const polysketch_attention_shape& shape, int width, bool tokens_first, int type)
      : shape_(shape), width_(width) {
    const int64_t row = width + 8;
    tensor_.type = type;
    tensor_.token_stride = tokens_first ? shape.heads * row : row;
    tensor_.head_stride = tokens_first ? row : shape.tokens * row;
    tensor_.batch_stride = shape.heads * shape.tokens * row;
    const int element = type == POLYSKETCH_F32 ? 4 : 2;
    bytes_ = std::make_unique<TestArray<uint8_t>>(shape.batch * tensor_.batch_stride * element);
    tensor_.data = bytes_->data();
  }
  // One vector [tokens][width] a head.
  template <typename Of>
  void Fill(const Of& of) {
    std::vector<uint16_t> values(bytes_->size() / 2, 0x7fc0);  // NaN in the gaps
    ForRows([&](int64_t head, int64_t token, int64_t offset) {
      for (int i = 0; i < width_; ++i) {
        const auto value = static_cast<float>(of(head)[token * width_ + i]);
        values[offset + i] =
            tensor_.type == POLYSKETCH_BF16 ? FloatToBf16(value) : FloatToF16(value);
      }
    });
    std::vector<uint8_t> bytes(bytes_->size());
    std::memcpy(bytes.data(), values.data(), bytes.size());
    bytes_ = std::make_unique<TestArray<uint8_t>>(bytes);
    tensor_.data = bytes_->data();
  }
  std::vector<std::vector<float>> Heads() const {
    const std::vector<uint8_t> bytes = bytes_->ToHost();
    std::vector<std::vector<float>> heads(shape_.batch * shape_.heads);
    ForRows([&](int64_t head, int64_t, int64_t offset) {
      for (int i = 0; i < width_; ++i) {
        float value;
        if (tensor_.type == POLYSKETCH_F32) {
          std::memcpy(&value, &bytes[(offset + i) * 4], 4);
        } else {
          uint16_t half;
          std::memcpy(&half, &bytes[(offset + i) * 2], 2);
          value = tensor_.type == POLYSKETCH_BF16 ? Bf16ToFloat(half) : F16ToFloat(half);
        }
        heads[head].push_back(value);
      }
    });
    return heads;
  }
  const polysketch_attention_tensor& tensor() const { return tensor_; }

 private:
  template <typename Visit>
  void ForRows(const Visit& visit) const {
    for (int64_t head = 0; head < shape_.batch * shape_.heads; ++head) {
      for (int64_t token = 0; token < shape_.tokens; ++token) {
        visit(head, token,
              head / shape_.heads * tensor_.batch_stride +
                  head % shape_.heads * tensor_.head_stride + token * tensor_.token_stride);
      }
    }
  }

  const polysketch_attention_shape shape_;
  const int width_;
  polysketch_attention_tensor tensor_{};
  std::unique_ptr<TestArray<uint8_t>> bytes_;
};

// The five arrays of a problem, or their gradients.
struct TrainingTensors {
  TrainingTensors(const polysketch_attention_shape& shape, bool tokens_first, int type)
      : near_q(shape, shape.near_dim, tokens_first, type),
        near_k(shape, shape.near_dim, tokens_first, type),
        far_q(shape, shape.sketch_dim, tokens_first, type),
        far_k(shape, shape.sketch_dim, tokens_first, type),
        v(shape, shape.head_dim, tokens_first, type),
        log_decay(std::make_unique<TestArray<float>>(shape.batch * shape.heads * shape.tokens)) {}
  polysketch_attention_arrays arrays() const {
    return {near_q.tensor(), near_k.tensor(), far_q.tensor(),
            far_k.tensor(),  v.tensor(),      log_decay->data()};
  }
  TrainingTensor near_q, near_k, far_q, far_k, v;
  std::unique_ptr<TestArray<float>> log_decay;
};

struct TrainingResult {
  std::vector<std::vector<float>> out;  // a head each
  std::vector<float> denominators;      // [batch * heads][tokens]
  // As in definition::HeadRows: near ones are the far ones' in the sketched form.
  std::vector<std::vector<float>> near_q, near_k, far_q, far_k, v;
  std::vector<std::vector<float>> log_decay;  // with a decay gate
};

// Tokens [begin, end) of a problem, as a chunk.
inline TrainingProblem ChunkOf(const TrainingProblem& whole, int64_t begin, int64_t end) {
  const auto cut = [&](const std::vector<double>& rows) {
    const auto width = static_cast<int64_t>(rows.size()) / whole.shape.tokens;
    return std::vector<double>(rows.begin() + begin * width, rows.begin() + end * width);
  };
  TrainingProblem chunk{whole.shape, {}, {}};
  chunk.shape.tokens = end - begin;
  chunk.shape.chunk = 1;
  for (const definition::HeadRows& rows : whole.heads) {
    chunk.heads.push_back({cut(rows.near_q), cut(rows.near_k), cut(rows.far_q), cut(rows.far_k),
                           cut(rows.v), cut(rows.log_decay)});
  }
  for (const std::vector<double>& g : whole.g) chunk.g.push_back(cut(g));
  return chunk;
}

// The states of all heads before a chunk (empty: none) and, if it is wanted, after it.
struct TrainingStates {
  std::vector<float> before, after;
  bool wants_after = false;
};

// type: of outputs and gradients.
inline TrainingResult RunTraining(const TrainingProblem& problem, int type = POLYSKETCH_F32,
                                  bool tokens_first = false, TrainingStates* states = nullptr) {
  const polysketch_attention_shape& shape = problem.shape;
  std::unique_ptr<TestArray<float>> before, after;
  if (states != nullptr) {
    size_t floats = 0;
    EXPECT_EQ(polysketch_attention_state(&shape, &floats), POLYSKETCH_ATTENTION_OK)
        << polysketch_attention_error();
    if (!states->before.empty()) before = std::make_unique<TestArray<float>>(states->before);
    if (states->wants_after) {
      after = std::make_unique<TestArray<float>>(shape.batch * shape.heads * floats);
    }
  }
  const float* initial = before == nullptr ? nullptr : before->data();
  const bool own_near = shape.near_dim > 0;
  TrainingTensors inputs(shape, tokens_first, shape.input_type);
  TrainingTensors gradients(shape, !tokens_first, type);
  const auto fill = [&](TrainingTensor& tensor, std::vector<double> definition::HeadRows::*rows) {
    tensor.Fill([&](int64_t head) { return problem.heads[head].*rows; });
  };
  using definition::HeadRows;
  if (own_near) {
    fill(inputs.near_q, &HeadRows::near_q);
    fill(inputs.near_k, &HeadRows::near_k);
  }
  if (shape.sketch_dim > 0) {
    fill(inputs.far_q, own_near ? &HeadRows::far_q : &HeadRows::near_q);
    fill(inputs.far_k, own_near ? &HeadRows::far_k : &HeadRows::near_k);
  }
  fill(inputs.v, &HeadRows::v);
  if (shape.decay_gate == 1) {
    std::vector<float> log_decay;
    for (const HeadRows& rows : problem.heads) {
      log_decay.insert(log_decay.end(), rows.log_decay.begin(), rows.log_decay.end());
    }
    inputs.log_decay = std::make_unique<TestArray<float>>(log_decay);
  }
  TrainingTensor g(shape, shape.head_dim, tokens_first, shape.input_type);
  g.Fill([&](int64_t head) { return problem.g[head]; });
  TrainingTensor out(shape, shape.head_dim, tokens_first, type);
  const TestArray<float> denominators(shape.batch * shape.heads * shape.tokens);

  size_t forward = 0, backward = 0;
  EXPECT_EQ(polysketch_attention_workspace(&shape, &forward, &backward), POLYSKETCH_ATTENTION_OK)
      << polysketch_attention_error();
  const polysketch_attention_arrays arrays = inputs.arrays(), outputs = gradients.arrays();
  {
    const TestArray<uint8_t> workspace(forward);
    EXPECT_EQ(polysketch_attention_forward(
                  &shape, &arrays, initial, &out.tensor(), denominators.data(),
                  after == nullptr ? nullptr : after->data(), workspace.data(), forward, nullptr),
              POLYSKETCH_ATTENTION_OK)
        << polysketch_attention_error();
    denominators.ToHost();  // until the workspace is free
  }
  const TestArray<uint8_t> workspace(backward);
  EXPECT_EQ(
      polysketch_attention_backward(&shape, &arrays, initial, &out.tensor(), denominators.data(),
                                    &g.tensor(), &outputs, workspace.data(), backward, nullptr),
      POLYSKETCH_ATTENTION_OK)
      << polysketch_attention_error();
  if (after != nullptr) states->after = after->ToHost();
  TrainingResult result{out.Heads(), denominators.ToHost(), {}, {}, {},
                        {},          gradients.v.Heads(),   {}};
  if (shape.decay_gate == 1) {
    const std::vector<float> all = gradients.log_decay->ToHost();
    for (auto first = all.begin(); first < all.end(); first += shape.tokens) {
      result.log_decay.emplace_back(first, first + shape.tokens);
    }
  }
  if (own_near) {
    result.near_q = gradients.near_q.Heads();
    result.near_k = gradients.near_k.Heads();
  }
  if (shape.sketch_dim > 0) {
    (own_near ? result.far_q : result.near_q) = gradients.far_q.Heads();
    (own_near ? result.far_k : result.near_k) = gradients.far_k.Heads();
  }
  return result;
}

}  // namespace polysketch::testing
