// Records of fixed-width little-endian fields (base/byte_io.h). One function lists the fields of a
// record for both directions, so that the reader cannot disagree with the writer:
//
//   template <typename Fields, typename Usage>
//   void Visit(Fields& fields, Usage& usage) { fields(usage.tokens, usage.tenant); }
//
// Visit takes a FieldWriter and a const Usage, or a FieldReader and a Usage.
//
// Numbers and bools are copied. Strings and arrays of numbers are u64 bytes and then the bytes. An
// optional is a bool and then a value, 0 when unset. Pairs are an array of the first values and an
// array of the second ones.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/byte_io.h"

namespace polysketch {

template <typename T>
concept Number = std::is_arithmetic_v<T>;

class FieldWriter {
 public:
  // The record begins with `magic`, which has no size before it.
  explicit FieldWriter(std::string_view magic = {}) {
    for (const char c : magic) out_.Put(c);
  }

  template <typename... T>
  void operator()(const T&... values) {
    (Put(values), ...);
  }
  // The number of elements, u64, and visit(element) for each.
  template <typename T, typename Visit>
  void Each(const std::vector<T>& elements, const Visit& visit) {
    Put(uint64_t{elements.size()});
    for (const T& element : elements) visit(element);
  }
  std::string Take() && { return std::move(out_).Take(); }

 private:
  template <Number T>
  void Put(T value) {
    out_.Put(value);
  }
  void Put(std::string_view bytes) { out_.PutBytes(bytes); }
  template <Number T>
  void Put(const std::vector<T>& values) {
    out_.PutArray(std::span<const T>(values));
  }
  template <Number T, size_t size>
  void Put(const std::array<T, size>& values) {
    for (const T value : values) out_.Put(value);
  }
  template <Number T>
  void Put(const std::optional<T>& value) {
    (*this)(value.has_value(), value.value_or(T{}));
  }
  template <Number A, Number B>
  void Put(const std::vector<std::pair<A, B>>& pairs) {
    std::vector<A> firsts;
    std::vector<B> seconds;
    for (const auto& [first, second] : pairs) {
      firsts.push_back(first);
      seconds.push_back(second);
    }
    (*this)(firsts, seconds);
  }

  ByteWriter out_;
};

// Reads untrusted bytes. After a field that is missing or malformed, ok() and Finished() are false,
// and the values of further fields have no meaning.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : in_(bytes) {}

  template <typename... T>
  void operator()(T&... values) {
    (Get(values), ...);
  }
  template <typename T, typename Visit>
  void Each(std::vector<T>& elements, const Visit& visit) {
    uint64_t count = 0;
    Get(count);
    for (uint64_t i = 0; i < count && ok(); ++i) visit(elements.emplace_back());
  }
  bool ok() const { return ok_ && in_.ok(); }
  // Whether every byte was read, and no field was missing or malformed.
  bool Finished() const { return ok_ && in_.Finished(); }

 private:
  template <Number T>
  void Get(T& value) {
    if constexpr (std::same_as<T, bool>) {
      value = in_.GetBool();
    } else {
      value = in_.Get<T>();
    }
  }
  void Get(std::string& bytes) { bytes = in_.GetBytes(); }
  template <Number T>
  void Get(std::vector<T>& values) {
    values = in_.GetArray<T>();
  }
  template <Number T, size_t size>
  void Get(std::array<T, size>& values) {
    for (T& value : values) Get(value);
  }
  template <Number T>
  void Get(std::optional<T>& value) {
    bool present = false;
    T number{};
    (*this)(present, number);
    value = present ? std::optional<T>(number) : std::nullopt;
  }
  template <Number A, Number B>
  void Get(std::vector<std::pair<A, B>>& pairs) {
    std::vector<A> firsts;
    std::vector<B> seconds;
    (*this)(firsts, seconds);
    ok_ = ok_ && firsts.size() == seconds.size();
    for (size_t i = 0; ok_ && i < firsts.size(); ++i) pairs.emplace_back(firsts[i], seconds[i]);
  }

  ByteReader in_;
  bool ok_ = true;
};

}  // namespace polysketch
