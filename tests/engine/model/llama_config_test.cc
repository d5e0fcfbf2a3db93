#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/model_format.h"
#include "kernels/angles.h"
#include "kernels/new_backend.h"
#include "kernels/saved_state.h"

namespace polysketch {
namespace {

using nlohmann::json;

json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},
          {"bos_token_id", 1},
          {"eos_token_id", {2, 7}},
          {"torch_dtype", "bfloat16"},
          {"attention_dropout", 0.0}};
}

json With(json config, const json& changes) {
  config.update(changes);
  return config;
}

json Of(const char* architecture, const char* model_type) {
  return With(Llama(), {{"architectures", {architecture}}, {"model_type", model_type}});
}

ModelSpec SpecOf(const json& config) {
  const auto model = ParseModelDefinition(config.dump(), "config.json");
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? model->spec : ModelSpec();
}

std::string ErrorOf(const json& config) {
  const auto model = ParseModelDefinition(config.dump(), "DIR/config.json");
  EXPECT_FALSE(model.ok()) << config.dump();
  if (model.ok()) return "";
  EXPECT_EQ(model.status().code(), Code::kInvalidArgument);
  return std::string(model.status().message());
}

TEST(LlamaConfigTest, WhatAConfigSays) {
  const ModelSpec spec = SpecOf(Llama());
  EXPECT_EQ(spec.architecture, "LlamaForCausalLM");
  EXPECT_EQ(spec.frame.width, 64);
  EXPECT_EQ(spec.frame.mlp_hidden, 96);
  EXPECT_EQ(spec.frame.vocab_size, 100);
  EXPECT_TRUE(spec.frame.padded_vocabulary);
  EXPECT_EQ(spec.frame.norm, NormKind::kRms);
  EXPECT_EQ(spec.frame.epsilon, 1e-5f);
  EXPECT_EQ(spec.frame.gate, GateKind::kSilu);
  EXPECT_FALSE(spec.frame.tied || spec.frame.sinusoids || spec.frame.output_bias);
  EXPECT_FALSE(spec.frame.qkv_bias || spec.frame.out_bias || spec.frame.mlp_bias);
  EXPECT_EQ(spec.frame.rope_thetas, RopeThetas(8));
  ASSERT_EQ(spec.layers.size(), 4u);
  EXPECT_EQ(spec.Attention(), std::vector<AttentionSpec>(4, spec.layers[0].attention));
  const AttentionSpec& attention = spec.layers[0].attention;
  EXPECT_EQ(attention.kind, AttentionKind::kSoftmax);
  EXPECT_EQ(attention.heads, 8);
  EXPECT_EQ(attention.kv_heads, 2);
  EXPECT_EQ(attention.head_dim, 8);
  EXPECT_EQ(attention.block, 64);
  EXPECT_EQ(spec.context_limit, 256);
  EXPECT_EQ(spec.bos_id, 1);
  EXPECT_EQ(spec.stop_ids, (std::vector<int32_t>{2, 7}));
  EXPECT_FALSE(spec.add_bos);
}

TEST(LlamaConfigTest, WhatMayBeLeftOut) {
  json config = Llama();
  for (const char* name :
       {"architectures", "num_key_value_heads", "rms_norm_eps", "bos_token_id", "eos_token_id"}) {
    config.erase(name);
  }
  config["head_dim"] = nullptr;
  config["rope_scaling"] = nullptr;
  config["pretraining_tp"] = 2;  // products in parts: the same function
  const ModelSpec spec = SpecOf(config);
  EXPECT_EQ(spec.architecture, "LlamaForCausalLM");  // by model_type
  EXPECT_EQ(spec.model_type, "llama");
  EXPECT_EQ(spec.layers[0].attention.kv_heads, 8);
  EXPECT_EQ(spec.frame.epsilon, 1e-6f);
  EXPECT_EQ(spec.bos_id, -1);
  EXPECT_TRUE(spec.stop_ids.empty());
}

TEST(LlamaConfigTest, NullIsAsManyKvHeadsAsHeads) {
  const std::pair<const char*, const char*> classes[] = {
      {"LlamaForCausalLM", "llama"},     {"MistralForCausalLM", "mistral"},
      {"Qwen2ForCausalLM", "qwen2"},     {"Qwen3ForCausalLM", "qwen3"},
      {"SmolLM3ForCausalLM", "smollm3"}, {"GraniteForCausalLM", "granite"}};
  for (const auto& [architecture, type] : classes) {
    const json config = With(Of(architecture, type),
                             {{"num_attention_heads", 16}, {"num_key_value_heads", nullptr}});
    EXPECT_EQ(SpecOf(config).layers[0].attention.kv_heads, 16) << architecture;
  }
}

