// A call that runs a request on the engine.
//
// Parts: a Call (ids, limits, the line in the log), a CallInput (messages to a request) and a
// Renderer (events to messages).
//
// Life: Start -> the CallInput prepares a request, on any thread -> Submit -> the Renderer makes
// messages of the engine's events, one write outstanding -> the FinishEvent ends the call. Whatever
// breaks a call (cancellation, deadline, a dead connection, bad input after Submit, a stall)
// cancels the request; the call then discards events and ends with the FinishEvent, within a step.
// A FinishEvent with a snapshot is rendered on a thread of the store or of sessions, which stores
// the snapshot.
//
// Memory: what the call holds for its client counts as request memory, until the call is destroyed:
// the message that is handled, collected input, the prompt while it waits and runs, and responses
// that are large. Smaller responses are bounded by --stream-buffer.
//
// Threads: the transport's, the writer's, the tokenizers', the store's and those of sessions. The
// engine thread only posts to the writer.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/net/request_memory.h"
#include "server/net/router.h"
#include "server/rpc/call.h"
#include "server/rpc/call_parts.h"

namespace polysketch {

class EngineCall final : public CallReactor, public std::enable_shared_from_this<EngineCall> {
 public:
  EngineCall(std::string_view rpc, ServiceContext* service, CallContext* context)
      : call_(rpc, service, context),
        message_memory_(call_.NewMemory(RequestPhase::kRequest)),
        input_memory_(call_.NewMemory(RequestPhase::kUpload)),
        reply_memory_(call_.NewMemory(RequestPhase::kReply)),
        written_memory_(call_.NewMemory(RequestPhase::kReply)),
        context_(context) {}

  // Reads the first message for `input`, or ends the call if it must not run. Called once. The call
  // lives until OnDone.
  void Start(std::unique_ptr<CallInput> input);

  ServiceContext* service() const { return call_.service(); }
  const ServedModel& model() const { return *call_.model(); }  // after admission
  const std::string& tenant() const { return call_.info().tenant; }
  const Principal& principal() const { return call_.info().principal; }
  const Caller* caller() const { return call_.caller(); }  // null without API keys
  CallTrace& trace() { return call_.trace(); }

  // --- for the CallInput ---
  // Reads the next message of the client; does nothing once the call has failed or ended.
  void Read();
  // Parses the message that is handled, and holds its memory, before it is taken, beside that of
  // its bytes.
  Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);
  // Holds memory of what becomes of the message, until the next one is read, in place of that of
  // its bytes.
  Status HoldMessage(int64_t bytes);
  // Holds memory of input that is collected, until the call is destroyed.
  Status HoldInput(int64_t bytes) { return input_memory_.Hold(bytes); }
  // Runs `work` on `bytes` of input in the tokenizer pool, unless the call has ended by then.
  void PostToTokenizers(int64_t bytes, std::function<void()> work);
  // Takes tokens that the call may process from the minute of its API key. Submit does so for a
  // completion.
  Status ReserveTokens(int64_t tokens) { return call_.ReserveTokens(tokens); }
  // Submits `request` to the engine; its events go to `renderer`. After an error the engine has no
  // request of this call.
  template <typename Request>
  Status Submit(Request request, std::unique_ptr<Renderer> renderer);
  // Runs `work` on a thread that may call AcquireSession or ReadSession of this session.
  void PostToSession(const std::string& id, std::function<void()> work) const;
  // Runs `work` on a thread that may wait for a grammar's process, unless the call has ended by
  // then: a client that cancels must not leave seconds of compilation to each call.
  void PostToGrammars(std::function<void()> work);
  // Runs `work` on a thread that may wait for the store.
  void PostToStores(std::function<void()> work) const;
  // Leases the session until the call ends. Returns its snapshot, null while the session is empty.
  // Called on a thread of PostToSession, at most once, before Submit.
  Result<std::shared_ptr<const Snapshot>> AcquireSession(const std::string& id,
                                                         std::optional<int64_t> expected_position);
  // Returns the snapshot of the session, which other requests may use at once; null while the
  // session is empty. Called on a thread of PostToSession.
  Result<std::shared_ptr<const Snapshot>> ReadSession(const std::string& id,
                                                      std::optional<int64_t> expected_position);
  // Returns the migrated completion. Called on a thread of the store.
  Result<std::shared_ptr<const Snapshot>> LoadMigrated(const std::string& resume_token);
  // Ends the call with an error: at once, or, after Submit, when the engine has ended the request.
  // The first error counts.
  void Fail(const Status& status);

