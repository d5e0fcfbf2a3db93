#include "server/net/frame_filter.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace polysketch {
namespace {

constexpr double kControlBurstSeconds = 10;
// Shorter: gRPC holds 12 KB for each reset stream until its threads free the call.
constexpr double kResetBurstSeconds = 3;
constexpr int kPrefixBytes = 5;  // of a gRPC message: a flag and its length
// Frames of the client without DATA: the largest that an endpoint must accept, which gRPC
// announces.
constexpr uint32_t kMaxControlFrame = 16 << 10;
// DATA that ends no message and is smaller counts as a control frame.
constexpr uint32_t kSmallData = 1 << 10;
// Bytes that complete a frame in the client's place.
constexpr uint32_t kMaxFill = 64 << 10;
// gRPC answers PING and SETTINGS, and holds the answers for a client that reads nothing.
constexpr double kAnsweredWeight = 10;
constexpr int64_t kMiB = 1 << 20;

// Whether the filter reads the payload of a server's frame.
bool IsRead(FrameType type) {
  return type == FrameType::kRstStream || type == FrameType::kSettings ||
         type == FrameType::kWindowUpdate;
}

// WINDOW_UPDATE of the client, whose frame may be held back. gRPC reports one of another length.
bool IsCredit(const FrameHeader& frame) {
  return frame.type == FrameType::kWindowUpdate && frame.length == 4;
}

// SETTINGS of the client that change anything.
bool IsSettings(const FrameHeader& frame) {
  return frame.type == FrameType::kSettings && !frame.Has(kAckFlag);
}

constexpr size_t kSettingBytes = 6;

// SETTINGS_INITIAL_WINDOW_SIZE; nullopt if `setting`, one of a SETTINGS frame, is another one.
std::optional<uint32_t> InitialWindow(std::string_view setting) {
  constexpr uint32_t kInitialWindowSize = 4;
  if (BigEndian(setting.substr(0, 2)) != kInitialWindowSize) return std::nullopt;
  return BigEndian(setting.substr(2, 4));
}

}  // namespace

FrameFilter::FrameFilter(const FrameLimits& limits, Principal principal, MessageMemory* memory,
                         Output* output)
    : limits_(limits),
      principal_(std::move(principal)),
      memory_(memory),
      output_(output),
      resets_(limits.resets_per_second, kResetBurstSeconds * limits.resets_per_second),
      control_(limits.control_frames_per_second,
               kControlBurstSeconds * limits.control_frames_per_second),
      scanner_(limits.header_bytes, limits.header_fields),
      credit_(&output->to_server) {}

FrameFilter::~FrameFilter() { memory_->Release(*this, held_); }

Status FrameFilter::FromClient(std::string_view bytes, TimePoint now) {
  PS_RETURN_IF_ERROR(TakePreface(&bytes));
  std::string_view piece;
  while (true) {
    switch (client_.Next(&bytes, &piece)) {
      case FrameCursor::Part::kNone:
        return Status();
      case FrameCursor::Part::kHeader:
        PS_RETURN_IF_ERROR(OnHeader(client_.header(), now));
        if (!forward_) break;
        credit_.ForwardAll();
        output_->to_server += client_.raw_header();
        break;
      case FrameCursor::Part::kPayload:
        PS_RETURN_IF_ERROR(OnPayload(client_.header(), piece));
        if (forward_) output_->to_server += piece;
        break;
    }
    if (client_.at_boundary()) PS_RETURN_IF_ERROR(OnFrameEnd(client_.header(), now));
  }
}

Status FrameFilter::TakePreface(std::string_view* bytes) {
  if (started()) return Status();
  const size_t count = std::min(kHttp2Preface.size() - preface_, bytes->size());
  if (bytes->substr(0, count) != kHttp2Preface.substr(preface_, count))
    return InvalidArgument("expected the preface of HTTP/2, found other bytes");
  bytes->remove_prefix(count);
  preface_ += count;
  if (started()) output_->to_server += kHttp2Preface;
  return Status();
}

