#include "kernels/data_type.h"

#include "kernels/quantize.h"

namespace polysketch {

std::span<const DataType> AllDataTypes() {
  static constexpr DataType kAll[] = {DataType::kF32, DataType::kBf16, DataType::kF16,
                                      DataType::kQ8, DataType::kQ4};
  return kAll;
}

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
    case DataType::kQ4:
      return "q4";
  }
  return "unknown";
}

std::optional<DataType> DataTypeOf(std::string_view name) {
  for (const DataType type : AllDataTypes()) {
    if (DataTypeName(type) == name) return type;
  }
  return std::nullopt;
}

bool IsQuantized(DataType type) { return type == DataType::kQ8 || type == DataType::kQ4; }

int64_t DataTypeBytes(DataType type) {
  switch (type) {
    case DataType::kF32:
      return 4;
    case DataType::kF16:
    case DataType::kBf16:
      return 2;
    case DataType::kQ8:
      return 1;
    case DataType::kQ4:
      break;  // half a byte
  }
  return 0;
}

int64_t MatrixBytes(int64_t in, int64_t out, DataType type) {
  switch (type) {
    case DataType::kQ8:
      return in * out + out * 4;
    case DataType::kQ4:
      return Q4Groups(in) * out * (kQ4Group / 2 + 2);
    default:
      return in * out * DataTypeBytes(type);
  }
}

}  // namespace polysketch
