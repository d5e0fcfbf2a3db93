// Whole models on the cuda backend: the recorded logits of the authors' code with float32 states
// (the tolerance of issue 3), the same bits under a split, and bf16 states and weights within their
// own tolerance.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cuda/cuda_test.h"
#include "tests/engine/model/frame_recording.h"
#include "tests/engine/model/golden.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using testing::Golden;
using testing::GoldenFolder;
using testing::kGoldenCases;
using testing::MaxError;
using testing::ReadGoldens;

class CudaModelTest : public testing::CudaTest {
 protected:
  // The first tokens of a recording: the emulation is slow.
  static void Shorten(Golden* recording, int64_t tokens) {
    const auto vocab = recording->logits.size() / recording->tokens.size();
    if (static_cast<int64_t>(recording->tokens.size()) <= tokens) return;
    recording->tokens.resize(tokens);
    recording->logits.resize(tokens * vocab);
  }
  // A saved state, a copy and a truncated one compute what the state does that they were made from.
  void ExpectSavedStatesGoOn(const std::filesystem::path& folder,
                             const std::vector<int32_t>& tokens) {
    for (const StateFormat format : {StateFormat::kF32, StateFormat::kBf16, StateFormat::kQ8}) {
      LoadOptions options;
      options.state_format = format;
      const auto model = testing::LoadModel(folder, &cuda_->device(), options);
      testing::Request request(*model, tokens);
      testing::StepRequests(*model, {{&request, 21}});
      std::vector<uint8_t> saved(request.state->SavedBytes());
      request.state->Save(saved);
      testing::Request restored(*model, tokens);
      ASSERT_TRUE(restored.state->Load(21, saved).ok());
      const auto clone = request.state->Clone();
      request.logits.clear();
      testing::StepRequests(*model, {{&request, 3}});
      testing::StepRequests(*model, {{&restored, 3}});
      EXPECT_EQ(restored.logits, request.logits);
      restored.state->CopyFrom(*clone);
      restored.logits.clear();
      testing::StepRequests(*model, {{&restored, 3}});
      EXPECT_EQ(restored.logits, request.logits);
      restored.state->Truncate(22);
      restored.logits.clear();
      testing::StepRequests(*model, {{&restored, 2}});
      const auto vocab = static_cast<size_t>(model->vocab_size());
      EXPECT_EQ(restored.logits,
                std::vector<float>(request.logits.begin() + vocab, request.logits.end()));
    }
  }
  std::vector<float> logits_[2][3];  // with and without recordings, by request
};

TEST_F(CudaModelTest, Float32LogitsAreTheRecordedOnes) {
  testing::Random random(1);
  for (const std::string name : kGoldenCases) {
    Golden recording = ReadGoldens(name)[0];
    Shorten(&recording, Scale(name.ends_with("d64_r32") ? 6 : 40, 1 << 20));
    const auto model = testing::LoadModel(GoldenFolder(name), &cuda_->device());
    const int length = static_cast<int>(recording.tokens.size());
    const auto whole = testing::LogitsOf(*model, recording.tokens, {length});
    EXPECT_LE(MaxError(whole, recording.logits), recording.tolerance()) << name;
    const std::vector<int> parts = random.Split(length);
    EXPECT_EQ(testing::LogitsOf(*model, recording.tokens, parts), whole)
        << name << ::testing::PrintToString(parts);
  }
}

