#include "engine/sampler/generation_config.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

constexpr int kConfigVocab = 100;

Result<GenerationConfig> Parse(const std::string& text) {
  return GenerationConfig::Parse(text, "g.json", kConfigVocab);
}

TEST(GenerationConfigTest, FieldsOfPublicModels) {
  const auto config = Parse(R"({"bos_token_id": 1, "pad_token_id": 2, "do_sample": true,
    "eos_token_id": [7, 3, 7], "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
    "min_p": 0.05, "transformers_version": "4.37.0"})");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->eos_ids, (std::vector<int32_t>{7, 3}));
  SamplingParams expected;
  expected.repetition_penalty = 1.1f;
  expected.temperature = 0.7f;
  expected.top_p = 0.8f;
  expected.top_k = 20;
  expected.min_p = 0.05f;
  EXPECT_EQ(config->sampling, expected);
  // SmolLM2's: one id, and no sampling. do_sample has no effect, as in vLLM.
  const auto plain = Parse(R"({"eos_token_id": 2, "do_sample": false, "temperature": null})");
  ASSERT_TRUE(plain.ok()) << plain.status().ToString();
  EXPECT_EQ(plain->eos_ids, std::vector<int32_t>{2});
  EXPECT_EQ(plain->sampling, SamplingParams());
  EXPECT_TRUE(Parse(R"({"eos_token_id": null})")->eos_ids.empty());
  EXPECT_EQ(Parse(R"({"top_k": -1})")->sampling.top_k, 0);
}

TEST(GenerationConfigTest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "g.json: expected an object, found an array"},
      {R"({"eos_token_id": "</s>"})",
       "g.json: eos_token_id: expected token ids in [0, 100), found the string \"</s>\""},
      {R"({"eos_token_id": [1, 100]})",
       "g.json: eos_token_id: expected token ids in [0, 100), found the number 100"},
      {R"({"eos_token_id": [-1]})",
       "g.json: eos_token_id: expected token ids in [0, 100), found the number -1"},
      {R"({"eos_token_id": 18446744073709551615})",
       "g.json: eos_token_id: expected token ids in [0, 100), found the number "
       "18446744073709551615"},
      {R"({"eos_token_id": 1.0})",
       "g.json: eos_token_id: expected token ids in [0, 100), found the number 1.0"},
      {R"({"temperature": "hot"})",
       "g.json: temperature: expected a number, found the string \"hot\""},
      {R"({"temperature": -1})", "g.json: temperature: expected a number in [0, 100], found -1"},
      {R"({"top_k": 1.5})", "g.json: top_k: expected an integer, found the number 1.5"},
      {R"({"temperature": 1e39})",
       "g.json: temperature: expected a number in [0, 100], found 1e+39"},
      {R"({"top_p": 1.0000000001})",
       "g.json: top_p: expected a number in (0, 1], found 1.0000000001"},
      {R"({"top_p": 0})", "g.json: top_p: expected a number in (0, 1], found 0"},
      {R"({"min_p": 2})", "g.json: min_p: expected a number in [0, 1], found 2"},
      {R"({"repetition_penalty": true})",
       "g.json: repetition_penalty: expected a number, found true"},
  };
  for (const auto& [text, message] : cases) {
    const auto config = Parse(text);
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument) << text;
    EXPECT_EQ(config.status().message(), message);
  }
  std::string ids = "0";
  for (int i = 1; i < 257; ++i) ids += ", 0";
  EXPECT_EQ(Parse("{\"eos_token_id\": [" + ids + "]}").status().message(),
            "g.json: eos_token_id: expected at most 256 ids, found 257");
  EXPECT_FALSE(Parse(R"({"top_k": 1, "top_k": 2})").ok());
  EXPECT_FALSE(Parse("{").ok());
}

TEST(GenerationConfigTest, FolderWithoutTheFile) {
  const testing::TemporaryFolder folder;
  const auto none = GenerationConfig::Load(folder.path(), kConfigVocab);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->eos_ids.empty());
  EXPECT_EQ(none->sampling, SamplingParams());
  std::ofstream(folder.path() / "generation_config.json") << R"({"top_k": 4})";
  EXPECT_EQ(GenerationConfig::Load(folder.path(), kConfigVocab)->sampling.top_k, 4);
}

}  // namespace
}  // namespace polysketch
