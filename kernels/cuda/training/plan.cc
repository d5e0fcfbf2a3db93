#include "kernels/cuda/training/plan.h"

#include <algorithm>

#include "base/status.h"
#include "kernels/cuda/group_shape.h"

namespace polysketch::cuda {
namespace {

// Within these limits no product below overflows 64 bits.
constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxHeads = int64_t{1} << 20;  // batch * heads
constexpr int kMaxPower = 16;
// Sketches may be wider than a head by a constant and its padding (affine_square).
constexpr int kBesidesHead = 8;
// Features of a warp in a walk over states (states.cuh).
constexpr int kLinearUnit = 32;
// Heads are processed in groups whose workspace takes about this many bytes.
constexpr int64_t kGroupBytes = int64_t{1} << 30;
constexpr int64_t kMaxGroup = 65535;  // maximum second dimension of a grid
// A walk over states has a thread block for each head and 128 features. If there are fewer than
// kMinWalkers, the blocks of a sequence are cut into ranges of at least kMinRangeBlocks.
constexpr int64_t kMinWalkers = 256, kMinRangeBlocks = 8;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t Align(int64_t bytes) { return CeilDivide(bytes, 256) * 256; }

template <typename... Parts>
Refusal Refuse(int status, const Parts&... parts) {
  return {status, StrCat(parts...)};
}

Refusal CheckSizes(const polysketch_attention_shape& shape) {
  const auto positive = [](int64_t size, int64_t max) { return size >= 1 && size <= max; };
  if (!positive(shape.batch, kMaxHeads) || !positive(shape.heads, kMaxHeads) ||
      shape.batch * shape.heads > kMaxHeads) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, "expected batch and heads of at least 1 and ",
                  kMaxHeads, " together, found ", shape.batch, " and ", shape.heads);
  }
  if (!positive(shape.tokens, kMaxTokens)) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, "expected 1 to ", kMaxTokens, " tokens, found ",
                  shape.tokens);
  }
  if (shape.head_dim != 32 && shape.head_dim != 64 && shape.head_dim != 128) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED, "expected head_dim 32, 64 or 128, found ",
                  shape.head_dim);
  }
  const int widest = std::max(64, shape.head_dim);
  if (shape.near_dim < 0 || shape.near_dim > widest || shape.near_dim % 8 != 0) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED, "expected near_dim 0 or a multiple of 8 up to ",
                  widest, ", found ", shape.near_dim);
  }
  if (shape.far_power != 1 && shape.far_power != 2) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, "expected far_power 1 or 2, found ",
                  shape.far_power);
  }
  const bool linear = shape.far_power == 1;
  const int unit = linear ? kLinearUnit : 8, most = linear ? widest : widest + kBesidesHead;
  if (shape.sketch_dim < 0 || shape.sketch_dim > most || shape.sketch_dim % unit != 0) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED, "expected sketch_dim 0 or a multiple of ", unit,
                  " up to ", most, ", found ", shape.sketch_dim);
  }
  if (linear && (shape.near_dim != 0 || shape.sketch_dim == 0)) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED,
                  "expected near_dim 0 and a sketch_dim with far_power 1, found ", shape.near_dim,
                  " and ", shape.sketch_dim);
  }
  if (shape.near_dim == 0 && shape.sketch_dim == 0) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, "near_dim and sketch_dim are both 0");
  }
  if (shape.near_dim > 0 && !positive(shape.near_power, kMaxPower)) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED, "expected near_power 1 to ", kMaxPower,
                  ", found ", shape.near_power);
  }
  if (shape.input_type != POLYSKETCH_BF16 && shape.input_type != POLYSKETCH_F16) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED, "expected input_type bf16 or f16, found type ",
                  shape.input_type);
  }
  if (shape.sketch_dim > 0 && shape.block < 1) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, "expected a block of at least 1, found ",
                  shape.block);
  }
  if (shape.chunk != 0 && shape.chunk != 1) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, "expected chunk 0 or 1, found ", shape.chunk);
  }
  if (shape.chunk == 1 && shape.sketch_dim == 0) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED,
                  "expected chunk 0 in the polynomial form, which has no state");
  }
  if (shape.decay_gate != 0 && shape.decay_gate != 1) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, "expected decay_gate 0 or 1, found ",
                  shape.decay_gate);
  }
  if (shape.decay_gate == 1 && shape.sketch_dim == 0) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED,
                  "expected decay_gate 0 in the polynomial form, which has no gate");
  }
  return Refusal();
}

}  // namespace

