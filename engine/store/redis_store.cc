// Entries in Redis. The entry KEY of OWNER is the string polysketch/OWNER/KEY. The set
// polysketch/OWNER/.keys names the entries of an owner, so that a listing reads no other owner's.
//
// The set may name entries that have expired, and names every other one: a Put adds the name in the
// pipeline of the value, a listing removes names without a value. What replicas of earlier versions
// write is added by a scan of all keys, at the start and every kScanInterval.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <span>
#include <utility>

#include "base/logging.h"
#include "engine/store/open_state_store.h"
#include "engine/store/redis_client.h"
#include "engine/store/state_key.h"
#include "engine/store/stored_header.h"

namespace polysketch {
namespace {

using Clock = std::chrono::steady_clock;

// Maximum size of a Redis string.
constexpr size_t kMaxBytes = size_t{512} << 20;
constexpr std::string_view kRoot = "polysketch/";
constexpr std::string_view kIndex = ".keys";  // not a key: keys have no dot
constexpr std::chrono::minutes kScanInterval{10};
// Of a scan of all keys, which a Redis at fault never ends: its time, and the bytes of the names,
// here a million entries.
constexpr std::chrono::seconds kMaxScanTime{60};
constexpr size_t kMaxScanBytes = size_t{64} << 20;
// Entries whose beginnings are read in one pipeline, about 100 KiB of replies.
constexpr size_t kListed = 1000;

bool IsNumber(const RedisReply& reply) { return reply.kind == RedisReply::Kind::kNumber; }
bool IsDone(const RedisReply& reply) {
  return reply.kind == RedisReply::Kind::kStatus && reply.text == "OK";
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

// Reads an array of texts. Returns false for another reply.
bool ReadTexts(const RedisReply& reply, std::vector<std::string>* texts) {
  if (reply.kind != RedisReply::Kind::kArray) return false;
  for (const auto& text : reply.elements) {
    if (!text->is_text()) return false;
    texts->push_back(text->text);
  }
  return true;
}

// Reads a reply of SCAN: the next cursor, and names. Returns false for another reply.
bool ReadScan(const RedisReply& reply, std::string* cursor, std::vector<std::string>* names) {
  if (reply.kind != RedisReply::Kind::kArray || reply.elements.size() != 2) return false;
  if (!reply.elements[0]->is_text()) return false;
  *cursor = reply.elements[0]->text;
  return ReadTexts(*reply.elements[1], names);
}

Status Unexpected(const char* expected, const char* command) {
  return Unavailable("redis: expected ", expected, " from ", command, ", found another reply");
}

// The error of a change that may have been made.
Status OfChange(bool sent, const Status& status) { return sent ? OutcomeUnknown(status) : status; }

// The error of an error reply to a change. One without a code of its own may be that of a proxy,
// which does not know what Redis has done.
Status OfRefusal(const RedisReply& reply, bool resent) {
  return OfChange(resent || reply.text.starts_with("ERR"), RedisClient::ErrorOf(reply));
}

std::string Name(const std::string& owner, std::string_view key) {
  return StrCat(kRoot, owner, "/", key);
}
std::string IndexName(const std::string& owner) { return Name(owner, kIndex); }

Status Missing(const std::string& key) { return NotFound("state store: there is no ", key); }

// Reads the replies to STRLEN and GETRANGE of an entry.
Result<StoredInfo> ReadInfo(const std::string& key, const RedisReply& size,
                            const RedisReply& beginning) {
  if (!IsNumber(size) || size.number <= 0) return Missing(key);
  if (!beginning.is_text() || beginning.text.empty()) return Missing(key);
  // The entry may have been replaced by a longer one between the two.
  return ReadStoredHeader(key, beginning.text,
                          std::max(size.number, int64_t{std::ssize(beginning.text)}));
}

class RedisStore : public StateStore {
 public:
  explicit RedisStore(RedisUrl url) : client_(std::move(url)) {}

  std::string_view kind() const override { return "redis"; }

  Status Open() {
    PS_RETURN_IF_ERROR(client_.RunOne({"PING"}).status());
    ReadUsage();
    last_scan_ = Clock::now();
    return ScanAll();
  }

  // Redis removes expired entries by itself: this removes their names, and updates the usage.
  void Expire() override {
    ReadUsage();
    if (Clock::now() - last_scan_.load() < kScanInterval) return;
    last_scan_ = Clock::now();
    if (const Status status = ScanAll(); !status.ok()) {
      LogWarning("state_store_failed", {{"operation", "scan"}, {"why", status.message()}});
    }
  }

  StoreUsage usage() const override { return {bytes_.load(), limit_.load()}; }

  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                       std::chrono::milliseconds ttl) override {
    if (bytes.size() > kMaxBytes - kStoredHeaderBytes) {
      return ResourceExhausted("redis: expected at most ", kMaxBytes, " bytes, found ",
                               bytes.size());
    }
    const uint64_t revision = RandomWord();
    std::string value = StoredHeader(revision);
    value.append(bytes);
    const std::string name = Name(owner, key), index = IndexName(owner), time = Milliseconds(ttl);
    bool sent = false;
    const auto answer =
        client_.Ask({{"SET", name, value, "PX", time}, {"SADD", index, key}}, &sent);
    if (!answer.ok()) return OfChange(sent, answer.status());
    // Redis has either refused the value, and then the entry is as before, or has it.
    const RedisReply &set = *answer->replies[0], &add = *answer->replies[1];
    if (set.kind == RedisReply::Kind::kError) return OfRefusal(set, answer->resent);
    if (!IsDone(set)) return OutcomeUnknown(Unexpected("OK", "SET"));
    // Without its name in the set the entry is there all the same.
    if (const Status failed = RedisClient::ErrorOf(add); !failed.ok())
      return OutcomeUnknown(failed);
    return IsNumber(add) ? Result<uint64_t>(revision)
                         : OutcomeUnknown(Unexpected("a number", "SADD"));
  }

  Result<Entry> Get(const std::string& owner, const std::string& key) override {
    const std::string name = Name(owner, key);
    PS_ASSIGN_OR_RETURN(const auto reply, client_.RunOne({"GET", name}));
    if (!reply->is_text()) return Missing(key);
    const std::string_view value = reply->text;
    Entry entry;
    PS_ASSIGN_OR_RETURN(entry.info, ReadStoredHeader(key, value.substr(0, kStoredBeginningBytes),
                                                     static_cast<int64_t>(value.size())));
    entry.bytes = CopyOf(value.substr(kStoredHeaderBytes));
    return entry;
  }

  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override {
    const std::string name = Name(owner, key);
    PS_ASSIGN_OR_RETURN(const auto replies, client_.Run({{"STRLEN", name}, Beginning(name)}));
    return ReadInfo(key, *replies[0], *replies[1]);
  }

  Result<StoredInfo> Renew(const std::string& owner, const std::string& key,
                           std::chrono::milliseconds ttl) override {
    const std::string name = Name(owner, key), time = Milliseconds(ttl);
    PS_ASSIGN_OR_RETURN(const auto replies,
                        client_.Run({{"PEXPIRE", name, time}, {"STRLEN", name}, Beginning(name)}));
    return ReadInfo(key, *replies[1], *replies[2]);
  }

  Status Delete(const std::string& owner, const std::string& key) override {
    const std::string name = Name(owner, key), index = IndexName(owner);
    bool sent = false;
    const auto answer = client_.Ask({{"DEL", name}, {"SREM", index, key}}, &sent);
    if (!answer.ok()) return OfChange(sent, answer.status());
    const RedisReply& deleted = *answer->replies[0];
    if (deleted.kind == RedisReply::Kind::kError) return OfRefusal(deleted, answer->resent);
    if (!IsNumber(deleted)) return OutcomeUnknown(Unexpected("a number", "DEL"));
    // A listing removes a name that SREM has left.
    if (deleted.number == 1) return Status();
    return OfChange(answer->resent, Missing(key));
  }

  Status Touch(const std::string& owner, const std::string& key,
               std::chrono::milliseconds ttl) override {
    const std::string name = Name(owner, key), time = Milliseconds(ttl);
    PS_ASSIGN_OR_RETURN(const auto reply, client_.RunOne({"PEXPIRE", name, time}));
    if (!IsNumber(*reply)) return Unexpected("a number", "PEXPIRE");
    return reply->number == 1 ? Status() : Missing(key);
  }

  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override {
    PS_ASSIGN_OR_RETURN(const std::vector<std::string> keys, Keys(owner, prefix));
    std::vector<StoredInfo> infos;
    std::vector<std::string> gone;
    for (size_t first = 0; first < keys.size(); first += kListed) {
      PS_RETURN_IF_ERROR(ListPart(owner, std::span(keys).subspan(first), &infos, &gone));
    }
    PS_RETURN_IF_ERROR(RemoveNames(owner, gone));
    return infos;
  }

  Result<int64_t> CountAtMost(const std::string& owner, const std::string& prefix) override {
    PS_ASSIGN_OR_RETURN(const std::vector<std::string> keys, Keys(owner, prefix));
    return std::ssize(keys);
  }

 private:
  static std::string Milliseconds(std::chrono::milliseconds ttl) {
    return std::to_string(std::max<int64_t>(1, ttl.count()));
  }
  static RedisClient::Command Beginning(std::string_view name) {
    static const std::string last = std::to_string(kStoredBeginningBytes - 1);
    return {"GETRANGE", name, "0", last};
  }

  void ReadUsage() {
    const auto memory = client_.RunOne({"INFO", "memory"});
    if (!memory.ok()) return;  // the user may not be allowed to run INFO
    bytes_ = InfoNumber((*memory)->text, "used_memory");
    limit_ = InfoNumber((*memory)->text, "maxmemory");
  }

  // The keys of an owner that begin with `prefix`, in order, of expired entries too.
  Result<std::vector<std::string>> Keys(const std::string& owner, const std::string& prefix) {
    const std::string index = IndexName(owner);
    PS_ASSIGN_OR_RETURN(const auto reply, client_.RunOne({"SMEMBERS", index}));
    std::vector<std::string> keys;
    if (!ReadTexts(*reply, &keys)) return Unexpected("keys", "SMEMBERS");
    std::erase_if(keys, [&prefix](const std::string& key) {
      return !key.starts_with(prefix) || !IsEntryKey(key);
    });
    std::sort(keys.begin(), keys.end());
    // A Redis at fault repeats names.
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
  }

  // Adds the entries of the first kListed `keys` to `infos`, and the keys without one to `gone`.
  Status ListPart(const std::string& owner, std::span<const std::string> keys,
                  std::vector<StoredInfo>* infos, std::vector<std::string>* gone) {
    keys = keys.first(std::min(keys.size(), kListed));
    std::vector<std::string> names;
    names.reserve(keys.size());
    for (const std::string& key : keys) names.push_back(Name(owner, key));
    std::vector<RedisClient::Command> commands;
    for (const std::string& name : names) {
      commands.push_back({"STRLEN", name});
      commands.push_back(Beginning(name));
    }
    PS_ASSIGN_OR_RETURN(const auto replies, client_.Run(commands));
    for (size_t i = 0; i < keys.size(); ++i) {
      Result<StoredInfo> info = ReadInfo(keys[i], *replies[2 * i], *replies[2 * i + 1]);
      if (info.ok()) {
        infos->push_back(*std::move(info));
      } else if (info.status().code() == Code::kNotFound) {
        gone->push_back(keys[i]);
      }
    }
    return Status();
  }

  // Removes the names of entries that do not exist. One that is written meanwhile keeps its name.
  Status RemoveNames(const std::string& owner, const std::vector<std::string>& keys) {
    if (keys.empty()) return Status();
    const std::string index = IndexName(owner);
    std::vector<std::string> names;
    names.reserve(keys.size());
    for (const std::string& key : keys) names.push_back(Name(owner, key));
    std::vector<RedisClient::Command> commands;
    for (size_t i = 0; i < keys.size(); ++i) {
      commands.push_back({"SREM", index, keys[i]});
      commands.push_back({"EXISTS", names[i]});
    }
    PS_ASSIGN_OR_RETURN(const auto replies, client_.Run(commands));
    RedisClient::Command back = {"SADD", index};
    for (size_t i = 0; i < keys.size(); ++i) {
      if (IsNumber(*replies[2 * i + 1]) && replies[2 * i + 1]->number > 0) back.push_back(keys[i]);
    }
    return back.size() == 2 ? Status() : client_.RunOne(back).status();
  }

  // Makes the sets of all owners name the entries that exist, of replicas of any version.
  Status ScanAll() {
    std::map<std::string, std::vector<std::string>> keys;  // by owner
    std::vector<std::string> owners;                       // that have a set
    const std::string pattern = StrCat(kRoot, "*");
    std::string cursor = "0";
    size_t bytes = 0;
    const Clock::time_point end = Clock::now() + kMaxScanTime;
    do {
      PS_ASSIGN_OR_RETURN(const auto reply,
                          client_.RunOne({"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"}));
      std::vector<std::string> names;
      if (!ReadScan(*reply, &cursor, &names)) return Unexpected("a cursor and keys", "SCAN");
      for (const std::string& name : names) bytes += name.size();
      if (bytes > kMaxScanBytes || Clock::now() > end) {
        return Unavailable("redis: SCAN: expected an end within ", kMaxScanTime.count(), " s and ",
                           kMaxScanBytes, " bytes of names");
      }
      for (const std::string& name : names) {
        const size_t slash = name.rfind('/');
        if (!name.starts_with(kRoot) || slash < kRoot.size()) continue;
        const std::string owner = name.substr(kRoot.size(), slash - kRoot.size());
        const std::string key = name.substr(slash + 1);
        if (key == kIndex) {
          owners.push_back(owner);
        } else {
          keys[owner].push_back(key);
        }
      }
    } while (cursor != "0");
    for (const auto& [owner, names] : keys) PS_RETURN_IF_ERROR(AddNames(owner, names));
    for (const std::string& owner : owners) {
      PS_ASSIGN_OR_RETURN(std::vector<std::string> gone, Keys(owner, ""));
      std::vector<std::string>& found = keys[owner];
      std::sort(found.begin(), found.end());
      std::erase_if(gone, [&found](const std::string& key) {
        return std::binary_search(found.begin(), found.end(), key);
      });
      PS_RETURN_IF_ERROR(RemoveNames(owner, gone));
    }
    return Status();
  }

  Status AddNames(const std::string& owner, const std::vector<std::string>& keys) {
    const std::string index = IndexName(owner);
    for (size_t first = 0; first < keys.size(); first += kListed) {
      RedisClient::Command add = {"SADD", index};
      const size_t end = std::min(keys.size(), first + kListed);
      add.insert(add.end(), keys.begin() + static_cast<ptrdiff_t>(first),
                 keys.begin() + static_cast<ptrdiff_t>(end));
      PS_RETURN_IF_ERROR(client_.RunOne(add).status());
    }
    return Status();
  }

  RedisClient client_;
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> limit_{0};
  std::atomic<Clock::time_point> last_scan_;
};

}  // namespace

Result<std::unique_ptr<StateStore>> OpenRedisStore(const std::string& url) {
  PS_ASSIGN_OR_RETURN(RedisUrl parsed, ParseRedisUrl(url));
  const std::string place = StrCat(parsed.host, ":", parsed.port, ": ");
  auto store = std::make_unique<RedisStore>(std::move(parsed));
  if (const Status status = store->Open(); !status.ok()) {
    return status.WithMessage(place + status.message());
  }
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace polysketch
