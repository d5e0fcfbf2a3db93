// Both stores keep the same promises: whole entries, owners, expiry. Redis runs as a child on a
// free port.
#include "engine/store/open_state_store.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <thread>

#include "engine/store/redis_url.h"
#include "engine/store/state_key.h"
#include "engine/store/stored_header.h"
#include "gtest/gtest.h"
#include "tests/testing/random_model.h"
#include "tests/testing/redis_server.h"
#include "tests/testing/scripted_redis.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

class StateStoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "dir") {
      url_ = "dir:" + (folder_.path() / "states").string();
    } else {
      if (!testing::RedisServer::Exists()) GTEST_SKIP() << "there is no redis-server";
      redis_ = std::make_unique<testing::RedisServer>(folder_.path());
      const fs::path password = folder_.path() / "password";
      std::ofstream(password) << "hidden\n";
      url_ = StrCat("redis://worker@127.0.0.1:", redis_->port(),
                    "/3?password_file=", password.string());
    }
    for (int i = 0; i < 500; ++i) {
      auto store = OpenStateStore(url_);
      if (store.ok()) {
        store_ = *std::move(store);
        return;
      }
      ASSERT_EQ(store.status().code(), Code::kUnavailable) << store.status().ToString();
      std::this_thread::sleep_for(10ms);
    }
    FAIL() << "the store never came up";
  }

  testing::TemporaryFolder folder_;
  std::unique_ptr<testing::RedisServer> redis_;
  std::string url_;
  std::unique_ptr<StateStore> store_;
};

TEST_P(StateStoreTest, EntriesComeBackWhole) {
  std::string bytes(3 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 >> 3);
  const auto first = store_->Put("acme", "session-1", bytes, 1h);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const auto got = store_->Get("acme", "session-1");
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(AsText(got->bytes), bytes);
  EXPECT_EQ(got->info.key, "session-1");
  EXPECT_EQ(got->info.revision, *first);
  EXPECT_EQ(got->info.bytes, static_cast<int64_t>(bytes.size()));
  EXPECT_LT(std::chrono::system_clock::now() - got->info.created, 1min);

  const auto second = store_->Put("acme", "session-1", "new", 1h);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*second, *first);
  const auto stat = store_->Stat("acme", "session-1");
  ASSERT_TRUE(stat.ok());
  EXPECT_EQ(stat->revision, *second);
  EXPECT_EQ(stat->bytes, 3);
  ASSERT_TRUE(store_->Put("acme", "empty", "", 1h).ok());
  EXPECT_EQ(AsText(store_->Get("acme", "empty")->bytes), "");
}

TEST_P(StateStoreTest, OwnersDoNotSeeEachOther) {
  for (const std::string owner : {"", "a", "a:b", "..", "A"}) {
    ASSERT_TRUE(store_->Put(owner, "session-x", "of " + owner, 1h).ok()) << owner;
  }
  for (const std::string owner : {"", "a", "a:b", "..", "A"}) {
    EXPECT_EQ(AsText(store_->Get(owner, "session-x")->bytes), "of " + owner);
    EXPECT_EQ(store_->List(owner, "session-")->size(), 1u) << owner;
  }
  EXPECT_EQ(store_->Get("b", "session-x").status().code(), Code::kNotFound);
  EXPECT_EQ(store_->Stat("b", "session-x").status().code(), Code::kNotFound);
  EXPECT_EQ(store_->Delete("b", "session-x").code(), Code::kNotFound);
  EXPECT_EQ(store_->Touch("b", "session-x", 1h).code(), Code::kNotFound);
  EXPECT_TRUE(store_->List("b", "")->empty());
}

TEST_P(StateStoreTest, ListDeleteAndPrefixes) {
  for (const std::string key : {"session-b", "session-a", "snapshot-a"}) {
    ASSERT_TRUE(store_->Put("t", key, key, 1h).ok());
  }
  const auto sessions = store_->List("t", "session-");
  ASSERT_TRUE(sessions.ok());
  ASSERT_EQ(sessions->size(), 2u);
  EXPECT_EQ((*sessions)[0].key, "session-a");
  EXPECT_EQ((*sessions)[1].key, "session-b");
  EXPECT_EQ((*sessions)[0].bytes, 9);
  EXPECT_EQ(store_->List("t", "")->size(), 3u);
  EXPECT_TRUE(store_->Delete("t", "session-a").ok());
  EXPECT_EQ(store_->Delete("t", "session-a").code(), Code::kNotFound);
  EXPECT_EQ(store_->Get("t", "session-a").status().code(), Code::kNotFound);
  EXPECT_EQ(store_->List("t", "session-")->size(), 1u);
}

