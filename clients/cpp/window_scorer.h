// Scores windows of a text from fresh starts, several at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "clients/cpp/fresh_windows.h"
#include "clients/cpp/retried_calls.h"
#include "clients/cpp/rpc.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch {

class WindowScorer {
 public:
  // `fresh`: the losses of the window's tokens that count, from its fresh start.
  using OnScored = std::function<void(const FreshWindow& window, const std::vector<double>& fresh)>;

  // on_scored is called in the order of the windows, by one thread at a time. `concurrency`:
  // windows in flight.
  WindowScorer(const CallOptions& call, int32_t concurrency, OnScored on_scored);
  // Cancels windows that are under way.
  ~WindowScorer();
  WindowScorer(const WindowScorer&) = delete;
  WindowScorer& operator=(const WindowScorer&) = delete;

  // Waits while 2 * concurrency windows are not passed on: that bounds memory. Returns false once a
  // window has failed, Stop was called, or a signal has come. One thread at a time calls Submit and
  // Finish.
  bool Submit(FreshWindow window);
  // Waits until all windows are passed on, or one has failed.
  void Finish();
  // Thread-safe. Cancels all calls. on_scored is not called afterwards.
  void Stop();
  // The error of the window that failed, for stderr; none: none has failed.
  std::optional<std::string> error() const;

 private:
  using Item = std::pair<int64_t, FreshWindow>;  // number in the order of Submit

  void Work();
  std::optional<Item> Take();
  // The losses; none: it failed, or Stop was called.
  std::optional<std::vector<double>> Score(const FreshWindow& window);
  // One attempt.
  grpc::Status Call(const FreshWindow& window, grpc::ClientContext* context,
                    std::vector<double>* fresh);
  void PassOn(Item item, std::vector<double> fresh);
  void Fail(const std::string& error);

  const CallOptions call_;
  const std::unique_ptr<v1::PolySketch::Stub> stub_;
  const int64_t most_;  // windows that are not passed on
  const OnScored on_scored_;
  RetriedCalls calls_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::map<int64_t, FreshWindow> waiting_;
  std::map<int64_t, std::pair<FreshWindow, std::vector<double>>> scored_;  // after a slower one
  int64_t submitted_ = 0;
  int64_t passed_on_ = 0;
  bool stopped_ = false;
  std::optional<std::string> error_;

  std::vector<std::thread> workers_;
};

}  // namespace polysketch
