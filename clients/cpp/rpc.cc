#include "clients/cpp/rpc.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

// What the waiter reads from its eventfd is the sum of what was written: any signal shows as a
// value above kStop.
constexpr uint64_t kStop = 1;
constexpr uint64_t kSignalled = 1 << 16;
int signal_fd = -1;  // of the CancelOnInterrupt that lives
std::atomic<bool> interrupted = false;

void OnSignal(int) {
  const int saved_errno = errno;
  [[maybe_unused]] const ssize_t written = write(signal_fd, &kSignalled, sizeof(kSignalled));
  errno = saved_errno;
}

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

void CallOptions::AddTo(Options* options) {
  options->Value("--server", "HOST:PORT", "default " + DefaultServer(), &server);
  options->Value("--request-id", "ID", "goes to the server's log as x-request-id", &request_id);
  options->Value("--tenant", "ID", "whose sessions (x-tenant-id); a gateway may set it", &tenant);
  options->Value("--timeout", "SECONDS", "give up after so long; default: never", &timeout);
  options->Switch("--json", "print one JSON object", &json);
}

std::string DefaultServer() {
  const char* server = std::getenv("POLYSKETCH_SERVER");
  return server != nullptr && *server != '\0' ? server : "127.0.0.1:50051";
}

std::shared_ptr<grpc::Channel> Connect(const CallOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);           // the server bounds what it sends
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // a proxy for web pages rarely passes HTTP/2
  arguments.SetUserAgentPrefix("polysketch-cli");
  return grpc::CreateCustomChannel(options.server, grpc::InsecureChannelCredentials(), arguments);
}

void Prepare(const CallOptions& options, grpc::ClientContext* context) {
  if (!options.request_id.empty()) context->AddMetadata("x-request-id", options.request_id);
  if (!options.tenant.empty()) context->AddMetadata("x-tenant-id", options.tenant);
  if (!options.session.empty()) context->AddMetadata("x-session-id", options.session);
  if (options.timeout > 0) {
    // A year is as good as never, and fits every clock.
    const std::chrono::duration<double> timeout(std::min(options.timeout, 365.0 * 24 * 3600));
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
  }
}

grpc::Status WithRetryDelay(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.ok()) return status;
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto delay = metadata.find("retry-after-ms");
  if (delay == metadata.end()) return status;
  const std::string_view milliseconds(delay->second.data(), delay->second.size());
  return {status.error_code(), StrCat(status.error_message(), "; again in ", milliseconds, " ms"),
          status.error_details()};
}

ExitCode ReportRpcError(const grpc::Status& status, const CallOptions& options) {
  if (interrupted && status.error_code() == grpc::StatusCode::CANCELLED) {
    std::cerr << "polysketch: interrupted\n";
    return kExitInterrupted;
  }
  const std::string& message = status.error_message();
  std::string text;
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
      (Contains(message, "http1") || Contains(message, "parsing HTTP/2"))) {
    text = options.server + " answers, but not with gRPC; is it the metrics port?";
  } else if (status.error_code() == grpc::StatusCode::UNAVAILABLE &&
             (Contains(message, "failed to connect") || Contains(message, "refused"))) {
    text = "nothing answers at " + options.server +
           "; is polysketch-server running there? (--server HOST:PORT says where it is; " +
           message + ")";
  } else if (Contains(message, "DNS resolution failed")) {
    text = "there is no host of the name in " + options.server + " (" + message + ")";
  } else if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    text = options.server +
           " speaks gRPC but does not offer this call; is it a polysketch-server? (" + message +
           ")";
  } else {
    text = std::string(CodeName(static_cast<Code>(status.error_code()))) + ": " + message;
  }
  std::cerr << "polysketch: " << text << "\n";
  return kExitFailed;
}

ExitCode ReportUsageError(const Status& status) {
  std::cerr << "polysketch: " << status.message() << "\n";
  return kExitUsage;
}

CancelOnInterrupt::CancelOnInterrupt(grpc::ClientContext* context) : context_(context) {
  signal_fd = eventfd(0, EFD_CLOEXEC);
  PS_CHECK(signal_fd >= 0) << "eventfd: " << strerror(errno);
  waiter_ = std::thread([this] {
    uint64_t value = 0;
    while (read(signal_fd, &value, sizeof(value)) < 0) PS_CHECK(errno == EINTR) << strerror(errno);
    if (value < kSignalled) return;
    interrupted = true;
    context_->TryCancel();
  });
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // the second one does what signals do
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

CancelOnInterrupt::~CancelOnInterrupt() {
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  PS_CHECK(write(signal_fd, &kStop, sizeof(kStop)) == sizeof(kStop)) << strerror(errno);
  waiter_.join();
  close(signal_fd);
}

}  // namespace polysketch
