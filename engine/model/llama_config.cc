#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bounded_json.h"
#include "base/check.h"
#include "engine/checkpoint/json_field_reader.h"
#include "engine/checkpoint/strict_json.h"
#include "engine/model/llama_rope.h"
#include "engine/model/llama_weights.h"
#include "engine/model/model_format.h"

namespace polysketch {
namespace {

using nlohmann::json;

// Tokens in a block of a KV cache.
constexpr int kCacheBlock = 64;
constexpr size_t kMaxStopIds = 64;
// symmetric_power of Brumby and PowerCoder: tokens that are folded together, whose keys and values
// add 3% to the state of a head of 128; its largest head; and c of weights (q.k)^2 / d. The
// published kernels add 1e-7 to |q.k| / sqrt(d), whose square this is, and 1e-6 of the row's
// largest weight to their sum: less than float32 rounds, unless all weights are zero.
constexpr int kPowerBlock = 128, kPowerHeadDimLimit = 256;
constexpr double kPowerFloor = 1e-14;
// Types of layers.
constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention",
                           kWithSinks = "window_with_sinks", kWithFarPart = "window_with_far_part";
// Kinds of windows.
constexpr std::string_view kSlidingWindow = "sliding", kWindowOfBlocks = "blocks";
// Of far parts: squares and features of affine maps, and squares of such maps of sketches.
constexpr std::pair<std::string_view, AttentionKind> kFarKinds[] = {
    {"affine_square", AttentionKind::kSymmetricPower},
    {"linear", AttentionKind::kLinear},
    {"learned_sketch", AttentionKind::kLearnedSketch}};
constexpr int kFarSizeUnit = 16, kFarSizeLimit = 128;
// The limits exceed any model, and no product of sizes within them overflows int64.
constexpr int kVocabularyLimit = 1 << 22, kWidthLimit = 1 << 16, kHiddenLimit = 1 << 18,
              kHeadsLimit = 4096, kHeadDimLimit = 1024, kLayersLimit = 1024, kSinksLimit = 1 << 16;

// A field that must have one value, or be absent.
struct OnlyValue {
  const char* name;
  const char* value;  // as JSON
  const char* reason;
};

constexpr OnlyValue kOnly[] = {
    {"quantization_config", "null", "a checkpoint of F32, F16 or BF16"},
    {"vision_config", "null", "a model of text alone"},
    {"audio_config", "null", "a model of text alone"},
    {"text_config", "null", "a model of text alone"},
    {"num_local_experts", "null", "a model without a mixture of experts"},
    {"num_experts", "null", "a model without a mixture of experts"},
    {"n_routed_experts", "null", "a model without a mixture of experts"},
    {"is_encoder_decoder", "false", "a decoder"},
    {"add_cross_attention", "false", "a decoder without cross attention"},
    {"is_causal", "true", "a decoder with a causal mask"},
    {"partial_rotary_factor", "1.0", "1: RoPE rotates whole heads"},
};
// The same of the classes of transformers itself, and of the two that come with code of their own.
constexpr OnlyValue kOnlyOfTransformers[] = {
    {"auto_map", "null", "a model of transformers itself, without code of its own"},
    {"hidden_act", "\"silu\"", "\"silu\""},
};
constexpr OnlyValue kOnlyOfBrumby[] = {
    {"hidden_act", "\"silu\"", "\"silu\""},
    {"p", "2", "2: weights are squares"},
    {"use_exp", "false", "a model without softmax"},
    {"use_sliding_window", "false", "a model without windows"},
    {"attention_bias", "false", "a model without biases"},
};
constexpr OnlyValue kOnlyOfPowerCoder[] = {
    {"hidden_act", "\"gelu_pytorch_tanh\"", "\"gelu_pytorch_tanh\""},
    {"hybrid_exp", "\"none\"", "a model without softmax"},
};

// How the classes of transformers differ: what a field that is absent means, and which fields they
// read.
struct Family {
  std::string_view architecture;
  std::span<const OnlyValue> only;
  int kv_heads;      // of a config that has none; 0: as many as there are heads
  int head_dim = 0;  // of a config that has none; 0: hidden_size / num_attention_heads
  double rope_theta = 10000;
  bool tied = false;
  bool qkv_bias = false;              // always
  bool reads_attention_bias = false;  // of q, k, v and o
  bool reads_mlp_bias = false;
  bool head_norms = false;
  bool reads_no_rope_layers = false;
  bool reads_scales = false;
  // Whether sliding_window is read, whether use_sliding_window turns it on, and what it is if
  // absent.
  bool reads_window = false, window_is_optional = false;
  int window = 0;  // 0: none
  // Whether attention is symmetric_power, with a decay gate for each kv head.
  bool power = false;
  // The frame of Starcoder2: LayerNorm, an MLP without a gate, biases everywhere unless use_bias is
  // false.
  bool starcoder2 = false;
};

constexpr Family kFamilies[] = {
    {.architecture = "LlamaForCausalLM",
     .only = kOnlyOfTransformers,
     .kv_heads = 0,
     .reads_attention_bias = true,
     .reads_mlp_bias = true},
    {.architecture = "MistralForCausalLM",
     .only = kOnlyOfTransformers,
     .kv_heads = 8,
     .reads_window = true,
     .window = 4096},
    {.architecture = "Qwen2ForCausalLM",
     .only = kOnlyOfTransformers,
     .kv_heads = 32,
     .qkv_bias = true,
     .reads_window = true,
     .window_is_optional = true,
     .window = 4096},
    {.architecture = "Qwen3ForCausalLM",
     .only = kOnlyOfTransformers,
     .kv_heads = 32,
     .head_dim = 128,
     .reads_attention_bias = true,
     .head_norms = true,
     .reads_window = true,
     .window_is_optional = true,
     .window = 4096},
    {.architecture = "SmolLM3ForCausalLM",
     .only = kOnlyOfTransformers,
     .kv_heads = 4,
     .rope_theta = 2e6,
     .tied = true,
     .reads_attention_bias = true,
     .reads_mlp_bias = true,
     .reads_no_rope_layers = true,
     .reads_window = true,
     .window_is_optional = true},
    {.architecture = "GraniteForCausalLM",
     .only = kOnlyOfTransformers,
     .kv_heads = 0,
     .reads_attention_bias = true,
     .reads_mlp_bias = true,
     .reads_scales = true},
    {.architecture = "BrumbyForCausalLM",
     .only = kOnlyOfBrumby,
     .kv_heads = 8,
     .head_dim = 128,
     .head_norms = true,
     .power = true},
    {.architecture = "PowerCoderForCausalLM",
     .only = kOnlyOfPowerCoder,
     .kv_heads = 2,
     .tied = true,
     .power = true,
     .starcoder2 = true},
};

class LlamaConfigReader {
 public:
  LlamaConfigReader(const json& config, std::string_view source, const Family& family)
      : config_(config),
        fields_(config, source, JsonFieldReader::Null::kMissing),
        source_(source),
        family_(family) {}

