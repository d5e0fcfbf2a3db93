#include "engine/checkpoint/model_config.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/checkpoint/field_reader.h"
#include "engine/checkpoint/strict_json.h"

namespace polysketch {
namespace {

using nlohmann::json;

// Version 2 adds decay_gate and sinusoidal_positions, version 3 the kinds polynomial_square and
// affine_square with their fields. A config has the first version that has what it needs, so that
// earlier servers read it.
constexpr int kFirstVersion = 1, kSecondVersion = 2, kThirdVersion = 3;
constexpr std::string_view kArchitecture = "polysketchformer";
constexpr char kConfigFile[] = "config.json";
constexpr int kMaxSketchSize = 256;
constexpr int kMaxSquareDegree = 8;         // of polynomial_square
constexpr double kMaxPolynomialTerm = 1e6;  // |alpha| and beta

constexpr AttentionKind kKinds[] = {
    AttentionKind::kSoftmax,
    AttentionKind::kPolynomial,
    AttentionKind::kRandomSketch,
    AttentionKind::kLearnedSketch,
    AttentionKind::kLearnedSketchMixed,
    AttentionKind::kRandomSketchMixed,
    AttentionKind::kLinear,
    AttentionKind::kPerformer,
    AttentionKind::kSymmetricPower,
    AttentionKind::kPolynomialSquare,
    AttentionKind::kAffineSquare,
};

std::optional<AttentionKind> KindOf(std::string_view name) {
  for (const AttentionKind kind : kKinds) {
    if (AttentionKindName(kind) == name) return kind;
  }
  return std::nullopt;
}

std::string AllKindNames() {
  std::string names;
  for (const AttentionKind kind : kKinds) {
    names += StrCat(names.empty() ? "" : ", ", AttentionKindName(kind));
  }
  return names;
}

// The values that `power` may have, and the one of a config without it; unset: it is required.
struct PowerRange {
  int low, high;
  std::optional<int> fallback;

