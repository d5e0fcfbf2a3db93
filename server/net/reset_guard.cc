#include "server/net/reset_guard.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace polysketch {
namespace {

// Period of the checks. On two cores a flood allocates a megabyte of calls in a millisecond.
constexpr std::chrono::milliseconds kPeriod{10};
// Minimum bytes of a connection that is checked. Opening and resetting a stream takes at least 28
// bytes, so fewer bytes cannot exceed the limit.
constexpr uint64_t kBusyBytes = 8 << 10;
constexpr intptr_t kPage = 500;

// Parses and frees what a channelz function returned; null for null and for text that is not JSON.
nlohmann::json TakeJson(char* text) {
  if (text == nullptr) return nullptr;
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  gpr_free(text);
  return json;
}

// channelz writes 64-bit integers as strings, and leaves zeros out.
int64_t Integer(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? 0 : std::stoll(found->get<std::string>());
}

int64_t NewestServer() {
  int64_t newest = 0;
  for (bool end = false; !end;) {
    const nlohmann::json page = TakeJson(grpc_channelz_get_servers(newest + 1));
    for (const auto& server : page.value("server", nlohmann::json::array())) {
      newest = Integer(server.at("ref"), "serverId");
    }
    end = page.value("end", true);
  }
  return newest;
}

}  // namespace

ResetGuard::ResetGuard(ConnectionTable* table, int64_t max_streams)
    : table_(table),
      max_streams_(max_streams),
      server_(NewestServer()),
      thread_([this] { Loop(); }) {}

ResetGuard::~ResetGuard() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ResetGuard::Loop() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kPeriod, [this] { return stop_; })) {
    for (const ConnectionTable::Busy& connection : table_->TakeBusy(kBusyBytes)) Check(connection);
  }
}

void ResetGuard::Check(const ConnectionTable::Busy& connection) {
  int64_t open = -1;
  if (const auto known = sockets_.find(connection.key); known != sockets_.end()) {
    open = OpenStreams(known->second);
  }
  if (open < 0) {
    ListSockets();
    const auto found = sockets_.find(connection.key);
    if (found == sockets_.end()) return;  // HTTP/2 has not started, or the socket is closed
    open = OpenStreams(found->second);
  }
  if (open > max_streams_) table_->Close(connection.id, "streams");
}

int64_t ResetGuard::OpenStreams(int64_t socket) {
  const nlohmann::json answer = TakeJson(grpc_channelz_get_socket(socket));
  if (!answer.is_object() || !answer.contains("socket")) return -1;
  const nlohmann::json& counts = answer["socket"]["data"];
  return Integer(counts, "streamsStarted") - Integer(counts, "streamsSucceeded") -
         Integer(counts, "streamsFailed");
}

void ResetGuard::ListSockets() {
  sockets_.clear();
  int64_t last = -1;
  for (bool end = false; !end;) {
    const nlohmann::json page =
        TakeJson(grpc_channelz_get_server_sockets(server_, last + 1, kPage));
    if (!page.is_object()) return;
    for (const auto& socket : page.value("socketRef", nlohmann::json::array())) {
      last = Integer(socket, "socketId");
      const std::string name = socket.value("name", "");  // "chttp2 ipv4:127.0.0.1:4711"
      const std::string peer = name.substr(name.find(' ') + 1);
      sockets_[ConnectionKey(peer)] = last;
    }
    end = page.value("end", true);
  }
}

}  // namespace polysketch
