#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/half.h"
#include "engine/checkpoint/strict_json.h"

namespace polysketch {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr uint64_t kLengthBytes = 8;               // the length of the header, stored before it
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the specification's limit
constexpr size_t kMaxRank = 8;                     // weights have at most 3; bounds error messages
constexpr size_t kMaxNameBytes = 256;              // bounds error messages
constexpr int kHeaderDepth = 3;                    // {"name": {"shape": [...]}}

struct TypeInfo {
  TensorType type;
  std::string_view name;
  size_t bytes;
};
constexpr std::array<TypeInfo, 7> kTypes = {{
    {TensorType::kF64, "F64", 8},
    {TensorType::kF32, "F32", 4},
    {TensorType::kF16, "F16", 2},
    {TensorType::kBF16, "BF16", 2},
    {TensorType::kI32, "I32", 4},
    {TensorType::kI8, "I8", 1},
    {TensorType::kU8, "U8", 1},
}};

const TypeInfo& InfoOf(TensorType type) {
  const auto it = std::find_if(kTypes.begin(), kTypes.end(),
                               [&](const TypeInfo& info) { return info.type == type; });
  PS_CHECK(it != kTypes.end()) << "tensor type " << static_cast<int>(type);
  return *it;
}

// Reads one entry of the header. Every error message begins with `where` ("FILE: tensor NAME").
class EntryReader {
 public:
  EntryReader(const json& entry, std::string where) : entry_(entry), where_(std::move(where)) {}

  // `data` is the byte buffer after the header.
  Result<TensorView> Read(std::string name, std::span<const std::byte> data) {
    if (!entry_.is_object()) return Error("expected an object, found ", DescribeJson(entry_));
    for (const auto& [key, value] : entry_.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets")
        return Error("unknown field \"", Abbreviate(key), "\"");
    }
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!entry_.contains(key)) return Error("field \"", key, "\" is missing");
    }
    TensorView view;
    view.name = std::move(name);
    PS_RETURN_IF_ERROR(ReadType(view));
    PS_ASSIGN_OR_RETURN(const uint64_t shape_bytes, ReadShape(view));
    PS_ASSIGN_OR_RETURN(const auto offsets, ReadOffsets());
    const auto [begin, end] = offsets;
    if (begin > end) return Error("data_offsets end before they begin: [", begin, ", ", end, "]");
    if (end > data.size()) {
      return Error("data_offsets [", begin, ", ", end, "] reach beyond the data: expected at most ",
                   data.size(), " bytes (truncated file?)");
    }
    if (end - begin != shape_bytes) {
      return Error("shape ", ShapeToString(view.shape), " of ", TensorTypeName(view.type),
                   ": expected ", shape_bytes, " bytes, found data_offsets [", begin, ", ", end,
                   "], that is ", end - begin, " bytes");
    }
    view.data = data.data() + begin;
    view.bytes = end - begin;
    return view;
  }

 private:
  template <typename... Args>
  Status Error(const Args&... args) const {
    return InvalidArgument(where_, ": ", args...);
  }

  Status ReadType(TensorView& view) {
    const json& dtype = entry_["dtype"];
    if (dtype.is_string()) {
      for (const TypeInfo& info : kTypes) {
        if (info.name == dtype.get_ref<const std::string&>()) {
          view.type = info.type;
          return Status();
        }
      }
    }
    return Error("dtype: expected F64, F32, F16, BF16, I32, I8 or U8, found ", DescribeJson(dtype));
  }

  // Reads the shape. Returns its size in bytes.
  Result<uint64_t> ReadShape(TensorView& view) {
    const json& shape = entry_["shape"];
    if (!shape.is_array()) return Error("shape: expected an array, found ", DescribeJson(shape));
    if (shape.size() > kMaxRank)
      return Error("shape: expected at most ", kMaxRank, " dimensions, found ", shape.size());
    bool overflow = false;
    uint64_t bytes = TensorTypeBytes(view.type);
    for (const json& dim : shape) {
      if (!dim.is_number_unsigned()) {
        return Error("shape: expected integers from 0 to 2^63 - 1, found ", DescribeJson(dim));
      }
      const auto extent = dim.get<uint64_t>();
      if (extent > static_cast<uint64_t>(INT64_MAX)) {
        return Error("shape: expected integers from 0 to 2^63 - 1, found ", extent);
      }
      overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
      view.shape.push_back(static_cast<int64_t>(extent));
    }
    if (overflow)
      return Error("shape ", ShapeToString(view.shape), ": its size in bytes overflows 64 bits");
    return bytes;
  }

  Result<std::pair<uint64_t, uint64_t>> ReadOffsets() {
    const json& offsets = entry_["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      return Error("data_offsets: expected two integers [begin, end], found ",
                   offsets.size() <= 4
                       ? offsets.dump(-1, ' ', false, json::error_handler_t::replace)
                       : DescribeJson(offsets));
    }
    return std::pair(offsets[0].get<uint64_t>(), offsets[1].get<uint64_t>());
  }

  const json& entry_;
  std::string where_;
};

