// What a client may make gRPC do: checks the frames of one HTTP/2 connection in both directions,
// and forwards them. gRPC 1.51 bounds neither header blocks, nor control frames, nor the bytes of
// messages that have not arrived whole. Credit of the client is held back until gRPC needs it
// (client_credit.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/principal.h"
#include "base/status.h"
#include "server/net/client_credit.h"
#include "server/net/header_block.h"
#include "server/net/http2_frame.h"
#include "server/net/token_bucket.h"

namespace polysketch {

struct FrameLimits {
  int64_t header_bytes = 64 << 10;  // of a header block on the wire
  int64_t header_fields = 512;      // of a header block
  int64_t open_streams = 288;
  double resets_per_second = 100;  // sustained, of streams; three times that in a burst
  // Frames that carry nothing: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, unknown types, and DATA of
  // less than 1 KiB that ends no message. Sustained; ten times that in a burst. A PING or SETTINGS
  // that must be answered counts ten times.
  double control_frames_per_second = 1000;
  // For the rest of a header block, and of a message; as much again for each MiB of the message.
  std::chrono::milliseconds stall_deadline{30'000};
};

class FrameFilter;

// Who counts the bytes of messages that have not arrived whole.
class MessageMemory {
 public:
  virtual ~MessageMemory() = default;
  // Returns false if `bytes` more of the filter's client do not fit. May reset streams of other
  // filters.
  virtual bool Charge(const FrameFilter& filter, int64_t bytes) = 0;
  virtual void Release(const FrameFilter& filter, int64_t bytes) = 0;
};

// Not thread-safe. An error of a function says why the connection must be closed:
// RESOURCE_EXHAUSTED for a flood, INVALID_ARGUMENT for bytes that are no HTTP/2 of a client.
class FrameFilter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Bytes for the two sides, to which the functions append.
  struct Output {
    std::string to_server;
    std::string to_client;
  };

  // `principal`: whose connection it is. `memory` and `output` outlive the filter.
  FrameFilter(const FrameLimits& limits, Principal principal, MessageMemory* memory,
              Output* output);
  ~FrameFilter();
  FrameFilter(const FrameFilter&) = delete;
  FrameFilter& operator=(const FrameFilter&) = delete;

  Status FromClient(std::string_view bytes, TimePoint now);
  Status FromServer(std::string_view bytes, TimePoint now);
  // Resets the streams whose message is late. An error: a header block is late.
  Status CheckDeadlines(TimePoint now);
  // Resets the stream that holds the most bytes of a message. An error: the connection must be
  // closed to free them.
  Status ResetLargest();
  const Principal& principal() const { return principal_; }
  // Bytes of messages that have not arrived whole.
  int64_t held() const { return held_; }
  // Whether the preface of HTTP/2 has arrived.
  bool started() const { return preface_ == kHttp2Preface.size(); }
  // Appends GOAWAY with the reason, unless the client would take it for a part of a frame.
  void SayGoodbye(const Status& reason);

 private:
  struct Stream {
    bool client_ended = false;
    bool server_ended = false;
    // The message that has begun: a prefix of 5 bytes, then `declared` bytes.
    int prefix = 0;  // bytes of the prefix that have arrived
    uint32_t declared = 0;
    uint32_t left = 0;  // of the declared bytes
    int64_t charged = 0;
    int64_t window = 0;  // bytes that the server has allowed and the client has not sent
    TimePoint begun{};   // when the client could last not send, or the message began
    int64_t arrived() const { return prefix + int64_t{declared} - left; }
  };
  using Streams = std::unordered_map<uint32_t, Stream>;
  static constexpr int64_t kInitialWindow = 65535;  // RFC 9113, section 6.9.2

  Status TakePreface(std::string_view* bytes);
  // The header of a frame of the client; sets forward_.
  Status OnHeader(const FrameHeader& frame, TimePoint now);
  Status OnHeaders(const FrameHeader& frame, TimePoint now);
  Status OnContinuation(const FrameHeader& frame, TimePoint now);
  Status OnData(const FrameHeader& frame, TimePoint now);
  Status OnPayload(const FrameHeader& frame, std::string_view piece);
  Status OnFrameEnd(const FrameHeader& frame, TimePoint now);
  Status OnDataEnd(const FrameHeader& frame, TimePoint now);
  // Bytes of the payload of the client's SETTINGS.
  void TakeSettings(std::string_view bytes);
  // The end of the client's WINDOW_UPDATE.
  void OnCredit(const FrameHeader& frame);
  void OnServerHeader(const FrameHeader& frame);
  Status OnServerFrameEnd(const FrameHeader& frame, TimePoint now);
  void OnServerSettings();
  void OnServerWindowUpdate(uint32_t stream);
  Status CountControlFrame(double weight, TimePoint now);
  Status CountReset(TimePoint now);
  // Removes padding and priority from the next piece of a payload.
  std::string_view Body(std::string_view piece);
  void TakeMessageBytes(Stream* stream, std::string_view bytes);
  void EndSide(uint32_t stream, bool Stream::*side);
  Status ResetStream(Streams::iterator stream);
  // Completes the frame that the server is receiving. Returns false if it cannot be completed.
  bool CompleteServerFrame();
  void DropData(uint32_t length);
  void Erase(Streams::iterator stream);
  // Frames of the filter wait for the end of the server's frame or header block.
  void ToClient(std::string_view frames);

  const FrameLimits limits_;
  const Principal principal_;
  MessageMemory* const memory_;
  Output* const output_;
  TokenBucket resets_;
  TokenBucket control_;
  Streams streams_;  // open ones
  int64_t held_ = 0;
  uint32_t last_stream_ = 0;

  // --- frames of the client ---
  size_t preface_ = 0;  // bytes that have arrived
  FrameCursor client_;
  bool forward_ = true;           // the frame that has begun
  bool pad_length_next_ = false;  // the next byte of its payload is the length of its padding
  uint32_t skip_ = 0;             // bytes before the body of its payload
  uint32_t body_ = 0;             // bytes of its body, and then padding
  bool ended_message_ = false;    // in it
  HeaderBlockScanner scanner_;
  uint32_t block_stream_ = 0;  // of a header block that has not ended; 0: none
  bool block_ends_stream_ = false;
  TimePoint block_begun_{};
  std::string client_payload_;  // of WINDOW_UPDATE, or of one setting: at most 6 bytes
  ClientCredit credit_;

  // --- frames of the server ---
  FrameCursor server_;
  bool server_in_block_ = false;
  std::string server_payload_;               // of a frame that the filter reads
  std::string waiting_;                      // for the client
  int64_t initial_window_ = kInitialWindow;  // of a stream
  int64_t window_ = kInitialWindow;          // of the connection, as Stream::window
};

}  // namespace polysketch
