// Models of the frames that are read from Hugging Face folders, against logits of transformers in float32
// (tests/data/frames, made by tests/training/frame_models.py), on every backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/strict_json.h"
#include "tests/engine/model/frame_recording.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"
#include "tests/testing/staged_backend.h"

namespace polysketch {
namespace {

using testing::FramesFolder;
using Recording = testing::FrameRecording;

LoadOptions InFloat32() {
  LoadOptions options;
  options.weights = DataType::kF32;
  return options;
}

// Whether the residual stream of the model may be rotated: it has RMS norms.
bool HasRotation(const std::string& name) { return name != "powercoder"; }

class FramesTest : public testing::BackendTest {
 protected:
  // Whether a run takes seconds: the reference's state of a head of 128 has 16,384 features.
  static bool IsSlow(const std::string& name) {
    return GetParam() == "reference" && (name == "brumby" || name == "powercoder");
  }
};

// Two to four layers: some hundred roundings of 2^-24 on either side, and in transformers, which rotates by
// float32 angles, 2^-24 of an angle of 40. Large weights make logits of order 10 of differences of some.
TEST_P(FramesTest, LogitsOfTransformersHoweverTokensArrive) {
  const auto backend = NewBackend(2);
  ASSERT_EQ(testing::FrameNames().size(), size_t{testing::kFrames});
  for (const std::string& name : testing::FrameNames()) {
    SCOPED_TRACE(name);
    const Recording recording(name);
    const auto model = testing::LoadModel(FramesFolder() / name, backend.get(), InFloat32());
    const auto count = static_cast<int>(recording.tokens.size());
    const std::vector<float> whole = testing::LogitsOf(*model, recording.tokens, {count});
    EXPECT_LT(recording.Error(whole), 1e-4);
    if (IsSlow(name)) continue;
    EXPECT_EQ(testing::LogitsOf(*model, recording.tokens, std::vector<int>(count, 1)), whole);
    EXPECT_EQ(testing::LogitsOf(*model, recording.tokens, {7, 1, 20, count - 28}), whole);
  }
}

// More tokens than a block of the cache: prefill, chunks, decoding, in one batch and alone.
TEST_P(FramesTest, BlocksOfTheCacheChangeNoBit) {
  const auto backend = NewBackend(2);
  for (const char* name :
       {"llama", "qwen3", "smollm3", "mistral_window", "qwen3_window", "llama_window_sinks",
        "llama_window_far", "qwen3_window_far", "llama_window_far_linear",
        "llama_window_far_sketch", "llama_window_far_gate", "brumby_small", "powercoder"}) {
    if (IsSlow(name)) continue;
    const auto model = testing::LoadModel(FramesFolder() / name, backend.get(), InFloat32());
    testing::Random random(3);
    std::vector<int32_t> tokens(150);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.Int(0, 46));
    const std::vector<float> whole = testing::LogitsOf(*model, tokens, {150});
    EXPECT_EQ(testing::LogitsOf(*model, tokens, {64, 64, 22}), whole);
    EXPECT_EQ(testing::LogitsOf(*model, tokens, std::vector<int>(150, 1)), whole);
    testing::Request first(*model, tokens), second(*model, tokens);
    testing::StepRequests(*model, {{&first, 90}, {&second, 3}});
    testing::StepRequests(*model, {{&first, 60}, {&second, 147}});
    EXPECT_EQ(first.logits, whole);
    EXPECT_EQ(second.logits, whole);
  }
}

// A state that was saved and loaded, copied, or truncated continues with the same bits: before a block is
// folded or dropped, and after it.
TEST_P(FramesTest, StatesAreSavedCopiedAndTruncated) {
  const auto backend = NewBackend(2);
  for (const char* name :
       {"llama_one_kv_head", "qwen3", "smollm3", "mistral_window", "smollm3_window",
        "qwen3_window_sinks", "llama_window_far", "qwen3_window_far", "llama_window_far_linear",
        "llama_window_far_sketch", "llama_window_far_gate", "brumby_small", "powercoder"}) {
    if (IsSlow(name)) continue;
    const auto model = testing::LoadModel(FramesFolder() / name, backend.get(), InFloat32());
    testing::Random random(4);
    std::vector<int32_t> tokens(170);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random.Int(0, 46));
    for (const int cut : {100, 140}) {
      testing::Request first(*model, tokens);
      testing::StepRequests(*model, {{&first, cut}});
      std::vector<uint8_t> saved(first.state->SavedBytes());
      first.state->Save(saved);
      testing::Request loaded(*model, tokens), copied(*model, tokens), truncated(*model, tokens);
      ASSERT_TRUE(loaded.state->Load(cut, saved).ok());
      copied.state->CopyFrom(*first.state);
      testing::StepRequests(*model, {{&truncated, cut + 20}});
      truncated.state->Truncate(cut);
      truncated.logits.clear();
      first.logits.clear();
      testing::StepRequests(*model, {{&first, 30}});
      testing::StepRequests(*model, {{&loaded, 30}, {&copied, 20}});
      testing::StepRequests(*model, {{&truncated, 30}, {&copied, 10}});
      EXPECT_EQ(loaded.logits, first.logits) << name << " at " << cut;
      EXPECT_EQ(copied.logits, first.logits) << name << " at " << cut;
      EXPECT_EQ(truncated.logits, first.logits) << name << " at " << cut;
    }
  }
}

