#include "kernels/cuda/state.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cuda/mx_int8.h"

namespace polysketch::cuda {
namespace {

int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Makes the copy of S [features][d], two planes.
void MakeCopy(const uint8_t* S, int64_t features, int64_t d, uint8_t* copy) {
  const auto* planes = reinterpret_cast<const uint16_t*>(S);
  const int64_t size = features * d;
  uint8_t* scales = copy + MxScalesAt(size);
  for (int64_t f = 0; f < features; ++f, planes += d, copy += d, scales += MxScales(d)) {
    const auto element = [&](int64_t c) {
      return std::bit_cast<float>(JoinPlanes(planes[c], planes[size + c]));
    };
    MakeMxRow(d, element, copy, scales);
  }
}

// Passes the values of `rows` rows of 8-bit numbers to `values`. block: the rows that the array has.
void WalkMxRows(uint8_t* array, int64_t block, int64_t width, int64_t rows, SavedValues* values) {
  uint8_t* scales = array + MxScalesAt(block * width);
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t i = 0; i < rows; ++i, array += width, scales += MxScales(width)) {
    const auto element = [&](int64_t c) { return row[static_cast<size_t>(c)]; };
    for (int64_t c = 0; c < width; ++c) {
      row[static_cast<size_t>(c)] = MxValue(array[MxPlace(width, c)], scales[c / kMxBlock]);
    }
    values->Floats(row.data(), width);
    if (!values->saves()) MakeMxRow(width, element, array, scales);
  }
}

}  // namespace

HeadLayout::HeadLayout(const AttentionSpec& spec)
    : copies(spec.state_format == StateFormat::kQ8 && spec.has_far_part()),
      element(spec.state_format == StateFormat::kF32 ? 4 : 2) {
  const int64_t features = spec.features(), elements = features * spec.head_dim;
  z = Align(elements * 4);
  copy = z + Align(features * 4);
  sums = copy + (copies ? Align(MxBytes(features, spec.head_dim)) : 0);
  read = copies ? copy : 0;
  read_bytes = Align(RowBytes(copies, features, spec.head_dim));
  const int64_t b = spec.block;
  const auto cached = [&](int64_t width) { return Align(RowBytes(spec.cache_scales(), b, width)); };
  far_keys = spec.kv_cache() ? 0 : sums;
  near_keys = far_keys + (spec.keeps_far_keys() ? Align(b * element * spec.far_dim()) : 0);
  values = near_keys + cached(spec.near_dim());
  decay_sums = values + cached(spec.head_dim);
  size = decay_sums + (spec.decay_gate ? Align(b * 4) : 0);
}

std::vector<LayerGroup> LayerGroups(std::span<const AttentionSpec> layers) {
  std::vector<LayerGroup> groups;
  for (const AttentionSpec& spec : layers) {
    auto group = std::ranges::find(groups, spec, &LayerGroup::spec);
    if (group == groups.end()) {
      groups.push_back(LayerGroup{spec, HeadLayout(spec)});
      group = groups.end() - 1;
    }
    ++group->layers;
  }
  return groups;
}

CudaState::CudaState(Device* device, std::span<const AttentionSpec> layers)
    : LayeredState(layers),
      device_(device),
      groups_(LayerGroups(layers)),
      pooled_(std::ranges::any_of(specs_, &AttentionSpec::kv_cache)) {
  for (LayerGroup& group : groups_) {
    if (group.spec.far_part()) {
      group.sums = Take(group.sums_bytes());
      device_->Zero(group.sums, group.sums_bytes());
    }
    Fit(&group, 0);
  }
  for (auto spec = specs_.begin(); spec != specs_.end(); ++spec) {
    places_.push_back(static_cast<int>(std::count(specs_.begin(), spec, *spec)));
  }
}

CudaState::~CudaState() {
  for (LayerGroup& group : groups_) {
    Resize(&group, 0);
    Return(group.sums, group.sums_bytes());
  }
}

uint8_t* CudaState::Take(size_t bytes) {
  return static_cast<uint8_t*>(pooled_ ? device_->TakeBlock(bytes) : device_->Allocate(bytes));
}

void CudaState::Return(uint8_t* memory, size_t bytes) {
  if (memory == nullptr) return;
  pooled_ ? device_->ReturnBlock(memory, bytes) : device_->Free(memory);
}

const LayerGroup& CudaState::group(const AttentionSpec& spec) const {
  const auto group = std::ranges::find(groups_, spec, &LayerGroup::spec);
  PS_CHECK(group != groups_.end()) << "a state of another model";
  return *group;
}

size_t CudaState::bytes() const {
  size_t bytes = 0;
  for (const LayerGroup& group : groups_) {
    bytes += group.sums_bytes() + group.pieces.size() * group.piece_bytes();
  }
  return bytes;
}

std::unique_ptr<SequenceState> CudaState::Clone() const {
  auto copy = std::make_unique<CudaState>(device_, specs_);
  copy->CopyFrom(*this);
  return copy;
}

