// config.json: what is read, and every wrong field refused by name.
#include <nlohmann/json.hpp>
#include <vector>

#include "base/utf8.h"
#include "engine/checkpoint/model_config.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/safetensors_bytes.h"
#include "tests/testing/environment.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using nlohmann::json;
using ::polysketch::testing::SourceDir;
using ::polysketch::testing::TemporaryFolder;
using ::polysketch::testing::WriteBytes;

json Valid(const std::string& attention) {
  const bool square =
      TraitsOf(AttentionKindOf(attention).value_or(AttentionKind::kSoftmax)).coefficients;
  json config = {{"format_version", square ? 3 : 1},
                 {"architecture", "polysketchformer"},
                 {"attention", attention},
                 {"vocab_size", 96},
                 {"emb_dim", 64},
                 {"num_heads", 2},
                 {"num_layers", 3},
                 {"context_length", 128},
                 {"grain_size", 16},
                 {"add_bos", true},
                 {"bos_id", 1},
                 {"eos_id", 2}};
  if (attention.find("sketch") != std::string::npos) config["sketch_size"] = 8;
  if (attention.starts_with("random")) config["sketch_kind"] = "srht";
  if (attention.starts_with("random") || attention == "polynomial") config["power"] = 8;
  if (attention.ends_with("mixed")) config["near_power"] = 4;
  if (attention == "performer") config["num_features"] = 24;
  if (attention == "polynomial_square") config["power"] = 5;
  if (square) config["alpha"] = 0.5;
  return config;
}

TEST(ModelConfigTest, EveryKind) {
  for (const AttentionKind kind : kAllAttentionKinds) {
    const std::string name(AttentionKindName(kind));
    SCOPED_TRACE(name);
    const auto config = ModelConfig::Parse(Valid(name).dump(), "config.json");
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    EXPECT_EQ(config->attention, kind);
    EXPECT_EQ(config->vocab_size, 96);
    EXPECT_EQ(config->emb_dim, 64);
    EXPECT_EQ(config->num_layers, 3);
    EXPECT_EQ(config->head_dim(), 32);
    EXPECT_EQ(config->mlp_hidden(), 168);
    EXPECT_EQ(config->grain_size, 16);
    EXPECT_EQ(config->context_length, 128);
    EXPECT_EQ(config->sketch_size, config->is_sketched() ? 8 : 0);
    EXPECT_EQ(config->num_features, name == "performer" ? 24 : 0);
    const int power = name == "symmetric_power"                            ? 2
                      : name == "polynomial_square"                        ? 5
                      : name == "affine_square"                            ? 1
                      : name == "polynomial" || config->is_random_sketch() ? 8
                                                                           : 4;
    EXPECT_EQ(config->power, power);
    EXPECT_EQ(config->sketch_kind, config->is_random_sketch() ? "srht" : "");
    EXPECT_TRUE(config->add_bos);
    EXPECT_EQ(config->bos_id, 1);
    EXPECT_EQ(config->eos_id, 2);
  }
}

TEST(ModelConfigTest, DecayGate) {
  for (const std::string name : {"softmax", "polynomial", "linear", "learned_sketch_mixed"}) {
    json text = Valid(name);
    EXPECT_FALSE(ModelConfig::Parse(text.dump(), "config.json")->decay_gate);
    text["format_version"] = 2;
    for (const bool gate : {false, true}) {
      text["decay_gate"] = gate;
      const auto config = ModelConfig::Parse(text.dump(), "config.json");
      if (gate && (name == "softmax" || name == "polynomial")) {
        EXPECT_EQ(config.status().message(),
                  StrCat("config.json: field \"decay_gate\": expected false for attention \"", name,
                         "\", found true"));
        continue;
      }
      ASSERT_TRUE(config.ok()) << config.status().ToString();
      EXPECT_EQ(config->decay_gate, gate);
      EXPECT_EQ(config->attention_spec(StateFormat::kF32).decay_gate, gate);
    }
  }
}

TEST(ModelConfigTest, SinusoidalPositions) {
  for (const std::string name : {"softmax", "polynomial", "linear", "learned_sketch_mixed"}) {
    json text = Valid(name);
    EXPECT_TRUE(ModelConfig::Parse(text.dump(), "config.json")->sinusoidal_positions);
    text["format_version"] = 2;
    for (const bool sinusoids : {false, true}) {
      text["sinusoidal_positions"] = sinusoids;
      const auto config = ModelConfig::Parse(text.dump(), "config.json");
      ASSERT_TRUE(config.ok()) << config.status().ToString();
      EXPECT_EQ(config->sinusoidal_positions, sinusoids);
    }
  }
}

