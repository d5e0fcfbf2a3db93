// What a stuck thread does to readiness and liveness.
#include "server/rpc/stuck_watch.h"

#include <functional>
#include <future>
#include <map>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/server/rpc/server_fixture.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;
using grpc::health::v1::HealthCheckResponse;
using testing::ServerFixture;

TEST(StuckWatch, APartWithoutProgressIsStuckUntilItMoves) {
  std::atomic<bool> has_work = true;
  std::atomic<int64_t> done = 0;
  std::atomic<int> stuck = 0, moves = 0;
  const StuckWatch watch(100ms,
                         {{"part",
                           [&] {
                             return WorkProgress{has_work, done};
                           }}},
                         [&](bool now) { ++(now ? stuck : moves); });
  const auto for_300_ms = [](const auto& act) {
    for (int i = 0; i < 30; ++i, std::this_thread::sleep_for(10ms)) act();
  };
  for_300_ms([&] { ++done; });
  EXPECT_EQ(stuck, 0) << "it moves";
  has_work = false;
  for_300_ms([] {});
  EXPECT_EQ(stuck, 0) << "it has nothing to do";
  has_work = true;
  for_300_ms([] {});
  EXPECT_EQ(stuck, 1);
  EXPECT_EQ(moves, 0);
  ++done;
  for (int i = 0; i < 500 && moves == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(moves, 1);
}

class StuckServerTest : public ServerFixture {
 protected:
  void Configure(ServerConfig* config) override {
    config->stuck_after = 200ms;
    config->state_store = "dir:unused";  // with a store, its threads are kStoreThreads
  }
  HealthCheckResponse::ServingStatus Health() {
    grpc::ClientContext context;
    HealthCheckResponse response;
    const auto stub = grpc::health::v1::Health::NewStub(channel_);
    EXPECT_TRUE(stub->Check(&context, {}, &response).ok());
    return response.status();
  }
};

TEST_F(StuckServerTest, HealthFollows) {
  Ready();
  EXPECT_EQ(Health(), HealthCheckResponse::SERVING);
  std::promise<void> release;
  server_->writers()->Post([waits = release.get_future().share()] { waits.wait(); });
  EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::NOT_SERVING; }));
  release.set_value();
  EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::SERVING; }));
}

TEST_F(StuckServerTest, AnEngineThatDoesNotMoveIsStuck) {
  engine_.set_stuck(true);
  Ready();
  EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::NOT_SERVING; }));
  engine_.set_stuck(false);
  EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::SERVING; }));
}

// Of the threads of an executor one is stuck, and the others finish work all the time.
TEST_F(StuckServerTest, OneThreadOfSeveralIsEnough) {
  Ready();
  const ServiceContext& context = server_->context();
  using Post = std::function<void(std::function<void()>)>;
  const std::map<std::string, Post> parts = {
      {"store", [&](auto work) { context.stores->Post(work, {"owner"}); }},
      {"session", [&](auto work) { context.sessions->Post(work); }},
      {"tokenizer", [&](auto work) {
         context.tokenizers->Post({"group", "address"}, 1, work);
       }}};
  for (const auto& part : parts) {
    const Post& post = part.second;
    SCOPED_TRACE(part.first);
    EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::SERVING; }));
    std::promise<void> release;
    post([waits = release.get_future().share()] { waits.wait(); });
    std::atomic<int> finished = 0;
    const auto others_move = [&] {
      post([&finished] { ++finished; });
      return Health() == HealthCheckResponse::NOT_SERVING;
    };
    EXPECT_TRUE(Eventually(others_move));
    EXPECT_GT(finished, 0);
    release.set_value();
    EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::SERVING; }));
    EXPECT_TRUE(Eventually([&] {
      const WorkProgress progress = context.stores->progress();
      return !progress.has_work && !context.sessions->progress().has_work &&
             !context.tokenizers->progress().has_work;
    }));
  }
}

// Work that waits for a slow disk again and again is not stuck.
TEST_F(StuckServerTest, WorkThatMovesIsNotStuck) {
  Ready();
  std::atomic<bool> ended = false;
  server_->context().stores->Post([&ended] {
    for (int i = 0; i < 100; ++i) {
      std::this_thread::sleep_for(10ms);
      RunningWork::Moved();
    }
    ended = true;
  });
  while (!ended) {
    EXPECT_EQ(Health(), HealthCheckResponse::SERVING);
    std::this_thread::sleep_for(20ms);
  }
}

TEST_F(StuckServerTest, ADrainStaysADrain) {
  Ready();
  std::promise<void> release;
  server_->writers()->Post([waits = release.get_future().share()] { waits.wait(); });
  EXPECT_TRUE(Eventually([this] { return Health() == HealthCheckResponse::NOT_SERVING; }));
  auto drain = std::async(std::launch::async, [this] { return server_->Drain(50ms); });
  release.set_value();
  EXPECT_TRUE(drain.get());
}

}  // namespace
}  // namespace polysketch