Status FrameFilter::OnHeader(const FrameHeader& frame, TimePoint now) {
  forward_ = true;
  if (frame.type != FrameType::kData && frame.length > kMaxControlFrame) {
    return InvalidArgument("a frame of type ", static_cast<int>(frame.type), ": expected at most ",
                           kMaxControlFrame, " bytes, found ", frame.length);
  }
  if (block_stream_ != 0 && frame.type != FrameType::kContinuation)
    return InvalidArgument("expected CONTINUATION, found type ", static_cast<int>(frame.type));
  const bool pads = frame.type == FrameType::kData || frame.type == FrameType::kHeaders;
  pad_length_next_ = pads && frame.Has(kPaddedFlag);
  skip_ = frame.type == FrameType::kHeaders && frame.Has(kPriorityFlag) ? 5 : 0;
  if (frame.length < skip_ + (pad_length_next_ ? 1 : 0))
    return InvalidArgument("a frame: expected padding and priority within its ", frame.length,
                           " bytes");
  body_ = frame.length - skip_ - (pad_length_next_ ? 1 : 0);
  switch (frame.type) {
    case FrameType::kData:
      return OnData(frame, now);
    case FrameType::kHeaders:
      return OnHeaders(frame, now);
    case FrameType::kContinuation:
      return OnContinuation(frame, now);
    case FrameType::kRstStream:
      PS_RETURN_IF_ERROR(CountControlFrame(1, now));
      return CountReset(now);
    case FrameType::kSettings:
    case FrameType::kPing:
      return CountControlFrame(frame.Has(kAckFlag) ? 1 : kAnsweredWeight, now);
    case FrameType::kWindowUpdate:
      forward_ = !IsCredit(frame);
      return CountControlFrame(1, now);
    case FrameType::kGoAway:
      return CountControlFrame(1, now);
    case FrameType::kPushPromise:
      return InvalidArgument("expected no PUSH_PROMISE from a client");
    case FrameType::kPriority:
      break;
  }
  forward_ = false;  // PRIORITY and unknown types mean nothing to gRPC
  return CountControlFrame(1 + frame.length / 64.0, now);
}

Status FrameFilter::OnHeaders(const FrameHeader& frame, TimePoint now) {
  scanner_.Begin();
  block_stream_ = frame.stream;
  block_ends_stream_ = frame.Has(kEndStreamFlag);
  block_begun_ = now;
  if (frame.stream % 2 == 0)
    return InvalidArgument("HEADERS: expected an odd stream, found ", frame.stream);
  if (frame.stream <= last_stream_)
    return streams_.contains(frame.stream) ? Status() : CountControlFrame(1, now);
  last_stream_ = frame.stream;
  if (static_cast<int64_t>(streams_.size()) >= limits_.open_streams)
    return ResourceExhausted("expected at most ", limits_.open_streams, " streams, found more");
  streams_[frame.stream].window = initial_window_;
  credit_.Open(frame.stream);
  return Status();
}

Status FrameFilter::OnContinuation(const FrameHeader& frame, TimePoint now) {
  if (block_stream_ == 0 || frame.stream != block_stream_)
    return InvalidArgument("expected no CONTINUATION of stream ", frame.stream, ", found one");
  return frame.length == 0 ? CountControlFrame(1, now) : Status();
}

Status FrameFilter::OnData(const FrameHeader& frame, TimePoint now) {
  ended_message_ = false;
  if (frame.stream > last_stream_)
    return InvalidArgument("DATA: expected an open stream, found ", frame.stream);
  const auto found = streams_.find(frame.stream);
  if (found == streams_.end()) {  // the server has ended it, which the client does not know yet
    DropData(frame.length);
    return CountControlFrame(1, now);
  }
  Stream& stream = found->second;
  if (!memory_->Charge(*this, frame.length)) {
    DropData(frame.length);
    PS_RETURN_IF_ERROR(ResetStream(found));
    return CountReset(now);
  }
  stream.charged += frame.length;
  held_ += frame.length;
  stream.window -= frame.length;
  window_ -= frame.length;
  if (stream.prefix == 0) stream.begun = now;
  return Status();
}

Status FrameFilter::OnPayload(const FrameHeader& frame, std::string_view piece) {
  const std::string_view body = Body(piece);
  if (frame.type == FrameType::kHeaders || frame.type == FrameType::kContinuation)
    return scanner_.Add(body);
  if (IsCredit(frame)) client_payload_ += piece;
  if (IsSettings(frame)) TakeSettings(piece);
  if (frame.type != FrameType::kData || !forward_) return Status();
  const auto found = streams_.find(frame.stream);
  if (found != streams_.end()) TakeMessageBytes(&found->second, body);
  return Status();
}

std::string_view FrameFilter::Body(std::string_view piece) {
  if (pad_length_next_) {
    pad_length_next_ = false;
    // More padding than payload is an error that gRPC reports.
    body_ -= std::min<uint32_t>(body_, static_cast<uint8_t>(piece.front()));
    piece.remove_prefix(1);
  }
  const size_t skipped = std::min<size_t>(skip_, piece.size());
  piece.remove_prefix(skipped);
  skip_ -= static_cast<uint32_t>(skipped);
  piece = piece.substr(0, body_);
  body_ -= static_cast<uint32_t>(piece.size());
  return piece;
}

