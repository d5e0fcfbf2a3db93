#include "server/net/client_credit.h"

#include <utility>

#include "server/net/http2_frame.h"

namespace polysketch {
namespace {

constexpr int64_t kLargestWindow = 0x7fffffff;  // RFC 9113, section 6.9.1

}  // namespace

bool ClientCredit::Take(uint32_t stream, uint32_t increment) {
  Window* const window = Find(stream);
  if (window == nullptr || increment == 0 || increment > kLargestWindow) return false;
  if (Known(stream, *window) + window->held + increment > kLargestWindow) {
    window->known += increment;  // gRPC adds it up and reports no error
    return false;
  }
  window->held += increment;
  holds_ = true;
  if (IsDue(stream, *window)) ForwardAll();
  return true;
}

void ClientCredit::OnServerData(uint32_t stream, uint32_t bytes) {
  connection_.known -= bytes;
  bool due = IsDue(0, connection_);
  if (Window* const window = Find(stream); window != nullptr && stream != 0) {
    window->known -= bytes;
    due |= IsDue(stream, *window);
  }
  if (due) ForwardAll();
}

void ClientCredit::ForwardAll() {
  // One frame wakes the server, so that the others cost nothing.
  if (!std::exchange(holds_, false)) return;
  Forward(0, &connection_);
  for (auto& [id, window] : streams_) Forward(id, &window);
}

ClientCredit::Window* ClientCredit::Find(uint32_t stream) {
  if (stream == 0) return &connection_;
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : &found->second;
}

void ClientCredit::Forward(uint32_t stream, Window* window) {
  if (window->held == 0) return;
  AppendWindowUpdate(stream, static_cast<uint32_t>(window->held), to_server_);
  window->known += std::exchange(window->held, 0);
}

}  // namespace polysketch