TEST(LlamaConfigTest, HowTheClassesDiffer) {
  EXPECT_TRUE(SpecOf(Of("Qwen2ForCausalLM", "qwen2")).frame.qkv_bias);
  EXPECT_FALSE(SpecOf(Of("Qwen2ForCausalLM", "qwen2")).frame.out_bias);
  const ModelSpec qwen3 = SpecOf(Of("Qwen3ForCausalLM", "qwen3"));
  EXPECT_TRUE(qwen3.frame.head_norms);
  EXPECT_EQ(qwen3.layers[0].attention.head_dim, 128);
  const json biased = {{"attention_bias", true}, {"mlp_bias", true}};
  const FrameSpec llama = SpecOf(With(Llama(), biased)).frame;
  EXPECT_TRUE(llama.qkv_bias && llama.out_bias && llama.mlp_bias);
  EXPECT_FALSE(SpecOf(With(Of("Qwen3ForCausalLM", "qwen3"), biased)).frame.mlp_bias);
  const json factors = {{"attention_multiplier", 0.5},
                        {"embedding_multiplier", 12},
                        {"residual_multiplier", 0.25},
                        {"logits_scaling", 8}};
  const FrameScales granite =
      SpecOf(With(With(Of("GraniteForCausalLM", "granite"), factors), {{"head_dim", 64}}))
          .frame.scales;
  EXPECT_EQ(granite.queries, 4);  // of 1 / sqrt(64)
  EXPECT_EQ(granite.embedding, 12);
  EXPECT_EQ(granite.residual, 0.25);
  EXPECT_EQ(granite.logits, 0.125);
  EXPECT_EQ(SpecOf(With(Llama(), factors)).frame.scales.embedding, 1);
  const ModelSpec smollm3 = SpecOf(Of("SmolLM3ForCausalLM", "smollm3"));
  EXPECT_TRUE(smollm3.frame.tied);
  EXPECT_EQ(smollm3.frame.rope_thetas, RopeThetas(8, 2e6));
  EXPECT_TRUE(smollm3.layers[2].rope);
  EXPECT_FALSE(smollm3.layers[3].rope);
  const ModelSpec listed =
      SpecOf(With(Of("SmolLM3ForCausalLM", "smollm3"), {{"no_rope_layers", {0, 1, 1, 1}}}));
  EXPECT_FALSE(listed.layers[0].rope);
  EXPECT_TRUE(listed.layers[3].rope);
}

TEST(LlamaConfigTest, ThetasOfBothSpellings) {
  EXPECT_EQ(SpecOf(With(Llama(), {{"rope_theta", 5e5}})).frame.rope_thetas, RopeThetas(8, 5e5));
  EXPECT_EQ(SpecOf(With(Llama(), {{"rope_parameters", {{"rope_theta", 5e5}}}})).frame.rope_thetas,
            RopeThetas(8, 5e5));
  std::vector<float> linear = RopeThetas(8, 100);
  for (float& theta : linear) theta /= 4;
  EXPECT_EQ(SpecOf(With(Llama(), {{"rope_theta", 100},
                                  {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}}))
                .frame.rope_thetas,
            linear);
  EXPECT_EQ(SpecOf(With(Llama(), {{"rope_parameters",
                                   {{"rope_theta", 100}, {"rope_type", "linear"}, {"factor", 4}}}}))
                .frame.rope_thetas,
            linear);
  // Turns within 64 tokens: 10.2, 3.2, 1.02 and 0.3. More than 4 stay, fewer than 1 are slowed 8
  // times, those between by their share.
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const std::vector<float> plain = RopeThetas(8, 100);
  const std::vector<float> scaled =
      SpecOf(With(Llama(), {{"rope_theta", 100}, {"rope_scaling", llama3}})).frame.rope_thetas;
  EXPECT_EQ(scaled[0], plain[0]);
  const double kept = (64 * plain[1] / 6.283185307 - 1) / 3;
  EXPECT_NEAR(scaled[1], plain[1] * (kept + (1 - kept) / 8), 1e-7);
  EXPECT_FLOAT_EQ(scaled[3], plain[3] / 8);
}

