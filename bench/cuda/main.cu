// polysketch-cuda-bench --ceilings: what the device can do (ceilings.cu).
// polysketch-cuda-bench [--only TEXT] [GB/s TFLOP/s]: times of the kernels alone; with --only, of the
// lines whose names contain TEXT. Useful FLOP and bytes are those of docs/gpu.md: symmetric features,
// one read of the state, half a block of near keys. The arguments are the ceilings of this machine,
// to which shares refer: the largest bandwidth of --ceilings, and the product that bench/cuda_peer.py
// measures.
#include "bench/cuda/bench.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/angles.h"

namespace polysketch::cuda {
namespace {

AttentionSpec Spec(int heads, int d, int r,
                   AttentionKind kind = AttentionKind::kLearnedSketchMixed) {
  AttentionSpec spec;
  spec.kind = kind;
  spec.heads = heads;
  spec.head_dim = d;
  spec.sketch_size = r;
  spec.num_features = kind == AttentionKind::kPerformer ? 2 * d : d;
  spec.block = 256;
  spec.state_format = StateFormat::kBf16;
  return spec;
}

// A learned sketch network of bf16 matrices.
struct Network {
  Network(Bench* bench, int d, int r) : norm(bench->Random(std::max(d, r), 1)) {
    net.input = d;
    net.size = r;
    for (auto& branch : net.branch) {
      for (int level = 0; level < 2; ++level) {
        const int in = level == 0 ? d : r;
        matrices.push_back(bench->Weights(in, 8 * r, DataType::kBf16));
        branch[level].up = matrices.back().get();
        matrices.push_back(bench->Weights(8 * r, r, DataType::kBf16));
        branch[level].down = matrices.back().get();
        branch[level].norm = {norm.data(), norm.data()};
        row_flop += 2.0 * (in + r) * 8 * r;
      }
    }
  }

