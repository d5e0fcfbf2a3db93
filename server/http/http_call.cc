#include "server/http/http_call.h"

#include <utility>

namespace polysketch {
namespace {

// A write ends when less than this waits for the socket: a client that does not read holds no more.
constexpr size_t kMaxUnsentBytes = 256 << 10;

}  // namespace

std::shared_ptr<HttpCall> HttpCall::Start(const Router& router,
                                          std::shared_ptr<HttpExchange> exchange,
                                          std::string_view method,
                                          const google::protobuf::Message& request,
                                          Callbacks callbacks) {
  const std::shared_ptr<HttpCall> call = New(std::move(exchange), method, std::move(callbacks));
  call->request_ = SerializeMessage(request);
  call->reactor_ = router.Start(call.get());
  return call;
}

std::shared_ptr<HttpCall> HttpCall::StartCompletion(ServiceContext* service,
                                                    std::shared_ptr<HttpExchange> exchange,
                                                    v1::CompleteRequest request,
                                                    Callbacks callbacks, bool chat) {
  const std::shared_ptr<HttpCall> call = New(std::move(exchange), "Complete", std::move(callbacks));
  call->chat_ = chat;
  call->reactor_ = polysketch::StartCompletion(service, call.get(), std::move(request),
                                               [self = call.get()](v1::CompleteResponse response) {
                                                 self->response_ = std::move(response);
                                               });
  return call;
}

std::shared_ptr<HttpCall> HttpCall::New(std::shared_ptr<HttpExchange> exchange,
                                        std::string_view method, Callbacks callbacks) {
  const std::shared_ptr<HttpCall> call(
      new HttpCall(std::move(exchange), method, std::move(callbacks)));
  call->pinned_ = call;
  call->set_caller(call->exchange_->request().caller);
  return call;
}

void HttpCall::Receive(const grpc::ByteBuffer& message) {
  if (!response_.has_value()) return callbacks_.on_message(message);
  callbacks_.on_response(*std::exchange(response_, std::nullopt));
}

void HttpCall::Report(std::function<void(CallReactor*)> report) {
  exchange_->Post([self = shared_from_this(), report = std::move(report)] {
    {
      std::lock_guard lock(self->mutex_);
      if (self->finished_) return;
    }
    report(self->reactor_);
  });
}

void HttpCall::OnSent() {
  {
    std::lock_guard lock(mutex_);
    if (!blocked_ || exchange_->unsent_bytes() > kMaxUnsentBytes) return;
    blocked_ = false;
  }
  Report([](CallReactor* reactor) { reactor->OnWriteDone(true); });
}

void HttpCall::Cancel() {
  bool blocked = false;
  {
    std::lock_guard lock(mutex_);
    if (cancelled_ || finished_) return;
    cancelled_ = true;
    blocked = std::exchange(blocked_, false);
  }
  Report([](CallReactor* reactor) { reactor->OnCancel(); });
  if (blocked) Report([](CallReactor* reactor) { reactor->OnWriteDone(false); });
}

std::vector<std::string_view> HttpCall::Metadata(std::string_view key) const {
  return exchange_->request().Headers(key);
}

void HttpCall::StartRead(grpc::ByteBuffer* message) {
  std::lock_guard lock(mutex_);
  const bool first = !std::exchange(read_, true);
  if (first) message->Swap(&request_);
  Report([first](CallReactor* reactor) { reactor->OnReadDone(first); });
}

void HttpCall::StartWrite(const grpc::ByteBuffer* message) {
  Receive(*message);
  std::lock_guard lock(mutex_);
  if (!cancelled_ && exchange_->unsent_bytes() > kMaxUnsentBytes) {
    blocked_ = true;
    return;
  }
  Report([ok = !cancelled_](CallReactor* reactor) { reactor->OnWriteDone(ok); });
}

void HttpCall::StartWriteAndFinish(const grpc::ByteBuffer* message) {
  Receive(*message);
  Finish(Status());
}

void HttpCall::Finish(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    finished_ = true;
  }
  if (!status.ok()) exchange_->OnCallFailed();
  callbacks_.on_finish(status);
  // Reactors end calls inside their locks, and before Start has stored the reactor.
  exchange_->Post([self = shared_from_this()] {
    self->reactor_->OnDone();
    self->callbacks_ = {};  // they refer to the owner of this call
    self->pinned_.reset();
  });
}

void HttpCall::TryCancel() {
  exchange_->Post([self = shared_from_this()] { self->Cancel(); });
}

bool HttpCall::IsCancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

}  // namespace polysketch
