#include "server/tracing/span_exporter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/logging.h"
#include "base/start_thread.h"
#include "base/thread_name.h"
#include "server/tracing/otlp_json.h"

namespace polysketch {

SpanExporter::SpanExporter(SpanExporterOptions options)
    : options_(std::move(options)),
      post_(options_.url, options_.headers, options_.connect_timeout),
      thread_(StartThread([this] { Run(); })) {}

SpanExporter::~SpanExporter() { Stop(Clock::now()); }

void SpanExporter::Add(std::vector<Span> spans) {
  {
    std::lock_guard lock(mutex_);
    const bool stopped = stop_deadline_ != Clock::time_point::max();
    if (stopped || spans_.size() + spans.size() > options_.max_spans) {
      stats_.dropped += std::ssize(spans);
      return;
    }
    std::move(spans.begin(), spans.end(), std::back_inserter(spans_));
  }
  changed_.notify_one();
}

void SpanExporter::Stop(Clock::time_point deadline) {
  {
    std::lock_guard lock(mutex_);
    stop_deadline_ = std::min(stop_deadline_, deadline);
  }
  changed_.notify_one();
  post_.Wake();
  if (thread_.joinable()) thread_.join();
}

SpanExporter::Stats SpanExporter::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

SpanExporter::Clock::time_point SpanExporter::stop_deadline() const {
  std::lock_guard lock(mutex_);
  return stop_deadline_;
}

void SpanExporter::Run() {
  NameThread("ps-traces");
  for (std::vector<Span> batch = TakeBatch(); !batch.empty(); batch = TakeBatch()) Send(batch);
}

std::vector<Span> SpanExporter::TakeBatch() {
  std::unique_lock lock(mutex_);
  const auto stopped = [this] { return stop_deadline_ != Clock::time_point::max(); };
  changed_.wait(lock, [&] { return stopped() || !spans_.empty(); });
  changed_.wait_for(lock, options_.interval,
                    [&] { return stopped() || spans_.size() >= options_.batch_spans; });
  if (Clock::now() >= stop_deadline_) {
    stats_.dropped += std::ssize(spans_);
    spans_.clear();
  }
  const auto end =
      spans_.begin() + static_cast<std::ptrdiff_t>(std::min(spans_.size(), options_.batch_spans));
  std::vector<Span> batch(std::make_move_iterator(spans_.begin()), std::make_move_iterator(end));
  spans_.erase(spans_.begin(), end);
  return batch;
}

void SpanExporter::Send(const std::vector<Span>& batch) {
  const Clock::time_point end = Clock::now() + options_.timeout;
  const Status status = post_.Send(OtlpJson(options_.resource, batch),
                                   [&] { return std::min(end, stop_deadline()); });
  LogChange(status, batch.size());
  std::lock_guard lock(mutex_);
  (status.ok() ? stats_.exported : stats_.dropped) += std::ssize(batch);
}

void SpanExporter::LogChange(const Status& status, size_t spans) {
  if (status.ok() == !failing_) return;
  failing_ = !status.ok();
  if (failing_) {
    LogWarning("traces_dropped",
               {{"url", options_.url}, {"reason", status.message()}, {"spans", spans}});
  } else {
    LogInfo("traces_exported", {{"url", options_.url}, {"spans", spans}});
  }
}

}  // namespace polysketch