// Rows of the embedding after the tokenizer's tokens make no logits, and change no other.
TEST_P(FramesTest, PaddedRowsHaveNoLogits) {
  const auto backend = NewBackend(1);
  for (const auto& [name, rotate] : {std::pair("llama", false),
                                     {"llama", true},  // with an output matrix
                                     {"llama_llama3", false},
                                     {"llama_llama3", true}}) {  // tied
    LoadOptions options = InFloat32();
    options.rotate_residual = rotate;
    const auto whole = testing::LoadModel(FramesFolder() / name, backend.get(), options);
    options.vocabulary = 40;
    const auto cut = testing::LoadModel(FramesFolder() / name, backend.get(), options);
    ASSERT_EQ(cut->vocab_size(), 40);
    const std::vector<int32_t> tokens = {3, 39, 0, 17};
    const std::vector<float> all = testing::LogitsOf(*whole, tokens, {4});
    const std::vector<float> some = testing::LogitsOf(*cut, tokens, {4});
    for (size_t row = 0; row < 4; ++row) {
      for (size_t i = 0; i < 40; ++i) EXPECT_EQ(some[row * 40 + i], all[row * 47 + i]);
    }
    options.vocabulary = 48;
    EXPECT_EQ(
        FolderModel::Load((FramesFolder() / name).string(), backend.get(), options).status().code(),
        Code::kInvalidArgument);
    options.vocabulary = 2;  // below EOS
    EXPECT_EQ(
        FolderModel::Load((FramesFolder() / name).string(), backend.get(), options).status().code(),
        Code::kInvalidArgument);
  }
}

// A rotation of the residual stream changes the weights, where there is one, and the logits within the roundings of float32.
TEST_P(FramesTest, ARotatedResidualStreamComputesTheSame) {
  const auto backend = NewBackend(2);
  for (const std::string& name : testing::FrameNames()) {
    if (IsSlow(name)) continue;
    SCOPED_TRACE(name);
    const Recording recording(name);
    LoadOptions options = InFloat32();
    const auto plain = testing::LoadModel(FramesFolder() / name, backend.get(), options);
    options.rotate_residual = true;
    const auto rotated = testing::LoadModel(FramesFolder() / name, backend.get(), options);
    EXPECT_EQ(rotated->parameters(), plain->parameters());
    const auto count = static_cast<int>(recording.tokens.size());
    const std::vector<float> found = testing::LogitsOf(*rotated, recording.tokens, {count});
    EXPECT_LT(recording.Error(found), 1e-4);
    EXPECT_EQ(found != testing::LogitsOf(*plain, recording.tokens, {count}), HasRotation(name));
    EXPECT_EQ(testing::LogitsOf(*rotated, recording.tokens, {7, 1, 20, count - 28}), found);
  }
}

// A weight of 8 bits is off by up to 1/254 of the largest of its column, which is some three times a typical
// one, and so is an activation: 1% of a product, and 5% after the twenty products of the deepest model, of
// logits that are typical. Rows that are joined wrongly give other logits altogether.
TEST_P(FramesTest, QuantisedWhenLoaded) {
  const auto backend = NewBackend(2);
  for (const std::string& name : testing::FrameNames()) {
    if (IsSlow(name)) continue;
    SCOPED_TRACE(name);
    const Recording recording(name);
    std::vector<float> by_default;
    for (const std::optional<bool> rotate : {std::optional<bool>(), {true}, {false}}) {
      LoadOptions options;
      options.weights = DataType::kQ8;
      options.rotate_residual = rotate;
      const auto model = testing::LoadModel(FramesFolder() / name, backend.get(), options);
      const auto count = static_cast<int>(recording.tokens.size());
      const std::vector<float> found = testing::LogitsOf(*model, recording.tokens, {count});
      double squares = 0, errors = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        const double error = static_cast<double>(found[i]) - recording.logits[i];
        errors += error * error;
        squares += static_cast<double>(recording.logits[i]) * recording.logits[i];
      }
      EXPECT_LT(std::sqrt(errors / squares), 0.1);
      EXPECT_GT(std::sqrt(errors / squares), 1e-4);
      if (!rotate) by_default = found;
      EXPECT_EQ(found == by_default, rotate.value_or(true) || !HasRotation(name));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, FramesTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

void Write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(FramesLoadTest, NamesTensorsThatAreMissingOrTooMany) {
  const testing::TemporaryFolder folder;
  std::filesystem::copy(FramesFolder() / "llama", folder.path(),
                        std::filesystem::copy_options::recursive);
  nlohmann::json config =
      ReadStrictJson(ModelFolder(folder.path()), "config.json", 1 << 20, 8).value();
  const auto load = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json changed = config;
    changed[field] = value;
    Write(folder.path() / "config.json", changed.dump());
    const auto backend = NewReferenceBackend();
    const Status status = FolderModel::Load(folder.path().string(), backend.get(), {}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_NE(load("attention_bias", true).find("q_proj.bias is missing"), std::string::npos);
  EXPECT_NE(load("num_hidden_layers", 1).find("model.layers.1."), std::string::npos);
  EXPECT_NE(load("intermediate_size", 35).find("expected shape [35, 24], found [36, 24]"),
            std::string::npos);
  // An output matrix beside a tied embedding is a copy of it.
  EXPECT_NE(load("tie_word_embeddings", true)
                .find("tensor lm_head.weight: expected the values of model.embed_tokens.weight"),
            std::string::npos);
  std::string file = ReadBytes(folder.path() / "model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, length));
  const auto data = [&](const char* name) {
    const std::vector<size_t> range = header.at(name).at("data_offsets");
    return std::pair(8 + length + range[0], range[1] - range[0]);
  };
  const auto [embedding, bytes] = data("model.embed_tokens.weight");
  file.replace(data("lm_head.weight").first, bytes, file.substr(embedding, bytes));
  Write(folder.path() / "model.safetensors", file);
  const auto backend = NewReferenceBackend();
  EXPECT_TRUE(FolderModel::Load(folder.path().string(), backend.get(), {}).ok());
}

}  // namespace
}  // namespace polysketch
