// Fixed-width little-endian fields: written to a string, and read from untrusted bytes. Only
// little-endian machines are supported, so a field is copied as it is.
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

// Reads fields in order. After a field that is missing or malformed, ok() is false and every
// further field is zero or empty.
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
  // Any byte but 0 and 1 is malformed.
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
  // Whether every byte was read, and no field was missing or malformed.
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
