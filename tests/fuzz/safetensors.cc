// A safetensors file: an error, or tensors that tile the data and can be read to their last
// element.
#include "engine/checkpoint/safetensors.h"

#include <cmath>

#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

void ReadEverything(const TensorView& tensor) {
  PS_CHECK(tensor.bytes % TensorTypeBytes(tensor.type) == 0) << tensor.name;
  const auto elements = static_cast<size_t>(tensor.size());
  switch (tensor.type) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16: {
      std::vector<float> values(elements);
      tensor.ReadFloats(0, values);
      int64_t first = -1;
      for (size_t i = elements; i-- > 0;) {
        if (!std::isfinite(values[i])) first = static_cast<int64_t>(i);
      }
      PS_CHECK(first == tensor.FirstNonFinite()) << tensor.name;
      return;
    }
    case TensorType::kF64: {
      std::vector<double> values(elements);
      return tensor.ReadDoubles(0, values);
    }
    case TensorType::kI32: {
      std::vector<int32_t> values(elements);
      return tensor.ReadInts(0, values);
    }
    case TensorType::kI8:
    case TensorType::kU8:
      return;
  }
}

void CheckFile(const SafetensorsFile& file) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : file.tensors()) {
    size_t elements = 1;
    for (const int64_t size : tensor.shape) {
      PS_CHECK(size >= 0) << name;
      PS_CHECK(!__builtin_mul_overflow(elements, static_cast<size_t>(size), &elements)) << name;
    }
    PS_CHECK(elements * TensorTypeBytes(tensor.type) == tensor.bytes) << name;
    bytes += tensor.bytes;
    ReadEverything(tensor);
  }
  PS_CHECK(bytes == file.data_bytes());
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  static fuzz::MemoryFile file;
  file.Write({reinterpret_cast<const char*>(data), size});
  const auto opened = SafetensorsFile::Open(file.path());
  if (opened.ok()) {
    CheckFile(*opened);
  } else {
    fuzz::CheckError(opened.status());
  }
  return 0;
}
