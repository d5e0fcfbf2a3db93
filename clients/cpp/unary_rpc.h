// A call of one message in and one out, ended by Ctrl-C.
#pragma once

#include "clients/cpp/rpc.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch {

template <typename Request, typename Response>
grpc::Status CallUnary(const CallOptions& options,
                       grpc::Status (v1::PolySketch::Stub::*method)(grpc::ClientContext*,
                                                                    const Request&, Response*),
                       const Request& request, Response* response) {
  const auto stub = v1::PolySketch::NewStub(Connect(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);
  const grpc::Status status = ((*stub).*method)(&context, request, response);
  return WithRetryDelay(status, context);
}

}  // namespace polysketch
