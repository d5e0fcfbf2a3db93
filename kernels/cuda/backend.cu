// The cuda backend: checks shapes, keeps what lives on the device, calls the ops.
#include "kernels/cuda/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/angles.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/step_graphs.h"

namespace polysketch::cuda {
namespace {

// Most rows of a step that is recorded: larger ones keep the device busy longer than their launches
// take, and are less alike.
constexpr size_t kRecordedRows = 256;

// POLYSKETCH_CUDA_SAMPLING=host: the host's sampler draws, from logits.
bool SamplesRows() {
  const char* wish = std::getenv("POLYSKETCH_CUDA_SAMPLING");
  return wish == nullptr || std::strcmp(wish, "host") != 0;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<Device> device)
      : device_(std::move(device)),
        name_("cuda/" + device_->name()),
        ctx_{device_.get(), NewDenseLibrary(device_.get()), {}},
        attention_(device_.get()),
        graphs_(device_.get()) {}

  std::string_view name() const override { return name_; }
  int threads() const override { return 1; }
  Status status() const override { return device_->status(); }

  bool host_memory() const override { return false; }
  float* NewArray(size_t size) override {
    auto* array = static_cast<float*>(device_->Allocate(std::max<size_t>(size, 1) * sizeof(float)));
    if (array != nullptr) device_->Zero(array, size * sizeof(float));
    return array;
  }
  void DeleteArray(float* array) override {
    if (array == nullptr) return;
    device_->OnMove();  // of a model that goes: the next one may get its address
    device_->Free(array);
  }
  void CopyIn(const float* host, size_t size, float* array) override {
    device_->CopyIn(array, host, size * sizeof(float));
    device_->Synchronize();  // the host may write its array again
  }
  void CopyOut(const float* array, size_t size, float* host) override {
    // After an error the caller gets zeros, and looks at status().
    if (!device_->status().ok()) std::fill_n(host, size, 0.0f);
    device_->CopyOut(host, array, size * sizeof(float));
  }

  std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                           DataType type) override {
    return std::make_unique<CudaMatrix>(device_.get(), w, transpose, type);
  }
  std::unique_ptr<SequenceState> NewState(const AttentionSpec& spec) override {
    return std::make_unique<CudaState>(device_.get(), spec);
  }
  void Reserve(const AttentionSpec& spec, int64_t rows, int64_t segments, size_t growing,
               const std::function<void()>& ops) override {
    const size_t block = cuda::StateBytes(spec, 1);
    const auto blocks = static_cast<int64_t>(spec.kv_cache() ? growing / block : 0);
    device_->ReserveBlocks(block, blocks);
    attention_.Reserve(spec, rows, segments, blocks);
    ReserveSampling(ctx_, &sample_memory_);
    device_->Rehearse(true);
    ops();
    device_->Rehearse(false);
    angle_dim_ = 0;  // they were not computed
  }
  DeviceMemory device_memory() override { return {device_->held_memory(), device_->FreeMemory()}; }
  size_t StateBytes(const AttentionSpec& spec, int64_t tokens) const override {
    return cuda::StateBytes(spec, tokens);
  }

