#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/llama_weights.h"
#include "engine/model/residual_rotation.h"

namespace polysketch {
namespace {

using Rows = WeightReader::Rows;
using Edit = WeightReader::Edit;

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kOutputMatrix[] = "lm_head.weight";

class LlamaReader {
 public:
  LlamaReader(const ModelSpec& spec, WeightReader* reader, ModelWeights* weights)
      : spec_(spec), frame_(spec.frame), reader_(*reader), weights_(weights) {
    // A LayerNorm subtracts the mean of the channels, which a rotation would change.
    if (reader_.rotate_residual() && frame_.norm == NormKind::kRms) rotation_.emplace(frame_.width);
  }

  Status ReadAll() {
    const int64_t V = frame_.vocab_size, D = frame_.width;
    if (frame_.tied) {
      const int64_t shape[] = {V, D};
      PS_RETURN_IF_ERROR(reader_.CheckCopy(kOutputMatrix, kEmbedding, shape));
    }
    PS_ASSIGN_OR_RETURN(weights_->embedding,
                        reader_.ReadVocabulary(kEmbedding, V, D, OfReader({})));
    PS_ASSIGN_OR_RETURN(const StreamNorm norm, NormOfStream("model.norm", frame_.scales.logits));
    weights_->final_norm = norm.norm;
    weights_->output = weights_->embedding;
    if (!frame_.tied) {
      PS_ASSIGN_OR_RETURN(weights_->output,
                          reader_.ReadVocabulary(kOutputMatrix, V, D, OfReader(norm.scale)));
    } else if (rotation_) {
      const size_t bytes = static_cast<size_t>(D * D) * sizeof(float);
      PS_RETURN_IF_ERROR(WeightReader::CheckTemporaryMemory(kEmbedding, bytes));
      weights_->final_rotation =
          reader_.KeepMatrix(rotation_->Conjugate(norm.scale, reader_.pool()), D, D);
    }
    weights_->layers.resize(spec_.layers.size());
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      PS_RETURN_IF_ERROR(
          Layer(StrCat("model.layers.", i, "."), spec_.layers[i], &weights_->layers[i]));
    }
    return reader_.CheckAllRead(
        StrCat("a ", spec_.architecture, " model with ", spec_.layers.size(), " layers"),
        // Frequencies of RoPE, which old checkpoints hold and config.json says.
        [](std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); });
  }

 private:
  // A norm of the residual stream, and the scale that the matrices after it take over.
  struct StreamNorm {
    NormWeights norm;
    std::vector<float> scale;  // empty: none; the norm has it
  };

  Status Layer(const std::string& prefix, const LayerSpec& spec, LayerWeights* layer) {
    const AttentionSpec& attention = spec.attention;
    PS_ASSIGN_OR_RETURN(const StreamNorm attn_norm, NormOfStream(prefix + "input_layernorm"));
    PS_ASSIGN_OR_RETURN(const StreamNorm mlp_norm,
                        NormOfStream(prefix + "post_attention_layernorm"));
    layer->attn_norm = attn_norm.norm;
    layer->mlp.norm = mlp_norm.norm;
    PS_RETURN_IF_ERROR(Attention(prefix + "self_attn.", spec, attn_norm, layer));
    if (attention.decay_gate) {
      const bool far = attention.far_part();
      PS_RETURN_IF_ERROR(DecayGate(prefix + (far ? "self_attn.far_gate." : "self_attn.g_proj."),
                                   attention, attn_norm, far || frame_.qkv_bias, layer));
    }
    if (attention.far_part()) PS_RETURN_IF_ERROR(FarPart(prefix + "self_attn.", attention, layer));
    return Mlp(prefix + "mlp.", mlp_norm, &layer->mlp);
  }

  Status Attention(const std::string& attn, const LayerSpec& spec, const StreamNorm& norm,
                   LayerWeights* layer) {
    const AttentionSpec& attention = spec.attention;
    const int64_t D = frame_.width, d = attention.head_dim;
    const int64_t q = attention.heads * d, kv = attention.key_heads() * d;
    const auto qkv = [&](const char* what) {
      return std::vector<Rows>{{StrCat(attn, "q_proj.", what), q, d},
                               {StrCat(attn, "k_proj.", what), kv, d},
                               {StrCat(attn, "v_proj.", what), kv}};
    };
    const float of_queries = QueryScale(spec);
    const float scale = frame_.head_norms ? 1 : of_queries;  // of the first rows
    PS_ASSIGN_OR_RETURN(layer->qkv, reader_.ReadJoined(qkv("weight"), D,
                                                       Scaled(scale, OfReader(norm.scale),
                                                              static_cast<size_t>(q * D))));
    if (frame_.qkv_bias) {
      PS_ASSIGN_OR_RETURN(
          layer->qkv_bias,
          reader_.ReadJoinedVector(qkv("bias"), Scaled(scale, {}, static_cast<size_t>(q))));
    }
    PS_ASSIGN_OR_RETURN(layer->out, Writer(attn + "o_proj.weight", q));
    if (frame_.out_bias) {
      PS_ASSIGN_OR_RETURN(layer->out_bias, BiasOfWriter(attn + "o_proj.bias"));
    }
    if (frame_.head_norms) {
      PS_ASSIGN_OR_RETURN(layer->q_norm, Norm(attn + "q_norm", d, d, of_queries));
      PS_ASSIGN_OR_RETURN(layer->k_norm, Norm(attn + "k_norm", d, d));
    }
    return Status();
  }

