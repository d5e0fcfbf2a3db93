// Saving and loading states (SequenceState::Save, Load): float32 values in order, without padding.
// One walk over a state's values serves both directions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "base/status.h"
#include "kernels/attention_spec.h"
#include "kernels/kv_rounding.h"
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

  // Whether values are saved, not loaded.
  bool saves() const { return saves_; }
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
  void F16(uint16_t* values, int64_t count) {
    Each(
        count, [=](int64_t i) { return F16ToFloat(values[i]); },
        [=](int64_t i, float value) { values[i] = RoundToF16(value); });
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

// Size in bytes of a layer of the saved state of `position` tokens, whose S has `features` rows.
size_t SavedLayerBytes(const AttentionSpec& spec, int64_t features, int64_t position);
// Size in bytes of the saved state of a model with these layers, of kernels/cpu and kernels/cuda.
size_t SavedStateBytes(std::span<const AttentionSpec> layers, int64_t position);

// INVALID_ARGUMENT if a state of `position` tokens is not saved in `size` bytes, its layers in
// those that layer_bytes(layer, position) returns. Both numbers may be untrusted.
Status CheckSavedSize(std::span<const AttentionSpec> layers,
                      const std::function<size_t(size_t layer, int64_t position)>& layer_bytes,
                      int64_t position, size_t size);

// INVALID_ARGUMENT if one of the float32 values of a saved state is not finite.
Status CheckFinite(std::span<const uint8_t> bytes);

// A state of layers with these specs.
class LayeredState : public SequenceState {
 public:
  int64_t EarliestTruncation() const final {
    return polysketch::EarliestTruncation(specs_, position());
  }
  int64_t Removable(int64_t position) const final {
    return polysketch::Removable(specs_, position);
  }
  bool FoldsNext() const final { return polysketch::FoldsNext(specs_, position()); }
  int64_t TokensToFold() const final { return polysketch::TokensToFold(specs_, position()); }

 protected:
  explicit LayeredState(std::span<const AttentionSpec> specs)
      : specs_(specs.begin(), specs.end()) {}

  const std::vector<AttentionSpec> specs_;
};

// One layer of a state in host memory.
class HostLayer {
 public:
  virtual ~HostLayer() = default;
  HostLayer(const HostLayer&) = delete;
  HostLayer& operator=(const HostLayer&) = delete;

  // As in SequenceState, for the layer. The state knows the position.
  virtual size_t bytes() const = 0;
  // Those of bytes() that other states may hold too.
  virtual std::vector<StateBlock> Blocks() const { return {}; }
  virtual size_t BytesToCopy(int64_t /*position*/) const { return 0; }
  virtual void Reset() = 0;
  virtual void Truncate(int64_t position) = 0;
  virtual void Clear() {}
  virtual bool cleared() const { return true; }
  // Becomes a copy of `other`, a layer of the same spec after `position` tokens.
  virtual void CopyFrom(const HostLayer& other, int64_t position) = 0;
  // Size in bytes of its saved values.
  virtual size_t SavedBytes(int64_t position) const = 0;
  // Provides memory for `position` tokens before Walk loads their values.
  virtual void Prepare(int64_t position) = 0;
  // Passes all values after `position` tokens to `values`, in order.
  virtual void Walk(int64_t position, SavedValues* values) = 0;

 protected:
  explicit HostLayer(const AttentionSpec& spec) : spec_(spec) {}

  const AttentionSpec spec_;
};

// A state in host memory. Its parts are the layers.
class HostState : public LayeredState {
 public:
  size_t bytes() const final;
  // Layers of one spec hold the same of their blocks together. One id stands for those of the same
  // tokens.
  StateMemory Memory() const final;
  size_t BytesToCopy() const final;
  void Reset() final;
  void Truncate(int64_t position) final;
  size_t SavedBytes() const final;
  int parts() const final { return static_cast<int>(layers_.size()); }
  void SavePart(int layer, std::span<uint8_t> out) const final;
  void SaveInPieces(const std::function<void(std::span<const uint8_t>)>& write) const final;
  Status CheckSavedSize(int64_t position, size_t size) const final;
  Status LoadPart(int layer, int64_t position, std::span<const uint8_t> bytes) final;
  void CopyPart(int layer, const SequenceState& other) final;
  void ClearPart(int layer) final { this->layer(layer).Clear(); }
  bool cleared() const final;

  HostLayer& layer(int index) { return *layers_[static_cast<size_t>(index)]; }
  const HostLayer& layer(int index) const { return *layers_[static_cast<size_t>(index)]; }

 protected:
  using LayeredState::LayeredState;

  std::vector<std::unique_ptr<HostLayer>> layers_;  // filled by the constructor

 private:
  // The bytes of a layer among those of a saved state of `position` tokens.
  template <typename Byte>
  std::span<Byte> PartOf(std::span<Byte> bytes, int layer, int64_t position) const {
    size_t first = 0;
    for (int i = 0; i < layer; ++i) first += this->layer(i).SavedBytes(position);
    return bytes.subspan(first, this->layer(layer).SavedBytes(position));
  }
};

}  // namespace polysketch
