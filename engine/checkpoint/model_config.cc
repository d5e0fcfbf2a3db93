#include "engine/checkpoint/model_config.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/checkpoint/json_field_reader.h"
#include "engine/checkpoint/strict_json.h"

namespace polysketch {
namespace {

using nlohmann::json;

// Version 2 adds decay_gate and sinusoidal_positions, version 3 the kinds polynomial_square and
// affine_square with their fields, version 4 layers and windows. A config has the first version
// that has what it needs, so that earlier servers read it.
constexpr int kFirstVersion = 1, kSecondVersion = 2, kThirdVersion = 3, kFourthVersion = 4;
constexpr std::string_view kArchitecture = "polysketchformer";
constexpr int kMaxSketchSize = 256;
constexpr double kMaxPolynomialTerm = 1e6;  // |alpha| and beta
constexpr int kMaxWindow = 1 << 28;
constexpr int kMaxSinks = 1 << 16;
// The fields that a layer may have for itself.
constexpr std::string_view kLayerFields[] = {"attention",
                                             "power",
                                             "near_power",
                                             "sketch_size",
                                             "grain_size",
                                             "num_features",
                                             "sketch_kind",
                                             "alpha",
                                             "beta",
                                             "head_coefficients",
                                             "learned_coefficients",
                                             "decay_gate",
                                             "window",
                                             "window_kind",
                                             "sinks"};

std::string AllKindNames() {
  std::string names;
  for (const AttentionKind kind : kAllAttentionKinds) {
    names += StrCat(names.empty() ? "" : ", ", AttentionKindName(kind));
  }
  return names;
}

// Checks conditions between the fields of a layer. config: with the sizes of the model.
void CheckLayer(const ModelConfig& config, const LayerConfig& layer, JsonFieldReader& fields) {
  const int d = config.head_dim();
  const auto kind = [&] {
    return StrCat("attention \"", AttentionKindName(layer.attention), "\"");
  };
  // Odd powers of dot products may be negative. Kinds of odd degree have weights that are not.
  if (layer.power % 2 != 0 && layer.traits().min_power % 2 == 0)
    fields.Fail("power", StrCat("expected an even number, found ", layer.power));
  if (layer.is_random_sketch() &&
      (layer.power < 4 || !std::has_single_bit(static_cast<unsigned>(layer.power)))) {
    fields.Fail("power",
                StrCat("expected a power of two from 4 for ", kind(), ", found ", layer.power));
  }
  if (layer.traits().far == FarRows::kHead) {
    if (layer.power != 2)
      fields.Fail("power", StrCat("expected 2 for ", kind(), ", found ", layer.power));
    if (d % 8 != 0 || d > kMaxSketchSize) {
      fields.Fail("num_heads",
                  StrCat("expected emb_dim / num_heads to be a multiple of 8, at most ",
                         kMaxSketchSize, ", for ", kind(), ", found ", d));
    }
  }
  // Its sketch is a query or a key, and a constant.
  if (layer.traits().far == FarRows::kHeadAndOne && d >= kMaxSketchSize) {
    fields.Fail("num_heads", StrCat("expected emb_dim / num_heads to be at most ",
                                    kMaxSketchSize - 1, " for ", kind(), ", found ", d));
  }
  if (layer.near_power != 4)
    fields.Fail("near_power", StrCat("expected 4, found ", layer.near_power));
  if (!layer.sketch_kind.empty() && layer.sketch_kind != "gaussian" &&
      layer.sketch_kind != "srht") {
    fields.Fail("sketch_kind", StrCat("expected \"gaussian\" or \"srht\", found \"",
                                      Abbreviate(layer.sketch_kind), "\""));
  }
  if (layer.decay_gate && layer.is_kv())
    fields.Fail("decay_gate", StrCat("expected false for ", kind(), ", found true"));
  if (layer.window > 0 && !layer.is_kv())
    fields.Fail("window", StrCat("expected none for ", kind(), ", found ", layer.window));
  if (layer.sinks > 0 && layer.window == 0)
    fields.Fail("sinks", StrCat("expected a window beside it, found none"));
}

// Checks conditions between the fields of a model.
void CheckModel(const ModelConfig& config, JsonFieldReader& fields) {
  if (config.emb_dim % config.num_heads != 0 || config.head_dim() % 2 != 0) {
    fields.Fail("num_heads", StrCat("expected emb_dim / num_heads to be an even integer, found ",
                                    config.emb_dim, " / ", config.num_heads));
  }
  for (const auto& [name, id] :
       {std::pair("bos_id", config.bos_id), std::pair("eos_id", config.eos_id)}) {
    if (id >= config.vocab_size) {
      fields.Fail(
          name, StrCat("expected a token id below vocab_size ", config.vocab_size, ", found ", id));
    }
  }
  if (config.add_bos && config.bos_id < 0)
    fields.Fail("add_bos", "expected a bos_id beside it, found none");
}

// Checks that the version has what a layer uses. config: with what the model uses beside it.
void CheckVersion(const ModelConfig& config, const LayerConfig& layer, int version,
                  JsonFieldReader& fields) {
  if (layer.has_coefficients() && version < kThirdVersion) {
    fields.Fail("format_version",
                StrCat("expected ", kThirdVersion, " for attention \"",
                       AttentionKindName(layer.attention), "\", found ", version));
  }
  const struct {
    const char* name;
    bool used;
    int version;
  } added[] = {{"decay_gate", layer.decay_gate, kSecondVersion},
               {"sinusoidal_positions", !config.sinusoidal_positions, kSecondVersion},
               {"window", layer.window > 0, kFourthVersion}};
  for (const auto& field : added) {
    if (field.used && version < field.version) {
      fields.Fail(field.name,
                  StrCat("expected format_version ", field.version, " beside it, found ", version));
    }
  }
}

// Reads the fields of a layer. config: with the sizes of the model.
LayerConfig ReadLayer(const ModelConfig& config, JsonFieldReader& fields) {
  LayerConfig layer;
  const std::string kind_name = fields.String("attention", false);
  if (const auto kind = AttentionKindOf(kind_name)) {
    layer.attention = *kind;
  } else {
    fields.Fail("attention", StrCat("expected one of ", AllKindNames(), "; found \"",
                                    Abbreviate(kind_name), "\""));
  }
  const AttentionTraits& traits = layer.traits();
  const int power = traits.default_power;
  layer.power = fields.Int("power", traits.min_power, traits.max_power,
                           power == 0 ? std::nullopt : std::optional(power));
  layer.near_power = fields.Int("near_power", 2, 64, layer.near_power);
  // A field that the kind does not use is checked too, and then ignored.
  const int sketch_size = fields.Int("sketch_size", 1, kMaxSketchSize,
                                     layer.is_sketched() ? std::nullopt : std::optional(1));
  layer.sketch_size = layer.is_sketched() ? sketch_size : 0;
  layer.grain_size = fields.Int("grain_size", 1, 65536,
                                layer.is_mixed() ? std::nullopt : std::optional(layer.grain_size));
  const bool performer = traits.far == FarRows::kOwnFeatures;
  const int num_features =
      fields.Int("num_features", 1, 65536, performer ? std::nullopt : std::optional(1));
  layer.num_features = performer ? num_features : 0;
  layer.sketch_kind = fields.String("sketch_kind", true);
  layer.alpha = fields.Number("alpha", -kMaxPolynomialTerm, kMaxPolynomialTerm, layer.alpha);
  layer.beta = fields.Number("beta", 1 / kMaxPolynomialTerm, kMaxPolynomialTerm,
                             static_cast<double>(config.emb_dim) / std::max(1, config.num_heads));
  layer.head_coefficients = fields.Bool("head_coefficients", layer.head_coefficients);
  layer.learned_coefficients = fields.Bool("learned_coefficients", layer.learned_coefficients);
  layer.decay_gate = fields.Bool("decay_gate", layer.decay_gate);
  layer.window = fields.Int("window", 1, kMaxWindow, 0);
  const std::string window_kind = fields.String("window_kind", true);
  if (window_kind == "blocks") {
    layer.window_kind = WindowKind::kBlocks;
  } else if (!window_kind.empty() && window_kind != "sliding") {
    fields.Fail("window_kind", StrCat("expected \"sliding\" or \"blocks\", found \"",
                                      Abbreviate(window_kind), "\""));
  }
  layer.sinks = fields.Int("sinks", 0, kMaxSinks, 0);
  return layer;
}

// Reads `layers`: for each layer an object of the fields that differ from those of the model.
void ReadLayers(const json& object, std::string_view source, int version, JsonFieldReader& fields,
                ModelConfig* config) {
  const json* layers = fields.Find("layers");
  if (layers == nullptr || !fields.status().ok()) return;
  if (!layers->is_array() || std::ssize(*layers) != config->num_layers) {
    return fields.Fail(
        "layers",
        StrCat("expected an array of num_layers ", config->num_layers, " objects, found ",
               layers->is_array() ? StrCat(layers->size(), " elements") : DescribeJson(*layers)));
  }
  if (version < kFourthVersion) {
    return fields.Fail("layers", StrCat("expected format_version ", kFourthVersion,
                                        " beside it, found ", version));
  }
  json shared = json::object();
  for (const std::string_view name : kLayerFields) {
    if (const auto value = object.find(name); value != object.end()) shared[name] = *value;
  }
  for (size_t i = 0; i < layers->size(); ++i) {
    const json& own = (*layers)[i];
    const std::string name = StrCat("layers[", i, "]");
    if (!own.is_object())
      return fields.Fail(name, StrCat("expected an object, found ", DescribeJson(own)));
    json merged = shared;
    merged.update(own);
    JsonFieldReader of_layer(merged, source, JsonFieldReader::Null::kWrong, name + ".");
    config->layers.push_back(ReadLayer(*config, of_layer));
    of_layer.CheckUnknown();
    if (of_layer.status().ok()) CheckLayer(*config, config->layers.back(), of_layer);
    if (of_layer.status().ok()) CheckVersion(*config, config->layers.back(), version, of_layer);
    if (!of_layer.status().ok()) return fields.Fail(of_layer.status());
  }
}

}  // namespace

Result<ModelConfig> ModelConfig::FromJson(const json& object, std::string_view source) {
  if (!object.is_object())
    return InvalidArgument(source, ": expected an object, found ", DescribeJson(object));
  JsonFieldReader fields(object, source);
  const int version = fields.Int("format_version", kFirstVersion, kFourthVersion);
  if (const std::string found = fields.String("architecture", false); found != kArchitecture) {
    fields.Fail("architecture",
                StrCat("expected \"", kArchitecture, "\", found \"", Abbreviate(found), "\""));
  }
  ModelConfig config;
  // The limits exceed any model of this kind, and no product of sizes within them overflows int64.
  config.vocab_size = fields.Int("vocab_size", 2, 1 << 22);
  config.emb_dim = fields.Int("emb_dim", 4, 65536);
  config.num_heads = fields.Int("num_heads", 1, 4096);
  config.num_layers = fields.Int("num_layers", 1, 1024);
  config.context_length = fields.Int("context_length", 1, 1 << 30, config.context_length);
  static_cast<LayerConfig&>(config) = ReadLayer(config, fields);
  config.add_bos = fields.Bool("add_bos", config.add_bos);
  config.bos_id = fields.Int("bos_id", -1, (1 << 22) - 1, config.bos_id);
  config.eos_id = fields.Int("eos_id", -1, (1 << 22) - 1, config.eos_id);
  config.sinusoidal_positions = fields.Bool("sinusoidal_positions", config.sinusoidal_positions);
  if (fields.status().ok()) CheckModel(config, fields);
  ReadLayers(object, source, version, fields, &config);
  fields.CheckUnknown();
  if (!fields.status().ok()) return fields.status();
  if (config.layers.empty()) CheckLayer(config, config, fields);
  CheckVersion(config, config, version, fields);
  if (!fields.status().ok()) return fields.status();
  return config;
}

AttentionSpec ModelConfig::attention_spec(StateFormat state_format, int i) const {
  const LayerConfig& config = layer(i);
  const FarRows far = config.traits().far;
  return {.kind = config.attention,
          .heads = num_heads,
          .head_dim = head_dim(),
          .sketch_size = far == FarRows::kHead         ? head_dim()
                         : far == FarRows::kHeadAndOne ? head_dim() + 1
                                                       : config.sketch_size,
          .num_features = far == FarRows::kFeatures ? head_dim() : config.num_features,
          .block = config.grain_size,
          .power = config.power,
          .near_power = config.near_power,
          .window = config.window,
          .window_kind = config.window_kind,
          .sinks = config.sinks,
          .stabilizer = config.traits().stabilizer,
          .alpha = static_cast<float>(config.alpha),
          .beta = static_cast<float>(config.beta),
          .decay_gate = config.decay_gate,
          .state_format = state_format};
}

Result<ModelConfig> ModelConfig::Load(const ModelFolder& folder) {
  PS_ASSIGN_OR_RETURN(const json object, ReadConfigJson(folder));
  return FromJson(object, folder.PathOf(kConfigFile));
}

Result<ModelConfig> ModelConfig::Parse(std::string_view json_text, std::string_view source) {
  PS_ASSIGN_OR_RETURN(const json object, ParseConfigJson(json_text, source));
  return FromJson(object, source);
}

}  // namespace polysketch