void FrameFilter::TakeMessageBytes(Stream* stream, std::string_view bytes) {
  while (!bytes.empty()) {
    if (stream->prefix < kPrefixBytes) {
      if (stream->prefix > 0)
        stream->declared = stream->declared << 8 | static_cast<uint8_t>(bytes.front());
      stream->left = stream->declared;
      ++stream->prefix;
      bytes.remove_prefix(1);
    } else {
      const size_t count = std::min<size_t>(stream->left, bytes.size());
      stream->left -= static_cast<uint32_t>(count);
      bytes.remove_prefix(count);
    }
    if (stream->prefix == kPrefixBytes && stream->left == 0) {
      stream->prefix = 0;
      stream->declared = 0;
      ended_message_ = true;
    }
  }
}

Status FrameFilter::OnFrameEnd(const FrameHeader& frame, TimePoint now) {
  switch (frame.type) {
    case FrameType::kData:
      return OnDataEnd(frame, now);
    case FrameType::kHeaders:
    case FrameType::kContinuation:
      if (!frame.Has(kEndHeadersFlag)) return Status();
      if (block_ends_stream_) EndSide(block_stream_, &Stream::client_ended);
      block_stream_ = 0;
      return scanner_.End();
    case FrameType::kRstStream:
      if (const auto found = streams_.find(frame.stream); found != streams_.end()) Erase(found);
      return Status();
    case FrameType::kSettings:
      client_payload_.clear();
      return Status();
    case FrameType::kWindowUpdate:
      if (IsCredit(frame)) OnCredit(frame);
      return Status();
    default:
      return Status();
  }
}

void FrameFilter::TakeSettings(std::string_view bytes) {
  for (const char byte : bytes) {
    client_payload_ += byte;
    if (client_payload_.size() < kSettingBytes) continue;
    if (const auto size = InitialWindow(client_payload_)) credit_.SetInitialWindow(*size);
    client_payload_.clear();
  }
}

void FrameFilter::OnCredit(const FrameHeader& frame) {
  const std::string payload = std::exchange(client_payload_, std::string());
  if (credit_.Take(frame.stream, BigEndian(payload))) return;
  output_->to_server += client_.raw_header();
  output_->to_server += payload;
}

Status FrameFilter::OnDataEnd(const FrameHeader& frame, TimePoint now) {
  const auto found = streams_.find(frame.stream);
  if (!forward_ || found == streams_.end()) return Status();
  Stream& stream = found->second;
  const int64_t arrived = stream.arrived();
  const int64_t released = stream.charged - arrived;
  stream.charged = arrived;
  held_ -= released;
  memory_->Release(*this, released);
  if (ended_message_) stream.begun = now;  // of the next message, if it has begun
  if (frame.Has(kEndStreamFlag)) {
    EndSide(frame.stream, &Stream::client_ended);
    return Status();
  }
  return !ended_message_ && frame.length < kSmallData ? CountControlFrame(1, now) : Status();
}

Status FrameFilter::FromServer(std::string_view bytes, TimePoint now) {
  std::string_view piece;
  while (true) {
    switch (server_.Next(&bytes, &piece)) {
      case FrameCursor::Part::kNone:
        return Status();
      case FrameCursor::Part::kHeader:
        output_->to_client += server_.raw_header();
        server_payload_.clear();
        OnServerHeader(server_.header());
        break;
      case FrameCursor::Part::kPayload:
        output_->to_client += piece;
        if (IsRead(server_.header().type)) server_payload_ += piece;
        break;
    }
    if (server_.at_boundary()) PS_RETURN_IF_ERROR(OnServerFrameEnd(server_.header(), now));
  }
}

void FrameFilter::OnServerHeader(const FrameHeader& frame) {
  if (frame.type == FrameType::kHeaders || frame.type == FrameType::kContinuation)
    server_in_block_ = !frame.Has(kEndHeadersFlag);
  if (frame.type != FrameType::kData) return;
  control_.Remove(2);  // a client answers it by WINDOW_UPDATE: of the stream and of the connection
  credit_.OnServerData(frame.stream, frame.length);
}

Status FrameFilter::OnServerFrameEnd(const FrameHeader& frame, TimePoint now) {
  if (!server_in_block_) output_->to_client += std::exchange(waiting_, std::string());
  switch (frame.type) {
    case FrameType::kRstStream:
      if (const auto found = streams_.find(frame.stream); found != streams_.end()) Erase(found);
      // NO_ERROR: the server has answered before the client's side ended.
      return BigEndian(server_payload_) == 0 ? Status() : CountReset(now);
    case FrameType::kSettings:
      if (!frame.Has(kAckFlag)) OnServerSettings();
      return Status();
    case FrameType::kWindowUpdate:
      OnServerWindowUpdate(frame.stream);
      return Status();
    case FrameType::kData:
    case FrameType::kHeaders:
      if (frame.Has(kEndStreamFlag)) EndSide(frame.stream, &Stream::server_ended);
      return Status();
    default:
      return Status();
  }
}

