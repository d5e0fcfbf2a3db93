// Calls with one message in each direction, cancelled by an interrupt.
#pragma once

#include "clients/cpp/json.h"
#include "clients/cpp/rpc.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch {

template <typename Request, typename Response>
using UnaryMethod = grpc::Status (v1::PolySketch::Stub::*)(grpc::ClientContext*, const Request&,
                                                           Response*);

// Calls `method` and passes the response to `on_response`. Reports an error on stderr. Returns the
// exit status.
template <typename Request, typename Response, typename OnResponse>
int CallUnary(const CallOptions& options, UnaryMethod<Request, Response> method,
              const Request& request, const OnResponse& on_response) {
  const auto stub = v1::PolySketch::NewStub(Connect(options.connection));
  grpc::ClientContext context;
  Prepare(options, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);
  Response response;
  const grpc::Status status = ((*stub).*method)(&context, request, &response);
  if (!status.ok()) return ReportRpcError(status, options, context);
  on_response(response);
  return kExitOk;
}

// Calls `method` and prints the response, as JSON with --json, else by `print`. Errors and exit
// status as CallUnary.
template <typename Request, typename Response, typename Print>
int PrintUnary(const CallOptions& options, UnaryMethod<Request, Response> method,
               const Request& request, const Print& print) {
  return CallUnary(options, method, request, [&](const Response& response) {
    if (options.json) return PrintJson(MessageToJson(response));
    print(response);
  });
}

}  // namespace polysketch
