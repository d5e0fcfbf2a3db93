// PolySketchFormer (docs/model-format.md): its config.json is ModelConfig, its tensors are named
// here.
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/model_config.h"
#include "engine/model/model_format.h"
#include "engine/model/weight_reader.h"
#include "kernels/angles.h"

namespace polysketch {
namespace {

ModelSpec SpecOf(const ModelConfig& config) {
  ModelSpec spec;
  spec.architecture = "PolySketchFormer";
  spec.model_type = "polysketchformer";
  spec.frame = {.width = config.emb_dim,
                .mlp_hidden = config.mlp_hidden(),
                .vocab_size = config.vocab_size,
                .sinusoids = config.sinusoidal_positions,
                .rope_thetas = RopeThetas(config.head_dim()),
                .output_bias = true};
  for (int i = 0; i < config.num_layers; ++i)
    spec.layers.push_back({.attention = config.attention_spec(StateFormat::kF32, i)});
  spec.context_length = config.context_length;
  spec.add_bos = config.add_bos;
  spec.bos_id = config.bos_id;
  if (config.eos_id >= 0) spec.stop_ids = {config.eos_id};
  return spec;
}

class PolysketchformerReader {
 public:
  PolysketchformerReader(const ModelConfig& config, WeightReader* reader, ModelWeights* weights)
      : config_(config), reader_(*reader), weights_(weights) {}

  Status ReadAll() {
    const int64_t V = config_.vocab_size, D = config_.emb_dim;
    // Stored [V, D]; packed as [D, V], so that one copy serves the logits and, by columns, Embed.
    PS_ASSIGN_OR_RETURN(weights_->embedding, reader_.ReadVocabulary("embedding.weight", V, D));
    weights_->output = weights_->embedding;
    PS_ASSIGN_OR_RETURN(weights_->output_bias, reader_.ReadVector("softmax_bias", V));
    PS_ASSIGN_OR_RETURN(weights_->final_norm, Norm("final_norm", D));
    weights_->layers.resize(static_cast<size_t>(config_.num_layers));
    for (int i = 0; i < config_.num_layers; ++i) {
      PS_RETURN_IF_ERROR(Layer(StrCat("layers.", i, "."), config_.layer(i), &weights_->layers[i]));
    }
    return reader_.CheckAllRead(StrCat("a ", AttentionKindName(config_.attention), " model with ",
                                       config_.num_layers, " layers"));
  }

 private:
  Status Layer(const std::string& prefix, const LayerConfig& config, LayerWeights* layer) {
    const int64_t D = config_.emb_dim, h = config_.mlp_hidden(), d = config_.head_dim();
    PS_ASSIGN_OR_RETURN(layer->attn_norm, Norm(prefix + "attn_norm", D));
    PS_ASSIGN_OR_RETURN(layer->qkv, Dense(prefix + "attn.qkv.weight", D, 3 * D));
    PS_ASSIGN_OR_RETURN(layer->out, Dense(prefix + "attn.out.weight", D, D));
    PS_ASSIGN_OR_RETURN(layer->mlp.norm, Norm(prefix + "mlp_norm", D));
    PS_ASSIGN_OR_RETURN(layer->mlp.up, Dense(prefix + "mlp.up.weight", D, 2 * h));
    PS_ASSIGN_OR_RETURN(layer->mlp.down, Dense(prefix + "mlp.down.weight", h, D));
    if (config.has_qk_norm()) {
      PS_ASSIGN_OR_RETURN(layer->q_norm, Norm(prefix + "attn.qk_norm", d));
      layer->k_norm = layer->q_norm;
    }
    if (config.is_mixed()) {
      PS_ASSIGN_OR_RETURN(layer->near_q_norm, Norm(prefix + "attn.near_q_norm", d));
      PS_ASSIGN_OR_RETURN(layer->near_k_norm, Norm(prefix + "attn.near_k_norm", d));
    }
    if (config.is_learned_sketch()) PS_RETURN_IF_ERROR(Network(prefix, config, layer));
    if (config.is_random_sketch()) PS_RETURN_IF_ERROR(Random(prefix, config, layer));
    if (config.attention == AttentionKind::kPerformer) {
      PS_ASSIGN_OR_RETURN(layer->omega,
                          reader_.ReadMatrix(prefix + "attn.omega", d, config.num_features,
                                             MatrixLayout::kOutIn, MatrixRole::kExact));
    }
    if (config.has_coefficients()) {
      PS_ASSIGN_OR_RETURN(layer->coefficients, Coefficients(prefix + "attn.coefficients", config));
    }
    if (config.decay_gate) {
      const int64_t H = config_.num_heads;
      PS_ASSIGN_OR_RETURN(layer->gate,
                          Dense(prefix + "attn.gate.weight", D, H, MatrixRole::kExact));
      PS_ASSIGN_OR_RETURN(layer->gate_bias, reader_.ReadVector(prefix + "attn.gate.bias", H));
    }
    return Status();
  }

