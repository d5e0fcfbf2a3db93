// Reserve allocates enough: after it no step needs device memory, whatever its segments: not for
// arrays, for kernels that are loaded, or for recordings. Runs in the emulation only, where all other
// memory can be taken away.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/saved_state.h"
#include "tests/cuda/cuda_test.h"
#include "tests/engine/model/model_runner.h"
#include "tests/kernels/attention_case.h"
#include "tests/simt/simt.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using testing::Random;

constexpr int kRows = 48, kSequences = 5;

using CudaReserveTest = testing::CudaTest;

// Tokens of each sequence in a step; some get none.
std::vector<int> RandomLengths(Random* random) {
  std::vector<int> lengths(kSequences);
  int left = kRows;
  const bool decoding = random->Int(0, 2) == 0;
  for (int& length : lengths) {
    length = decoding ? 1 : static_cast<int>(random->Int(0, left));
    left -= length;
  }
  if (left == kRows) lengths[0] = kRows;
  return lengths;
}

void RandomStep(LanguageModel& model, const std::vector<std::unique_ptr<SequenceState>>& states,
                Random* random) {
  const std::vector<int> lengths = RandomLengths(random);
  const std::vector<int32_t> tokens(kRows, 7);
  Batch batch;
  for (int i = 0; i < kSequences; ++i) {
    if (lengths[i] == 0) continue;
    batch.Add(states[i].get(), std::span(tokens).first(lengths[i]), OutputRows::kAll);
  }
  model.Step(batch, nullptr);
  const size_t rows = batch.tokens().size();
  std::vector<SampleQuery> queries(rows);
  std::vector<SampleResult> results(rows);
  for (SampleQuery& query : queries) {
    query.kind = SampleQuery::Kind::kTopKCandidates;
    for (int32_t token = 0; token < model.vocab_size(); ++token)
      query.counts.emplace_back(token, 1);
  }
  std::vector<float> logits(rows * model.vocab_size()), sums(rows);
  model.SampleRows(0, queries, results, logits.data(), sums.data());
}

// The third one is a replay.
void DecodeThrice(LanguageModel& model, const std::vector<std::unique_ptr<SequenceState>>& states) {
  const int32_t token = 7;
  for (int i = 0; i < 3; ++i) {
    Batch batch;
    for (const auto& state : states) batch.Add(state.get(), {&token, 1}, OutputRows::kAll);
    model.Step(batch, nullptr);
  }
}

void ExpectNoStepAsksForMemory(Backend* backend, const std::filesystem::path& folder,
                               StateFormat format, int steps) {
  Random random(1);
  LoadOptions options;
  options.max_step_tokens = kRows;
  options.state_format = format;
  options.weights = format == StateFormat::kF32 ? DataType::kF32 : DataType::kBf16;
  const auto model = testing::LoadModel(folder, backend, options);
  // Windows drop, and with far parts fold, their first blocks in the third of three tokens more.
  const int window = model->attention().front().window;
  const int64_t first = window > 0 ? 2 * int64_t{window} - 2 : 0;
  // A KV cache takes whole blocks.
  const bool growing = model->attention().front().kv_cache();
  const size_t cached =
      growing ? model->StateBytes((steps + 1) * kRows) + kSequences * model->StateBytes(first + 1)
              : 0;
  const std::vector<uint8_t> values(SavedStateBytes(model->attention(), first));
  std::vector<std::unique_ptr<SequenceState>> states;
  for (int i = 0; i < kSequences; ++i) {
    states.push_back(model->NewState());
    if (first > 0) {
      ASSERT_TRUE(states.back()->Load(first, values).ok());
    }
  }
  const size_t held = backend->device_memory().held;
  simt::UnloadKernels();
  model->Reserve(kSequences, cached);
  EXPECT_GE(backend->device_memory().held, held + cached) << folder;
  const size_t reserved = backend->device_memory().held, rest = simt::FreeBytes();
  const int64_t kernels = simt::LoadedKernels(), replays = testing::Replays();
  ASSERT_TRUE(simt::Take(rest));
  DecodeThrice(*model, states);
  for (int i = 0; i < steps; ++i) RandomStep(*model, states, &random);
  DecodeThrice(*model, states);
  EXPECT_EQ(simt::LoadedKernels(), kernels) << folder;
  EXPECT_GT(testing::Replays(), replays) << folder << ": no step was recorded";
  if (std::ranges::count(model->attention(), model->attention().front()) ==
      std::ssize(model->attention())) {
    EXPECT_EQ(backend->device_memory().held, reserved) << folder;
  } else {  // blocks of one size may be freed for larger ones of another
    EXPECT_LE(backend->device_memory().held, reserved) << folder;
  }
  EXPECT_TRUE(backend->status().ok()) << backend->status().ToString();
  simt::Give(rest);
}

