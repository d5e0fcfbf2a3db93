#include "base/check.h"
#include "kernels/reference/state.h"
#include "kernels/saved_floats.h"

namespace polysketch::reference {
namespace {

int64_t SavedFloats(const AttentionSpec& spec, int64_t position) {
  const int64_t far =
      spec.HasFarState(position) ? FeatureCount(spec) * (int64_t{spec.head_dim} + 1) : 0;
  const int64_t token =
      spec.near_dim() + (spec.mixed() ? spec.far_dim() : 0) + int64_t{spec.head_dim};
  return int64_t{spec.layers} * spec.heads * (far + spec.BufferedTokens(position) * token);
}

// The sums are float32 numbers in doubles.
void Sums(SavedFloatWriter* io, std::vector<double>* sums) {
  for (const double sum : *sums) {
    const auto value = static_cast<float>(sum);
    io->Run(&value, 1);
  }
}

void Sums(SavedFloatReader* io, std::vector<double>* sums) {
  for (double& sum : *sums) {
    float value = 0;
    io->Run(&value, 1);
    sum = value;
  }
}

}  // namespace

template <typename Io>
void ReferenceState::Transfer(int64_t position, Io* io) {
  PS_CHECK(!float64_) << "a float64 state has no saved form";
  const int64_t n = spec_.BufferedTokens(position);
  for (HeadState& head : heads_) {
    if (spec_.HasFarState(position)) {
      Sums(io, &head.value_sum);
      Sums(io, &head.weight_sum);
    }
    io->Run(head.near_keys.data(), n * spec_.near_dim());
    if (spec_.mixed()) io->Run(head.far_keys.data(), n * spec_.far_dim());
    io->Run(head.values.data(), n * spec_.head_dim);
  }
}

size_t ReferenceState::SavedBytes() const {
  return static_cast<size_t>(SavedFloats(spec_, position())) * sizeof(float);
}

void ReferenceState::SavePart(int /*part*/, std::span<uint8_t> out) const {
  SavedFloatWriter writer(out);
  const_cast<ReferenceState*>(this)->Transfer(position(), &writer);  // the writer only reads
}

Status ReferenceState::Load(int64_t position, std::span<const uint8_t> bytes) {
  PS_RETURN_IF_ERROR(CheckSavedState(spec_, position, SavedFloats, bytes));
  Reset();
  SetBuffered(position);
  SavedFloatReader reader(bytes);
  Transfer(position, &reader);
  set_position(position);
  return Status();
}

}  // namespace polysketch::reference