  // --- for the Renderer ---
  // Holds `bytes` for the responses that the renderer collects, in place of what it held, until the
  // call is destroyed. An error in Render fails the call.
  Status HoldReply(int64_t bytes);
  // As HoldReply with an error.
  Status RefuseReply(Status status) { return reply_status_ = std::move(status); }
  // The lease of AcquireSession; null without a session. Move it into SessionTable::Commit.
  SessionLease* lease() { return lease_.has_value() ? &*lease_ : nullptr; }

  // --- the callbacks of the transport ---
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  Result<SessionLease> Acquire(const std::string& id, std::optional<int64_t> expected_position);
  // Finds room for the state of the leased session, if there is one (SessionTable::Reserve).
  Status ReserveSession(int64_t tokens);
  // Whether the call has ended or failed. mutex_ not held.
  bool IsOver();
  // Passes the message that was read, or the end of the input, to input_.
  void HandleInput(bool ok);
  // Renders and writes events until a write is outstanding or no event is ready.
  void Pump();
  // Pump without the end of the call. mutex_ held.
  Status WriteEvents();
  void Write(grpc::ByteBuffer message);  // mutex_ held
  void WriteLast();                      // the next message of last_; mutex_ held
  // Decides the end of a call whose request has ended. mutex_ held.
  void End(FinishEvent finish);
  // Ends the call: with the messages `last`, or with an error. `finish`: null if the engine had no
  // request of the call. mutex_ held.
  void Close(Result<Messages> last, const FinishEvent* finish);
  // Checks after an eighth of the stall deadline, and again until the call is done, that the client
  // reads and writes; fails the call otherwise.
  void WatchForStall();
  Status CheckStall();
  // UNAVAILABLE if the server drains and the engine has no request of the call: nothing of its input
  // has been used. mutex_ held.
  Status CheckDraining() const;

  Call call_;
  std::unique_ptr<CallInput> input_;
  std::unique_ptr<Renderer> renderer_;  // guarded by mutex_; the thread's that renders the end
  grpc::ByteBuffer read_;               // the read outstanding; its handler's when it is done
  HeldMemory message_memory_;           // of the message; its handler's
  HeldMemory input_memory_;             // its handler's
  HeldMemory reply_memory_;             // the renderer's
  Status reply_status_;                 // of the last HoldReply
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  HeldMemory written_memory_;           // of written_, if that is large
  TokenizerPool::Ticket ticket_;        // of work that may not have started
  std::shared_ptr<EngineCall> pinned_;  // until OnDone
  CallContext* context_;                // null after OnDone
  std::optional<SessionLease> lease_;   // RenderFinish's while it runs
  bool input_ended_ = false;            // the client closed its side: a feed may ask for more
  bool ended_ = false;                  // the end is decided: nothing is read or rendered any more
  bool broken_ = false;                 // events are discarded; broken_status_ says why
  Status broken_status_;
  EventQueue events_;  // open from Submit to the FinishEvent
  std::optional<RequestId> id_;
  grpc::ByteBuffer written_;  // the message of the outstanding write
  Messages last_;             // messages of the end that are not yet written, in reverse order
  bool writing_ = false;
  bool closing_ = false;  // the status, and the last messages before it, are being written
  Clock::time_point write_started_;
  std::optional<Clock::time_point> read_started_;  // unset while no read is outstanding
};

// Adds an RPC that runs requests on the engine. Input: a CallInput, made from EngineCall* and
// `args`.
template <typename Input, typename... Args>
void AddEngineMethod(RpcMethod rpc, ServiceContext* service, Router* router, Args... args) {
  router->Add(std::string(rpc.service), std::string(rpc.name), [=](CallContext* context) {
    const auto call = std::make_shared<EngineCall>(rpc.name, service, context);
    call->Start(std::make_unique<Input>(call.get(), args...));
    return call.get();
  });
}

}  // namespace polysketch