TEST_F(CudaReserveTest, NoStepAsksForMemory) {
  const testing::TemporaryFolder gated;
  testing::WriteRandomModel(gated.path(), testing::TinyConfig("learned_sketch_mixed_gated"),
                            DataType::kF32, 3);
  std::vector<std::filesystem::path> folders = {gated.path()};
  for (const std::string name : {"learned_sketch_mixed", "random_sketch", "softmax"}) {
    folders.push_back(testing::SourceDir() / "tests/data/goldens" / name);
  }
  for (const StateFormat format : {StateFormat::kF32, StateFormat::kBf16, StateFormat::kQ8}) {
    for (const std::filesystem::path& folder : folders) {
      ExpectNoStepAsksForMemory(&cuda_->device(), folder, format, Scale(8, 40));
    }
  }
}

// Grouped queries, and layers with windows and far parts beside others.
TEST_F(CudaReserveTest, NoStepOfAFrameAsksForMemory) {
  for (const std::string name :
       {"llama_one_kv_head", "qwen3_window_sinks", "qwen3_window_far", "mistral_window"}) {
    for (const StateFormat format : {StateFormat::kBf16, StateFormat::kQ8}) {
      ExpectNoStepAsksForMemory(&cuda_->device(), testing::SourceDir() / "tests/data/frames" / name,
                                format, Scale(4, 20));
    }
  }
}

// A step's share of 100 tokens of a cache and of a recurrent state: 8-bit numbers have a scale for each 32.
TEST_F(CudaReserveTest, BytesOfStatesThatAStepReads) {
  AttentionSpec cache = testing::MakeSpec(AttentionKind::kSoftmax, 6, 64, 0, 16);
  cache.kv_heads = 2;
  AttentionSpec mixed = testing::MakeSpec(AttentionKind::kLearnedSketchMixed, 1, 64, 32, 128);
  const int64_t features = mixed.features();
  EXPECT_EQ(cuda_->ReadBytes(cache, 100), 2 * 100 * 2 * 64 * 4);
  EXPECT_EQ(cuda_->ReadBytes(mixed, 100), features * (64 * 4 + 4) + 100 * 2 * 64 * 4);
  cache.state_format = mixed.state_format = StateFormat::kBf16;
  EXPECT_EQ(cuda_->ReadBytes(cache, 100), 2 * 100 * 2 * 64 * 2);
  EXPECT_EQ(cuda_->ReadBytes(mixed, 100), features * (64 * 2 + 4) + 100 * 2 * 64 * 2);
  cache.state_format = mixed.state_format = StateFormat::kQ8;
  EXPECT_EQ(cuda_->ReadBytes(cache, 100), 2 * 100 * 2 * (64 + 2));
  EXPECT_EQ(cuda_->ReadBytes(mixed, 100), features * (64 + 2 + 4) + 100 * 2 * 64 * 2);
}

// Far parts on tensor cores, whose steps of few rows have results for each part. What each step stages
// for the test is given back after it.
TEST_F(CudaReserveTest, NoStepOfAFarPartGrowsTheWorkspace) {
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kSoftmax, 2, 32, 0, 16);
  spec.window = 32;
  spec.window_kind = WindowKind::kBlocks;
  spec.sinks = 4;
  spec.far_size = 32;
  spec.far_length = 100;
  spec.state_format = StateFormat::kBf16;
  const testing::Layers layers(spec, 2);
  Random random(3);
  constexpr int kTokens = 400;
  cuda_->device().Reserve(layers, kRows, kSequences,
                          kSequences * cuda_->StateBytes(layers, kTokens), [] {});
  const size_t held = cuda_->device_memory().held;
  std::vector<testing::Sequence> sequences;
  for (int i = 0; i < kSequences; ++i) {
    sequences.push_back(testing::RandomSequence(layers, kTokens, &random));
  }
  std::vector<testing::Runner> runners;
  for (const testing::Sequence& sequence : sequences) {
    runners.emplace_back(*cuda_, layers, sequence);
  }
  const auto step = [&](const std::vector<int>& lengths) {
    std::vector<testing::Part> parts;
    for (size_t i = 0; i < runners.size(); ++i) {
      const int left = kTokens - static_cast<int>(runners[i].state->position());
      if (const int rows = std::min(lengths[i], left); rows > 0)
        parts.push_back({&runners[i], rows});
    }
    if (!parts.empty()) testing::Step(*cuda_, layers, parts);
    EXPECT_EQ(cuda_->device_memory().held, held);
  };
  for (const int rows : {9, 9, 9, 9, 9, 9, 9, 1, 9}) step(std::vector<int>(kSequences, rows));
  for (int i = 0; i < Scale(8, 40); ++i) step(RandomLengths(&random));
}

// What is reserved is not what is computed: the model gives the logits that it gives without.
TEST_F(CudaReserveTest, NothingElseChanges) {
  const auto folder = testing::SourceDir() / "tests/data/goldens/learned_sketch_mixed";
  const auto model = testing::LoadModel(folder, &cuda_->device());
  const std::vector<int32_t> tokens(20, 0);  // as Reserve has them
  const std::vector<float> want = testing::LogitsOf(*model, tokens, {19, 1});
  model->Reserve(3, 0);
  EXPECT_EQ(testing::LogitsOf(*model, tokens, {19, 1}), want);
}

}  // namespace
}  // namespace polysketch
