// The real polysketch-server as a child process.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/e2e/process.h"

namespace polysketch::e2e {

struct ServerOptions {
  std::string model = {};  // a model folder; empty: models/demo
  std::vector<std::string> flags =
      {};  // besides --model and the addresses; no HTTP server by default
  std::vector<std::pair<std::string, std::string>> environment = {};
};

class Server {
 public:
  // Started on free ports. Unless told otherwise, waits until it is ready; a server that does not
  // get there aborts the test with its log.
  enum class Wait { kReady, kNot };
  explicit Server(const ServerOptions& options = {}, Wait wait = Wait::kReady);
  ~Server();  // prints the end of its log when the test has failed
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Process& process() { return process_; }
  // "127.0.0.1:PORT", as the ready line has it.
  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  // Empty without --http-listen.
  const std::string& http_address() const { return http_address_; }

  // The /metrics page.
  std::string MetricsPage() const;
  // A sample by its name, with its labels if it has some: `polysketch_num_requests_running`. All
  // series of a name are added up when no labels are given. Aborts the test when there is none.
  double Metric(std::string_view name) const;
  // Resident memory of the process, and the most that it has held at once.
  int64_t MemoryBytes() const { return MemoryBytes("VmRSS"); }
  int64_t PeakMemoryBytes() const { return MemoryBytes("VmHWM"); }

  // Whether `text` comes into the log, which a thread of its own writes after the answer.
  bool Logs(std::string_view text) const;
  // Whether the server comes to rest: nothing runs, nothing waits.
  bool BecomesIdle() const;
  // Whether `count` requests come to run at once.
  bool ComesToRun(int count) const;

 private:
  // A field of /proc/PID/status.
  int64_t MemoryBytes(const std::string& name) const;

  Process process_;
  std::string address_;
  std::string metrics_address_;
  std::string http_address_;
};

// models/demo of the source tree.
std::string DemoModel();

struct HttpAnswer {
  int status = 0;
  std::string body;
  std::string head;  // the status line and the headers, each with its "\r\n"
};
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;
// A POST whose answer is read as it comes. Closes the connection at its end.
class HttpStream {
 public:
  HttpStream(const std::string& address, const std::string& path, const std::string& body);
  ~HttpStream();
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;
  // What comes, until `text` has, or the server closes the connection.
  std::string ReadUntil(std::string_view text) const;

 private:
  const int fd_;
};

// With a body: a POST of application/json. `method`: another one than GET or POST.
HttpAnswer Http(const std::string& address, const std::string& path, const std::string& body = "",
                const HttpHeaders& headers = {}, const std::string& method = "");
// GET http://ADDRESS/PATH: the body; empty when the answer is not 200.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace polysketch::e2e