Status CheckMetadata(const json& metadata, const std::string& path) {
  if (!metadata.is_object()) {
    return InvalidArgument(path, ": __metadata__: expected an object of strings, found ",
                           DescribeJson(metadata));
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return InvalidArgument(path, ": __metadata__: \"", Abbreviate(key),
                             "\": expected a string, found ", DescribeJson(value));
    }
  }
  return Status();
}

// Checks that the tensors tile the data: every byte belongs to exactly one tensor.
Status CheckCoverage(const std::map<std::string, TensorView, std::less<>>& tensors,
                     std::span<const std::byte> data, const std::string& path) {
  std::vector<const TensorView*> order;
  order.reserve(tensors.size());
  for (const auto& [name, view] : tensors) order.push_back(&view);
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    return std::pair(a->data, a->bytes) < std::pair(b->data, b->bytes);
  });
  uint64_t position = 0;
  const TensorView* previous = nullptr;
  for (const TensorView* view : order) {
    const auto begin = static_cast<uint64_t>(view->data - data.data());
    if (begin < position) {
      return InvalidArgument(path, ": tensor ", view->name, ": overlaps tensor ", previous->name,
                             ": expected to begin at byte ", position, ", found ", begin);
    }
    if (begin > position) {
      return InvalidArgument(path, ": tensor ", view->name, ": hole of ", begin - position,
                             " bytes before it: expected to begin at byte ", position, ", found ",
                             begin);
    }
    position = begin + view->bytes;
    previous = view;
  }
  if (position != data.size()) {
    return InvalidArgument(path, ": ", data.size() - position,
                           " bytes after the last tensor: expected ", position,
                           " bytes of data, found ", data.size());
  }
  return Status();
}

template <typename Stored, typename Out, typename Convert>
void ReadAs(const TensorView& tensor, int64_t begin, std::span<Out> out, Convert convert) {
  PS_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tensor.size())
      << tensor.name << ": elements [" << begin << ", +" << out.size() << ") of " << tensor.size();
  const std::byte* source = tensor.data + static_cast<size_t>(begin) * sizeof(Stored);
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, source + i * sizeof(Stored), sizeof(Stored));
    out[i] = convert(stored);
  }
}

// Returns the index of the first element whose exponent bits are all set (infinity or NaN), or -1.
// Adding the lowest exponent bit to these bits carries into the sign bit. The sign bits of a block
// are gathered without a branch, so that the check of all weights runs at the speed of memory.
template <typename Bits>
int64_t FirstWithExponent(const std::byte* data, int64_t size, Bits exponent) {
  constexpr int64_t kBlock = 4096;
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  const Bits lowest = exponent & static_cast<Bits>(~exponent + 1);
  const auto carry = [&](int64_t i) -> Bits {
    Bits bits;
    std::memcpy(&bits, data + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
    return static_cast<Bits>((bits & exponent) + lowest);
  };
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t end = std::min(size, begin + kBlock);
    Bits gathered = 0;
    for (int64_t i = begin; i < end; ++i) gathered |= carry(i);
    if ((gathered & kSign) == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((carry(i) & kSign) != 0) return i;
    }
  }
  return -1;
}

}  // namespace

