// The paths of --http-listen that are for people and probes: /healthz, /readyz and /health, the
// status page, its data (/api/status) and its sessions (/api/sessions/...).
#pragma once

#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http_exchange.h"
#include "server/net/router.h"
#include "server/rpc/service_context.h"

namespace polysketch {

// Used on the thread of the HTTP server.
class StatusPage {
 public:
  using Collect = std::function<std::vector<prometheus::MetricFamily>()>;

  // `collect` returns the families of /metrics. `router` and `service` outlive the page.
  StatusPage(const Router* router, const ServiceContext* service, Collect collect)
      : router_(router), service_(service), collect_(std::move(collect)) {}

  // Whether `path` answers probes, which have no credentials.
  static bool IsHealthPath(std::string_view path);
  // Whether a request needs no key: that of a probe, or of a file of the page, which is the same
  // for all and asks for the key itself.
  static bool IsOpen(const HttpRequest& request);
  // Whether `path` is for browsers: a file of the page, its data or its sessions.
  static bool IsPagePath(std::string_view path);
  // Answers any request.
  void Handle(const std::shared_ptr<HttpExchange>& exchange);

 private:
  bool Ready() const { return service_->ready(); }
  std::string StatusJson() const;

  const Router* const router_;
  const ServiceContext* const service_;
  const Collect collect_;
};

}  // namespace polysketch