  // What the queries of a layer are multiplied by, in the place of scores and rotations.
  float QueryScale(const LayerSpec& spec) const {
    const float of_rope = spec.rope ? frame_.rope_scale : 1;
    return frame_.scales.queries * of_rope * of_rope;
  }

  Status DecayGate(const std::string& name, const AttentionSpec& attention, const StreamNorm& norm,
                   bool bias, LayerWeights* layer) {
    const Rows gate[] = {{name + "weight", attention.key_heads()}};
    PS_ASSIGN_OR_RETURN(layer->gate, reader_.ReadJoined(gate, frame_.width, OfReader(norm.scale),
                                                        MatrixRole::kExact));
    if (bias) {
      PS_ASSIGN_OR_RETURN(layer->gate_bias,
                          reader_.ReadVector(name + "bias", attention.key_heads()));
    }
    return Status();
  }

  Status FarPart(const std::string& attn, const AttentionSpec& attention, LayerWeights* layer) {
    const int64_t r = attention.far_size;
    const bool sketched = attention.far_kind == AttentionKind::kLearnedSketch;
    const Edit paired = PairedColumns(attention.head_dim);
    if (sketched) {
      PS_ASSIGN_OR_RETURN(layer->network, reader_.ReadSketchNetwork(
                                              attn + "far_sketch.", attention.head_dim,
                                              attention.far_size, MatrixLayout::kOutIn, paired));
    }
    const auto maps = [&](const std::string& name, int64_t heads) {
      return sketched ? FarMaps(name, heads, r, r, {})
                      : FarMaps(name, heads, r, attention.head_dim, paired);
    };
    PS_ASSIGN_OR_RETURN(layer->far_q, maps(attn + "far_q.weight", attention.heads));
    PS_ASSIGN_OR_RETURN(layer->far_q_bias,
                        reader_.ReadVector(attn + "far_q.bias", attention.heads * r));
    if (attention.far_kind == AttentionKind::kLinear) {
      PS_ASSIGN_OR_RETURN(layer->far_q_factors,
                          reader_.ReadVector(attn + "far_q.scale", attention.heads));
    }
    PS_ASSIGN_OR_RETURN(layer->far_k, maps(attn + "far_k.weight", attention.key_heads()));
    PS_ASSIGN_OR_RETURN(layer->far_k_bias,
                        reader_.ReadVector(attn + "far_k.bias", attention.key_heads() * r));
    return Status();
  }

  Status Mlp(const std::string& mlp, const StreamNorm& norm, MlpWeights* weights) {
    const int64_t D = frame_.width, h = frame_.mlp_hidden;
    weights->gate = frame_.gate;
    // Without a gate the matrices have the names of Starcoder2.
    const bool gated = frame_.gate != GateKind::kUngatedGelu;
    const std::string down = mlp + (gated ? "down_proj." : "c_proj.");
    const auto up = [&](const char* what) {
      if (!gated) return std::vector<Rows>{{StrCat(mlp, "c_fc.", what), h}};
      return std::vector<Rows>{{StrCat(mlp, "up_proj.", what), h},
                               {StrCat(mlp, "gate_proj.", what), h}};
    };
    PS_ASSIGN_OR_RETURN(weights->up, reader_.ReadJoined(up("weight"), D, OfReader(norm.scale)));
    PS_ASSIGN_OR_RETURN(weights->down, Writer(down + "weight", h));
    if (frame_.mlp_bias) {
      PS_ASSIGN_OR_RETURN(weights->up_bias, reader_.ReadJoinedVector(up("bias")));
      PS_ASSIGN_OR_RETURN(weights->down_bias, BiasOfWriter(down + "bias"));
    }
    return Status();
  }

