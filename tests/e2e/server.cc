#include "tests/e2e/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

constexpr size_t kPrintedLog = 16 << 10;

ProcessOptions CommandLine(const ServerOptions& options) {
  ProcessOptions command;
  command.arguments = {Binary("polysketch-server"),
                       "--model",
                       options.model.empty() ? DemoModel() : options.model,
                       "--listen",
                       "127.0.0.1:0",
                       "--metrics-listen",
                       "127.0.0.1:0",
                       "--http-listen="};
  command.arguments.insert(command.arguments.end(), options.flags.begin(), options.flags.end());
  command.environment = options.environment;
  return command;
}

// A connected socket.
int ConnectTo(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  PS_CHECK(inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr) == 1) << address;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  PS_CHECK(fd >= 0) << "socket: " << strerror(errno);
  PS_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0)
      << address << ": " << strerror(errno);
  return fd;
}

}  // namespace

Server::Server(const ServerOptions& options, Wait wait) : process_(CommandLine(options)) {
  if (wait == Wait::kNot) return;
  const bool answered = WaitUntil([this] {
    return !process_.Running() || process_.StandardOutput().find('\n') != std::string::npos;
  });
  PS_CHECK(answered && process_.Running()) << "no server: " << process_.StandardError();
  const auto ready = nlohmann::json::parse(process_.StandardOutput());
  address_ = ready.at("listen").get<std::string>();
  metrics_address_ = ready.at("metrics").get<std::string>();
  if (ready.at("http").is_string()) http_address_ = ready.at("http").get<std::string>();
}

Server::~Server() {
  if (!::testing::Test::HasFailure()) return;
  process_.Wait(std::chrono::seconds(2));  // a drain or a crash writes its last lines
  const std::string log = process_.StandardError();
  const size_t begin = log.size() - std::min(log.size(), kPrintedLog);
  std::printf("--- the end of the log of process %d:\n%s---\n", process_.pid(),
              log.c_str() + begin);
}

std::string Server::MetricsPage() const {
  std::string page = HttpGet(metrics_address_, "/metrics");
  PS_CHECK(!page.empty()) << "no /metrics at " << metrics_address_;
  return page;
}

double Server::Metric(std::string_view name) const {
  std::istringstream page(MetricsPage());
  double sum = 0;
  bool found = false;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with(name)) continue;
    const char next = line[name.size()];
    if (next != ' ' && next != '{') continue;
    sum += std::strtod(line.c_str() + line.rfind(' '), nullptr);
    found = true;
  }
  PS_CHECK(found) << "/metrics has no " << name;
  return sum;
}

int64_t Server::MemoryBytes(const std::string& name) const {
  const std::string status = ReadFile("/proc/" + std::to_string(process_.pid()) + "/status");
  const size_t line = status.find(name + ":");
  PS_CHECK(line != std::string::npos) << "the server is gone: " << process_.StandardError();
  return std::stoll(status.substr(line + name.size() + 1)) * 1024;
}

bool Server::Logs(std::string_view text) const {
  return WaitUntil([&] { return process_.StandardError().find(text) != std::string::npos; });
}

bool Server::BecomesIdle() const {
  return WaitUntil([this] {
    return Metric("polysketch_num_requests_running") == 0 &&
           Metric("polysketch_num_requests_waiting") == 0 &&
           Metric("polysketch_num_requests_idle") == 0 &&
           Metric("polysketch_num_requests_preempted") == 0;
  });
}

bool Server::ComesToRun(int count) const {
  return WaitUntil([this, count] { return Metric("polysketch_num_requests_running") == count; });
}

std::string DemoModel() { return testing::SourceDir() / "models" / "demo"; }

HttpStream::HttpStream(const std::string& address, const std::string& path, const std::string& body)
    : fd_(ConnectTo(address)) {
  const std::string request = StrCat(
      "POST ", path, " HTTP/1.1\r\nHost: ", address,
      "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
  for (size_t sent = 0; sent < request.size();) {
    const ssize_t count = send(fd_, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    PS_CHECK(count > 0) << "send: " << strerror(errno);
    sent += static_cast<size_t>(count);
  }
}

HttpStream::~HttpStream() { close(fd_); }

std::string HttpStream::ReadUntil(std::string_view text) const {
  std::string all;
  char byte = 0;
  while (all.find(text) == std::string::npos && read(fd_, &byte, 1) == 1) all += byte;
  return all;
}

HttpAnswer Http(const std::string& address, const std::string& path, const std::string& body,
                const HttpHeaders& headers, const std::string& method) {
  const int fd = ConnectTo(address);
  std::string head = StrCat(!method.empty() ? method
                            : body.empty()  ? "GET"
                                            : "POST",
                            " ", path, " HTTP/1.1\r\nConnection: close\r\n");
  const auto is_host = [](const auto& header) { return header.first == "Host"; };
  if (std::ranges::none_of(headers, is_host)) head += StrCat("Host: ", address, "\r\n");
  const bool typed = std::ranges::any_of(
      headers, [](const auto& header) { return header.first == "Content-Type"; });
  for (const auto& [name, value] : headers) head += StrCat(name, ": ", value, "\r\n");
  const std::string request = body.empty()
                                  ? StrCat(head, "\r\n")
                                  : StrCat(head, typed ? "" : "Content-Type: application/json\r\n",
                                           "Content-Length: ", body.size(), "\r\n\r\n", body);
  // A server that refuses a request from its head answers and closes before the whole body is
  // written.
  for (size_t sent = 0; sent < request.size();) {
    const ssize_t count = send(fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (count < 0) break;
    sent += count;
  }
  std::string answer;
  char bytes[16384];
  for (ssize_t count; (count = read(fd, bytes, sizeof(bytes))) > 0;) answer.append(bytes, count);
  close(fd);
  HttpAnswer result;
  result.status = std::atoi(answer.c_str() + std::min(answer.size(), answer.find(' ') + 1));
  const size_t end_of_head = std::min(answer.size(), answer.find("\r\n\r\n") + 4);
  result.head = answer.substr(0, end_of_head);
  result.body = answer.substr(end_of_head);
  if (answer.find("Transfer-Encoding: chunked") > answer.find("\r\n\r\n")) return result;
  std::string joined;
  for (size_t at = 0; at < result.body.size();) {
    const size_t size = std::stoul(result.body.substr(at), nullptr, 16);
    const size_t data = result.body.find("\r\n", at) + 2;
    joined += result.body.substr(data, size);
    at = data + size + 2;
    if (size == 0) break;
  }
  result.body = joined;
  return result;
}

std::string HttpGet(const std::string& address, const std::string& path) {
  HttpAnswer answer = Http(address, path);
  return answer.status == 200 ? std::move(answer.body) : "";
}

}  // namespace polysketch::e2e
