// Sends spans to a collector of OpenTelemetry, from a bounded buffer, by a thread of its own.
//
// Spans are dropped, and counted, when the buffer is full and when the collector does not take
// them: tracing costs a request the construction of its spans and nothing else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "server/tracing/http_post.h"
#include "server/tracing/span.h"

namespace polysketch {

struct SpanExporterOptions {
  std::string url;  // of OtlpTargetOf
  PostHeaders headers = {};
  Attributes resource = {};
  size_t max_spans = 8192;  // that wait
  size_t batch_spans = 512;
  std::chrono::milliseconds interval{1000};  // between two batches that are not full
  std::chrono::milliseconds connect_timeout{1000};
  std::chrono::milliseconds timeout{5000};  // of one batch
};

// Thread-safe.
class SpanExporter {
 public:
  using Clock = std::chrono::steady_clock;
  struct Stats {
    int64_t exported = 0;  // taken by the collector
    int64_t dropped = 0;
  };

  explicit SpanExporter(SpanExporterOptions options);
  ~SpanExporter();  // drops the spans that wait
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  // Takes the spans of one call, or drops all of them. Never waits for the collector.
  void Add(std::vector<Span> spans);
  // Sends the spans that wait, until `deadline` at most; drops the rest, and all spans that come
  // later.
  void Stop(Clock::time_point deadline);
  Stats stats() const;

 private:
  void Run();
  // The next batch; empty when the exporter has stopped.
  std::vector<Span> TakeBatch();
  void Send(const std::vector<Span>& batch);
  void LogChange(const Status& status, size_t spans);
  Clock::time_point stop_deadline() const;

  const SpanExporterOptions options_;
  HttpPost post_;
  bool failing_ = false;  // the thread's
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<Span> spans_;
  Stats stats_;
  Clock::time_point stop_deadline_ = Clock::time_point::max();  // max: not stopped
  std::thread thread_;
};

}  // namespace polysketch
