// Bounds what a header block of HTTP/2 makes gRPC hold. An indexed field of HPACK is one byte on
// the wire and about 140 bytes in gRPC 1.51, which checks the size of a block only at its end.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// Cuts the fragments of a header block into fields (RFC 7541, section 6), without their contents.
class HeaderBlockScanner {
 public:
  // `max_bytes`: of the block on the wire. `max_fields`: fields and changes of the table's size.
  HeaderBlockScanner(int64_t max_bytes, int64_t max_fields)
      : max_bytes_(max_bytes), max_fields_(max_fields) {}

  void Begin();
  // RESOURCE_EXHAUSTED for a block above a limit, INVALID_ARGUMENT for bytes that are no HPACK.
  Status Add(std::string_view fragment);
  // INVALID_ARGUMENT for a block that ends within a field.
  Status End() const;

 private:
  enum class State { kField, kIndex, kLengthStart, kLength, kText };
  // Takes one byte of a field that is no text.
  Status Take(uint8_t byte);
  Status BeginField(uint8_t byte);
  // Starts an integer of RFC 7541, section 5.1. Returns whether it is complete.
  bool BeginInteger(uint8_t byte, uint8_t mask);
  // Adds a byte to the integer. Sets *complete.
  Status ContinueInteger(uint8_t byte, bool* complete);
  void AfterIndex();
  void AfterLength();
  void AfterText();

  const int64_t max_bytes_;
  const int64_t max_fields_;
  int64_t bytes_ = 0;
  int64_t fields_ = 0;
  State state_ = State::kField;
  bool literal_ = false;  // the field has a value after its index
  int texts_left_ = 0;    // of the field: name, value
  uint32_t integer_ = 0;
  int shift_ = 0;  // of the next byte of integer_
};

}  // namespace polysketch
