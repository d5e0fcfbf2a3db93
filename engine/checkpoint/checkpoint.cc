#include "engine/checkpoint/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/checkpoint/strict_json.h"

namespace polysketch {
namespace {

using nlohmann::json;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxShards = 10'000;

Result<SafetensorsFile> OpenShard(const ModelFolder& folder, const std::string& name) {
  PS_ASSIGN_OR_RETURN(const ModelFile file, folder.Open(name));
  PS_ASSIGN_OR_RETURN(MappedFile mapped, file.Map());
  return SafetensorsFile::Read(file.path, std::move(mapped));
}

// A shard is a file in the model folder itself: an index must not refer to other folders.
bool IsPlainShardName(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.size() <= 255 && name.ends_with(kSuffix) &&
         name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

bool IsWeightType(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}

// Reads and checks weight_map of the index: tensor name -> shard name.
Result<std::map<std::string, std::string>> ReadWeightMap(const json& index,
                                                         const std::string& path) {
  if (!index.is_object())
    return InvalidArgument(path, ": expected an object, found ", DescribeJson(index));
  const auto map = index.find("weight_map");
  if (map == index.end()) return InvalidArgument(path, ": field \"weight_map\" is missing");
  if (!map->is_object() || map->empty()) {
    return InvalidArgument(path,
                           ": field \"weight_map\": expected an object of tensor names, found ",
                           map->is_object() ? "an empty one" : DescribeJson(*map));
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsPlainShardName(file.get_ref<const std::string&>())) {
      return InvalidArgument(path, ": tensor ", tensor,
                             ": expected the plain name of a .safetensors file, found ",
                             DescribeJson(file));
    }
    result.emplace(tensor, file.get<std::string>());
  }
  return result;
}

Status CheckTotalSize(const json& index, uint64_t total_bytes, const std::string& path) {
  const auto metadata = index.find("metadata");
  if (metadata == index.end()) return Status();
  if (!metadata->is_object()) {
    return InvalidArgument(path, ": field \"metadata\": expected an object, found ",
                           DescribeJson(*metadata));
  }
  const auto total = metadata->find("total_size");
  if (total == metadata->end()) return Status();
  if (!total->is_number_unsigned() || total->get<uint64_t>() != total_bytes) {
    return InvalidArgument(path, ": total_size: expected ", total_bytes,
                           " (the bytes of all shards' tensors), found ", DescribeJson(*total));
  }
  return Status();
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const ModelFolder& folder, ProgressFn progress) {
  Checkpoint checkpoint;
  const std::string dir = folder.path().string();
  checkpoint.dir_ = dir;
  checkpoint.progress_ = std::move(progress);
  const bool single = folder.Has(kSingleFile), index = folder.Has(kIndexFile);
  if (single && index) {
    return InvalidArgument(dir, ": expected ", kSingleFile, " or ", kIndexFile, ", found both");
  }
  if (index) {
    PS_RETURN_IF_ERROR(checkpoint.OpenShards(folder));
  } else if (single) {
    PS_ASSIGN_OR_RETURN(SafetensorsFile file, OpenShard(folder, kSingleFile));
    for (const auto& [name, view] : file.tensors()) checkpoint.file_of_.emplace(name, 0);
    checkpoint.total_bytes_ = file.data_bytes();
    checkpoint.files_.push_back(std::move(file));
  } else {
    return NotFound(dir, ": expected ", kSingleFile, " or ", kIndexFile, ", found neither");
  }
  return checkpoint;
}

Status Checkpoint::OpenShards(const ModelFolder& folder) {
  const std::string index_path = folder.PathOf(kIndexFile);
  PS_ASSIGN_OR_RETURN(const json index,
                      ReadStrictJson(folder, kIndexFile, kMaxIndexBytes, /*max_depth=*/3));
  PS_ASSIGN_OR_RETURN(const auto weight_map, ReadWeightMap(index, index_path));

  std::map<std::string, size_t> shards;  // shard name -> index in files_
  for (const auto& [tensor, shard] : weight_map) shards.emplace(shard, 0);
  if (shards.size() > kMaxShards) {
    return InvalidArgument(index_path, ": expected at most ", kMaxShards, " shards, found ",
                           shards.size());
  }
  for (auto& [shard, number] : shards) {
    auto file = OpenShard(folder, shard);
    if (!file.ok() && file.status().code() == Code::kNotFound) {
      return InvalidArgument(index_path, ": shard ", shard, " is missing");
    }
    if (!file.ok()) return file.status();
    number = files_.size();
    total_bytes_ += file->data_bytes();
    files_.push_back(std::move(file).value());
  }
  for (const auto& [tensor, shard] : weight_map) {
    const size_t number = shards.at(shard);
    if (!files_[number].tensors().contains(tensor)) {
      return InvalidArgument(index_path, ": tensor ", Abbreviate(tensor), " is not in its shard ",
                             shard);
    }
    file_of_.emplace(tensor, number);
  }
  for (const SafetensorsFile& file : files_) {
    for (const auto& [name, view] : file.tensors()) {
      const auto entry = file_of_.find(name);
      if (entry == file_of_.end()) {
        return InvalidArgument(file.path(), ": tensor ", name, " is not in the index");
      }
      if (&files_[entry->second] != &file) {
        return InvalidArgument(file.path(), ": tensor ", name, " is also in ",
                               files_[entry->second].path(), ": expected it once");
      }
    }
  }
  return CheckTotalSize(index, total_bytes_, index_path);
}

Result<TensorView> Checkpoint::Get(std::string_view name, std::span<const int64_t> expected_shape,
                                   std::optional<TensorType> type) {
  const auto entry = file_of_.find(name);
  if (entry == file_of_.end()) {
    return InvalidArgument(dir_, ": tensor ", name, " is missing: expected shape ",
                           ShapeToString(expected_shape), ", found no tensor of this name");
  }
  const SafetensorsFile& file = files_[entry->second];
  const TensorView& view = file.tensors().find(name)->second;
  const auto error = [&](const auto&... words) {
    return InvalidArgument(file.path(), ": tensor ", name, ": expected ", words...);
  };
  if (!std::equal(view.shape.begin(), view.shape.end(), expected_shape.begin(),
                  expected_shape.end())) {
    return error("shape ", ShapeToString(expected_shape), ", found ", ShapeToString(view.shape));
  }
  if (type ? view.type != *type : !IsWeightType(view.type)) {
    return error("dtype ", type ? TensorTypeName(*type) : "F32, F16 or BF16", ", found ",
                 TensorTypeName(view.type));
  }
  if (const int64_t index = IsWeightType(view.type) ? view.FirstNonFinite() : -1; index >= 0) {
    float value = 0;
    view.ReadFloats(index, {&value, 1});
    return error("finite values, found ", value, " at element ", index);
  }
  used_.emplace(name);
  return view;
}

std::optional<TensorType> Checkpoint::TypeOf(std::string_view name) const {
  const auto entry = file_of_.find(name);
  if (entry == file_of_.end()) return std::nullopt;
  return files_[entry->second].tensors().find(name)->second.type;
}

void Checkpoint::Release(const TensorView& tensor) {
  const auto entry = file_of_.find(tensor.name);
  PS_CHECK(entry != file_of_.end()) << tensor.name;
  files_[entry->second].Release(tensor);
  released_bytes_ += tensor.bytes;
  if (progress_) progress_(released_bytes_, total_bytes_);
}

std::vector<std::string> Checkpoint::UnusedTensors() const {
  std::vector<std::string> unused;
  for (const auto& [name, number] : file_of_) {
    if (!used_.contains(name)) unused.push_back(name);
  }
  return unused;
}

}  // namespace polysketch
