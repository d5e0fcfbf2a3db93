#include "server/app/load_model.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/logging.h"
#include "base/utf8.h"
#include "engine/model/model_format.h"
#include "engine/store/measured_store.h"
#include "engine/tokenizer/tokenizer_files.h"
#include "kernels/new_backend.h"
#include "polysketch_build_info.h"
#include "server/app/available_memory.h"
#include "server/app/cpus.h"
#include "server/app/model_checksums.h"
#include "server/app/state_setup.h"
#include "server/convert/status_map.h"
#include "server/rpc/service_context.h"

namespace polysketch {
namespace {

std::string MiB(double bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", bytes / (1 << 20));
  return text;
}

// With a device, the tokens of a step are sampled in a tenth of a millisecond: waking more threads
// would cost more than they save.
constexpr int kMaxSamplingThreads = 8;

int HostThreads(const ServerConfig& config) {
  return config.threads > 0 ? static_cast<int>(config.threads) : AvailableCpus();
}

Result<std::unique_ptr<Backend>> NewBackend(const ServerConfig& config) {
  if (config.device == "reference") return NewReferenceBackend();
  if (config.device != "cpu") {
    Result<std::unique_ptr<Backend>> cuda = NewCudaBackend();
    if (cuda.ok()) return cuda;
    if (config.device == "cuda") {
      return FailedPrecondition("--device cuda: ", cuda.status().message());
    }
    LogInfo("no_gpu", {{"reason", cuda.status().message()}, {"effect", "the cpu computes"}});
  }
  return NewCpuBackend(HostThreads(config));
}

ModelFolder FolderOf(const ServerConfig& config, const std::string& path) {
  return ModelFolder(path, config.model_root);
}

// Logs the progress of loading, at most one line a second.
class LoadProgress {
 public:
  void operator()(int64_t done, int64_t total) {
    const Clock::time_point now = Clock::now();
    if (now - last_ < std::chrono::seconds(1) && done < total) return;
    if (done == total && !logged_) return;  // a small model, loaded within a second
    last_ = now;
    logged_ = true;
    LogInfo("loading",
            {{"mib", MiB(static_cast<double>(done))}, {"of_mib", MiB(static_cast<double>(total))}});
  }

 private:
  Clock::time_point last_ = Clock::now();
  bool logged_ = false;
};

Result<std::unique_ptr<Tokenizer>> LoadTokenizer(const ModelFolder& folder,
                                                 const FrameSpec& frame) {
  const std::string name = TokenizerFile(folder);
  if (name.empty()) {
    LogInfo("no_tokenizer", {{"path", folder.path().string()}, {"effect", "token ids only"}});
    return std::unique_ptr<Tokenizer>();
  }
  PS_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(folder, name));
  const int pieces = tokenizer->vocab_size();
  if (frame.padded_vocabulary ? pieces > frame.vocab_size : pieces != frame.vocab_size) {
    return InvalidArgument(folder.PathOf(name), ": expected ",
                           frame.padded_vocabulary ? "at most " : "", frame.vocab_size,
                           " pieces as config.json's vocab_size, found ", pieces);
  }
  return tokenizer;
}

// Loads the tokenizer, and the model with its vocabulary, which `options` have from then on.
Status LoadModelAndTokenizer(LoadOptions* options, LoadedModel* loaded) {
  PS_ASSIGN_OR_RETURN(ModelDefinition model, ReadModelDefinition(loaded->folder));
  PS_ASSIGN_OR_RETURN(loaded->tokenizer, LoadTokenizer(loaded->folder, model.spec.frame));
  if (loaded->tokenizer != nullptr) options->vocabulary = loaded->tokenizer->vocab_size();
  loaded->add_bos = model.spec.add_bos;
  loaded->bos_id = model.spec.bos_id;
  if (loaded->tokenizer != nullptr && loaded->tokenizer->begins_with_bos()) {
    loaded->add_bos = true;
    loaded->bos_id = loaded->tokenizer->bos_id();
  }
  PS_ASSIGN_OR_RETURN(loaded->model, FolderModel::Load(loaded->folder, std::move(model),
                                                       loaded->backend.get(), *options));
  return Status();
}

// A draft proposes ids of the model: a tokenizer in its folder has the model's pieces, but for those of
// control, which fine-tuned models rename.
Status CheckDraftTokenizer(const ModelFolder& folder, const Tokenizer* tokenizer) {
  const std::string name = TokenizerFile(folder);
  if (tokenizer == nullptr || name.empty()) return Status();
  PS_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> own, Tokenizer::Load(folder, name));
  if (own->vocab_size() != tokenizer->vocab_size()) {
    return FailedPrecondition(folder.PathOf(name), ": expected the vocabulary of --model, ",
                              tokenizer->vocab_size(), " pieces, found ", own->vocab_size());
  }
  for (int32_t id = 0; id < own->vocab_size(); ++id) {
    if (own->IsControl(id) || tokenizer->IsControl(id) || own->Piece(id) == tokenizer->Piece(id))
      continue;
    return FailedPrecondition(folder.PathOf(name),
                              ": expected the vocabulary of --model, found piece ", id,
                              " to differ");
  }
  return Status();
}

