// The order in which the directory store makes an entry durable, and what is there after a write
// that was refused. fsync, renameat and unlinkat are this program's: they record the call, and make
// it, or fail before or after they have made it.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/session/session_keys.h"
#include "engine/session/session_table.h"
#include "engine/store/open_state_store.h"
#include "gtest/gtest.h"
#include "tests/engine/session/small_snapshot.h"
#include "tests/testing/random_model.h"

namespace {

std::mutex mutex;
std::vector<std::string>* calls = nullptr;  // guarded by mutex; null: not recorded

struct Fault {
  std::string call;        // the first word of what is recorded
  int at = 1;              // the number of the first call that fails
  bool all_after = false;  // later ones fail too
  bool once_made = false;  // the call fails after it was made
};
Fault fault;      // guarded by mutex
int counted = 0;  // calls of fault.call; guarded by mutex
int failed = 0;   // guarded by mutex

// Makes the call `make`, unless it fails.
template <typename Make>
int Recorded(const std::string& call, const Make& make) {
  bool fails = false, makes = true;
  {
    std::lock_guard lock(mutex);
    if (calls != nullptr) calls->push_back(call);
    if (!fault.call.empty() && call.starts_with(fault.call)) {
      ++counted;
      fails = counted == fault.at || (fault.all_after && counted > fault.at);
      makes = !fails || fault.once_made;
      failed += fails ? 1 : 0;
    }
  }
  const int result = makes ? static_cast<int>(make()) : 0;
  if (!fails) return result;
  errno = EIO;
  return -1;
}

std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof(path));
  return std::string(path, length > 0 ? static_cast<size_t>(length) : 0);
}

}  // namespace

extern "C" int fsync(int fd) {
  return Recorded("sync " + PathOf(fd), [&] { return syscall(SYS_fsync, fd); });
}

extern "C" int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return Recorded("rename " + PathOf(from_folder) + "/" + from + " " + PathOf(to_folder) + "/" + to,
                  [&] { return syscall(SYS_renameat2, from_folder, from, to_folder, to, 0); });
}

extern "C" int unlinkat(int folder, const char* name, int flags) noexcept {
  return Recorded("unlink " + PathOf(folder) + "/" + name,
                  [&] { return syscall(SYS_unlinkat, folder, name, flags); });
}

namespace polysketch {
namespace {

using namespace std::chrono_literals;

class WriteOrderTest : public ::testing::Test {
 protected:
  WriteOrderTest() {
    std::lock_guard lock(mutex);
    calls = &calls_;
  }
  ~WriteOrderTest() override {
    std::lock_guard lock(mutex);
    calls = nullptr;
  }
  // The index of the only call that begins and ends like this.
  ptrdiff_t IndexOf(const std::string& begin, const std::string& end) const {
    const auto matches = [&](const std::string& call) {
      return call.starts_with(begin) && call.ends_with(end);
    };
    EXPECT_EQ(std::count_if(calls_.begin(), calls_.end(), matches), 1) << begin << "..." << end;
    return std::find_if(calls_.begin(), calls_.end(), matches) - calls_.begin();
  }

  std::vector<std::string> calls_;
};

// A crash at any moment leaves the whole entry, the entry before it, or none.
TEST_F(WriteOrderTest, BytesThenNameThenFolder) {
  const testing::TemporaryFolder temporary;
  const std::string root = std::filesystem::canonical(temporary.path()).string();
  const auto store = OpenStateStore("dir:" + root);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->Put("t", "one", "bytes", 1h).ok());
  IndexOf("sync " + root, root);  // which has a new folder, that of the tenant
  calls_.clear();
  ASSERT_TRUE((*store)->Put("t", "two", "bytes", 1h).ok());
  const ptrdiff_t named = IndexOf("rename ", " " + root + "/t.t/two");
  const std::string temporary_name = calls_[static_cast<size_t>(named)].substr(
      7, calls_[static_cast<size_t>(named)].rfind(' ') - 7);
  EXPECT_LT(IndexOf("sync " + temporary_name, temporary_name), named);
  EXPECT_GT(IndexOf("sync " + root + "/t.t", "/t.t"), named);
}

TEST_F(WriteOrderTest, ADeletionIsSynced) {
  const testing::TemporaryFolder temporary;
  const std::string root = std::filesystem::canonical(temporary.path()).string();
  const auto store = OpenStateStore("dir:" + root);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->Put("t", "one", "bytes", 1h).ok());
  calls_.clear();
  ASSERT_TRUE((*store)->Delete("t", "one").ok());
  IndexOf("sync " + root + "/t.t", "/t.t");
}

// A server and a replica on one folder.
class RefusedWrites : public ::testing::Test {
 protected:
  RefusedWrites() : server_(Open()), replica_(Open()) {}

