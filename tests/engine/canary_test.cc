// Canaries: random requests of several tenants at once, in stored prompts, sessions, forks,
// snapshots and migrations, with memory for a few of them, cancelled at random. Each must be, bit
// for bit, what a server without any of that gives to it alone.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/model/folder_model.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/session/session_table.h"
#include "engine/store/open_state_store.h"
#include "gtest/gtest.h"
#include "kernels/new_backend.h"
#include "tests/engine/testing/reader.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::Random;
using testing::Reader;
using Tokens = std::vector<int32_t>;

// An engine with a model of its own.
struct World {
  World(const std::filesystem::path& folder, EngineOptions options) {
    backend = *NewCpuBackend(1);
    LoadOptions load;
    load.max_step_tokens = options.max_step_tokens;
    model = *FolderModel::Load(folder.string(), backend.get(), load);
    engine = *Engine::Create(model.get(), nullptr, options);
  }
  std::unique_ptr<Backend> backend;
  std::unique_ptr<FolderModel> model;
  std::unique_ptr<Engine> engine;
};

// One of each tenant's sessions, and what is in it.
struct KnownSession {
  std::string id;
  Tokens history;
};

class CanaryTest : public ::testing::TestWithParam<std::string> {
 protected:
  CanaryTest() : config_(testing::TinyConfig(GetParam())) {
    testing::WriteRandomModel(folder_.path() / "model", config_, DataType::kF32, 1);
    cache_ = std::make_unique<PrefixCache>(
        PrefixCacheOptions{.memory = 60000, .min_tokens = 8, .every = 16});
    EngineOptions options;
    options.max_sequences = 4;
    options.max_step_tokens = 40;
    options.slot_memory = size_t{64} << 20;
    options.prefix_cache = cache_.get();
    options.draft_tokens = 3;
    hot_ = std::make_unique<World>(folder_.path() / "model", options);
    // For a few states.
    cache_->SetMemory(std::max<size_t>(60000, 3 * hot_->model->StateBytes(60)));
    options.max_sequences = 1;
    options.prefix_cache = nullptr;
    options.draft_tokens = 0;
    cold_ = std::make_unique<World>(folder_.path() / "model", options);
    store_ = *OpenStateStore("dir:" + (folder_.path() / "states").string());
    SessionOptions sessions;
    sessions.store = store_.get();
    sessions.memory = 60000;
    sessions.max_per_tenant = 100000;
    sessions.codec.limits = {{config_.vocab_size, 1 << 20, false}, size_t{64} << 20};
    sessions_ = std::make_unique<SessionTable>(std::move(sessions));
  }

  GenerateRequest RandomRequest(const std::string& tenant, Random* random) const {
    GenerateRequest request;
    request.info.tenant = tenant;
    // One of two beginnings, or none: the cache must have something to find.
    Tokens beginning(static_cast<size_t>(random->Uniform() < 0.7 ? 20 : 0), 5);
    if (random->Uniform() < 0.5 && !beginning.empty()) beginning[3] = 6;
    request.prompt = Extended(std::move(beginning), 30, random);
    GenerateParams& params = request.params;
    params.max_tokens = static_cast<int32_t>(random->Int(1, 12));
    params.sampling.seed = static_cast<uint64_t>(random->Int(0, 1000));
    params.sampling.temperature = random->Uniform() < 0.5 ? 0.0f : 1.0f;
    if (random->Uniform() < 0.3) params.sampling.repetition_penalty = 1.3f;
    if (random->Uniform() < 0.3) params.sampling.presence_penalty = 0.7f;
    params.ignore_eos = true;
    if (random->Uniform() < 0.3) params.logprobs = 2;
    return request;
  }
  // Few ids, so that prompts share more than that.
  Tokens Extended(Tokens tokens, int64_t most, Random* random) const {
    for (int64_t n = random->Int(1, most); n > 0; --n) {
      tokens.push_back(static_cast<int32_t>(random->Int(5, 6)));
    }
    return tokens;
  }

