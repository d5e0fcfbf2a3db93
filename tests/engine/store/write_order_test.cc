// The order in which the directory store makes an entry durable. fsync and renameat are this
// program's: they record the call and then make it.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "engine/store/open_state_store.h"
#include "gtest/gtest.h"
#include "tests/testing/random_model.h"

namespace {

std::mutex mutex;
std::vector<std::string>* calls = nullptr;  // guarded by mutex; null: not recorded

void Record(const std::string& call) {
  std::lock_guard lock(mutex);
  if (calls != nullptr) calls->push_back(call);
}

std::string PathOf(int fd) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), path, sizeof(path));
  return std::string(path, length > 0 ? static_cast<size_t>(length) : 0);
}

}  // namespace

extern "C" int fsync(int fd) {
  Record("sync " + PathOf(fd));
  return static_cast<int>(syscall(SYS_fsync, fd));
}

extern "C" int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  Record("rename " + PathOf(from_folder) + "/" + from + " " + PathOf(to_folder) + "/" + to);
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, 0));
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

}  // namespace
}  // namespace polysketch