// A template of the model folder that cannot be used is no reason not to serve completions.
Status LoadChatTemplate(const ServerConfig& config, LoadedModel* loaded) {
  const std::string& file = config.chat_template;
  if (loaded->tokenizer == nullptr) {
    loaded->no_chat_template = "the model has no tokenizer";
    return Status();
  }
  // A template writes BOS itself, as with transformers; only config.json can say otherwise.
  const bool template_bos = loaded->model->spec().add_bos;
  Result<std::unique_ptr<ChatTemplate>> made =
      ChatTemplate::Load(loaded->folder, loaded->tokenizer.get(), template_bos, file);
  if (!made.ok() && !file.empty()) return Prefixed("--chat-template: ", made.status());
  if (made.ok()) {
    const Status end = (*made)->CheckTurnEnd();
    if (!end.ok() && file.empty()) {
      made = Prefixed("the chat template of the model folder: ", end);
    } else if (!end.ok()) {
      LogWarning("chat_template", {{"file", file}, {"reason", end.message()}});
    }
  }
  if (made.ok()) {
    loaded->chat_template = *std::move(made);
    const Status& appends = loaded->chat_template->appends();
    const bool takes_tools = loaded->chat_template->takes_tools();
    const auto form = DetectToolForm(loaded->chat_template->source());
    const std::string_view tools = config.tool_format != "auto" ? config.tool_format
                                   : !takes_tools               ? "described in messages"
                                   : form                       ? ToolFormName(*form)
                                                                : "in a form that is not read";
    LogInfo("chat_template", {{"sessions", appends.ok() ? "yes" : appends.message()},
                              {"tools", std::string(tools)}});
    return Status();
  }
  if (made.status().code() == Code::kNotFound) {
    loaded->no_chat_template = "its folder has no chat_template.jinja";
    return Status();
  }
  loaded->no_chat_template = made.status().message();
  LogWarning("chat_template", {{"reason", made.status().message()},
                               {"effect", "/v1/chat/completions and /v1/responses are refused"}});
  return Status();
}