  Result<ModelSpec> Read() {
    for (const OnlyValue& only : kOnly) CheckOnly(only);
    for (const OnlyValue& only : family_.only) CheckOnly(only);
    Sizes();
    Biases();
    Scales();
    Rope();
    Window();
    Tokens();
    if (!fields_.status().ok()) return fields_.status();
    return spec_;
  }

 private:
  // Whether a field is null, which in transformers is not what a config without it has: as many kv
  // heads as heads, no window.
  bool IsNull(const char* name) const {
    const auto field = config_.find(name);
    return field != config_.end() && field->is_null();
  }

  void CheckOnly(const OnlyValue& only) {
    fields_.Only(only.name, *ParseJson(only.value), only.reason);
  }

  void Sizes() {
    FrameSpec& frame = spec_.frame;
    AttentionSpec& attention = attention_;
    spec_.architecture = family_.architecture;
    frame.vocab_size = fields_.Int("vocab_size", 2, kVocabularyLimit);
    frame.padded_vocabulary = true;
    frame.width = fields_.Int("hidden_size", 2, kWidthLimit);
    frame.mlp_hidden = fields_.Int("intermediate_size", 1, kHiddenLimit);
    if (family_.starcoder2) {
      frame.epsilon = static_cast<float>(fields_.Number("norm_epsilon", 1e-12, 1, 1e-5));
      frame.gate = GateKind::kUngatedGelu;
    } else {
      frame.norm = NormKind::kRms;
      frame.epsilon = static_cast<float>(fields_.Number("rms_norm_eps", 1e-12, 1, 1e-6));
      frame.gate = GateKind::kSilu;
    }
    frame.tied = fields_.Bool("tie_word_embeddings", family_.tied);
    frame.head_norms = family_.head_norms;
    attention.heads = fields_.Int("num_attention_heads", 1, kHeadsLimit);
    const bool as_heads = family_.kv_heads == 0 || IsNull("num_key_value_heads");
    const int kv_heads = as_heads ? attention.heads : family_.kv_heads;
    attention.kv_heads = fields_.Int("num_key_value_heads", 1, kHeadsLimit, kv_heads);
    if (fields_.status().ok() && attention.heads % attention.kv_heads != 0) {
      fields_.Fail("num_key_value_heads", StrCat("expected a divisor of num_attention_heads ",
                                                 attention.heads, ", found ", attention.kv_heads));
    }
    const int head_dim = family_.head_dim != 0 ? family_.head_dim : frame.width / attention.heads;
    if (fields_.Find("head_dim") == nullptr && head_dim * attention.heads != frame.width &&
        family_.head_dim == 0) {
      fields_.Fail("num_attention_heads", StrCat("expected a divisor of hidden_size ", frame.width,
                                                 " without head_dim, found ", attention.heads));
    }
    attention.head_dim = fields_.Int("head_dim", 2, kHeadDimLimit, head_dim);
    if (attention.head_dim % 2 != 0 || attention.head_dim < 2 ||
        attention.head_dim > kHeadDimLimit) {  // by division of hidden_size too
      fields_.Fail("head_dim", StrCat("expected an even number in [2, ", kHeadDimLimit, "], found ",
                                      attention.head_dim));
    }
    if (family_.power) {
      SymmetricPower();
    } else {
      attention.kind = AttentionKind::kSoftmax;
      attention.stabilizer = 0;
      attention.block = kCacheBlock;
    }
    spec_.context_length = fields_.Int("max_position_embeddings", 1, kPositionsLimit);
    spec_.context_limit = spec_.context_length;
    const int layers = fields_.Int("num_hidden_layers", 1, kLayersLimit);
    spec_.layers.assign(static_cast<size_t>(layers), {.attention = attention});
  }

