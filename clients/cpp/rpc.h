// The way to a server: what every command shares.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>

#include "clients/cpp/options.h"

namespace polysketch {

// What the process exits with.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,        // the server could not be reached, or it answered with an error
  kExitUsage = 2,         // the command line, or the input that it names, is wrong
  kExitInterrupted = 130  // by Ctrl-C, as shells have it
};

// Options of every command.
struct CallOptions {
  std::string server;      // HOST:PORT
  std::string request_id;  // empty: the server makes one
  std::string tenant;      // x-tenant-id; empty: none
  std::string session;     // x-session-id, by which a gateway may choose the replica; empty: none
  double timeout = 0;      // seconds; 0: none
  bool json = false;

  // server: the default, if the command line says nothing.
  void AddTo(Options* options);
};

// "127.0.0.1:50051", or what the environment's POLYSKETCH_SERVER says.
std::string DefaultServer();

// Never fails: whether there is a server shows with the first call.
std::shared_ptr<grpc::Channel> Connect(const CallOptions& options);
// Gives the context of a call its deadline and metadata.
void Prepare(const CallOptions& options, grpc::ClientContext* context);

// The status of a call with what else its answer says: when to come again (retry-after-ms).
grpc::Status WithRetryDelay(const grpc::Status& status, const grpc::ClientContext& context);

// Says on stderr what went wrong, in words for the person at the terminal, and returns the exit
// code.
ExitCode ReportRpcError(const grpc::Status& status, const CallOptions& options);
ExitCode ReportUsageError(const Status& status);

// While it lives, the first SIGINT or SIGTERM cancels the call, so that the server ends it at once;
// a second ends the process. One at a time.
class CancelOnInterrupt {
 public:
  explicit CancelOnInterrupt(grpc::ClientContext* context);
  ~CancelOnInterrupt();
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;

 private:
  grpc::ClientContext* const context_;
  std::thread waiter_;
};

}  // namespace polysketch
