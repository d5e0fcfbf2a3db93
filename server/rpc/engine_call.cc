#include "server/rpc/engine_call.h"

#include <utility>

#include "server/convert/retry.h"
#include "server/convert/status_map.h"

namespace polysketch {

template <typename Request>
Status EngineCall::Submit(Request request) {
  auto stream = std::make_shared<EventStream>(call_.service()->stream_buffer);
  // The stream and the call hold each other until the FinishEvent, which ends that: OnEnded and End
  // drop the stream.
  stream->SetOnReady([self = shared_from_this(), writers = call_.service()->writers] {
    writers->Post([self] { self->Pump(); });
  });
  {
    std::lock_guard lock(mutex_);
    if (ended_) return Status(Code::kCancelled, "the call ended before its request was read");
    events_ = stream;
  }
  const int priority = request.info.priority;
  request.info = call_.info();
  request.info.priority = priority;
  Engine* engine = call_.model()->engine;
  Result<RequestId> id = engine->Submit(std::move(request), stream);
  std::lock_guard lock(mutex_);
  if (!id.ok()) {
    events_.reset();
    return id.status();
  }
  id_ = *id;
  if (broken_) engine->Cancel(*id_);  // broken while Submit ran
  call_.service()->stalls->Add(weak_from_this());
  return Status();
}

template Status EngineCall::Submit(GenerateRequest request);
template Status EngineCall::Submit(ScoreRequest request);

void EngineCall::Reject(const Status& status) {
  std::lock_guard lock(mutex_);
  RejectLocked(status);
}

void EngineCall::RejectLocked(const Status& status) {
  if (ended_) return;
  ended_ = true;
  call_.OnEnd(status, nullptr);
  OnEnded();
  if (context_ != nullptr) AddRetryMetadata(status, context_);
  FinishWith(ToGrpcStatus(status));
}

void EngineCall::Fail(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (ended_ || broken_) return;
    if (events_ == nullptr) return RejectLocked(status);  // nothing submitted: Submit will see it
    broken_ = true;
    broken_status_ = status;
    if (id_.has_value()) call_.model()->engine->Cancel(*id_);
  }
  Pump();  // a full buffer must be emptied for the FinishEvent to be announced
}

std::optional<Event> EngineCall::NextEvent() {
  if (held_back_.has_value()) return std::exchange(held_back_, std::nullopt);
  Event event;
  if (events_ == nullptr || !events_->TryPop(&event)) return std::nullopt;
  return event;
}

void EngineCall::Pump() {
  const auto self = shared_from_this();  // FinishWith lets RpcDone unpin it on another thread
  std::lock_guard lock(mutex_);
  if (!closing_.empty() && !writing_) return WriteClosing();
  while (!ended_ && !writing_) {
    std::optional<Event> event = NextEvent();
    if (!event.has_value()) return;
    if (auto* finish = std::get_if<FinishEvent>(&*event)) return End(std::move(*finish));
    if (broken_) continue;
    std::optional<grpc::ByteBuffer> message = Render(std::move(*event));
    if (!message.has_value()) continue;
    message_ = *message;  // a ByteBuffer shares its slices
    writing_ = true;
    write_started_ = Clock::now();
    StartMessage(&message_);
  }
}

void EngineCall::End(FinishEvent finish) {
  ended_ = true;
  Status status = FinishStatus(finish);
  // The reason is ours where the cancellation was, and where the last token was faster than it.
  if (broken_ && (status.ok() || status.code() == Code::kCancelled)) status = broken_status_;
  events_.reset();
  write_started_ = Clock::now();
  if (!status.ok() || !NeedsStore(finish)) return Close(finish, status);
  const std::shared_ptr<Executor>& stores = call_.service()->stores;
  stores->Post([self = shared_from_this(), finish = std::move(finish)] {
    const Status stored = self->Store(finish);
    std::lock_guard lock(self->mutex_);
    self->Close(finish, stored);
  });
}

void EngineCall::Close(const FinishEvent& finish, const Status& status) {
  call_.OnEnd(status, &finish);
  OnEnded();
  write_started_ = Clock::now();
  if (!status.ok()) return FinishWith(ToGrpcStatus(status));
  for (grpc::ByteBuffer& message : RenderFinish(finish)) closing_.push_back(std::move(message));
  WriteClosing();
}

void EngineCall::WriteClosing() {
  message_ = closing_.front();
  closing_.pop_front();
  if (closing_.empty()) return FinishWith(&message_);
  writing_ = true;
  write_started_ = Clock::now();
  StartMessage(&message_);
}

void EngineCall::WriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
  }
  if (!ok) Cancelled();
  Pump();
}

void EngineCall::Cancelled() {
  Fail(call_.DeadlinePassed()
           ? Status(Code::kDeadlineExceeded, "the deadline of the request has passed")
           : Status(Code::kCancelled, "the client cancelled"));
}

void EngineCall::EndIfStalled(Clock::time_point since) {
  Status status;
  {
    std::lock_guard lock(mutex_);
    if (context_ == nullptr) return;
    const std::optional<Clock::time_point> owed = InputOwedSince();
    if ((writing_ || ended_) && write_started_ < since) {
      status =
          Status(Code::kAborted, "the client took no output for longer than the stall deadline");
      context_->TryCancel();  // the write cannot end otherwise, and no status can pass it
    } else if (!writing_ && !ended_ && owed.has_value() && *owed < since) {
      status =
          Status(Code::kAborted, "the client sent no input for longer than the stall deadline");
    }
  }
  if (!status.ok()) Fail(status);
}

void EngineCall::RpcDone() {
  std::shared_ptr<EngineCall> pinned;  // the last reference may go with it: after the lock
  std::lock_guard lock(mutex_);
  pinned = std::move(pinned_);
  context_ = nullptr;
  call_.OnRpcDone();
}

}  // namespace polysketch