TEST_P(StateStoreTest, EntriesExpireUnlessTouched) {
  ASSERT_TRUE(store_->Put("t", "short", "1", 50ms).ok());
  ASSERT_TRUE(store_->Put("t", "kept", "2", 500ms).ok());
  ASSERT_TRUE(store_->Put("t", "long", "3", 1h).ok());
  ASSERT_TRUE(store_->Touch("t", "kept", 1h).ok());
  ASSERT_TRUE(store_->Touch("t", "long", 50ms).ok());
  std::this_thread::sleep_for(600ms);
  EXPECT_EQ(store_->Get("t", "short").status().code(), Code::kNotFound);
  EXPECT_EQ(store_->Touch("t", "short", 1h).code(), Code::kNotFound);
  EXPECT_EQ(store_->Get("t", "long").status().code(), Code::kNotFound);
  EXPECT_EQ(AsText(store_->Get("t", "kept")->bytes), "2");
  EXPECT_EQ(store_->List("t", "")->size(), 1u);
  store_->Expire();
  EXPECT_EQ(AsText(store_->Get("t", "kept")->bytes), "2");
  // A new object of the same store finds what another left.
  EXPECT_EQ(AsText((*OpenStateStore(url_))->Get("t", "kept")->bytes), "2");
}

TEST_P(StateStoreTest, WritersAndReadersAtOnceSeeWholeEntries) {
  std::vector<std::thread> writers;
  for (int w = 0; w < 3; ++w) {
    writers.emplace_back([&, w] {
      auto store = *OpenStateStore(url_);
      for (int i = 0; i < 30; ++i) {
        EXPECT_TRUE(
            store->Put("t", "one", std::string(50000, static_cast<char>('a' + w)), 1h).ok());
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    const auto got = store_->Get("t", "one");
    if (!got.ok()) {
      ASSERT_EQ(got.status().code(), Code::kNotFound);
      continue;
    }
    ASSERT_EQ(got->bytes.size(), 50000u);
    ASSERT_EQ(AsText(got->bytes), std::string(50000, static_cast<char>(got->bytes[0])));
  }
  for (std::thread& writer : writers) writer.join();
}

TEST_P(StateStoreTest, SaysHowMuchItHolds) {
  store_->Expire();
  const int64_t before = store_->usage().bytes;
  ASSERT_TRUE(store_->Put("t", "one", std::string(1 << 20, 'x'), 1h).ok());
  store_->Expire();
  EXPECT_GE(store_->usage().bytes, before + (1 << 20));
  EXPECT_LE(store_->usage().bytes, before + (8 << 20));  // Redis counts its buffers too
  EXPECT_EQ(store_->usage().limit, redis_ == nullptr ? 0 : testing::RedisServer::kMaxMemory);
}

TEST_P(StateStoreTest, ABrokenConnectionIsMadeAgain) {
  if (redis_ == nullptr) GTEST_SKIP() << "a folder has no connection";
  ASSERT_TRUE(store_->Put("t", "a", "1", 1h).ok());
  redis_->Stop();
  EXPECT_EQ(store_->Get("t", "a").status().code(), Code::kUnavailable);
  EXPECT_EQ(store_->Put("t", "a", "1", 1h).status().code(), Code::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Stores, StateStoreTest, ::testing::Values("dir", "redis"),
                         [](const auto& info) { return info.param; });

TEST(DirectoryStoreTest, WhatIsNotOursIsRefused) {
  const testing::TemporaryFolder folder;
  const auto store = OpenStateStore("dir:" + folder.path().string());
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->Put("t", "good", "bytes", 1h).ok());
  std::ofstream(folder.path() / "t.t" / "bad") << "hello";
  fs::last_write_time(folder.path() / "t.t" / "bad", fs::file_time_type::clock::now() + 1h);
  EXPECT_EQ((*store)->Get("t", "bad").status().code(), Code::kDataLoss);
  EXPECT_EQ((*store)->List("t", "")->size(), 1u);
  EXPECT_TRUE((*store)->Delete("t", "bad").ok());
  EXPECT_FALSE(fs::exists(folder.path() / "t.t" / "bad"));
}

TEST(DirectoryStoreTest, FilesOfOthersAreLeftAlone) {
  const testing::TemporaryFolder folder;
  const std::string url = "dir:" + (folder.path() / "states").string();
  const auto store = *OpenStateStore(url);
  ASSERT_TRUE(store->Put("t", "session-1", "bytes", 1ms).ok());
  const fs::path tenant = folder.path() / "states" / "t.t";
  const auto make_old = [](const fs::path& path) {
    std::ofstream(path) << "hello";
    fs::last_write_time(path, fs::file_time_type::clock::now() - 48h);
  };
  make_old(tenant / "notes");
  fs::create_directory(folder.path() / "elsewhere");
  // Of another store: reached through a link it must stay.
  fs::copy(tenant / "session-1", folder.path() / "elsewhere" / "session-1");
  fs::last_write_time(folder.path() / "elsewhere" / "session-1",
                      fs::file_time_type::clock::now() - 48h);
  fs::create_directory_symlink(folder.path() / "elsewhere", folder.path() / "states" / "t.link");
  fs::create_symlink(folder.path() / "elsewhere" / "session-1", tenant / "session-2");
  ASSERT_EQ(mkfifo((tenant / "session-3").c_str(), 0600), 0);
  std::this_thread::sleep_for(5ms);
  store->Expire();
  EXPECT_FALSE(fs::exists(tenant / "session-1")) << "an entry that has expired";
  EXPECT_TRUE(fs::exists(tenant / "notes"));
  EXPECT_TRUE(fs::exists(folder.path() / "elsewhere" / "session-1"));
  const auto listed = store->List("t", "session-");
  ASSERT_TRUE(listed.ok()) << listed.status().ToString();
  EXPECT_TRUE(listed->empty());
  EXPECT_EQ(store->Get("t", "session-2").status().code(), Code::kDataLoss) << "a link";
  EXPECT_EQ(store->Get("t", "session-3").status().code(), Code::kDataLoss) << "a FIFO";
}

// The names of all files below a folder, with their bytes.
std::map<std::string, std::string> FilesBelow(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& file : fs::recursive_directory_iterator(folder)) {
    std::ostringstream bytes;
    bytes << std::ifstream(file.path()).rdbuf();
    files[file.path().filename().string()] = bytes.str();
  }
  return files;
}

// On a shared volume another user can put a link in the place of a tenant's folder.
TEST(DirectoryStoreTest, ALinkInThePlaceOfATenantsFolderIsNotFollowed) {
  const testing::TemporaryFolder folder;
  const fs::path states = folder.path() / "states", elsewhere = folder.path() / "elsewhere";
  const auto store = *OpenStateStore("dir:" + states.string());
  // Elsewhere is the folder of a store, so that only the link tells it from this store.
  ASSERT_TRUE(store->Put("t", "session-1", "bytes", 1h).ok());
  fs::rename(states / "t.t", elsewhere);
  fs::create_directory_symlink(elsewhere, states / "t.t");
  const auto before = FilesBelow(elsewhere);
  ASSERT_EQ(before.size(), 1u);
  const auto written = fs::last_write_time(elsewhere / "session-1");

  const std::vector<Status> statuses = {store->Put("t", "session-1", "other", 1h).status(),
                                        store->Put("t", "session-2", "bytes", 1h).status(),
                                        store->Delete("t", "session-1"),
                                        store->Touch("t", "session-1", 2h),
                                        store->Get("t", "session-1").status(),
                                        store->Stat("t", "session-1").status(),
                                        store->List("t", "session-").status(),
                                        store->CountAtMost("t", "session-").status()};
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
    EXPECT_EQ(status.message(), "state store: expected a folder of the tenant, found another file");
  }
  EXPECT_EQ(FilesBelow(elsewhere), before);
  EXPECT_EQ(fs::last_write_time(elsewhere / "session-1"), written);
  // The folders of other tenants are counted all the same.
  ASSERT_TRUE(store->Put("u", "session-1", "bytes", 1h).ok());
  store->Expire();
  EXPECT_EQ(store->usage().bytes, 5 + static_cast<int64_t>(kStoredHeaderBytes));
}

// Clients read the messages of errors: they name no path of the server, not even in part.
TEST(DirectoryStoreTest, ErrorsNameNoPath) {
  const testing::TemporaryFolder folder;
  const fs::path root = folder.path() / "hidden-root";
  const auto store = *OpenStateStore("dir:" + root.string());
  ASSERT_TRUE(store->Put("acme", "session-1", "bytes", 1h).ok());
  std::vector<Status> statuses;
  const auto every_operation = [&] {
    statuses.push_back(store->Put("acme", "session-1", "other", 1h).status());
    statuses.push_back(store->Get("acme", "session-1").status());
    statuses.push_back(store->Delete("acme", "session-1"));
    statuses.push_back(store->Touch("acme", "session-1", 1h));
    statuses.push_back(store->List("acme", "").status());
    statuses.push_back(store->CountAtMost("acme", "").status());
  };
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit no_files{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &no_files), 0);
  every_operation();
  const Status new_tenant = store->Put("new", "session-1", "bytes", 1h).status();  // syncs the root
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(statuses.size(), 6u);
  for (const Status& status : statuses) EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(new_tenant.code(), Code::kUnavailable) << new_tenant.ToString();
  statuses.push_back(new_tenant);
  fs::remove_all(root);
  const Status gone = store->Put("acme", "session-1", "bytes", 1h).status();
  EXPECT_EQ(gone.code(), Code::kUnavailable) << gone.ToString();
  statuses.push_back(gone);
  every_operation();
  std::ofstream(root) << "a file";
  every_operation();
  for (const Status& status : statuses) {
    for (const std::string part : {"hidden-root", "t.acme", "t.new", ".new-", "/"}) {
      EXPECT_EQ(status.message().find(part), std::string::npos) << status.ToString();
    }
  }
}

