// What calls of a kind of reactor have in common: gRPC's callbacks reach the EngineCall, and its
// messages the reactor.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "server/rpc/engine_call.h"

namespace polysketch {

// Base: EngineCall or a class derived from it. Reactor: one that writes a stream.
template <typename Reactor, typename Base>
class StreamCall : public Reactor, public Base {
 public:
  void OnWriteDone(bool ok) override { this->WriteDone(ok); }
  void OnCancel() override { this->Cancelled(); }
  void OnDone() override { this->RpcDone(); }

 protected:
  using Base::Base;

  void StartMessage(const grpc::ByteBuffer* message) override { this->StartWrite(message); }
  void FinishWith(const grpc::ByteBuffer* last_message) override {
    this->StartWriteAndFinish(last_message, grpc::WriteOptions(), grpc::Status::OK);
  }
  void FinishWith(const grpc::Status& status) override { this->Finish(status); }
};

// A call that reads a stream too: one read outstanding, or none while its input is being taken.
// Reading stops with the call.
template <typename Base>
class BidiCall
    : public StreamCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, Base> {
 public:
  // Once, by the handler.
  void Begin() {
    this->Pin();
    if (Status status = this->call_.Admission(); !status.ok()) return this->Reject(status);
    Read();
  }

  void OnReadDone(bool ok) override {
    {
      std::lock_guard lock(this->mutex_);
      owed_since_.reset();
      if (this->ended_ || this->broken_) return;
    }
    if (ok && input_.Length() <= kInlineRequestBytes) return Consume();
    // Large ones, and the end, which may leave text to be tokenized.
    this->call_.service()->tokenizers->Post([self = this->shared_from_this(), this, ok] {
      if (ok) return Consume();
      // gRPC says the same of a client that closed its side and of one that left; that it left
      // comes right behind, and what it had not finished must not count as finished.
      std::this_thread::sleep_for(kLeavingIsKnown);
      {
        std::lock_guard lock(this->mutex_);
        if (this->ended_ || this->broken_) return;
      }
      CloseInput();
    });
  }

 protected:
  using Parent = StreamCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>, Base>;
  using Parent::Parent;

  // A message has arrived. Take it, and Read when the next one is wanted.
  virtual Status Take(const grpc::ByteBuffer& message) = 0;
  // The client has closed its side.
  virtual void CloseInput() = 0;

  void Read() {
    std::lock_guard lock(this->mutex_);
    if (this->ended_ || this->broken_) return;
    owed_since_ = Clock::now();
    this->StartRead(&input_);
  }

 private:
  static constexpr std::chrono::milliseconds kLeavingIsKnown{1};

  void Consume() {
    const grpc::ByteBuffer message = std::exchange(input_, grpc::ByteBuffer());
    if (Status status = Take(message); !status.ok()) this->Fail(status);
  }
  std::optional<Clock::time_point> InputOwedSince() const override { return owed_since_; }

  grpc::ByteBuffer input_;                       // the read outstanding
  std::optional<Clock::time_point> owed_since_;  // guarded by mutex_
};

}  // namespace polysketch