  void SymmetricPower() {
    AttentionSpec& attention = attention_;
    const int d = attention.head_dim;
    if (d % 8 != 0 || d > kPowerHeadDimLimit) {
      fields_.Fail("head_dim",
                   StrCat("expected a multiple of 8, at most ", kPowerHeadDimLimit, ", found ", d));
    }
    attention.kind = AttentionKind::kSymmetricPower;
    attention.sketch_size = d;
    attention.power = 2;
    attention.block = kPowerBlock;
    attention.decay_gate = true;
    // Without the division of q.k by sqrt(d), the weights and c are d times as large.
    attention.stabilizer = static_cast<float>(kPowerFloor * d);
  }

  void Biases() {
    FrameSpec& frame = spec_.frame;
    frame.qkv_bias = family_.qkv_bias;
    if (family_.reads_attention_bias) {
      frame.qkv_bias = frame.out_bias = fields_.Bool("attention_bias", false);
    }
    if (family_.reads_mlp_bias) frame.mlp_bias = fields_.Bool("mlp_bias", false);
    if (family_.starcoder2) {
      frame.qkv_bias = frame.out_bias = frame.mlp_bias = fields_.Bool("use_bias", true);
    }
  }

  // Granite multiplies q.k by attention_multiplier, and divides logits by logits_scaling.
  void Scales() {
    if (!family_.reads_scales) return;
    FrameScales& scales = spec_.frame.scales;
    const auto factor = [&](const char* name) {
      return static_cast<float>(fields_.Number(name, kScaleLeast, kScaleMost, 1));
    };
    scales.embedding = factor("embedding_multiplier");
    scales.residual = factor("residual_multiplier");
    scales.queries =
        factor("attention_multiplier") * std::sqrt(static_cast<float>(attention_.head_dim));
    scales.logits = 1 / factor("logits_scaling");
  }

