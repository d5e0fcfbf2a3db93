#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "kernels/kv_rounding.h"
#include "kernels/reference/backend.h"
#include "kernels/reference/state.h"
#include "kernels/state_bytes.h"
#include "kernels/state_planes.h"

namespace polysketch::reference {
namespace {

double Dot(const float* a, const float* b, int width) {
  double sum = 0;
  for (int i = 0; i < width; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double IntegerPower(double base, int power) {
  double result = 1;
  for (int i = 0; i < power; ++i) result *= base;
  return result;
}

// P((dot + alpha) / beta)^2. coefficients: a_0 to a_p.
double PolynomialSquare(const AttentionSpec& spec, const float* coefficients, double dot) {
  const double x = (dot + spec.alpha) / spec.beta;
  double value = 0;
  for (int i = spec.power; i >= 0; --i) value = value * x + coefficients[i];
  return value * value;
}

// The weight of a near pair with dot product `dot`. For softmax the exponent: the exponential
// follows once the row's maximum is known. coefficients: of the head, in polynomial_square.
double NearWeight(const AttentionSpec& spec, const float* coefficients, double dot) {
  if (spec.kind == AttentionKind::kSoftmax) {
    return dot / std::sqrt(static_cast<double>(spec.head_dim));
  }
  if (spec.kind == AttentionKind::kPolynomialSquare) {
    return PolynomialSquare(spec, coefficients, dot);
  }
  return IntegerPower(dot, spec.near_degree());
}

// Element i of S as a query reads it: under kBf16 its upper plane (kernels/state_planes.h), under
// kQ8 that of the copy (kernels/state_bytes.h).
double ReadState(StateFormat format, const HeadState& state, size_t i) {
  const double stored = state.value_sum[i];
  if (format == StateFormat::kF32) return stored;
  if (format == StateFormat::kQ8) return state.copy[i];
  return Bf16ToFloat(UpperPlane(std::bit_cast<uint32_t>(static_cast<float>(stored))));
}

// A key or value of the block buffer as a query reads it.
std::vector<float> ReadVector(bool as_bytes, const float* x, int size) {
  return as_bytes ? ByteVector(x, size) : std::vector<float>(x, x + size);
}

// Stores a row in a block buffer, rounded to bf16 if `narrow`.
void Store(bool narrow, const float* x, int width, float* out) {
  for (int i = 0; i < width; ++i) out[i] = narrow ? Bf16ToFloat(FloatToBf16(x[i])) : x[i];
}

// Attention of one token and head; its key and value are the last of the `tokens` in the buffers.
// visible [tokens]: which of them it attends to. far_q: null if there is no far state. far_factor:
// of the weights of the far part. out [d]. Returns the far mass.
double AttendToken(const AttentionSpec& spec, const HeadState& state,
                   const std::vector<bool>& visible, const float* near_q, const float* far_q,
                   double far_factor, StateFormat far_format, const float* coefficients,
                   float* out) {
  const auto tokens = static_cast<int64_t>(visible.size());
  const int d = spec.head_dim;
  const bool gated = spec.decay_gate && !spec.kv_cache();
  std::vector<double> numerator(d);
  double denominator = spec.stabilizer, far = 0;

  if (far_q != nullptr) {
    std::vector<double> features = FarFeatures(spec, far_q);
    Scale(far_factor, &features);
    if (gated) Scale(DecayFactor(state.decay_sums[tokens - 1], 0), &features);
    for (size_t f = 0; f < features.size(); ++f) {
      denominator += features[f] * state.weight_sum[f];
      far += features[f] * state.weight_sum[f];
      for (int i = 0; i < d; ++i) {
        numerator[i] += features[f] * ReadState(far_format, state, f * d + i);
      }
    }
  }

  std::vector<double> weights(tokens);
  for (int64_t s = 0; s < tokens; ++s) {
    const std::vector<float> key = ReadVector(
        spec.byte_copy() && spec.mixed(), &state.near_keys[s * spec.near_dim()], spec.near_dim());
    weights[s] = NearWeight(spec, coefficients, Dot(near_q, key.data(), spec.near_dim()));
  }
  if (spec.kind == AttentionKind::kSoftmax) {
    double largest = -std::numeric_limits<double>::infinity();
    if (far > 0) largest = std::log(far);
    for (int64_t s = 0; s < tokens; ++s) {
      if (visible[s]) largest = std::max(largest, weights[s]);
    }
    for (double& weight : weights) weight = std::exp(weight - largest);
    // Without a weight of the far part, roundings are left of its sums.
    const double scale = far > 0 ? std::exp(-largest) : 0;
    Scale(scale, &numerator);
    denominator *= scale;
    far *= scale;
  }
  for (int64_t s = 0; s < tokens && gated; ++s) {
    weights[s] *= DecayFactor(state.decay_sums[tokens - 1], state.decay_sums[s]);
  }
  for (int64_t s = 0; s < tokens; ++s) {
    if (!visible[s]) continue;
    denominator += weights[s];
    const std::vector<float> value = ReadVector(spec.byte_copy(), &state.values[s * d], d);
    for (int i = 0; i < d; ++i) numerator[i] += weights[s] * value[i];
  }

  for (int i = 0; i < d; ++i) out[i] = static_cast<float>(numerator[i] / denominator);
  return far / denominator;
}

// Stores the key and the value of a row as token `index` of kv head h's buffers.
void StoreToken(const AttentionSpec& spec, const AttentionInput& input, int row, int h,
                int64_t index, HeadState* head) {
  const int near_dim = spec.near_dim(), far_dim = spec.far_dim(), d = spec.head_dim;
  const int64_t row_head = int64_t{row} * spec.key_heads() + h;
  const float* v = input.v + row * input.v_stride + h * d;
  Store(spec.narrow_block() && spec.mixed(), input.near_k + row_head * near_dim, near_dim,
        &head->near_keys[index * near_dim]);
  if (spec.keeps_far_keys()) {
    std::copy_n(input.far_k + row_head * far_dim, far_dim, &head->far_keys[index * far_dim]);
  }
  Store(spec.narrow_block(), v, d, &head->values[index * d]);
  if (spec.kv_cache()) {
    RoundForCache(spec, &head->near_keys[index * near_dim], near_dim);
    RoundForCache(spec, &head->values[index * d], d);
  }
  if (spec.decay_gate) {
    head->decay_sums[index] =
        (index % spec.block == 0 ? 0 : head->decay_sums[index - 1]) + input.log_decay[row_head];
  }
}

}  // namespace

void ReferenceBackend::Attention(const AttentionSpec& spec, int layer,
                                 std::span<const Segment> segments, const AttentionInput& input,
                                 float* out) {
  const int near_dim = spec.near_dim(), far_dim = spec.far_dim(), d = spec.head_dim;
  for (const Segment& segment : segments) {
    auto* state = dynamic_cast<ReferenceState*>(segment.state);
    PS_CHECK(state != nullptr) << "a state of another backend";
    ReferenceLayer& of_layer = state->layer(layer);
    for (int row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
      const int64_t position = state->position() + row - segment.first_row;
      if (!spec.kv_cache() && of_layer.buffered() == spec.block) of_layer.Fold();
      if (spec.far_part()) of_layer.FoldBefore(position);
      const int64_t index = of_layer.Append();
      for (int h = 0; h < spec.key_heads(); ++h) {
        HeadState& head = of_layer.head(h);
        if (head.stale_copy) of_layer.MakeCopy(&head);
        StoreToken(spec, input, row, h, index, &head);
      }
      std::vector<bool> visible(static_cast<size_t>(index) + 1, true);
      for (int64_t s = 0; s <= index && spec.kv_cache(); ++s) {
        visible[s] = spec.Visible(of_layer.TokenAt(s), position);
      }
      for (int h = 0; h < spec.heads; ++h) {
        const HeadState& head = of_layer.head(h / spec.query_group());
        const int64_t row_head = int64_t{row} * spec.heads + h;
        const bool has_far = !spec.kv_cache() || spec.HasFarState(position + 1);
        const float* far_q = has_far ? input.far_q + row_head * far_dim : nullptr;
        const float* coefficients = spec.kind == AttentionKind::kPolynomialSquare
                                        ? input.coefficients + h * (spec.power + 1)
                                        : nullptr;
        const double far_mass =
            AttendToken(spec, head, visible, input.near_q + row_head * near_dim, far_q,
                        spec.FarFactor(position), of_layer.sums_spec().state_format, coefficients,
                        out + row_head * d);
        if (input.far_mass != nullptr && spec.has_far_part()) {
          input.far_mass[row_head] = static_cast<float>(far_mass);
        }
      }
    }
    // Every layer runs once before Advance, so the buffers hold what the position says.
    const int64_t end = state->position() + segment.rows;
    if (spec.kv_cache()) of_layer.Drop(end);
    PS_CHECK(of_layer.buffered() == spec.BufferedTokens(end))
        << "layer " << layer << ": expected " << spec.BufferedTokens(end)
        << " buffered tokens, found " << of_layer.buffered();
  }
}

}  // namespace polysketch::reference
