#include "tests/testing/random_model.h"

#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/half.h"
#include "tests/testing/random.h"

namespace polysketch::testing {
namespace {

using nlohmann::json;

constexpr std::string_view kGated = "_gated", kWithoutSinusoids = "_without_sinusoids",
                           kMixture = "mixture", kMixtureOfWindows = "mixture_of_windows";

// Collects tensors for one safetensors file: the bytes of all in a row, and the header that
// describes them.
class SafetensorsWriter {
 public:
  SafetensorsWriter(DataType type, uint64_t seed) : type_(type), random_(seed) {}

  // Normal elements with the given mean and standard deviation.
  void Matrix(const std::string& name, const std::vector<int64_t>& shape, double scale) {
    Add(name, shape, 0, scale, type_);
  }
  void Vector(const std::string& name, int64_t size, double mean, double scale) {
    Add(name, {size}, mean, scale, DataType::kF32);
  }
  void Norm(const std::string& name, int64_t size) {
    Vector(name + ".scale", size, 1, 0.2);
    Vector(name + ".bias", size, 0, 0.2);
  }

  void Write(const std::filesystem::path& path) const {
    std::string header = header_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t header_bytes = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
    file << header << data_;
    PS_CHECK(file.flush().good()) << "cannot write " << path;
  }

 private:
  void Add(const std::string& name, const std::vector<int64_t>& shape, double mean, double scale,
           DataType type) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    const size_t begin = data_.size();
    data_.resize(begin + size * DataTypeBytes(type));
    char* out = data_.data() + begin;
    for (int64_t i = 0; i < size; ++i) {
      const float value = static_cast<float>(mean + scale * random_.Normal());
      if (type == DataType::kF32) {
        std::memcpy(out + 4 * i, &value, 4);
      } else {
        const uint16_t bits = type == DataType::kF16 ? FloatToF16(value) : FloatToBf16(value);
        std::memcpy(out + 2 * i, &bits, 2);
      }
    }
    const char* name_of_type = type == DataType::kF32   ? "F32"
                               : type == DataType::kF16 ? "F16"
                                                        : "BF16";
    header_[name] = {
        {"dtype", name_of_type}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }

