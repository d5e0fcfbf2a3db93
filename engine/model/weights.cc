#include "engine/model/weights.h"

#include <utility>

#include "kernels/quantize.h"

namespace polysketch {
namespace {

DataType ToDataType(TensorType type) {
  switch (type) {
    case TensorType::kF16:
      return DataType::kF16;
    case TensorType::kBF16:
      return DataType::kBf16;
    case TensorType::kI8:
      return DataType::kQ8;
    case TensorType::kU8:
      return DataType::kQ4;
    default:
      return DataType::kF32;  // Checkpoint::Get lets no other type through
  }
}

// Minimum number of elements of a matrix in q4. A smaller matrix is read from the first-level cache
// even with 8 bits an element, so that 4 bits would save no reads from memory.
constexpr int64_t kMinQ4 = 32 * 1024;

}  // namespace

// Reads tensors one after the other, packs them and releases their pages.
class ModelWeights::Loader {
 public:
  Loader(Checkpoint* checkpoint, const ModelConfig& config, Backend* backend,
         std::optional<DataType> type, ModelWeights* weights)
      : checkpoint_(checkpoint),
        config_(config),
        backend_(backend),
        type_(type),
        // The embedding, for which 4 bits cost most accuracy, and the sketch networks, which are
        // small, keep 8 bits (docs/results.md, "What a format costs in quality").
        fine_type_(type == DataType::kQ4 ? DataType::kQ8 : type),
        weights_(weights) {}

  Status LoadAll() {
    const int64_t V = config_.vocab_size, D = config_.emb_dim;
    // Stored [V, D]; packed as [D, V], so that one copy serves the logits and, by columns, Embed.
    PS_ASSIGN_OR_RETURN(weights_->embedding_,
                        GetMatrix("embedding.weight", V, D, /*transpose=*/true, fine_type_));
    PS_ASSIGN_OR_RETURN(weights_->softmax_bias_, Vector("softmax_bias", V));
    PS_ASSIGN_OR_RETURN(weights_->final_norm_, Norm("final_norm", D));
    weights_->layers_.resize(config_.num_layers);
    for (int i = 0; i < config_.num_layers; ++i) {
      PS_RETURN_IF_ERROR(Layer(StrCat("layers.", i, "."), &weights_->layers_[i]));
    }
    const std::vector<std::string> unused = checkpoint_->UnusedTensors();
    if (unused.empty()) return Status();
    return InvalidArgument("checkpoint: expected only the tensors of a ",
                           AttentionKindName(config_.attention), " model with ", config_.num_layers,
                           " layers, found ", unused.size(), " more, the first \"", unused.front(),
                           "\"");
  }

 private:
  Status Layer(const std::string& prefix, LayerWeights* layer) {
    const int64_t D = config_.emb_dim, h = config_.mlp_hidden(), d = config_.head_dim();
    PS_ASSIGN_OR_RETURN(layer->attn_norm, Norm(prefix + "attn_norm", D));
    PS_ASSIGN_OR_RETURN(layer->qkv, Dense(prefix + "attn.qkv.weight", D, 3 * D));
    PS_ASSIGN_OR_RETURN(layer->out, Dense(prefix + "attn.out.weight", D, D));
    PS_ASSIGN_OR_RETURN(layer->mlp_norm, Norm(prefix + "mlp_norm", D));
    PS_ASSIGN_OR_RETURN(layer->up, Dense(prefix + "mlp.up.weight", D, 2 * h));
    PS_ASSIGN_OR_RETURN(layer->down, Dense(prefix + "mlp.down.weight", h, D));
    if (config_.has_qk_norm()) {
      PS_ASSIGN_OR_RETURN(layer->qk_norm, Norm(prefix + "attn.qk_norm", d));
    }
    if (config_.is_mixed()) {
      PS_ASSIGN_OR_RETURN(layer->near_q_norm, Norm(prefix + "attn.near_q_norm", d));
      PS_ASSIGN_OR_RETURN(layer->near_k_norm, Norm(prefix + "attn.near_k_norm", d));
    }
    if (config_.is_learned_sketch()) PS_RETURN_IF_ERROR(Network(prefix, layer));
    if (config_.is_random_sketch()) PS_RETURN_IF_ERROR(Random(prefix, layer));
    if (config_.attention == AttentionKind::kPerformer) {
      PS_ASSIGN_OR_RETURN(layer->omega, GetMatrix(prefix + "attn.omega", config_.num_features, d,
                                                  /*transpose=*/true, DataType::kF32));
    }
    if (config_.has_coefficients()) {
      PS_ASSIGN_OR_RETURN(layer->coefficients, Coefficients(prefix + "attn.coefficients"));
    }
    if (config_.decay_gate) {
      const int64_t H = config_.num_heads;
      PS_ASSIGN_OR_RETURN(layer->gate, Dense(prefix + "attn.gate.weight", D, H, DataType::kF32));
      PS_ASSIGN_OR_RETURN(layer->gate_bias, Vector(prefix + "attn.gate.bias", H));
    }
    return Status();
  }