// A server without a free file descriptor must not take its store for empty.
TEST(DirectoryStoreTest, AFolderThatCannotBeReadIsAnError) {
  const testing::TemporaryFolder folder;
  const auto store = *OpenStateStore("dir:" + folder.path().string());
  ASSERT_TRUE(store->Put("t", "session-1", "bytes", 1h).ok());
  const int64_t bytes = store->usage().bytes;
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto listed = store->List("t", "");
  const auto got = store->Get("t", "session-1");
  store->Expire();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(listed.status().code(), Code::kUnavailable) << listed.status().ToString();
  EXPECT_EQ(got.status().code(), Code::kUnavailable);
  EXPECT_EQ(got.status().message().find(folder.path().string()), std::string::npos)
      << "clients read it: " << got.status().message();
  EXPECT_EQ(store->usage().bytes, bytes);
  EXPECT_EQ(store->List("t", "")->size(), 1u);
}

// A volume that is gone for a while has lost no entry.
TEST(DirectoryStoreTest, AFolderThatIsMissingIsAnError) {
  const testing::TemporaryFolder folder;
  const fs::path root = folder.path() / "root", away = folder.path() / "away";
  const auto store = *OpenStateStore("dir:" + root.string());
  ASSERT_TRUE(store->Put("t", "session-1", "bytes", 1h).ok());
  fs::rename(root, away);
  for (const Status& status :
       {store->Get("t", "session-1").status(), store->Delete("t", "session-1"),
        store->Touch("t", "session-1", 1h), store->List("t", "").status(),
        store->CountAtMost("t", "").status(), store->Get("other", "session-1").status()}) {
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  }
  fs::rename(away, root);
  EXPECT_TRUE(store->Get("t", "session-1").ok());
  EXPECT_EQ(store->Get("other", "session-1").status().code(), Code::kNotFound);
}

