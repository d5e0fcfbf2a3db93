// The connection to a server, and what every call has in common.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>

#include "clients/cpp/options.h"

namespace polysketch {

// Options of every call.
struct CallOptions {
  std::string server;      // HOST:PORT
  std::string request_id;  // x-request-id; empty: the server makes one
  std::string tenant;      // x-tenant-id; empty: none
  std::string session;     // x-session-id, by which a gateway may route the call; empty: none
  double timeout = 0;      // seconds; 0: no limit
  bool json = false;       // prints the result as one JSON object
};

// "127.0.0.1:50051", or the value of POLYSKETCH_SERVER in the environment.
std::string DefaultServer();
// Adds --server to `app`. *server holds the default.
void AddServerOption(CLI::App* app, std::string* server);

// The channel connects with its first call, which reports a server that cannot be reached.
std::shared_ptr<grpc::Channel> Connect(const CallOptions& options);
// Sets the deadline and the metadata of a call.
void Prepare(const CallOptions& options, grpc::ClientContext* context);

// Prints the error of a finished call on stderr, with advice where the cause is known, and returns
// the exit status. The retry delay of the server (retry-after-ms) is part of the message.
ExitCode ReportRpcError(const grpc::Status& status, const CallOptions& options,
                        const grpc::ClientContext& context);

// The first SIGINT or SIGTERM in the object's life cancels the call, so that the server ends it at
// once; a second one ends the process. One object at a time.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(grpc::ClientContext* context);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

 private:
  std::thread waiter_;
};

}  // namespace polysketch
