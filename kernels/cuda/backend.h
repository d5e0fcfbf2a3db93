// The cuda backend. Its ops are defined one a file; every pointer that they take is a device
// pointer.
//
// Numbers: the result of a row is one fixed sequence of operations here too (docs/numerics.md).
// Sums inside a row are divided among lanes in one way and joined by a fixed tree; products run
// over k in order. Contraction is off (-fmad=false) and fused operations are written as such, so
// that two kernels which share a formula share its bits.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/quantized_operands.h"
#include "kernels/cuda/skinny_product.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/step_graphs.h"

namespace polysketch::cuda {

struct SketchStep;

class CudaBackend final : public Backend {
 public:
  // Opens the first device. FAILED_PRECONDITION if there is none that the backend supports.
  static Result<std::unique_ptr<CudaBackend>> Open();

  std::string_view name() const override { return name_; }
  int threads() const override { return 1; }
  Status status() const override { return device_->status(); }
  bool has_state_format(StateFormat format) const override { return format != StateFormat::kF16; }

  bool host_memory() const override { return false; }
  float* NewArray(size_t size) override;
  void DeleteArray(float* array) override;
  void CopyIn(const float* host, size_t size, float* array) override;
  void CopyOut(const float* array, size_t size, float* host) override;
  std::unique_ptr<const Matrix> PackMatrix(const HostMatrix& w, bool transpose,
                                           DataType type) override;
  std::unique_ptr<SequenceState> NewState(std::span<const AttentionSpec> layers) override {
    return std::make_unique<CudaState>(device_.get(), layers);
  }
  size_t StateBytes(std::span<const AttentionSpec> layers, int64_t tokens) const override {
    return cuda::StateBytes(layers, tokens);
  }
  int64_t ReadBytes(const AttentionSpec& spec, int64_t tokens) const override {
    return cuda::ReadBytes(spec, tokens);
  }
  void Reserve(std::span<const AttentionSpec> layers, int64_t rows, int64_t segments,
               size_t kv_bytes, const std::function<void()>& ops) override;
  DeviceMemory device_memory() override { return {device_->held_memory(), device_->FreeMemory()}; }