TEST(DirectoryStoreTest, WhatDoesNotFitIsRefusedAndNothingGoes) {
  const testing::TemporaryFolder folder;
  const std::string url = "dir:" + folder.path().string();
  constexpr int64_t kLimit = 10000;
  const auto store = *OpenStateStore(url, kLimit);
  const auto put = [](StateStore* to, const std::string& key, size_t bytes, auto ttl) {
    return to->Put("t", key, std::string(bytes, 'x'), ttl).status().code();
  };
  EXPECT_EQ(put(store.get(), "a", 4000, 1h), Code::kOk);
  EXPECT_EQ(put(store.get(), "passing", 4000, 700ms), Code::kOk);
  EXPECT_EQ(store->usage().bytes, 2 * (4000 + 24));
  EXPECT_EQ(put(store.get(), "b", 4000, 1h), Code::kResourceExhausted);
  EXPECT_EQ(put(store.get(), "a", 5000, 1h), Code::kOk) << "in its own place";
  EXPECT_EQ(store->Get("t", "a")->bytes.size(), 5000u);
  // Room comes back: by a delete, by expiry (another look, a second later), by another process.
  ASSERT_TRUE(store->Delete("t", "a").ok());
  EXPECT_EQ(put(store.get(), "b", 4000, 1h), Code::kOk);
  EXPECT_EQ(put(store.get(), "c", 4000, 1h), Code::kResourceExhausted);
  std::this_thread::sleep_for(1100ms);
  EXPECT_EQ(put(store.get(), "c", 4000, 1h), Code::kOk) << "in the place of what expired";
  const auto other = *OpenStateStore(url, kLimit);
  EXPECT_EQ(other->usage().bytes, store->usage().bytes);
  EXPECT_EQ(put(other.get(), "d", 4000, 1h), Code::kResourceExhausted);
  ASSERT_TRUE(store->Delete("t", "b").ok());
  std::this_thread::sleep_for(1100ms);
  EXPECT_EQ(put(other.get(), "d", 4000, 1h), Code::kOk);

  EXPECT_EQ(OpenStateStore("redis://127.0.0.1:1", kLimit).status().code(), Code::kInvalidArgument);
}

