#include "kernels/cpu/state.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace polysketch::cpu {
namespace {

int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

uint16_t* HalfWords(float* data) { return reinterpret_cast<uint16_t*>(data); }

// Calls run(offset, count) for a matrix [rows][cols] whose rows are `stride` elements apart.
template <typename Run>
void ForRows(int64_t rows, int64_t cols, int64_t stride, const Run& run) {
  if (cols == stride) return run(0, rows * cols);
  for (int64_t i = 0; i < rows; ++i) run(i * stride, cols);
}

// The elements of an array in a state.
enum class Element { kF32, kBf16, kF16 };

// Passes `count` elements of an array to `io`.
void WalkRun(SavedValues* io, Element element, float* array, int64_t offset, int64_t count) {
  switch (element) {
    case Element::kF32:
      return io->Floats(array + offset, count);
    case Element::kBf16:
      return io->Bf16(HalfWords(array) + offset, count);
    case Element::kF16:
      return io->F16(HalfWords(array) + offset, count);
  }
}

// Passes transposed keys [dim][tokens] to `io`.
void WalkKeys(SavedValues* io, Element element, float* keys, int64_t dim, int64_t tokens) {
  for (int64_t row = 0; row < dim; ++row) {
    for (int64_t t = 0; t < tokens; t += kKeyPanel) {
      WalkRun(io, element, keys, KeyIndex(dim, row, t), std::min(kKeyPanel, tokens - t));
    }
  }
}

// S and z.
void WalkHeadSums(SavedValues* io, const AttentionSpec& spec, const HeadLayout& layout,
                  const HeadState& head) {
  const int64_t dp = layout.padded_dim;
  uint16_t *upper = HalfWords(head.s), *lower = upper + spec.features() * dp;
  ForRows(spec.features(), spec.head_dim, dp, [&](int64_t offset, int64_t count) {
    if (spec.state_format != StateFormat::kBf16) return io->Floats(head.s + offset, count);
    io->Planes(upper + offset, lower + offset, count);
  });
  io->Floats(head.z, spec.features());
}

void WalkHead(SavedValues* io, const AttentionSpec& spec, const HeadLayout& layout,
              const HeadState& head, int64_t position) {
  const int64_t n = spec.BufferedTokens(position), d = spec.head_dim, dp = layout.padded_dim;
  const Element block = spec.narrow_block() ? Element::kBf16 : Element::kF32;
  if (spec.HasFarState(position)) WalkHeadSums(io, spec, layout, head);
  WalkKeys(io, Element::kF32, head.far_keys, spec.far_dim(), n);
  if (spec.mixed() && spec.byte_copy()) {
    for (int64_t row = 0; row < spec.near_dim(); ++row) {
      for (int64_t t = 0; t < n; ++t) {
        io->Bf16(HalfWords(head.near_keys) + t * spec.near_dim() + row, 1);
      }
    }
  } else if (spec.mixed()) {
    WalkKeys(io, block, head.near_keys, spec.near_dim(), n);
  }
  ForRows(n, d, dp,
          [&](int64_t offset, int64_t count) { WalkRun(io, block, head.values, offset, count); });
  if (spec.decay_gate) io->Floats(head.decay_sums, n);
}

}  // namespace