void FrameFilter::OnServerSettings() {
  for (std::string_view rest = server_payload_; rest.size() >= kSettingBytes;
       rest.remove_prefix(kSettingBytes)) {
    const auto size = InitialWindow(rest);
    if (!size) continue;
    for (auto& [id, stream] : streams_) stream.window += *size - initial_window_;
    initial_window_ = *size;
  }
}

void FrameFilter::OnServerWindowUpdate(uint32_t stream) {
  const int64_t bytes = BigEndian(server_payload_);
  if (stream == 0) {
    window_ += bytes;
  } else if (const auto found = streams_.find(stream); found != streams_.end()) {
    found->second.window += bytes;
  }
}

Status FrameFilter::CheckDeadlines(TimePoint now) {
  if (block_stream_ != 0 && now - block_begun_ > limits_.stall_deadline)
    return ResourceExhausted("a header block: expected its end within --stall-deadline");
  if (held_ == 0) return Status();
  std::vector<uint32_t> late;
  for (auto& [id, stream] : streams_) {
    if (stream.window <= 0 || window_ <= 0) stream.begun = now;  // the client waits for the server
    const auto allowed = limits_.stall_deadline * (1 + stream.declared / kMiB);
    if (stream.charged > 0 && now - stream.begun > allowed) late.push_back(id);
  }
  for (const uint32_t id : late) PS_RETURN_IF_ERROR(ResetStream(streams_.find(id)));
  return Status();
}

Status FrameFilter::ResetLargest() {
  const auto largest = std::max_element(
      streams_.begin(), streams_.end(),
      [](const auto& a, const auto& b) { return a.second.charged < b.second.charged; });
  return largest == streams_.end() ? Status() : ResetStream(largest);
}

Status FrameFilter::ResetStream(Streams::iterator stream) {
  const uint32_t id = stream->first;
  Erase(stream);
  if (!CompleteServerFrame()) return ResourceExhausted("a message that has not arrived whole");
  AppendRstStream(id, Http2Error::kCancel, &output_->to_server);
  std::string frame;
  AppendRstStream(id, Http2Error::kEnhanceYourCalm, &frame);
  ToClient(frame);
  return Status();
}

bool FrameFilter::CompleteServerFrame() {
  if (block_stream_ != 0) return false;
  if (client_.at_boundary() || !forward_) return true;
  if (client_.header().type != FrameType::kData || client_.payload_left() > kMaxFill) return false;
  output_->to_server.append(client_.payload_left(), '\0');
  forward_ = false;
  return true;
}

void FrameFilter::DropData(uint32_t length) {
  forward_ = false;
  if (length == 0) return;
  std::string frame;  // the server, which does not see these bytes, will not give their room back
  AppendWindowUpdate(0, length, &frame);
  ToClient(frame);
}

void FrameFilter::ToClient(std::string_view frames) {
  waiting_ += frames;
  if (server_.at_boundary() && !server_in_block_)
    output_->to_client += std::exchange(waiting_, std::string());
}

void FrameFilter::EndSide(uint32_t id, bool Stream::*side) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  found->second.*side = true;
  if (found->second.server_ended) credit_.Close(id);
  if (found->second.client_ended && found->second.server_ended) Erase(found);
}

void FrameFilter::Erase(Streams::iterator stream) {
  credit_.Close(stream->first);
  held_ -= stream->second.charged;
  memory_->Release(*this, stream->second.charged);
  streams_.erase(stream);
}

Status FrameFilter::CountControlFrame(double weight, TimePoint now) {
  if (control_.Add(weight, now)) return Status();
  return ResourceExhausted("expected at most ", limits_.control_frames_per_second,
                           " frames a second that carry nothing, found more");
}

Status FrameFilter::CountReset(TimePoint now) {
  if (resets_.Add(1, now)) return Status();
  return ResourceExhausted("expected at most ", limits_.resets_per_second,
                           " resets of streams a second, found more");
}

void FrameFilter::SayGoodbye(const Status& reason) {
  if (!started() || !server_.at_boundary() || server_in_block_) return;
  const bool flood = reason.code() == Code::kResourceExhausted;
  AppendGoAway(last_stream_, flood ? Http2Error::kEnhanceYourCalm : Http2Error::kProtocolError,
               reason.message(), &output_->to_client);
}

}  // namespace polysketch
