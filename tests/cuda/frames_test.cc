// The frames of Hugging Face folders on the cuda backend: logits of transformers in float32, and the same
// bits however tokens arrive, in float32, in bf16 and with states of 8-bit numbers.
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/cuda_test.h"
#include "tests/engine/model/frame_recording.h"
#include "tests/engine/model/model_runner.h"

namespace polysketch {
namespace {

using CudaFramesTest = testing::CudaTest;

std::unique_ptr<FolderModel> Load(const std::string& name, Backend* backend, DataType weights,
                                  StateFormat format) {
  LoadOptions options;
  options.weights = weights;
  options.state_format = format;
  return testing::LoadModel(testing::FramesFolder() / name, backend, options);
}

// The tolerance of tests/engine/model/frames_test.cc.
TEST_F(CudaFramesTest, LogitsOfTransformersHoweverTokensArrive) {
  int frames = 0;
  for (const std::string& name : testing::FrameNames()) {
    SCOPED_TRACE(name);
    ++frames;
    const testing::FrameRecording recording(name);
    const auto model = Load(name, &cuda_->device(), DataType::kF32, StateFormat::kF32);
    const auto count = static_cast<int>(recording.tokens.size());
    const auto whole = testing::LogitsOf(*model, recording.tokens, {count});
    EXPECT_LT(recording.Error(whole), 1e-4);
    if (frames % Scale(3, 1) != 0) continue;
    EXPECT_EQ(testing::LogitsOf(*model, recording.tokens, {7, 1, 20, count - 28}), whole);
  }
  EXPECT_EQ(frames, testing::kFrames);
}

// Weights, keys and values of bf16 or in 8-bit numbers, 8 bits of precision: 2^-8 at some ten places of a few layers, which add up as
// a random walk, of logits that are differences of large ones: below a tenth of the largest. Half a step of
// an 8-bit number is up to 2^-7 of the largest in its block, twice as much. A wrong head or mask is off by its
// whole size.
TEST_F(CudaFramesTest, NarrowLogitsAreClose) {
  for (const auto& [name, format] : {std::pair("qwen3_window_sinks", StateFormat::kBf16),
                                     std::pair("qwen3_window_sinks", StateFormat::kQ8),
                                     std::pair("qwen3_window_far", StateFormat::kBf16),
                                     std::pair("qwen3_window_far", StateFormat::kQ8),
                                     std::pair("llama_window_far_gate", StateFormat::kBf16),
                                     std::pair("llama_window_far_gate", StateFormat::kQ8),
                                     std::pair("brumby_small", StateFormat::kBf16),
                                     std::pair("brumby_small", StateFormat::kQ8)}) {
    SCOPED_TRACE(std::string(name) + " " + std::string(StateFormatName(format)));
    const testing::FrameRecording recording(name);
    const auto model = Load(name, &cuda_->device(), DataType::kBf16, format);
    const auto count = static_cast<int>(recording.tokens.size());
    const auto whole = testing::LogitsOf(*model, recording.tokens, {count});
    EXPECT_LT(recording.Error(whole), format == StateFormat::kQ8 ? 0.2 : 0.1);
    EXPECT_GT(recording.Error(whole), 1e-4);
    std::vector<int> pieces(10, 1);
    pieces.front() = count - 9;
    EXPECT_EQ(testing::LogitsOf(*model, recording.tokens, pieces), whole);
  }
}

}  // namespace
}  // namespace polysketch
