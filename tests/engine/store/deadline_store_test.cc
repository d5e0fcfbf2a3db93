// A store that hangs: callers get UNAVAILABLE in time, and what hangs never overtakes what comes
// later.
#include "engine/store/deadline_store.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "base/running_work.h"
#include "engine/store/open_state_store.h"
#include "gtest/gtest.h"
#include "tests/testing/random_model.h"

namespace {

// fsync of this program waits while the gate is closed, or that of folders alone.
std::mutex mutex;
std::condition_variable changed;
bool closed = false;
bool only_folders = false;
int waiting = 0;

void PassGate() {
  std::unique_lock lock(mutex);
  ++waiting;
  changed.notify_all();
  changed.wait(lock, [] { return !closed; });
  --waiting;
  changed.notify_all();
}

void SetGate(bool close, bool folders = false) {
  std::lock_guard lock(mutex);
  closed = close;
  only_folders = folders;
  changed.notify_all();
}

bool AwaitWaiting(int count) {
  std::unique_lock lock(mutex);
  return changed.wait_for(lock, std::chrono::seconds(20), [&] { return waiting == count; });
}

}  // namespace

extern "C" int fsync(int fd) {
  struct stat stat {};
  const bool folder = fstat(fd, &stat) == 0 && S_ISDIR(stat.st_mode);
  bool passes = false;
  {
    std::lock_guard lock(mutex);
    passes = only_folders && !folder;
  }
  if (!passes) PassGate();
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace polysketch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class DeadlineStoreTest : public ::testing::Test {
 protected:
  DeadlineStoreTest() {
    auto directory = OpenDirectoryStore(folder_.path(), 0);
    EXPECT_TRUE(directory.ok());
    store_ = NewDeadlineStore(*std::move(directory), {.wait = 100ms});
  }
  ~DeadlineStoreTest() override { SetGate(false); }

  static void ExpectInTime(Clock::time_point start, const Status& status) {
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
    EXPECT_LT(Clock::now() - start, 10s);
  }
  // Waits for all operations that hang.
  void Open() {
    SetGate(false);
    for (int i = 0; i < 2000 && store_->hangs_since(); ++i) std::this_thread::sleep_for(10ms);
    EXPECT_FALSE(store_->hangs_since().has_value());
  }
  std::string Text(const std::string& key) {
    const auto entry = store_->Get("t", key);
    return entry.ok() ? std::string(AsText(entry->bytes)) : entry.status().ToString();
  }

  const testing::TemporaryFolder folder_;
  std::unique_ptr<StateStore> store_;
};

TEST_F(DeadlineStoreTest, APutThatHangsEndsAndChangesNothing) {
  ASSERT_TRUE(store_->Put("t", "one", "first", 1h).ok());
  ASSERT_TRUE(store_->Put("t", "two", "second", 1h).ok());
  EXPECT_FALSE(store_->hangs_since().has_value());
  SetGate(true);
  const Clock::time_point start = Clock::now();
  ExpectInTime(start, store_->Put("t", "one", "late", 1h).status());
  EXPECT_GE(Clock::now() - start, 100ms);
  ASSERT_TRUE(store_->hangs_since().has_value());
  EXPECT_LT(*store_->hangs_since(), Clock::now() - 90ms);
  // The entry is left alone until then, others are not.
  ExpectInTime(start, store_->Get("t", "one").status());
  ExpectInTime(start, store_->Put("t", "one", "later", 1h).status());
  ExpectInTime(start, store_->Delete("t", "one"));
  EXPECT_EQ(Text("two"), "second");
  EXPECT_TRUE(store_->List("t", "").ok());
  Open();
  EXPECT_EQ(Text("one"), "first") << "its caller was told that it failed";
  ASSERT_TRUE(store_->Put("t", "one", "later", 1h).ok());
  EXPECT_EQ(Text("one"), "later");
  EXPECT_EQ(store_->List("t", "")->size(), 2u);
}

// The entry has its name already, so its caller cannot be told that it was not made.
TEST_F(DeadlineStoreTest, AChangeThatHangsWhenItIsMadeIsUnknown) {
  ASSERT_TRUE(store_->Put("t", "one", "first", 1h).ok());
  ASSERT_TRUE(store_->Put("t", "two", "second", 1h).ok());
  SetGate(true, /*folders=*/true);
  EXPECT_EQ(store_->Put("t", "one", "late", 1h).status().reason(), "OUTCOME_UNKNOWN");
  EXPECT_EQ(store_->Delete("t", "two").reason(), "OUTCOME_UNKNOWN");
  EXPECT_EQ(store_->Get("t", "one").status().code(), Code::kUnavailable) << "until it ends";
  Open();
  EXPECT_EQ(Text("one"), "late");
  EXPECT_EQ(store_->Get("t", "two").status().code(), Code::kNotFound);
}

TEST_F(DeadlineStoreTest, ATenantHasFewThatHang) {
  for (const std::string owner : {"t", "u"}) ASSERT_TRUE(store_->Put(owner, "zero", "", 1h).ok());
  SetGate(true);
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kMaxHungOfOwner; ++i) {
    ExpectInTime(start, store_->Put("t", StrCat("key-", i), "bytes", 1h).status());
  }
  ASSERT_TRUE(AwaitWaiting(kMaxHungOfOwner));
  const Clock::time_point full = Clock::now();
  for (int i = 0; i < 100; ++i) {
    ExpectInTime(start, store_->Put("t", StrCat("more-", i), "bytes", 1h).status());
  }
  EXPECT_LT(Clock::now() - full, 100 * 100ms) << "they are refused at once";
  EXPECT_TRUE(AwaitWaiting(kMaxHungOfOwner));
  EXPECT_TRUE(store_->Get("u", "zero").ok());
  Open();
  EXPECT_TRUE(store_->Put("t", "more-0", "bytes", 1h).ok());
}

