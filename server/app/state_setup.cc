#include "server/app/state_setup.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "engine/store/open_state_store.h"
#include "engine/tokenizer/tokenizer_files.h"
#include "kernels/saved_state.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

Result<ContentHash> HashFile(const ModelFolder& folder, const std::string& name) {
  PS_ASSIGN_OR_RETURN(const ModelFile opened, folder.Open(name));
  PS_ASSIGN_OR_RETURN(const MappedFile file, opened.Map());
  // In pieces whose pages are released again: a start must not need memory for both the file and
  // the weights that were packed from it.
  constexpr size_t kPiece = size_t{4} << 20;
  ContentHasher hasher;
  for (size_t first = 0; first < file.size(); first += kPiece) {
    const std::byte* piece = file.data() + first;
    const size_t bytes = std::min(kPiece, file.size() - first);
    hasher.Add({reinterpret_cast<const char*>(piece), bytes});
    file.Release(piece, bytes);
  }
  return hasher.Hash();
}

// The hash of config.json and every file of weights, by name and content.
Result<ContentHash> HashModel(const ModelFolder& folder) {
  PS_ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.Names());
  std::string all;
  for (const std::string& name : names) {
    if (name != "config.json" && !name.ends_with(".safetensors")) continue;
    PS_ASSIGN_OR_RETURN(const ContentHash hash, HashFile(folder, name));
    all += StrCat(name, " ", HashText(hash), "\n");
  }
  return HashContent(all);
}

StateEncoding EncodingNamed(const std::string& name) {
  for (const StateEncoding encoding :
       {StateEncoding::kBf16, StateEncoding::kF32Zstd, StateEncoding::kBf16Zstd}) {
    if (StateEncodingName(encoding) == name) return encoding;
  }
  return StateEncoding::kF32;  // the last choice of the flag
}

// Limit of the state in a snapshot, in bytes. The values in a snapshot are float32, those in memory
// may have 16 bits: a snapshot has at most twice the bytes.
size_t MaxStateBytes(const LoadedModel& loaded) {
  const std::span<const AttentionSpec> layers = loaded.model->attention();
  const size_t limit = loaded.engine->stats().state_bytes_limit;
  if (std::ranges::any_of(layers, &AttentionSpec::kv_cache)) return limit;
  return 2 * loaded.model->StateBytes(1);
}

// Bytes of the largest saved layer of a sequence of at most `tokens` tokens.
size_t SavedBytes(const AttentionSpec& spec, int64_t tokens) {
  const auto at = [&](int64_t position) {
    return SavedLayerBytes(spec, spec.features(), position);
  };
  if (spec.grows()) return at(tokens);
  // The block buffer is full after the first block, and again, beside the sums, after the second
  // one. A window has most tokens at the end of each block from the last one before which it drops
  // nothing.
  const int64_t block = spec.block;
  const int64_t full = spec.kv_cache() ? spec.UndroppedTokens() : 2 * block;
  return std::max(at(std::min(tokens, block)), at(std::min(tokens, full)));
}

// The same of all layers: not less than the largest state.
size_t SavedBytes(std::span<const AttentionSpec> layers, int64_t tokens) {
  size_t bytes = 0;
  for (const AttentionSpec& layer : layers) bytes += SavedBytes(layer, tokens);
  return bytes;
}

// Whether saved states share blocks with the states that they are of (SequenceState::shares).
bool SharesStates(FolderModel* model) {
  if (std::ranges::none_of(model->attention(), &AttentionSpec::kv_cache)) return false;
  const std::unique_ptr<SequenceState> state = model->NewState();
  return state != nullptr && state->shares();
}

// Where full blocks of KV caches are in saved states; empty without any.
StateLayout LayoutOf(FolderModel* model) {
  if (std::ranges::none_of(model->attention(), &AttentionSpec::kv_cache)) return {};
  const std::unique_ptr<SequenceState> state = model->NewState();
  if (state == nullptr || !state->saves_blocks()) return {};
  return StateLayout(model->attention(), /*block_order=*/state->parts() == 1);
}

// The memory of such a saved state of `tokens` tokens (SequenceState::Memory).
size_t CopyBytes(const FolderModel& model, int64_t tokens) {
  size_t bytes = model.StateBytes(tokens);
  for (const AttentionSpec& layer : model.attention()) {
    if (!layer.kv_cache()) continue;
    bytes += static_cast<size_t>(layer.CacheBlocks(tokens)) * kBlockReferenceBytes;
  }
  return bytes;
}

