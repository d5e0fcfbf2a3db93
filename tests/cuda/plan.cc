// polysketch-cuda-plan: what the kernels of a step do, without a device: launches, bytes and HMMA of
// a prompt's chunk and of decoding steps, and the time that a model of a device gives
// (step_counts.h). The emulation runs one layer and two; the others are like the second.
#include <CLI/CLI.hpp>

#include "tests/cuda/step_counts.h"

namespace polysketch {
namespace {

using simt::KernelCount;
using testing::StepShape;

// The counts of `layers` layers, from those of one and of two.
std::vector<KernelCount> Extrapolate(const std::vector<KernelCount>& one,
                                     const std::vector<KernelCount>& two, int layers) {
  std::vector<KernelCount> all = two;
  const int64_t more = layers - 2;
  for (KernelCount& kernel : all) {
    KernelCount first;
    for (const KernelCount& same : one) {
      if (same.kernel == kernel.kernel) first = same;
    }
    const auto extend = [&](int64_t KernelCount::*figure) {
      kernel.*figure += more * (kernel.*figure - first.*figure);
    };
    extend(&KernelCount::launches);
    extend(&KernelCount::read);
    extend(&KernelCount::written);
    extend(&KernelCount::products);
  }
  return all;
}

int Main(int argc, char** argv) {
  ModelConfig config;
  config.vocab_size = 32000;
  config.emb_dim = 768;
  config.num_heads = 12;
  config.num_layers = 12;
  config.context_length = 8192;
  config.sketch_size = 32;
  int chunk = 1024;
  std::vector<int> batches = {1, 64};
  std::string weights = "bf16";
  std::string folder;
  double gigabytes = 4300, teraflops = 800, launch = 2;
  CLI::App app("Launches, bytes and HMMA of the cuda backend's steps, counted under the emulation");
  app.add_option("--width", config.emb_dim, "Width of the model")->capture_default_str();
  app.add_option("--heads", config.num_heads, "Heads")->capture_default_str();
  app.add_option("--layers", config.num_layers, "Layers")->capture_default_str();
  app.add_option("--vocabulary", config.vocab_size, "Tokens")->capture_default_str();
  app.add_option("--sketch", config.sketch_size, "Sketch size r")->capture_default_str();
  app.add_option("--block", config.grain_size, "Tokens of a block")->capture_default_str();
  app.add_option("--chunk", chunk, "Tokens of a prompt's chunk; 0: none")->capture_default_str();
  app.add_option("--batches", batches, "Sequences of decoding steps")->delimiter(',');
  app.add_option("--weights", weights, "Format of the weights")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8", "q4"}))
      ->capture_default_str();
  app.add_option(
      "--folder", folder,
      "A model folder, all of whose layers run, in place of a random model; the least is "
      "its weights then");
  app.add_option("--gigabytes", gigabytes, "GB/s of a kernel")->capture_default_str();
  app.add_option("--teraflops", teraflops, "TFLOP/s of bf16 products")->capture_default_str();
  app.add_option("--launch", launch, "Microseconds of a launch")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const testing::DeviceModel device{gigabytes * 1e9, teraflops * 1e12 / 4096, launch * 1e-6};

  std::vector<StepShape> shapes;
  if (chunk > 0) {
    shapes.push_back({"chunk of " + std::to_string(chunk) + " tokens", 1, chunk, 2048});
  }
  for (const int batch : batches) {
    const int64_t middle = 2048 + config.grain_size / 2;
    shapes.push_back({"decoding, " + std::to_string(batch) + " sequences", batch, 1, middle});
  }
  const int rows = std::max(chunk, 64);
  const DataType type = *DataTypeOf(weights);
  if (!folder.empty()) {
    testing::CountedModel whole(folder, type, rows);
    for (const StepShape& shape : shapes) {
      testing::StepNeeds needs;
      needs.bytes = static_cast<double>(whole.model->weight_bytes());
      testing::PrintStep(shape, CountStep(&whole, shape), needs, device);
      std::fflush(stdout);
    }
    return 0;
  }
  ModelConfig small = config;
  small.num_layers = 1;
  testing::CountedModel one(small, type, rows);
  small.num_layers = 2;
  testing::CountedModel two(small, type, rows);
  const int64_t layer_bytes = two.model->weight_bytes() - one.model->weight_bytes();
  const int64_t weight_bytes = one.model->weight_bytes() + (config.num_layers - 1) * layer_bytes;
  for (const StepShape& shape : shapes) {
    const auto kernels =
        Extrapolate(CountStep(&one, shape), CountStep(&two, shape), config.num_layers);
    testing::PrintStep(shape, kernels, NeedsOf(config, weight_bytes, shape), device);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace polysketch

int main(int argc, char** argv) { return polysketch::Main(argc, argv); }
