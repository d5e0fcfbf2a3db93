// Replies of Redis: an error, or results that belong to what was asked. The server of the store is
// trusted with the data, not with the memory or the life of the process.
//
// The first byte selects the call. The rest are the replies of two connections, with a byte 0x1E
// between them: a store connects again when a connection breaks. Those of a connection are the
// replies to its pipelines, with a byte 0x1D between them. After them comes the reply to the PING
// that ends the pipeline, unless they end with a byte 0x1C: the replies are all that arrives then.
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <vector>

#include "engine/store/open_state_store.h"
#include "engine/store/redis_url.h"
#include "tests/fuzz/fuzz.h"

namespace {

std::deque<std::string> replies;  // of the next connections
std::string later;                // replies of the current connection to its next pipelines
std::string unread;               // what has arrived on it

}  // namespace

// In place of hiredis's and of the system's (the linker's --wrap): a connection whose peer takes
// everything, and has answered and closed its side when it is waited for. It has no socket, which
// would cost system calls. A store uses one connection at a time here, and sends a pipeline at
// once.
extern "C" redisContext* redisConnectWithTimeout(const char*, int, const struct timeval) {
  unread.clear();
  later.clear();
  if (!replies.empty()) {
    later = std::move(replies.front());
    replies.pop_front();
  }
  return redisConnectFd(-1);
}

extern "C" int __wrap_poll(pollfd* fds, nfds_t count, int) {
  PS_CHECK(count == 1 && fds->fd == -1);
  fds->revents = fds->events;
  return 1;
}

extern "C" ssize_t __wrap_send(int fd, const void* bytes, size_t size, int) {
  PS_CHECK(fd == -1);
  const size_t end = std::min(later.find('\x1D'), later.size());
  unread += later.substr(0, end);
  later.erase(0, end + 1);
  if (unread.ends_with('\x1C')) {
    unread.pop_back();
  } else {
    const std::string_view pipeline(static_cast<const char*>(bytes), size);
    constexpr std::string_view kPing = "PING\r\n";
    unread += pipeline.substr(pipeline.rfind(kPing) + kPing.size());
  }
  return static_cast<ssize_t>(size);
}

extern "C" ssize_t __wrap_recv(int fd, void* buffer, size_t size, int flags) {
  PS_CHECK(fd == -1);
  const size_t count = std::min(size, unread.size());
  if (count == 0 && (flags & MSG_PEEK) != 0) {
    errno = EAGAIN;
    return -1;
  }
  std::memcpy(buffer, unread.data(), count);
  if ((flags & MSG_PEEK) == 0) unread.erase(0, count);
  return static_cast<ssize_t>(count);
}

namespace polysketch {
namespace {

// Errors quote nothing of the server of the store, which may say anything.
void ExpectMessage(const Status& status) {
  fuzz::CheckError(status);
  PS_CHECK(status.message().find("secret") == std::string::npos) << status.message();
}

constexpr size_t kMaxReplies = 100'000;

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

void CheckRenew(StateStore* store) {
  const auto info = store->Renew("tenant", "session-1", std::chrono::seconds(1));
  if (!info.ok()) return ExpectMessage(info.status());
  PS_CHECK(info->key == "session-1" && info->bytes >= 0) << info->key << " " << info->bytes;
  PS_CHECK(info->head.size() <= kStoredHeadBytes);
}

// A name takes five bytes of a reply at least.
void CheckCount(StateStore* store, size_t replies_size) {
  const auto count = store->CountAtMost("tenant", "session-");
  if (!count.ok()) return ExpectMessage(count.status());
  PS_CHECK(*count >= 0 && *count <= static_cast<int64_t>(replies_size / 5)) << *count;
}

void CheckCall(uint8_t call, size_t replies_size, StateStore* store) {
  const auto expect = [](const Status& status) {
    if (!status.ok()) ExpectMessage(status);
  };
  switch (call % 8) {
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
    case 5:
      return expect(store->Touch("tenant", "session-1", std::chrono::seconds(1)));
    case 6:
      return CheckRenew(store);
    default:
      return CheckCount(store, replies_size);
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
    CheckCall(data[0], size, store->get());
  } else {
    ExpectMessage(store.status());
  }
  return 0;
}
