// An engine without a model. A completion of prompt p gets the tokens 'a', 'b', ... after each
// other; a prompt that begins with kEndless gets 'x' for ever. A score gets -1 for each token. One
// thread, one request after another a round.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace polysketch::testing {

class FakeEngine : public Engine {
 public:
  static constexpr int32_t kEndless = 1;

  FakeEngine() : thread_([this] { Loop(); }) {}
  ~FakeEngine() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    thread_.join();
  }

  Status CheckLength(const GenerateRequest& /*request*/) const override { return Status(); }
  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<EventStream> stream) override {
    Running running{.info = request.info, .stream = std::move(stream)};
    {
      std::lock_guard lock(mutex_);
      last_request_ = request;
    }
    running.endless = request.prompt.front() == kEndless;
    running.left = request.params.max_tokens.value_or(26);
    running.usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    return Add(std::move(running));
  }
  Result<RequestId> Submit(ScoreRequest request, std::shared_ptr<EventStream> stream) override {
    Running running{.info = request.info, .stream = std::move(stream), .feed = request.feed};
    if (request.start != nullptr) running.scored = request.start->tokens();
    return Add(std::move(running));
  }
  void Cancel(RequestId id) override {
    std::lock_guard lock(mutex_);
    if (const auto found = running_.find(id); found != running_.end())
      found->second.cancelled = true;
  }
  void MigrateAll() override {}
  bool Drain(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    if (idle_.wait_for(lock, timeout, [this] { return running_.empty(); })) return true;
    for (auto& [id, running] : running_) running.cancelled = true;
    idle_.wait(lock, [this] { return running_.empty(); });
    return false;
  }
  EngineStats stats() const override {
    std::lock_guard lock(mutex_);
    return {.running = static_cast<int>(running_.size()), .working = stuck_};
  }

  // The last completion that was submitted.
  GenerateRequest last_request() const {
    std::lock_guard lock(mutex_);
    return last_request_;
  }
  int submitted() const { return submitted_; }
  int cancelled() const { return cancelled_; }
  void set_stuck(bool stuck) { stuck_ = stuck; }  // has work, and does none
  void set_full(bool full) { full_ = full; }      // Submit answers as a full queue

 private:
  struct Running {
    RequestInfo info = {};
    std::shared_ptr<EventStream> stream = nullptr;
    std::shared_ptr<TokenFeed> feed = nullptr;  // of a score
    bool endless = false;
    bool cancelled = false;
    int64_t left = 0;
    int64_t scored = 0;  // tokens taken from the feed
    Usage usage = {};
  };

  Result<RequestId> Add(Running running) {
    std::lock_guard lock(mutex_);
    if (full_) {
      return ResourceExhausted("the queue is full").WithRetryAfter(std::chrono::milliseconds(2345));
    }
    if (draining_) return Unavailable("draining");
    ++submitted_;
    running_[next_id_] = std::move(running);
    return next_id_++;
  }

  void Loop() {
    while (true) {
      std::vector<RequestId> ids;
      {
        std::lock_guard lock(mutex_);
        if (stop_) return;
        for (const auto& [id, running] : running_) ids.push_back(id);
      }
      for (const RequestId id : ids) Step(id);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  // Events go out without the mutex, as in the real engine.
  void Step(RequestId id) {
    std::optional<Event> event;
    std::shared_ptr<EventStream> stream;
    std::shared_ptr<TokenFeed> feed;
    {
      std::lock_guard lock(mutex_);
      Running& running = running_.at(id);
      stream = running.stream;
      feed = running.feed;
      if (running.cancelled) {
        ++cancelled_;
        event = Finish(running, FinishReason::kCancelled);
      } else if (Clock::now() >= running.info.deadline) {
        event = Finish(running, FinishReason::kDeadline);
      } else if (feed == nullptr) {
        if (running.left == 0) {
          event = Finish(running, FinishReason::kLength);
        } else if (!stream->Full()) {
          if (!running.endless) --running.left;
          const int32_t token =
              running.endless ? 'x'
                              : 'a' + static_cast<int32_t>(running.usage.completion_tokens % 26);
          ++running.usage.completion_tokens;
          TokenEvent produced;
          produced.token = token;
          // Endless output is wide: it soon fills what the network holds.
          produced.text = std::string(running.endless ? 4096 : 1, static_cast<char>(token));
          event = std::move(produced);
        }
      }
    }
    if (feed != nullptr && !event.has_value() && !stream->Full()) event = Score(id, *feed);
    if (!event.has_value()) return;
    const bool last = std::holds_alternative<FinishEvent>(*event);
    stream->Push(std::move(*event));
    if (!last) return;
    std::lock_guard lock(mutex_);
    running_.erase(id);
    idle_.notify_all();
  }

  std::optional<Event> Score(RequestId id, TokenFeed& feed) {
    std::vector<int32_t> tokens;
    feed.Pull(512, &tokens);
    std::lock_guard lock(mutex_);
    Running& running = running_.at(id);
    const int64_t before = running.scored;
    running.scored += static_cast<int64_t>(tokens.size());
    if (!tokens.empty()) {
      const int64_t first = std::max<int64_t>(before, 1);
      ScoreEvent event;
      event.first = first;
      event.logprobs.assign(static_cast<size_t>(running.scored - first), -1.0f);
      event.tokens.assign(tokens.end() - (running.scored - first), tokens.end());
      return event;
    }
    if (!feed.Exhausted()) return std::nullopt;
    running.usage.prompt_tokens = running.scored;
    FinishEvent finish = Finish(running, FinishReason::kStop);
    finish.logprob_sum = -static_cast<double>(std::max<int64_t>(running.scored - 1, 0));
    return finish;
  }

  static FinishEvent Finish(const Running& running, FinishReason reason) {
    FinishEvent finish;
    finish.reason = reason;
    finish.usage = running.usage;
    if (reason == FinishReason::kCancelled) finish.status = Status(Code::kCancelled, "cancelled");
    return finish;
  }

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::map<RequestId, Running> running_;  // guarded by mutex_
  GenerateRequest last_request_;          // guarded by mutex_
  RequestId next_id_ = 1;                 // guarded by mutex_
  bool draining_ = false;                 // guarded by mutex_
  bool stop_ = false;                     // guarded by mutex_
  std::atomic<bool> full_ = false;
  std::atomic<bool> stuck_ = false;
  std::atomic<int> submitted_ = 0;
  std::atomic<int> cancelled_ = 0;
  std::thread thread_;
};

}  // namespace polysketch::testing
