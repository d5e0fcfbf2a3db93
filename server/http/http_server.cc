#include "server/http/http_server.h"

#include <civetweb.h>

#include <string>
#include <utility>

namespace polysketch {
namespace {

// The connection of a client that neither sends nor reads for this time is closed.
constexpr char kIdleMilliseconds[] = "10000";

// The page loads nothing from other origins, and no page may frame it.
constexpr char kCommonHeaders[] =
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'self'; frame-ancestors 'none'; base-uri 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Connection: close\r\n";

void WriteHead(mg_connection* connection, int status, std::string_view content_type,
               std::string_view more) {
  const std::string head =
      StrCat("HTTP/1.1 ", status, " ", mg_get_response_code_text(connection, status),
             "\r\nContent-Type: ", content_type, "\r\n", kCommonHeaders, more, "\r\n");
  mg_write(connection, head.data(), head.size());
}

}  // namespace

std::string_view HttpExchange::method() const {
  return mg_get_request_info(connection_)->request_method;
}

std::string_view HttpExchange::path() const {
  const char* path = mg_get_request_info(connection_)->local_uri;
  return path != nullptr ? path : "";
}

std::string_view HttpExchange::Header(const char* name) const {
  const char* value = mg_get_header(connection_, name);
  return value != nullptr ? value : "";
}

Result<std::string> HttpExchange::ReadBody(size_t max_bytes) {
  const long long length = mg_get_request_info(connection_)->content_length;
  if (length < 0) return InvalidArgument("the body: expected a Content-Length, found none");
  if (static_cast<unsigned long long>(length) > max_bytes) {
    return InvalidArgument("the body: expected at most ", max_bytes, " bytes, found ", length);
  }
  std::string body(static_cast<size_t>(length), '\0');
  for (size_t read = 0; read < body.size();) {
    const int count = mg_read(connection_, body.data() + read, body.size() - read);
    if (count <= 0) return Status(Code::kCancelled, "the client closed the connection");
    read += static_cast<size_t>(count);
  }
  return body;
}

void HttpExchange::Reply(int status, std::string_view content_type, std::string_view body) {
  WriteHead(connection_, status, content_type, StrCat("Content-Length: ", body.size(), "\r\n"));
  if (method() != "HEAD") mg_write(connection_, body.data(), body.size());
}

void HttpExchange::StartStream(std::string_view content_type) {
  WriteHead(connection_, 200, content_type, "Transfer-Encoding: chunked\r\n");
}

bool HttpExchange::Send(std::string_view piece) {
  if (piece.empty()) return true;  // an empty chunk would end the stream
  return mg_send_chunk(connection_, piece.data(), static_cast<unsigned>(piece.size())) > 0;
}

void HttpExchange::EndStream() { mg_send_chunk(connection_, "", 0); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address, int threads,
                                                      Handler handler) {
  const size_t colon = address.rfind(':');
  if (colon == 0 || colon == std::string::npos || address.find(',') != std::string::npos) {
    return InvalidArgument("expected HOST:PORT with a numeric host, found \"", address, "\"");
  }
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handler)));
  const std::string thread_count = std::to_string(threads);
  const char* options[] = {"listening_ports",
                           address.c_str(),
                           "num_threads",
                           thread_count.c_str(),
                           "request_timeout_ms",
                           kIdleMilliseconds,
                           "enable_keep_alive",
                           "no",
                           nullptr};
  const mg_callbacks callbacks{};
  mg_init_data init{};
  init.callbacks = &callbacks;
  init.user_data = server.get();
  init.configuration_options = options;
  char text[256] = "";
  mg_error_data error{};
  error.text = text;
  error.text_buffer_size = sizeof(text);
  server->context_ = mg_start2(&init, &error);
  if (server->context_ == nullptr) {
    return Unavailable("cannot listen on ", address, ": ", text);
  }
  mg_server_port port{};
  if (mg_get_server_ports(server->context_, 1, &port) != 1) {
    return Internal("cannot read the port of ", address);
  }
  server->address_ = StrCat(address.substr(0, colon), ":", port.port);
  mg_set_request_handler(
      server->context_, "**",
      [](mg_connection* connection, void* self) {
        HttpExchange exchange(connection);
        static_cast<HttpServer*>(self)->handler_(&exchange);
        return 1;  // the request was answered
      },
      server.get());
  return server;
}

HttpServer::~HttpServer() {
  if (context_ != nullptr) mg_stop(context_);
}

}  // namespace polysketch
