// One call between its transport (gRPC, or HTTP in server/http) and its reactor (server/rpc). Both
// follow gRPC's callback API: the reactor starts operations, and the transport reports their ends.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/credentials/guard.h"

namespace polysketch {

// A call as its reactor sees it. At most one read and one write are outstanding. Buffers live until
// the operation ends. Thread-safe. Lives until OnDone returns.
class CallContext {
 public:
  virtual ~CallContext() = default;

  // --- what the client sent ---
  virtual std::string_view method() const = 0;  // "/package.Service/Method"
  virtual std::string peer() const = 0;         // in gRPC's form: "ipv4:127.0.0.1:4711"
  virtual bool is_grpc() const { return true; }
  // Whether the client sent messages of a chat, which became the prompt.
  virtual bool is_chat() const { return false; }
  // The values of a key of the metadata, which is written in lower case.
  virtual std::vector<std::string_view> Metadata(std::string_view key) const = 0;
  // time_point::max(): no deadline.
  virtual std::chrono::system_clock::time_point deadline() const = 0;

  // --- who calls ---
  // Set by the transport that has admitted the call, or by Router::Start; null without API keys,
  // and for health checks.
  const std::shared_ptr<const Caller>& caller() const { return caller_; }
  void set_caller(std::shared_ptr<const Caller> caller) { caller_ = std::move(caller); }

  // The engine has the request: a call that is refused ends before. `prompt_tokens`: as Usage
  // counts them; 0 for a score. Called once at most, and not for a request that has ended by then.
  // Writes may precede it.
  virtual void OnSubmitted(int64_t prompt_tokens) { (void)prompt_tokens; }
  // Called before the first write and before the end.
  virtual void AddInitialMetadata(const std::string& key, const std::string& value) = 0;

  // --- operations; their ends are reported on a thread of the transport, never in these functions
  // ---
  virtual void StartRead(grpc::ByteBuffer* message) = 0;
  virtual void StartWrite(const grpc::ByteBuffer* message) = 0;
  // Each ends the call, once. OnDone follows.
  virtual void StartWriteAndFinish(const grpc::ByteBuffer* message) = 0;
  virtual void Finish(const Status& status) = 0;

  // Ends outstanding operations and reports OnCancel.
  virtual void TryCancel() = 0;
  // Whether the client, or TryCancel, ended the call before Finish. Valid in OnDone.
  virtual bool IsCancelled() const = 0;

 private:
  std::shared_ptr<const Caller> caller_;
};

// Runs one call. The transport calls one of these functions at a time, but OnCancel, which may
// overlap with the others. OnDone is the last.
class CallReactor {
 public:
  virtual ~CallReactor() = default;
  virtual void OnReadDone(bool ok) { (void)ok; }
  virtual void OnWriteDone(bool ok) { (void)ok; }
  virtual void OnCancel() {}
  virtual void OnDone() = 0;
};

}  // namespace polysketch
