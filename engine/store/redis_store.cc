#include <hiredis/hiredis.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <mutex>
#include <utility>

#include "engine/store/open_state_store.h"
#include "engine/store/redis_url.h"
#include "engine/store/state_key.h"
#include "engine/store/stored_header.h"

namespace polysketch {
namespace {

constexpr timeval kConnectTimeout{5, 0};
constexpr timeval kCommandTimeout{30, 0};
// Maximum size of a Redis string.
constexpr size_t kMaxBytes = size_t{512} << 20;
// Maximum number of elements of an array in a reply.
constexpr int kMaxElements = 1 << 16;

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;
struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};

std::string_view Text(const redisReply& reply) { return {reply.str, reply.len}; }
bool IsText(const redisReply& reply) { return reply.type == REDIS_REPLY_STRING; }

// hiredis takes memory for as many elements of an array as a reply announces.
void LimitArrays(redisReader* reader) {
  static const redisReplyObjectFunctions original = *reader->fn;
  static redisReplyObjectFunctions limited = [] {
    redisReplyObjectFunctions functions = original;
    functions.createArray = [](const redisReadTask* task, int elements) -> void* {
      return elements > kMaxElements ? nullptr : original.createArray(task, elements);
    };
    return functions;
  }();
  reader->fn = &limited;
}

// The number of the line "NAME:NUMBER" of INFO; 0 without one.
int64_t InfoNumber(std::string_view info, std::string_view name) {
  const std::string line = StrCat("\n", name, ":");
  const size_t found = info.find(line);
  if (found == std::string_view::npos) return 0;
  const std::string_view digits = info.substr(found + line.size());
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

// Reads a reply of SCAN: the next cursor, and names that begin with `prefix`, whose first `folder`
// bytes are not part of the key. Returns false for another reply.
bool AddKeys(const redisReply& reply, std::string_view prefix, size_t folder, std::string* cursor,
             std::vector<std::string>* keys) {
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2) return false;
  const redisReply& next = *reply.element[0];
  const redisReply& names = *reply.element[1];
  if (!IsText(next) || names.type != REDIS_REPLY_ARRAY) return false;
  *cursor = Text(next);
  for (size_t i = 0; i < names.elements; ++i) {
    const redisReply& name = *names.element[i];
    if (!IsText(name) || !Text(name).starts_with(prefix)) return false;
    keys->emplace_back(Text(name).substr(folder));
  }
  return true;
}

// One connection, made for the first command and again after it broke. A command that met a broken
// connection is sent again, since every command of RedisStore may be sent twice. Thread-safe.
class Connection {
 public:
  explicit Connection(RedisUrl url) : url_(std::move(url)) {}

  Result<Reply> Run(const std::vector<std::string_view>& words) {
    std::lock_guard lock(mutex_);
    const bool fresh = context_ == nullptr;
    if (fresh) PS_RETURN_IF_ERROR(Connect());
    Result<Reply> reply = Send(words);
    if (context_ != nullptr || fresh) return reply;
    PS_RETURN_IF_ERROR(Connect());
    return Send(words);
  }

 private:
  Result<Reply> Send(const std::vector<std::string_view>& words) {
    std::vector<const char*> texts;
    std::vector<size_t> sizes;
    for (const std::string_view word : words) {
      texts.push_back(word.data());
      sizes.push_back(word.size());
    }
    Reply reply(static_cast<redisReply*>(redisCommandArgv(
        context_.get(), static_cast<int>(texts.size()), texts.data(), sizes.data())));
    if (reply == nullptr) return Broken(context_->errstr);
    if (reply->type != REDIS_REPLY_ERROR) return reply;
    const std::string_view why = Text(*reply);
    const Code code = why.starts_with("OOM") ? Code::kResourceExhausted : Code::kUnavailable;
    return Error(code, why);
  }

  Status Connect() {
    context_.reset(redisConnectWithTimeout(url_.host.c_str(), url_.port, kConnectTimeout));
    if (context_ == nullptr) return Error(Code::kUnavailable, "out of memory");
    if (context_->err != 0) return Broken(context_->errstr);
    redisSetTimeout(context_.get(), kCommandTimeout);
    LimitArrays(context_->reader);
    Status status = Greet();
    if (!status.ok()) context_.reset();
    return status;
  }

  Status Error(Code code, std::string_view why) const {
    return Status(code, StrCat("redis ", url_.host, ":", url_.port, ": ", why));
  }
  // Closes the connection and returns the error `why`, which is in the memory of the connection.
  Status Broken(const char* why) {
    Status status = Error(Code::kUnavailable, why);
    context_.reset();
    return status;
  }

  Status Greet() {
    if (!url_.password_file.empty()) {
      std::ifstream file(url_.password_file, std::ios::binary);
      std::string password;
      if (!std::getline(file, password) || password.empty()) {
        return Unavailable("redis: cannot read a password from ", url_.password_file);
      }
      std::vector<std::string_view> words = {"AUTH", password};
      if (!url_.user.empty()) words = {"AUTH", url_.user, password};
      PS_RETURN_IF_ERROR(Send(words).status());
    }
    if (url_.database == 0) return Status();
    const std::string database = std::to_string(url_.database);
    return Send({"SELECT", database}).status();
  }

