#include "server/rpc/engine_call.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <type_traits>
#include <utility>

#include "server/convert/status_map.h"
#include "server/convert/wire.h"
#include "server/rpc/request_bytes.h"

namespace polysketch {
namespace {

// gRPC reports the end of the input both for a client that closed its side and for a client that
// left; it reports the cancellation of the latter a moment later. Input that a client did not
// finish must not count as finished.
constexpr std::chrono::milliseconds kCancellationIsKnown{1};

// Work at the end of the input: the rest of a text, less than a part of the tokenizer.
constexpr int64_t kEndOfInputBytes = Tokenizer::kPartBytes;

// Messages above this count as request memory. Others are bounded by --max-calls: counting them
// would cost more than they hold.
constexpr size_t kCountedMessageBytes = 4 << 10;

int64_t PromptTokens(const GenerateRequest& request) {
  if (request.start == nullptr) return std::ssize(request.prompt);
  if (request.start->generation) return request.start->generation->prompt_tokens;
  return request.start->tokens() + std::ssize(request.prompt);
}
int64_t PromptTokens(const ScoreRequest&) { return 0; }  // its input still arrives

// Names of spans.
constexpr char kLoadSpan[] = "load state";
constexpr char kSaveSpan[] = "save state";

// Tokens that a completion may process.
int64_t MaxTokens(const GenerateRequest& request, const RequestRules& rules) {
  if (request.start != nullptr && request.start->generation.has_value()) {
    const Generation& rest = *request.start->generation;
    return (rest.max_tokens - rest.generated) * std::max(rest.params.best_of, 1);
  }
  const int64_t most = request.params.max_tokens.value_or(rules.default_max_tokens);
  return std::ssize(request.prompt) + most * std::max(request.params.best_of, 1);
}

}  // namespace

void EngineCall::Start(std::unique_ptr<CallInput> input) {
  pinned_ = shared_from_this();
  input_ = std::move(input);
  if (const Status status = call_.Admission(); !status.ok()) return Fail(status);
  Read();
  WatchForStall();
}

void EngineCall::Read() {
  std::lock_guard lock(mutex_);
  if (ended_ || broken_ || input_ended_) return;
  message_memory_.Release();
  read_started_ = Clock::now();
  context_->StartRead(&read_);
}

void EngineCall::OnReadDone(bool ok) {
  Status draining;
  {
    std::lock_guard lock(mutex_);
    read_started_.reset();
    input_ended_ = !ok;
    if (ended_ || broken_) return;
    draining = CheckDraining();
  }
  if (!draining.ok()) return Fail(draining);
  if (!ok) {
    // After the end of the input, text may still have to be tokenized.
    service()->writers->PostAfter(kCancellationIsKnown, [self = shared_from_this()] {
      self->PostToTokenizers(kEndOfInputBytes, [self] { self->HandleInput(false); });
    });
    return;
  }
  const auto bytes = static_cast<int64_t>(read_.Length());
  if (const Status status = HoldMessage(bytes); !status.ok()) return Fail(status);
  if (bytes <= int64_t{kInlineRequestBytes}) return HandleInput(true);
  PostToTokenizers(bytes, [self = shared_from_this()] { self->HandleInput(true); });
}

void EngineCall::PostToTokenizers(int64_t bytes, std::function<void()> work) {
  TokenizerPool* const pool = service()->tokenizers;
  TokenizerPool::Ticket ticket = pool->Post(call_.tokenizes_for(), bytes, std::move(work));
  {
    std::lock_guard lock(mutex_);
    if (!ended_ && !broken_) return ticket_.swap(ticket);
  }
  pool->Drop(ticket);
}

bool EngineCall::IsOver() {
  std::lock_guard lock(mutex_);
  return ended_ || broken_;
}

void EngineCall::HandleInput(bool ok) {
  if (IsOver()) return;
  const grpc::ByteBuffer bytes = std::exchange(read_, grpc::ByteBuffer());
  if (Status status = ok ? input_->OnMessage(bytes) : input_->OnEnd(); !status.ok()) Fail(status);
}

Status EngineCall::Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  const auto size = static_cast<int64_t>(bytes.Length());
  if (bytes.Length() <= kCountedMessageBytes) return ParseMessage(bytes, message);
  PS_RETURN_IF_ERROR(HoldMessage(size + ParsedMessageBytes(bytes, *message)));
  PS_RETURN_IF_ERROR(ParseMessage(bytes, message));
  return HoldMessage(size + static_cast<int64_t>(message->SpaceUsedLong()));  // less
}

Status EngineCall::HoldMessage(int64_t bytes) {
  const bool counts = bytes > int64_t{kCountedMessageBytes};
  if (!counts && message_memory_.bytes() == 0) return Status();
  return message_memory_.HoldOnly(counts ? bytes : 0);
}