HeadLayout::HeadLayout(const AttentionSpec& spec)
    : padded_dim(RoundUp16(spec.head_dim)),
      padded_block((spec.block + kKeyPanel - 1) / kKeyPanel * kKeyPanel) {
  const int64_t features = spec.kv_cache() ? 0 : spec.features();
  z = features * padded_dim;
  column_scales = z + RoundUp16(features);
  row_scales = column_scales + (spec.byte_copy() ? padded_dim : 0);
  copy = row_scales + (spec.byte_copy() ? RoundUp16(features) : 0);
  const int64_t pairs = (features + 1) / 2;
  far_keys = copy + (spec.byte_copy() ? RoundUp16(pairs * padded_dim / 2) : 0);
  near_keys = far_keys + (spec.keeps_far_keys() ? spec.far_dim() * padded_block : 0);
  const int64_t key_floats = spec.near_dim() * padded_block;
  const int64_t value_floats = spec.block * padded_dim;
  const auto cached = [&](int64_t elements) {
    return RoundUp16(elements * spec.cache_width() / static_cast<int64_t>(sizeof(float)));
  };
  if (spec.kv_cache()) {
    values = near_keys + cached(key_floats);
    key_scales = values + cached(value_floats);
    value_scales = key_scales + (spec.cache_scales() ? padded_block : 0);
    decay_sums = value_scales + (spec.cache_scales() ? padded_block : 0);
    size = decay_sums + (spec.decay_gate ? padded_block : 0);
    key_bytes = value_bytes = size;  // it has none
    return;
  }
  values = near_keys + (spec.narrow_block() && spec.mixed() ? key_floats / 2 : key_floats);
  decay_sums = values + (spec.narrow_block() ? value_floats / 2 : value_floats);
  key_bytes = decay_sums + (spec.decay_gate ? padded_block : 0);
  // A pair of keys or values is 2 bytes, half a float.
  const bool bytes = spec.byte_copy(), key_copy = bytes && spec.mixed();
  key_scales = key_bytes + (key_copy ? (spec.near_dim() + 1) / 2 * padded_block / 2 : 0);
  value_bytes = key_scales + (key_copy ? padded_block : 0);
  value_scales = value_bytes + (bytes ? RoundUp16((spec.block + 1) / 2 * padded_dim / 2) : 0);
  size = value_scales + (bytes ? padded_block : 0);
}

RecurrentLayer::RecurrentLayer(const AttentionSpec& spec, float* memory)
    : HostLayer(spec),
      layout_(spec),
      memory_(memory),
      stale_copies_(static_cast<size_t>(spec.key_heads())) {}

void RecurrentLayer::CopyFrom(const HostLayer& other, int64_t /*position*/) {
  const auto& from = static_cast<const RecurrentLayer&>(other);
  if (from.contents_ != Contents::kCurrent) return Reset();  // the empty state
  contents_ = Contents::kCurrent;
  std::copy_n(from.memory_, floats(), memory_);
  stale_copies_ = from.stale_copies_;
}

void RecurrentLayer::Clear() {
  switch (std::exchange(contents_, Contents::kCurrent)) {
    case Contents::kCurrent:
      return;
    case Contents::kAnything:
      std::fill_n(memory_, floats(), 0.0f);
      return;
    case Contents::kOld:
      // Block buffers keep their contents: tokens from the position on are never read. So does the
      // copy of S, which is not read before a fold.
      for (int h = 0; h < spec_.key_heads(); ++h) {
        std::fill_n(memory_ + h * layout_.size, layout_.column_scales, 0.0f);
      }
      std::ranges::fill(stale_copies_, 0);
  }
}

// Clearing S takes milliseconds for a model of 110 M parameters, and several sequences may end in
// one step.
void RecurrentLayer::Reset() {
  if (contents_ == Contents::kCurrent) contents_ = Contents::kOld;
}

HeadState RecurrentLayer::Head(int head) {
  float* base = memory_ + head * layout_.size;
  return {base,
          base + layout_.z,
          reinterpret_cast<int8_t*>(base + layout_.copy),
          base + layout_.row_scales,
          base + layout_.column_scales,
          base + layout_.far_keys,
          base + layout_.near_keys,
          base + layout_.values,
          spec_.decay_gate ? base + layout_.decay_sums : nullptr,
          reinterpret_cast<int8_t*>(base + layout_.key_bytes),
          base + layout_.key_scales,
          reinterpret_cast<int8_t*>(base + layout_.value_bytes),
          base + layout_.value_scales};
}

size_t RecurrentLayer::SavedBytes(int64_t position) const {
  return SavedLayerBytes(spec_, spec_.features(), position);
}

void RecurrentLayer::Prepare(int64_t position) { PrepareSums(spec_.HasFarState(position)); }

void RecurrentLayer::PrepareSums(bool summed) {
  Reset();
  if (contents_ == Contents::kAnything || !summed) Clear();  // else Walk overwrites them
  contents_ = Contents::kCurrent;
  if (spec_.byte_copy()) std::ranges::fill(stale_copies_, 1);
}

