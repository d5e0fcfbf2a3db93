#include "clients/cpp/window_scorer.h"

#include <algorithm>
#include <chrono>

#include "base/status.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;

constexpr int32_t kRetries = 5;
constexpr milliseconds kInterruptPoll(100);

CallOptions WithoutSession(CallOptions call) {
  call.session.clear();
  return call;
}

}  // namespace

WindowScorer::WindowScorer(const CallOptions& call, int32_t concurrency, OnScored on_scored)
    : call_(WithoutSession(call)),
      stub_(v1::PolySketch::NewStub(Connect(call.connection))),
      most_(2 * concurrency),
      on_scored_(std::move(on_scored)),
      calls_(kRetries) {
  for (int32_t i = 0; i < concurrency; ++i) workers_.emplace_back([this] { Work(); });
}

WindowScorer::~WindowScorer() {
  Stop();
  for (std::thread& worker : workers_) worker.join();
}

bool WindowScorer::Submit(FreshWindow window) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return stopped_ || submitted_ - passed_on_ < most_; };
  // A signal handler cannot wake the wait.
  while (!Interrupted() && !changed_.wait_for(lock, kInterruptPoll, ready)) {
  }
  if (stopped_ || Interrupted()) return false;
  waiting_.emplace(submitted_++, std::move(window));
  changed_.notify_all();
  return true;
}

void WindowScorer::Finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopped_ || submitted_ == passed_on_; });
}

void WindowScorer::Stop() {
  calls_.Stop();
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

std::optional<std::string> WindowScorer::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void WindowScorer::Work() {
  while (auto item = Take()) {
    auto fresh = item->second.at_start ? item->second.deep : Score(item->second);
    if (!fresh) return;
    PassOn(*std::move(item), *std::move(fresh));
  }
}

std::optional<WindowScorer::Item> WindowScorer::Take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
  if (stopped_) return std::nullopt;
  auto node = waiting_.extract(waiting_.begin());
  return Item(node.key(), std::move(node.mapped()));
}

std::optional<std::vector<double>> WindowScorer::Score(const FreshWindow& window) {
  std::vector<double> fresh;
  const auto status = calls_.Run(
      call_, [&](grpc::ClientContext* context) { return Call(window, context, &fresh); });
  if (!status) return std::nullopt;
  if (status->ok()) return fresh;
  Fail(StrCat("the fresh start before token ", window.first, ": ",
              ErrorText(*status, call_.connection)));
  return std::nullopt;
}

grpc::Status WindowScorer::Call(const FreshWindow& window, grpc::ClientContext* context,
                                std::vector<double>* fresh) {
  fresh->clear();
  const auto stream = stub_->Score(context);
  v1::ScoreRequest request;
  request.mutable_tokens()->mutable_ids()->Assign(window.tokens.begin(), window.tokens.end());
  // One message: a client that writes more of them without reading could wait for itself.
  if (stream->Write(request)) stream->WritesDone();
  v1::ScoreResponse response;
  while (stream->Read(&response)) {
    for (const float logprob : response.logprobs().logprobs())
      fresh->push_back(-static_cast<double>(logprob));
  }
  grpc::Status status = stream->Finish();
  if (!status.ok()) return status;
  const size_t expected = window.tokens.size() - 1;
  if (fresh->size() != expected) {
    return {grpc::StatusCode::INTERNAL,
            StrCat("expected ", expected, " log-probabilities, found ", fresh->size())};
  }
  fresh->erase(fresh->begin(), fresh->end() - static_cast<ptrdiff_t>(window.deep.size()));
  return status;
}

void WindowScorer::PassOn(Item item, std::vector<double> fresh) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return;
  scored_.emplace(item.first, std::make_pair(std::move(item.second), std::move(fresh)));
  while (!scored_.empty() && scored_.begin()->first == passed_on_) {
    const auto node = scored_.extract(scored_.begin());
    on_scored_(node.mapped().first, node.mapped().second);
    ++passed_on_;
  }
  changed_.notify_all();
}

void WindowScorer::Fail(const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;  // cancelled
    error_ = error;
  }
  Stop();
}

}  // namespace polysketch