  void Rope() {
    const LlamaRope rope = ReadLlamaRope(attention_.head_dim, spec_.context_length,
                                         family_.rope_theta, source_, &fields_);
    spec_.frame.rope_thetas = rope.thetas;
    spec_.frame.rope_scale = rope.scale;
    spec_.context_length = rope.length;
    spec_.context_limit = rope.length;
    LayersWithoutRope();
  }

  void LayersWithoutRope() {
    if (!family_.reads_no_rope_layers) return;
    const size_t layers = spec_.layers.size();
    const int interval = fields_.Int("no_rope_layer_interval", 1, kLayersLimit, 4);
    // 1: the layer uses RoPE.
    const std::vector<int> listed = fields_.Ints("no_rope_layers", 0, 1, kLayersLimit);
    const bool lists = fields_.Find("no_rope_layers") != nullptr;
    if (lists && listed.size() < layers) {
      return fields_.Fail("no_rope_layers", StrCat("expected an integer for each of ", layers,
                                                   " layers, found ", listed.size()));
    }
    for (size_t i = 0; i < layers; ++i) {
      spec_.layers[i].rope = lists ? listed[i] == 1 : (i + 1) % static_cast<size_t>(interval) != 0;
    }
  }

  void Window() {
    const std::vector<std::string> types = fields_.Strings("layer_types", kLayersLimit);
    for (const std::string& type : types) {
      if (type != kFull && type != kSliding && !HasSinks(type)) {
        return fields_.Fail("layer_types",
                            StrCat("expected ", kFull, ", ", kSliding, ", ", kWithSinks, " or ",
                                   kWithFarPart, ", found \"", Abbreviate(type), "\""));
      }
    }
    SlidingWindows(types);
    WindowsWithSinks(types);
  }

  static bool HasSinks(std::string_view type) { return type == kWithSinks || type == kWithFarPart; }

  // Layers of types that transformers does not have, in any of the classes.
  void WindowsWithSinks(const std::vector<std::string>& types) {
    const auto first = std::ranges::find_if(types, HasSinks);
    if (first == types.end()) return;
    if (family_.power) {
      return fields_.Fail("layer_types", StrCat("expected none of ", *first,
                                                " in a model without softmax, found one"));
    }
    const int window = fields_.Int("attention_window", 1, kPositionsLimit);
    const int sinks = fields_.Int("attention_sinks", 0, kSinksLimit);
    const std::string kind = fields_.String("attention_window_kind", false);
    if (!fields_.status().ok()) return;
    if (kind != kSlidingWindow && kind != kWindowOfBlocks) {
      return fields_.Fail("attention_window_kind",
                          StrCat("expected \"", kSlidingWindow, "\" or \"", kWindowOfBlocks,
                                 "\", found \"", Abbreviate(kind), "\""));
    }
    if (!HasTypeOfEachLayer(types)) return;
    AttentionSpec far;
    if (std::ranges::count(types, kWithFarPart) > 0) FarPart(window, kind, &far);
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      if (!HasSinks(types[i])) continue;
      AttentionSpec& attention = spec_.layers[i].attention;
      attention.window = window;
      attention.window_kind = kind == kWindowOfBlocks ? WindowKind::kBlocks : WindowKind::kSliding;
      attention.sinks = sinks;
      if (types[i] != kWithFarPart) continue;
      attention.far_kind = far.far_kind;
      attention.far_size = far.far_size;
      attention.far_length = far.far_length;
      attention.decay_gate = far.decay_gate;
    }
  }

