// One safetensors file (https://github.com/huggingface/safetensors#format), mapped and validated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/mapped_file.h"

namespace polysketch {

// The types that are read. Weights are F32, F16 or BF16, or I8 or U8 when quantised; test data uses
// the others.
enum class TensorType { kF64, kF32, kF16, kBF16, kI32, kI8, kU8 };

std::string_view TensorTypeName(TensorType type);  // as safetensors spells it: "BF16"
size_t TensorTypeBytes(TensorType type);
std::string ShapeToString(std::span<const int64_t> shape);  // "[64, 192]"

// A tensor in a mapped file: row-major, little-endian, valid as long as the SafetensorsFile exists.
// The format does not align data for its type: read it through the functions below.
struct TensorView {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;

  int64_t size() const { return static_cast<int64_t>(bytes / TensorTypeBytes(type)); }  // elements

  // Reads elements [begin, begin + out.size()) as float32. F32, F16 and BF16 are exact, F64 is
  // rounded. PS_CHECK: the range is within the tensor, and the type is a floating-point one.
  void ReadFloats(int64_t begin, std::span<float> out) const;
  // As ReadFloats: ReadDoubles for kF64 and kF32 (exact), ReadInts for kI32.
  void ReadDoubles(int64_t begin, std::span<double> out) const;
  void ReadInts(int64_t begin, std::span<int32_t> out) const;
  // The index of the first NaN or infinity of a kF32, kF16 or kBF16 tensor, or -1.
  int64_t FirstNonFinite() const;
};

class SafetensorsFile {
 public:
  // INVALID_ARGUMENT for a file that violates the specification; the message names the file, the
  // tensor, what was expected and what was found. Errors of opening as MappedFile::Open.
  static Result<SafetensorsFile> Open(const std::string& path);
  // The same of a file that is mapped. `path`: for messages.
  static Result<SafetensorsFile> Read(const std::string& path, MappedFile mapped);

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  // Bytes of all tensors together.
  size_t data_bytes() const { return data_bytes_; }
  // See MappedFile::Release.
  void Release(const TensorView& tensor) const { file_.Release(tensor.data, tensor.bytes); }

 private:
  SafetensorsFile(std::string path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  MappedFile file_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  size_t data_bytes_ = 0;
};

}  // namespace polysketch
