// Measures the ops that process rows independently. Useful bytes are those of the inputs and
// outputs, each once. FLOP are counted for products only.
#include <memory>
#include <vector>

#include "bench/cuda/bench.h"
#include "kernels/angles.h"

namespace polysketch::cuda {
namespace {

constexpr int64_t kTokens = 8192;
constexpr int kWidth = 768, kHeads = 12, kHeadDim = 64, kHidden = 2048, kVocab = 32000;

// Numbers below `limit`.
template <typename T>
std::vector<T> Numbers(int64_t count, int64_t limit) {
  std::vector<T> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<T>(i * 7919 % limit);
  return numbers;
}

void BenchNormsAndGates(Bench* bench) {
  CudaBackend& backend = *bench->backend();
  const auto x = bench->Random(kTokens * 2 * kHidden, 1), y = bench->Random(kTokens * kHidden, 1);
  const auto norm = bench->Random(kWidth, 1);
  bench->Run("layer norm, 8192 x 768", 0, 8.0 * kTokens * kWidth, [&] {
    backend.Norm(x.data(), kTokens, kWidth, {norm.data(), norm.data()}, y.data());
  });
  bench->Run("layer norm of heads, 8192 x 12 x 64", 0, 8.0 * kTokens * kWidth, [&] {
    backend.Norm(x.data(), kTokens * kHeads, kHeadDim, {norm.data(), norm.data()}, y.data());
  });
  bench->Run("gelu gate, 8192 x 2048", 0, 12.0 * kTokens * kHidden,
             [&] { backend.Gate(GateKind::kGelu, x.data(), kTokens, kHidden, y.data()); });
}

void BenchPositions(Bench* bench) {
  CudaBackend& backend = *bench->backend();
  const auto embedding = bench->Weights(kWidth, kVocab, DataType::kBf16);
  const auto tokens = Numbers<int32_t>(kTokens, kVocab);
  const auto positions = Numbers<int64_t>(kTokens, kTokens);
  const auto out = bench->Random(kTokens * kWidth, 1);
  bench->Run("embedding, 8192 x 768 bf16", 0, 6.0 * kTokens * kWidth,
             [&] { backend.Embed(*embedding, tokens, positions, out.data()); });
  const auto qkv = bench->Random(kTokens * 3 * kWidth, 1), k = bench->Random(kTokens * kWidth, 1);
  const HeadShape shape{kHeads, kHeads, kHeadDim};
  const std::vector<float> thetas = RopeThetas(kHeadDim);
  bench->Run("angles, 8192 x 64", 0, 4.0 * kTokens * kHeadDim,
             [&] { backend.ComputeAngles(thetas); });
  bench->Run("rope, 8192 x 12 x 64", 0, 4.0 * kTokens * (4 * kWidth + kHeadDim),
             [&] { backend.Rope(qkv.data(), positions, shape, thetas, out.data(), k.data()); });
  const auto normed = bench->Random(kTokens * 2 * kWidth, 1), norm = bench->Random(kHeadDim, 1);
  const NormWeights weights{norm.data(), norm.data()};
  bench->Run("rope and norms, 8192 x 12 x 64", 0, 4.0 * kTokens * (6 * kWidth + kHeadDim), [&] {
    backend.RopeAndNorms(qkv.data(), positions, shape, thetas, {weights, weights}, out.data(),
                         k.data(), normed.data(), normed.data() + kTokens * kWidth);
  });
}

void BenchFeatureMaps(Bench* bench) {
  CudaBackend& backend = *bench->backend();
  constexpr int kFeatures = 128;
  constexpr int64_t kRows = kTokens * kHeads;
  const auto x = bench->Random(kRows * kHeadDim, 1), y = bench->Random(kRows * kFeatures, 1);
  const auto omega = bench->Weights(kHeadDim, kFeatures, DataType::kF32);
  bench->Run("features of linear, 8192 x 12 x 64", 0, 8.0 * kRows * kHeadDim,
             [&] { backend.LinearFeatures(x.data(), kRows, kHeadDim, nullptr, 1, y.data()); });
  bench->Run("features of affine_square, 8192 x 12 x 64", 0,
             4.0 * kRows * (kHeadDim + kHeadDim + 8),
             [&] { backend.AffineFeatures(x.data(), kRows, kHeadDim, nullptr, kHeads, y.data()); });
  bench->Run("features of performer, 8192 x 12, 64 to 128", 2.0 * kRows * kHeadDim * kFeatures,
             4.0 * kRows * (kHeadDim + kFeatures),
             [&] { backend.PerformerFeatures(*omega, x.data(), kRows, y.data()); });
}

}  // namespace

void BenchRows(Bench* bench) {
  BenchNormsAndGates(bench);
  BenchPositions(bench);
  BenchFeatureMaps(bench);
  const auto logits = bench->Random(int64_t{64} * kVocab, 5), sums = bench->Random(64, 1);
  bench->Run("log of summed exponentials, 64 x 32000", 0, 4.0 * 64 * kVocab,
             [&] { bench->backend()->LogSumExp(logits.data(), 64, kVocab, sums.data()); });
}

}  // namespace polysketch::cuda