template <typename Request>
Status EngineCall::Submit(Request request, std::unique_ptr<Renderer> renderer) {
  if constexpr (std::is_same_v<Request, GenerateRequest>) {
    // The message is gone, and its prompt belongs to the engine.
    message_memory_.Release();
    input_memory_.SetPhase(RequestPhase::kRequest);
    // What never fits is no matter of quota or of memory that others hold now.
    PS_RETURN_IF_ERROR(model().engine->CheckLength(request));
    PS_RETURN_IF_ERROR(ReserveTokens(MaxTokens(request, model().rules)));
    PS_RETURN_IF_ERROR(ReserveSession((request.start == nullptr ? 0 : request.start->tokens()) +
                                      MaxTokens(request, model().rules)));
    const int64_t bytes = EngineRequestBytes(request, model().rules.draft_tokens,
                                             model().description.limits().default_max_tokens());
    if (bytes > input_memory_.bytes()) PS_RETURN_IF_ERROR(input_memory_.HoldOnly(bytes));
  }
  auto stream = std::make_shared<EventStream>(service()->stream_buffer);
  stream->SetOnReady([weak = weak_from_this(), writers = service()->writers] {
    writers->Post([weak] {
      if (const auto self = weak.lock()) self->Pump();
    });
  });
  {
    std::lock_guard lock(mutex_);
    if (ended_) return Status(Code::kCancelled, "the call ended before its request was read");
    renderer_ = std::move(renderer);
    events_.Open(stream);
  }
  const int64_t prompt_tokens = PromptTokens(request);
  const int priority = request.info.priority;
  request.info = call_.info();
  request.info.priority = priority;
  trace().OnSubmit();
  const Result<RequestId> id = model().engine->Submit(std::move(request), std::move(stream));
  {
    std::lock_guard lock(mutex_);
    if (!id.ok()) {
      events_.Close();
      return id.status();
    }
    id_ = *id;
    if (!ended_) context_->OnSubmitted(prompt_tokens);
    if (broken_) model().engine->Cancel(*id_);  // the call broke while Submit ran
  }
  return Status();
}

template Status EngineCall::Submit(GenerateRequest request, std::unique_ptr<Renderer> renderer);
template Status EngineCall::Submit(ScoreRequest request, std::unique_ptr<Renderer> renderer);

Result<std::shared_ptr<const Snapshot>> EngineCall::AcquireSession(
    const std::string& id, std::optional<int64_t> expected_position) {
  PS_ASSIGN_OR_RETURN(SessionLease lease, Acquire(id, expected_position));
  std::lock_guard lock(mutex_);
  if (ended_) return Status(Code::kCancelled, "the call ended before its session was read");
  lease_.emplace(std::move(lease));
  return lease_->snapshot();
}

Status EngineCall::ReserveSession(int64_t tokens) {
  std::lock_guard lock(mutex_);  // a client that cancels ends the lease
  return lease_.has_value() ? model().sessions->Reserve(&*lease_, tokens) : Status();
}

Result<std::shared_ptr<const Snapshot>> EngineCall::ReadSession(
    const std::string& id, std::optional<int64_t> expected_position) {
  PS_ASSIGN_OR_RETURN(const SessionLease lease, Acquire(id, expected_position));
  return lease.snapshot();
}

Result<std::shared_ptr<const Snapshot>> EngineCall::LoadMigrated(const std::string& resume_token) {
  const Clock::time_point start = Clock::now();
  auto snapshot = model().sessions->GetMigrated(tenant(), resume_token);
  trace().AddPart(kLoadSpan, start);
  return snapshot;
}

Result<SessionLease> EngineCall::Acquire(const std::string& id,
                                         std::optional<int64_t> expected_position) {
  const Clock::time_point start = Clock::now();
  auto lease = model().sessions->Acquire({.tenant = tenant(), .principal = principal()}, id,
                                         expected_position);
  trace().AddPart(kLoadSpan, start);
  return lease;
}

void EngineCall::PostToSession(const std::string& id, std::function<void()> work) const {
  service()
      ->ForSession(model().sessions->NeedsStore(tenant(), id))
      .Post(std::move(work), principal());
}

void EngineCall::PostToGrammars(std::function<void()> work) {
  const auto unless_over = [call = shared_from_this(), work = std::move(work)] {
    if (!call->IsOver()) work();
  };
  service()->grammars->Post(unless_over, principal());
}

void EngineCall::PostToStores(std::function<void()> work) const {
  service()->stores->Post(std::move(work), principal());
}

void EngineCall::Fail(const Status& status) {
  TokenizerPool::Ticket ticket;
  const auto fail = [&] {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    ticket.swap(ticket_);
    if (!events_.open()) {
      Close(broken_ ? broken_status_ : status, nullptr);
      return false;
    }
    if (broken_) return false;
    broken_ = true;
    broken_status_ = status;
    if (id_.has_value()) model().engine->Cancel(*id_);
    return true;
  };
  const bool pump = fail();
  service()->tokenizers->Drop(ticket);
  if (!pump) return;
  Pump();  // empties the buffer: the FinishEvent is announced only if the buffer is empty
}

