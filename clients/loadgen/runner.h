// Sends the requests of a workload when they are due and gathers their results.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "clients/loadgen/stream.h"

namespace polysketch::loadgen {

struct RunOptions {
  int64_t concurrency = 8;  // closed loop: so many conversations at once
  double rate = 0;          // open loop instead: conversations that begin a second
  bool poisson = true;      // open loop: with random times between them, or with equal ones
  int64_t requests = 0;     // most; 0: no limit
  double duration = 0;      // seconds in which requests begin; 0: no limit
  double timeout = 0;       // seconds of a request; 0: none
  float temperature = 1;
  bool sessions = false;  // each conversation is a session of the server's
  bool progress = true;   // a line a second on stderr
};

class Runner {
 public:
  // Streams are spread over `stubs`, which outlive all calls (main.cc).
  Runner(const RunOptions& options, Workload* workload,
         const std::vector<std::unique_ptr<v1::PolySketch::Stub>>& stubs)
      : options_(options), workload_(workload), stubs_(stubs) {}

  // Until the last request has ended. Once *interrupted, nothing new begins and what runs is
  // cancelled.
  std::vector<RequestResult> Run(const std::atomic<bool>& interrupted);

 private:
  void Launch(Request request, Clock::time_point due);
  // Creates the request's session and launches it then.
  void CreateSession(Request request, Clock::time_point due);
  void DeleteSession(const std::string& session);
  v1::PolySketch::Stub* NextStub() { return stubs_[next_stub_++ % stubs_.size()].get(); }
  // Takes the stream over.
  void Ended(std::unique_ptr<Stream> stream, RequestResult result,
             const std::vector<int32_t>& output);
  void AddLocked(RequestResult result);
  bool MayBegin(Clock::time_point now) const;
  void BeginWhatIsDue(Clock::time_point now, std::unique_lock<std::mutex>* lock);
  void ShowProgress(Clock::time_point now);

  const RunOptions options_;
  Workload* const workload_;
  const std::vector<std::unique_ptr<v1::PolySketch::Stub>>& stubs_;
  Clock::time_point start_;
  Clock::time_point next_arrival_;  // open loop
  Random arrivals_{1};
  Clock::time_point next_progress_;
  int64_t shown_tokens_ = 0;
  std::atomic<int64_t> tokens_{0};
  std::atomic<size_t> next_stub_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::unordered_set<Stream*> running_;
  int64_t ending_ = 0;    // streams no longer in running_ and not yet deleted
  int64_t creating_ = 0;  // sessions of requests that are due
  int64_t deleting_ = 0;
  std::deque<Request> continued_;  // next turns, due now
  // A place whose request failed stays empty for a moment, so that a server that refuses is not
  // asked thousands of times a second.
  std::deque<Clock::time_point> resting_;
  int64_t begun_ = 0;
  int64_t failed_ = 0;
  std::vector<RequestResult> results_;
};

}  // namespace polysketch::loadgen