TEST(LlamaConfigTest, Yarn) {
  // Pairs that turn 8 and 1 times within 64 tokens: 0.2 and 2.02, which without truncate are not whole.
  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 8.0}};
  const auto spec_with = [&](const json& fields) {
    return SpecOf(With(Llama(), {{"rope_theta", 100},
                                 {"max_position_embeddings", 64},
                                 {"rope_parameters", With(yarn, fields)}}));
  };
  const std::vector<float> plain = RopeThetas(8, 100);
  ModelSpec spec = spec_with(json::object());
  for (int i = 0; i < 4; ++i) {
    const double slowed = i / 3.0;
    EXPECT_FLOAT_EQ(spec.frame.rope_thetas[i], plain[i] * (1 - slowed + slowed / 4));
  }
  EXPECT_FLOAT_EQ(spec.frame.rope_scale, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(spec.context_limit, 256);
  const double low = 8 * std::log(64 / (8 * 6.283185307)) / (2 * std::log(100));
  const double high = 8 * std::log(64 / 6.283185307) / (2 * std::log(100));
  const double slowed = (1 - low) / (high - low);
  EXPECT_NEAR(spec_with({{"truncate", false}}).frame.rope_thetas[1],
              plain[1] * (1 - slowed + slowed / 4), 1e-7);
  spec = spec_with({{"original_max_position_embeddings", 8}, {"attention_factor", 1.5}});
  EXPECT_EQ(spec.frame.rope_scale, 1.5f);
  EXPECT_EQ(spec.context_limit, 64);  // 8 * 4 are fewer than max_position_embeddings
  EXPECT_FLOAT_EQ(spec_with({{"mscale", 1.0}, {"mscale_all_dim", 0.5}}).frame.rope_scale,
                  (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  // vLLM's factor of the inferred scale.
  const double inferred = 0.1 * std::log(4.0) + 1;
  EXPECT_FLOAT_EQ(spec_with({{"attn_factor", 1 / inferred}}).frame.rope_scale, 1);
  EXPECT_EQ(spec_with({{"attn_factor", 0.5}, {"attention_factor", 1.5}}).frame.rope_scale, 1.5f);
  // Null, as no field; of truncate false.
  EXPECT_EQ(spec_with({{"truncate", nullptr}}).frame.rope_thetas,
            spec_with({{"truncate", false}}).frame.rope_thetas);
  yarn["beta_fast"] = nullptr;
  EXPECT_EQ(spec_with({{"attention_factor", nullptr}, {"beta_slow", 0}}).frame.rope_thetas,
            spec_with({{"beta_fast", 32.0}, {"beta_slow", 1}}).frame.rope_thetas);
}

// transformers takes the trained length of the whole config before that of rope_parameters.
TEST(LlamaConfigTest, TrainedLength) {
  for (const char* type : {"yarn", "llama3"}) {
    const json within = {{"rope_type", type},
                         {"factor", 2.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 32}};
    const auto thetas = [&](const json& config, const json& parameters) {
      return SpecOf(With(With(Llama(), {{"max_position_embeddings", 4096}, {"rope_theta", 100}}),
                         With(config, {{"rope_parameters", With(within, parameters)}})))
          .frame.rope_thetas;
    };
    const json other = {{"original_max_position_embeddings", 900}};
    EXPECT_NE(thetas(json::object(), json::object()), thetas(json::object(), other));
    EXPECT_EQ(thetas(other, json::object()), thetas(json::object(), other));
    const json none = {{"original_max_position_embeddings", nullptr}};
    EXPECT_EQ(thetas(json::object(), none),
              thetas({{"original_max_position_embeddings", 4096}}, json::object()));
  }
}

// Of each layer.
std::vector<int> WindowsOf(const json& config) {
  std::vector<int> windows;
  for (const AttentionSpec& spec : SpecOf(config).Attention()) {
    EXPECT_TRUE(spec.window_kind == WindowKind::kSliding && spec.sinks == 0);
    windows.push_back(spec.window);
  }
  return windows;
}

TEST(LlamaConfigTest, WindowsThatSeeEverything) {
  const std::vector<int> none(4, 0);
  const json mistral = Of("MistralForCausalLM", "mistral");
  EXPECT_EQ(WindowsOf(With(mistral, {{"sliding_window", nullptr}})), none);
  EXPECT_EQ(WindowsOf(With(mistral, {{"sliding_window", 256}})), none);
  EXPECT_EQ(WindowsOf(mistral), none);  // the window of a config without one is 4096
  for (const char* type : {"full_attention", "sliding_attention"}) {
    EXPECT_EQ(WindowsOf(With(mistral, {{"layer_types", std::vector<std::string>(4, type)}})), none);
  }
  const json qwen2 = With(Of("Qwen2ForCausalLM", "qwen2"), {{"sliding_window", 64}});
  EXPECT_EQ(WindowsOf(qwen2), none);
  EXPECT_EQ(WindowsOf(With(qwen2, {{"use_sliding_window", true}, {"max_window_layers", 4}})), none);
  EXPECT_EQ(WindowsOf(With(qwen2, {{"use_sliding_window", true}})), none);  // 28 layers without one
  EXPECT_EQ(
      WindowsOf(With(qwen2, {{"use_sliding_window", true},
                             {"layer_types", std::vector<std::string>(4, "full_attention")}})),
      none);
  EXPECT_EQ(WindowsOf(With(Llama(), {{"sliding_window", 64}})), none);  // which Llama does not read
}

TEST(LlamaConfigTest, WindowsByLayer) {
  const json mistral = Of("MistralForCausalLM", "mistral");
  EXPECT_EQ(WindowsOf(With(mistral, {{"sliding_window", 128}})), std::vector<int>(4, 128));
  EXPECT_EQ(WindowsOf(With(mistral, {{"max_position_embeddings", 8192}})),
            std::vector<int>(4, 4096));
  const json on = {{"use_sliding_window", true}, {"sliding_window", 64}};
  const json qwen2 = With(Of("Qwen2ForCausalLM", "qwen2"), on);
  EXPECT_EQ(WindowsOf(With(qwen2, {{"max_window_layers", 3}})), (std::vector<int>{0, 0, 0, 64}));
  // The types come before max_window_layers.
  const std::vector<std::string> types = {"sliding_attention", "full_attention",
                                          "sliding_attention", "full_attention"};
  EXPECT_EQ(WindowsOf(With(qwen2, {{"max_window_layers", 3}, {"layer_types", types}})),
            (std::vector<int>{64, 0, 64, 0}));
  const json smollm3 = With(Of("SmolLM3ForCausalLM", "smollm3"), on);
  EXPECT_EQ(WindowsOf(smollm3), (std::vector<int>{0, 0, 0, 64}));  // that without RoPE
  EXPECT_EQ(WindowsOf(With(smollm3, {{"layer_types", types}})), (std::vector<int>{64, 0, 64, 0}));
}

// A type of layers, and the fields that it reads, in every class.
json WithSinks(const json& config, const char* kind) {
  return With(config,
              {{"layer_types",
                {"full_attention", "window_with_sinks", "full_attention", "window_with_sinks"}},
               {"attention_window", 32},
               {"attention_window_kind", kind},
               {"attention_sinks", 4}});
}

// Layers 1 and 3 have windows, 3 a far part.
json WithFarPart(const json& config) {
  return With(WithSinks(config, "blocks"),
              {{"layer_types",
                {"full_attention", "window_with_sinks", "full_attention", "window_with_far_part"}},
               {"attention_window", 128},
               {"attention_far_kind", "affine_square"},
               {"attention_far_size", 32},
               {"attention_far_length", 2048}});
}

TEST(LlamaConfigTest, WindowsWithAFarPart) {
  const ModelSpec spec = SpecOf(WithFarPart(Of("Qwen3ForCausalLM", "qwen3")));
  for (size_t i = 0; i < 4; ++i) {
    const AttentionSpec& attention = spec.layers[i].attention;
    EXPECT_EQ(attention.window, i % 2 == 1 ? 128 : 0);
    EXPECT_EQ(attention.sinks, i % 2 == 1 ? 4 : 0);
    EXPECT_EQ(attention.far_size, i == 3 ? 32 : 0);
    EXPECT_EQ(attention.far_length, i == 3 ? 2048 : 0);
    EXPECT_EQ(attention.features(), i == 3 ? 640 : 0);
  }
  EXPECT_EQ(spec.layers[3].attention.FarPart().kind, AttentionKind::kSymmetricPower);
  const json linear = With(WithFarPart(Llama()), {{"attention_far_kind", "linear"}});
  EXPECT_EQ(SpecOf(linear).layers[3].attention.FarPart().kind, AttentionKind::kLinear);
  EXPECT_EQ(SpecOf(linear).layers[3].attention.features(), 32);
  const json sketch = With(WithFarPart(Llama()), {{"attention_far_kind", "learned_sketch"}});
  EXPECT_EQ(SpecOf(sketch).layers[3].attention.FarPart().kind, AttentionKind::kLearnedSketch);
  EXPECT_EQ(SpecOf(sketch).layers[3].attention.features(), 640);
  // Without such a layer the fields have no effect.
  json sinks = WithFarPart(Llama());
  sinks["layer_types"][3] = "window_with_sinks";
  sinks["attention_far_size"] = "large";
  EXPECT_EQ(SpecOf(sinks).layers[3].attention.far_size, 0);
}

TEST(LlamaConfigTest, WindowsWithSinks) {
  for (const auto& [architecture, type] : {std::pair{"LlamaForCausalLM", "llama"},
                                           {"MistralForCausalLM", "mistral"},
                                           {"Qwen2ForCausalLM", "qwen2"},
                                           {"Qwen3ForCausalLM", "qwen3"},
                                           {"SmolLM3ForCausalLM", "smollm3"}}) {
    for (const char* kind : {"sliding", "blocks"}) {
      const ModelSpec spec = SpecOf(WithSinks(Of(architecture, type), kind));
      ASSERT_EQ(spec.layers.size(), 4u);
      for (size_t i = 0; i < 4; ++i) {
        const AttentionSpec& attention = spec.layers[i].attention;
        EXPECT_EQ(attention.window, i % 2 == 1 ? 32 : 0) << architecture;
        EXPECT_EQ(attention.sinks, i % 2 == 1 ? 4 : 0);
        if (i % 2 == 0) continue;
        EXPECT_EQ(attention.window_kind == WindowKind::kBlocks, kind == std::string("blocks"));
      }
    }
  }
  // Beside sliding windows.
  json mixed = WithSinks(Of("Qwen3ForCausalLM", "qwen3"), "blocks");
  mixed.update({{"use_sliding_window", true},
                {"sliding_window", 64},
                {"layer_types",
                 {"sliding_attention", "window_with_sinks", "full_attention", "full_attention"}}});
  const ModelSpec spec = SpecOf(mixed);
  EXPECT_EQ(spec.layers[0].attention.window, 64);
  EXPECT_EQ(spec.layers[0].attention.sinks, 0);
  EXPECT_EQ(spec.layers[1].attention.window, 32);
  EXPECT_EQ(spec.layers[1].attention.sinks, 4);
  EXPECT_EQ(spec.layers[2].attention.window, 0);
}

// The fields of the published configs that say what a model computes.
json Brumby() {
  return {{"architectures", {"BrumbyForCausalLM"}},
          {"model_type", "brumby"},
          {"auto_map", {{"AutoModelForCausalLM", "modeling_brumby.BrumbyForCausalLM"}}},
          {"vocab_size", 151936},
          {"hidden_size", 5120},
          {"intermediate_size", 17408},
          {"num_hidden_layers", 40},
          {"num_attention_heads", 40},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 32768},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1e6},
          {"tie_word_embeddings", false},
          {"attention_bias", false},
          {"use_sliding_window", false},
          {"sliding_window", nullptr},
          {"chunk_size", 64},
          {"switch_over_seq_len", 8192},
          {"prefill_chunk_size", 1024},
          {"use_exp", false},
          {"p", 2}};
}