  struct Process {
    std::unique_ptr<StateStore> store;
    std::unique_ptr<SessionTable> table;
  };
  Process Open() const {
    Process process{*OpenStateStore("dir:" + folder_.path().string()), nullptr};
    SessionOptions options;
    options.codec.limits = {{testing::kVocab, 1000, true}, 1 << 20};
    options.store = process.store.get();
    options.memory = 1 << 20;
    process.table = std::make_unique<SessionTable>(std::move(options));
    return process;
  }
  static Status Append(SessionTable* table, const std::string& id, int64_t tokens) {
    PS_ASSIGN_OR_RETURN(SessionLease lease, table->Acquire({"t"}, id, std::nullopt));
    return table->Commit(std::move(lease), testing::At(tokens)).status();
  }
  // Tokens of the sessions by id, and -1 by the key of a snapshot.
  static std::map<std::string, int64_t> Listed(SessionTable* table) {
    std::map<std::string, int64_t> listed;
    const auto listing = table->List("t");
    EXPECT_TRUE(listing.ok()) << listing.status().ToString();
    for (const auto& one : listing->sessions) listed[one.id] = one.tokens;
    for (const auto& one : listing->snapshots) listed[one.key] = -1;
    return listed;
  }
  static int64_t TokensOf(SessionTable* table, const std::string& id) {
    const auto lease = table->Acquire({"t"}, id, std::nullopt);
    if (lease.ok()) return lease->tokens();
    EXPECT_EQ(lease.status().code(), Code::kNotFound) << lease.status().ToString();
    return -2;
  }
  static void SetFault(Fault next) {
    std::lock_guard lock(mutex);
    fault = std::move(next);
    counted = 0;
  }
  // Runs `change` with the fault: it is made, or refused and not made, or its outcome is unknown;
  // the server sees what the replica sees.
  void Check(const Fault& one, const std::function<Status()>& change) {
    SCOPED_TRACE(one.call + " " + std::to_string(one.at) + (one.once_made ? " once made" : "") +
                 (one.all_after ? " and after" : ""));
    const auto before = Listed(replica_.table.get());
    SetFault(one);
    const Status status = change();
    SetFault({});
    const auto after = Listed(replica_.table.get());
    EXPECT_EQ(Listed(server_.table.get()), after);
    for (const auto& [id, tokens] : after) {
      if (tokens < 0) continue;
      EXPECT_EQ(TokensOf(server_.table.get(), id), tokens);
      EXPECT_EQ(TokensOf(replica_.table.get(), id), tokens);
    }
    if (status.reason() == ReasonName(Reason::kOutcomeUnknown)) {
      ++unknown_;
    } else if (status.ok()) {
      EXPECT_NE(after, before);
    } else {
      EXPECT_EQ(after, before) << status.ToString();
      ++refused_;
    }
  }
  void CheckAll(const std::function<Status()>& change) {
    for (const char* const call : {"sync", "rename", "unlink"}) {
      for (int at = 1; at <= 4; ++at) {
        for (const bool all_after : {false, true}) {
          for (const bool once_made : {false, true}) {
            Check({call, at, all_after, once_made}, change);
          }
        }
      }
    }
  }

  const testing::TemporaryFolder folder_;
  Process server_, replica_;
  int refused_ = 0, unknown_ = 0;
};

TEST_F(RefusedWrites, AreAbsentOrSaidToBeUnknown) {
  SessionTable* const table = server_.table.get();
  const std::string id = table->Create({"t"}, /*durable=*/true, 0s)->id;
  int64_t tokens = 1;
  CheckAll([&] { return Append(table, id, ++tokens); });
  EXPECT_GT(refused_, 0);
  EXPECT_GT(unknown_, 0);
  CheckAll([&] { return table->Create({"t"}, true, 0s).status(); });
  CheckAll([&] { return table->TakeSnapshot({"t"}, id, 0s).status(); });
  CheckAll([&] { return table->Fork({"t"}, id, 2, std::nullopt).status(); });
  CheckAll([&] {
    const auto listed = Listed(table);
    for (const auto& [one, at] : listed) {
      if (one != id) return table->Delete("t", one);
    }
    return Status();
  });
  EXPECT_GT(failed, 50);
  // Nothing is left that keeps the session from going on.
  ASSERT_TRUE(Append(table, id, ++tokens).ok());
  EXPECT_EQ(TokensOf(replica_.table.get(), id), tokens);
}

// The first entry of a tenant makes its folder: an entry is acknowledged once the folder's name is
// on the disk.
TEST_F(RefusedWrites, TheFolderOfATenantIsSynced) {
  SetFault({.call = "sync"});
  EXPECT_EQ(server_.table->Create({"u"}, true, 0s).status().code(), Code::kUnavailable);
  std::vector<std::string> recorded;
  {
    std::lock_guard lock(mutex);
    fault = {};
    calls = &recorded;
  }
  EXPECT_TRUE(server_.table->Create({"u"}, true, 0s).ok());
  std::lock_guard lock(mutex);
  calls = nullptr;
  const std::string root = std::filesystem::canonical(folder_.path()).string();
  EXPECT_EQ(std::count(recorded.begin(), recorded.end(), "sync " + root), 1);
}

// An older copy that could not be deleted when its session went on in memory.
TEST_F(RefusedWrites, ADeletedSessionDoesNotComeBack) {
  SessionOptions options;
  options.codec.limits = {{testing::kVocab, 1000, true}, 1 << 20};
  options.store = server_.store.get();
  options.memory = 3 * testing::kStateBytes;
  SessionTable table(std::move(options));
  const std::string id = table.Create({"t"}, /*durable=*/false, 0s)->id;
  ASSERT_TRUE(Append(&table, id, 2).ok());
  for (int i = 0; i < 3; ++i) {  // they move it to the store
    const std::string other = table.Create({"t"}, false, 0s)->id;
    ASSERT_TRUE(Append(&table, other, 2).ok());
  }
  ASSERT_TRUE(server_.store->Stat("t", SessionKey(id)).ok());
  SetFault({.call = "unlink", .all_after = true});
  const Status appended = Append(&table, id, 3);
  ASSERT_TRUE(appended.ok()) << appended.ToString();
  SetFault({});
  EXPECT_TRUE(server_.store->Stat("t", SessionKey(id)).ok()) << "the older copy";
  EXPECT_TRUE(table.Delete("t", id).ok());
  EXPECT_EQ(server_.store->Stat("t", SessionKey(id)).status().code(), Code::kNotFound);
  EXPECT_EQ(TokensOf(&table, id), -2);
}

}  // namespace
}  // namespace polysketch
