// A unary RPC of polysketch.v1 that an HTTP request starts.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "server/convert/wire.h"
#include "server/http/http_call.h"

namespace polysketch {

// Starts the RPC `method`. `done` receives its response or its status on the thread of the HTTP
// server, once. Called on that thread. `router` outlives the call.
template <typename Response>
void CallUnary(const Router& router, const std::shared_ptr<HttpExchange>& exchange,
               std::string_view method, const google::protobuf::Message& request,
               std::function<void(Result<Response>)> done) {
  auto response = std::make_shared<Result<Response>>(Internal("expected a response, found none"));
  HttpCall::Callbacks callbacks;
  callbacks.on_message = [response](const grpc::ByteBuffer& message) {
    Response parsed;
    const Status status = ParseMessage(message, &parsed);
    *response = status.ok() ? Result<Response>(std::move(parsed)) : Result<Response>(status);
  };
  callbacks.on_finish = [response, exchange, done = std::move(done)](const Status& status) {
    if (!status.ok()) *response = status;
    exchange->Post([response, done] { done(std::move(*response)); });
  };
  HttpCall::Start(router, exchange, method, request, std::move(callbacks));
}

}  // namespace polysketch