Refusal PlanTraining(const polysketch_attention_shape& shape, TrainingPlan* plan) {
  Refusal refusal = CheckSizes(shape);
  if (!refusal.ok()) return refusal;
  *plan = TrainingPlan();
  plan->sketched = shape.sketch_dim > 0;
  plan->mixed = plan->sketched && shape.near_dim > 0;
  plan->far_dim = shape.sketch_dim;
  plan->near_dim = shape.near_dim > 0 ? shape.near_dim : shape.sketch_dim;
  plan->near_power = shape.near_dim > 0 ? shape.near_power : shape.far_power;
  plan->linear = shape.far_power == 1;
  const int64_t tiles = plan->far_dim / 8, d = shape.head_dim, tokens = shape.tokens;
  plan->features = plan->linear ? plan->far_dim : static_cast<int>(tiles * (tiles + 1) / 2 * 64);
  plan->block = plan->sketched ? std::min<int64_t>(shape.block, tokens) : tokens;
  plan->blocks = CeilDivide(tokens, plan->block);
  plan->heads = shape.batch * shape.heads;

  plan->gated = shape.decay_gate == 1;
  plan->states = plan->sketched && (plan->blocks > 1 || shape.chunk == 1);
  plan->snapshot_z = Align(plan->features * d * 2);
  plan->snapshot_bytes = plan->snapshot_z + Align(int64_t{plan->features} * 4);
  plan->by_groups = HasGroupShape(shape.head_dim, plan->sketched, plan->near_dim, plan->near_power);
  if (plan->by_groups) {
    plan->snapshot_bytes = std::max(plan->snapshot_bytes, Align(GroupStateBytes(plan->features)));
  }
  plan->state_floats = plan->features * (d + 1);
  const int64_t snapshots = plan->states ? plan->blocks * plan->snapshot_bytes : 0;
  const int64_t cotangents = Align(tokens * d * 2) + Align(tokens * 4);
  const int64_t gate = plan->gated ? 2 * Align(tokens * 4) : 0;
  const bool rounded = shape.input_type == POLYSKETCH_F16;
  const int64_t widths = 2 * (int64_t{shape.near_dim} + shape.sketch_dim + d);  // with g
  const int64_t inputs = rounded ? tokens * widths * 2 : 0;
  plan->group = std::clamp<int64_t>(kGroupBytes / (snapshots + cotangents + inputs + gate), 1,
                                    std::min(plan->heads, kMaxGroup));
  if (plan->states) {
    const int64_t walkers = CeilDivide(plan->features, 128) * plan->group;
    plan->ranges = static_cast<int>(std::clamp<int64_t>(
        kMinWalkers / walkers, 1, std::max<int64_t>(1, (plan->blocks - 1) / kMinRangeBlocks)));
    plan->state_ranges = shape.chunk == 1 ? 1 : plan->ranges;
  }
  plan->partials = plan->group * snapshots;
  const int64_t partials =
      plan->ranges > 1 ? Align(plan->group * plan->ranges * plan->features * (d + 1) * 4) : 0;
  plan->counters = plan->partials + partials;
  const int64_t counters =
      plan->by_groups ? Align(plan->group * WalkCounters(plan->features) * sizeof(int32_t)) : 0;
  plan->decay_sums = plan->counters + counters;
  const int64_t of_gate = plan->gated ? Align(plan->group * tokens * 4) : 0;
  int64_t end = plan->decay_sums + of_gate;
  // Appends room for [group][tokens][width] rounded rows.
  const auto append = [&](int64_t width, int64_t* offset) {
    if (!rounded || width == 0) return;
    *offset = end;
    end += Align(plan->group * tokens * width * 2);
  };
  append(shape.near_dim, &plan->near_q);
  append(shape.near_dim, &plan->near_k);
  append(shape.sketch_dim, &plan->far_q);
  append(shape.sketch_dim, &plan->far_k);
  append(d, &plan->v);
  plan->forward_bytes = end;
  append(d, &plan->g);
  plan->a = end;
  plan->e = plan->a + Align(plan->group * tokens * d * 2);
  plan->decay_terms = plan->e + Align(plan->group * tokens * 4);
  plan->backward_bytes = plan->decay_terms + of_gate;
  return Refusal();
}

Refusal CheckTensor(const polysketch_attention_shape& shape, const char* name,
                    const polysketch_attention_tensor& tensor, int width, bool input) {
  if (tensor.data == nullptr) return Refuse(POLYSKETCH_ATTENTION_INVALID, name, " is null");
  if (input && tensor.type != shape.input_type) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED, name, ": expected ",
                  shape.input_type == POLYSKETCH_BF16 ? "bf16" : "f16", ", found type ",
                  tensor.type);
  }
  if (tensor.type < POLYSKETCH_BF16 || tensor.type > POLYSKETCH_F16) {
    return Refuse(POLYSKETCH_ATTENTION_UNSUPPORTED, name,
                  ": expected bf16, f16 or f32, found type ", tensor.type);
  }
  const int64_t element = tensor.type == POLYSKETCH_F32 ? 4 : 2;
  const int64_t unit = input ? 8 : 2;  // elements of an access
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(unit * element) != 0) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, name,
                  ": expected an address that is a multiple of ", unit * element);
  }
  const std::pair<int64_t, int64_t> axes[] = {{shape.batch, tensor.batch_stride},
                                              {shape.heads, tensor.head_stride},
                                              {shape.tokens, tensor.token_stride}};
  int64_t span = width;
  for (const auto& [size, stride] : axes) {
    int64_t reach = 0;
    if (size > 1 && (stride % unit != 0 || stride < width)) {
      return Refuse(POLYSKETCH_ATTENTION_INVALID, name, ": expected strides of at least ", width,
                    " that are multiples of ", unit, ", found ", stride);
    }
    if (__builtin_mul_overflow(size - 1, size > 1 ? stride : 0, &reach) ||
        __builtin_add_overflow(span, reach, &span) || span > INT64_MAX / 8) {
      return Refuse(POLYSKETCH_ATTENTION_INVALID, name, ": more elements than can be addressed");
    }
  }
  return Refusal();
}

Refusal CheckStates(const polysketch_attention_shape& shape, const float* initial_state,
                    const float* final_state) {
  if (initial_state == nullptr && final_state == nullptr) return Refusal();
  if (shape.chunk != 1) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID, "expected chunk 1 of a call with a state, found ",
                  shape.chunk);
  }
  for (const float* state : {initial_state, final_state}) {
    if (reinterpret_cast<uintptr_t>(state) % 16 != 0) {
      return Refuse(POLYSKETCH_ATTENTION_INVALID,
                    "state: expected an address that is a multiple of 16");
    }
  }
  if (final_state != nullptr && shape.tokens % shape.block != 0) {
    return Refuse(POLYSKETCH_ATTENTION_INVALID,
                  "final_state: expected tokens that are a multiple of the block (", shape.block,
                  "), found ", shape.tokens);
  }
  return Refusal();
}

}  // namespace polysketch::cuda