// Opens the store of a server that answers so, after PING and INFO.
Result<std::unique_ptr<StateStore>> OpenScripted(int port) {
  return OpenStateStore(StrCat("redis://127.0.0.1:", port));
}

TEST(RedisStoreTest, RepliesThatAreNotThoseOfScan) {
  for (const std::string bad : {"*2\r\n:5\r\n*0\r\n",              // no text as the cursor
                                "*2\r\n$1\r\n0\r\n:1\r\n",         // no array of keys
                                "*2\r\n$1\r\n0\r\n*1\r\n$-1\r\n",  // no key
                                "*1\r\n$1\r\n0\r\n", ":7\r\n", "+OK\r\n", "-NOPERM no\r\n"}) {
    testing::ScriptedRedis server({"+PONG\r\n", ":3\r\n", bad});
    EXPECT_EQ(OpenScripted(server.port()).status().code(), Code::kUnavailable) << bad;
  }
}

TEST(RedisStoreTest, AScanWithoutAnEndIsLeft) {
  std::vector<std::string> answers = {"+PONG\r\n", ":3\r\n"};
  const std::string name(1 << 20, 'n');
  answers.resize(answers.size() + 70,
                 StrCat("*2\r\n$1\r\n7\r\n*1\r\n$", name.size(), "\r\n", name, "\r\n"));
  testing::ScriptedRedis server(std::move(answers));
  const Status status = OpenScripted(server.port()).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("SCAN: expected an end"), std::string::npos) << status.ToString();
}

TEST(RedisStoreTest, RepliesThatAreNotThoseOfAListing) {
  const std::string no_keys = "*2\r\n$1\r\n0\r\n*0\r\n";
  for (const std::string bad :
       {":7\r\n", "+OK\r\n", "*1\r\n:1\r\n", "*1\r\n$-1\r\n", "$1\r\nx\r\n", "-ERR no\r\n"}) {
    testing::ScriptedRedis server({"+PONG\r\n", ":3\r\n", no_keys, bad});
    const auto store = OpenScripted(server.port());
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    EXPECT_EQ((*store)->List("acme", "session-").status().code(), Code::kUnavailable) << bad;
  }
}