  // Maps [heads * r, width] as [heads, width, r].
  Result<const float*> FarMaps(const std::string& name, int64_t heads, int64_t r, int64_t width,
                               const Edit& edit) {
    const int64_t shape[] = {heads * r, width};
    PS_ASSIGN_OR_RETURN(std::vector<float> stored, reader_.ReadFloats(name, shape));
    if (edit) edit(stored);
    std::vector<float> maps(stored.size());
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t j = 0; j < r; ++j) {
        for (int64_t i = 0; i < width; ++i) {
          maps[(h * width + i) * r + j] = stored[(h * r + j) * width + i];
        }
      }
    }
    return reader_.KeepVector(maps);
  }

  // Brings the columns of a matrix of `width` columns to the order of a head's elements in the
  // activations, that of WeightReader::Rows.
  static Edit PairedColumns(int64_t width) {
    return [width](std::span<float> values) {
      std::vector<float> row(static_cast<size_t>(width));
      for (size_t first = 0; first < values.size(); first += row.size()) {
        const std::span<float> stored = values.subspan(first, row.size());
        for (int64_t i = 0; i < width; ++i) {
          row[i < width / 2 ? 2 * i : 2 * (i - width / 2) + 1] = stored[i];
        }
        std::ranges::copy(row, stored.begin());
      }
    };
  }

  // `factor`: of the norm's output.
  Result<StreamNorm> NormOfStream(const std::string& name, float factor = 1) {
    StreamNorm result;
    if (rotation_) {
      const int64_t shape[] = {frame_.width};
      PS_ASSIGN_OR_RETURN(result.scale, reader_.ReadFloats(name + ".weight", shape));
      if (const Edit edit = Scaled(factor)) edit(result.scale);
      result.norm.kind = frame_.norm;
      result.norm.epsilon = frame_.epsilon;
      result.norm.scale = reader_.KeepVector(std::vector<float>(result.scale.size(), 1.0f));
    } else {
      PS_ASSIGN_OR_RETURN(result.norm, Norm(name, frame_.width, 0, factor));
    }
    // The stream is divided by the embedding's factor.
    result.norm.epsilon /= frame_.scales.embedding * frame_.scales.embedding;
    return result;
  }

  // Multiplies the elements, or the first `count` of them, by `factor`, and does what `edit` does.
  static Edit Scaled(float factor, Edit edit = {}, size_t count = SIZE_MAX) {
    if (factor == 1) return edit;
    return [factor, edit, count](std::span<float> values) {
      for (float& value : values.first(std::min(count, values.size()))) value *= factor;
      if (edit) edit(values);
    };
  }

  // What the rotation changes in a matrix [out, D] that reads the residual stream, or a vocabulary
  // of its rows. `scale` is used when the edit is.
  Edit OfReader(std::span<const float> scale) const {
    if (!rotation_) return {};
    return [this, scale](std::span<float> matrix) {
      rotation_->RotateRows(matrix, scale, reader_.pool());
    };
  }

  // A matrix [in, D] that writes to the residual stream.
  Result<const Matrix*> Writer(const std::string& name, int64_t in) {
    const int64_t D = frame_.width;
    const Edit edit = OfWriter();
    if (!edit) return reader_.ReadMatrix(name, in, D, MatrixLayout::kOutIn, MatrixRole::kDense);
    const Rows all[] = {{name, D}};
    return reader_.ReadJoined(all, in, edit);
  }

  // What changes in a matrix [in, D], or a bias, that writes to the residual stream.
  Edit OfWriter() const {
    const Edit rotate = [this](std::span<float> columns) {
      rotation_->RotateColumns(columns, reader_.pool());
    };
    return Scaled(frame_.scales.residual / frame_.scales.embedding, rotation_ ? rotate : Edit());
  }

  Result<const float*> BiasOfWriter(const std::string& name) {
    return reader_.ReadVector(name, frame_.width, OfWriter());
  }

  // The norm of that name. `paired_head`: as of Rows. `factor`: of its output.
  Result<NormWeights> Norm(const std::string& name, int64_t size, int64_t paired_head = 0,
                           float factor = 1) {
    NormWeights norm;
    norm.kind = frame_.norm;
    norm.epsilon = frame_.epsilon;
    const Rows all[] = {{name + ".weight", size, paired_head}};
    PS_ASSIGN_OR_RETURN(norm.scale, reader_.ReadJoinedVector(all, Scaled(factor)));
    if (frame_.norm == NormKind::kLayer) {
      PS_ASSIGN_OR_RETURN(norm.bias, reader_.ReadVector(name + ".bias", size, Scaled(factor)));
    }
    return norm;
  }

  const ModelSpec& spec_;
  const FrameSpec& frame_;
  WeightReader& reader_;
  ModelWeights* const weights_;
  std::optional<ResidualRotation> rotation_;
};

}  // namespace

Status ReadLlamaWeights(const ModelSpec& spec, WeightReader* reader, ModelWeights* weights) {
  return LlamaReader(spec, reader, weights).ReadAll();
}

}  // namespace polysketch