json PowerCoder() {
  return {{"architectures", {"PowerCoderForCausalLM"}},
          {"model_type", "powercoder"},
          {"auto_map", {{"AutoConfig", "configuration_powercoder.PowerCoderConfig"}}},
          {"vocab_size", 49152},
          {"hidden_size", 3072},
          {"intermediate_size", 12288},
          {"num_hidden_layers", 30},
          {"num_attention_heads", 24},
          {"num_key_value_heads", 2},
          {"hidden_act", "gelu_pytorch_tanh"},
          {"hybrid_exp", "none"},
          {"max_position_embeddings", 4096},
          {"norm_epsilon", 1e-5},
          {"rope_theta", 10000.0},
          {"sliding_window", nullptr},
          {"use_bias", true},
          {"bos_token_id", 0},
          {"eos_token_id", 0}};
}

TEST(LlamaConfigTest, Brumby14B) {
  const ModelSpec spec = SpecOf(Brumby());
  EXPECT_EQ(spec.architecture, "BrumbyForCausalLM");
  EXPECT_EQ(spec.frame.norm, NormKind::kRms);
  EXPECT_EQ(spec.frame.epsilon, 1e-6f);
  EXPECT_EQ(spec.frame.gate, GateKind::kSilu);
  EXPECT_TRUE(spec.frame.head_norms);
  EXPECT_FALSE(spec.frame.tied || spec.frame.qkv_bias || spec.frame.out_bias ||
               spec.frame.mlp_bias);
  EXPECT_EQ(spec.frame.rope_thetas, RopeThetas(128, 1e6));
  ASSERT_EQ(spec.layers.size(), 40u);
  const AttentionSpec& attention = spec.layers[39].attention;
  EXPECT_EQ(attention.kind, AttentionKind::kSymmetricPower);
  EXPECT_EQ(attention.key_heads(), 8);
  EXPECT_EQ(attention.query_group(), 5);
  EXPECT_EQ(attention.far_dim(), 128);
  EXPECT_TRUE(attention.decay_gate);
  EXPECT_FALSE(attention.kv_cache());
  EXPECT_EQ(attention.stabilizer, 128e-14f);
}

