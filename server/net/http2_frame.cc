#include "server/net/http2_frame.h"

#include <algorithm>
#include <cstring>

namespace polysketch {
namespace {

void AppendBigEndian(uint32_t value, int count, std::string* out) {
  for (int shift = 8 * (count - 1); shift >= 0; shift -= 8)
    out->push_back(static_cast<char>(value >> shift));
}

void AppendHeader(size_t length, FrameType type, uint32_t stream, std::string* out) {
  AppendBigEndian(static_cast<uint32_t>(length), 3, out);
  out->push_back(static_cast<char>(type));
  out->push_back(0);  // flags
  AppendBigEndian(stream, 4, out);
}

}  // namespace

uint32_t BigEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

FrameCursor::Part FrameCursor::Next(std::string_view* bytes, std::string_view* piece) {
  if (bytes->empty()) return Part::kNone;
  if (have_ < raw_.size()) {
    const size_t count = std::min(raw_.size() - have_, bytes->size());
    std::memcpy(raw_.data() + have_, bytes->data(), count);
    bytes->remove_prefix(count);
    have_ += count;
    if (have_ < raw_.size()) return Part::kNone;
    const std::string_view raw = raw_header();
    header_ = {.length = BigEndian(raw.substr(0, 3)),
               .type = static_cast<FrameType>(raw_[3]),
               .flags = static_cast<uint8_t>(raw_[4]),
               .stream = BigEndian(raw.substr(5)) & 0x7fffffff};
    payload_left_ = header_.length;
    if (payload_left_ == 0) have_ = 0;
    return Part::kHeader;
  }
  const size_t count = std::min<size_t>(payload_left_, bytes->size());
  *piece = bytes->substr(0, count);
  bytes->remove_prefix(count);
  payload_left_ -= static_cast<uint32_t>(count);
  if (payload_left_ == 0) have_ = 0;
  return Part::kPayload;
}

void AppendRstStream(uint32_t stream, Http2Error error, std::string* out) {
  AppendHeader(4, FrameType::kRstStream, stream, out);
  AppendBigEndian(static_cast<uint32_t>(error), 4, out);
}

void AppendWindowUpdate(uint32_t stream, uint32_t bytes, std::string* out) {
  AppendHeader(4, FrameType::kWindowUpdate, stream, out);
  AppendBigEndian(bytes, 4, out);
}

void AppendGoAway(uint32_t last_stream, Http2Error error, std::string_view text, std::string* out) {
  AppendHeader(8 + text.size(), FrameType::kGoAway, 0, out);
  AppendBigEndian(last_stream, 4, out);
  AppendBigEndian(static_cast<uint32_t>(error), 4, out);
  *out += text;
}

}  // namespace polysketch