// Kinds without a recording, sketches of degree 4, decay gates: random weights, against the
// reference.
TEST_F(CudaModelTest, Float32LogitsAreTheReferences) {
  testing::Random random(2);
  ModelConfig degree4 = testing::TinyConfig(AttentionKind::kRandomSketch);
  degree4.power = 8;
  std::vector<ModelConfig> configs = {degree4,
                                      testing::TinyConfig(AttentionKind::kRandomSketchMixed),
                                      testing::TinyConfig(AttentionKind::kLinear),
                                      testing::TinyConfig(AttentionKind::kPerformer),
                                      testing::TinyConfig(AttentionKind::kPolynomialSquare),
                                      testing::TinyConfig(AttentionKind::kAffineSquare)};
  for (const std::string& name : testing::TinyModelNames()) {
    if (testing::TinyConfig(name).decay_gate) configs.push_back(testing::TinyConfig(name));
  }
  for (const ModelConfig& config : configs) {
    const testing::TemporaryFolder folder;
    testing::WriteRandomModel(folder.path(), config, DataType::kF32, 3);
    const auto model = testing::LoadModel(folder.path(), &cuda_->device());
    const auto reference = testing::LoadModel(folder.path(), reference_.get());
    const int length = 30;  // several blocks
    std::vector<int32_t> tokens(length);
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(random.Int(0, config.vocab_size - 1));
    const auto want = testing::LogitsOf(*reference, tokens, {length});
    const auto got = testing::LogitsOf(*model, tokens, {length});
    double largest = 0;
    for (const float logit : want) largest = std::max<double>(largest, std::abs(logit));
    EXPECT_LE(MaxError(got, want), 2e-4 * largest) << AttentionKindName(config.attention);
    const std::vector<int> parts = random.Split(length);
    EXPECT_EQ(testing::LogitsOf(*model, tokens, parts), got)
        << AttentionKindName(config.attention) << ::testing::PrintToString(parts);
  }
}

// bf16 weights and states: rounded to 8 bits (2^-8) at about ten places in each of a few layers,
// errors that add up like a random walk on a residual stream of order one: below 3% of the largest
// logit, while a wrong kernel is off by its whole size. float16 has three bits more. States of 8-bit numbers
// have as many as bf16, of the largest of 32.
TEST_F(CudaModelTest, HalfLogitsAreClose) {
  struct Format {
    DataType weights;
    StateFormat state;
    double share;  // of the largest logit
  };
  for (const Format& format : {Format{DataType::kBf16, StateFormat::kBf16, 3e-2},
                               Format{DataType::kBf16, StateFormat::kQ8, 3e-2},
                               Format{DataType::kF16, StateFormat::kF32, 3e-2 / 8}}) {
    for (const std::string name : {"learned_sketch_mixed", "random_sketch", "softmax"}) {
      Golden recording = ReadGoldens(name)[0];
      Shorten(&recording, Scale(40, 1 << 20));
      LoadOptions options;
      options.weights = format.weights;
      options.state_format = format.state;
      const auto model = testing::LoadModel(GoldenFolder(name), &cuda_->device(), options);
      const int length = static_cast<int>(recording.tokens.size());
      const auto whole = testing::LogitsOf(*model, recording.tokens, {length});
      EXPECT_LE(MaxError(whole, recording.logits), format.share * recording.largest)
          << name << " " << DataTypeName(format.weights) << " " << StateFormatName(format.state);
      EXPECT_EQ(testing::LogitsOf(*model, recording.tokens, std::vector<int>(length, 1)), whole)
          << name << " " << DataTypeName(format.weights) << " " << StateFormatName(format.state)
          << " token by token";
    }
  }
}

TEST_F(CudaModelTest, SavedStatesGoOn) {
  const std::string name = "learned_sketch_mixed";
  Golden recording = ReadGoldens(name)[0];
  Shorten(&recording, 24);
  ExpectSavedStatesGoOn(GoldenFolder(name), recording.tokens);
  const testing::TemporaryFolder gated;
  testing::WriteRandomModel(gated.path(), testing::TinyConfig("learned_sketch_mixed_gated"),
                            DataType::kF32, 3);
  std::vector<int32_t> tokens(24);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(7 * i % 61);
  ExpectSavedStatesGoOn(gated.path(), tokens);
}