TEST(LlamaConfigTest, PowerCoder3B) {
  const ModelSpec spec = SpecOf(PowerCoder());
  EXPECT_EQ(spec.architecture, "PowerCoderForCausalLM");
  EXPECT_EQ(spec.frame.norm, NormKind::kLayer);
  EXPECT_EQ(spec.frame.epsilon, 1e-5f);
  EXPECT_EQ(spec.frame.gate, GateKind::kUngatedGelu);
  EXPECT_FALSE(spec.frame.head_norms);
  EXPECT_TRUE(spec.frame.tied && spec.frame.qkv_bias && spec.frame.out_bias && spec.frame.mlp_bias);
  EXPECT_EQ(spec.frame.rope_thetas, RopeThetas(128));
  ASSERT_EQ(spec.layers.size(), 30u);
  EXPECT_EQ(spec.layers[0].attention.key_heads(), 2);
  EXPECT_EQ(spec.layers[0].attention.query_group(), 12);
  EXPECT_EQ(spec.layers[0].attention.head_dim, 128);
  EXPECT_TRUE(spec.layers[0].attention.decay_gate);
  const FrameSpec plain = SpecOf(With(PowerCoder(), {{"use_bias", false}})).frame;
  EXPECT_FALSE(plain.qkv_bias || plain.out_bias || plain.mlp_bias);
}