// PrefixCacheOptions::attention_cost, by the multiplications of a token.
double AttentionCost(const ModelSpec& spec) {
  const auto width = static_cast<double>(spec.frame.width);
  double to_one_token = 0, rest = 0;
  for (const LayerSpec& layer : spec.layers) {
    const HeadShape heads = layer.attention.shape();
    const auto q = static_cast<double>(heads.q_row()), k = static_cast<double>(heads.k_row());
    if (layer.attention.grows()) to_one_token += 2 * q;
    const int64_t hidden = spec.frame.mlp_hidden;
    const auto mlp = static_cast<double>(UpColumns(spec.frame.gate, hidden) + hidden);
    rest += width * (2 * q + 2 * k + mlp);
  }
  return rest > 0 ? to_one_token / rest : 0;
}

}  // namespace

Result<std::unique_ptr<StateStore>> OpenConfiguredStore(const ServerConfig& config) {
  Result<std::unique_ptr<StateStore>> store =
      OpenStateStore(config.state_store, config.state_store_limit);
  if (!store.ok()) return Prefixed("--state-store: ", store.status());
  return store;
}

std::unique_ptr<PrefixCache> NewPrefixCache(const ServerConfig& config, const ModelSpec& spec) {
  if (config.prefix_cache_min_tokens == 0) return nullptr;
  int64_t block = 1;
  for (const LayerSpec& layer : spec.layers)
    block = std::max<int64_t>(block, layer.attention.block);
  const int64_t every = (config.prefix_cache_every + block - 1) / block * block;
  return std::make_unique<PrefixCache>(
      PrefixCacheOptions{.memory = 0,
                         .min_tokens = config.prefix_cache_min_tokens,
                         .every = every,
                         .attention_cost = AttentionCost(spec)});
}

Result<SessionOptions> MakeSessionOptions(const ServerConfig& config, const LoadedModel& loaded) {
  SessionOptions options;
  SnapshotCodec& codec = options.codec;
  PS_ASSIGN_OR_RETURN(codec.binding.model, HashModel(loaded.folder));
  if (loaded.tokenizer != nullptr) {
    PS_ASSIGN_OR_RETURN(codec.binding.tokenizer,
                        HashFile(loaded.folder, TokenizerFile(loaded.folder)));
  }
  // KV caches were float32 under q8 before they had 8 bits.
  const bool narrow_cache =
      std::ranges::any_of(loaded.model->attention(), &AttentionSpec::cache_scales);
  codec.binding.numerics =
      StrCat(loaded.backend->name(), " weights=", config.weights,
             " state=", StateFormatName(FormatOfModel(loaded.model->attention())),
             narrow_cache ? " cache=q8" : "");
  codec.binding.decay_gate =
      std::ranges::any_of(loaded.model->attention(), &AttentionSpec::decay_gate);
  codec.limits.tokens = {.vocab_size = loaded.model->vocab_size(),
                         .max_new_tokens = static_cast<int32_t>(config.max_new_tokens),
                         .has_tokenizer = loaded.tokenizer != nullptr};
  codec.limits.max_state_bytes = MaxStateBytes(loaded);
  codec.encoding = EncodingNamed(config.state_store_format);
  codec.layout = LayoutOf(loaded.model.get());
  options.store = loaded.store.get();
  options.memory = config.session_memory > 0 ? static_cast<size_t>(config.session_memory)
                                             : loaded.engine->stats().state_bytes_limit;
  if (PrefixCache* cache = loaded.prefix_cache.get()) {
    cache->SetMemory(options.memory);
    options.on_memory = [cache, memory = options.memory](size_t sessions) {
      cache->SetMemory(memory - std::min(memory, sessions));
    };
  }
  if (SharesStates(loaded.model.get())) {
    options.state_bytes = [model = loaded.model.get()](int64_t tokens) {
      return CopyBytes(*model, tokens);
    };
  } else {
    options.state_bytes = [layers = loaded.model->spec().Attention()](int64_t tokens) {
      return SavedBytes(layers, tokens);
    };
  }
  options.max_per_tenant = static_cast<int>(config.max_sessions_per_tenant);
  options.default_ttl = config.session_ttl;
  return options;
}

}  // namespace polysketch