  void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
             std::span<const int64_t> positions, float* out) override {
    PS_CHECK(tokens.size() == positions.size());
    const float* thetas = Thetas(&embedding_thetas_, embedding.in(), PositionThetas);
    UpdateTokens(tokens);
    UpdatePositions(positions);
    cuda::Embed(ctx_, Cast(embedding), tokens_.data(), positions_.data(),
                static_cast<int64_t>(tokens.size()), thetas, out);
  }
  void LayerNorm(const float* x, int64_t rows, int width, const NormWeights& norm,
                 float* out) override {
    cuda::LayerNorm(ctx_, x, rows, width, norm, out);
  }
  void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
              float* out) override {
    cuda::MatMul(ctx_, x, rows, Cast(w), bias, accumulate, out);
  }
  void Rope(const float* qkv, std::span<const int64_t> positions, int heads, int head_dim, float* q,
            float* k) override {
    PS_CHECK(head_dim % 2 == 0) << head_dim;
    const auto rows = static_cast<int64_t>(positions.size());
    UpdatePositions(positions);
    UpdateAngles(head_dim);
    cuda::Rope(ctx_, qkv, rows, cos_sin_.data(), heads, head_dim, q, k);
  }
  void GeluGate(const float* up, int64_t rows, int hidden, float* out) override {
    cuda::GeluGate(ctx_, up, rows, hidden, out);
  }
  void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out) override {
    cuda::LearnedSketch(ctx_, net, x, rows, out);
  }
  void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                         float* out) override {
    cuda::ApplyRandomSketch(ctx_, sketch, x, rows, out);
  }
  void LinearFeatures(const float* x, int64_t rows, int width, float* out) override {
    cuda::LinearFeatures(ctx_, x, rows, width, out);
  }
  void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) override {
    cuda::PerformerFeatures(ctx_, Cast(omega), x, rows, out);
  }
  void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                 const AttentionInput& input, float* out) override {
    PS_CHECK(layer >= 0 && layer < spec.layers) << layer;
    attention_.Run(spec, layer, segments, input, out);
  }
  void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) override {
    cuda::LogSumExp(ctx_, x, rows, width, out);
  }
  // What its ops are told is uploaded first, so that they find it there and only launch.
  void RunStep(const StepInput& step, const std::function<void()>& ops) override {
    if (step.variant < 0 || step.tokens.size() > kRecordedRows) return ops();
    UpdateTokens(step.tokens);
    UpdatePositions(step.positions);
    UpdateAngles(step.spec->head_dim);
    attention_.Prepare(*step.spec, step.segments);
    StepGraphs::Shape shape = {reinterpret_cast<int64_t>(step.model), step.variant,
                               std::ssize(step.tokens)};
    attention_.AppendShape(&shape);
    graphs_.Run(std::move(shape), ops);
  }
  bool samples_rows() const override { return samples_rows_; }
  void SampleRows(float* logits, int64_t width, std::span<const SampleQuery> queries,
                  std::span<SampleResult> answers) override {
    PS_CHECK(queries.size() == answers.size());
    cuda::SampleRows(ctx_, &sample_memory_, logits, width, queries, answers);
  }
  void Wait() override { device_->Synchronize(); }

 private:
  DeviceArray<float> Upload(const std::vector<float>& values) {
    DeviceArray<float> array(device_.get(), values.size());
    device_->CopyIn(array.data(), values.data(), values.size() * sizeof(float));
    device_->Synchronize();
    return array;
  }

  using ThetasOf = std::map<int64_t, DeviceArray<float>>;  // by width
  const float* Thetas(ThetasOf* all, int64_t width, std::vector<float> (*make)(int)) {
    const auto [place, added] = all->try_emplace(width);
    if (added) place->second = Upload(make(static_cast<int>(width)));
    return place->second.data();
  }

  // False when `values` are on the device already: every layer of a step asks for the same ones.
  template <typename T>
  bool Update(std::span<const T> values, std::vector<T>* host, DeviceArray<T>* array) {
    if (std::equal(values.begin(), values.end(), host->begin(), host->end())) return false;
    host->assign(values.begin(), values.end());
    T* on_device = array->Grow(device_.get(), values.size());
    device_->CopyIn(on_device, host->data(), values.size_bytes());
    return true;
  }
  void UpdateTokens(std::span<const int32_t> tokens) { Update(tokens, &host_tokens_, &tokens_); }
  void UpdatePositions(std::span<const int64_t> positions) {
    if (Update(positions, &host_positions_, &positions_)) angle_dim_ = 0;
  }
  void UpdateAngles(int head_dim) {
    if (angle_dim_ == head_dim) return;
    angle_dim_ = head_dim;
    const float* thetas = Thetas(&rope_thetas_, head_dim, RopeThetas);
    const int64_t rows = std::ssize(host_positions_);
    float* cos_sin = cos_sin_.Grow(device_.get(), rows * head_dim);
    cuda::Angles(ctx_, positions_.data(), rows, head_dim, thetas, cos_sin);
  }

  std::unique_ptr<Device> device_;  // outlives the arrays below
  const std::string name_;
  Context ctx_;
  AttentionRunner attention_;
  StepGraphs graphs_;
  std::vector<int32_t> host_tokens_;
  DeviceArray<int32_t> tokens_;
  std::vector<int64_t> host_positions_;
  DeviceArray<int64_t> positions_;
  ThetasOf embedding_thetas_, rope_thetas_;
  int angle_dim_ = 0;           // cos_sin_ belongs to it and to positions_; 0: to nothing
  DeviceArray<float> cos_sin_;  // [rows][cosines, sines]
  SampleMemory sample_memory_;
  const bool samples_rows_ = SamplesRows();
};

}  // namespace

Result<std::unique_ptr<Backend>> NewBackend() {
  PS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open());
  return Result<std::unique_ptr<Backend>>(std::make_unique<CudaBackend>(std::move(device)));
}

}  // namespace polysketch::cuda
