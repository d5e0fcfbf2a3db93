// Model folders with random weights, for tests of every attention kind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint/model_config.h"
#include "kernels/backend.h"

namespace polysketch::testing {

// A small config of that kind: 2 layers, 2 heads of 8, vocabulary 61, block 8, sketches of 4
// (degree 2), 12 features.
ModelConfig TinyConfig(AttentionKind kind);
// The names of small models, for parameters of tests: every kind, then every recurrent kind with a
// decay gate ("linear_gated"), one kind without sinusoidal positions, and mixtures: "mixture" has
// full, window, sketched, gated and polynomial layers, "mixture_of_windows" no layer that grows.
std::vector<std::string> TinyModelNames();
ModelConfig TinyConfig(const std::string& name);
// Whether a layer is of a recurrent kind, whose states have formats.
bool HasRecurrentLayers(const ModelConfig& config);
bool HasCaches(const ModelConfig& config);

// Writes config.json and model.safetensors with every matrix stored as `type`, norms and biases as
// F32 ones moved away from 1 and 0. Scales keep activations and logits of order one. The folder is
// made when it is missing.
void WriteRandomModel(const std::filesystem::path& folder, const ModelConfig& config, DataType type,
                      uint64_t seed);

// A folder that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace polysketch::testing