  Result<const float*> Coefficients(const std::string& name) {
    const int64_t heads = config_.num_heads, terms = config_.power + 1;
    std::vector<int64_t> shape = {terms};
    if (config_.head_coefficients) shape.insert(shape.begin(), heads);
    PS_ASSIGN_OR_RETURN(const std::vector<float> stored, Floats(name, shape));
    std::vector<float> of_heads;
    while (std::ssize(of_heads) < heads * terms) {
      of_heads.insert(of_heads.end(), stored.begin(), stored.end());
    }
    if (config_.attention == AttentionKind::kAffineSquare) {
      for (int64_t h = 0; h < heads; ++h) FoldAffineTerms(&of_heads[2 * h]);
    }
    return KeepVector(of_heads);
  }

  // Makes (c, f) of (a_0, a_1): a_0 + a_1 (x + alpha) / beta = c + f x.
  void FoldAffineTerms(float* terms) const {
    const double factor = terms[1] / config_.beta;
    terms[0] = static_cast<float>(terms[0] + factor * config_.alpha);
    terms[1] = static_cast<float>(factor);
  }

  Status Network(const std::string& prefix, LayerWeights* layer) {
    const int64_t r = config_.sketch_size, hidden = ModelConfig::kSketchExpansion * r;
    layer->network.input = config_.head_dim();
    layer->network.size = config_.sketch_size;
    for (int b = 0; b < 2; ++b) {
      for (int l = 0; l < ModelConfig::kSketchLevels; ++l) {
        const std::string name = StrCat(prefix, "attn.sketch.branch", b + 1, ".level", l, ".");
        const int64_t in = l == 0 ? config_.head_dim() : r;
        SketchNetwork::Level& level = layer->network.branch[b][l];
        PS_ASSIGN_OR_RETURN(level.norm, Norm(name + "norm", in));
        PS_ASSIGN_OR_RETURN(level.up, Dense(name + "up.weight", in, hidden, fine_type_));
        PS_ASSIGN_OR_RETURN(level.down, Dense(name + "down.weight", hidden, r, fine_type_));
      }
    }
    return Status();
  }

  Status Random(const std::string& prefix, LayerWeights* layer) {
    const int64_t r = config_.sketch_size;
    for (int count = config_.sketch_degree(); count >= 2; count /= 2) {
      const size_t level = layer->random_matrices.size();
      const int64_t in = level == 0 ? config_.head_dim() : r;
      const std::string name = StrCat(prefix, "attn.sketch.level", level);
      PS_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_->Get(name, {count, in, r}));
      std::vector<const Matrix*> matrices;
      const int64_t matrix_bytes = in * r * static_cast<int64_t>(TensorTypeBytes(tensor.type));
      for (int j = 0; j < count; ++j) {
        const HostMatrix source{tensor.data + j * matrix_bytes, ToDataType(tensor.type), in, r};
        matrices.push_back(Keep(backend_->PackMatrix(source, false, DataType::kF32)));
      }
      checkpoint_->Release(tensor);
      layer->random_matrices.push_back(std::move(matrices));
    }
    for (const auto& level : layer->random_matrices) layer->random_levels.emplace_back(level);
    layer->random_sketch = {layer->random_levels, config_.head_dim(), config_.sketch_size};
    return Status();
  }

  Result<const Matrix*> Dense(const std::string& name, int64_t in, int64_t out) {
    return Dense(name, in, out, in * out < kMinQ4 ? fine_type_ : type_);
  }
  Result<const Matrix*> Dense(const std::string& name, int64_t in, int64_t out,
                              std::optional<DataType> type) {
    return GetMatrix(name, in, out, /*transpose=*/false, type);
  }

