// Steps of a model under the emulation: what its kernels do, the least that the step needs, and the
// time that a simple model of a device gives. For step_budget_test.cc and plan.cc.
#pragma once

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/backend.h"
#include "tests/engine/model/model_runner.h"
#include "tests/simt/counts.h"
#include "tests/testing/random_model.h"

namespace polysketch::testing {

struct StepShape {
  std::string name;
  int batch = 1;         // sequences
  int rows = 1;          // tokens of each
  int64_t position = 0;  // of the first
};

// A device as the model of times knows it: an H200 with the bandwidth that docs/gpu.md assumes.
struct DeviceModel {
  double bytes_per_second = 4300e9;
  double products_per_second = 800e12 / 4096;  // mma.m16n8k16 has 4096 FLOP
  double launch_seconds = 2e-6;

  double Seconds(const simt::KernelCount& count) const {
    return launch_seconds * static_cast<double>(count.launches) +
           std::max(static_cast<double>(count.read + count.written) / bytes_per_second,
                    static_cast<double>(count.products) / products_per_second);
  }
};

// What a step needs at least: the weights once; of each sequence the far state, read, and written
// as well if blocks fill, and the near keys and values; 640 bytes a token and head of inputs and
// outputs (docs/gpu.md). Its products: those of the useful FLOP.
struct StepNeeds {
  double bytes = 0, products = 0;
};

inline StepNeeds NeedsOf(const ModelConfig& config, int64_t weight_bytes, const StepShape& shape) {
  const AttentionSpec spec = config.attention_spec(StateFormat::kBf16);
  const double d = spec.head_dim, r = spec.sketch_size, features = spec.features();
  const double heads = double{1} * config.num_layers * spec.heads;
  const double tokens = double{1} * shape.batch * shape.rows;
  const auto block = static_cast<double>(spec.block);
  const double held = static_cast<double>(shape.position % spec.block) + 1;
  const bool fills = shape.rows > 1;
  const double near = fills ? block / 2 : held;
  const double state = features * (d * (fills ? 8 : 2) + (fills ? 8 : 4));
  StepNeeds needs;
  needs.bytes = static_cast<double>(weight_bytes) +
                heads * shape.batch * (state + (fills ? 0 : near * (spec.near_dim() + d) * 2)) +
                heads * tokens * 640;
  const double width = config.emb_dim, hidden = config.mlp_hidden();
  const double layer = width * (4 * width + 3 * hidden);
  const double sketch = spec.heads * 2.0 * 2 * (d + 3 * r) * 8 * r;  // of queries and keys
  const double attention = features * d * (fills ? 2 : 1) + near * (spec.near_dim() + d);
  needs.products = 2 *
                   (tokens * config.num_layers * (layer + sketch) + tokens * heads * attention +
                    shape.batch * width * config.vocab_size) /
                   4096;
  return needs;
}

// A model with random weights, on the emulated device.
struct CountedModel {
  CountedModel(const ModelConfig& config_, DataType weights, int max_rows) : config(config_) {
    const TemporaryFolder folder;
    WriteRandomModel(folder.path(), config, DataType::kBf16, 1);
    Load(folder.path(), weights, max_rows);
  }
  // The model of a folder; `config` is not its own.
  CountedModel(const std::filesystem::path& folder, DataType weights, int max_rows) {
    Load(folder, weights, max_rows);
  }

  const ModelConfig config;
  const std::unique_ptr<cuda::CudaBackend> backend = std::move(cuda::CudaBackend::Open()).value();
  std::unique_ptr<FolderModel> model;

 private:
  void Load(const std::filesystem::path& folder, DataType weights, int max_rows) {
    LoadOptions options;
    options.weights = weights;
    options.state_format = StateFormat::kBf16;
    options.max_step_tokens = max_rows;
    model = LoadModel(folder, backend.get(), options);
  }
};

// Counts one step: the forward pass, and the sampling of each sequence's last row. The states are
// those of new sequences, moved to their position.
inline std::vector<simt::KernelCount> CountStep(CountedModel* counted, const StepShape& shape) {
  FolderModel& model = *counted->model;
  std::vector<std::unique_ptr<SequenceState>> states;
  const std::vector<int32_t> tokens(static_cast<size_t>(shape.rows), 7);
  Batch batch;
  for (int i = 0; i < shape.batch; ++i) {
    states.push_back(model.NewState());
    static_cast<cuda::CudaState&>(*states.back()).Advance(shape.position);
    batch.Add(states.back().get(), tokens, OutputRows::kLast);
  }
  const auto sampled = static_cast<size_t>(shape.batch);
  std::vector<SampleQuery> queries(sampled);
  for (SampleQuery& query : queries) query.kind = SampleQuery::Kind::kArgmax;
  std::vector<SampleResult> results(sampled);
  std::vector<float> logits(sampled * static_cast<size_t>(model.vocab_size()));
  model.Reserve(shape.batch, 0);
  simt::StartCounting();
  model.Step(batch, nullptr);
  model.SampleRows(0, queries, results, logits.data(), nullptr);
  return simt::StopCounting();
}

inline simt::KernelCount Total(const std::vector<simt::KernelCount>& kernels) {
  simt::KernelCount total;
  for (const simt::KernelCount& kernel : kernels) {
    total.launches += kernel.launches;
    total.read += kernel.read;
    total.written += kernel.written;
    total.products += kernel.products;
  }
  return total;
}

// Prints a line a kernel, the sum, and the least that the step needs, with times in microseconds.
inline void PrintStep(const StepShape& shape, const std::vector<simt::KernelCount>& kernels,
                      const StepNeeds& needs, const DeviceModel& device) {
  std::printf("%-34s %9s %12s %12s %10s %9s\n", shape.name.c_str(), "launches", "KB read",
              "KB written", "HMMA", "us");
  const auto line = [&](const std::string& name, const simt::KernelCount& count, double seconds) {
    std::printf("  %-32s %9ld %12.1f %12.1f %10ld %9.1f\n", name.substr(0, 32).c_str(),
                static_cast<long>(count.launches), static_cast<double>(count.read) / 1e3,
                static_cast<double>(count.written) / 1e3, static_cast<long>(count.products),
                seconds * 1e6);
  };
  double seconds = 0;
  for (const simt::KernelCount& kernel : kernels) {
    line(simt::KernelName(kernel.kernel), kernel, device.Seconds(kernel));
    seconds += device.Seconds(kernel);
  }
  line("sum", Total(kernels), seconds);
  simt::KernelCount least;
  least.read = static_cast<int64_t>(needs.bytes);
  least.products = static_cast<int64_t>(needs.products);
  line("least", least, device.Seconds(least));
}

}  // namespace polysketch::testing