void CudaState::Resize(LayerGroup* group, int64_t pieces) {
  while (std::ssize(group->pieces) > pieces) {
    Return(group->pieces.back(), group->piece_bytes());
    group->pieces.pop_back();
  }
  while (std::ssize(group->pieces) < pieces) {
    group->pieces.push_back(Take(group->piece_bytes()));
    // Sums begin at zero. Tokens from the position on are multiplied by weights of zero, so they must
    // be finite.
    device_->Zero(group->pieces.back(), group->piece_bytes());
  }
}

void CudaState::Fit(LayerGroup* group, int64_t position) {
  group->dropped = group->spec.DroppedTokens(position) / group->spec.block;
  Resize(group, group->PiecesFor(position));
}

void CudaState::Reserve(const AttentionSpec& spec, int64_t tokens) {
  if (!spec.kv_cache()) return;
  LayerGroup& group = *std::ranges::find(groups_, spec, &LayerGroup::spec);
  const int64_t blocks = (tokens + spec.block - 1) / spec.block - group.dropped;
  if (blocks > std::ssize(group.pieces)) Resize(&group, blocks);
}

void CudaState::Drop(const AttentionSpec& spec, int64_t position) {
  LayerGroup& group = *std::ranges::find(groups_, spec, &LayerGroup::spec);
  const int64_t count = spec.DroppedTokens(position) / spec.block - group.dropped;
  if (count <= 0) return;
  const auto first = group.pieces.begin() + spec.SinkTokens() / spec.block;
  std::for_each(first, first + count,
                [&](uint8_t* block) { device_->ReturnBlock(block, group.piece_bytes()); });
  group.pieces.erase(first, first + count);
  group.dropped += count;
}

void CudaState::Reset() {
  for (LayerGroup& group : groups_) {
    Fit(&group, 0);
    for (uint8_t* piece : group.pieces) device_->Zero(piece, group.piece_bytes());
    if (group.sums != nullptr) device_->Zero(group.sums, group.sums_bytes());
  }
  set_position(0);
}

void CudaState::Truncate(int64_t position) {
  PS_CHECK(position >= EarliestTruncation() && position <= this->position()) << position;
  // Recurrent kinds: tokens from the position on are never read.
  for (LayerGroup& group : groups_) Fit(&group, position);
  set_position(position);
}

CudaState::Part CudaState::PartAt(int part) const {
  if (groups_.size() == 1) return {0, 0, groups_[0].heads()};
  const AttentionSpec& spec = specs_[static_cast<size_t>(part)];
  const auto group = std::ranges::find(groups_, spec, &LayerGroup::spec);
  return {static_cast<size_t>(group - groups_.begin()), int64_t{PlaceOf(part)} * spec.key_heads(),
          spec.key_heads()};
}

size_t CudaState::PartBytes(int part, int64_t position) const {
  if (groups_.size() == 1) return SavedStateBytes(specs_, position);
  return SavedStateBytes({&specs_[static_cast<size_t>(part)], 1}, position);
}

size_t CudaState::PartOffset(int part, int64_t position) const {
  return SavedStateBytes(std::span(specs_).first(static_cast<size_t>(part)), position);
}

void CudaState::CopyPart(int part, const SequenceState& other) {
  const auto& from = static_cast<const CudaState&>(other);
  PS_CHECK(from.specs_ == specs_) << "a state of another model";
  const Part at = PartAt(part);
  LayerGroup& group = groups_[at.group];
  const LayerGroup& source = from.groups_[at.group];
  Fit(&group, from.position());
  PS_CHECK(group.pieces.size() == source.pieces.size()) << source.pieces.size();
  const int64_t offset = at.first * group.layout.size;
  for (size_t i = 0; i < group.pieces.size(); ++i) {
    device_->Copy(group.pieces[i] + offset, source.pieces[i] + offset,
                  static_cast<size_t>(at.heads * group.layout.size));
  }
  if (group.sums == nullptr) return;
  const int64_t sums = at.first * group.layout.sums;
  device_->Copy(group.sums + sums, source.sums + sums,
                static_cast<size_t>(at.heads * group.layout.sums));
}

void CudaState::WalkSums(const LayerGroup& group, uint8_t* host, SavedValues* values) {
  const int64_t sums = int64_t{group.spec.features()} * group.spec.head_dim;
  if (group.layout.element == 2) {
    auto* planes = reinterpret_cast<uint16_t*>(host);
    values->Planes(planes, planes + sums, sums);
  } else {
    values->Floats(reinterpret_cast<float*>(host), sums);
  }
  values->Floats(reinterpret_cast<float*>(host + group.layout.z), group.spec.features());
  if (group.layout.copies && !values->saves()) {
    MakeCopy(host, group.spec.features(), group.spec.head_dim, host + group.layout.copy);
  }
}