  static PowerRange Of(AttentionKind kind) {
    switch (kind) {
      case AttentionKind::kSymmetricPower:
        return {2, 64, 2};
      case AttentionKind::kPolynomialSquare:
        return {1, kMaxSquareDegree, std::nullopt};
      case AttentionKind::kAffineSquare:
        return {1, 1, 1};
      default:
        return {2, 64, 4};
    }
  }
};

// Checks conditions between fields.
void CheckRelations(const ModelConfig& config, FieldReader& fields) {
  if (!fields.status().ok()) return;
  const int d = config.emb_dim / config.num_heads;
  if (config.emb_dim % config.num_heads != 0 || d % 2 != 0) {
    fields.Fail("num_heads", StrCat("expected emb_dim / num_heads to be an even integer, found ",
                                    config.emb_dim, " / ", config.num_heads));
  }
  if (config.power % 2 != 0 && !config.has_coefficients())
    fields.Fail("power", StrCat("expected an even number, found ", config.power));
  if (config.is_random_sketch() &&
      (config.power < 4 || !std::has_single_bit(static_cast<unsigned>(config.power)))) {
    fields.Fail("power", StrCat("expected a power of two from 4 for attention \"",
                                AttentionKindName(config.attention), "\", found ", config.power));
  }
  if (config.attention == AttentionKind::kSymmetricPower) {
    if (config.power != 2) {
      fields.Fail("power",
                  StrCat("expected 2 for attention \"symmetric_power\", found ", config.power));
    }
    if (d % 8 != 0 || d > kMaxSketchSize) {
      fields.Fail("num_heads",
                  StrCat("expected emb_dim / num_heads to be a multiple of 8, at most ",
                         kMaxSketchSize, ", for attention \"symmetric_power\", found ", d));
    }
  }
  // Its sketch is a query or a key, and a constant.
  if (config.attention == AttentionKind::kAffineSquare && d >= kMaxSketchSize) {
    fields.Fail("num_heads",
                StrCat("expected emb_dim / num_heads to be at most ", kMaxSketchSize - 1,
                       " for attention \"affine_square\", found ", d));
  }
  if (config.near_power != 4)
    fields.Fail("near_power", StrCat("expected 4, found ", config.near_power));
  if (!config.sketch_kind.empty() && config.sketch_kind != "gaussian" &&
      config.sketch_kind != "srht") {
    fields.Fail("sketch_kind", StrCat("expected \"gaussian\" or \"srht\", found \"",
                                      Abbreviate(config.sketch_kind), "\""));
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

// Checks that the version has what the config uses.
void CheckVersion(const ModelConfig& config, int version, FieldReader& fields) {
  if (config.has_coefficients() && version < kThirdVersion) {
    fields.Fail("format_version",
                StrCat("expected ", kThirdVersion, " for attention \"",
                       AttentionKindName(config.attention), "\", found ", version));
  }
  for (const auto& [name, used] :
       {std::pair("decay_gate", config.decay_gate),
        std::pair("sinusoidal_positions", !config.sinusoidal_positions)}) {
    if (used && version < kSecondVersion) {
      fields.Fail(
          name, StrCat("expected format_version ", kSecondVersion, " beside it, found ", version));
    }
  }
  if (config.decay_gate && config.is_kv()) {
    fields.Fail("decay_gate", StrCat("expected false for attention \"",
                                     AttentionKindName(config.attention), "\", found true"));
  }
}

}  // namespace

Result<ModelConfig> ModelConfig::FromJson(const json& object, std::string_view source) {
  if (!object.is_object())
    return InvalidArgument(source, ": expected an object, found ", DescribeJson(object));
  FieldReader fields(object, source);
  const int version = fields.Int("format_version", kFirstVersion, kThirdVersion);
  if (const std::string found = fields.String("architecture", false); found != kArchitecture) {
    fields.Fail("architecture",
                StrCat("expected \"", kArchitecture, "\", found \"", Abbreviate(found), "\""));
  }
  ModelConfig config;
  const std::string kind_name = fields.String("attention", false);
  if (const auto kind = KindOf(kind_name)) {
    config.attention = *kind;
  } else {
    fields.Fail("attention", StrCat("expected one of ", AllKindNames(), "; found \"",
                                    Abbreviate(kind_name), "\""));
  }
  // The limits exceed any model of this kind, and no product of sizes within them overflows int64.
  config.vocab_size = fields.Int("vocab_size", 2, 1 << 22);
  config.emb_dim = fields.Int("emb_dim", 4, 65536);
  config.num_heads = fields.Int("num_heads", 1, 4096);
  config.num_layers = fields.Int("num_layers", 1, 1024);
  config.context_length = fields.Int("context_length", 1, 1 << 30, config.context_length);
  const PowerRange power = PowerRange::Of(config.attention);
  config.power = fields.Int("power", power.low, power.high, power.fallback);
  config.near_power = fields.Int("near_power", 2, 64, config.near_power);
  // A field that the kind does not use is checked too, and then ignored.
  const int sketch_size = fields.Int("sketch_size", 1, kMaxSketchSize,
                                     config.is_sketched() ? std::nullopt : std::optional(1));
  config.sketch_size = config.is_sketched() ? sketch_size : 0;
  config.grain_size = fields.Int(
      "grain_size", 1, 65536, config.is_mixed() ? std::nullopt : std::optional(config.grain_size));
  const bool performer = config.attention == AttentionKind::kPerformer;
  const int num_features =
      fields.Int("num_features", 1, 65536, performer ? std::nullopt : std::optional(1));
  config.num_features = performer ? num_features : 0;
  config.sketch_kind = fields.String("sketch_kind", true);
  config.alpha = fields.Number("alpha", -kMaxPolynomialTerm, kMaxPolynomialTerm, config.alpha);
  config.beta = fields.Number("beta", 1 / kMaxPolynomialTerm, kMaxPolynomialTerm,
                              static_cast<double>(config.emb_dim) / std::max(1, config.num_heads));
  config.head_coefficients = fields.Bool("head_coefficients", config.head_coefficients);
  config.learned_coefficients = fields.Bool("learned_coefficients", config.learned_coefficients);
  config.add_bos = fields.Bool("add_bos", config.add_bos);
  config.bos_id = fields.Int("bos_id", -1, (1 << 22) - 1, config.bos_id);
  config.eos_id = fields.Int("eos_id", -1, (1 << 22) - 1, config.eos_id);
  config.decay_gate = fields.Bool("decay_gate", config.decay_gate);
  config.sinusoidal_positions = fields.Bool("sinusoidal_positions", config.sinusoidal_positions);
  fields.CheckUnknown();
  CheckRelations(config, fields);
  CheckVersion(config, version, fields);
  if (!fields.status().ok()) return fields.status();
  return config;
}

AttentionSpec ModelConfig::attention_spec(StateFormat state_format) const {
  const bool linear = attention == AttentionKind::kLinear;
  const bool performer = attention == AttentionKind::kPerformer;
  const int whole_head = attention == AttentionKind::kSymmetricPower ? head_dim()
                         : attention == AttentionKind::kAffineSquare ? head_dim() + 1
                                                                     : 0;
  return {.kind = attention,
          .heads = num_heads,
          .head_dim = head_dim(),
          .sketch_size = is_sketched() ? sketch_size : whole_head,
          .num_features = linear      ? head_dim()
                          : performer ? num_features
                                      : 0,
          .block = grain_size,
          .power = power,
          .near_power = near_power,
          .stabilizer = attention == AttentionKind::kSoftmax ? 0
                        : linear || performer                ? 1e-6f
                                                             : 1,
          .alpha = static_cast<float>(alpha),
          .beta = static_cast<float>(beta),
          .decay_gate = decay_gate,
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