// The sums of a head of 128: 136 tiles of 8 x 8 products, 8,704 in place of the 8,256 that differ,
// each with 128 values and a normaliser. Keys, values and gates of a block of 128 tokens are beside
// them.
TEST(LlamaConfigTest, StateBytesOfPublishedShapes) {
  const auto backend = NewCpuBackend(1).value();
  const auto head_bytes = [](int64_t value_width) {
    return int64_t{4} * (8704 * 128 + 8704 + 128 * 128) + 128 * 128 * value_width + 128 * 4;
  };
  const struct {
    json config;
    int64_t heads;  // of keys and values, of all layers
  } cases[] = {{Brumby(), 8 * 40}, {PowerCoder(), 2 * 30}};
  for (const auto& [config, heads] : cases) {
    std::vector<AttentionSpec> layers = SpecOf(config).Attention();
    EXPECT_EQ(backend->StateBytes(layers, 0), heads * head_bytes(4));
    EXPECT_EQ(backend->StateBytes(layers, 1 << 20), heads * head_bytes(4));  // however long
    // Of a snapshot in the middle of a block, and without the tiles' other halves.
    EXPECT_EQ(SavedStateBytes(layers, 1000),
              heads * 4 * (int64_t{8704} * 129 + 1000 % 128 * (128 + 128 + 1)));
    EXPECT_LT(heads * head_bytes(4), heads * 4 * int64_t{8256} * 129 * 11 / 10);
    for (AttentionSpec& layer : layers) layer.state_format = StateFormat::kBf16;
    EXPECT_EQ(backend->StateBytes(layers, 0), heads * head_bytes(2));
  }
  EXPECT_EQ(320 * head_bytes(4), 1479311360);  // Brumby-14B
  EXPECT_EQ(60 * head_bytes(4), 277370880);    // PowerCoder-3B
}

