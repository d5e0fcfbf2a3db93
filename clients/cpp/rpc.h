// The connection to a server, and what every call has in common.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "clients/cpp/connection.h"
#include "clients/cpp/options.h"

namespace polysketch {

// Options of every call.
struct CallOptions {
  ConnectionOptions connection;
  std::string request_id;  // x-request-id; empty: the server makes one
  std::string tenant;      // x-tenant-id; empty: none
  std::string session;     // x-session-id, by which a gateway may route the call; empty: none
  double timeout = 0;      // seconds; 0: no limit
  bool json = false;       // prints the result as one JSON object
};

// Turns the messages of gRPC's library on stderr off: errors of calls say the same. The variable
// GRPC_VERBOSITY of the environment turns them on. Call before other functions of gRPC.
void SilenceGrpc();

// The channel connects with its first call, which reports a server that cannot be reached.
// options: after ResolveConnection. name: of the program, for the server's log.
std::shared_ptr<grpc::Channel> Connect(const ConnectionOptions& options,
                                       const std::string& name = "polysketch-cli",
                                       grpc::ChannelArguments arguments = {});
// Sets the deadline and the metadata of a call.
void Prepare(const CallOptions& options, grpc::ClientContext* context);

// The status as INVALID_ARGUMENT: MESSAGE, with advice where the cause is known.
std::string ErrorText(const grpc::Status& status, const ConnectionOptions& connection);
// The reason of the server (QUEUE_FULL; polysketch.proto lists the reasons); empty: it sent none.
std::string ErrorReason(const grpc::Status& status);
// The retry delay of the server (retry-after-ms) in milliseconds; none: the server sent none.
std::optional<int64_t> RetryDelay(const grpc::ClientContext& context);
// Prints the error of a finished call on stderr, with advice where the cause is known, and returns
// the exit status. The retry delay of the server (retry-after-ms) is part of the message.
ExitCode ReportRpcError(const grpc::Status& status, const CallOptions& options,
                        const grpc::ClientContext& context);

// Whether a CancelOnInterrupt has seen a signal.
bool Interrupted();

// The first SIGINT or SIGTERM in the object's life cancels the call, so that the server ends it at
// once; a second one ends the process. One object at a time.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(grpc::ClientContext* context);
  // Calls `cancel` in a thread of its own in place of cancelling one call.
  explicit CancelOnInterrupt(std::function<void()> cancel);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

 private:
  std::thread waiter_;
};

}  // namespace polysketch
