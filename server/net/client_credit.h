// The credit that a client gives the server by WINDOW_UPDATE (RFC 9113, section 5.2), held back
// until the server needs it. A client answers every small message of a stream by such frames, each
// of which would wake a thread of gRPC that has tens of kilobytes of credit left.
//
// What is held of a window is always less than what the server knows of it. So a server that has
// used up what it knows has been given all that there is, and no stream waits for credit that is
// held here.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace polysketch {

// Not thread-safe.
class ClientCredit {
 public:
  // Frames are appended to *to_server, which outlives the object and is at the boundary of a frame
  // whenever credit is held: the user calls ForwardAll before each frame that it forwards.
  explicit ClientCredit(std::string* to_server) : to_server_(to_server) {}
  ClientCredit(const ClientCredit&) = delete;
  ClientCredit& operator=(const ClientCredit&) = delete;

  // A stream on which the server may send DATA. 0, the connection, is always open.
  void Open(uint32_t stream) { streams_[stream] = {}; }
  // Drops what is held of it.
  void Close(uint32_t stream) { streams_.erase(stream); }
  // The client's SETTINGS_INITIAL_WINDOW_SIZE, whose frame is being forwarded. It changes the
  // windows of all streams.
  void SetInitialWindow(uint32_t bytes) { initial_window_ = bytes; }

  // The client's WINDOW_UPDATE. Returns false if the server must get the frame itself: its
  // increment is not valid, its stream is not open, or the window would exceed 2^31 - 1.
  bool Take(uint32_t stream, uint32_t increment);
  // The server has sent DATA.
  void OnServerData(uint32_t stream, uint32_t bytes);
  void ForwardAll();

 private:
  static constexpr int64_t kInitialWindow = 65535;  // RFC 9113, section 6.9.2
  struct Window {
    int64_t known = 0;  // bytes that the server may send, as far as it knows; of a stream: beyond
                        // initial_window_, and negative if it has sent more than it got
    int64_t held = 0;   // bytes that it may send besides
  };

  // Null: the stream is not open.
  Window* Find(uint32_t stream);
  int64_t Known(uint32_t stream, const Window& window) const {
    return window.known + (stream == 0 ? 0 : initial_window_);
  }
  bool IsDue(uint32_t stream, const Window& window) const {
    return window.held > 0 && window.held >= Known(stream, window);
  }
  void Forward(uint32_t stream, Window* window);

  std::string* const to_server_;
  Window connection_{.known = kInitialWindow};
  std::unordered_map<uint32_t, Window> streams_;
  int64_t initial_window_ = kInitialWindow;  // of a stream
  bool holds_ = false;                       // of any window
};

}  // namespace polysketch
