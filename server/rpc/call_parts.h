// The parts of an EngineCall that differ from RPC to RPC: a CallInput handles the messages of the
// client, a Renderer makes the responses. A part belongs to one call, which outlives it.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/request/request.h"

namespace polysketch {

using Messages = std::vector<grpc::ByteBuffer>;

// Handles the messages of the client, one after the other: large messages, and the end of the
// input, on a tokenizer thread. An error that a function returns fails the call.
class CallInput {
 public:
  virtual ~CallInput() = default;
  // Calls EngineCall::Read, at once or later, if another message may follow.
  virtual Status OnMessage(const grpc::ByteBuffer& bytes) = 0;
  // Called when the client has closed its side, if Read was called after the last message.
  virtual Status OnEnd() = 0;
};

// The events of a request, with room to put one back. Used by one thread at a time.
class EventQueue {
 public:
  void Open(std::shared_ptr<EventStream> stream) { stream_ = std::move(stream); }
  void Close() { stream_.reset(); }
  bool open() const { return stream_ != nullptr; }
  // Returns the next event; nullopt if no event is ready or the queue is closed.
  std::optional<Event> Next() {
    if (returned_.has_value()) return std::exchange(returned_, std::nullopt);
    Event event;
    if (stream_ == nullptr || !stream_->TryPop(&event)) return std::nullopt;
    return event;
  }
  // The next call of Next returns `event`.
  void PutBack(Event event) { returned_ = std::move(event); }

 private:
  std::shared_ptr<EventStream> stream_;
  std::optional<Event> returned_;
};

// Makes messages of events. Used by one thread at a time.
class Renderer {
 public:
  virtual ~Renderer() = default;
  // Returns the message of `event` and of the events after it that share the message, which it
  // removes from `events`. nullopt: `event` causes no message.
  virtual std::optional<grpc::ByteBuffer> Render(Event event, EventQueue* events) = 0;
  // Returns the last messages, at least one, of a request that ended without an error. Called on
  // a thread of the store or of sessions if `finish` has a snapshot, which this function then
  // stores. An error fails the call.
  virtual Result<Messages> RenderFinish(const FinishEvent& finish) = 0;
};

}  // namespace polysketch
