// An engine over the fake model, and what its observer has counted.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/fake_model.h"

namespace polysketch::testing {

class CountingObserver : public EngineObserver {
 public:
  void OnAdmitted(std::chrono::nanoseconds) override { ++admitted; }
  void OnFirstToken(std::chrono::nanoseconds) override { ++first_tokens; }
  void OnTokenGap(std::chrono::nanoseconds) override { ++gaps; }
  void OnStep(int, int prefill, int decode, std::chrono::nanoseconds) override {
    ++steps;
    prefill_tokens += prefill;
    decode_tokens += decode;
  }
  void OnFinished(const FinishEvent& finish) override {
    ++finished;
    completion_tokens += finish.usage.completion_tokens;
  }
  std::atomic<int64_t> admitted{0}, first_tokens{0}, gaps{0}, steps{0}, prefill_tokens{0},
      decode_tokens{0}, finished{0}, completion_tokens{0};
};

class EngineTest : public ::testing::Test {
 protected:
  void Start(EngineOptions options = {}, bool growing = false) {
    options.max_step_tokens = std::max(options.max_step_tokens, 1);
    options.observer = &observer_;
    if (options.eos_ids.empty()) options.eos_ids = {kFakeEos};
    model_ = std::make_unique<FakeModel>(32, growing);
    auto engine = Engine::Create(model_.get(), &tokenizer_, options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }
  void TearDown() override {
    engine_.reset();
    model_.reset();  // checks that every state is gone
  }
  static GenerateRequest Greedy(int prompt, std::optional<int> max_tokens) {
    GenerateRequest request;
    for (int i = 0; i < prompt; ++i) request.prompt.push_back(i * 5 % kFakeVocab);
    request.params.sampling.temperature = 0;
    request.params.max_tokens = max_tokens;
    request.params.ignore_eos = true;
    return request;
  }
  // stats() is published after a step, events within it: give it a moment.
  void ExpectIdle() {
    for (int i = 0; i < 2000; ++i) {
      const EngineStats stats = engine_->stats();
      if (stats.running + stats.waiting + stats.preempted == 0 &&
          stats.state_bytes + stats.preempted_bytes == 0) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "slots are still taken: " << engine_->stats().running << " running, "
                  << engine_->stats().waiting << " waiting";
  }

  CountingObserver observer_;
  FakeTokenizer tokenizer_;
  std::unique_ptr<FakeModel> model_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace polysketch::testing