// Steps of decoding are recorded and replayed; the bits are those of steps that are not. Batches
// come and go, positions pass block ends, and longer segments in between make the workspace grow.
// The last model begins before the token that the first block leaves the window of.
TEST_F(CudaModelTest, DecodingInGraphs) {
  struct Case {
    std::filesystem::path folder;
    std::vector<int32_t> tokens;
    int begin;
    StateFormat format = StateFormat::kBf16;
  };
  const std::string far = "qwen3_window_far";
  for (const auto& [folder, tokens, begin, format] :
       {Case{GoldenFolder("learned_sketch_mixed"), ReadGoldens("learned_sketch_mixed")[0].tokens,
             1},
        Case{GoldenFolder("softmax"), ReadGoldens("softmax")[0].tokens, 1},
        Case{testing::FramesFolder() / far, testing::FrameRecording(far).tokens, 120},
        Case{testing::FramesFolder() / far, testing::FrameRecording(far).tokens, 120,
             StateFormat::kQ8}}) {
    LoadOptions options;
    options.state_format = format;
    ASSERT_EQ(setenv("POLYSKETCH_CUDA_GRAPHS", "off", 1), 0);
    std::string reason;
    const auto direct = testing::NewBackendUnderTest(&reason);
    unsetenv("POLYSKETCH_CUDA_GRAPHS");
    const auto recorded_model = testing::LoadModel(folder, &cuda_->device(), options);
    const auto direct_model = testing::LoadModel(folder, direct.get(), options);
    const int64_t replays = testing::Replays();
    for (LanguageModel* model : {recorded_model.get(), direct_model.get()}) {
      std::vector<testing::Request> requests;
      for (int i = 0; i < 3; ++i) requests.emplace_back(*model, tokens);
      // No fewer under sanitizers: a shape is replayed from its third step on.
      for (int step = 0; step < (testing::Emulated() ? 20 : 60); ++step) {
        std::vector<testing::RequestPart> parts;
        for (int i = 0; i < 3; ++i) {
          if (step % 10 == 7 && i == 1) continue;
          const int count = step == 0 ? begin : step == 6 && i == 2 ? 9 : 1;
          parts.push_back({&requests[static_cast<size_t>(i)], count});
        }
        testing::StepRequests(*model, parts);
      }
      for (int i = 0; i < 3; ++i) logits_[model == direct_model.get()][i] = requests[i].logits;
    }
    for (int i = 0; i < 3; ++i) EXPECT_EQ(logits_[0][i], logits_[1][i]) << folder << " " << i;
    if (testing::Emulated()) {
      EXPECT_GE(testing::Replays() - replays, 5) << folder;
    }
  }
}

// The chunks of a prompt too, with outputs of no row and of the last one: the prompts have
// the same length, so the shapes of the third one have been recorded.
TEST_F(CudaModelTest, ChunksInGraphs) {
  LoadOptions options;
  options.state_format = StateFormat::kBf16;
  const std::string name = "learned_sketch_mixed";
  ASSERT_EQ(setenv("POLYSKETCH_CUDA_GRAPHS", "off", 1), 0);
  std::string reason;
  const auto direct = testing::NewBackendUnderTest(&reason);
  unsetenv("POLYSKETCH_CUDA_GRAPHS");
  const auto recorded_model = testing::LoadModel(GoldenFolder(name), &cuda_->device(), options);
  const auto direct_model = testing::LoadModel(GoldenFolder(name), direct.get(), options);
  const int chunk = 2 * recorded_model->attention().front().block + 8, chunks = 4;
  testing::Random random(1);
  std::vector<int32_t> prompts[3];
  for (std::vector<int32_t>& prompt : prompts) {
    for (int i = 0; i < chunk * chunks; ++i) {
      prompt.push_back(static_cast<int32_t>(random.Int(0, recorded_model->vocab_size() - 1)));
    }
  }
  const int64_t replays = testing::Replays();
  std::vector<std::vector<float>> hidden[2];
  for (FolderModel* model : {recorded_model.get(), direct_model.get()}) {
    for (const std::vector<int32_t>& prompt : prompts) {
      const auto state = model->NewState();
      std::vector<float> last(model->hidden_size());
      for (int i = 0; i < chunks; ++i) {
        const bool end = i + 1 == chunks;
        Batch batch;
        batch.Add(state.get(), std::span(prompt).subspan(i * chunk, chunk),
                  end ? OutputRows::kLast : OutputRows::kNone);
        model->Step(batch, end ? last.data() : nullptr);
      }
      hidden[model == direct_model.get()].push_back(last);
    }
  }
  EXPECT_EQ(hidden[0], hidden[1]);
  if (testing::Emulated()) {
    EXPECT_GE(testing::Replays() - replays, chunks);
  }
}

}  // namespace
}  // namespace polysketch
