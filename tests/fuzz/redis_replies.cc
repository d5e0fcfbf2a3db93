// Replies of Redis: an error, or results that belong to what was asked. The server of the store is
// trusted with the data, not with the memory or the life of the process.
//
// The first byte selects the call. The rest are the replies of two connections, with a byte 0x1E
// between them: a store connects again when a connection breaks.
#include <hiredis/hiredis.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "engine/store/open_state_store.h"
#include "engine/store/redis_url.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::deque<std::string> replies;  // of the next connections
std::vector<int> peers;           // the other ends of connections: they read nothing

}  // namespace

// In place of hiredis's: a connection whose peer has sent the replies and closed its side.
extern "C" redisContext* redisConnectWithTimeout(const char*, int, const struct timeval) {
  int fds[2];
  PS_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  if (!replies.empty()) {
    const std::string& bytes = replies.front();
    PS_CHECK(send(fds[1], bytes.data(), bytes.size(), MSG_DONTWAIT) ==
             static_cast<ssize_t>(bytes.size()));
    replies.pop_front();
  }
  PS_CHECK(shutdown(fds[1], SHUT_WR) == 0);
  peers.push_back(fds[1]);
  return redisConnectFd(fds[0]);
}

namespace polysketch {
namespace {

// Errors quote the server of the store, which may say anything.
void ExpectMessage(const Status& status) { PS_CHECK(!status.ok() && !status.message().empty()); }

constexpr size_t kMaxReplies = 100'000;  // fits into a socket

void CheckList(StateStore* store) {
  const auto infos = store->List("tenant", "session-");
  if (!infos.ok()) return ExpectMessage(infos.status());
  for (size_t i = 0; i < infos->size(); ++i) {
    PS_CHECK((*infos)[i].key.starts_with("session-")) << (*infos)[i].key;
    PS_CHECK((*infos)[i].head.size() <= kStoredHeadBytes);
    PS_CHECK(i == 0 || (*infos)[i - 1].key < (*infos)[i].key);
  }
}

void CheckGet(StateStore* store) {
  const auto entry = store->Get("tenant", "session-1");
  if (!entry.ok()) return ExpectMessage(entry.status());
  PS_CHECK(entry->info.key == "session-1");
  PS_CHECK(entry->info.bytes == static_cast<int64_t>(entry->bytes.size()));
  PS_CHECK(entry->info.head.size() == std::min(entry->bytes.size(), kStoredHeadBytes));
}

void CheckCall(uint8_t call, StateStore* store) {
  const auto expect = [](const Status& status) {
    if (!status.ok()) ExpectMessage(status);
  };
  switch (call % 6) {
    case 0:
      return CheckGet(store);
    case 1:
      return CheckList(store);
    case 2:
      return expect(store->Stat("tenant", "session-1").status());
    case 3:
      return expect(store->Put("tenant", "session-1", "bytes", std::chrono::seconds(1)).status());
    case 4:
      return expect(store->Delete("tenant", "session-1"));
    default:
      return expect(store->Touch("tenant", "session-1", std::chrono::seconds(1)));
  }
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  if (size == 0 || size > kMaxReplies) return -1;
  std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t end = std::min(bytes.find('\x1E'), bytes.size());
  replies.assign({std::string(bytes.substr(0, end))});
  if (end < bytes.size()) replies.emplace_back(bytes.substr(end + 1));
  const auto store = OpenRedisStore("redis://127.0.0.1:1");
  if (store.ok()) {
    CheckCall(data[0], store->get());
  } else {
    ExpectMessage(store.status());
  }
  for (const int fd : peers) close(fd);
  peers.clear();
  return 0;
}