  Result<const float*> Coefficients(const std::string& name, const LayerConfig& config) {
    const int64_t heads = config_.num_heads, terms = config.power + 1;
    std::vector<int64_t> shape = {terms};
    if (config.head_coefficients) shape.insert(shape.begin(), heads);
    PS_ASSIGN_OR_RETURN(const std::vector<float> stored, reader_.ReadFloats(name, shape));
    std::vector<float> of_heads;
    while (std::ssize(of_heads) < heads * terms) {
      of_heads.insert(of_heads.end(), stored.begin(), stored.end());
    }
    if (config.attention == AttentionKind::kAffineSquare) {
      for (int64_t h = 0; h < heads; ++h) FoldAffineTerms(config, &of_heads[2 * h]);
    }
    return reader_.KeepVector(of_heads);
  }

  // Makes (c, f) of (a_0, a_1): a_0 + a_1 (x + alpha) / beta = c + f x.
  static void FoldAffineTerms(const LayerConfig& config, float* terms) {
    const double factor = terms[1] / config.beta;
    terms[0] = static_cast<float>(terms[0] + factor * config.alpha);
    terms[1] = static_cast<float>(factor);
  }

  Status Network(const std::string& prefix, const LayerConfig& config, LayerWeights* layer) {
    PS_ASSIGN_OR_RETURN(layer->network,
                        reader_.ReadSketchNetwork(prefix + "attn.sketch.", config_.head_dim(),
                                                  config.sketch_size, MatrixLayout::kInOut));
    return Status();
  }

  Status Random(const std::string& prefix, const LayerConfig& config, LayerWeights* layer) {
    const int64_t r = config.sketch_size;
    for (int count = config.sketch_degree(); count >= 2; count /= 2) {
      const size_t level = layer->random_matrices.size();
      const int64_t in = level == 0 ? config_.head_dim() : r;
      PS_ASSIGN_OR_RETURN(
          std::vector<const Matrix*> matrices,
          reader_.ReadMatrices(StrCat(prefix, "attn.sketch.level", level), count, in, r));
      layer->random_matrices.push_back(std::move(matrices));
    }
    for (const auto& level : layer->random_matrices) layer->random_levels.emplace_back(level);
    layer->random_sketch = {layer->random_levels, config_.head_dim(), config.sketch_size};
    return Status();
  }

  Result<const Matrix*> Dense(const std::string& name, int64_t in, int64_t out,
                              MatrixRole role = MatrixRole::kDense) {
    return reader_.ReadMatrix(name, in, out, MatrixLayout::kInOut, role);
  }

  Result<NormWeights> Norm(const std::string& name, int64_t size) {
    NormWeights norm;
    PS_ASSIGN_OR_RETURN(norm.scale, reader_.ReadVector(name + ".scale", size));
    PS_ASSIGN_OR_RETURN(norm.bias, reader_.ReadVector(name + ".bias", size));
    return norm;
  }

  const ModelConfig& config_;
  WeightReader& reader_;
  ModelWeights* const weights_;
};

}  // namespace

Result<ModelDefinition> ReadPolysketchformer(const nlohmann::json& config, std::string_view source,
                                             std::string_view /*architecture*/) {
  PS_ASSIGN_OR_RETURN(const ModelConfig read, ModelConfig::FromJson(config, source));
  return ModelDefinition{SpecOf(read), [read](WeightReader* reader, ModelWeights* weights) {
                           return PolysketchformerReader(read, reader, weights).ReadAll();
                         }};
}

}  // namespace polysketch
