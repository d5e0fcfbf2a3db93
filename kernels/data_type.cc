#include "kernels/data_type.h"

#include <iterator>

#include "kernels/quantize.h"

namespace polysketch {

std::span<const DataType> AllDataTypes() {
  static constexpr DataType kAll[] = {DataType::kF32, DataType::kBf16, DataType::kF16,
                                      DataType::kQ8, DataType::kQ4};
  return kAll;
}

std::string_view DataTypeName(DataType type) {
  static constexpr std::string_view kNames[] = {"f32", "f16", "bf16", "q8",
                                                "q4"};  // in the order of DataType
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::optional<DataType> DataTypeOf(std::string_view name) {
  for (const DataType type : AllDataTypes()) {
    if (DataTypeName(type) == name) return type;
  }
  return std::nullopt;
}

bool IsQuantized(DataType type) { return type == DataType::kQ8 || type == DataType::kQ4; }

int64_t DataTypeBytes(DataType type) {
  static constexpr int64_t kBytes[] = {4, 2, 2, 1, 0};  // kQ4: half a byte
  return kBytes[static_cast<size_t>(type)];
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