  void Embed(const Matrix& embedding, std::span<const int32_t> tokens,
             std::span<const int64_t> positions, float* out) override;
  void Norm(const float* x, int64_t rows, int width, const NormWeights& norm, float* out) override;
  void MatMul(const float* x, int64_t rows, const Matrix& w, const float* bias, bool accumulate,
              float* out) override;
  void Rope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
            std::span<const float> thetas, float* q, float* k) override;
  void Gate(GateKind gate, const float* up, int64_t rows, int hidden, float* out) override;
  void NormMatMul(const float* x, int64_t rows, const NormWeights& norm, const Matrix& w,
                  const float* bias, float* normed, float* out) override;
  void NormMatMulDecay(const float* x, int64_t rows, const NormWeights& norm, const Matrix& w,
                       const float* bias, const Matrix& gate, const float* gate_bias, float* normed,
                       float* out, float* log_decay) override;
  void Mlp(const MlpWeights& mlp, int64_t rows, float* x, float* scratch) override;
  void RopeAndNorms(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                    std::span<const float> thetas, const HeadNorms& norms, float* q, float* k,
                    float* normed_q, float* normed_k) override;
  void LearnedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out) override;
  void ApplyRandomSketch(const RandomSketch& sketch, const float* x, int64_t rows,
                         float* out) override;
  void LinearFeatures(const float* x, int64_t rows, int width, const float* factors, int heads,
                      float* out) override;
  void PerformerFeatures(const Matrix& omega, const float* x, int64_t rows, float* out) override;
  void AffineFeatures(const float* x, int64_t rows, int width, const float* terms, int heads,
                      float* out) override;
  void HeadMaps(const float* x, int64_t rows, int heads, int width, const float* maps,
                const float* biases, int size, float* out) override;
  void Attention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                 const AttentionInput& input, float* out) override;
  void AttentionMatMul(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                       const AttentionInput& input, int64_t rows, const Matrix& w, float* attended,
                       float* x) override;
  void HeadAttention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                     const HeadInput& input, const Matrix& w, const float* bias, float* x) override;
  void MixedSketchAttention(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                            const MixedSketchInput& input, const Matrix& w, float* x) override;
  void LogSigmoid(const float* x, int64_t size, float* out) override;
  void LogSumExp(const float* x, int64_t rows, int64_t width, float* out) override;

  void RunStep(const StepInput& step, const std::function<void()>& ops) override;
  void Wait() override { device_->Synchronize(); }
  bool samples_rows() const override { return samples_rows_; }
  void SampleRows(float* logits, int64_t width, std::span<const SampleQuery> queries,
                  std::span<SampleResult> answers) override;

  // For benchmarks. Computes the angles of the positions of the last Embed or Rope, times thetas.
  Device* device() { return device_.get(); }
  bool has_dense_library() const { return library_ != nullptr; }
  void ComputeAngles(std::span<const float> thetas);

 private:
  explicit CudaBackend(std::unique_ptr<Device> device);
  // Upload values for all layers of a step; they do nothing if the device has the same values.
  void UpdateTokens(std::span<const int32_t> tokens);
  void UpdatePositions(std::span<const int64_t> positions);
  // Allocates the memory of states that take `kv_bytes` together.
  void ReserveStates(std::span<const AttentionSpec> layers, int64_t segments, size_t kv_bytes);
  // Returns the cosines and sines of the angles, as cos_sin_ has them; null without thetas.
  const float* UpdateAngles(std::span<const int64_t> positions, const HeadShape& shape,
                            std::span<const float> thetas);

  // --- 16-bit products (matmul.cu) ---
  void MatMulHalf(const float* x, int64_t rows, const CudaMatrix& w, const float* bias,
                  bool accumulate, float* out);
  // x: [rows, padded_in] in the format of w, as Rounded and NormToHalves return it.
  void HalvesMatMul(const uint16_t* x, int64_t rows, const CudaMatrix& w, const float* bias,
                    bool accumulate, float* out);
  void PortableProduct(const uint16_t* x, int64_t rows, const CudaMatrix& w, const float* bias,
                       bool accumulate, float* out);
  // u times the gate of g, of x w = [u, g], rounded to the format of w: [rows, w.out() / 2]. w:
  // SkinnyGates.
  void PortableGate(GateKind gate, const uint16_t* x, int64_t rows, const CudaMatrix& w,
                    uint16_t* gated);
  // Whether the product has enough of the largest tiles for all multiprocessors.
  bool ManyTiles(int64_t rows, const CudaMatrix& w) const;
  void RunSkinny(int64_t rows, const CudaMatrix& w, const SkinnyInput& input,
                 const SkinnyOutput& output);
  // Notes the order of a step's products, which is that of the next step.
  void OnProduct(const CudaMatrix& w);
  // Whether all products with w have the bits of our kernels.
  bool HasOurBits(const CudaMatrix& w) const;
  // Whether SkinnyProduct computes the product.
  bool Skinny(int64_t rows, const CudaMatrix& w) const;
  // x, or its norm, as halves in halves_.
  uint16_t* Rounded(const float* x, int64_t rows, const CudaMatrix& w);
  uint16_t* NormToHalves(const float* x, int64_t rows, const NormWeights& norm,
                         const CudaMatrix& w);
  // Gate with a result in the format of w: [rows, w.padded_in()].
  void GateToHalves(GateKind gate, const float* up, int64_t rows, int64_t hidden,
                    const CudaMatrix& w, uint16_t* out);
  // --- 8-bit and 4-bit products (quantized_product.cu) ---
  void MatMulQuantized(const QuantInput& input, int64_t rows, const CudaMatrix& w,
                       const QuantOutput& output);
  // Whether MatMulQuantized takes an output with this gate.
  static bool QuantizedGates(GateKind gate, int64_t rows, const CudaMatrix& w);
  void MlpQuantized(const MlpWeights& mlp, int64_t rows, float* x, float* scratch);

  bool LibraryHasOurBits(const CudaMatrix& w);
  bool CompareWithLibrary(const CudaMatrix& w);

  // LearnedSketch in one kernel, for matrices of 16 bits and some sizes: floats, or bf16_out.
  bool SketchIsFused(const SketchNetwork& net) const;
  void RunFusedSketch(const SketchNetwork& net, const float* x, int64_t rows, float* out,
                      uint16_t* bf16_out);
  // Whether RunSketchStep, which is described in learned_sketch_step.cuh, takes `rows` heads.
  bool SketchTakesStep(const SketchNetwork& net, int64_t rows) const;
  void RunSketchStep(const SketchNetwork& net, const SketchStep& step);
  // RopeAndNorms in one kernel, for some sizes of heads and aligned arrays: q and k into the two
  // arrays of floats, or, if these are null, rounded into those of bf16.
  struct NormedHeads {
    float* floats[2] = {};
    uint16_t* bf16[2] = {};
  };
  static bool NormsHeads(int head_dim, std::initializer_list<const void*> arrays);
  void RopeAndHeadNorms(const float* qkv, std::span<const int64_t> positions,
                        const HeadShape& shape, std::span<const float> thetas,
                        const HeadNorms& norms, float* q, float* k, const NormedHeads& normed);
  // RopeAndNorms with norms before the rotation.
  void NormAndRope(const float* qkv, std::span<const int64_t> positions, const HeadShape& shape,
                   std::span<const float> thetas, const HeadNorms& norms, float* q, float* k);
  // Whether a step has one token of each of its sequences.
  static bool OneTokenEach(std::span<const Segment> segments);
  // AttentionMatMul, with a bias if it is not null; `rows` and `store` as AttentionRunner::Run takes
  // them.
  void AttentionProduct(const AttentionSpec& spec, int layer, std::span<const Segment> segments,
                        const AttentionInput& input, const Bf16Rows& rows, const StoreStep& store,
                        int64_t count, const CudaMatrix& w, const float* bias, float* attended,
                        float* x);
  // Whether the attention before a product with w may round its result for it.
  static bool PassesHalves(int64_t rows, const CudaMatrix& w);
  void ReserveSampling();
  // Counters of SampleRows, zero between two calls.
  int32_t* SampleArrivals();

  const std::unique_ptr<Device> device_;  // outlives the arrays below
  const std::string name_;
  const std::unique_ptr<DenseLibrary> library_;  // may be null
  // The weights of the product after each one in RunStep, by address, for prefetching. All are of
  // models that exist: a step uses one model, and PackMatrix clears them.
  std::unordered_map<const uint16_t*, SkinnyPrefetch::Range> following_;
  const uint16_t* previous_ = nullptr;  // weights of the last product of this step, or null
  bool in_step_ = false;
  const bool prefetches_;
  // Key: in, out, format.
  std::map<std::tuple<int64_t, int64_t, DataType>, bool> library_has_our_bits_;
  AttentionRunner attention_;
  StepGraphs graphs_, chunk_graphs_;  // of decoding steps; of steps with chunks of prompts

  // Inputs of the current step.
  std::vector<int32_t> host_tokens_;
  DeviceArray<int32_t> tokens_;
  std::vector<int64_t> host_positions_;
  DeviceArray<int64_t> positions_;
  std::map<int64_t, DeviceArray<float>> embedding_thetas_;  // by width
  std::map<std::vector<float>, DeviceArray<float>> rope_thetas_;
  std::vector<float> angles_of_;  // thetas of cos_sin_; none: cos_sin_ is not that of positions_
  DeviceArray<float> cos_sin_;    // [rows][head_dim]: cosines, then sines

  // Workspace of one op, which grows to the largest step.
  DeviceArray<float> floats_[4];
  DeviceArray<uint16_t> halves_, gated_;
  DeviceArray<int8_t> bytes_;

  // SampleRows: queries and answers on the device and on the host; what thread blocks pass to each
  // other.
  DeviceArray<uint8_t> queries_, answers_;
  DeviceArray<uint8_t> exchange_;
  DeviceArray<int32_t> arrivals_;
  std::vector<uint8_t> host_queries_, host_answers_;
  const bool samples_rows_;
};

}  // namespace polysketch::cuda