  // rows, cols: as stored.
  Result<const Matrix*> GetMatrix(const std::string& name, int64_t rows, int64_t cols,
                                  bool transpose, std::optional<DataType> type) {
    const TensorType stored = checkpoint_->TypeOf(name).value_or(TensorType::kF32);
    HostMatrix source{nullptr, ToDataType(stored), rows, cols};
    std::optional<TensorView> scales;
    TensorView values;
    if (stored == TensorType::kI8) {
      source.scale_rows = transpose;  // the scales belong to the columns of the product
      PS_ASSIGN_OR_RETURN(values, checkpoint_->Get(name, {rows, cols}, stored));
      PS_ASSIGN_OR_RETURN(
          scales, checkpoint_->Get(name + ".scale", {transpose ? rows : cols}, TensorType::kF32));
    } else if (stored == TensorType::kU8 && !transpose) {
      const int64_t groups = Q4Groups(rows);
      PS_ASSIGN_OR_RETURN(values, checkpoint_->Get(name, {groups * kQ4Group / 2, cols}, stored));
      PS_ASSIGN_OR_RETURN(scales,
                          checkpoint_->Get(name + ".scale", {groups, cols}, TensorType::kBF16));
    } else {
      PS_ASSIGN_OR_RETURN(values, checkpoint_->Get(name, {rows, cols}));
    }
    source.data = values.data;
    if (scales) source.scales = scales->data;
    const DataType packed = type.value_or(source.type);
    const int64_t in = transpose ? cols : rows;
    if (IsQuantized(packed) && in > kQuantLongest) {
      return InvalidArgument("tensor ", name, ": expected at most ", kQuantLongest,
                             " inputs for 8-bit products, found ", in);
    }
    const Matrix* matrix = Keep(backend_->PackMatrix(source, transpose, packed));
    checkpoint_->Release(values);
    if (scales) checkpoint_->Release(*scales);
    return matrix;
  }

  const Matrix* Keep(std::unique_ptr<const Matrix> matrix) {
    weights_->bytes_ += matrix->bytes();
    weights_->parameters_ += matrix->in() * matrix->out();
    weights_->matrices_.push_back(std::move(matrix));
    return weights_->matrices_.back().get();
  }

  Result<const float*> Vector(const std::string& name, int64_t size) {
    PS_ASSIGN_OR_RETURN(const std::vector<float> values, Floats(name, {size}));
    return KeepVector(values);
  }

  // A tensor as it is stored.
  Result<std::vector<float>> Floats(const std::string& name, const std::vector<int64_t>& shape) {
    PS_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint_->Get(name, shape));
    std::vector<float> values(static_cast<size_t>(tensor.size()));
    tensor.ReadFloats(0, values);
    checkpoint_->Release(tensor);
    weights_->parameters_ += std::ssize(values);
    return values;
  }

  const float* KeepVector(const std::vector<float>& values) {
    weights_->bytes_ += std::ssize(values) * static_cast<int64_t>(sizeof(float));
    weights_->vectors_.emplace_back(backend_, values.size());
    weights_->vectors_.back().CopyIn(values.data());
    return weights_->vectors_.back().data();
  }

  Result<NormWeights> Norm(const std::string& name, int64_t size) {
    NormWeights norm;
    PS_ASSIGN_OR_RETURN(norm.scale, Vector(name + ".scale", size));
    PS_ASSIGN_OR_RETURN(norm.bias, Vector(name + ".bias", size));
    return norm;
  }

  Checkpoint* checkpoint_;
  const ModelConfig& config_;
  Backend* backend_;
  const std::optional<DataType> type_;  // of the other dense matrices
  // Of the embedding and the sketch networks.
  const std::optional<DataType> fine_type_;
  ModelWeights* weights_;
};

Result<std::unique_ptr<ModelWeights>> ModelWeights::Load(Checkpoint* checkpoint,
                                                         const ModelConfig& config,
                                                         Backend* backend,
                                                         std::optional<DataType> type) {
  auto weights = std::make_unique<ModelWeights>();
  PS_RETURN_IF_ERROR(Loader(checkpoint, config, backend, type, weights.get()).LoadAll());
  return weights;
}

}  // namespace polysketch