  const DataType type_;
  Random random_;
  json header_ = json::object();
  std::string data_;
};

void AddAttention(const ModelConfig& model, const LayerConfig& config, const std::string& attn,
                  SafetensorsWriter* out) {
  const int64_t width = model.emb_dim, d = model.head_dim(), r = config.sketch_size;
  out->Matrix(attn + "qkv.weight", {width, 3 * width}, 1 / std::sqrt(width));
  out->Matrix(attn + "out.weight", {width, width}, 1 / std::sqrt(width));
  if (config.has_qk_norm()) out->Norm(attn + "qk_norm", d);
  if (config.is_mixed()) {
    out->Norm(attn + "near_q_norm", d);
    out->Norm(attn + "near_k_norm", d);
  }
  if (config.is_learned_sketch()) {
    for (int branch = 1; branch <= 2; ++branch) {
      for (int level = 0; level < ModelConfig::kSketchLevels; ++level) {
        const std::string prefix = StrCat(attn, "sketch.branch", branch, ".level", level, ".");
        const int64_t in = level == 0 ? d : r, hidden = ModelConfig::kSketchExpansion * r;
        out->Norm(prefix + "norm", in);
        out->Matrix(prefix + "up.weight", {in, hidden}, 1 / std::sqrt(in));
        out->Matrix(prefix + "down.weight", {hidden, r}, 2 / std::sqrt(hidden));
      }
    }
  }
  if (config.is_random_sketch()) {
    // One factor 1 / sqrt(r) for each product, shared by the two matrices in front of it.
    const double scale = std::pow(r, -0.25);
    int level = 0;
    for (int64_t count = config.sketch_degree(); count > 1; count /= 2, ++level) {
      out->Matrix(StrCat(attn, "sketch.level", level), {count, level == 0 ? d : r, r}, scale);
    }
  }
  if (config.attention == AttentionKind::kPerformer) {
    out->Matrix(attn + "omega", {config.num_features, d}, 1);
  }
  if (config.has_coefficients()) {
    std::vector<int64_t> shape = {config.power + 1};
    if (config.head_coefficients) shape.insert(shape.begin(), model.num_heads);
    out->Matrix(attn + "coefficients", shape, 1);
  }
  if (config.decay_gate) {  // half of a weight is left after about 5 tokens
    out->Matrix(attn + "gate.weight", {width, model.num_heads}, 1 / std::sqrt(width));
    out->Vector(attn + "gate.bias", model.num_heads, 2, 0.5);
  }
}

json LayerJson(const LayerConfig& config) {
  json object = {{"attention", AttentionKindName(config.attention)},
                 {"power", config.power},
                 {"grain_size", config.grain_size}};
  if (config.is_mixed()) object["near_power"] = config.near_power;
  if (config.is_sketched()) object["sketch_size"] = config.sketch_size;
  if (config.is_random_sketch()) object["sketch_kind"] = "gaussian";
  if (config.attention == AttentionKind::kPerformer) {
    object["num_features"] = config.num_features;
  }
  if (config.has_coefficients()) {
    object["alpha"] = config.alpha;
    object["beta"] = config.beta;
    object["head_coefficients"] = config.head_coefficients;
    object["learned_coefficients"] = config.learned_coefficients;
  }
  if (config.decay_gate) object["decay_gate"] = true;
  if (config.window > 0) {
    object["window"] = config.window;
    object["window_kind"] = config.window_kind == WindowKind::kBlocks ? "blocks" : "sliding";
    object["sinks"] = config.sinks;
  }
  return object;
}

json ConfigJson(const ModelConfig& config) {
  const bool second = config.decay_gate || !config.sinusoidal_positions;
  const bool fourth = config.window > 0 || !config.layers.empty();
  json object = {{"format_version", fourth                      ? 4
                                    : config.has_coefficients() ? 3
                                    : second                    ? 2
                                                                : 1},
                 {"architecture", "polysketchformer"},
                 {"vocab_size", config.vocab_size},
                 {"emb_dim", config.emb_dim},
                 {"num_heads", config.num_heads},
                 {"num_layers", config.num_layers},
                 {"context_length", config.context_length},
                 {"add_bos", config.add_bos},
                 {"bos_id", config.bos_id},
                 {"eos_id", config.eos_id}};
  object.update(LayerJson(config));
  if (!config.sinusoidal_positions) object["sinusoidal_positions"] = false;
  for (const LayerConfig& layer : config.layers) object["layers"].push_back(LayerJson(layer));
  return object;
}

// A config whose layers are those of `models`.
ModelConfig Mixture(const std::vector<ModelConfig>& models) {
  ModelConfig config = TinyConfig(AttentionKind::kSoftmax);
  config.num_layers = static_cast<int>(models.size());
  config.layers.assign(models.begin(), models.end());
  return config;
}

ModelConfig TinyWindow(int window, WindowKind kind, int sinks, int block) {
  ModelConfig config = TinyConfig(AttentionKind::kSoftmax);
  config.window = window;
  config.window_kind = kind;
  config.sinks = sinks;
  config.grain_size = block;
  return config;
}

}  // namespace

bool HasRecurrentLayers(const ModelConfig& config) {
  for (int i = 0; i < config.num_layers; ++i) {
    if (!config.layer(i).is_kv()) return true;
  }
  return false;
}

bool HasCaches(const ModelConfig& config) {
  for (int i = 0; i < config.num_layers; ++i) {
    if (config.layer(i).is_kv()) return true;
  }
  return false;
}

ModelConfig TinyConfig(AttentionKind kind) {
  ModelConfig config;
  config.attention = kind;
  config.vocab_size = 61;
  config.emb_dim = 16;
  config.num_heads = 2;
  config.num_layers = 2;
  config.context_length = 64;
  config.grain_size = 8;
  if (config.is_sketched()) config.sketch_size = 4;
  if (kind == AttentionKind::kPerformer) config.num_features = 12;
  if (kind == AttentionKind::kSymmetricPower) config.power = 2;
  if (config.has_coefficients()) {
    config.power = kind == AttentionKind::kAffineSquare ? 1 : 3;
    config.alpha = 0.5;
    config.beta = 4;  // queries and keys of width 8: about one in the polynomial
    config.head_coefficients = kind == AttentionKind::kPolynomialSquare;
  }
  return config;
}

std::vector<std::string> TinyModelNames() {
  std::vector<std::string> names;
  names.reserve(2 * kAttentionKinds + 3);
  for (const AttentionKind kind : kAllAttentionKinds) names.emplace_back(AttentionKindName(kind));
  for (const AttentionKind kind : kAllAttentionKinds) {
    if (!TinyConfig(kind).is_kv()) names.push_back(StrCat(AttentionKindName(kind), kGated));
  }
  names.push_back(StrCat(AttentionKindName(AttentionKind::kLearnedSketchMixed), kWithoutSinusoids));
  names.insert(names.end(), {std::string(kMixture), std::string(kMixtureOfWindows)});
  return names;
}

ModelConfig TinyConfig(const std::string& name) {
  if (name == kMixture) {
    return Mixture({TinyConfig(AttentionKind::kSoftmax), TinyWindow(11, WindowKind::kSliding, 3, 8),
                    TinyConfig("learned_sketch_mixed_gated"),
                    TinyConfig(AttentionKind::kPolynomial),
                    TinyConfig(AttentionKind::kRandomSketch)});
  }
  if (name == kMixtureOfWindows) {
    return Mixture({TinyWindow(9, WindowKind::kSliding, 2, 4),
                    TinyWindow(7, WindowKind::kBlocks, 0, 16),
                    TinyConfig(AttentionKind::kSymmetricPower)});
  }
  for (const AttentionKind kind : kAllAttentionKinds) {
    ModelConfig config = TinyConfig(kind);
    config.decay_gate = name == StrCat(AttentionKindName(kind), kGated);
    config.sinusoidal_positions = name != StrCat(AttentionKindName(kind), kWithoutSinusoids);
    if (config.decay_gate || !config.sinusoidal_positions || name == AttentionKindName(kind))
      return config;
  }
  PS_CHECK(false) << "no small model " << name;
  return {};
}

void WriteRandomModel(const std::filesystem::path& folder, const ModelConfig& config, DataType type,
                      uint64_t seed) {
  SafetensorsWriter out(type, seed);
  const int64_t width = config.emb_dim, hidden = config.mlp_hidden();
  out.Matrix("embedding.weight", {config.vocab_size, width}, 0.5);
  out.Vector("softmax_bias", config.vocab_size, 0, 0.2);
  for (int i = 0; i < config.num_layers; ++i) {
    const std::string layer = StrCat("layers.", i, ".");
    out.Norm(layer + "attn_norm", width);
    AddAttention(config, config.layer(i), layer + "attn.", &out);
    out.Norm(layer + "mlp_norm", width);
    out.Matrix(layer + "mlp.up.weight", {width, 2 * hidden}, 1 / std::sqrt(width));
    out.Matrix(layer + "mlp.down.weight", {hidden, width}, 1 / std::sqrt(hidden));
  }
  out.Norm("final_norm", width);

  std::filesystem::create_directories(folder);
  out.Write(folder / "model.safetensors");
  std::ofstream file(folder / "config.json");
  file << ConfigJson(config).dump(2) << '\n';
  PS_CHECK(file.flush().good()) << "cannot write " << folder / "config.json";
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "polysketch-test-XXXXXX").string();
  PS_CHECK(mkdtemp(name.data()) != nullptr) << "cannot create " << name;
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // a folder that remains is no reason to fail a test
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace polysketch::testing
