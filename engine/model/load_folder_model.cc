// Loads a model: checks what it needs, reads its weights.
#include "engine/model/folder_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/memory_limit.h"
#include "engine/model/decoder_model.h"
#include "engine/model/weight_reader.h"

namespace polysketch {
namespace {

// `vocabulary`: tokens of the tokenizer, not 0.
Status CheckVocabulary(const ModelSpec& spec, int vocabulary, const std::string& config) {
  if (vocabulary > spec.frame.vocab_size) {
    return InvalidArgument(config, ": field \"vocab_size\": expected at least ", vocabulary,
                           ", the tokens of the tokenizer, found ", spec.frame.vocab_size);
  }
  std::vector<int32_t> ids = spec.stop_ids;
  ids.push_back(spec.bos_id);
  const int32_t largest = *std::max_element(ids.begin(), ids.end());
  if (largest < vocabulary) return Status();
  return InvalidArgument(config, ": expected ids of bos_token_id and eos_token_id below ",
                         vocabulary, ", the tokens of the tokenizer, found ", largest);
}

StateFormat FormatFor(const ModelWeights& weights) {
  return weights.embedding->type() == DataType::kF32 ? StateFormat::kF32 : StateFormat::kBf16;
}

}  // namespace

Result<std::unique_ptr<FolderModel>> FolderModel::Load(const ModelFolder& folder, Backend* backend,
                                                       const LoadOptions& options) {
  PS_ASSIGN_OR_RETURN(ModelDefinition definition, ReadModelDefinition(folder));
  return Load(folder, std::move(definition), backend, options);
}

Result<std::unique_ptr<FolderModel>> FolderModel::Load(const ModelFolder& folder,
                                                       ModelDefinition definition, Backend* backend,
                                                       const LoadOptions& options) {
  ModelSpec& spec = definition.spec;
  const std::string config = folder.PathOf("config.json");
  const int vocabulary = spec.frame.padded_vocabulary ? options.vocabulary : 0;
  if (vocabulary > 0) PS_RETURN_IF_ERROR(CheckVocabulary(spec, vocabulary, config));
  if (options.state_format && !backend->has_state_format(*options.state_format)) {
    return FailedPrecondition("state format: expected one that ", backend->name(), " reads, found ",
                              StateFormatName(*options.state_format));
  }
  Checkpoint::ProgressFn progress;
  if (options.progress) {
    progress = [&](uint64_t done, uint64_t total) {
      options.progress(static_cast<int64_t>(done), static_cast<int64_t>(total));
    };
  }
  PS_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(folder, progress));
  auto weights = std::make_unique<ModelWeights>();
  const bool rotate = options.rotate_residual.value_or(options.weights == DataType::kQ8);
  WeightReader reader(&checkpoint, backend, options.weights, vocabulary, rotate, weights.get());
  PS_RETURN_IF_ERROR(definition.read_weights(&reader, weights.get()));
  const size_t workspace = DecoderModel::WorkspaceBytes(spec, options.max_step_tokens);
  if (backend->host_memory() && !MemoryFits(workspace)) {
    return ResourceExhausted(config, ": expected ", workspace,
                             " bytes of memory for the activations of a step of ",
                             options.max_step_tokens, " tokens, found less");
  }
  const StateFormat format = options.state_format.value_or(FormatFor(*weights));
  for (LayerSpec& layer : spec.layers) {
    layer.attention.state_format = FormatOfLayer(format, layer.attention);
  }
  return std::unique_ptr<FolderModel>(
      std::make_unique<DecoderModel>(std::move(spec), options, backend, std::move(weights)));
}

}  // namespace polysketch