TEST_F(DeadlineStoreTest, TheStoreEndsBeforeWhatHangs) {
  ASSERT_TRUE(store_->Put("t", "one", "first", 1h).ok());
  SetGate(true);
  EXPECT_FALSE(store_->Put("t", "one", "late", 1h).ok());
  store_.reset();
  SetGate(false);
  EXPECT_TRUE(AwaitWaiting(0));
}

// A store that is slow, and moves.
class MovingStore final : public StateStore {
 public:
  std::string_view kind() const override { return "dir"; }
  Result<uint64_t> Put(const std::string&, const std::string&, std::string,
                       std::chrono::milliseconds) override {
    std::this_thread::sleep_for(200ms);
    return uint64_t{1};
  }
  Result<Entry> Get(const std::string&, const std::string&) override {
    for (int i = 0; i < 30; ++i) {
      std::this_thread::sleep_for(10ms);
      RunningWork::Moved();
    }
    return Entry{};
  }
  Result<StoredInfo> Stat(const std::string&, const std::string&) override { return StoredInfo(); }
  Status Delete(const std::string&, const std::string&) override { return Status(); }
  Status Touch(const std::string&, const std::string&, std::chrono::milliseconds) override {
    return Status();
  }
  Result<std::vector<StoredInfo>> List(const std::string&, const std::string&) override {
    return std::vector<StoredInfo>();
  }
};

TEST(SlowStoreTest, WhatMovesHasTime) {
  const auto store =
      NewDeadlineStore(std::make_shared<MovingStore>(), {.wait = 150ms, .bytes_per_second = 1000});
  EXPECT_TRUE(store->Get("t", "one").ok());
  EXPECT_TRUE(store->Put("t", "one", std::string(10000, 'x'), 1h).ok()) << "10 s for its bytes";
  EXPECT_EQ(store->Put("t", "one", "x", 1h).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace polysketch
