#include "clients/cpp/rpc.h"

#include <semaphore.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/check.h"
#include "base/status.h"

namespace polysketch {
namespace {

sem_t wake;  // of the current CancelOnInterrupt
std::atomic<bool> interrupted = false;

void OnSignal(int) {
  const int saved_errno = errno;
  interrupted = true;
  sem_post(&wake);
  errno = saved_errno;
}

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

std::string DefaultServer() {
  const char* server = std::getenv("POLYSKETCH_SERVER");
  return server != nullptr && *server != '\0' ? server : "127.0.0.1:50051";
}

void AddServerOption(CLI::App* app, std::string* server) {
  AddOption(app, "--server", "HOST:PORT", "Server address. Environment: POLYSKETCH_SERVER.",
            server);
}

std::shared_ptr<grpc::Channel> Connect(const CallOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);           // the server limits its messages
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // HTTP proxies rarely forward HTTP/2
  arguments.SetUserAgentPrefix("polysketch-cli");
  return grpc::CreateCustomChannel(options.server, grpc::InsecureChannelCredentials(), arguments);
}

void Prepare(const CallOptions& options, grpc::ClientContext* context) {
  if (!options.request_id.empty()) context->AddMetadata("x-request-id", options.request_id);
  if (!options.tenant.empty()) context->AddMetadata("x-tenant-id", options.tenant);
  if (!options.session.empty()) context->AddMetadata("x-session-id", options.session);
  if (options.timeout > 0) {
    // Limited to a year: later times overflow the clock.
    const std::chrono::duration<double> timeout(std::min(options.timeout, 365.0 * 24 * 3600));
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
  }
}

ExitCode ReportRpcError(const grpc::Status& status, const CallOptions& options,
                        const grpc::ClientContext& context) {
  if (interrupted && status.error_code() == grpc::StatusCode::CANCELLED) {
    std::cerr << "polysketch: interrupted\n";
    return kExitInterrupted;
  }
  const std::string& message = status.error_message();
  const bool unavailable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  std::cerr << "polysketch: ";
  if (unavailable && (Contains(message, "http1") || Contains(message, "parsing HTTP/2"))) {
    std::cerr << options.server << " answers, but not with gRPC; is it the metrics port?\n";
  } else if (unavailable &&
             (Contains(message, "failed to connect") || Contains(message, "refused"))) {
    std::cerr << "nothing answers at " << options.server << "; is polysketch-server running there? "
              << "(--server HOST:PORT sets the address; " << message << ")\n";
  } else if (Contains(message, "DNS resolution failed")) {
    std::cerr << "the host name of " << options.server << " does not resolve (" << message << ")\n";
  } else if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    std::cerr << options.server << " speaks gRPC but does not offer this call; is it a "
              << "polysketch-server? (" << message << ")\n";
  } else {
    std::cerr << CodeName(static_cast<Code>(status.error_code())) << ": " << message;
    const auto& metadata = context.GetServerTrailingMetadata();
    const auto delay = metadata.find("retry-after-ms");
    if (delay != metadata.end()) std::cerr << "; again in " << delay->second << " ms";
    std::cerr << "\n";
  }
  return kExitFailed;
}

CancelOnInterrupt::CancelOnInterrupt(grpc::ClientContext* context) {
  PS_CHECK(sem_init(&wake, 0, 0) == 0) << "sem_init: " << strerror(errno);
  waiter_ = std::thread([context] {
    while (sem_wait(&wake) != 0) PS_CHECK(errno == EINTR) << "sem_wait: " << strerror(errno);
    if (interrupted) context->TryCancel();
  });
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // a second signal ends the process
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

CancelOnInterrupt::~CancelOnInterrupt() {
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  sem_post(&wake);
  waiter_.join();
  sem_destroy(&wake);
}

}  // namespace polysketch