void CudaState::Walk(const LayerGroup& group, int64_t position, int64_t index, int64_t heads,
                     uint8_t* host, SavedValues* values) {
  const AttentionSpec& spec = group.spec;
  const HeadLayout& layout = group.layout;
  const bool half = layout.element == 2;
  const auto walk = [&](uint8_t* array, int64_t count) {
    half ? values->Bf16(reinterpret_cast<uint16_t*>(array), count)
         : values->Floats(reinterpret_cast<float*>(array), count);
  };
  const int64_t held = spec.BufferedTokens(position);
  const int64_t n =
      spec.kv_cache() ? std::min<int64_t>(spec.block, held - index * spec.block) : held;
  for (uint8_t* head = host; head < host + heads * layout.size; head += layout.size) {
    if (!spec.kv_cache() && spec.HasFarState(position)) WalkSums(group, head, values);
    if (spec.keeps_far_keys()) walk(head + layout.far_keys, n * spec.far_dim());
    if (spec.cache_scales()) {
      WalkMxRows(head + layout.near_keys, spec.block, spec.near_dim(), n, values);
      WalkMxRows(head + layout.values, spec.block, spec.head_dim, n, values);
    } else {
      walk(head + layout.near_keys, n * spec.near_dim());
      walk(head + layout.values, n * spec.head_dim);
    }
    if (spec.decay_gate) values->Floats(reinterpret_cast<float*>(head + layout.decay_sums), n);
  }
}

void CudaState::SavePart(int part, std::span<uint8_t> out) const {
  const Part at = PartAt(part);
  const LayerGroup& group = groups_[at.group];
  SavedValues values =
      SavedValues::Writer(out.subspan(PartOffset(part, position()), PartBytes(part, position())));
  if (group.sums != nullptr && group.spec.HasFarState(position())) {
    std::vector<uint8_t> sums(static_cast<size_t>(at.heads * group.layout.sums));
    device_->CopyOut(sums.data(), group.sums + at.first * group.layout.sums, sums.size());
    for (size_t head = 0; head < sums.size(); head += static_cast<size_t>(group.layout.sums)) {
      WalkSums(group, sums.data() + head, &values);
    }
  }
  std::vector<uint8_t> host(static_cast<size_t>(at.heads * group.layout.size));
  for (int64_t i = 0; i < std::ssize(group.pieces); ++i) {
    device_->CopyOut(host.data(), group.pieces[i] + at.first * group.layout.size, host.size());
    Walk(group, position(), i, at.heads, host.data(), &values);
  }
}

Status CudaState::CheckSavedSize(int64_t position, size_t size) const {
  return polysketch::CheckSavedSize(
      specs_,
      [this](size_t layer, int64_t at) {
        return SavedLayerBytes(specs_[layer], specs_[layer].features(), at);
      },
      position, size);
}

Status CudaState::LoadPart(int part, int64_t position, std::span<const uint8_t> bytes) {
  const auto own = bytes.subspan(PartOffset(part, position), PartBytes(part, position));
  PS_RETURN_IF_ERROR(CheckFinite(own));
  const Part at = PartAt(part);
  LayerGroup& group = groups_[at.group];
  Fit(&group, position);
  SavedValues values = SavedValues::Reader(own);
  if (group.sums != nullptr) {
    std::vector<uint8_t> sums(static_cast<size_t>(at.heads * group.layout.sums));
    for (size_t head = 0; head < sums.size(); head += static_cast<size_t>(group.layout.sums)) {
      if (group.spec.HasFarState(position)) WalkSums(group, sums.data() + head, &values);
    }
    device_->CopyIn(group.sums + at.first * group.layout.sums, sums.data(), sums.size());
  }
  for (int64_t i = 0; i < std::ssize(group.pieces); ++i) {
    std::vector<uint8_t> host(static_cast<size_t>(at.heads * group.layout.size));
    Walk(group, position, i, at.heads, host.data(), &values);
    device_->CopyIn(group.pieces[i] + at.first * group.layout.size, host.data(), host.size());
  }
  return device_->status();
}

size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) {
  size_t bytes = 0;
  for (const LayerGroup& group : LayerGroups(layers)) {
    bytes +=
        group.sums_bytes() + static_cast<size_t>(group.PiecesFor(tokens)) * group.piece_bytes();
  }
  return bytes;
}

int64_t ReadBytes(const AttentionSpec& spec, int64_t tokens) {
  const HeadLayout layout(spec);
  const bool bytes = spec.cache_scales();
  int64_t read = layout.RowBytes(bytes, tokens, spec.near_dim()) +
                 layout.RowBytes(bytes, tokens, spec.head_dim);
  if (spec.decay_gate && !spec.kv_cache()) read += tokens * 4;
  if (spec.has_far_part()) {
    read += layout.RowBytes(layout.copies, spec.features(), spec.head_dim) + spec.features() * 4;
  }
  return spec.key_heads() * read;
}

}  // namespace polysketch::cuda
