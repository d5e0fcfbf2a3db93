#include "clients/loadgen/runner.h"

#include <cstdio>
#include <utility>

#include "clients/loadgen/grpc_stream.h"

namespace polysketch::loadgen {
namespace {

constexpr std::chrono::milliseconds kBackoff(100);
constexpr std::chrono::milliseconds kTick(50);

// The context and the messages of a unary call. Lives until its callback has run.
template <typename RequestMessage, typename ResponseMessage>
struct UnaryCall {
  grpc::ClientContext context;
  RequestMessage request;
  ResponseMessage response;
};

}  // namespace

std::vector<RequestResult> Runner::Run(const std::atomic<bool>& interrupted) {
  start_ = next_arrival_ = Clock::now();
  next_progress_ = start_ + std::chrono::seconds(1);
  std::unique_lock lock(mutex_);
  bool cancelled = false;
  while (true) {
    const Clock::time_point now = Clock::now();
    if (interrupted && !cancelled) {
      cancelled = true;
      for (Stream* stream : running_) stream->Cancel();
    }
    if (!cancelled) StartDueRequests(now, &lock);
    const bool more = !cancelled && (MayStart(now) || !continued_.empty());
    const int64_t calls = static_cast<int64_t>(running_.size()) + ending_ + creating_ + deleting_;
    if (calls == 0 && !more) break;
    if (options_.progress && now >= next_progress_) ShowProgress(now);
    Clock::time_point wake = now + kTick;
    if (options_.rate > 0 && more) wake = std::min(wake, next_arrival_);
    changed_.wait_until(lock, wake);
  }
  return std::move(results_);
}

bool Runner::MayStart(Clock::time_point now) const {
  if (options_.requests > 0 && started_ >= options_.requests) return false;
  if (options_.rate > 0 && options_.duration > 0) {
    return next_arrival_ < start_ + Duration(options_.duration);
  }
  return options_.duration <= 0 || now < start_ + Duration(options_.duration);
}

void Runner::StartDueRequests(Clock::time_point now, std::unique_lock<std::mutex>* lock) {
  while (!backoff_ends_.empty() && backoff_ends_.front() <= now) backoff_ends_.pop_front();
  std::vector<std::pair<Request, Clock::time_point>> due;
  while (!continued_.empty()) {
    due.emplace_back(std::move(continued_.front()), now);
    continued_.pop_front();
  }
  if (options_.rate > 0) {
    while (MayStart(now) && next_arrival_ <= now) {
      due.emplace_back(workload_->Next(), next_arrival_);
      ++started_;
      next_arrival_ += Duration((options_.poisson ? arrivals_.Exponential() : 1) / options_.rate);
    }
  } else {
    while (MayStart(now) &&
           creating_ + ending_ +
                   static_cast<int64_t>(running_.size() + backoff_ends_.size() + due.size()) <
               options_.concurrency) {
      due.emplace_back(workload_->Next(), now);
      ++started_;
    }
  }
  lock->unlock();  // Ended, which locks, may be called before Start returns
  for (auto& [request, time] : due) {
    if (options_.sessions && request.session.empty()) {
      CreateSession(std::move(request), time);
    } else {
      Launch(std::move(request), time);
    }
  }
  lock->lock();
}

CallOptions Runner::UnaryOptions() const {
  CallOptions call = options_.call;
  call.timeout = 0;
  return call;
}

void Runner::Launch(Request request, Clock::time_point due) {
  StreamParts parts = {
      .request = std::move(request),
      .run_start = start_,
      .due = due,
      .on_tokens = [this](int64_t count) { tokens_.fetch_add(count, std::memory_order_relaxed); },
      .on_end =
          [this](Stream* ended, RequestResult result, const std::vector<int32_t>& output) {
            Ended(std::unique_ptr<Stream>(ended), std::move(result), output);
          }};
  std::unique_ptr<Stream> made;
  if (http_ != nullptr) {
    made = http_->NewStream(std::move(parts));
  } else {
    made = std::make_unique<GrpcStream>(std::move(parts), options_.call, options_.temperature,
                                        NextStub());
  }
  Stream* const stream = made.release();  // Ended deletes it
  {
    std::lock_guard lock(mutex_);
    running_.insert(stream);
  }
  stream->Start();
}

void Runner::CreateSession(Request request, Clock::time_point due) {
  {
    std::lock_guard lock(mutex_);
    ++creating_;
  }
  auto call = std::make_shared<UnaryCall<v1::CreateSessionRequest, v1::Session>>();
  auto* const parts = call.get();  // the callback owns the call
  Prepare(UnaryOptions(), &parts->context);
  NextStub()->async()->CreateSession(&parts->context, &parts->request, &parts->response,
                                     [this, call = std::move(call), request = std::move(request),
                                      due](const grpc::Status& status) mutable {
                                       request.session = call->response.session();
                                       call.reset();  // as a stream in Ended
                                       if (status.ok()) Launch(std::move(request), due);
                                       std::lock_guard lock(mutex_);
                                       --creating_;
                                       if (!status.ok()) {
                                         RequestResult result;
                                         result.status =
                                             CodeName(static_cast<Code>(status.error_code()));
                                         result.start = Seconds(due - start_);
                                         result.end = Seconds(Clock::now() - start_);
                                         AddLocked(std::move(result));
                                       }
                                       changed_.notify_one();
                                     });
}

void Runner::DeleteSession(const std::string& session) {
  auto call = std::make_shared<UnaryCall<v1::DeleteSessionRequest, v1::DeleteSessionResponse>>();
  call->request.set_session(session);
  auto* const parts = call.get();  // the callback owns the call
  Prepare(UnaryOptions(), &parts->context);
  NextStub()->async()->DeleteSession(&parts->context, &parts->request, &parts->response,
                                     [this, call = std::move(call)](const grpc::Status&) mutable {
                                       call.reset();  // as a stream in Ended
                                       std::lock_guard lock(mutex_);
                                       --deleting_;
                                       changed_.notify_one();
                                     });
}

void Runner::AddLocked(RequestResult result) {
  if (!result.ok()) {
    ++failed_;
    if (options_.rate <= 0) backoff_ends_.push_back(Clock::now() + kBackoff);
  }
  results_.push_back(std::move(result));
}

void Runner::Ended(std::unique_ptr<Stream> stream, RequestResult result,
                   const std::vector<int32_t>& output) {
  Request next = stream->request();
  {
    std::lock_guard lock(mutex_);
    running_.erase(stream.get());
    ++ending_;
  }
  stream.reset();    // before Run may return
  std::string over;  // the session of a conversation that has ended
  {
    std::lock_guard lock(mutex_);
    --ending_;
    if (result.ok() && workload_->Continue(&next, output)) {
      continued_.push_back(std::move(next));
    } else if (!next.session.empty()) {
      over = next.session;
      ++deleting_;
    }
    AddLocked(std::move(result));
    changed_.notify_one();
  }
  if (!over.empty()) DeleteSession(over);
}

void Runner::ShowProgress(Clock::time_point now) {
  const int64_t tokens = tokens_.load(std::memory_order_relaxed);
  std::fprintf(stderr, "%4.0f s: %lld ended, %lld failed, %lld running, %lld tokens/s\n",
               Seconds(now - start_), static_cast<long long>(results_.size()),
               static_cast<long long>(failed_), static_cast<long long>(running_.size()),
               static_cast<long long>(tokens - shown_tokens_));
  shown_tokens_ = tokens;
  next_progress_ += std::chrono::seconds(1);
}

}  // namespace polysketch::loadgen
