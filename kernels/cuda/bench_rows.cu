// Useful bytes are those of inputs and outputs, each once. FLOP are given of products alone.
#include "kernels/cuda/bench_rows.h"

#include <memory>
#include <vector>

#include "kernels/cuda/matrix.h"

namespace polysketch::cuda {
namespace {

constexpr int64_t kTokens = 8192;
constexpr int kWidth = 768, kHeads = 12, kHeadDim = 64, kHidden = 2048, kVocab = 32000;

// [in, out], all weights equal.
std::unique_ptr<CudaMatrix> Weights(Device* device, int64_t in, int64_t out, DataType type) {
  const std::vector<float> host(in * out, 0.01f);
  return std::make_unique<CudaMatrix>(device, HostMatrix{host.data(), DataType::kF32, in, out},
                                      false, type);
}

template <typename T>
DeviceArray<T> Numbers(Device* device, int64_t count, int64_t below) {
  std::vector<T> host(count);
  for (int64_t i = 0; i < count; ++i) host[i] = static_cast<T>(i * 7919 % below);
  DeviceArray<T> array(device, host.size());
  device->CopyIn(array.data(), host.data(), host.size() * sizeof(T));
  device->Synchronize();
  return array;
}

void BenchNormsAndGates(Bench* bench, Context* ctx) {
  const auto x = bench->Random(kTokens * 2 * kHidden, 1), y = bench->Random(kTokens * kHidden, 1);
  const auto norm = bench->Random(kWidth, 1);
  bench->Run("layer norm, 8192 x 768", 0, 8.0 * kTokens * kWidth, [&] {
    LayerNorm(*ctx, x.data(), kTokens, kWidth, {norm.data(), norm.data()}, y.data());
  });
  bench->Run("layer norm of heads, 8192 x 12 x 64", 0, 8.0 * kTokens * kWidth, [&] {
    LayerNorm(*ctx, x.data(), kTokens * kHeads, kHeadDim, {norm.data(), norm.data()}, y.data());
  });
  bench->Run("gelu gate, 8192 x 2048", 0, 12.0 * kTokens * kHidden,
             [&] { GeluGate(*ctx, x.data(), kTokens, kHidden, y.data()); });
}

void BenchPositions(Bench* bench, Context* ctx) {
  const auto embedding = Weights(bench->device(), kWidth, kVocab, DataType::kBf16);
  const auto tokens = Numbers<int32_t>(bench->device(), kTokens, kVocab);
  const auto positions = Numbers<int64_t>(bench->device(), kTokens, kTokens);
  const auto thetas = bench->Random(kWidth / 2, 1), out = bench->Random(kTokens * kWidth, 1);
  bench->Run("embedding, 8192 x 768 bf16", 0, 6.0 * kTokens * kWidth, [&] {
    Embed(*ctx, *embedding, tokens.data(), positions.data(), kTokens, thetas.data(), out.data());
  });
  const auto qkv = bench->Random(kTokens * 3 * kWidth, 1), k = bench->Random(kTokens * kWidth, 1);
  const auto angles = bench->Random(kTokens * kHeadDim, 1);
  bench->Run("angles, 8192 x 64", 0, 4.0 * kTokens * kHeadDim, [&] {
    Angles(*ctx, positions.data(), kTokens, kHeadDim, thetas.data(), angles.data());
  });
  bench->Run("rope, 8192 x 12 x 64", 0, 4.0 * kTokens * (4 * kWidth + kHeadDim), [&] {
    Rope(*ctx, qkv.data(), kTokens, angles.data(), kHeads, kHeadDim, out.data(), k.data());
  });
}

void BenchFeatureMaps(Bench* bench, Context* ctx) {
  constexpr int kFeatures = 128;
  constexpr int64_t kRows = kTokens * kHeads;
  const auto x = bench->Random(kRows * kHeadDim, 1), y = bench->Random(kRows * kFeatures, 1);
  const auto omega = Weights(bench->device(), kHeadDim, kFeatures, DataType::kF32);
  bench->Run("features of linear, 8192 x 12 x 64", 0, 8.0 * kRows * kHeadDim,
             [&] { LinearFeatures(*ctx, x.data(), kRows, kHeadDim, y.data()); });
  bench->Run("features of performer, 8192 x 12, 64 to 128", 2.0 * kRows * kHeadDim * kFeatures,
             4.0 * kRows * (kHeadDim + kFeatures),
             [&] { PerformerFeatures(*ctx, *omega, x.data(), kRows, y.data()); });
}

}  // namespace

void BenchRows(Bench* bench, Context* ctx) {
  BenchNormsAndGates(bench, ctx);
  BenchPositions(bench, ctx);
  BenchFeatureMaps(bench, ctx);
  const auto logits = bench->Random(int64_t{64} * kVocab, 5), sums = bench->Random(64, 1);
  bench->Run("log of summed exponentials, 64 x 32000", 0, 4.0 * 64 * kVocab,
             [&] { LogSumExp(*ctx, logits.data(), 64, kVocab, sums.data()); });
}

}  // namespace polysketch::cuda
