#include "clients/cpp/rpc.h"

#include <google/rpc/errors.pb.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "clients/cpp/first_signal.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

sem_t wake;  // of the current CancelOnInterrupt
std::atomic<bool> interrupted = false;

void OnSignal(int number) {
  const int saved_errno = errno;
  if (IsFirstSignal(number)) {
    interrupted = true;
    sem_post(&wake);
  }
  errno = saved_errno;
}

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

std::shared_ptr<grpc::ChannelCredentials> Credentials(const ConnectionOptions& options) {
  if (!options.tls()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = options.tls_ca_pem;
  tls.pem_cert_chain = options.cert_pem;
  tls.pem_private_key = options.key_pem;
  return grpc::SslCredentials(tls);
}

}  // namespace

void SilenceGrpc() { setenv("GRPC_VERBOSITY", "NONE", /*replace=*/0); }

std::shared_ptr<grpc::Channel> Connect(const ConnectionOptions& options, const std::string& name,
                                       grpc::ChannelArguments arguments) {
  arguments.SetMaxReceiveMessageSize(-1);           // the server limits its messages
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // HTTP proxies rarely forward HTTP/2
  arguments.SetUserAgentPrefix(name);
  return grpc::CreateCustomChannel(options.server, Credentials(options), arguments);
}

void Prepare(const CallOptions& options, grpc::ClientContext* context) {
  const std::string& key = options.connection.api_key;
  if (!key.empty()) context->AddMetadata("authorization", "Bearer " + key);
  if (!options.request_id.empty()) context->AddMetadata("x-request-id", options.request_id);
  if (!options.tenant.empty()) context->AddMetadata("x-tenant-id", options.tenant);
  // Another session does not exist, which the server says.
  if (!options.session.empty() && CheckMetadata(options.session).ok())
    context->AddMetadata("x-session-id", options.session);
  if (options.timeout > 0) {
    // Limited to a year: later times overflow the clock.
    const std::chrono::duration<double> timeout(std::min(options.timeout, 365.0 * 24 * 3600));
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout));
  }
}

std::string ErrorText(const grpc::Status& status, const ConnectionOptions& connection) {
  const std::string& message = status.error_message();
  const std::string& server = connection.server;
  const bool unavailable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  const bool tls_failed = Contains(message, "handshake") || Contains(message, "Handshake") ||
                          Contains(message, "peer certificate");
  if (unavailable && tls_failed) {
    return StrCat("TLS with ", server,
                  " failed; does the server offer TLS with a certificate that ",
                  "--tls-ca signs? (", message, ")");
  }
  if (unavailable && (Contains(message, "http1") || Contains(message, "parsing HTTP/2"))) {
    return StrCat(server, " answers, but not with gRPC; is it the metrics port?");
  }
  if (unavailable && !connection.tls() && Contains(message, "Socket closed")) {
    return StrCat(server, " closes the connection; does it expect TLS? (--tls-ca FILE; ", message,
                  ")");
  }
  if (unavailable && (Contains(message, "failed to connect") || Contains(message, "refused"))) {
    return StrCat("nothing answers at ", server, "; is polysketch-server running there? ",
                  "(--server HOST:PORT sets the address; ", message, ")");
  }
  if (Contains(message, "DNS resolution failed")) {
    return StrCat("the host name of ", server, " does not resolve (", message, ")");
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return StrCat(server, " speaks gRPC but does not offer this call; is it a ",
                  "polysketch-server? (", message, ")");
  }
  const std::string text = StrCat(CodeName(static_cast<Code>(status.error_code())), ": ", message);
  if (status.error_code() != grpc::StatusCode::UNAUTHENTICATED) return text;
  return text + " (--api-key KEY or POLYSKETCH_API_KEY sets the key)";
}

std::string ErrorReason(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details())) return "";
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

std::optional<int64_t> RetryDelay(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto delay = metadata.find("retry-after-ms");
  int64_t milliseconds = 0;
  if (delay == metadata.end()) return std::nullopt;
  const std::string text(delay->second.data(), delay->second.size());
  if (!ParseValue(text, &milliseconds).ok()) return std::nullopt;
  return milliseconds;
}

ExitCode ReportRpcError(const grpc::Status& status, const CallOptions& options,
                        const grpc::ClientContext& context) {
  if (interrupted && status.error_code() == grpc::StatusCode::CANCELLED) {
    std::cerr << "polysketch: interrupted\n";
    return kExitInterrupted;
  }
  std::string text = ErrorText(status, options.connection);
  if (const auto delay = RetryDelay(context)) text += StrCat("; again in ", *delay, " ms");
  std::cerr << "polysketch: " << TerminalText(STDERR_FILENO, text) << "\n";
  return kExitFailed;
}

bool Interrupted() { return interrupted; }

CancelOnInterrupt::CancelOnInterrupt(grpc::ClientContext* context)
    : CancelOnInterrupt([context] { context->TryCancel(); }) {}

CancelOnInterrupt::CancelOnInterrupt(std::function<void()> cancel) {
  PS_CHECK(sem_init(&wake, 0, 0) == 0) << "sem_init: " << strerror(errno);
  waiter_ = std::thread([cancel = std::move(cancel)] {
    while (sem_wait(&wake) != 0) PS_CHECK(errno == EINTR) << "sem_wait: " << strerror(errno);
    if (interrupted) cancel();
  });
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
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
