// A model folder: config.json, an index with its shards, or the files of a chat template. An error
// that names the file, or a configuration and tensors that fit each other.
//
// The first byte: 'c', a config.json follows; 'g', a generation_config.json. 'f' and 't', a folder
// follows: parts between bytes 0x1E are the files. f: the index and the headers of the shards
// a.safetensors, b.safetensors and model.safetensors, whose data are 64 bytes. t:
// tokenizer_config.json and chat_template.jinja.
#include "engine/checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/checkpoint/model_config.h"
#include "engine/model/model_format.h"
#include "engine/sampler/generation_config.h"
#include "engine/sampler/sampling_params.h"
#include "server/chat/chat_template.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/rpc/fake_tokenizer.h"

namespace polysketch {
namespace {

void CheckConfig(std::string_view text) {
  const auto config = ModelConfig::Parse(text, "config.json");
  if (!config.ok()) return fuzz::CheckError(config.status());
  PS_CHECK(config->vocab_size > 0 && config->num_layers > 0 && config->num_heads > 0);
  PS_CHECK(config->emb_dim % config->num_heads == 0 && config->head_dim() > 0);
  PS_CHECK(config->mlp_hidden() > 0);
  PS_CHECK(config->layers.empty() || std::ssize(config->layers) == config->num_layers);
  for (int i = 0; i < config->num_layers; ++i) {
    const LayerConfig& layer = config->layer(i);
    PS_CHECK(layer.is_sketched() == (layer.sketch_size > 0) && layer.grain_size > 0);
  }
  PS_CHECK(config->bos_id >= -1 && config->bos_id < config->vocab_size);
  PS_CHECK(config->eos_id >= -1 && config->eos_id < config->vocab_size);
  // No product of the sizes that the model multiplies overflows.
  const AttentionSpec spec = config->attention_spec(StateFormat::kF32);
  PS_CHECK(spec.heads * spec.head_dim == config->emb_dim);
  int64_t weights = 0;
  for (const int64_t factor : {int64_t{config->vocab_size}, int64_t{config->mlp_hidden()}}) {
    int64_t matrix = 0;
    PS_CHECK(!__builtin_mul_overflow(factor, int64_t{config->emb_dim}, &matrix));
    PS_CHECK(!__builtin_mul_overflow(matrix, int64_t{4} * config->num_layers, &matrix));
    PS_CHECK(!__builtin_add_overflow(weights, matrix, &weights));
  }
}

// A config.json of any format.
void CheckDefinition(std::string_view text) {
  const auto model = ParseModelDefinition(text, "config.json");
  if (!model.ok()) return fuzz::CheckError(model.status());
  const ModelSpec& spec = model->spec;
  PS_CHECK(!spec.layers.empty());
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    PS_CHECK(attention.heads > 0 && attention.heads % attention.key_heads() == 0);
    PS_CHECK(attention.head_dim > 0 && attention.head_dim % 2 == 0 && attention.block > 0);
    PS_CHECK(std::ssize(spec.frame.rope_thetas) == attention.head_dim / 2);
    PS_CHECK(attention.window >= 0 && attention.window <= 1 << 28 && attention.sinks >= 0);
    PS_CHECK(attention.window == 0 || attention.kv_cache());
  }
  for (const float theta : spec.frame.rope_thetas) PS_CHECK(theta > 0 && theta <= 1) << theta;
  PS_CHECK(spec.frame.rope_scale > 0 && spec.frame.rope_scale <= 1e4f);
  PS_CHECK(spec.frame.width > 0 && spec.frame.mlp_hidden > 0 && spec.context_limit >= 0);
  PS_CHECK(spec.bos_id >= -1 && spec.bos_id < spec.frame.vocab_size);
  for (const int32_t id : spec.stop_ids) PS_CHECK(id >= 0 && id < spec.frame.vocab_size) << id;
}

void CheckGenerationConfig(std::string_view text) {
  constexpr int kVocabSize = 100;
  const auto config = GenerationConfig::Parse(text, "generation_config.json", kVocabSize);
  if (!config.ok()) return fuzz::CheckError(config.status());
  PS_CHECK(ValidateSampling(config->sampling, kVocabSize).ok());
  for (const int32_t id : config->eos_ids) PS_CHECK(id >= 0 && id < kVocabSize) << id;
}

std::string Shard(std::string_view header) {
  std::string bytes(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes + std::string(header) + std::string(64, '\x3f');
}

// Writes the parts of `bytes` as the files of a folder; an empty part is no file.
std::string WriteFolder(std::string_view bytes, std::initializer_list<const char*> names) {
  static const fuzz::TemporaryFolder folder;
  for (const std::string name : names) {
    const std::string path = folder.path() / name;
    unlink(path.c_str());
    const size_t end = std::min(bytes.find('\x1E'), bytes.size());
    const std::string part(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (part.empty()) continue;
    std::ofstream(path, std::ios::binary) << (name.ends_with(".safetensors") ? Shard(part) : part);
  }
  return folder.path();
}

void CheckShards(std::string_view bytes) {
  auto checkpoint =
      Checkpoint::Open(WriteFolder(bytes, {"model.safetensors.index.json", "a.safetensors",
                                           "b.safetensors", "model.safetensors"}));
  if (!checkpoint.ok()) return fuzz::CheckError(checkpoint.status());
  const std::vector<std::string> names = checkpoint->UnusedTensors();
  PS_CHECK(names.size() == checkpoint->num_tensors());
  for (const std::string& name : names) {
    PS_CHECK(checkpoint->TypeOf(name).has_value()) << name;
    const auto tensor = checkpoint->Get(name, {2, 2});
    if (!tensor.ok()) {
      fuzz::CheckError(tensor.status());
      continue;
    }
    float values[4];
    tensor->ReadFloats(0, values);
    checkpoint->Release(*tensor);
  }
}

void CheckTemplate(std::string_view bytes) {
  static const testing::FakeTokenizer tokenizer;
  const auto loaded = ChatTemplate::Load(
      WriteFolder(bytes, {"tokenizer_config.json", "chat_template.jinja"}), &tokenizer, true);
  if (!loaded.ok()) return fuzz::CheckError(loaded.status());
  PS_CHECK(!(*loaded)->source().empty());
  for (const int32_t id : (*loaded)->stop_ids()) PS_CHECK(tokenizer.IsControl(id)) << id;
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'c':
      CheckConfig(bytes);
      CheckDefinition(bytes);
      break;
    case 'g':
      CheckGenerationConfig(bytes);
      break;
    case 'f':
      CheckShards(bytes);
      break;
    case 't':
      CheckTemplate(bytes);
      break;
    default:
      return -1;
  }
  return 0;
}
