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
#include "engine/checkpoint/safetensors.h"

namespace polysketch {

class Checkpoint {
 public:
  // Called with the bytes of tensors already released, and of all.
  using ProgressFn = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

  // Maps and validates every file of the folder; reads headers only. `progress` (may be empty) is
  // called by Release.
  static Result<Checkpoint> Open(const std::string& dir, ProgressFn progress = nullptr);

  // The weight of that name. INVALID_ARGUMENT if there is none, if its shape is another, or if its
  // type is not F32, F16 or BF16; the message names tensor, file, what was expected and what was
  // found. Marks the tensor as used.
  Result<TensorView> Get(std::string_view name, std::span<const int64_t> expected_shape);
  Result<TensorView> Get(std::string_view name, std::initializer_list<int64_t> expected_shape) {
    return Get(name, std::span<const int64_t>(expected_shape.begin(), expected_shape.size()));
  }

  // The same for a tensor of exactly that type: the integers and scales of quantised weights.
  Result<TensorView> GetTyped(std::string_view name, TensorType type,
                              std::initializer_list<int64_t> expected_shape);
  // The type of that tensor; nothing if there is none.
  std::optional<TensorType> TypeOf(std::string_view name) const;

  // To be called when a tensor has been copied elsewhere: gives its pages back and reports
  // progress.
  void Release(const TensorView& tensor);

  // Names that Get was never asked for: a model that has read all its weights refuses a checkpoint
  // with left-overs.
  std::vector<std::string> UnusedTensors() const;

  uint64_t total_bytes() const { return total_bytes_; }
  size_t num_tensors() const { return file_of_.size(); }

 private:
  Checkpoint() = default;
  // The tensor if it is there in that shape; does not mark it.
  Result<TensorView> Find(std::string_view name, std::span<const int64_t> expected_shape);
  Status CheckFinite(const TensorView& view);
  Status OpenShards(const std::string& dir, const std::string& index_path);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_;  // tensor name -> index in files_
  std::set<std::string, std::less<>> used_;
  std::string dir_;
  ProgressFn progress_;
  uint64_t total_bytes_ = 0;
  uint64_t released_bytes_ = 0;
};

}  // namespace polysketch