TEST(LlamaConfigTest, EveryFieldThatIsNotSupportedIsNamed) {
  const json qwen2 = Of("Qwen2ForCausalLM", "qwen2");
  const std::vector<std::string> sliding(4, "sliding_attention");
  const struct {
    json config;
    std::vector<std::string> parts;
  } cases[] = {
      {With(Llama(), {{"architectures", {"MixtralForCausalLM"}}}),
       {"DIR/config.json: field \"architectures\": expected one of LlamaForCausalLM, "
        "MistralForCausalLM",
        "found \"MixtralForCausalLM\""}},
      {With(Llama(), {{"architectures", {"A", "B"}}}), {"expected one name, found an array"}},
      {With(Llama(), {{"model_type", "mistral"}}), {"model_type", "expected \"llama\""}},
      {{{"model_type", "gemma2"}}, {"model_type", "expected one of llama, ", "\"gemma2\""}},
      {With(Llama(), {{"hidden_act", "gelu"}}), {"hidden_act", "\"silu\"", "\"gelu\""}},
      {With(Llama(), {{"quantization_config", {{"bits", 4}}}}), {"quantization_config"}},
      {With(Llama(), {{"auto_map", json::object()}}), {"auto_map", "without code of its own"}},
      {With(Llama(), {{"num_local_experts", 8}}), {"num_local_experts", "mixture of experts"}},
      {With(Llama(), {{"vision_config", json::object()}}), {"vision_config"}},
      {With(Llama(), {{"partial_rotary_factor", 0.5}}), {"partial_rotary_factor"}},
      {With(Llama(), {{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}}}),
       {"rope_scaling.rope_type", "expected default, linear, llama3 or yarn, found \"longrope\""}},
      {With(Llama(), {{"rope_scaling", {{"rope_type", "yarn"}}}}),
       {"rope_scaling.factor", "missing"}},
      {With(Llama(), {{"rope_theta", 1}, {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}}),
       {"rope_scaling.rope_theta", "expected more than 1"}},
      {With(Llama(),
            {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", 1e-310}}}}),
       {"rope_scaling.beta_fast"}},
      {With(Llama(), {{"rope_scaling",
                       {{"rope_type", "yarn"}, {"factor", 4}, {"apply_yarn_scaling", false}}}}),
       {"rope_scaling.apply_yarn_scaling", "expected true, found false"}},
      {With(
           Llama(),
           {{"rope_scaling",
             {{"rope_type", "yarn"}, {"factor", 1e6}, {"mscale", 1e4}, {"mscale_all_dim", 1e-4}}}}),
       {"rope_scaling.mscale", "expected a scale of attention in"}},
      {With(Llama(), {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"beta_slow", 33}}}}),
       {"rope_scaling.beta_slow", "expected at most beta_fast 32, found 33"}},
      {With(Llama(), {{"rope_scaling", {{"rope_type", "linear"}}}}),
       {"rope_scaling.factor", "missing"}},
      {With(Llama(), {{"rope_parameters", {{"full_attention", json::object()}}}}),
       {"rope_parameters.full_attention", "one RoPE for all layers"}},
      {With(Llama(), {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
       {"rope_parameters.partial_rotary_factor"}},
      {With(Llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                      {"rope_parameters", {{"type", "linear"}, {"factor", 4}}}}),
       {"rope_parameters", "rope_scaling"}},
      {With(Llama(), {{"rope_scaling", 3}}), {"rope_scaling", "expected an object"}},
      {With(qwen2, {{"use_sliding_window", true},
                    {"sliding_window", 64},
                    {"layer_types", {"sliding_attention"}}}),
       {"layer_types", "expected a type for each of 4 layers, found 1"}},
      {With(qwen2, {{"use_sliding_window", true}, {"sliding_window", 0}}), {"sliding_window"}},
      // Types of layers that the class does not have with the fields beside them.
      {With(Llama(), {{"layer_types", sliding}}),
       {"layer_types", "expected full_attention in layer 0, as LlamaForCausalLM",
        "found sliding_"}},
      {With(qwen2, {{"sliding_window", 64}, {"layer_types", sliding}}),
       {"layer_types", "expected full_attention in layer 0, as Qwen2ForCausalLM"}},
      {With(Of("SmolLM3ForCausalLM", "smollm3"),
            {{"sliding_window", 64}, {"layer_types", sliding}}),
       {"layer_types", "expected full_attention in layer 0"}},
      {With(Of("MistralForCausalLM", "mistral"),
            {{"sliding_window", 64},
             {"layer_types",
              {"sliding_attention", "full_attention", "sliding_attention", "sliding_attention"}}}),
       {"layer_types", "expected sliding_attention in layer 1, as MistralForCausalLM"}},
      {With(Of("MistralForCausalLM", "mistral"),
            {{"sliding_window", nullptr}, {"layer_types", sliding}}),
       {"layer_types", "expected full_attention in layer 0"}},
      {With(Llama(), {{"layer_types", {"chunked_attention"}}}),
       {"layer_types", "chunked_attention"}},
      {WithSinks(Llama(), "chunks"),
       {"attention_window_kind", "expected \"sliding\" or \"blocks\", found \"chunks\""}},
      {With(WithSinks(Llama(), "blocks"), {{"attention_window", nullptr}}),
       {"attention_window", "missing"}},
      {With(WithSinks(Llama(), "blocks"), {{"attention_sinks", -1}}), {"attention_sinks"}},
      {WithSinks(With(Of("BrumbyForCausalLM", "brumby"), {{"head_dim", 8}}), "blocks"),
       {"layer_types", "expected none of window_with_sinks in a model without softmax"}},
      {With(WithFarPart(Llama()), {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}}),
       {"layer_types", "expected none of window_with_far_part with a RoPE that scales attention"}},
      {With(WithFarPart(Llama()), {{"attention_far_kind", "elu"}}),
       {"attention_far_kind",
        "expected \"affine_square\", \"linear\" or \"learned_sketch\", found \"elu\""}},
      {With(WithFarPart(Llama()), {{"attention_far_size", 24}}),
       {"attention_far_size", "expected a multiple of 16, found 24"}},
      {With(WithFarPart(Llama()), {{"attention_far_size", 144}}), {"attention_far_size", "128"}},
      {With(WithFarPart(Llama()), {{"attention_far_length", nullptr}}),
       {"attention_far_length", "missing"}},
      {With(WithFarPart(Llama()), {{"attention_window_kind", "sliding"}}),
       {"attention_window_kind",
        "expected \"blocks\" with layers of window_with_far_part, found \"sliding\""}},
      {With(WithFarPart(Llama()), {{"attention_window", 100}}),
       {"attention_window",
        "expected a multiple of 64 with layers of window_with_far_part, found 100"}},
      {WithFarPart(With(Of("BrumbyForCausalLM", "brumby"), {{"head_dim", 8}})),
       {"layer_types", "expected none of window_with_sinks in a model without softmax"}},
      {With(WithSinks(Llama(), "blocks"), {{"layer_types", {"window_with_sinks"}}}),
       {"layer_types", "expected a type for each of 4 layers, found 1"}},
      {With(Brumby(), {{"p", 4}}),
       {"\"p\"", "expected 2: weights are squares, found the number 4"}},
      {With(Brumby(), {{"use_exp", true}}), {"use_exp", "without softmax"}},
      {With(Brumby(), {{"use_sliding_window", true}}), {"use_sliding_window"}},
      {With(Brumby(), {{"attention_bias", true}}), {"attention_bias", "without biases"}},
      {With(Brumby(), {{"head_dim", 132}}), {"head_dim", "multiple of 8, at most 256, found 132"}},
      {With(Brumby(), {{"head_dim", 264}}), {"head_dim", "multiple of 8, at most 256, found 264"}},
      {With(PowerCoder(), {{"hidden_act", "silu"}}), {"hidden_act", "gelu_pytorch_tanh"}},
      {With(PowerCoder(), {{"hybrid_exp", "half"}}), {"hybrid_exp", "without softmax"}},
      {With(Llama(), {{"num_key_value_heads", 3}}), {"num_key_value_heads", "divisor"}},
      {With(Llama(), {{"num_attention_heads", 6}}), {"num_attention_heads", "divisor"}},
      {With(Llama(), {{"head_dim", 7}}), {"head_dim", "even"}},
      {With(Llama(), {{"hidden_size", 8208}}), {"head_dim", "in [2, 1024], found 1026"}},
      {With(Llama(), {{"is_causal", false}}), {"is_causal", "causal mask", "found false"}},
      {With(Llama(), {{"hidden_size", "64"}}), {"hidden_size", "the string"}},
      {With(Llama(), {{"vocab_size", 1 << 23}}), {"vocab_size", "expected an integer in [2, "}},
      {With(Llama(), {{"eos_token_id", {2, 100}}}), {"eos_token_id", "found the number 100"}},
      {With(Llama(), {{"rms_norm_eps", 0}}), {"rms_norm_eps"}},
      {With(Of("SmolLM3ForCausalLM", "smollm3"), {{"no_rope_layers", {1}}}), {"no_rope_layers"}},
      {With(Of("GraniteForCausalLM", "granite"), {{"logits_scaling", 0}}), {"logits_scaling"}},
  };
  for (const auto& c : cases) {
    const std::string error = ErrorOf(c.config);
    for (const std::string& part : c.parts) {
      EXPECT_NE(error.find(part), std::string::npos) << part << " in: " << error;
    }
  }
  for (const char* name : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                           "num_attention_heads", "max_position_embeddings"}) {
    json config = Llama();
    config.erase(name);
    EXPECT_EQ(ErrorOf(config), "DIR/config.json: field \"" + std::string(name) + "\": missing");
  }
}

TEST(LlamaConfigTest, OtherFormats) {
  EXPECT_NE(ErrorOf({{"architecture", "llama"}}).find("format_version"), std::string::npos);
  EXPECT_NE(ErrorOf(json::array()).find("expected an object"), std::string::npos);
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "[";
  EXPECT_FALSE(ParseModelDefinition(deep, "config.json").ok());
}

}  // namespace
}  // namespace polysketch
