// Sends the requests of a workload when they are due and collects their results.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "clients/cpp/rpc.h"
#include "clients/loadgen/http_stream.h"
#include "clients/loadgen/stream.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch::loadgen {

struct RunOptions {
  CallOptions call;         // of every request; without a session
  int64_t concurrency = 8;  // closed loop: conversations in flight
  double rate = 0;          // open loop: conversations started a second; 0: closed loop
  bool poisson = true;      // open loop: exponential times between them; false: equal times
  int64_t requests = 0;     // conversations; 0: no limit
  double duration = 0;      // seconds in which conversations start; 0: no limit
  float temperature = 1;
  bool sessions = false;  // each conversation is a session of the server
  bool progress = true;   // prints a line a second on stderr
};

class Runner {
 public:
  // Calls are spread over `stubs`, which outlive them (see main.cc). With `http`, completions go
  // over HTTP, and sessions are managed over gRPC.
  Runner(const RunOptions& options, Workload* workload,
         const std::vector<std::unique_ptr<v1::PolySketch::Stub>>& stubs, HttpClient* http)
      : options_(options), workload_(workload), stubs_(stubs), http_(http) {}

  // Returns after the last request has ended. Once `interrupted` is set, no request starts, and the
  // requests in flight are cancelled.
  std::vector<RequestResult> Run(const std::atomic<bool>& interrupted);

 private:
  void Launch(Request request, Clock::time_point due);
  // Creates the session of the request, then launches it.
  void CreateSession(Request request, Clock::time_point due);
  void DeleteSession(const std::string& session);
  // Of the calls that manage sessions: --timeout is the deadline of requests.
  CallOptions UnaryOptions() const;
  v1::PolySketch::Stub* NextStub() { return stubs_[next_stub_++ % stubs_.size()].get(); }
  void Ended(std::unique_ptr<Stream> stream, RequestResult result,
             const std::vector<int32_t>& output);
  void AddLocked(RequestResult result);
  bool MayStart(Clock::time_point now) const;
  void StartDueRequests(Clock::time_point now, std::unique_lock<std::mutex>* lock);
  void ShowProgress(Clock::time_point now);

  const RunOptions options_;
  Workload* const workload_;
  const std::vector<std::unique_ptr<v1::PolySketch::Stub>>& stubs_;
  HttpClient* const http_;  // may be null
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
  int64_t ending_ = 0;             // streams removed from running_ and not yet deleted
  int64_t creating_ = 0;           // CreateSession calls in flight
  int64_t deleting_ = 0;           // DeleteSession calls in flight
  std::deque<Request> continued_;  // next turns, due now
  // Closed loop: ends of the backoff after failed requests, which keeps a server that refuses
  // requests from receiving thousands a second. Each counts as a request in flight.
  std::deque<Clock::time_point> backoff_ends_;
  int64_t started_ = 0;
  int64_t failed_ = 0;
  std::vector<RequestResult> results_;
};

}  // namespace polysketch::loadgen
