#include "server/net/header_block.h"

#include <algorithm>

namespace polysketch {
namespace {

// Bytes of an integer after its prefix: values up to 2^28 + 254.
constexpr int kMaxShift = 28;

}  // namespace

void HeaderBlockScanner::Begin() {
  bytes_ = fields_ = 0;
  state_ = State::kField;
}

Status HeaderBlockScanner::Add(std::string_view fragment) {
  bytes_ += static_cast<int64_t>(fragment.size());
  if (bytes_ > max_bytes_) {
    return ResourceExhausted("a header block: expected at most ", max_bytes_, " bytes, found more");
  }
  while (!fragment.empty()) {
    if (state_ == State::kText) {
      const size_t count = std::min<size_t>(integer_, fragment.size());
      fragment.remove_prefix(count);
      integer_ -= static_cast<uint32_t>(count);
      if (integer_ == 0) AfterText();
      continue;
    }
    PS_RETURN_IF_ERROR(Take(static_cast<uint8_t>(fragment.front())));
    fragment.remove_prefix(1);
  }
  return Status();
}

Status HeaderBlockScanner::End() const {
  if (state_ == State::kField) return Status();
  return InvalidArgument("a header block: expected whole fields, found an end within one");
}

Status HeaderBlockScanner::Take(uint8_t byte) {
  bool complete = false;
  switch (state_) {
    case State::kField:
      return BeginField(byte);
    case State::kIndex:
      PS_RETURN_IF_ERROR(ContinueInteger(byte, &complete));
      if (complete) AfterIndex();
      return Status();
    case State::kLengthStart:
      state_ = State::kLength;
      if (BeginInteger(byte, 0x7f)) AfterLength();  // the first bit: Huffman coding
      return Status();
    case State::kLength:
      PS_RETURN_IF_ERROR(ContinueInteger(byte, &complete));
      if (complete) AfterLength();
      return Status();
    case State::kText:
      break;  // Add takes texts
  }
  return Status();
}

Status HeaderBlockScanner::BeginField(uint8_t byte) {
  if (++fields_ > max_fields_) {
    return ResourceExhausted("a header block: expected at most ", max_fields_,
                             " fields, found more");
  }
  state_ = State::kIndex;
  uint8_t mask = 0x0f;  // a literal without indexing
  literal_ = true;
  if ((byte & 0x80) != 0) {  // an indexed field
    mask = 0x7f;
    literal_ = false;
  } else if ((byte & 0x40) != 0) {  // a literal with indexing
    mask = 0x3f;
  } else if ((byte & 0x20) != 0) {  // the size of the table
    mask = 0x1f;
    literal_ = false;
  }
  if (BeginInteger(byte, mask)) AfterIndex();
  return Status();
}

bool HeaderBlockScanner::BeginInteger(uint8_t byte, uint8_t mask) {
  integer_ = byte & mask;
  shift_ = 0;
  return integer_ < mask;
}

Status HeaderBlockScanner::ContinueInteger(uint8_t byte, bool* complete) {
  if (shift_ >= kMaxShift)
    return InvalidArgument("a header block: expected integers below 2^28, found a longer one");
  integer_ += static_cast<uint32_t>(byte & 0x7f) << shift_;
  shift_ += 7;
  *complete = (byte & 0x80) == 0;
  return Status();
}

void HeaderBlockScanner::AfterIndex() {
  if (!literal_) {
    state_ = State::kField;
    return;
  }
  texts_left_ = integer_ == 0 ? 2 : 1;  // index 0: the name is a text too
  state_ = State::kLengthStart;
}

void HeaderBlockScanner::AfterLength() {
  state_ = State::kText;
  if (integer_ == 0) AfterText();
}

void HeaderBlockScanner::AfterText() {
  state_ = --texts_left_ > 0 ? State::kLengthStart : State::kField;
}

}  // namespace polysketch