std::string_view TensorTypeName(TensorType type) { return InfoOf(type).name; }

size_t TensorTypeBytes(TensorType type) { return InfoOf(type).bytes; }

std::string ShapeToString(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += StrCat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

void TensorView::ReadFloats(int64_t begin, std::span<float> out) const {
  switch (type) {
    case TensorType::kF32:
      return ReadAs<float>(*this, begin, out, [](float v) { return v; });
    case TensorType::kF16:
      return ReadAs<uint16_t>(*this, begin, out, F16ToFloat);
    case TensorType::kBF16:
      return ReadAs<uint16_t>(*this, begin, out, Bf16ToFloat);
    case TensorType::kF64:
      return ReadAs<double>(*this, begin, out, [](double v) { return static_cast<float>(v); });
    case TensorType::kI32:
    case TensorType::kI8:
    case TensorType::kU8:
      PS_CHECK(false) << name << " holds integers";
  }
}

void TensorView::ReadDoubles(int64_t begin, std::span<double> out) const {
  PS_CHECK(type == TensorType::kF64 || type == TensorType::kF32)
      << name << " is " << TensorTypeName(type);
  if (type == TensorType::kF64)
    return ReadAs<double>(*this, begin, out, [](double v) { return v; });
  ReadAs<float>(*this, begin, out, [](float v) { return static_cast<double>(v); });
}

void TensorView::ReadInts(int64_t begin, std::span<int32_t> out) const {
  PS_CHECK(type == TensorType::kI32) << name << " is " << TensorTypeName(type);
  ReadAs<int32_t>(*this, begin, out, [](int32_t v) { return v; });
}

int64_t TensorView::FirstNonFinite() const {
  switch (type) {
    case TensorType::kF32:
      return FirstWithExponent<uint32_t>(data, size(), 0x7f800000);
    case TensorType::kF16:
      return FirstWithExponent<uint16_t>(data, size(), 0x7c00);
    case TensorType::kBF16:
      return FirstWithExponent<uint16_t>(data, size(), 0x7f80);
    default:
      PS_CHECK(false) << name << " is " << TensorTypeName(type);
      return -1;
  }
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  PS_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  return Read(path, std::move(mapped));
}

Result<SafetensorsFile> SafetensorsFile::Read(const std::string& path, MappedFile mapped) {
  SafetensorsFile file(path, std::move(mapped));
  const std::span<const std::byte> bytes(file.file_.data(), file.file_.size());
  if (bytes.size() < kLengthBytes) {
    return InvalidArgument(path, ": expected at least ", kLengthBytes, " bytes, found ",
                           bytes.size());
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    return InvalidArgument(path, ": header length: expected at most ", kMaxHeaderBytes, ", found ",
                           header_bytes);
  }
  if (header_bytes > bytes.size() - kLengthBytes) {
    return InvalidArgument(path, ": header length ", header_bytes,
                           " reaches beyond the file: expected at most ",
                           bytes.size() - kLengthBytes);
  }
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                header_bytes);
  if (!header.starts_with('{'))
    return InvalidArgument(path, ": header: expected it to begin with '{'");
  PS_ASSIGN_OR_RETURN(const json object, ParseStrictJson(header, path + ": header", kHeaderDepth));

  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  for (const auto& [name, entry] : object.items()) {
    if (name == "__metadata__") {
      PS_RETURN_IF_ERROR(CheckMetadata(entry, path));
      continue;
    }
    if (name.size() > kMaxNameBytes) {
      return InvalidArgument(path, ": tensor ", Abbreviate(name), ": expected a name of at most ",
                             kMaxNameBytes, " bytes, found ", name.size());
    }
    PS_ASSIGN_OR_RETURN(TensorView view,
                        EntryReader(entry, StrCat(path, ": tensor ", name)).Read(name, data));
    file.tensors_.emplace(name, std::move(view));
  }
  PS_RETURN_IF_ERROR(CheckCoverage(file.tensors_, data, path));
  file.data_bytes_ = data.size();
  return file;
}

}  // namespace polysketch