  static Collected Run(Engine* engine, const GenerateRequest& request) {
    Reader reader(64);
    const auto id = engine->Submit(request, reader.stream);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    if (id.ok()) reader.ReadAll();
    return std::move(reader.got);
  }
  // Expects what the request yields with `history` before its prompt, alone, from an empty state.
  void ExpectCold(const Tokens& history, GenerateRequest request, const Collected& got) {
    request.prompt.insert(request.prompt.begin(), history.begin(), history.end());
    request.start = nullptr;
    request.keep = false;
    const Collected want = Run(cold_->engine.get(), request);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.logprobs, want.logprobs);
  }

  void Stateless(const std::string& tenant, Random* random) {
    const GenerateRequest request = RandomRequest(tenant, random);
    ExpectCold({}, request, Run(hot_->engine.get(), request));
  }

  void Cancelled(const std::string& tenant, Random* random) {
    GenerateRequest request = RandomRequest(tenant, random);
    request.params.max_tokens = 10000;
    Reader reader(8);
    const auto id = hot_->engine->Submit(request, reader.stream);
    ASSERT_TRUE(id.ok());
    reader.ReadTokens(static_cast<size_t>(random->Int(0, 5)));
    hot_->engine->Cancel(*id);
    reader.ReadAll();
    EXPECT_EQ(reader.got.finish->reason, FinishReason::kCancelled);
  }

  // A turn of a session, which may be a new one, a fork or a restored snapshot of it.
  void InSession(const std::string& tenant, KnownSession* known, Random* random) {
    std::optional<SessionLease> lease;
    {
      std::lock_guard store_thread(store_mutex_);
      Result<SessionInfo> info = NotFound("");
      if (known->id.empty() || known->history.size() > 300) {
        known->history.clear();
        info = sessions_->Create({tenant}, random->Uniform() < 0.3, std::chrono::hours(1));
      } else if (random->Uniform() < 0.3) {
        info = (*sessions_->Fork({tenant}, known->id, 1, std::ssize(known->history)))[0];
      } else if (!known->history.empty() && random->Uniform() < 0.3) {
        const auto key = sessions_->TakeSnapshot({tenant}, known->id, std::chrono::hours(1));
        info = sessions_->Restore({tenant}, key->key, false, std::chrono::hours(1));
        EXPECT_TRUE(sessions_->Delete(tenant, key->key).ok());
      }
      if (info.ok()) {
        if (!known->id.empty()) {
          EXPECT_TRUE(sessions_->Delete(tenant, known->id).ok());
        }
        known->id = info->id;
      }
      auto acquired = sessions_->Acquire({tenant}, known->id, std::ssize(known->history));
      ASSERT_TRUE(acquired.ok()) << acquired.status().ToString();
      lease.emplace(*std::move(acquired));
    }
    GenerateRequest request = RandomRequest(tenant, random);
    request.start = lease->snapshot();
    request.keep = true;
    const Collected got = Run(hot_->engine.get(), request);
    ExpectCold(known->history, request, got);
    if (random->Uniform() < 0.2) return;  // dropped: the session is as it was
    std::lock_guard store_thread(store_mutex_);
    const auto done = sessions_->Commit(*std::move(lease), got.finish->snapshot);
    ASSERT_TRUE(done.ok()) << done.status().ToString();
    known->history.insert(known->history.end(), request.prompt.begin(), request.prompt.end());
    known->history.insert(known->history.end(), got.tokens.begin(), got.tokens.end());
    EXPECT_EQ(done->tokens, std::ssize(known->history));
  }

  void Client(int number, int canaries) {
    Random random(static_cast<uint64_t>(number) * 97 + 5);
    const std::string tenant(1, static_cast<char>('a' + number % 3));
    KnownSession known;
    for (int i = 0; i < canaries && !HasFailure(); ++i) {
      const double kind = random.Uniform();
      if (kind < 0.4) {
        Stateless(tenant, &random);
      } else if (kind < 0.5) {
        Cancelled(tenant, &random);
      } else {
        InSession(tenant, &known, &random);
      }
    }
  }

  const testing::TemporaryFolder folder_;
  const ModelConfig config_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<StateStore> store_;
  std::unique_ptr<SessionTable> sessions_;
  std::mutex store_mutex_;  // stands for the server's store thread
  std::unique_ptr<World> hot_;
  std::unique_ptr<World> cold_;
};

TEST_P(CanaryTest, EachIsItsSoloColdRun) {
  constexpr int kClients = 6;
  // Not fewer under sanitizers: hits and evictions need some history, and a second is enough.
  const int each = testing::FullCounts() ? 834 : 42;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([this, c, each] { Client(c, each); });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(cache_->stats().hit_tokens, 0);
  EXPECT_GT(cache_->stats().evicted, 0);
  EXPECT_GT(sessions_->stats().spills, 0);
  EXPECT_GT(sessions_->stats().loads, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, CanaryTest,
                         ::testing::Values("learned_sketch_mixed", "softmax",
                                           "learned_sketch_mixed_gated", "mixture",
                                           "mixture_of_windows"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace polysketch
