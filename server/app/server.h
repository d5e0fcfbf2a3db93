// The process as one object: sockets, services, metrics. main and the tests drive it: Start ->
// SetModel -> Drain.
#pragma once

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>

#include "base/status.h"
#include "server/app/server_config.h"
#include "server/net/health.h"
#include "server/net/listener.h"
#include "server/net/reflection.h"
#include "server/net/reset_guard.h"
#include "server/rpc/call.h"
#include "server/rpc/service.h"
#include "server/rpc/stall_watch.h"

namespace prometheus {
class Exposer;
}

namespace polysketch {

class ScrapeMetrics;
class StatusPage;

class Server {
 public:
  // Binds both addresses and answers at once: health NOT_SERVING and calls UNAVAILABLE until
  // SetModel. INVALID_ARGUMENT and UNAVAILABLE name the flag of an address that cannot be bound.
  // `metrics` outlives the server, and the engine, whose observer it is.
  static Result<std::unique_ptr<Server>> Start(const ServerConfig& config, Metrics* metrics);
  // Cancels what is left.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Real addresses; metrics_address is empty if there are no metrics.
  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  // Empty if there is no status page.
  std::string http_address() const;
  // What writes to streams.
  const std::shared_ptr<Executor>& writers() const { return context_.writers; }
  // Begins to serve. `model` outlives the server.
  void SetModel(const ServedModel* model);
  // Health NOT_SERVING and new calls UNAVAILABLE from now on; waits for running requests and for
  // their last messages. Returns whether all of them ended by themselves.
  bool Drain(std::chrono::milliseconds timeout);

 private:
  Server(const ServerConfig& config, Metrics* metrics);
  std::shared_ptr<ScrapeMetrics> NewScrape();
  Status StartMetrics(const std::string& address);
  Status StartPage(const std::string& address);
  Status StartGrpc(const ServerConfig& config);

  // In order of construction: calls use what stands above the gRPC server.
  ConnectionTable connections_;
  Metrics* const metrics_;
  Executor tokenizers_;
  StallWatch stalls_;
  ServiceContext context_;
  PolySketchService service_;
  HealthService health_;
  ReflectionService reflection_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<ResetGuard> guard_;
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<ScrapeMetrics> scrape_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::unique_ptr<StatusPage> page_;
  std::string address_;
  std::string metrics_address_;
};

}  // namespace polysketch
