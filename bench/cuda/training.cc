#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/cuda/bench.h"
#include "kernels/cuda/training/polysketch_attention.h"

namespace polysketch::cuda {
namespace {

// Pairs of small bf16 values. The time of the arithmetic does not depend on the values.
DeviceArray<float> Rows(Bench* bench, size_t elements) {
  std::vector<uint32_t> host(size_t{1} << 20);
  std::mt19937 engine(3);
  for (uint32_t& pair : host) {
    const auto small = [&] { return 0x3e80u + (engine() & 0x807f); };  // +- 0.25 to 0.5
    pair = small() << 16 | small();
  }
  DeviceArray<float> array(bench->device(), (elements + 1) / 2);
  for (size_t i = 0; i < array.size(); i += host.size()) {
    bench->device()->CopyIn(array.data() + i, host.data(),
                            std::min(host.size(), array.size() - i) * sizeof(float));
  }
  bench->device()->Synchronize();
  return array;
}

void Check(int status) {
  if (status == POLYSKETCH_ATTENTION_OK) return;
  std::fprintf(stderr, "%s\n", polysketch_attention_error());
  std::exit(1);
}

// [batch, heads, tokens, width] without gaps.
polysketch_attention_tensor Dense(const polysketch_attention_shape& shape, int64_t width,
                                  const DeviceArray<float>& array) {
  return {array.data(), POLYSKETCH_BF16, shape.heads * shape.tokens * width, shape.tokens * width,
          width};
}

struct Arrays {
  Arrays(Bench* bench, const polysketch_attention_shape& shape)
      : near_q(Rows(bench, Size(shape, shape.near_dim))),
        near_k(Rows(bench, Size(shape, shape.near_dim))),
        far_q(Rows(bench, Size(shape, shape.sketch_dim))),
        far_k(Rows(bench, Size(shape, shape.sketch_dim))),
        v(Rows(bench, Size(shape, shape.head_dim))),
        arrays{Dense(shape, shape.near_dim, near_q),  Dense(shape, shape.near_dim, near_k),
               Dense(shape, shape.sketch_dim, far_q), Dense(shape, shape.sketch_dim, far_k),
               Dense(shape, shape.head_dim, v),       nullptr} {}
  static size_t Size(const polysketch_attention_shape& shape, int64_t width) {
    return static_cast<size_t>(shape.batch * shape.heads * shape.tokens * width);
  }
  DeviceArray<float> near_q, near_k, far_q, far_k, v;
  polysketch_attention_arrays arrays;
};

// Useful work for a token and head, with F packed features and on average b / 2 near keys. Forward:
// 2 F d each for the fold and the read, and two products over the near keys. Backward: 2 F d each
// for two states and three gradients through them, and five products over the near keys. Bytes:
// each input and output once; the backward pass reads the inputs again.
void BenchShape(Bench* bench, int64_t batch, int64_t heads, int64_t tokens) {
  const polysketch_attention_shape shape{batch, heads, tokens,          64, 64, 32, 4,
                                         256,   1.0f,  POLYSKETCH_BF16, 0,  0,  2};
  const double d = shape.head_dim, r = shape.sketch_dim, features = 640,
               near_keys = shape.block / 2;
  const double rows = static_cast<double>(batch) * static_cast<double>(heads * tokens);
  const double in_bytes = 2 * (3 * d + 2 * r), out_bytes = 2 * d + 4;
  size_t forward = 0, backward = 0;
  Check(polysketch_attention_workspace(&shape, &forward, &backward));
  const Arrays inputs(bench, shape), gradients(bench, shape);
  const DeviceArray<float> out = Rows(bench, Arrays::Size(shape, shape.head_dim));
  const DeviceArray<float> g = Rows(bench, Arrays::Size(shape, shape.head_dim));
  const DeviceArray<float> denominators(bench->device(), static_cast<size_t>(rows));
  const DeviceArray<uint8_t> workspace(bench->device(), backward);
  const polysketch_attention_tensor out_tensor = Dense(shape, shape.head_dim, out);
  const polysketch_attention_tensor g_tensor = Dense(shape, shape.head_dim, g);
  cudaStream_t stream = bench->device()->stream();
  const auto run_forward = [&] {
    Check(polysketch_attention_forward(&shape, &inputs.arrays, nullptr, &out_tensor,
                                       denominators.data(), nullptr, workspace.data(), forward,
                                       stream));
  };
  const auto run_backward = [&] {
    Check(polysketch_attention_backward(&shape, &inputs.arrays, nullptr, &out_tensor,
                                        denominators.data(), &g_tensor, &gradients.arrays,
                                        workspace.data(), backward, stream));
  };
  const std::string name =
      StrCat(batch, " x ", heads, " heads, d 64 r 32, n ", tokens, " (", backward >> 20, " MiB)");
  const double forward_flop = rows * (4 * features * d + 4 * d * near_keys + 4 * r * r);
  const double backward_flop = rows * (10 * features * d + 10 * d * near_keys + 10 * r * r);
  const double forward_bytes = rows * (in_bytes + out_bytes);
  const double backward_bytes = rows * (2 * in_bytes + out_bytes + 2 * d);
  bench->Run("train fwd " + name, forward_flop, forward_bytes, run_forward);
  bench->Run("train bwd " + name, backward_flop, backward_bytes, run_backward);
  bench->Run("train fwd+bwd " + name, forward_flop + backward_flop, forward_bytes + backward_bytes,
             [&] {
               run_forward();
               run_backward();
             });
}

}  // namespace

void BenchTraining(Bench* bench) {
  BenchShape(bench, 1, 12, 2048);
  BenchShape(bench, 1, 12, 8192);
  BenchShape(bench, 1, 12, 32768);
  BenchShape(bench, 1, 12, 65536);
  BenchShape(bench, 16, 32, 4096);
  BenchShape(bench, 16, 32, 32768);
}

}  // namespace polysketch::cuda