void RecurrentLayer::Walk(int64_t position, SavedValues* values) {
  for (int h = 0; h < spec_.key_heads(); ++h) WalkHead(values, spec_, layout_, Head(h), position);
}

void RecurrentLayer::WalkSums(SavedValues* values) {
  for (int h = 0; h < spec_.key_heads(); ++h) WalkHeadSums(values, spec_, layout_, Head(h));
}

KvLayer::KvLayer(const AttentionSpec& spec)
    : HostLayer(spec), layout_(spec), sink_blocks_(spec.SinkTokens() / spec.block) {
  if (!spec.far_part()) return;
  far_memory_ = AlignedBuffer<float>::Untouched(static_cast<size_t>(FarFloats(spec)));
  far_.emplace(spec.FarPart(), far_memory_.data());
}

void KvLayer::Reset() {
  blocks_.clear();
  dropped_ = 0;
  if (far_) far_->Reset();
}

int64_t KvLayer::BlockFloats(const AttentionSpec& spec) {
  return spec.key_heads() * HeadLayout(spec).size;
}

void KvLayer::CopyFrom(const HostLayer& other, int64_t position) {
  const auto& from = static_cast<const KvLayer&>(other);
  dropped_ = from.dropped_;
  blocks_ = from.blocks_;
  PS_CHECK(blocks_.size() == static_cast<size_t>(spec_.CacheBlocks(position)));
  for (const auto& block : blocks_) block->shared.store(true, std::memory_order_relaxed);
  if (far_) far_->CopyFrom(*from.far_, position);
}

std::vector<StateBlock> KvLayer::Blocks() const {
  std::vector<StateBlock> blocks;
  blocks.reserve(blocks_.size());
  for (const auto& block : blocks_) blocks.push_back({block.get(), block_bytes()});
  return blocks;
}

size_t KvLayer::BytesToCopy(int64_t position) const {
  return position % spec_.block != 0 && blocks_.back()->shared ? block_bytes() : 0;
}

size_t KvLayer::SavedBytes(int64_t position) const {
  return SavedLayerBytes(spec_, spec_.features(), position);
}

void KvLayer::Reserve(int64_t position, int64_t tokens) {
  const size_t blocks = BlocksFor(tokens);
  while (blocks_.size() < blocks) {
    blocks_.push_back(std::make_shared<Block>(AlignedBuffer<float>(BlockFloats(spec_))));
  }
  // Only the last block before these tokens can be held by others: full ones are not written to.
  if (std::shared_ptr<Block>& tail = At(position / spec_.block); tail->shared) {
    auto floats = AlignedBuffer<float>::Untouched(tail->floats.size());
    std::copy_n(tail->floats.data(), floats.size(), floats.data());
    tail = std::make_shared<Block>(std::move(floats));
  }
}

void KvLayer::Drop(int64_t position) {
  const int64_t count = spec_.DroppedTokens(position) / spec_.block - dropped_;
  const auto first = blocks_.begin() + sink_blocks_;
  if (count > 0) blocks_.erase(first, first + count);
  dropped_ += count;
}

void KvLayer::Resize(int64_t tokens) {
  blocks_.resize(BlocksFor(tokens));
  for (auto& block : blocks_) {
    if (block == nullptr) block = std::make_shared<Block>(AlignedBuffer<float>(BlockFloats(spec_)));
  }
}

void KvLayer::Prepare(int64_t position) {
  dropped_ = spec_.DroppedTokens(position) / spec_.block;
  std::erase_if(blocks_, [](const auto& block) { return block->shared.load(); });
  Resize(position);
  if (far_) far_->PrepareSums(spec_.HasFarState(position));
}

