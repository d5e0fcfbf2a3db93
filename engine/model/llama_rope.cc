#include "engine/model/llama_rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "base/bounded_json.h"
#include "engine/checkpoint/strict_json.h"
#include "kernels/angles.h"

namespace polysketch {
namespace {

using nlohmann::json;

constexpr double kFactorLimit = 1e6;
constexpr char kTrained[] = "original_max_position_embeddings";

class RopeReader {
 public:
  // trained: kTrained of the whole config; 0: it has none.
  RopeReader(const json& parameters, int head_dim, int length, int trained, double theta,
             JsonFieldReader* fields)
      : parameters_(parameters),
        head_dim_(head_dim),
        trained_(trained),
        theta_(theta),
        fields_(*fields),
        rope_{.thetas = RopeThetas(head_dim, theta), .length = length} {}

  LlamaRope Read() {
    fields_.Only("partial_rotary_factor", 1.0, "1: RoPE rotates whole heads");
    const std::string type = Type();
    if (type == "linear") {
      const double factor = fields_.Number("factor", 1, kFactorLimit);
      for (float& each : rope_.thetas) each = static_cast<float>(each / factor);
    } else if (type == "llama3") {
      Llama3();
    } else if (type == "yarn") {
      Yarn();
    } else if (type != "default") {
      fields_.Fail("rope_type", StrCat("expected default, linear, llama3 or yarn, found \"",
                                       Abbreviate(type), "\""));
    }
    return rope_;
  }

 private:
  std::string Type() {
    std::string type = fields_.String("rope_type", true);
    const std::string older = fields_.String("type", true);
    if (!older.empty() && !type.empty() && older != type) {
      fields_.Fail("type", StrCat("expected \"", Abbreviate(type), "\" as rope_type, found \"",
                                  Abbreviate(older), "\""));
    }
    if (!type.empty()) return type;
    return older.empty() ? "default" : older;
  }

  // As in transformers, the field of the whole config comes first.
  int Trained() {
    const int own = fields_.Int(kTrained, 1, kPositionsLimit, rope_.length);
    return trained_ != 0 ? trained_ : own;
  }

  // Long waves are slowed by `factor`, short ones stay, and those between are mixed.
  void Llama3() {
    const double factor = fields_.Number("factor", 1, kFactorLimit);
    const double low = fields_.Number("low_freq_factor", 1e-3, 1e6);
    const double high = fields_.Number("high_freq_factor", 1e-3, 1e6);
    const double trained = Trained();
    if (!fields_.status().ok()) return;
    if (high <= low) {
      return fields_.Fail("high_freq_factor",
                          StrCat("expected more than low_freq_factor ", low, ", found ", high));
    }
    for (float& theta : rope_.thetas) {
      const double turns = trained * theta / (2 * std::numbers::pi);  // within the trained length
      const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      theta = static_cast<float>(theta * (kept + (1 - kept) / factor));
    }
  }

  // YaRN (arXiv 2309.00071) as transformers has it: pairs that turn more than beta_fast times within
  // the trained length stay, those that turn less than beta_slow times are slowed by `factor`, and
  // those between are mixed by their place.
  void Yarn() {
    const double factor = fields_.Number("factor", 1, kFactorLimit);
    const double trained = Trained();
    const double fast = Turns("beta_fast", 32), slow = Turns("beta_slow", 1);
    // Null is false, as in transformers.
    const bool whole = fields_.Bool("truncate", parameters_.find("truncate") == parameters_.end());
    YarnScale(factor);
    if (theta_ == 1) fields_.Fail("rope_theta", "expected more than 1 with yarn, found 1");
    if (slow > fast) {
      fields_.Fail("beta_slow", StrCat("expected at most beta_fast ", fast, ", found ", slow));
    }
    if (!fields_.status().ok()) return;
    const double d = head_dim_;
    const auto pair_that_turns = [&](double times) {
      return d * std::log(trained / (times * 2 * std::numbers::pi)) / (2 * std::log(theta_));
    };
    double low = pair_that_turns(fast), high = pair_that_turns(slow);
    if (whole) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, d - 1);
    if (low == high) high += 0.001;
    for (size_t i = 0; i < rope_.thetas.size(); ++i) {
      const double slowed = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      rope_.thetas[i] = static_cast<float>(rope_.thetas[i] * (slowed / factor + 1 - slowed));
    }
    // max_position_embeddings may be the trained length, as in the models of Qwen.
    const double length = std::min(trained * factor, double{kPositionsLimit});
    rope_.length = std::max(rope_.length, static_cast<int>(length));
  }

