// The server as one object: sockets, RPCs, metrics, HTTP. Start -> SetModel -> Drain.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <prometheus/metric_family.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/app/server_config.h"
#include "server/credentials/certificates.h"
#include "server/credentials/guard.h"
#include "server/net/health.h"
#include "server/net/listener.h"
#include "server/net/relay.h"
#include "server/net/request_memory.h"
#include "server/net/router.h"
#include "server/rpc/service_context.h"
#include "server/rpc/stuck_watch.h"
#include "server/tracing/span_exporter.h"

namespace polysketch {

class ScrapeMetrics;
class HttpServer;
struct AllowedHosts;
struct HttpRequest;
class HttpApi;
class StatusPage;

class Server {
 public:
  // Binds all addresses and serves at once: until SetModel health is NOT_SERVING and calls get
  // UNAVAILABLE. INVALID_ARGUMENT and UNAVAILABLE name the flag of an address that cannot be bound,
  // or of a file of credentials that is wrong.
  // `metrics` outlives the server.
  static Result<std::unique_ptr<Server>> Start(const ServerConfig& config, Metrics* metrics);
  // Cancels the calls that have not ended.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The bound addresses. metrics_address is empty without --metrics-listen, http_address without
  // --http-listen.
  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  std::string http_address() const;
  // The executor that writes to streams.
  const std::shared_ptr<Executor>& writers() const { return context_.writers; }
  // All executors.
  const ServiceContext& context() const { return context_; }
  // The budget of what clients make the server hold.
  const RequestMemory& memory() const { return memory_; }
  // Sets health to SERVING and serves calls. `model` outlives the server.
  void SetModel(const ServedModel* model);
  // Sets health to NOT_SERVING and refuses new calls with UNAVAILABLE, then waits for running
  // requests and their last messages, and sends the last spans. Returns whether all requests ended
  // by themselves.
  bool Drain(std::chrono::milliseconds timeout);

 private:
  Server(const ServerConfig& config, Metrics* metrics, std::unique_ptr<Guard> guard,
         std::unique_ptr<SpanExporter> spans);
  std::unique_ptr<ScrapeMetrics> NewScrape(const ServerConfig& config);
  std::vector<prometheus::MetricFamily> CollectMetrics() const;
  Status StartMetrics(const ServerConfig& config);
  Status StartHttp(const ServerConfig& config);
  Status StartGrpc(const ServerConfig& config);
  // Changes what context_.ready() returns, and tells health.
  void ChangeHealth(const std::function<void()>& change);
  void WatchForStuck(const ServedModel* model);
  // Calls SessionTable::Maintain after a while, and again until the server ends.
  void MaintainSessions();
  // Gives what requests have left in the allocator back to the system, from now on.
  void ReturnMemory();
  // Why a request of HTTP is refused when its header has arrived.
  Status CheckHttp(const AllowedHosts& hosts, const std::string& origins, HttpRequest* request);

  // In order of construction: calls use the members above grpc_.
  RequestMemory memory_;
  ConnectionTable connections_;
  Refusals refusals_;
  Metrics* const metrics_;
  const std::unique_ptr<Guard> guard_;              // null without --api-keys
  const std::unique_ptr<SpanExporter> spans_;       // null without a collector
  std::unique_ptr<CertificateStore> certificates_;  // null without --tls-cert
  TokenizerPool tokenizers_;
  const std::chrono::milliseconds stuck_after_;
  ServiceContext context_;
  HealthService health_;
  Router router_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Relay> relay_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<ScrapeMetrics> scrape_;
  std::unique_ptr<HttpServer> metrics_http_;  // its thread uses the member above
  std::unique_ptr<StatusPage> page_;
  std::unique_ptr<HttpApi> api_;
  std::unique_ptr<HttpServer> http_;  // its thread uses the two members above, and scrape_
  std::string address_;
  std::string metrics_address_;
  std::mutex health_mutex_;  // held to change what ready() returns, and to tell health
  std::unique_ptr<StuckWatch> stuck_watch_;  // from SetModel on; its thread uses the members above
};

}  // namespace polysketch
