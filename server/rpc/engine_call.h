// A call that runs a request on the engine: the part that Complete, CompleteUnary and Score have in
// common.
//
// Life: created and pinned by its handler -> Submit -> events are rendered to messages, one write
// outstanding -> the FinishEvent ends the call -> OnDone unpins. Whatever breaks a call
// (cancellation, deadline, a dead connection, bad input in the middle, a stall) cancels the
// request; the call then discards events and ends with the FinishEvent, within a step. A request
// whose end the store has to hear of ends on the store thread.
//
// Threads: gRPC's, the writer's and the stall watch's; mutex_ guards all state. The engine thread
// only posts to the writer.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "server/rpc/call.h"
#include "server/rpc/stall_watch.h"

namespace polysketch {

class EngineCall : public Stallable, public std::enable_shared_from_this<EngineCall> {
 public:
  void EndIfStalled(Clock::time_point since) override;

 protected:
  EngineCall(std::string_view rpc, ServiceContext* service, grpc::CallbackServerContext* context)
      : call_(rpc, service, context), context_(context) {}

  // --- for the derived call to say how it writes; called with mutex_ held ---
  // The bytes of one message made of `event` and, through NextEvent, of events behind it. nullopt:
  // nothing to write yet.
  virtual std::optional<grpc::ByteBuffer> Render(Event event) = 0;
  // The last messages of a call that went well; at least one.
  virtual std::vector<grpc::ByteBuffer> RenderFinish(const FinishEvent& finish) = 0;
  // Whether Store has work before a request that ended so is over.
  virtual bool NeedsStore(const FinishEvent& /*finish*/) const { return false; }
  // On the store thread, without mutex_, the call having nothing else to do.
  virtual Status Store(const FinishEvent& /*finish*/) { return Status(); }
  virtual void StartMessage(const grpc::ByteBuffer* message) = 0;
  virtual void FinishWith(const grpc::ByteBuffer* last_message) = 0;
  virtual void FinishWith(const grpc::Status& status) = 0;
  // When the client last owed us something that it has not given yet (input of a score).
  virtual std::optional<Clock::time_point> InputOwedSince() const { return std::nullopt; }
  // The request is over: drop what refers to the engine.
  virtual void OnEnded() {}

  // --- for the derived call to use ---
  // The next event, or nullopt when none is there. mutex_ held.
  std::optional<Event> NextEvent();
  // Puts an event back that did not fit the message. mutex_ held.
  void HoldBack(Event event) { held_back_ = std::move(event); }
  // Hands the request over. An error means that the call must be ended with Reject. Without mutex_.
  template <typename Request>
  Status Submit(Request request);
  // Ends a call that has no request on the engine. Without mutex_.
  void Reject(const Status& status);
  // Ends the call with an error, at once or when the engine has let go of its request. Without
  // mutex_.
  void Fail(const Status& status);
  // Renders and writes what can be. Without mutex_.
  void Pump();

  // Forwarded by the derived reactor.
  void WriteDone(bool ok);
  void Cancelled();
  void RpcDone();
  // Keeps the call alive until RpcDone.
  void Pin() { pinned_ = shared_from_this(); }

  Call call_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  bool ended_ = false;   // the status has been decided: nothing more is read or written
  bool broken_ = false;  // events are discarded; broken_status_ says why
  std::shared_ptr<EventStream> events_;  // from Submit to the FinishEvent

 private:
  void RejectLocked(const Status& status);
  // Decides how the call ends.
  void End(FinishEvent finish);
  // Ends it so. mutex_ held.
  void Close(const FinishEvent& finish, const Status& status);
  void WriteClosing();

  grpc::CallbackServerContext* context_;  // null after RpcDone
  Status broken_status_;
  std::optional<RequestId> id_;
  std::optional<Event> held_back_;
  grpc::ByteBuffer message_;              // the write outstanding
  std::deque<grpc::ByteBuffer> closing_;  // of a call that went well, the last messages
  bool writing_ = false;
  Clock::time_point write_started_;
  std::shared_ptr<EngineCall> pinned_;
};

}  // namespace polysketch
