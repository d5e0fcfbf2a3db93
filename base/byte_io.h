// Fixed-width fields in little-endian order, written to a string and read from bytes that may be
// anything. We run on little-endian machines only, so a field is a copy.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace polysketch {

static_assert(std::endian::native == std::endian::little);

class ByteWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutBytes(std::string_view bytes) {
    Put<uint64_t>(bytes.size());
    bytes_.append(bytes);
  }
  template <typename T>
  void PutArray(std::span<const T> values) {
    static_assert(std::is_arithmetic_v<T>);
    PutBytes({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After a field that is not there every further one is zero or empty, and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Get() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value{};
    if (const std::string_view field = Take(sizeof(T)); !field.empty())
      std::memcpy(&value, field.data(), sizeof(T));
    return value;
  }
  // 0 or 1.
  bool GetBool() {
    const auto value = Get<uint8_t>();
    ok_ = ok_ && value <= 1;
    return value == 1;
  }
  std::string_view GetBytes() { return Take(Get<uint64_t>()); }
  template <typename T>
  std::vector<T> GetArray() {
    const std::string_view bytes = GetBytes();
    if (bytes.size() % sizeof(T) != 0) ok_ = false;
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  bool ok() const { return ok_; }
  // Everything was read, and nothing was missing.
  bool Finished() const { return ok_ && rest_.empty(); }

 private:
  std::string_view Take(uint64_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace polysketch