void KvLayer::Walk(int64_t position, SavedValues* values) {
  const int64_t sinks = spec_.SinkTokens(), dropped = spec_.DroppedTokens(position);
  const int64_t held = spec_.BufferedTokens(position);
  if (spec_.HasFarState(position)) far_->WalkSums(values);
  for (int64_t first = 0; first < held; first += spec_.block) {
    const int64_t n = std::min<int64_t>(spec_.block, held - first);
    const int64_t block = (first < sinks ? first : first + dropped) / spec_.block;
    for (int h = 0; h < spec_.key_heads(); ++h) {
      if (far_) WalkKeys(values, Element::kF32, FarKeys(block, h), spec_.far_dim(), n);
      if (spec_.cache_scales()) {
        WalkBytes(block, h, n, values);
      } else {
        WalkHalvesOrFloats(block, h, n, values);
      }
      if (spec_.decay_gate) values->Floats(DecaySums(block, h), n);
    }
  }
}

void KvLayer::WalkHalvesOrFloats(int64_t block, int head, int64_t tokens, SavedValues* values) {
  const Element element = spec_.state_format == StateFormat::kF16 ? Element::kF16 : Element::kF32;
  WalkKeys(values, element, Keys<float>(block, head), spec_.head_dim, tokens);
  float* rows = Values<float>(block, head);
  ForRows(tokens, spec_.head_dim, layout_.padded_dim,
          [&](int64_t offset, int64_t count) { WalkRun(values, element, rows, offset, count); });
}

void KvLayer::WalkBytes(int64_t block, int head, int64_t tokens, SavedValues* values) {
  const int64_t dim = spec_.head_dim;
  std::vector<float> floats(static_cast<size_t>(dim * tokens));
  // at(i, t): where element i of token t is in the array; saved(i, t): in `floats`.
  const auto walk = [&](int8_t* bytes, float* scales, const auto& at, const auto& saved) {
    for (int64_t t = 0; t < tokens && values->saves(); ++t) {
      for (int64_t i = 0; i < dim; ++i) floats[saved(i, t)] = bytes[at(i, t)] * scales[t];
    }
    values->Floats(floats.data(), dim * tokens);
    for (int64_t t = 0; t < tokens && !values->saves(); ++t) {
      float magnitude = 0;
      for (int64_t i = 0; i < dim; ++i)
        magnitude = std::max(magnitude, std::abs(floats[saved(i, t)]));
      const QuantScale scale = CacheScale(magnitude);
      scales[t] = scale.scale;
      for (int64_t i = 0; i < dim; ++i) bytes[at(i, t)] = Quantize(floats[saved(i, t)], scale);
    }
  };
  walk(
      Keys<int8_t>(block, head), KeyScales(block, head),
      [&](int64_t i, int64_t t) { return KeyIndex(dim, i, t); },
      [&](int64_t i, int64_t t) { return i * tokens + t; });
  walk(
      Values<int8_t>(block, head), ValueScales(block, head),
      [&](int64_t i, int64_t t) { return t * layout_.padded_dim + i; },
      [&](int64_t i, int64_t t) { return t * dim + i; });
}

CpuState::CpuState(std::span<const AttentionSpec> layers) : HostState(layers) {
  int64_t floats = 0;
  for (const AttentionSpec& spec : layers) {
    if (!spec.kv_cache()) floats += RecurrentLayer::Floats(spec);
  }
  memory_ = AlignedBuffer<float>::Untouched(static_cast<size_t>(floats));
  float* next = memory_.data();
  for (const AttentionSpec& spec : layers) {
    if (spec.kv_cache()) {
      layers_.push_back(std::make_unique<KvLayer>(spec));
    } else {
      layers_.push_back(std::make_unique<RecurrentLayer>(spec, next));
      next += RecurrentLayer::Floats(spec);
    }
  }
}

std::unique_ptr<SequenceState> CpuState::Clone() const {
  auto copy = std::make_unique<CpuState>(specs_);
  copy->CopyFrom(*this);
  return copy;
}

bool CpuState::CanCopy(const SequenceState& other) const {
  const auto* state = dynamic_cast<const CpuState*>(&other);
  return state != nullptr && state->specs_ == specs_;
}

size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) {
  int64_t floats = 0;
  for (const AttentionSpec& spec : layers) {
    floats += spec.kv_cache()
                  ? spec.CacheBlocks(tokens) * KvLayer::BlockFloats(spec) + KvLayer::FarFloats(spec)
                  : RecurrentLayer::Floats(spec);
  }
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace polysketch::cpu