TEST(ModelConfigTest, LayersThatDiffer) {
  json text = Valid("learned_sketch_mixed");
  text["format_version"] = 4;
  text["decay_gate"] = true;
  text["layers"] = {{{"attention", "softmax"}, {"decay_gate", false}, {"window", 9}, {"sinks", 2}},
                    json::object(),
                    {{"attention", "symmetric_power"}, {"grain_size", 64}}};
  const auto config = ModelConfig::Parse(text.dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const auto spec = [&](int layer) { return config->attention_spec(StateFormat::kBf16, layer); };
  AttentionSpec window;
  window.heads = 2;
  window.head_dim = 32;
  window.block = 16;
  window.window = 9;
  window.sinks = 2;
  window.stabilizer = 0;
  window.beta = 32;
  window.state_format = StateFormat::kBf16;
  EXPECT_EQ(spec(0), window);
  text.erase("layers");
  EXPECT_EQ(spec(1),
            ModelConfig::Parse(text.dump(), "config.json")->attention_spec(StateFormat::kBf16));
  EXPECT_EQ(spec(2).kind, AttentionKind::kSymmetricPower);
  EXPECT_EQ(spec(2).block, 64);
  EXPECT_EQ(spec(2).power, 2);
  EXPECT_TRUE(spec(2).decay_gate);
}

TEST(ModelConfigTest, WindowsOfAllLayers) {
  json text = Valid("polynomial");
  text["format_version"] = 4;
  text["window"] = 9;
  text["window_kind"] = "blocks";
  const auto config = ModelConfig::Parse(text.dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(config->attention_spec(StateFormat::kF32, i).window, 9);
    EXPECT_EQ(config->attention_spec(StateFormat::kF32, i).window_kind, WindowKind::kBlocks);
    EXPECT_EQ(config->attention_spec(StateFormat::kF32, i).sinks, 0);
  }
}

TEST(ModelConfigTest, AWrongFieldOfALayerIsNamed) {
  const struct {
    json layer;
    const char* message;
  } cases[] = {
      {7, "field \"layers[1]\": expected an object, found the number 7"},
      {{{"vocab_size", 7}}, "unknown field \"layers[1].vocab_size\""},
      {{{"layers", json::array()}}, "unknown field \"layers[1].layers\""},
      {{{"attention", "flash"}}, "field \"layers[1].attention\": expected one of softmax, "},
      {{{"attention", "performer"}}, "field \"layers[1].num_features\": missing"},
      {{{"attention", "linear"}, {"window", 8}},
       "field \"layers[1].window\": expected none for attention \"linear\", found 8"},
      {{{"decay_gate", true}},
       "field \"layers[1].decay_gate\": expected false for attention \"softmax\", found true"},
      {{{"attention", "symmetric_power"}, {"power", 4}},
       "field \"layers[1].power\": expected 2 for attention \"symmetric_power\", found 4"},
      {{{"attention", "random_sketch"}, {"sketch_size", 8}, {"power", 6}},
       "field \"layers[1].power\": expected a power of two from 4 for attention \"random_sketch\""},
  };
  for (const auto& c : cases) {
    json text = Valid("softmax");
    text["format_version"] = 4;
    text["layers"] = {json::object(), c.layer, json::object()};
    const std::string dumped = text.dump();
    SCOPED_TRACE(dumped);
    const auto config = ModelConfig::Parse(dumped, "DIR/config.json");
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(config.status().message().find(StrCat("DIR/config.json: ", c.message)), 0u)
        << config.status().message();
  }
}

TEST(ModelConfigTest, SquaresOfPolynomials) {
  for (const std::string name : {"polynomial_square", "affine_square"}) {
    json text = Valid(name);
    const auto plain = ModelConfig::Parse(text.dump(), "config.json");
    ASSERT_TRUE(plain.ok()) << plain.status().ToString();
    EXPECT_EQ(plain->alpha, 0.5);
    EXPECT_EQ(plain->beta, 32) << "the head size";
    EXPECT_FALSE(plain->head_coefficients);
    EXPECT_TRUE(plain->learned_coefficients);
    text["beta"] = 8;
    text["head_coefficients"] = true;
    text["learned_coefficients"] = false;
    const auto config = ModelConfig::Parse(text.dump(), "config.json");
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    EXPECT_TRUE(config->head_coefficients);
    EXPECT_FALSE(config->learned_coefficients);
    const AttentionSpec spec = config->attention_spec(StateFormat::kF32);
    EXPECT_EQ(spec.alpha, 0.5f);
    EXPECT_EQ(spec.beta, 8.0f);
    EXPECT_EQ(spec.kv_cache(), name == "polynomial_square");
    EXPECT_EQ(spec.sketch_size, name == "polynomial_square" ? 0 : 33);
  }
}

TEST(ModelConfigTest, WhatMayBeLeftOut) {
  json text = Valid("softmax");
  for (const char* field : {"context_length", "grain_size", "add_bos", "bos_id", "eos_id"})
    text.erase(field);
  const auto config = ModelConfig::Parse(text.dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_GT(config->grain_size, 0);
  EXPECT_FALSE(config->add_bos);
  EXPECT_EQ(config->bos_id, -1);
  EXPECT_EQ(config->eos_id, -1);
}

TEST(ModelConfigTest, MlpHiddenFollowsTheFormat) {
  ModelConfig config;
  config.emb_dim = 768;
  EXPECT_EQ(config.mlp_hidden(), 2048);
  config.emb_dim = 1536;
  EXPECT_EQ(config.mlp_hidden(), 4096);
  config.emb_dim = 192;
  EXPECT_EQ(config.mlp_hidden(), 512);
  config.emb_dim = 65536;
  EXPECT_EQ(config.mlp_hidden(), 174760);
}

TEST(ModelConfigTest, EveryWrongFieldIsNamed) {
  const json huge = 18446744073709551615u;
  const struct {
    const char* attention;
    const char* field;
    json value;  // discarded: the field is erased
    std::string message;
  } cases[] = {
      {"softmax", "format_version", json::value_t::discarded, "missing"},
      {"softmax", "format_version", 5, "expected an integer in [1, 4], found the number 5"},
      {"softmax", "window", 9, "expected format_version 4 beside it, found 1"},
      {"softmax", "window", 0, "expected an integer in [1, 268435456], found the number 0"},
      {"linear", "window", 9, "expected none for attention \"linear\", found 9"},
      {"softmax", "window_kind", "chunks", "expected \"sliding\" or \"blocks\", found \"chunks\""},
      {"softmax", "sinks", 4, "expected a window beside it, found none"},
      {"softmax", "sinks", -1, "expected an integer in [0, 65536], found the number -1"},
      {"softmax", "layers", 3, "expected an array of num_layers 3 objects, found the number 3"},
      {"softmax", "layers", json::array({json::object()}),
       "expected an array of num_layers 3 objects, found 1 elements"},
      {"softmax", "layers", json::array({json::object(), json::object(), json::object()}),
       "expected format_version 4 beside it, found 1"},
      {"polynomial_square", "format_version", 2,
       "expected 3 for attention \"polynomial_square\", found 2"},
      {"affine_square", "format_version", 1, "expected 3 for attention \"affine_square\", found 1"},
      {"softmax", "format_version", "1", "found the string \"1\""},
      {"softmax", "architecture", json::value_t::discarded, "missing"},
      {"softmax", "architecture", "llama", "expected \"polysketchformer\", found \"llama\""},
      {"softmax", "architecture", 7, "expected a string, found the number 7"},
      {"softmax", "attention", json::value_t::discarded, "missing"},
      {"softmax", "attention", "flash",
       "expected one of softmax, polynomial, random_sketch, learned_sketch"},
      {"softmax", "attention", "Softmax", "found \"Softmax\""},
      {"softmax", "attention", "", "found \"\""},
      {"softmax", "attention", json::array(), "expected a string, found an array"},
      {"softmax", "vocab_size", json::value_t::discarded, "missing"},
      {"softmax", "vocab_size", 1, "expected an integer in [2, 4194304], found the number 1"},
      {"softmax", "vocab_size", -96, "found the number -96"},
      {"softmax", "vocab_size", 4194305, "found the number 4194305"},
      {"softmax", "vocab_size", 96.0, "found the number 96.0"},
      {"softmax", "vocab_size", huge, "found the number 18446744073709551615"},
      {"softmax", "vocab_size", 4294967392u, "found the number 4294967392"},
      {"softmax", "vocab_size", true, "found true"},
      {"softmax", "vocab_size", nullptr, "found null"},
      {"softmax", "emb_dim", json::value_t::discarded, "missing"},
      {"softmax", "emb_dim", 0, "expected an integer in [4, 65536], found the number 0"},
      {"softmax", "emb_dim", 65540, "found the number 65540"},
      {"softmax", "emb_dim", json::object(), "found an object"},
      {"softmax", "num_heads", json::value_t::discarded, "missing"},
      {"softmax", "num_heads", 0, "expected an integer in [1, 4096], found the number 0"},
      {"softmax", "num_heads", 3,
       "expected emb_dim / num_heads to be an even integer, found 64 / 3"},
      {"softmax", "num_heads", 64,
       "expected emb_dim / num_heads to be an even integer, found 64 / 64"},
      {"softmax", "num_heads", 128, "found 64 / 128"},
      {"softmax", "num_layers", json::value_t::discarded, "missing"},
      {"softmax", "num_layers", 0, "expected an integer in [1, 1024], found the number 0"},
      {"softmax", "num_layers", 1025, "found the number 1025"},
      {"softmax", "context_length", 0,
       "expected an integer in [1, 1073741824], found the number 0"},
      {"softmax", "context_length", "512", "found the string \"512\""},
      {"softmax", "grain_size", 0, "expected an integer in [1, 65536], found the number 0"},
      {"learned_sketch_mixed", "grain_size", json::value_t::discarded, "missing"},
      {"learned_sketch_mixed", "grain_size", 65537, "found the number 65537"},
      {"learned_sketch_mixed", "grain_size", -1, "found the number -1"},
      {"learned_sketch_mixed", "near_power", 2, "expected 4, found 2"},
      {"learned_sketch_mixed", "near_power", "4", "found the string \"4\""},
      {"learned_sketch_mixed", "sketch_size", json::value_t::discarded, "missing"},
      {"learned_sketch", "sketch_size", 0, "expected an integer in [1, 256], found the number 0"},
      {"learned_sketch", "sketch_size", 257, "found the number 257"},
      {"random_sketch", "sketch_size", json::value_t::discarded, "missing"},
      {"random_sketch", "power", 2,
       "expected a power of two from 4 for attention \"random_sketch\", found 2"},
      {"random_sketch", "power", 6,
       "expected a power of two from 4 for attention \"random_sketch\", found 6"},
      {"random_sketch_mixed", "power", 12, "for attention \"random_sketch_mixed\", found 12"},
      {"random_sketch", "sketch_kind", "tensor",
       "expected \"gaussian\" or \"srht\", found \"tensor\""},
      {"random_sketch", "sketch_kind", 1, "expected a string, found the number 1"},
      {"polynomial", "power", 3, "expected an even number, found 3"},
      {"symmetric_power", "power", 4, "expected 2 for attention \"symmetric_power\", found 4"},
      {"symmetric_power", "num_heads", 16,
       "to be a multiple of 8, at most 256, for attention \"symmetric_power\", found 4"},
      {"polynomial", "power", 0, "expected an integer in [2, 64], found the number 0"},
      {"polynomial", "power", 66, "found the number 66"},
      {"polynomial", "power", 4.5, "found the number 4.5"},
      {"polynomial_square", "power", json::value_t::discarded, "missing"},
      {"polynomial_square", "power", 0, "expected an integer in [1, 8], found the number 0"},
      {"polynomial_square", "power", 9, "expected an integer in [1, 8], found the number 9"},
      {"affine_square", "power", 2, "expected an integer in [1, 1], found the number 2"},
      {"polynomial_square", "alpha", "1", "expected a number in [-1e+06, 1e+06], found the string"},
      {"polynomial_square", "alpha", 1e7, "found the number 1"},
      {"polynomial_square", "beta", 0, "expected a number in [1e-06, 1e+06], found the number 0"},
      {"affine_square", "beta", -8.5, "found the number -8.5"},
      {"affine_square", "head_coefficients", 2, "expected true or false, found the number 2"},
      {"affine_square", "learned_coefficients", "no", "expected true or false, found the string"},
      {"performer", "num_features", json::value_t::discarded, "missing"},
      {"performer", "num_features", 0, "expected an integer in [1, 65536], found the number 0"},
      {"performer", "num_features", 65537, "found the number 65537"},
      {"softmax", "add_bos", 1, "expected true or false, found the number 1"},
      {"softmax", "add_bos", "true", "expected true or false, found the string \"true\""},
      {"linear", "decay_gate", 1, "expected true or false, found the number 1"},
      {"linear", "decay_gate", true, "expected format_version 2 beside it, found 1"},
      {"softmax", "sinusoidal_positions", 0, "expected true or false, found the number 0"},
      {"softmax", "sinusoidal_positions", false, "expected format_version 2 beside it, found 1"},
      {"softmax", "bos_id", 96, "expected a token id below vocab_size 96, found 96"},
      {"softmax", "bos_id", -2, "found the number -2"},
      {"softmax", "eos_id", 4194304, "found the number 4194304"},
      {"softmax", "eos_id", 96, "expected a token id below vocab_size 96, found 96"},
  };
  for (const auto& c : cases) {
    json text = Valid(c.attention);
    if (c.value.is_discarded()) {
      text.erase(c.field);
    } else {
      text[c.field] = c.value;
    }
    const std::string dumped = text.dump();
    SCOPED_TRACE(dumped);
    const auto config = ModelConfig::Parse(dumped, "DIR/config.json");
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.status().code(), Code::kInvalidArgument);
    const std::string& message = config.status().message();
    EXPECT_EQ(message.find(StrCat("DIR/config.json: field \"", c.field, "\": ")), 0u) << message;
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
}

TEST(ModelConfigTest, EveryWrongTextIsNamed) {
  std::string twice = Valid("softmax").dump();
  twice.insert(1, R"("emb_dim":64,)");
  json typo = Valid("softmax");
  typo["sketchsize"] = 8;
  json no_bos = Valid("softmax");
  no_bos["bos_id"] = -1;
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "expected JSON"},
      {"{", "expected JSON"},
      {Valid("softmax").dump() + "x", "expected JSON"},
      {Valid("softmax").dump() + std::string(1, '\0'), "expected the end of the text"},
      {"[]", "expected an object, found an array"},
      {"null", "expected an object, found null"},
      {"{}", "field \"format_version\": missing"},
      {twice, "key \"emb_dim\" appears twice"},
      {typo.dump(), "unknown field \"sketchsize\""},
      {no_bos.dump(), "field \"add_bos\": expected a bos_id beside it"},
      {std::string(1000000, '['), "levels of arrays and objects, found more"},
      {StrCat("{\"", std::string(1 << 20, 'k'), "\":1}"), "kkk...\""},
      {"\xff", "expected JSON"},
      {"{\xc3\xa4", "expected JSON, found an error at byte 2"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text.substr(0, 100));
    const auto config = ModelConfig::Parse(c.text, "config.json");
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(ValidUtf8Prefix(config.status().message()), config.status().message().size());
    EXPECT_NE(config.status().message().find(c.message), std::string::npos)
        << config.status().message();
    EXPECT_LT(config.status().message().size(), 400u);
  }
}

TEST(ModelConfigTest, EveryTruncationIsRefused) {
  const std::string whole = Valid("learned_sketch_mixed").dump();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ModelConfig::Parse(whole.substr(0, size), "config.json").ok()) << size;
  }
}

TEST(ModelConfigTest, LoadsFromAFolder) {
  const TemporaryFolder folder;
  const auto missing = ModelConfig::Load(folder.path().string());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("config.json"), std::string::npos);
  WriteBytes(folder.path() / "config.json", std::string((1 << 20) + 1, ' '));
  const auto large = ModelConfig::Load(folder.path().string());
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.status().message().find("expected at most 1048576 bytes, found 1048577"),
            std::string::npos);
  const auto demo = ModelConfig::Load((SourceDir() / "models/demo").string());
  ASSERT_TRUE(demo.ok()) << demo.status().ToString();
  EXPECT_EQ(demo->attention, AttentionKind::kLearnedSketchMixed);
  EXPECT_EQ(demo->sketch_size, 32);
  EXPECT_TRUE(demo->add_bos);
}

}  // namespace
}  // namespace polysketch
