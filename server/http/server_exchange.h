// A request of an HttpServer, and its response.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "server/http/http_exchange.h"
#include "server/http/http_loop.h"

namespace polysketch {

class ServerExchange;

// Writes responses to a client.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  // Writes what the exchange has. Does nothing for an exchange of the past.
  virtual void Flush(ServerExchange* exchange) = 0;
};

class ServerExchange final : public HttpExchange,
                             public std::enable_shared_from_this<ServerExchange> {
 public:
  struct Form {
    bool head = false;  // the request is HEAD: the response has no body
    bool http_1_0 = false;
    bool keep_alive = false;
  };

  // `body_memory` holds the body. `loop` outlives the exchange.
  ServerExchange(HttpLoop* loop, std::shared_ptr<ResponseWriter> writer, HttpRequest request,
                 HeldMemory body_memory, Form form);

  const HttpRequest& request() const override { return request_; }
  void Reply(int status, std::string_view content_type, std::string body,
             HttpHeaders headers) override;
  void StartStream(std::string_view content_type, std::string comment) override;
  void Send(std::string piece) override;
  void EndStream() override;
  size_t unsent_bytes() const override { return unsent_.load(); }
  void SetCallbacks(std::function<void()> on_sent, std::function<void()> on_gone) override;
  void Post(std::function<void()> work) override;
  void OnRefused(const Status& status) override;
  void OnCallFailed() override { call_failed_.store(true); }
  HeldMemory NewMemory(RequestPhase phase) const override {
    return {loop_->guards.memory, phase, request_.principal};
  }

  // --- for the writer, on the thread of the loop ---
  // Moves what is to be written to *out. Returns whether that is the end of the response.
  bool Take(std::string* out);
  void OnSent(size_t bytes);
  // Sends bytes that mean nothing, unless others are on their way: the socket of a client that has
  // left refuses them.
  void Probe();
  void OnGone();
  // The response is complete, or its client has left.
  void Release();
  bool keep_alive() const { return keep_alive_; }

 private:
  // The status line and the headers.
  std::string Head(int status, std::string_view content_type, const HttpHeaders& headers) const;
  // Adds bytes of the response. `comment`: of the stream that begins with them.
  void Append(std::string_view bytes, bool end, std::string comment = "");
  // Append under mutex_. Returns whether PostFlush must follow.
  bool Add(std::string_view bytes, bool end);
  void PostFlush();
  std::string Chunk(std::string_view piece) const;
  // Sends the comment of the stream when it has been silent, until the end. On the thread of the
  // loop.
  void WatchForSilence();

  HeldMemory body_memory_;
  HttpLoop* const loop_;
  const RunningRequest running_;
  // The loop runs until the exchange has ended.
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  const HttpRequest request_;
  HeldMemory reply_memory_;  // of the request's client
  const bool head_;
  const bool http_1_0_;
  const bool keep_alive_;
  std::atomic<size_t> unsent_{0};
  std::atomic<bool> call_failed_{false};
  std::mutex mutex_;
  // Guarded by mutex_:
  std::string pending_;
  std::string comment_;  // empty: no stream has begun
  bool ended_ = false;
  bool posted_ = false;  // Flush will run
  // Used on the thread of the loop:
  std::shared_ptr<ResponseWriter> writer_;  // null at the end
  std::function<void()> on_sent_, on_gone_;
  bool gone_ = false;
  boost::asio::steady_timer silence_timer_;
  std::chrono::steady_clock::time_point last_sent_;
};

}  // namespace polysketch
