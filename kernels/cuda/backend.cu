#include "kernels/cuda/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace polysketch::cuda {
namespace {

// A step of more rows a segment has a chunk of a prompt. The shapes of such steps differ more, and
// must not displace the recordings of decoding steps.
constexpr size_t kDecodingRows = 32;
// Recordings of steps with chunks. The chunks of a prompt have few shapes: the first one, those in
// its middle, the last one.
constexpr size_t kChunkGraphs = 8;
// What recordings are expected to take: 10 KB a launch, and at most 16 launches a layer (docs/gpu.md).
// If they take more, later ones use free memory, or steps run without one.
constexpr size_t kLaunchBytes = 10 << 10;
constexpr size_t kLayerLaunches = 16;

// POLYSKETCH_CUDA_SAMPLING=host: the host samples from logits.
bool SamplesRows() {
  const char* wish = std::getenv("POLYSKETCH_CUDA_SAMPLING");
  return wish == nullptr || std::strcmp(wish, "host") != 0;
}

// POLYSKETCH_CUDA_PREFETCH=off: products do not prefetch the weights of later ones.
bool Prefetches() {
  const char* wish = std::getenv("POLYSKETCH_CUDA_PREFETCH");
  return wish == nullptr || std::strcmp(wish, "off") != 0;
}

// POLYSKETCH_CUDA_DENSE=library: products of few rows too, if there is a library.
bool LibraryForAllRows() {
  const char* wish = std::getenv("POLYSKETCH_CUDA_DENSE");
  return wish != nullptr && std::strcmp(wish, "library") == 0;
}

// Uploads `values`, stores them in `host` and returns true, unless `host` holds the same values
// already.
template <typename T>
bool Upload(Device* device, std::span<const T> values, std::vector<T>* host,
            DeviceArray<T>* array) {
  if (std::equal(values.begin(), values.end(), host->begin(), host->end())) return false;
  host->assign(values.begin(), values.end());
  T* on_device = array->Grow(device, values.size());
  device->CopyIn(on_device, host->data(), values.size_bytes());
  return true;
}

}  // namespace

Result<std::unique_ptr<CudaBackend>> CudaBackend::Open() {
  PS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open());
  return std::unique_ptr<CudaBackend>(new CudaBackend(std::move(device)));
}

CudaBackend::CudaBackend(std::unique_ptr<Device> device)
    : device_(std::move(device)),
      name_("cuda/" + device_->name()),
      library_(NewDenseLibrary(device_.get())),
      prefetches_(Prefetches()),
      attention_(device_.get()),
      graphs_(device_.get()),
      chunk_graphs_(device_.get(), kChunkGraphs),
      samples_rows_(SamplesRows()) {}

float* CudaBackend::NewArray(size_t size) {
  auto* array = static_cast<float*>(device_->Allocate(std::max<size_t>(size, 1) * sizeof(float)));
  if (array != nullptr) device_->Zero(array, size * sizeof(float));
  return array;
}

void CudaBackend::DeleteArray(float* array) {
  if (array == nullptr) return;
  device_->OnMove();  // another array may get this address
  device_->Free(array);
}

void CudaBackend::CopyIn(const float* host, size_t size, float* array) {
  device_->CopyIn(array, host, size * sizeof(float));
}

void CudaBackend::CopyOut(const float* array, size_t size, float* host) {
  // After an error the caller gets zeros, and must check status().
  if (!device_->status().ok()) std::fill_n(host, size, 0.0f);
  device_->CopyOut(host, array, size * sizeof(float));
}

std::unique_ptr<const Matrix> CudaBackend::PackMatrix(const HostMatrix& w, bool transpose,
                                                      DataType type) {
  following_.clear();
  auto matrix = std::make_unique<CudaMatrix>(device_.get(), w, transpose, type);
  if (matrix->half() && library_ != nullptr && !LibraryForAllRows()) {
    matrix->set_library_has_our_bits(LibraryHasOurBits(*matrix));
  }
  return matrix;
}