  // The fields of layers with a far part, whose blocks are folded when they leave the window.
  void FarPart(int window, std::string_view window_kind, AttentionSpec* far) {
    const std::string kind = fields_.String("attention_far_kind", false);
    far->far_size = fields_.Int("attention_far_size", kFarSizeUnit, kFarSizeLimit);
    far->far_length = fields_.Int("attention_far_length", 1, kPositionsLimit);
    far->decay_gate = fields_.Bool("attention_far_decay_gate", false);
    if (!fields_.status().ok()) return;
    const auto* known = std::ranges::find(kFarKinds, kind, [](const auto& of) { return of.first; });
    if (known == std::end(kFarKinds)) {
      return fields_.Fail(
          "attention_far_kind",
          StrCat("expected \"", kFarKinds[0].first, "\", \"", kFarKinds[1].first, "\" or \"",
                 kFarKinds[2].first, "\", found \"", Abbreviate(kind), "\""));
    }
    far->far_kind = known->second;
    if (far->far_size % kFarSizeUnit != 0) {
      return fields_.Fail("attention_far_size", StrCat("expected a multiple of ", kFarSizeUnit,
                                                       ", found ", far->far_size));
    }
    if (window_kind != kWindowOfBlocks) {
      return fields_.Fail("attention_window_kind",
                          StrCat("expected \"", kWindowOfBlocks, "\" with layers of ", kWithFarPart,
                                 ", found \"", Abbreviate(window_kind), "\""));
    }
    // Far parts read queries that are not rotated, which the scale is of too once weights have it.
    if (spec_.frame.rope_scale != 1) {
      return fields_.Fail("layer_types", StrCat("expected none of ", kWithFarPart,
                                                " with a RoPE that scales attention, found one"));
    }
    if (window % kCacheBlock != 0) {
      fields_.Fail("attention_window",
                   StrCat("expected a multiple of ", kCacheBlock, " with layers of ", kWithFarPart,
                          ", found ", window));
    }
  }

  bool HasTypeOfEachLayer(const std::vector<std::string>& types) {
    if (types.size() >= spec_.layers.size()) return true;
    fields_.Fail("layer_types", StrCat("expected a type for each of ", spec_.layers.size(),
                                       " layers, found ", types.size()));
    return false;
  }

  void SlidingWindows(const std::vector<std::string>& types) {
    const bool on = family_.reads_window &&
                    (!family_.window_is_optional || fields_.Bool("use_sliding_window", false));
    int window = family_.reads_window
                     ? fields_.Int("sliding_window", 1, kPositionsLimit, family_.window)
                     : 0;
    if (!on || IsNull("sliding_window")) window = 0;
    // A window of all positions is none.
    const bool narrows = window != 0 && window < spec_.context_length;
    if (!narrows && std::ranges::count(types, kSliding) == 0) return;
    if (!types.empty() && !HasTypeOfEachLayer(types)) return;
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const bool slides = window != 0 && HasWindow(i, types);
      if (!types.empty() && types[i] == (slides ? kFull : kSliding) && (narrows || !slides)) {
        return fields_.Fail("layer_types", StrCat("expected ", slides ? kSliding : kFull,
                                                  " in layer ", i, ", as ", family_.architecture,
                                                  " with the other fields has, found ", types[i]));
      }
      if (slides && narrows) spec_.layers[i].attention.window = window;
    }
  }

  // Whether layer `i` has the window that is on.
  bool HasWindow(size_t i, const std::vector<std::string>& types) {
    if (!family_.window_is_optional) return true;
    if (!types.empty()) return types[i] == kSliding;
    if (family_.reads_no_rope_layers) return !spec_.layers[i].rope;
    return static_cast<int>(i) >= fields_.Int("max_window_layers", 0, kPositionsLimit, 28);
  }

  void Tokens() {
    const int last = spec_.frame.vocab_size - 1;
    const std::vector<int> bos = fields_.Ints("bos_token_id", 0, last, 1);
    if (!bos.empty()) spec_.bos_id = bos.front();
    for (const int id : fields_.Ints("eos_token_id", 0, last, kMaxStopIds)) {
      if (std::count(spec_.stop_ids.begin(), spec_.stop_ids.end(), id) == 0)
        spec_.stop_ids.push_back(id);
    }
  }

  const json& config_;
  JsonFieldReader fields_;
  const std::string_view source_;
  const Family& family_;
  ModelSpec spec_;
  AttentionSpec attention_;  // of every layer, but for windows
};

}  // namespace

Result<ModelDefinition> ReadLlama(const json& config, std::string_view source,
                                  std::string_view architecture) {
  const auto family =
      std::find_if(std::begin(kFamilies), std::end(kFamilies),
                   [&](const Family& one) { return one.architecture == architecture; });
  PS_CHECK(family != std::end(kFamilies)) << architecture;
  PS_ASSIGN_OR_RETURN(const ModelSpec spec, LlamaConfigReader(config, source, *family).Read());
  return ModelDefinition{spec, [spec](WeightReader* reader, ModelWeights* weights) {
                           return ReadLlamaWeights(spec, reader, weights);
                         }};
}

}  // namespace polysketch
