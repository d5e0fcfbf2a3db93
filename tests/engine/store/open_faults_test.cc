// A listing of the directory store is complete or an error. openat is this program's: it makes the
// call, or fails it.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <string>

#include "engine/session/session_table.h"
#include "engine/store/open_state_store.h"
#include "engine/store/state_key.h"
#include "gtest/gtest.h"
#include "tests/testing/random_model.h"

namespace {

// One thread calls the store.
int fails_at = 0;        // the number of the call that fails, from 1; 0: none
int fails_with = 0;      // errno
bool all_after = false;  // the calls after it fail too
int calls = 0;           // on names of entries
int failed = 0;

}  // namespace

extern "C" int openat(int folder, const char* name, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  if (std::string(name).starts_with("session-")) {
    ++calls;
    if (fails_at > 0 && (calls == fails_at || (all_after && calls > fails_at))) {
      ++failed;
      errno = fails_with;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_openat, folder, name, flags, mode));
}

namespace polysketch {
namespace {

using namespace std::chrono_literals;

TEST(OpenFaultsTest, AListingIsCompleteOrAnError) {
  const testing::TemporaryFolder folder;
  const auto store = *OpenStateStore("dir:" + folder.path().string());
  SessionOptions options;
  options.store = store.get();
  options.memory = 0;
  SessionTable sessions(std::move(options));
  constexpr int kSessions = 5;
  for (int i = 0; i < kSessions; ++i) {
    const auto made = sessions.Create(SessionUser{"acme"}, /*durable=*/true, 1h);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
  }
  for (const int error : {EIO, EMFILE, ENFILE, EACCES, ESTALE}) {
    for (const bool all : {false, true}) {
      for (int at = 1; at <= kSessions; ++at) {
        calls = 0;
        failed = 0;
        fails_with = error;
        all_after = all;
        fails_at = at;
        const auto stored = store->List("acme", "session-");
        EXPECT_EQ(stored.status().code(), Code::kUnavailable) << error << " at " << at;
        calls = 0;
        const auto listed = sessions.List("acme");
        fails_at = 0;
        EXPECT_EQ(listed.status().code(), Code::kUnavailable) << error << " at " << at;
        EXPECT_GE(failed, 2) << "the fault never happened";
      }
    }
  }
  // An entry that goes while the folder is read was deleted: the rest is complete.
  calls = 0;
  fails_with = ENOENT;
  all_after = false;
  fails_at = 3;
  const auto without = store->List("acme", "session-");
  fails_at = 0;
  ASSERT_TRUE(without.ok()) << without.status().ToString();
  EXPECT_EQ(without->size(), size_t{kSessions - 1});
  const auto listed = sessions.List("acme");
  ASSERT_TRUE(listed.ok()) << listed.status().ToString();
  EXPECT_EQ(listed->sessions.size(), size_t{kSessions});
}

}  // namespace
}  // namespace polysketch
