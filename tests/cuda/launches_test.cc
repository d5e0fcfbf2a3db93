// How many kernels a decode step launches: a step of few rows takes about as long as its launches.
// In the emulation only, which counts them.
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/cuda_test.h"
#include "tests/engine/model/frame_recording.h"
#include "tests/engine/model/model_runner.h"
#include "tests/simt/simt.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using CudaLaunchesTest = testing::CudaTest;

// Kernels of the third step of one token each of `sequences` sequences: a replayed one.
int64_t Launches(LanguageModel& model, int sequences) {
  const std::vector<int32_t> tokens(3, 1);
  std::vector<testing::Request> requests;
  for (int i = 0; i < sequences; ++i) requests.emplace_back(model, tokens);
  int64_t before = 0;
  for (int step = 0; step < 3; ++step) {
    Batch batch;
    for (testing::Request& request : requests) {
      batch.Add(request.state.get(), std::span(tokens).first(1), OutputRows::kLast);
    }
    before = simt::Launches();
    model.Step(batch, nullptr);
  }
  return simt::Launches() - before;
}

TEST_F(CudaLaunchesTest, DecodeSteps) {
  LoadOptions options;
  options.weights = DataType::kBf16;
  options.state_format = StateFormat::kBf16;
  const auto folder = testing::SourceDir() / "tests/data/goldens/learned_sketch_mixed_d64_r32";
  const auto model = testing::LoadModel(folder, &cuda_->device(), options);
  const int64_t layers = std::ssize(model->attention());
  // Of a step: the embedding, the angles and the final norm. Of a layer: norm and qkv; rotation,
  // norms, sketch and stores; the parts of attention; the output; norm and up; the gate; down. The
  // widths of this model leave the gate out of the product: a layer of the paper's model has one
  // launch less. With more rows than the products norm themselves: two more norms a layer.
  constexpr int64_t kStep = 3, kLayer = 7;
  EXPECT_EQ(Launches(*model, 1), kStep + kLayer * layers);
  EXPECT_EQ(Launches(*model, 16), kStep + kLayer * layers);
  EXPECT_EQ(Launches(*model, 20), kStep + (kLayer + 2) * layers);
}

// With 8-bit and 4-bit weights products of few rows norm and quantise their rows, and take the gate. With
// more rows a kernel for each of the four products quantises what norms, attention and the gate leave.
// Sketch networks are those of 16 bits, in one kernel.
TEST_F(CudaLaunchesTest, DecodeStepsWithQuantisedWeights) {
  LoadOptions options;
  options.state_format = StateFormat::kBf16;
  const auto folder = testing::SourceDir() / "tests/data/goldens/learned_sketch_mixed_d64_r32";
  const auto launches = [&](DataType weights, int sequences) {
    options.weights = weights;
    return Launches(*testing::LoadModel(folder, &cuda_->device(), options), sequences);
  };
  const int64_t layers =
      std::ssize(testing::LoadModel(folder, &cuda_->device(), options)->attention());
  for (const DataType weights : {DataType::kQ8, DataType::kQ4}) {
    EXPECT_EQ(launches(weights, 4), launches(DataType::kBf16, 4) - layers);
    EXPECT_EQ(launches(weights, 5), launches(DataType::kBf16, 5) + 3 * layers);
  }
}

// The frames of Hugging Face folders, whose widths leave the gate out of the product: norm and qkv;
// norms, rotation and stores; attention; the output; norm and up; the gate; down. A decay gate is one
// more.
TEST_F(CudaLaunchesTest, DecodeStepsOfFrames) {
  LoadOptions options;
  options.weights = DataType::kBf16;
  options.state_format = StateFormat::kBf16;
  for (const auto& [frame, kernels] : {std::pair("llama", 7), std::pair("qwen3", 7),
                                       std::pair("llama_tied_biases", 7), std::pair("brumby", 8)}) {
    const auto model =
        testing::LoadModel(testing::FramesFolder() / frame, &cuda_->device(), options);
    const int64_t layers = std::ssize(model->attention());
    EXPECT_EQ(Launches(*model, 1), 3 + kernels * layers) << frame;
    EXPECT_EQ(Launches(*model, 3), 3 + kernels * layers) << frame;
  }
}

// 8-bit numbers in KV caches have a kernel of their own that stores them; those of states have none.
TEST_F(CudaLaunchesTest, DecodeStepsOfEightBitStates) {
  LoadOptions options;
  options.weights = DataType::kBf16;
  for (const auto& [folder, more] :
       {std::pair(testing::FramesFolder() / "llama", 1),
        std::pair(testing::SourceDir() / "tests/data/goldens/learned_sketch_mixed_d64_r32", 0)}) {
    int64_t launches[2] = {}, layers = 0;
    for (const bool bytes : {false, true}) {
      options.state_format = bytes ? StateFormat::kQ8 : StateFormat::kBf16;
      const auto model = testing::LoadModel(folder, &cuda_->device(), options);
      layers = std::ssize(model->attention());
      launches[bytes] = Launches(*model, 3);
    }
    EXPECT_EQ(launches[true], launches[false] + more * layers) << folder;
  }
}

// A decay gate costs a launch a layer more, for norm, product and logarithm.
TEST_F(CudaLaunchesTest, DecodeStepsWithAGate) {
  LoadOptions options;
  options.weights = DataType::kBf16;
  options.state_format = StateFormat::kBf16;
  const testing::TemporaryFolder folders[2];
  std::unique_ptr<FolderModel> models[2];
  for (const bool gated : {false, true}) {
    ModelConfig config = testing::TinyConfig(AttentionKind::kLearnedSketchMixed);
    config.emb_dim = 128;
    config.sketch_size = 32;
    config.decay_gate = gated;
    testing::WriteRandomModel(folders[gated].path(), config, DataType::kF32, 3);
    models[gated] = testing::LoadModel(folders[gated].path(), &cuda_->device(), options);
  }
  const int64_t layers = std::ssize(models[0]->attention());
  EXPECT_EQ(Launches(*models[1], 1), Launches(*models[0], 1) + layers);
}

}  // namespace
}  // namespace polysketch