TEST(RedisStoreTest, AListingNamesAnEntryOnce) {
  std::string entry = StoredHeader(1) + "ab";
  entry = StrCat("$", entry.size(), "\r\n", entry, "\r\n");
  const std::string no_keys = "*2\r\n$1\r\n0\r\n*0\r\n", size = ":26\r\n";
  const std::string twice = "*2\r\n$9\r\nsession-1\r\n$9\r\nsession-1\r\n";
  testing::ScriptedRedis server({"+PONG\r\n", ":3\r\n", no_keys, twice, size + entry});
  const auto store = OpenScripted(server.port());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto infos = (*store)->List("acme", "session-");
  ASSERT_TRUE(infos.ok()) << infos.status().ToString();
  ASSERT_EQ(infos->size(), 1u);
  EXPECT_EQ((*infos)[0].key, "session-1");
}

TEST(RedisStoreTest, AnEntryHasTheBytesThatWereRead) {
  std::string entry = StoredHeader(1) + "ab";
  entry = StrCat("$", entry.size(), "\r\n", entry, "\r\n");
  testing::ScriptedRedis server(
      {"+PONG\r\n", ":3\r\n", "*2\r\n$1\r\n0\r\n*0\r\n", ":1\r\n" + entry});
  const auto store = OpenScripted(server.port());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto info = (*store)->Stat("acme", "session-1");
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  EXPECT_EQ(info->bytes, 2);
}

TEST(StoredHeaderTest, ATimeThatNoClockShowsIsDamage) {
  const auto read = [](int64_t created) {
    FieldWriter fields(kStoredMagic);
    fields(uint64_t{1}, created);
    const std::string bytes = std::move(fields).Take();
    return ReadStoredHeader("k", bytes, std::ssize(bytes)).status();
  };
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(read(0).ok());
  EXPECT_TRUE(read(kMax / 1'000'000).ok());
  for (const int64_t created : {kMax / 1'000'000 + 1, kMax, -kMax - 1, int64_t{-1}}) {
    EXPECT_EQ(read(created).code(), Code::kDataLoss) << created;
  }
}

TEST(StateStoreUrl, Forms) {
  const auto full = ParseRedisUrl("redis://me@example.org:7000/5?password_file=/etc/p");
  ASSERT_TRUE(full.ok()) << full.status().ToString();
  EXPECT_EQ(full->host, "example.org");
  EXPECT_EQ(full->port, 7000);
  EXPECT_EQ(full->user, "me");
  EXPECT_EQ(full->database, 5);
  EXPECT_EQ(full->password_file, "/etc/p");
  const auto short_one = ParseRedisUrl("redis://[::1]");
  ASSERT_TRUE(short_one.ok());
  EXPECT_EQ(short_one->host, "::1");
  EXPECT_EQ(short_one->port, 6379);
  for (const std::string bad : {"redis://", "redis://h:x", "redis://h:70000", "redis://h/x",
                                "redis://u:p@h", "redis://h?x=1", "http://h"}) {
    EXPECT_EQ(ParseRedisUrl(bad).status().code(), Code::kInvalidArgument) << bad;
    EXPECT_EQ(OpenStateStore(bad).status().code(), Code::kInvalidArgument) << bad;
  }
  for (const std::string tls :
       {"rediss://h:6380", "rediss://u:secret@h", "rediss://", "valkeys://h"}) {
    const Status status = OpenStateStore(tls).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << tls;
    EXPECT_NE(status.message().find("no TLS"), std::string::npos) << status.ToString();
    EXPECT_NE(status.message().find("docs/operations.md"), std::string::npos) << status.ToString();
    EXPECT_EQ(status.message().find("secret"), std::string::npos) << status.ToString();
  }
  for (const std::string bad : {"", "dir:", "file:/x", "/tmp"}) {
    EXPECT_EQ(OpenStateStore(bad).status().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_EQ(OpenStateStore("dir:/proc/nothing").status().code(), Code::kUnavailable);
}

TEST(StateKeys, AreRandom) {
  const std::string key = NewStateKey();
  EXPECT_TRUE(IsStateKey(key));
  EXPECT_NE(key, NewStateKey());
  for (const std::string bad : {"", "x", "../../etc/passwd", "0123456789ABCDEF0123456789ABCDEF"}) {
    EXPECT_FALSE(IsStateKey(bad));
  }
}

}  // namespace
}  // namespace polysketch
