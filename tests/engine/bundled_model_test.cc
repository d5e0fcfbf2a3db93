// The engine with models/demo, on the best instruction set of this machine: what it recorded,
// whatever runs beside.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/model/folder_model.h"
#include "gtest/gtest.h"
#include "kernels/new_backend.h"
#include "tests/engine/testing/reader.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using nlohmann::json;
using testing::Collected;
using testing::Random;
using testing::Reader;

class BundledModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path folder = testing::SourceDir() / "models/demo";
    Result<std::unique_ptr<Backend>> backend = NewCpuBackend(2);
    ASSERT_TRUE(backend.ok()) << backend.status().ToString();
    backend_ = std::move(backend).value();
    Result<std::unique_ptr<FolderModel>> model =
        FolderModel::Load(folder.string(), backend_.get(), {});
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = std::move(model).value();
    Result<std::unique_ptr<Tokenizer>> tokenizer =
        Tokenizer::Load((folder / "tokenizer.model").string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    tokenizer_ = std::move(tokenizer).value();
    EngineOptions options;
    options.eos_ids = model_->spec().stop_ids;
    Result<std::unique_ptr<Engine>> engine =
        Engine::Create(model_.get(), tokenizer_.get(), options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
    std::ifstream file(folder / "recorded.json");
    recorded_ = json::parse(file);
    prompt_ = recorded_["prompt_tokens"].get<std::vector<int32_t>>();
  }

  GenerateRequest Greedy(int max_tokens) const {
    GenerateRequest request;
    request.prompt = prompt_;
    request.params.sampling.temperature = 0;
    request.params.max_tokens = max_tokens;
    request.params.logprobs = 2;
    return request;
  }
  Collected Run(GenerateRequest request) {
    Reader reader(8);
    const auto id = engine_->Submit(std::move(request), reader.stream);
    PS_CHECK(id.ok()) << id.status().ToString();
    reader.ReadAll();
    return std::move(reader.got);
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<FolderModel> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;  // last: destroyed before what it uses
  json recorded_;
  std::vector<int32_t> prompt_;
};

TEST_F(BundledModelTest, RecordedContinuation) {
  const auto tokens = recorded_["tokens"].get<std::vector<int32_t>>();
  const Collected got = Run(Greedy(static_cast<int>(tokens.size())));
  EXPECT_EQ(got.tokens, tokens);
  // The recorded text begins at the first word; the engine's continues the prompt, with its space.
  const auto text = recorded_["text"].get<std::string>();
  EXPECT_EQ(got.text.substr(got.text.size() - text.size()), text);
  EXPECT_LE(got.text.size(), text.size() + 1);
  EXPECT_EQ(got.finish->usage.prompt_tokens, static_cast<int64_t>(prompt_.size()));

  // Its end, by a stop string that spans tokens.
  GenerateRequest request = Greedy(static_cast<int>(tokens.size()));
  request.params.stop = {"good man, and I"};
  const Collected stopped = Run(std::move(request));
  EXPECT_EQ(stopped.text, got.text.substr(0, got.text.find("good man, and I")));
  EXPECT_EQ(stopped.finish->reason, FinishReason::kStop);
}

TEST_F(BundledModelTest, SameBitsBesideOthers) {
  GenerateRequest request = Greedy(40);
  request.params.sampling.temperature = 0.8f;
  request.params.sampling.top_p = 0.9f;
  request.params.sampling.seed = 7;
  request.params.echo = true;
  const Collected alone = Run(request);
  ASSERT_EQ(alone.tokens.size(), 40u);

  Random random(1);
  std::vector<std::unique_ptr<Reader>> readers;
  std::vector<size_t> same;
  for (int i = 0; i < 12; ++i) {
    readers.push_back(std::make_unique<Reader>(100000));
    GenerateRequest other = request;
    if (i % 3 == 0) {
      same.push_back(readers.size() - 1);
    } else {
      other.prompt.resize(static_cast<size_t>(random.Int(1, testing::Count(700, 700))));
      for (int32_t& token : other.prompt) token = static_cast<int32_t>(random.Int(3, 4095));
      other.params.logprobs.reset();
    }
    ASSERT_TRUE(engine_->Submit(other, readers.back()->stream).ok());
  }
  for (auto& reader : readers) reader->ReadAll();
  for (const size_t i : same) {
    EXPECT_EQ(readers[i]->got.tokens, alone.tokens);
    EXPECT_EQ(readers[i]->got.text, alone.text);
    EXPECT_EQ(readers[i]->got.logprobs, alone.logprobs);  // floats, equal in every bit
  }
}

// The log-probabilities of a score are those that generation and echo report.
TEST_F(BundledModelTest, ScoreEqualsEcho) {
  GenerateRequest request = Greedy(100);
  request.params.echo = true;
  const Collected generated = Run(request);
  std::vector<int32_t> tokens = prompt_;
  tokens.insert(tokens.end(), generated.tokens.begin(), generated.tokens.end());

  Reader reader(4);
  ScoreRequest score;
  score.feed = std::make_shared<TokenFeed>(1000);
  score.feed->Push(tokens);
  score.feed->Close();
  ASSERT_TRUE(engine_->Submit(score, reader.stream).ok());
  reader.ReadAll();
  ASSERT_EQ(reader.got.scores.size() + 1, generated.logprobs.size());
  for (size_t i = 0; i < reader.got.scores.size(); ++i)
    EXPECT_EQ(reader.got.scores[i], *generated.logprobs[i + 1]);
}

}  // namespace
}  // namespace polysketch
