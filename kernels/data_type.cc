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
  }
  return "unknown";
}

int64_t DataTypeBytes(DataType type) { return type == DataType::kF32 ? 4 : 2; }

}  // namespace polysketch
