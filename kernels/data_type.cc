#include "kernels/backend.h"

namespace polysketch {

std::string_view DataTypeName(DataType type) {
  switch (type) {
    case DataType::kF32:
      return "f32";
    case DataType::kF16:
      return "f16";
    case DataType::kBf16:
      return "bf16";
    case DataType::kQ8:
      return "q8";
  }
  return "unknown";
}

int64_t DataTypeBytes(DataType type) {
  switch (type) {
    case DataType::kF32:
      return 4;
    case DataType::kF16:
    case DataType::kBf16:
      return 2;
    case DataType::kQ8:
      return 1;
  }
  return 0;
}

}  // namespace polysketch