  double Turns(const char* name, double otherwise) {
    const json* value = fields_.Find(name);
    if (value != nullptr && *value == 0) return otherwise;  // as no field, as in transformers
    return fields_.Number(name, 1e-3, 1e6, otherwise);
  }

  // attn_factor, which transformers does not read, multiplies what is inferred, as in vLLM.
  void YarnScale(double factor) {
    fields_.Only("extrapolation_factor", 1.0, "1");
    fields_.Only("apply_yarn_scaling", true, "true");
    const auto of = [&](double scale) { return 0.1 * scale * std::log(factor) + 1; };
    const double scale = fields_.Number("mscale", 0, kScaleMost, 0);
    const double all = fields_.Number("mscale_all_dim", 0, kScaleMost, 0);
    const double inferred = scale != 0 && all != 0 ? of(scale) / of(all) : of(1);
    const double times = fields_.Number("attn_factor", kScaleLeast, kScaleMost, 1);
    const double chosen =
        fields_.Number("attention_factor", kScaleLeast, kScaleMost, inferred * times);
    if (chosen < kScaleLeast || chosen > kScaleMost) {
      fields_.Fail("mscale", StrCat("expected a scale of attention in [", kScaleLeast, ", ",
                                    kScaleMost, "], found ", chosen));
    }
    rope_.scale = static_cast<float>(chosen);
  }

  const json& parameters_;  // rope_parameters or rope_scaling
  const int head_dim_, trained_;
  const double theta_;
  JsonFieldReader& fields_;  // of parameters_
  LlamaRope rope_;
};

}  // namespace

LlamaRope ReadLlamaRope(int head_dim, int length, double theta, std::string_view source,
                        JsonFieldReader* fields) {
  LlamaRope unscaled{.length = length};
  theta = fields->Number("rope_theta", 1, 1e12, theta);
  const int trained = fields->Int(kTrained, 1, kPositionsLimit, 0);
  const json* scaling = fields->Find("rope_scaling");
  const json* parameters = fields->Find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    fields->Fail("rope_parameters", "expected the values of rope_scaling beside it, found others");
  }
  const char* name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (parameters == nullptr) parameters = scaling;
  if (!fields->status().ok()) return unscaled;
  if (parameters != nullptr && !parameters->is_object()) {
    fields->Fail(name, StrCat("expected an object, found ", DescribeJson(*parameters)));
    return unscaled;
  }
  const json none = json::object();
  for (const auto& [key, value] : parameters != nullptr ? parameters->items() : none.items()) {
    if (!value.is_structured() || key == "short_factor" || key == "long_factor") continue;
    fields->Fail(StrCat(name, ".", Abbreviate(key)),
                 StrCat("expected one RoPE for all layers, found ", DescribeJson(value)));
    return unscaled;
  }
  if (parameters == nullptr) parameters = &none;
  JsonFieldReader own(*parameters, source, JsonFieldReader::Null::kMissing, StrCat(name, "."));
  theta = own.Number("rope_theta", 1, 1e12, theta);
  LlamaRope rope = unscaled;
  if (own.status().ok()) {
    rope = RopeReader(*parameters, head_dim, length, trained, theta, &own).Read();
  }
  fields->Fail(own.status());
  return rope;
}

}  // namespace polysketch
