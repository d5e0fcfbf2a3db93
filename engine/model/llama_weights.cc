#include <string>
#include <vector>

#include "engine/model/llama_weights.h"

namespace polysketch {
namespace {

using Rows = WeightReader::Rows;

constexpr char kOutputMatrix[] = "lm_head.weight";

class LlamaReader {
 public:
  LlamaReader(const ModelSpec& spec, WeightReader* reader, ModelWeights* weights)
      : spec_(spec), frame_(spec.frame), reader_(*reader), weights_(weights) {}

  Status ReadAll() {
    const int64_t V = frame_.vocab_size, D = frame_.width;
    PS_ASSIGN_OR_RETURN(weights_->embedding,
                        reader_.ReadVocabulary("model.embed_tokens.weight", V, D));
    weights_->output = weights_->embedding;
    if (!frame_.tied) {
      PS_ASSIGN_OR_RETURN(weights_->output, reader_.ReadVocabulary(kOutputMatrix, V, D));
    }
    PS_ASSIGN_OR_RETURN(weights_->final_norm, Norm("model.norm.weight", D));
    weights_->layers.resize(spec_.layers.size());
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      PS_RETURN_IF_ERROR(
          Layer(StrCat("model.layers.", i, "."), spec_.layers[i].attention, &weights_->layers[i]));
    }
    return reader_.CheckAllRead(
        StrCat("a ", spec_.architecture, " model with ", spec_.layers.size(), " layers"),
        [this](std::string_view name) {
          // Frequencies of RoPE, which old checkpoints hold and config.json says; a copy of the embedding.
          return name.ends_with(".rotary_emb.inv_freq") || (frame_.tied && name == kOutputMatrix);
        });
  }

 private:
  Status Layer(const std::string& prefix, const AttentionSpec& attention, LayerWeights* layer) {
    const int64_t D = frame_.width, h = frame_.mlp_hidden, d = attention.head_dim;
    const int64_t q = attention.heads * d, kv = attention.key_heads() * d;
    const std::string attn = prefix + "self_attn.", mlp = prefix + "mlp.";
    PS_ASSIGN_OR_RETURN(layer->attn_norm, Norm(prefix + "input_layernorm.weight", D));
    PS_ASSIGN_OR_RETURN(layer->mlp.norm, Norm(prefix + "post_attention_layernorm.weight", D));
    layer->mlp.gate = frame_.gate;

    const auto qkv = [&](const char* what) {
      return std::vector<Rows>{{StrCat(attn, "q_proj.", what), q, d},
                               {StrCat(attn, "k_proj.", what), kv, d},
                               {StrCat(attn, "v_proj.", what), kv}};
    };
    PS_ASSIGN_OR_RETURN(layer->qkv, reader_.ReadJoined(qkv("weight"), D));
    if (frame_.qkv_bias) {
      PS_ASSIGN_OR_RETURN(layer->qkv_bias, reader_.ReadJoinedVector(qkv("bias")));
    }
    PS_ASSIGN_OR_RETURN(layer->out, Dense(attn + "o_proj.weight", q, D));
    if (frame_.out_bias) {
      PS_ASSIGN_OR_RETURN(layer->out_bias, reader_.ReadVector(attn + "o_proj.bias", D));
    }
    if (frame_.head_norms) {
      PS_ASSIGN_OR_RETURN(layer->q_norm, Norm(attn + "q_norm.weight", d, d));
      PS_ASSIGN_OR_RETURN(layer->k_norm, Norm(attn + "k_norm.weight", d, d));
    }

    const auto up_and_gate = [&](const char* what) {
      return std::vector<Rows>{{StrCat(mlp, "up_proj.", what), h},
                               {StrCat(mlp, "gate_proj.", what), h}};
    };
    PS_ASSIGN_OR_RETURN(layer->mlp.up, reader_.ReadJoined(up_and_gate("weight"), D));
    PS_ASSIGN_OR_RETURN(layer->mlp.down, Dense(mlp + "down_proj.weight", h, D));
    if (frame_.mlp_bias) {
      PS_ASSIGN_OR_RETURN(layer->mlp.up_bias, reader_.ReadJoinedVector(up_and_gate("bias")));
      PS_ASSIGN_OR_RETURN(layer->mlp.down_bias, reader_.ReadVector(mlp + "down_proj.bias", D));
    }
    return Status();
  }

  Result<const Matrix*> Dense(const std::string& name, int64_t in, int64_t out) {
    return reader_.ReadMatrix(name, in, out, MatrixLayout::kOutIn, MatrixRole::kDense);
  }

  // `paired_head`: as of Rows.
  Result<NormWeights> Norm(const std::string& name, int64_t size, int64_t paired_head = 0) {
    NormWeights norm;
    norm.kind = frame_.norm;
    norm.epsilon = frame_.epsilon;
    const Rows all[] = {{name, size, paired_head}};
    PS_ASSIGN_OR_RETURN(norm.scale, reader_.ReadJoinedVector(all));
    return norm;
  }

  const ModelSpec& spec_;
  const FrameSpec& frame_;
  WeightReader& reader_;
  ModelWeights* const weights_;
};

}  // namespace

Status ReadLlamaWeights(const ModelSpec& spec, WeightReader* reader, ModelWeights* weights) {
  return LlamaReader(spec, reader, weights).ReadAll();
}

}  // namespace polysketch