void EngineCall::Pump() {
  Status status;
  {
    std::lock_guard lock(mutex_);
    if (!last_.empty() && !writing_) return WriteLast();
    status = WriteEvents();
  }
  if (!status.ok()) Fail(status);
}

Status EngineCall::WriteEvents() {
  while (!ended_ && !writing_) {
    std::optional<Event> event = events_.Next();
    if (!event.has_value()) return Status();
    if (auto* finish = std::get_if<FinishEvent>(&*event)) {
      End(std::move(*finish));
      return Status();
    }
    if (broken_) continue;
    std::optional<grpc::ByteBuffer> message = renderer_->Render(std::move(*event), &events_);
    PS_RETURN_IF_ERROR(reply_status_);
    if (!message.has_value()) continue;
    const bool counts = message->Length() > kCountedMessageBytes;
    if (counts || written_memory_.bytes() > 0) {
      PS_RETURN_IF_ERROR(
          written_memory_.HoldOnly(counts ? static_cast<int64_t>(message->Length()) : 0));
    }
    Write(*std::move(message));
  }
  return Status();
}

Status EngineCall::HoldReply(int64_t bytes) {
  reply_status_ = reply_memory_.HoldOnly(bytes);
  return reply_status_;
}

void EngineCall::Write(grpc::ByteBuffer message) {
  written_ = std::move(message);
  writing_ = true;
  write_started_ = Clock::now();
  context_->StartWrite(&written_);
}

void EngineCall::WriteLast() {
  grpc::ByteBuffer message = std::move(last_.back());
  last_.pop_back();
  if (!last_.empty()) return Write(std::move(message));
  written_ = std::move(message);
  context_->StartWriteAndFinish(&written_);
}

void EngineCall::End(FinishEvent finish) {
  ended_ = true;
  events_.Close();
  Status status = FinishStatus(finish);
  // The call ends with the status that broke it, even if the last token came before the
  // cancellation.
  if (broken_ && (status.ok() || status.code() == Code::kCancelled)) status = broken_status_;
  if (!status.ok()) return Close(status, &finish);
  if (finish.snapshot == nullptr) return Close(renderer_->RenderFinish(finish), &finish);
  const bool waits = !lease_.has_value() || finish.reason == FinishReason::kMigrated ||
                     model().sessions->CommitNeedsStore(*lease_, *finish.snapshot);
  auto close = [self = shared_from_this(), finish = std::move(finish), start = Clock::now()] {
    Result<Messages> last = self->renderer_->RenderFinish(finish);
    self->trace().AddPart(kSaveSpan, start);
    std::lock_guard lock(self->mutex_);
    self->Close(std::move(last), &finish);
  };
  service()->ForSession(waits).Post(std::move(close), principal());
}

void EngineCall::Close(Result<Messages> last, const FinishEvent* finish) {
  ended_ = true;
  closing_ = true;
  call_.OnEnd(last.status(), finish);
  lease_.reset();
  write_started_ = Clock::now();
  if (!last.ok()) return context_->Finish(last.status());
  last_ = *std::move(last);
  std::reverse(last_.begin(), last_.end());
  WriteLast();
}

void EngineCall::OnWriteDone(bool ok) {
  {
    std::lock_guard lock(mutex_);
    writing_ = false;
  }
  if (!ok) OnCancel();
  Pump();
}

void EngineCall::OnCancel() {
  Fail(call_.DeadlinePassed()
           ? Status(Code::kDeadlineExceeded, "the deadline of the request has passed")
           : Status(Code::kCancelled, "the client cancelled"));
}

void EngineCall::OnDone() {
  std::shared_ptr<EngineCall> pinned;  // may be the last reference: destroyed after the lock
  std::lock_guard lock(mutex_);
  pinned = std::move(pinned_);
  context_ = nullptr;
  call_.OnRpcDone();
}

void EngineCall::WatchForStall() {
  const auto period = std::max(service()->stall_deadline / 8, std::chrono::milliseconds(10));
  service()->writers->PostAfter(period, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    if (Status status = self->CheckStall(); !status.ok()) self->Fail(status);
    self->WatchForStall();
  });
}

Status EngineCall::CheckStall() {
  std::lock_guard lock(mutex_);
  if (context_ == nullptr) return Status();
  const Clock::time_point since = Clock::now() - service()->stall_deadline;
  // Between the end and Close the call may wait for the store, and not for the client.
  if ((writing_ || closing_) && write_started_ < since) {
    context_->TryCancel();  // the write cannot end otherwise, and no status can be sent before it
    return Status(Code::kAborted, "the client read no output for longer than the stall deadline");
  }
  if (!writing_ && !ended_ && read_started_.has_value() && *read_started_ < since) {
    return Status(Code::kAborted, "the client sent no input for longer than the stall deadline");
  }
  return read_started_.has_value() ? CheckDraining() : Status();
}

Status EngineCall::CheckDraining() const {
  return id_.has_value() || !service()->draining.load() ? Status() : Draining();
}

}  // namespace polysketch
