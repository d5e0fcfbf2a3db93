// The one gRPC service of the process. A call is bytes in both directions, whatever the kind of its
// RPC: on the wire a unary call is a stream of one message. So one type of reactor serves all RPCs,
// and a message that does not parse is answered with the reason (server/convert/wire.h). gRPC's own
// parser would answer UNIMPLEMENTED without a message, and the call would not be counted.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "server/credentials/guard.h"
#include "server/net/counted_call.h"
#include "server/net/refusals.h"

namespace polysketch {

inline constexpr char kPolySketchService[] = "polysketch.v1.PolySketch";
inline constexpr char kHealthService[] = "grpc.health.v1.Health";

// The name of an RPC and of its service, in static storage.
struct RpcMethod {
  constexpr RpcMethod(const char* rpc, const char* of = kPolySketchService)
      : name(rpc), service(of) {}
  std::string_view name;
  std::string_view service;
};

class Router final : public grpc::CallbackGenericService {
 public:
  // Makes the reactor of one call, which counts the call (server/net/counted_call.h). Called by the
  // threads of the transports.
  using Handler = std::function<CallReactor*(CallContext*)>;

  // All outlive the calls. `guard`: null without API keys.
  Router(ConnectionTable* connections, Guard* guard, Refusals* refusals)
      : connections_(connections), guard_(guard), refusals_(refusals) {}

  // `service`: "package.Service". Call it before the server starts.
  void Add(const std::string& service, const std::string& method, Handler handler) {
    services_.insert(service);
    handlers_["/" + service + "/" + method] = std::move(handler);
  }
  // The services that have methods, in the order of their names.
  const std::set<std::string>& services() const { return services_; }
  // Makes the reactor of a call on any transport. Before anything else the guard admits the call,
  // unless its transport has done so or it is a health check. UNIMPLEMENTED for a method that was
  // not added.
  CallReactor* Start(CallContext* context) const;

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  // OK, or why the call must not run.
  Status Admit(CallContext* context) const;
  // The reactor of a call that does not run.
  CallReactor* Refuse(CallContext* context, const Status& status) const;

  ConnectionTable* const connections_;
  Guard* const guard_;
  Refusals* const refusals_;
  std::set<std::string> services_;
  std::unordered_map<std::string, Handler> handlers_;  // by path: "/package.Service/Method"
};

}  // namespace polysketch
