// The recorded frames: models of Hugging Face folders, tokens, and the logits of transformers in float32
// (tests/data/frames, made by tests/training/frame_models.py).
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "tests/testing/environment.h"

namespace polysketch::testing {

inline std::filesystem::path FramesFolder() { return SourceDir() / "tests/data/frames"; }

// How many there are: what a test of all of them must have seen.
inline constexpr int kFrames = 31;

inline std::vector<std::string> FrameNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(FramesFolder())) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct FrameRecording {
  explicit FrameRecording(const std::string& name) {
    const SafetensorsFile file =
        SafetensorsFile::Open((FramesFolder() / name / "golden.safetensors").string()).value();
    const TensorView& stored = file.tensors().find("logits")->second;
    tokens.resize(static_cast<size_t>(stored.shape[0]));
    logits.resize(static_cast<size_t>(stored.size()));
    file.tensors().find("tokens")->second.ReadInts(0, tokens);
    stored.ReadFloats(0, logits);
    for (const float x : logits) largest = std::max(largest, std::abs(x));
  }

  // The largest difference, as a share of the largest logit.
  double Error(const std::vector<float>& found) const {
    double error = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      error = std::max(error, std::abs(static_cast<double>(logits[i]) - found[i]));
    }
    return error / largest;
  }

  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens, vocabulary]
  float largest = 0;
};

}  // namespace polysketch::testing
