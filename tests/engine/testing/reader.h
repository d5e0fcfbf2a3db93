// A client of an engine, on a thread of the test.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/request/request.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"

namespace polysketch::testing {

// A client: reads its stream when it is told to.
class Reader {
 public:
  explicit Reader(size_t capacity) : stream(std::make_shared<EventStream>(capacity)) {
    stream->SetOnReady([signal = signal_] {
      std::lock_guard lock(signal->mutex);
      signal->ready = true;
      signal->changed.notify_one();
    });
  }
  // Until the FinishEvent, pausing before each event.
  void ReadAll(std::chrono::microseconds pause = {}) {
    while (!got.finish) {
      if (!ReadOne()) Wait();
      if (pause.count() > 0) std::this_thread::sleep_for(pause);
    }
  }
  // Until there are that many generated tokens, or the end.
  void ReadTokens(size_t count) {
    while (!got.finish && got.tokens.size() < count) {
      if (!ReadOne()) Wait();
    }
  }
  bool ReadOne() {
    Event event;
    if (!stream->TryPop(&event)) return false;
    got.Add(event);
    return true;
  }

  std::shared_ptr<EventStream> stream;
  Collected got;

 private:
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    bool ready = false;
  };
  void Wait() {
    std::unique_lock lock(signal_->mutex);
    ASSERT_TRUE(signal_->changed.wait_for(lock, std::chrono::seconds(240), [this] {
      return signal_->ready;
    })) << "no event in 240 s";
    signal_->ready = false;
  }
  std::shared_ptr<Signal> signal_ =
      std::make_shared<Signal>();  // a late call may outlive the reader
};

}  // namespace polysketch::testing
