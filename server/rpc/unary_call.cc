#include "server/rpc/unary_call.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace polysketch {

Status ParseUnary(const UnaryInput& input, google::protobuf::Message* request) {
  const bool large = input.bytes->Length() > kInlineRequestBytes;
  if (large) PS_RETURN_IF_ERROR(input.request->Hold(ParsedMessageBytes(*input.bytes, *request)));
  PS_RETURN_IF_ERROR(ParseMessage(*input.bytes, request));
  input.bytes->Clear();
  return large ? input.request->HoldOnly(static_cast<int64_t>(request->SpaceUsedLong())) : Status();
}

UnaryCall::UnaryCall(std::string_view rpc, ServiceContext* service, CallContext* context,
                     StreamWork work, UnaryExecutor executor)
    : call_(rpc, service, context),
      work_(std::move(work)),
      executor_(std::move(executor)),
      request_memory_(call_.NewMemory(RequestPhase::kRequest)),
      reply_memory_(call_.NewMemory(RequestPhase::kReply)),
      context_(context) {}

void UnaryCall::Start() {
  pinned_ = shared_from_this();
  if (Status status = call_.Admission(); !status.ok()) return End(std::move(status));
  {
    std::lock_guard lock(mutex_);
    since_ = Clock::now();
    context_->StartRead(&bytes_);
  }
  WatchForStall();
}

void UnaryCall::OnReadDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    since_.reset();
  }
  if (!ok) return End(InvalidArgument("expected a message, found none"));
  const auto bytes = static_cast<int64_t>(bytes_.Length());
  if (Status held = request_memory_.Hold(bytes); !held.ok()) return End(std::move(held));
  const auto run = [self = shared_from_this()] { self->Run(); };
  if (executor_ != nullptr) {
    const Result<Executor*> executor = executor_(Input(), *call_.service());
    return executor.ok() ? (*executor)->Post(run, call_.info().principal) : End(executor.status());
  }
  if (bytes <= static_cast<int64_t>(kInlineRequestBytes)) return Run();
  TokenizerPool::Ticket ticket =
      call_.service()->tokenizers->Post(call_.tokenizes_for(), bytes, run);
  {
    std::lock_guard lock(mutex_);
    if (!ended_) return ticket_.swap(ticket);
  }
  call_.service()->tokenizers->Drop(ticket);
}

UnaryInput UnaryCall::Input() {
  return {.bytes = &bytes_,
          .info = call_.info(),
          .model = *call_.model(),
          .request = &request_memory_,
          .reply = &reply_memory_};
}

void UnaryCall::Run() {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
  }
  End(work_(Input()));
}

void UnaryCall::End(Result<Messages> responses) {
  TokenizerPool::Ticket ticket;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    ticket.swap(ticket_);
    since_ = Clock::now();
    call_.OnEnd(responses.status(), nullptr);
    if (responses.ok()) {
      responses_ = *std::move(responses);
      std::reverse(responses_.begin(), responses_.end());
      WriteNext();
    } else {
      context_->Finish(responses.status());
    }
  }
  call_.service()->tokenizers->Drop(ticket);
}

void UnaryCall::WriteNext() {
  response_.Swap(&responses_.back());
  responses_.pop_back();
  since_ = Clock::now();
  responses_.empty() ? context_->StartWriteAndFinish(&response_) : context_->StartWrite(&response_);
}

void UnaryCall::OnWriteDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (responses_.empty()) return;
  if (ok) return WriteNext();
  responses_.clear();
  context_->Finish(Status(Code::kCancelled, "the client cancelled"));
}

void UnaryCall::OnCancel() {
  End(call_.DeadlinePassed()
          ? Status(Code::kDeadlineExceeded, "the deadline of the request has passed")
          : Status(Code::kCancelled, "the client cancelled"));
}

void UnaryCall::OnDone() {
  std::shared_ptr<UnaryCall> pinned;  // may be the last reference: destroyed after the lock
  std::lock_guard lock(mutex_);
  pinned = std::move(pinned_);
  context_ = nullptr;
  call_.OnRpcDone();
}

void UnaryCall::WatchForStall() {
  const auto period = std::max(call_.service()->stall_deadline / 8, std::chrono::milliseconds(10));
  call_.service()->writers->PostAfter(period, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CheckStall();
  });
}

void UnaryCall::CheckStall() {
  bool no_request = false;
  {
    std::lock_guard lock(mutex_);
    if (context_ == nullptr) return;
    if (since_.has_value() && *since_ < Clock::now() - call_.service()->stall_deadline) {
      // A response that the client does not read cannot end otherwise.
      ended_ ? context_->TryCancel() : void(no_request = true);
    }
  }
  if (no_request)
    End(Status(Code::kAborted, "the client sent no request for longer than the stall deadline"));
  WatchForStall();
}

void AddUnaryWork(RpcMethod rpc, UnaryWork work, ServiceContext* service, Router* router,
                  UnaryExecutor executor) {
  const auto one = [work = std::move(work)](const UnaryInput& input) -> Result<Messages> {
    PS_ASSIGN_OR_RETURN(grpc::ByteBuffer response, work(input));
    return Messages{std::move(response)};
  };
  AddStreamWork(rpc, one, service, router, std::move(executor));
}

void AddStreamWork(RpcMethod rpc, StreamWork work, ServiceContext* service, Router* router,
                   UnaryExecutor executor) {
  router->Add(std::string(rpc.service), std::string(rpc.name), [=](CallContext* context) {
    // Not make_shared: the timer of a call that has ended keeps no memory of it.
    const std::shared_ptr<UnaryCall> call(
        new UnaryCall(rpc.name, service, context, work, executor));
    call->Start();
    return call.get();
  });
}

}  // namespace polysketch