void CudaBackend::Reserve(std::span<const AttentionSpec> layers, int64_t rows, int64_t segments,
                          size_t kv_bytes, const std::function<void()>& ops) {
  if (kv_bytes > 0) ReserveStates(layers, segments, kv_bytes);
  for (const LayerGroup& group : LayerGroups(layers)) {
    const AttentionSpec& spec = group.spec;
    auto blocks = static_cast<int64_t>(spec.kv_cache() ? kv_bytes / group.piece_bytes() : 0);
    if (kv_bytes > 0 && spec.window > 0) {
      // A chunk of a prompt has all its blocks until the last layer has run.
      const int64_t more = rows / spec.block + segments;
      device_->ReserveBlocks(group.piece_bytes(), more);
      blocks += more;
    }
    attention_.Reserve(spec, rows, segments, blocks);
  }
  ReserveSampling();
  if (graphs_.enabled()) {
    device_->ReserveRecordings((StepGraphs::kMax + kChunkGraphs) * layers.size() * kLayerLaunches *
                               kLaunchBytes);
  }
  device_->Rehearse(true);
  ops();
  device_->Rehearse(false);
  angles_of_.clear();  // the rehearsal computed no angles
}

void CudaBackend::ReserveStates(std::span<const AttentionSpec> layers, int64_t segments,
                                size_t kv_bytes) {
  // As many states as may run at once, each as long as fits, and what is left for a group that grows, or
  // has windows. Other lengths take the blocks of one group for another (Device::TakeBlock). Without a
  // group that grows, as many states as fit.
  constexpr int64_t kAnyLength = int64_t{1} << 32;
  auto states = std::clamp<int64_t>(static_cast<int64_t>(kv_bytes / StateBytes(layers, 1)), 1,
                                    std::max<int64_t>(segments, 1));
  if (std::ranges::none_of(layers, &AttentionSpec::grows)) {
    states = std::max(states, static_cast<int64_t>(kv_bytes / StateBytes(layers, kAnyLength)));
  }
  int64_t tokens = 1;
  for (int64_t step = kAnyLength; step > 0; step /= 2) {
    if (StateBytes(layers, tokens + step) <= kv_bytes / states) tokens += step;
  }
  const std::vector<LayerGroup> groups = LayerGroups(layers);
  for (const LayerGroup& group : groups) {
    device_->ReserveBlocks(group.piece_bytes(), states * group.PiecesFor(tokens));
    if (group.spec.far_part()) device_->ReserveBlocks(group.sums_bytes(), states);
  }
  auto rest = std::ranges::find_if(groups, [](const auto& group) { return group.spec.grows(); });
  if (rest == groups.end()) {
    rest = std::ranges::find_if(groups, [](const auto& group) { return group.spec.kv_cache(); });
  }
  const size_t left = kv_bytes - std::min(kv_bytes, StateBytes(layers, tokens) * states);
  device_->ReserveBlocks(rest->piece_bytes(), static_cast<int64_t>(left / rest->piece_bytes()));
}

void CudaBackend::Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                            const AttentionInput& input, float* out) {
  attention_.Run(spec, layer, segments, input, {.floats = out});
}

void CudaBackend::RunStep(const StepInput& step, const std::function<void()>& ops) {
  if (step.variant < 0) return ops();
  // The inputs of the ops are uploaded first, so that the ops only launch kernels.
  UpdateTokens(step.tokens);
  UpdatePositions(step.positions);
  attention_.Prepare(step.layers, step.segments);
  StepGraphs::Shape shape = {reinterpret_cast<int64_t>(step.model), step.variant,
                             std::ssize(step.tokens)};
  attention_.AppendShape(step.layers, &shape);
  in_step_ = prefetches_;
  previous_ = nullptr;
  const bool chunk = step.tokens.size() > kDecodingRows * step.segments.size();
  (chunk ? chunk_graphs_ : graphs_).Run(std::move(shape), [&] {
    angles_of_.clear();  // a recording computes its angles itself
    ops();
  });
  angles_of_.clear();
  in_step_ = false;
  attention_.Finish(step.segments);
}

void CudaBackend::UpdateTokens(std::span<const int32_t> tokens) {
  Upload(device_.get(), tokens, &host_tokens_, &tokens_);
}

void CudaBackend::UpdatePositions(std::span<const int64_t> positions) {
  if (Upload(device_.get(), positions, &host_positions_, &positions_)) angles_of_.clear();
}

}  // namespace polysketch::cuda