  const RedisUrl url_;
  std::mutex mutex_;
  std::unique_ptr<redisContext, FreeContext> context_;  // guarded by mutex_; null: not connected
};

class RedisStore : public StateStore {
 public:
  explicit RedisStore(RedisUrl url) : connection_(std::move(url)) {}

  Status Ping() { return connection_.Run({"PING"}).status(); }

  // Redis removes expired entries by itself: this only updates the usage.
  void Expire() override {
    const Result<Reply> memory = connection_.Run({"INFO", "memory"});
    if (!memory.ok()) return;  // the user may not be allowed to run INFO
    bytes_ = InfoNumber(Text(**memory), "used_memory");
    limit_ = InfoNumber(Text(**memory), "maxmemory");
  }
  StoreUsage usage() const override { return {bytes_.load(), limit_.load()}; }

  std::string_view kind() const override { return "redis"; }

  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string_view bytes,
                       std::chrono::milliseconds ttl) override {
    if (bytes.size() > kMaxBytes - kStoredHeaderBytes) {
      return ResourceExhausted("redis: expected at most ", kMaxBytes, " bytes, found ",
                               bytes.size());
    }
    const uint64_t revision = RandomWord();
    std::string value = StoredHeader(revision);
    value.append(bytes);
    const std::string name = Name(owner, key);
    const std::string time = std::to_string(std::max<int64_t>(1, ttl.count()));
    PS_RETURN_IF_ERROR(connection_.Run({"SET", name, value, "PX", time}).status());
    return revision;
  }

  Result<Entry> Get(const std::string& owner, const std::string& key) override {
    const std::string name = Name(owner, key);
    PS_ASSIGN_OR_RETURN(const Reply reply, connection_.Run({"GET", name}));
    if (!IsText(*reply)) return Missing(key);
    Entry entry;
    PS_ASSIGN_OR_RETURN(entry.info,
                        ReadStoredHeader(key, Text(*reply).substr(0, kStoredBeginningBytes),
                                         static_cast<int64_t>(reply->len)));
    entry.bytes = CopyOf(Text(*reply).substr(kStoredHeaderBytes));
    return entry;
  }

  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override {
    const std::string name = Name(owner, key);
    PS_ASSIGN_OR_RETURN(const Reply size, connection_.Run({"STRLEN", name}));
    if (size->type != REDIS_REPLY_INTEGER || size->integer == 0) return Missing(key);
    const std::string last = std::to_string(kStoredBeginningBytes - 1);
    PS_ASSIGN_OR_RETURN(const Reply beginning, connection_.Run({"GETRANGE", name, "0", last}));
    if (!IsText(*beginning) || beginning->len == 0) return Missing(key);
    return ReadStoredHeader(key, Text(*beginning), size->integer);
  }

  Status Delete(const std::string& owner, const std::string& key) override {
    const std::string name = Name(owner, key);
    PS_ASSIGN_OR_RETURN(const Reply reply, connection_.Run({"DEL", name}));
    return reply->integer == 1 ? Status() : Missing(key);
  }

  Status Touch(const std::string& owner, const std::string& key,
               std::chrono::milliseconds ttl) override {
    const std::string name = Name(owner, key);
    const std::string time = std::to_string(std::max<int64_t>(1, ttl.count()));
    PS_ASSIGN_OR_RETURN(const Reply reply, connection_.Run({"PEXPIRE", name, time}));
    return reply->integer == 1 ? Status() : Missing(key);
  }

  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override {
    const std::string pattern = Name(owner, prefix) + "*";
    std::vector<std::string> keys;
    std::string cursor = "0";
    do {
      PS_ASSIGN_OR_RETURN(const Reply reply,
                          connection_.Run({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}));
      if (!AddKeys(*reply, Name(owner, prefix), Name(owner, "").size(), &cursor, &keys))
        return Unavailable("redis: expected a cursor and keys from SCAN, found another reply");
    } while (cursor != "0");
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());  // SCAN may return one twice
    std::vector<StoredInfo> infos;
    for (const std::string& key : keys) {
      Result<StoredInfo> info = Stat(owner, key);
      if (info.ok()) {
        infos.push_back(*std::move(info));
      } else if (!IsGoneOrDamaged(info.status())) {
        return info.status();
      }
    }
    return infos;
  }

 private:
  static std::string Name(const std::string& owner, const std::string& key) {
    return "polysketch/" + owner + "/" + key;
  }
  static Status Missing(const std::string& key) {
    return NotFound("state store: there is no ", key);
  }

  Connection connection_;
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> limit_{0};
};

}  // namespace

Result<std::unique_ptr<StateStore>> OpenRedisStore(const std::string& url) {
  PS_ASSIGN_OR_RETURN(RedisUrl parsed, ParseRedisUrl(url));
  auto store = std::make_unique<RedisStore>(std::move(parsed));
  PS_RETURN_IF_ERROR(store->Ping());
  store->Expire();
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace polysketch
