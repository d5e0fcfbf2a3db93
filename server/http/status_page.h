// The server at --http-listen: /healthz and /readyz for probes, the status page, its data
// (/api/status) and its playground (/api/complete).
#pragma once

#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/http/http_server.h"
#include "server/http/playground.h"
#include "server/rpc/call.h"

namespace polysketch {

class StatusPage {
 public:
  using Collect = std::function<std::vector<prometheus::MetricFamily>()>;

  // `collect` returns the families of /metrics. Errors as HttpServer::Start.
  static Result<std::unique_ptr<StatusPage>> Start(const std::string& address,
                                                   ServiceContext* service, Collect collect);
  // Ends the completions of the playground.
  ~StatusPage();

  const std::string& address() const { return http_->address(); }

 private:
  StatusPage(ServiceContext* service, Collect collect)
      : service_(service), collect_(std::move(collect)), playground_(service) {}

  void Handle(HttpExchange* exchange);
  bool Ready() const { return service_->model.load() != nullptr && !service_->draining.load(); }
  std::string StatusJson() const;

  ServiceContext* const service_;
  const Collect collect_;
  Playground playground_;
  std::unique_ptr<HttpServer> http_;  // last: its threads use the members above
};

}  // namespace polysketch
