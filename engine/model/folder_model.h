// The model of a folder (docs/model-format.md), whichever its format and frame.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"
#include "engine/model/language_model.h"
#include "engine/model/model_format.h"
#include "engine/model/model_spec.h"
#include "kernels/backend.h"

namespace polysketch {

struct LoadOptions {
  // Format of the packed matrices. Unset: the format of each tensor in the checkpoint.
  std::optional<DataType> weights;
  // Unset: kF32 for a model whose embedding is packed as float32, kBf16 for other models.
  std::optional<StateFormat> state_format;
  // Whether the weights are changed so that the residual stream is rotated (residual_rotation.h),
  // where the model's format can: the same function but for roundings. Unset: with kQ8, which gains
  // most.
  std::optional<bool> rotate_residual;
  int max_step_tokens = 512;
  // Tokens of the tokenizer; 0: as many as the embedding has rows. If the format pads its
  // vocabulary, the rows after them are not loaded: padding has no logits.
  int vocabulary = 0;
  // Called with bytes done and total bytes while weights are packed. May be empty.
  std::function<void(int64_t, int64_t)> progress;
};

class FolderModel : public LanguageModel {
 public:
  // Checks every tensor against the config; INVALID_ARGUMENT names what does not fit.
  // FAILED_PRECONDITION names what the model needs and the backend lacks. `backend` outlives the
  // model.
  static Result<std::unique_ptr<FolderModel>> Load(const ModelFolder& folder, Backend* backend,
                                                   const LoadOptions& options);
  // The same; `definition` is what ReadModelDefinition has read of the folder.
  static Result<std::unique_ptr<FolderModel>> Load(const ModelFolder& folder,
                                                   ModelDefinition definition, Backend* backend,
                                                   const LoadOptions& options);

  virtual const ModelSpec& spec() const = 0;
  // The attention of all layers, in order.
  virtual std::span<const AttentionSpec> attention() const = 0;
  // Bytes of all packed weights.
  virtual int64_t weight_bytes() const = 0;
  virtual int64_t parameters() const = 0;
};

}  // namespace polysketch
