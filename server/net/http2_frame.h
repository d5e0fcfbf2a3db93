// Frames of HTTP/2 (RFC 9113): the headers in a byte stream, and the few frames that the server
// itself sends.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace polysketch {

// The first bytes of a client (RFC 9113, section 3.4).
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

inline constexpr uint8_t kEndStreamFlag = 0x1;  // of DATA and HEADERS
inline constexpr uint8_t kAckFlag = 0x1;        // of SETTINGS and PING
inline constexpr uint8_t kEndHeadersFlag = 0x4;
inline constexpr uint8_t kPaddedFlag = 0x8;
inline constexpr uint8_t kPriorityFlag = 0x20;

enum class Http2Error : uint32_t {
  kNoError = 0,
  kProtocolError = 1,
  kCancel = 8,
  kEnhanceYourCalm = 11,  // a gRPC client reports it as RESOURCE_EXHAUSTED
};

inline constexpr size_t kFrameHeaderBytes = 9;

struct FrameHeader {
  uint32_t length = 0;  // of the payload, in bytes
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint32_t stream = 0;

  bool Has(uint8_t flag) const { return (flags & flag) != 0; }
};

// Cuts a byte stream into the headers and payloads of its frames.
class FrameCursor {
 public:
  enum class Part {
    kNone,     // the bytes ended
    kHeader,   // header() is the next frame's
    kPayload,  // *piece is a part of its payload, the last one if at_boundary()
  };
  // Removes the part that it returns from *bytes.
  Part Next(std::string_view* bytes, std::string_view* piece);

  const FrameHeader& header() const { return header_; }
  // The nine bytes of header().
  std::string_view raw_header() const { return {raw_.data(), raw_.size()}; }
  // Whether no frame has a header without all of its payload.
  bool at_boundary() const { return have_ < kFrameHeaderBytes; }
  // Bytes of the payload that have not arrived.
  uint32_t payload_left() const { return at_boundary() ? 0 : payload_left_; }

 private:
  FrameHeader header_;
  std::array<char, kFrameHeaderBytes> raw_{};
  size_t have_ = 0;            // bytes of raw_
  uint32_t payload_left_ = 0;  // after a whole header
};

// The number that up to four bytes spell.
uint32_t BigEndian(std::string_view bytes);

void AppendRstStream(uint32_t stream, Http2Error error, std::string* out);
void AppendWindowUpdate(uint32_t stream, uint32_t bytes, std::string* out);
// `last_stream`: the last stream that the server may have handled.
void AppendGoAway(uint32_t last_stream, Http2Error error, std::string_view text, std::string* out);

}  // namespace polysketch
