// What calls see of a store whose operations wait: those of one tenant leave threads for others,
// and those of a store with deadlines end.
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/store/deadline_store.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/server/rpc/server_fixture.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;
using grpc::health::v1::HealthCheckResponse;
using testing::ServerFixture;

// Entries in memory. Operations of the tenant "slow" wait until Release.
class SlowStore final : public StateStore {
 public:
  std::string_view kind() const override { return "dir"; }
  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                       std::chrono::milliseconds) override {
    std::unique_lock lock(mutex_);
    Wait(owner, &lock);
    entries_[{owner, key}] = std::move(bytes);
    return ++revision_;
  }
  Result<Entry> Get(const std::string& owner, const std::string& key) override {
    std::unique_lock lock(mutex_);
    Wait(owner, &lock);
    return NotFound("there is no ", key);
  }
  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override {
    return Get(owner, key).status();
  }
  Status Delete(const std::string& owner, const std::string& key) override {
    return Get(owner, key).status();
  }
  Status Touch(const std::string& owner, const std::string& key,
               std::chrono::milliseconds) override {
    return Get(owner, key).status();
  }
  Result<std::vector<StoredInfo>> List(const std::string& owner, const std::string&) override {
    std::unique_lock lock(mutex_);
    Wait(owner, &lock);
    return std::vector<StoredInfo>();
  }

  int waiting() {
    std::lock_guard lock(mutex_);
    return waiting_;
  }
  void Release() {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  void Wait(const std::string& owner, std::unique_lock<std::mutex>* lock) {
    if (owner != "slow") return;
    ++waiting_;
    changed_.wait(*lock, [this] { return released_; });
    --waiting_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::string, std::string>, std::string> entries_;
  uint64_t revision_ = 0;
  int waiting_ = 0;
  bool released_ = false;
};

class StoreThreadsTest : public ServerFixture {
 protected:
  void Configure(ServerConfig* config) override {
    config->stuck_after = 300ms;
    config->state_store =
        "dir:unused";  // that of each test: with one, its threads are kStoreThreads
  }
  void TearDown() override {
    slow_->Release();
    server_.reset();  // its watch asks the store
  }
  void ReadyWith(StateStore* store) {
    SessionOptions options;
    options.memory = 1 << 20;
    options.store = store;
    sessions_ = std::make_unique<SessionTable>(std::move(options));
    served_.sessions = sessions_.get();
    Ready();
  }
  grpc::Status Create(const std::string& tenant) {
    grpc::ClientContext context;
    context.AddMetadata("x-tenant-id", tenant);
    context.set_deadline(std::chrono::system_clock::now() + 30s);
    v1::CreateSessionRequest request;
    request.set_durable(true);
    v1::Session session;
    return stub_->CreateSession(&context, request, &session);
  }
  HealthCheckResponse::ServingStatus Health() {
    grpc::ClientContext context;
    HealthCheckResponse response;
    const auto stub = grpc::health::v1::Health::NewStub(channel_);
    EXPECT_TRUE(stub->Check(&context, {}, &response).ok());
    return response.status();
  }

  const std::shared_ptr<SlowStore> slow_ = std::make_shared<SlowStore>();
  std::unique_ptr<StateStore> store_;
};

TEST_F(StoreThreadsTest, ATenantWhoseOperationsWaitLeavesThreadsForOthers) {
  ReadyWith(slow_.get());
  std::vector<std::thread> calls;
  std::atomic<int> ended = 0;
  for (int i = 0; i < 2 * kStoreThreads; ++i) {
    calls.emplace_back([&] {
      EXPECT_TRUE(Create("slow").ok());
      ++ended;
    });
  }
  // A part of an address has four: three times what it leaves its address, which has six.
  EXPECT_TRUE(Eventually([this] { return slow_->waiting() == 4; })) << slow_->waiting();
  for (int i = 0; i < 20; ++i) {
    const grpc::Status status = Create("other");
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(slow_->waiting(), 4);
  slow_->Release();
  for (std::thread& call : calls) call.join();
}

TEST_F(StoreThreadsTest, AnOperationThatHangsEndsAndHealthFollows) {
  store_ = NewDeadlineStore(slow_, {.wait = 200ms});
  ReadyWith(store_.get());
  for (int i = 0; i < 2 * kStoreThreads; ++i) {
    const grpc::Status status = Create("slow");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    ASSERT_TRUE(Create("other").ok());
  }
  // It hangs for longer than --stuck-after.
  EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::NOT_SERVING; }));
  EXPECT_TRUE(Create("other").ok());
  slow_->Release();
  EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::SERVING; }));
  EXPECT_TRUE(Create("slow").ok());
}

}  // namespace
}  // namespace polysketch