  std::vector<std::unique_ptr<CudaMatrix>> matrices;
  DeviceArray<float> norm;
  SketchNetwork net;
  double row_flop = 0;
};

// Measures attention of `rows` tokens of each of `batch` sequences at `position`. With a network,
// queries and keys are sketched first.
void BenchAttention(Bench* bench, const std::string& name, const AttentionSpec& spec, int batch,
                    int rows, int64_t position, const Network* network = nullptr) {
  if (!Bench::Wanted(name)) return;
  const double features = spec.features(), d = spec.head_dim, r = spec.sketch_size;
  const double tokens = static_cast<double>(batch) * rows * spec.heads;
  // Half a block of near keys; KV kinds: all keys before the mean row.
  const double near_keys =
      spec.kv_cache() ? static_cast<double>(position) + rows / 2.0 : spec.block / 2.0;
  const double near = near_keys * (spec.near_dim() + d);  // numbers of keys and values
  const double far = 2 * features * d + (spec.sketched() ? 2 * r * r : 2 * features);
  double flop = tokens * (far + 2 * near);
  // Inputs and the output; in decoding also the state, and the near keys and values.
  double bytes = tokens * 4 * (2 * spec.near_dim() + 2 * d + (spec.mixed() ? 2 * r : 0));
  if (rows > 1) {
    flop += tokens * far;  // the fold
  } else {
    bytes += static_cast<double>(
        batch * bench->backend()->ReadBytes(spec, static_cast<int64_t>(near_keys)));
  }
  std::vector<std::unique_ptr<CudaState>> states;
  std::vector<Segment> segments;
  for (int i = 0; i < batch; ++i) {
    states.push_back(std::make_unique<CudaState>(bench->device(), std::span(&spec, 1)));
    states.back()->Advance(position);
    segments.push_back({states.back().get(), i * rows, rows});
  }
  const size_t m = static_cast<size_t>(batch) * rows * spec.heads;
  const auto q = bench->Random(m * spec.near_dim(), 0.3f),
             k = bench->Random(m * spec.near_dim(), 0.3f);
  const auto v = bench->Random(m * spec.head_dim, 1), out = bench->Random(m * spec.head_dim, 1);
  const auto far_q = bench->Random(m * spec.far_dim(), 0.4f);
  const auto far_k = bench->Random(m * spec.far_dim(), 0.4f);
  const bool own_near = spec.mixed() || spec.kv_cache();
  const AttentionInput input{own_near ? q.data() : far_q.data(),
                             own_near ? k.data() : far_k.data(),
                             far_q.data(),
                             far_k.data(),
                             v.data(),
                             int64_t{spec.heads} * spec.head_dim};
  if (network != nullptr) {
    flop += 2 * tokens * network->row_flop;
    bytes += 2 * tokens * 4 * (d + r);
  }
  CudaBackend& backend = *bench->backend();
  bench->Run(name, flop, bytes, [&] {
    if (network != nullptr) {
      const auto sketched = static_cast<int64_t>(m);
      backend.LearnedSketch(network->net, q.data(), sketched, far_q.data());
      backend.LearnedSketch(network->net, k.data(), sketched, far_k.data());
    }
    backend.Attention(spec, 0, segments, input, out.data());
  });
}

// Measures what serves a prompt in learned_sketch_mixed: from joint queries, keys and values to the
// residual stream, of which attention is the middle.
void BenchMixedSketches(Bench* bench, const Network& network, int64_t rows) {
  constexpr int64_t kWidth = 768;
  const AttentionSpec spec = Spec(12, 64, 32);
  CudaState state(bench->device(), std::span(&spec, 1));
  const Segment segment{&state, 0, static_cast<int32_t>(rows)};
  std::vector<int64_t> positions(static_cast<size_t>(rows));
  std::iota(positions.begin(), positions.end(), 0);
  const auto w = bench->Weights(kWidth, kWidth, DataType::kBf16);
  const auto qkv = bench->Random(rows * 3 * kWidth, 1), x = bench->Random(rows * kWidth, 1);
  const auto qk = bench->Random(2 * rows * kWidth, 1),
             near_qk = bench->Random(2 * rows * kWidth, 1);
  const auto sketch = bench->Random(2 * rows * spec.heads * spec.far_dim(), 1);
  const auto attended = bench->Random(rows * kWidth, 1), norm = bench->Random(spec.head_dim, 1);
  const NormWeights weights{norm.data(), norm.data()};
  const std::vector<float> thetas = RopeThetas(spec.head_dim);
  const MixedSketchInput input{.qkv = qkv.data(),
                               .positions = positions,
                               .thetas = thetas,
                               .near_q_norm = weights,
                               .near_k_norm = weights,
                               .network = &network.net,
                               .qk = qk.data(),
                               .near_qk = near_qk.data(),
                               .sketch = sketch.data(),
                               .attended = attended.data()};
  const double tokens = static_cast<double>(rows), d = spec.head_dim, r = spec.sketch_size;
  const double near = spec.block / 2.0 * 2 * d;
  const double attention = 4 * spec.features() * d + 2 * r * r + 2 * near;
  bench->Run("q, k, v to the residual stream, 12 heads, n " + std::to_string(rows),
             tokens * (spec.heads * (attention + 2 * network.row_flop) + 2.0 * kWidth * kWidth),
             static_cast<double>(w->bytes()) + tokens * 4 * 5 * kWidth, [&] {
               bench->backend()->MixedSketchAttention(spec, 0, {&segment, 1}, input, *w, x.data());
             });
}

void BenchProduct(Bench* bench, int64_t rows, int64_t in, int64_t out,
                  DataType type = DataType::kBf16) {
  const auto w = bench->Weights(in, out, type);
  const auto x = bench->Random(rows * in, 1), y = bench->Random(rows * out, 1);
  const std::string by =
      w->half() && bench->backend()->has_dense_library() ? " cuBLASLt" : " portable";
  bench->Run("product " + std::to_string(rows) + " x " + std::to_string(in) + " x " +
                 std::to_string(out) + " " + std::string(DataTypeName(type)) + by,
             2.0 * rows * in * out, static_cast<double>(w->bytes()) + 4.0 * rows * (in + out),
             [&] { bench->backend()->MatMul(x.data(), rows, *w, nullptr, false, y.data()); });
}

// The fused ops of a layer of the 110M model.
void BenchFused(Bench* bench, int64_t rows) {
  constexpr int64_t kWidth = 768, kHidden = 2048;
  const auto qkv = bench->Weights(kWidth, 3 * kWidth, DataType::kBf16);
  const auto up = bench->Weights(kWidth, 2 * kHidden, DataType::kBf16);
  const auto down = bench->Weights(kHidden, kWidth, DataType::kBf16);
  const auto norm = bench->Random(kWidth, 1), x = bench->Random(rows * kWidth, 1);
  const auto scratch = bench->Random(rows * (kWidth + 3 * kHidden), 1);
  const NormWeights weights{norm.data(), norm.data()};
  CudaBackend& backend = *bench->backend();
  const std::string by = std::to_string(rows) + " rows, bf16" +
                         (backend.has_dense_library() ? " cuBLASLt" : " portable");
  bench->Run("norm and product 768 x 2304, " + by, 2.0 * rows * kWidth * 3 * kWidth,
             static_cast<double>(qkv->bytes()) + 16.0 * rows * kWidth, [&] {
               backend.NormMatMul(x.data(), rows, weights, *qkv, nullptr, scratch.data(),
                                  scratch.data() + rows * kWidth);
             });
  bench->Run("mlp 768 x 2048, " + by, 6.0 * rows * kWidth * kHidden,
             static_cast<double>(up->bytes() + down->bytes()) + 12.0 * rows * kWidth, [&] {
               backend.Mlp({weights, up.get(), down.get()}, rows, x.data(), scratch.data());
             });
}

void BenchSketch(Bench* bench, const Network& network, int64_t rows) {
  const int d = network.net.input, r = network.net.size;
  const auto x = bench->Random(rows * d, 1), y = bench->Random(rows * r, 1);
  bench->Run("learned sketch, " + std::to_string(rows) + " rows, d " + std::to_string(d) + " r " +
                 std::to_string(r),
             static_cast<double>(rows) * network.row_flop, 4.0 * rows * (d + r),
             [&] { bench->backend()->LearnedSketch(network.net, x.data(), rows, y.data()); });
}

void BenchRandomSketch(Bench* bench, int64_t rows, int d, int r) {
  const auto left = bench->Weights(d, r, DataType::kF32);
  const auto right = bench->Weights(d, r, DataType::kF32);
  const Matrix* const matrices[] = {left.get(), right.get()};
  const std::span<const Matrix* const> level = matrices;
  const RandomSketch sketch{{&level, 1}, d, r};
  const auto x = bench->Random(rows * d, 1), y = bench->Random(rows * r, 1);
  bench->Run("random sketch, " + std::to_string(rows) + " rows, d " + std::to_string(d) + " r " +
                 std::to_string(r),
             4.0 * rows * d * r, 4.0 * rows * (d + r),
             [&] { bench->backend()->ApplyRandomSketch(sketch, x.data(), rows, y.data()); });
}

std::unique_ptr<CudaBackend> OpenBackend() {
  auto backend = CudaBackend::Open();
  if (backend.ok()) return std::move(backend).value();
  std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
  std::exit(1);
}

int Main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "--only") == 0) {
    Bench::SetOnly(argv[2]);
    argv += 2;
    argc -= 2;
  }
  if (argc > 1 && std::strcmp(argv[1], "--ceilings") == 0) {
    const std::unique_ptr<CudaBackend> measured = OpenBackend();
    Bench bench(measured.get(), 0, 0);
    BenchCeilings(&bench);
    return 0;
  }
  const double gigabytes = argc > 1 ? std::atof(argv[1]) : 0;
  const double teraflops = argc > 2 ? std::atof(argv[2]) : 0;
  const std::unique_ptr<CudaBackend> backend = OpenBackend();
  setenv("POLYSKETCH_CUDA_DENSE", "portable", 1);
  const std::unique_ptr<CudaBackend> portable_backend = OpenBackend();
  Bench bench(backend.get(), gigabytes, teraflops);
  Bench portable(portable_backend.get(), gigabytes, teraflops);
  Bench::PrintHeader();
  for (const int n : {2048, 8192, 32768, 65536}) {
    BenchAttention(&bench, "prefill attention, 12 heads, d 64 r 32, n " + std::to_string(n),
                   Spec(12, 64, 32), 1, n, 0);
  }
  BenchAttention(&bench, "prefill attention, 16 x 32 heads, d 64 r 32, n 4096", Spec(32, 64, 32),
                 16, 4096, 0);
  BenchAttention(&bench, "prefill attention, 12 heads, d 128 r 32, n 32768", Spec(12, 128, 32), 1,
                 32768, 0);
  BenchAttention(&bench, "prefill attention, 12 heads, d 64 r 64, n 8192", Spec(12, 64, 64), 1,
                 8192, 0);
  for (const int batch : {1, 8, 16, 64, 256}) {
    BenchAttention(&bench, "decode attention, 12 heads, d 64 r 32, batch " + std::to_string(batch),
                   Spec(12, 64, 32), batch, 1, 8192 + 127);
  }
  for (const AttentionKind kind : {AttentionKind::kLearnedSketchMixed, AttentionKind::kSoftmax}) {
    for (const int batch : {64, 256}) {
      AttentionSpec spec = Spec(12, 64, 32, kind);
      spec.state_format = StateFormat::kQ8;
      const std::string name(AttentionKindName(kind));
      BenchAttention(&bench, "decode attention in q8, " + name + ", batch " + std::to_string(batch),
                     spec, batch, 1, kind == AttentionKind::kSoftmax ? 1024 : 8192 + 127);
    }
  }
  for (const AttentionKind kind :
       {AttentionKind::kLearnedSketch, AttentionKind::kSoftmax, AttentionKind::kPolynomial,
        AttentionKind::kLinear, AttentionKind::kPerformer}) {
    const AttentionSpec spec = Spec(12, 64, 32, kind);
    const std::string name(AttentionKindName(kind));
    BenchAttention(&bench, "prefill " + name + ", 12 heads, d 64, n 8192", spec, 1, 8192, 0);
    BenchAttention(&bench, "decode " + name + ", 12 heads, d 64, batch 64", spec, 64, 1,
                   8192 + 127);
  }
  // Grouped queries after long texts: smollm2-hybrid's heads, and those of an 8B model.
  for (const auto& [heads, kv_heads, d, batch, n] :
       {std::array{9, 3, 64, 1, 131072}, std::array{9, 3, 64, 16, 32768},
        std::array{32, 8, 128, 1, 131072}}) {
    AttentionSpec spec = Spec(heads, d, 32, AttentionKind::kSoftmax);
    spec.kv_heads = kv_heads;
    BenchAttention(&bench,
                   "decode softmax, " + std::to_string(heads) + " heads, " +
                       std::to_string(kv_heads) + " kv heads, d " + std::to_string(d) + ", n " +
                       std::to_string(n) + ", batch " + std::to_string(batch),
                   spec, batch, 1, n);
  }
  // The shapes of bench/cuda_peer.py.
  for (const auto& [batch, heads, d, n] :
       {std::array{1, 12, 64, 2048}, std::array{1, 12, 64, 32768}, std::array{16, 32, 64, 4096},
        std::array{1, 12, 128, 8192}}) {
    const std::string name = "prefill softmax, " + std::to_string(batch) + " x " +
                             std::to_string(heads) + " heads, d " + std::to_string(d) + ", n " +
                             std::to_string(n);
    BenchAttention(&bench, name, Spec(heads, d, 32, AttentionKind::kSoftmax), batch, n, 0);
  }
  AttentionSpec float32 = Spec(12, 64, 32);
  float32.state_format = StateFormat::kF32;
  BenchAttention(&bench, "prefill in float32, 12 heads, d 64 r 32, n 2048", float32, 1, 2048, 0);
  for (Bench* each : {&bench, &portable}) {
    for (const int64_t rows : {1, 8, 64, 8192}) BenchProduct(each, rows, 768, 2304);
    for (const int64_t rows : {1, 64}) {
      BenchProduct(each, rows, 768, 768);
      BenchProduct(each, rows, 768, 4096);
      BenchProduct(each, rows, 2048, 768);
      BenchProduct(each, rows, 768, 32000);
    }
    for (const int64_t rows : {1, 4, 16, 64, 8192}) BenchFused(each, rows);
  }
  BenchProduct(&bench, 64, 768, 2304, DataType::kF32);
  for (const DataType type : {DataType::kQ8, DataType::kQ4}) {
    for (const int64_t rows : {1, 64, 8192}) BenchProduct(&bench, rows, 768, 2304, type);
  }
  const Network network(&bench, 64, 32);
  for (const int tokens : {1, 64, 8192}) BenchSketch(&bench, network, 2 * 12 * tokens);
  for (const int n : {8192, 32768}) {
    BenchAttention(&bench, "prefill attention and its sketches, 12 heads, n " + std::to_string(n),
                   Spec(12, 64, 32), 1, n, 0, &network);
    BenchMixedSketches(&bench, network, n);
  }
  for (const int tokens : {64, 8192}) BenchRandomSketch(&bench, 2 * 12 * tokens, 64, 32);
  BenchRows(&bench);
  BenchTraining(&bench);
  return 0;
}

}  // namespace
}  // namespace polysketch::cuda

int main(int argc, char** argv) { return polysketch::cuda::Main(argc, argv); }