// Adds the tokens that end an output to `generation`, EOS first: those of generation_config.json or
// else EOS of config.json, and those that end an answer of the chat template.
void AddEosIds(const std::vector<int32_t>& stop_ids, const Tokenizer* tokenizer,
               const ChatTemplate* chat_template, GenerationConfig* generation) {
  std::vector<int32_t>& ids = generation->eos_ids;
  const auto add = [&ids](int32_t id) {
    if (id >= 0 && std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  if (ids.empty()) std::ranges::for_each(stop_ids, add);
  if (chat_template != nullptr) std::ranges::for_each(chat_template->stop_ids(), add);
  if (tokenizer == nullptr) return;
  const auto eos = std::ranges::find(ids, tokenizer->eos_id());
  if (eos != ids.end()) std::rotate(ids.begin(), eos, eos + 1);
}

Status LoadGenerationConfig(const ServerConfig& config, LoadedModel* loaded) {
  PS_ASSIGN_OR_RETURN(loaded->generation,
                      GenerationConfig::Load(loaded->folder, loaded->model->vocab_size()));
  SamplingParams& sampling = loaded->generation.sampling;
  if (config.generation_config == "none") sampling = {};
  if (sampling != SamplingParams()) {
    LogInfo("generation_config", {{"temperature", sampling.temperature},
                                  {"top_k", sampling.top_k},
                                  {"top_p", sampling.top_p},
                                  {"min_p", sampling.min_p},
                                  {"repetition_penalty", sampling.repetition_penalty}});
  }
  AddEosIds(loaded->model->spec().stop_ids, loaded->tokenizer.get(), loaded->chat_template.get(),
            &loaded->generation);
  return Status();
}

// The name of a model: that of its folder.
std::string NameOf(const std::string& folder) {
  std::error_code error;
  return std::filesystem::weakly_canonical(folder, error).filename().string();
}

// Whether states grow, in some layer.
bool HasCache(std::span<const AttentionSpec> layers) {
  return std::ranges::any_of(layers, &AttentionSpec::kv_cache);
}

// The names of the layers' kinds, each once, joined by "+".
std::string KindsOf(std::span<const AttentionSpec> layers) {
  std::vector<std::string_view> names;
  for (const AttentionSpec& layer : layers) {
    const std::string_view name = AttentionKindName(layer.kind);
    if (std::ranges::count(names, name) == 0) names.push_back(name);
  }
  std::string joined(names.front());
  for (size_t i = 1; i < names.size(); ++i) joined += StrCat("+", names[i]);
  return joined;
}

v1::GetModelResponse Describe(const ServerConfig& config, const LoadedModel& loaded) {
  const FolderModel& model = *loaded.model;
  const ModelSpec& spec = model.spec();
  const std::span<const AttentionSpec> layers = model.attention();
  v1::GetModelResponse info;
  info.set_name(NameOf(config.model));
  info.set_attention(KindsOf(layers));
  info.set_num_layers(static_cast<int32_t>(layers.size()));
  info.set_emb_dim(spec.frame.width);
  info.set_vocab_size(model.vocab_size());
  for (const AttentionSpec& layer : layers) {
    info.set_num_heads(std::max(info.num_heads(), layer.heads));
    info.set_head_dim(std::max(info.head_dim(), layer.head_dim));
    const bool sketches = layer.learned_sketch() || layer.random_sketch();
    if (sketches) info.set_sketch_size(std::max(info.sketch_size(), layer.sketch_size));
    info.set_block_size(std::max(info.block_size(), layer.block));
    if (layer.qk_norm()) info.set_power(std::max(info.power(), layer.power));
  }
  info.set_context_length(spec.context_length);
  info.set_context_limit(spec.context_limit);
  info.set_parameters(model.parameters());
  info.set_weight_bytes(model.weight_bytes());
  info.set_weight_format(config.weights == "auto" ? "checkpoint" : config.weights);
  info.set_state_format(std::string(StateFormatName(FormatOfModel(layers))));
  const int64_t state_tokens = HasCache(layers) ? std::max(1, spec.context_length) : 0;
  info.set_state_tokens(state_tokens);
  info.set_state_bytes_per_sequence(static_cast<int64_t>(model.StateBytes(state_tokens)));
  info.set_has_tokenizer(loaded.tokenizer != nullptr);
  info.set_add_bos(loaded.add_bos);
  info.set_bos_id(loaded.bos_id);
  const std::vector<int32_t>& eos_ids = loaded.generation.eos_ids;
  info.set_eos_id(eos_ids.empty() ? -1 : eos_ids.front());
  info.mutable_eos_ids()->Add(eos_ids.begin(), eos_ids.end());
  ToProto(loaded.generation.sampling, info.mutable_default_sampling());
  info.set_device(std::string(loaded.backend->name()));
  info.set_threads(loaded.backend->threads());
  v1::Limits* limits = info.mutable_limits();
  limits->set_max_prompt_tokens(config.max_prompt_tokens);
  limits->set_max_new_tokens(static_cast<int32_t>(config.max_new_tokens));
  limits->set_default_max_tokens(
      static_cast<int32_t>(std::min(config.default_max_tokens, config.max_new_tokens)));
  limits->set_max_message_bytes(config.max_message_bytes);
  limits->set_max_sequences(static_cast<int32_t>(config.max_sequences));
  limits->set_max_queue(static_cast<int32_t>(config.max_queue));
  limits->set_max_queue_tokens(config.max_queue_tokens);
  limits->set_max_priority(static_cast<int32_t>(config.max_priority));
  limits->set_max_concurrent_streams(static_cast<int32_t>(config.max_concurrent_streams));
  info.set_version(POLYSKETCH_VERSION);
  info.set_commit(kCommit);
  return info;
}

// Logs what a KV cache takes by its length, and how many of them slot memory holds.
void LogKvCache(const LoadedModel& loaded, double slots) {
  const FolderModel& model = *loaded.model;
  if (!HasCache(model.attention())) return;
  constexpr int64_t kShort = 4096, kLong = 32768;
  const int64_t context = model.spec().context_limit;
  const int64_t limit = context > 0 ? context : kLong;
  const auto bytes = [&](int64_t tokens) { return static_cast<double>(model.StateBytes(tokens)); };
  const int64_t first = std::min(kShort, limit);
  LogInfo("kv_cache", {{"token_bytes", std::llround(bytes(limit) / static_cast<double>(limit))},
                       {"tokens", first},
                       {"mib", MiB(bytes(first))},
                       {"sequences", std::floor(slots / bytes(first))},
                       {"long_tokens", limit},
                       {"long_mib", MiB(bytes(limit))},
                       {"long_sequences", std::floor(slots / bytes(limit))}});
}

// Logs the memory of a busy process by pool, and the memory that is allocated on a device.
void LogMemory(const ServerConfig& config, const LoadedModel& loaded) {
  const FrameSpec& frame = loaded.model->spec().frame;
  const EngineStats stats = loaded.engine->stats();
  const int64_t draft_weights = loaded.draft_model ? loaded.draft_model->weight_bytes() : 0;
  const auto weights = static_cast<double>(loaded.model->weight_bytes() + draft_weights);
  const auto slots = static_cast<double>(stats.state_bytes_limit);
  const auto preempted = static_cast<double>(stats.preempted_bytes_limit);
  const auto sessions = static_cast<double>(loaded.sessions->options().memory);
  const auto state = static_cast<double>(loaded.served.description.state_bytes_per_sequence());
  // Activations of one step: some rows of the widest layers for each token, and the logits of one
  // row for each sequence.
  const double workspace =
      4.0 * (static_cast<double>(loaded.model->max_step_tokens()) *
                 (8.0 * frame.width + 3.0 * frame.mlp_hidden) +
             static_cast<double>(config.max_sequences) * loaded.model->vocab_size());
  // Each thread of the store holds an encoded state, what the store makes of it, and a decoded one.
  const double store =
      loaded.sessions->options().store == nullptr ? 0 : 3.0 * kStoreThreads * state;
  const auto responses = static_cast<double>(config.response_memory);
  LogInfo(
      "memory",
      {{"weights_mib", MiB(weights)},
       {"state_mib", MiB(state)},
       {"sequences", config.max_sequences},
       {"slot_mib", MiB(slots)},
       {"preempted_mib", MiB(preempted)},
       {"session_mib", MiB(sessions)},
       {"workspace_mib", MiB(workspace)},
       {"store_mib", MiB(store)},
       {"response_mib", MiB(responses)},
       {"total_mib", MiB(weights + slots + preempted + sessions + workspace + store + responses)}});
  LogKvCache(loaded, slots);
  if (loaded.backend->host_memory()) return;
  // All memory that requests use is allocated: the weights, slot and preempted memory (of KV caches
  // in whole blocks), and the workspace of the largest step.
  const DeviceMemory device = loaded.backend->device_memory();
  const auto held = static_cast<double>(device.held);
  const auto unit = static_cast<double>(loaded.model->StateBytes(1));
  const double states = std::floor((slots + preempted) / unit) * unit;
  LogInfo("device_memory", {{"weights_mib", MiB(weights)},
                            {"states_mib", MiB(states)},
                            {"workspace_mib", MiB(held - weights - states)},
                            {"held_mib", MiB(held)},
                            {"free_mib", MiB(static_cast<double>(device.free))}});
}

void LogModel(const v1::GetModelResponse& info, Clock::time_point start) {
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
  LogInfo("model", {{"name", info.name()},
                    {"attention", info.attention()},
                    {"parameters", info.parameters()},
                    {"weights", info.weight_format()},
                    {"state", info.state_format()},
                    {"tokenizer", info.has_tokenizer() ? "yes" : "no"},
                    {"loaded_ms", time.count()}});
}

// Loads backend, models and tokenizer.
Status LoadFolders(const ServerConfig& config, LoadedModel* loaded) {
  PS_ASSIGN_OR_RETURN(loaded->folder,
                      CheckModelFiles(FolderOf(config, config.model), config.verify));
  ModelFolder draft_folder{config.draft_model};
  if (!config.draft_model.empty()) {
    PS_ASSIGN_OR_RETURN(draft_folder,
                        CheckModelFiles(FolderOf(config, config.draft_model), config.verify));
  }
  PS_ASSIGN_OR_RETURN(loaded->backend, NewBackend(config));
  LogInfo("device", {{"name", loaded->backend->name()}, {"threads", loaded->backend->threads()}});
  if (loaded->backend->threads() > AvailableCpus())
    LogWarning("threads", {{"threads", loaded->backend->threads()},
                           {"cpus", AvailableCpus()},
                           {"effect", "threads wait for each other in each step"}});
  LoadOptions options;
  options.weights = DataTypeOf(config.weights);
  options.state_format = StateFormatOf(config.state_format);  // none: "auto"
  options.max_step_tokens =
      StepTokens(config, !loaded->backend->host_memory(), loaded->backend->threads());
  options.progress = LoadProgress();
  PS_RETURN_IF_ERROR(LoadModelAndTokenizer(&options, loaded));
  if (!config.draft_model.empty()) {
    PS_RETURN_IF_ERROR(CheckDraftTokenizer(draft_folder, loaded->tokenizer.get()));
    PS_ASSIGN_OR_RETURN(loaded->draft_model,
                        FolderModel::Load(draft_folder, loaded->backend.get(), options));
  }
  PS_RETURN_IF_ERROR(LoadChatTemplate(config, loaded));
  PS_RETURN_IF_ERROR(LoadGenerationConfig(config, loaded));
  if (loaded->tokenizer != nullptr) {
    const int64_t memory =
        config.grammar_memory > 0 ? config.grammar_memory : DefaultGrammarMemory(AvailableMemory());
    loaded->grammars = std::make_unique<GrammarCompiler>(
        loaded->tokenizer.get(), loaded->model->vocab_size(), loaded->generation.eos_ids,
        GrammarLimits{.total_bytes = static_cast<size_t>(memory)});
  }
  return Status();
}

// `loaded`: with models, tokenizer and prefix cache.
EngineOptions MakeEngineOptions(const ServerConfig& config, EngineObserver* observer,
                                std::shared_ptr<Executor> writers, LoadedModel* loaded) {
  EngineOptions options;
  options.max_sequences = static_cast<int>(config.max_sequences);
  options.max_queue = static_cast<int>(config.max_queue);
  options.max_queue_tokens = config.max_queue_tokens;
  options.max_step_tokens = loaded->model->max_step_tokens();
  options.step_budget = std::chrono::milliseconds(config.step_budget_ms);
  options.sampling_threads = std::min(HostThreads(config), kMaxSamplingThreads);
  options.draft_tokens = static_cast<int>(config.draft_tokens);
  options.draft_model = loaded->draft_model.get();
  if (loaded->draft_model != nullptr)
    options.draft_context_limit = loaded->draft_model->spec().context_limit;
  options.max_prompt_tokens = config.max_prompt_tokens;
  options.max_new_tokens = static_cast<int32_t>(config.max_new_tokens);
  options.default_max_tokens = static_cast<int32_t>(config.default_max_tokens);
  options.eos_ids = loaded->generation.eos_ids;
  options.context_limit = loaded->model->spec().context_limit;
  options.slot_memory = static_cast<size_t>(config.slot_memory);
  options.preempted_memory = static_cast<size_t>(config.preempted_memory);
  options.kv_admission =
      config.kv_admission == "reserve" ? KvAdmission::kReserve : KvAdmission::kPreempt;
  options.stall_deadline = config.stall_deadline;
  options.prefix_cache = loaded->prefix_cache.get();
  options.observer = observer;
  options.batch_notifications = [writers = std::move(writers)](bool hold) {
    hold ? writers->Hold() : writers->Release();
  };
  options.on_device_failure = [failed = &loaded->device_failed](const Status& status) {
    LogError("device_failed", {{"reason", status.message()}, {"effect", "the process ends"}});
    failed->store(true);
    kill(getpid(), SIGTERM);  // drains as for any stop: readiness is turned off first
  };
  return options;
}

// Opens the state store and makes the session table. `loaded`: with an engine.
Status OpenSessions(const ServerConfig& config, EngineObserver* observer, LoadedModel* loaded) {
  if (!config.state_store.empty()) {
    PS_ASSIGN_OR_RETURN(loaded->store, OpenConfiguredStore(config));
    if (observer != nullptr) loaded->store = NewMeasuredStore(std::move(loaded->store), observer);
  }
  PS_ASSIGN_OR_RETURN(SessionOptions options, MakeSessionOptions(config, *loaded));
  loaded->sessions = std::make_unique<SessionTable>(std::move(options));
  return Status();
}

std::optional<ToolForm> FormOfTools(const ServerConfig& config, const LoadedModel& loaded) {
  if (config.tool_format != "auto") return ToolFormOf(config.tool_format);
  if (loaded.chat_template == nullptr || !loaded.chat_template->takes_tools()) return std::nullopt;
  return DetectToolForm(loaded.chat_template->source());
}

std::optional<ReasoningMarks> MarksOfReasoning(const ServerConfig& config,
                                               const LoadedModel& loaded) {
  if (config.reasoning_format == "none" || loaded.chat_template == nullptr) return std::nullopt;
  if (config.reasoning_format == "deepseek") return kThinkMarks;
  return DetectReasoning(loaded.chat_template->source());
}

ServedModel Serve(const ServerConfig& config, const LoadedModel& loaded) {
  return {.engine = loaded.engine.get(),
          .sessions = loaded.sessions.get(),
          .prefix_cache = loaded.prefix_cache.get(),
          .chat_template = loaded.chat_template.get(),
          .no_chat_template = loaded.no_chat_template,
          .trusts_request_template = config.trust_request_chat_template,
          .tool_form = FormOfTools(config, loaded),
          .tool_form_named = config.tool_format != "auto",
          .reasoning = MarksOfReasoning(config, loaded),
          .folder = loaded.folder,
          .architecture = loaded.model->spec().architecture,
          .model_type = loaded.model->spec().model_type,
          .rules = {.tokenizer = loaded.tokenizer.get(),
                    .grammars = loaded.grammars.get(),
                    .add_bos = loaded.add_bos,
                    .bos_id = loaded.bos_id,
                    .vocab_size = loaded.model->vocab_size(),
                    .max_prompt_tokens = config.max_prompt_tokens,
                    .max_new_tokens = static_cast<int32_t>(config.max_new_tokens),
                    .default_max_tokens = static_cast<int32_t>(config.default_max_tokens),
                    .sampling = loaded.generation.sampling,
                    .max_priority = static_cast<int32_t>(config.max_priority),
                    .draft_tokens = static_cast<int32_t>(config.draft_tokens)},
          .description = Describe(config, loaded)};
}

}  // namespace

Status CheckModelFolders(const ServerConfig& config) {
  std::error_code error;
  if (!config.model_root.empty() && !std::filesystem::is_directory(config.model_root, error))
    return InvalidArgument("--model-root: expected a folder, found ", config.model_root);
  for (const std::string& folder : {config.model, config.draft_model}) {
    if (folder.empty()) continue;
    // Clients, metrics and logs get it. A link, or ".", may lead to a folder of any name.
    if (const std::string name = NameOf(folder); ValidUtf8Prefix(name) < name.size()) {
      return InvalidArgument(
          "--model, --draft-model: expected a folder whose name is UTF-8, found \"", name, "\"");
    }
    PS_ASSIGN_OR_RETURN(const ModelDefinition model, ReadModelDefinition(FolderOf(config, folder)));
    if (folder != config.model) continue;
    PS_RETURN_IF_ERROR(
        GenerationConfig::Load(FolderOf(config, folder), model.spec.frame.vocab_size).status());
  }
  return Status();
}

Result<std::unique_ptr<LoadedModel>> LoadModel(const ServerConfig& config, EngineObserver* observer,
                                               std::shared_ptr<Executor> writers) {
  const Clock::time_point start = Clock::now();
  auto loaded = std::make_unique<LoadedModel>();
  PS_RETURN_IF_ERROR(LoadFolders(config, loaded.get()));
  loaded->prefix_cache = NewPrefixCache(config, loaded->model->spec());
  const EngineOptions options =
      MakeEngineOptions(config, observer, std::move(writers), loaded.get());
  PS_ASSIGN_OR_RETURN(loaded->engine,
                      Engine::Create(loaded->model.get(), loaded->tokenizer.get(), options));
  PS_RETURN_IF_ERROR(OpenSessions(config, observer, loaded.get()));
  loaded->served = Serve(config, *loaded);
  LogModel(loaded->served.description, start);
  LogMemory(config, *loaded);
  return loaded;
}

}  // namespace polysketch
