// The tensors of a model folder: model.safetensors, or shards with model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"
#include "engine/checkpoint/safetensors.h"

namespace polysketch {

class Checkpoint {
 public:
  // Called with the bytes of released tensors and of all tensors.
  using ProgressFn = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

  // Maps and validates every file of the folder; reads headers only. `progress` (may be empty) is
  // called by Release.
  static Result<Checkpoint> Open(const ModelFolder& folder, ProgressFn progress = nullptr);

  // Returns the tensor `name` and marks it as used. If `type` is unset, the tensor must be of type
  // F32, F16 or BF16. INVALID_ARGUMENT for a tensor that is missing, has another shape or type, or
  // holds a value that is not finite; the message names tensor, file, what was expected and what
  // was found.
  Result<TensorView> Get(std::string_view name, std::span<const int64_t> expected_shape,
                         std::optional<TensorType> type = std::nullopt);
  Result<TensorView> Get(std::string_view name, std::initializer_list<int64_t> expected_shape,
                         std::optional<TensorType> type = std::nullopt) {
    return Get(name, std::span(expected_shape.begin(), expected_shape.size()), type);
  }
  // The type of the tensor `name`; nullopt if the checkpoint does not hold it.
  std::optional<TensorType> TypeOf(std::string_view name) const;

  // Releases the pages of a tensor that was copied elsewhere, and reports progress.
  void Release(const TensorView& tensor);

  // Names of the tensors that Get has not returned. A model that has read all its weights refuses a
  // checkpoint that holds others.
  std::vector<std::string> UnusedTensors() const;

  uint64_t total_bytes() const { return total_bytes_; }
  size_t num_tensors() const { return file_of_.size(); }

 private:
  Checkpoint() = default;
  Status OpenShards(const ModelFolder& folder);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_;  // tensor name -> index in files_
  std::set<std::string, std::less<>> used_;
  std::string dir_;
  ProgressFn progress_;
  uint64_t total_bytes_ = 0;
  uint64_t released_bytes_ = 0;
};

}  // namespace polysketch
