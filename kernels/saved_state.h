// Saving and loading states (SequenceState::Save, Load): float32 values in order, without padding.
// One walk over a state's values serves both directions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/half.h"
#include "base/status.h"
#include "kernels/attention_spec.h"
#include "kernels/sequence_state.h"
#include "kernels/state_planes.h"

namespace polysketch {

// Copies runs of a state's values to or from its saved bytes, in order. The walk must process all
// bytes.
class SavedValues {
 public:
  // Saves: writes to `out` and only reads the values passed to it.
  static SavedValues Writer(std::span<uint8_t> out) { return {out.data(), out.size(), true}; }
  // Loads: reads `bytes` and overwrites the values passed to it.
  static SavedValues Reader(std::span<const uint8_t> bytes) {
    return {const_cast<uint8_t*>(bytes.data()), bytes.size(), false};
  }
  SavedValues(const SavedValues&) = delete;
  SavedValues& operator=(const SavedValues&) = delete;
  ~SavedValues() { PS_CHECK(left_ == 0) << left_ << " bytes of a saved state are left"; }

  void Floats(float* values, int64_t count) {
    uint8_t* bytes = Next(count);
    if (count == 0) return;  // the pointers may be null
    const size_t size = static_cast<size_t>(count) * sizeof(float);
    saves_ ? std::memcpy(bytes, values, size) : std::memcpy(values, bytes, size);
  }
  void Bf16(uint16_t* values, int64_t count) {
    Each(
        count, [=](int64_t i) { return Bf16ToFloat(values[i]); },
        [=](int64_t i, float value) { values[i] = FloatToBf16(value); });
  }
  void Planes(uint16_t* upper, uint16_t* lower, int64_t count) {
    Each(
        count, [=](int64_t i) { return std::bit_cast<float>(JoinPlanes(upper[i], lower[i])); },
        [=](int64_t i, float value) {
          upper[i] = UpperPlane(std::bit_cast<uint32_t>(value));
          lower[i] = LowerPlane(std::bit_cast<uint32_t>(value));
        });
  }
  // Doubles that hold float32 values.
  void Doubles(double* values, int64_t count) {
    Each(
        count, [=](int64_t i) { return static_cast<float>(values[i]); },
        [=](int64_t i, float value) { values[i] = value; });
  }

 private:
  SavedValues(uint8_t* bytes, size_t size, bool saves) : next_(bytes), left_(size), saves_(saves) {}

  // The bytes of the next `count` values.
  uint8_t* Next(int64_t count) {
    const size_t size = static_cast<size_t>(count) * sizeof(float);
    PS_CHECK(size <= left_) << size << " > " << left_;
    left_ -= size;
    return std::exchange(next_, next_ + size);
  }

  template <typename Get, typename Set>
  void Each(int64_t count, const Get& get, const Set& set) {
    uint8_t* bytes = Next(count);
    float value = 0;
    for (int64_t i = 0; i < count && saves_; ++i) {
      value = get(i);
      std::memcpy(bytes + i * sizeof(float), &value, sizeof(float));
    }
    for (int64_t i = 0; i < count && !saves_; ++i) {
      std::memcpy(&value, bytes + i * sizeof(float), sizeof(float));
      set(i, value);
    }
  }

  uint8_t* next_;
  size_t left_;
  const bool saves_;
};

// Size in bytes of the saved state of `position` tokens whose S has `features` rows.
size_t SavedStateBytes(const AttentionSpec& spec, int64_t features, int64_t position);

// INVALID_ARGUMENT if such a state is not saved in `size` bytes. Both numbers may be untrusted.
Status CheckSavedSize(const AttentionSpec& spec, int64_t features, int64_t position, size_t size);

// INVALID_ARGUMENT if one of the float32 values of a saved state is not finite.
Status CheckFinite(std::span<const uint8_t> bytes);

// A state in host memory. Its parts are the layers.
class HostState : public SequenceState {
 public:
  int64_t EarliestTruncation() const final { return spec_.EarliestTruncation(position()); }
  size_t SavedBytes() const final { return SavedStateBytes(spec_, features_, position()); }
  int parts() const final { return spec_.layers; }
  void SavePart(int layer, std::span<uint8_t> out) const final;
  Status CheckSavedSize(int64_t position, size_t size) const final;
  Status LoadPart(int layer, int64_t position, std::span<const uint8_t> bytes) final;

 protected:
  HostState(const AttentionSpec& spec, int64_t features) : spec_(spec), features_(features) {}

  // Provides memory of a layer for `position` tokens before Walk loads their values.
  virtual void Prepare(int layer, int64_t position) = 0;
  // Passes all values of a layer after `position` tokens to `values`, in order.
  virtual void Walk(int layer, int64_t position, SavedValues* values) = 0;

  const AttentionSpec spec_;

 private:
  const int64_t features_;  // rows of S
};

}  // namespace polysketch
