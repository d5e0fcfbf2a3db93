// Storage types of weight matrices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace polysketch {

// kQ8 and kQ4 are quantised types (kernels/quantize.h): kQ8 stores 8-bit integers and one float32
// scale for each output column, kQ4 stores 4-bit integers and one bf16 scale for each 32 rows of a
// column. A product with a quantised matrix quantises each row of activations to 8 bits.
enum class DataType { kF32, kF16, kBf16, kQ8, kQ4 };

// "f32", "f16", "bf16", "q8" or "q4".
std::string_view DataTypeName(DataType type);
// The inverse of DataTypeName. Returns nullopt for any other name.
std::optional<DataType> DataTypeOf(std::string_view name);
// All types, widest first.
std::span<const DataType> AllDataTypes();
bool IsQuantized(DataType type);
// Size of one element in bytes. Returns 0 for kQ4, whose elements are half a byte.
int64_t DataTypeBytes(DataType type);
// Size in bytes of a matrix [in, out] of `type`, scales included.
int64_t MatrixBytes(int64_t in, int64_t out, DataType type);

}  // namespace polysketch
