// One tenant or one peer takes all that it can get: others still get in.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

constexpr char kPrompt[] = "It was late in the afternoon";

CallOptions Of(const std::string& tenant) { return {.metadata = {{"x-tenant-id", tenant}}}; }

// More streams of one client than there are places, over three connections. Waits up to 10 s for
// a full queue.
class Flood {
 public:
  explicit Flood(const Server& server, const CallOptions& options = {}) {
    v1::CompleteRequest request = Greedy(kPrompt, 300);
    request.set_ignore_eos(true);
    for (int i = 0; i < 300; ++i) {
      if (i % 100 == 0) clients_.push_back(std::make_unique<Client>(server.address()));
      streams_.push_back(clients_.back()->StartComplete(request, options));
    }
    for (int i = 0; i < 2000 && server.Metric("polysketch_num_requests_waiting") < 250; ++i)
      std::this_thread::sleep_for(5ms);
  }
  void End() {
    for (auto& stream : streams_) stream->Cancel();
    streams_.clear();
  }

 private:
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<CompleteStream>> streams_;
};

TEST(Fairness, AFullQueueHasRoomForAnotherTenant) {
  const Server server;
  Flood flood(server, Of("flood"));
  ASSERT_GE(server.Metric("polysketch_num_requests_waiting"), 250);

  std::vector<std::future<Completion>> others;
  Client other(server.address());
  for (int i = 0; i < 51; ++i) {
    others.push_back(std::async(
        std::launch::async, [&other] { return other.Complete(Greedy(kPrompt, 2), Of("other")); }));
  }
  int refused = 0;
  for (auto& completion : others) {
    const Completion got = completion.get();
    refused += !got.status.ok();
    EXPECT_TRUE(got.status.ok()) << got.status.ToString();
  }
  EXPECT_EQ(refused, 0);
  EXPECT_GT(server.Metric("polysketch_num_requests_displaced_total"), 0);
  flood.End();
  EXPECT_TRUE(server.BecomesIdle());
}

// Sends a request over a connection from `source`, an address of the loopback interface. Returns
// the socket.
int Send(const std::string& source, const std::string& server_address, const std::string& body,
         const std::string& line = "POST /v1/completions") {
  const auto address = [](const std::string& host, int port) {
    sockaddr_in result{.sin_family = AF_INET,
                       .sin_port = htons(static_cast<uint16_t>(port)),
                       .sin_addr = {},
                       .sin_zero = {}};
    inet_pton(AF_INET, host.c_str(), &result.sin_addr);
    return result;
  };
  const sockaddr_in from = address(source, 0);
  const sockaddr_in to =
      address("127.0.0.1", std::stoi(server_address.substr(server_address.find(':') + 1)));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof(from)), 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  const std::string request = StrCat(
      line, " HTTP/1.1\r\nHost: ", server_address,
      "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: ", body.size(),
      "\r\n\r\n", body);
  EXPECT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  return fd;
}

// As Send. Returns the answer.
std::string RequestFrom(const std::string& source, const std::string& server_address,
                        const std::string& line, const std::string& body) {
  const int fd = Send(source, server_address, body, line);
  std::string answer;
  char part[4096];
  for (ssize_t n; (n = recv(fd, part, sizeof(part), 0)) > 0;)
    answer.append(part, static_cast<size_t>(n));
  close(fd);
  return answer;
}

// The answer to a completion.
std::string PostFrom(const std::string& source, const std::string& server_address) {
  return RequestFrom(source, server_address, "POST /v1/completions",
                     StrCat("{\"prompt\": \"", kPrompt, "\", \"max_tokens\": 2}"));
}

// Of a queue that 127.0.0.1 has filled.
void ExpectPlacesForAnotherAddress(const Server& server) {
  ASSERT_GE(server.Metric("polysketch_num_requests_waiting"), 250);
  std::vector<std::future<std::string>> others;
  for (int i = 0; i < 51; ++i) {
    others.push_back(std::async(std::launch::async, PostFrom, "127.0.0.2", server.http_address()));
  }
  for (auto& answer : others) {
    const std::string got = answer.get();
    EXPECT_TRUE(got.starts_with("HTTP/1.1 200")) << got;
  }
  EXPECT_GT(server.Metric("polysketch_num_requests_displaced_total"), 0) << "it was full";
}

// More streams of 127.0.0.1 than there are places, none with a tenant.
TEST(Fairness, AFullQueueHasRoomForAnotherAddress) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  Flood flood(server);
  ExpectPlacesForAnotherAddress(server);
  flood.End();
  EXPECT_TRUE(server.BecomesIdle());
}

// Connections of 127.0.0.1 whose completions run on.
class RunningHttp {
 public:
  RunningHttp(const std::string& server_address, int count) {
    const std::string body =
        StrCat("{\"prompt\": \"", kPrompt,
               "\", \"max_tokens\": 4000, \"stream\": true, \"ignore_eos\": true}");
    for (int i = 0; i < count; ++i) fds_.push_back(Send("127.0.0.1", server_address, body));
  }
  ~RunningHttp() {
    for (const int fd : fds_) close(fd);
  }

 private:
  std::vector<int> fds_;
};

// As many completions of one address as it may run over HTTP: others are answered on every path.
TEST(Fairness, RunningCompletionsOfAnAddressLeaveHttpToOthers) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0", "--max-queue", "1000"}});
  const std::string& address = server.http_address();
  const RunningHttp running(address, 256);
  for (int i = 0; i < 4000 && server.Metric("polysketch_num_requests_running") +
                                      server.Metric("polysketch_num_requests_waiting") <
                                  256;
       ++i)
    std::this_thread::sleep_for(5ms);
  for (const char* other : {"127.0.0.2", "127.0.0.3"}) {
    const std::string got = PostFrom(other, address);
    EXPECT_TRUE(got.starts_with("HTTP/1.1 200")) << got;
    for (const char* path : {"/v1/models", "/tokenizer_info", "/healthz", "/"}) {
      const std::string answer = RequestFrom(other, address, StrCat("GET ", path), "");
      EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << path << ": " << answer.substr(0, 300);
    }
  }
}

// An address that names many tenants fills no more of the queue than one that names none.
TEST(Fairness, AnAddressOfManyTenantsGainsNothing) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<CompleteStream>> streams;
  v1::CompleteRequest request = Greedy(kPrompt, 300);
  request.set_ignore_eos(true);
  for (int i = 0; i < 300; ++i) {
    if (i % 100 == 0) clients.push_back(std::make_unique<Client>(server.address()));
    streams.push_back(clients.back()->StartComplete(request, Of(StrCat("tenant-", i))));
  }
  for (int i = 0; i < 2000 && server.Metric("polysketch_num_requests_waiting") < 250; ++i)
    std::this_thread::sleep_for(5ms);
  ExpectPlacesForAnotherAddress(server);
  for (auto& stream : streams) stream->Cancel();
  streams.clear();
  EXPECT_TRUE(server.BecomesIdle());
}

// Tenants of an address take turns in the slots: their requests have all had one, and none gives
// way.
TEST(Fairness, ManyTenantsOfAnAddressThatHaveHadASlotLeaveThatOfAnother) {
  const Server server(
      {.flags = {"--http-listen", "127.0.0.1:0", "--max-sequences", "2", "--max-queue", "8"}});
  Client client(server.address());
  std::vector<std::unique_ptr<CompleteStream>> streams;
  v1::CompleteRequest request = Greedy(kPrompt, 100000);
  request.set_ignore_eos(true);
  for (int i = 0; i < 10; ++i)
    streams.push_back(client.StartComplete(request, Of(StrCat("tenant-", i))));
  for (int i = 0; i < 4000 && server.Metric("polysketch_num_requests_preempted") < 8; ++i)
    std::this_thread::sleep_for(5ms);
  ASSERT_GE(server.Metric("polysketch_num_requests_preempted"), 8);
  for (int i = 0; i < 3; ++i) {
    const std::string got = PostFrom("127.0.0.2", server.http_address());
    EXPECT_TRUE(got.starts_with("HTTP/1.1 200")) << got;
  }
  for (auto& stream : streams) stream->Cancel();
  streams.clear();
  EXPECT_TRUE(server.BecomesIdle());
}

// Makes a session of the tenant with a state. Returns whether the server had room.
bool MakeSession(Client* client, const std::string& tenant) {
  const auto call = client->StartRaw("/polysketch.v1.PolySketch/CreateSession", Of(tenant));
  call->Write("");
  call->WritesDone();
  std::string bytes;
  v1::Session session;
  if (!call->Read(&bytes) || !session.ParseFromString(bytes)) return false;
  v1::CompleteRequest request = Greedy(kPrompt, 1);
  request.set_session(session.session());
  const Status status = client->Complete(request, Of(tenant)).status;
  EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted) << status.ToString();
  return status.ok();
}

TEST(Fairness, SessionsOfATenantLeaveRoomForAnother) {
  const Server server({.flags = {"--session-memory", "2MiB"}});
  Client client(server.address());
  int first = 0;
  while (first < 200 && MakeSession(&client, "first")) ++first;
  EXPECT_GE(first, 8);
  EXPECT_LT(first, 200);
  int second = 0;
  while (second < 200 && MakeSession(&client, "second")) ++second;
  EXPECT_GE(second, first / 6) << "each tenant leaves a fifth of what it found";
  EXPECT_TRUE(MakeSession(&client, "third"));
}

// Connections that send a byte of a request and no more.
class SlowConnections {
 public:
  SlowConnections(const std::string& address, int count) {
    sockaddr_in server{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    server.sin_port =
        htons(static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
    inet_pton(AF_INET, "127.0.0.1", &server.sin_addr);
    for (int i = 0; i < count; ++i) {
      fds_.push_back(socket(AF_INET, SOCK_STREAM, 0));
      EXPECT_EQ(connect(fds_.back(), reinterpret_cast<const sockaddr*>(&server), sizeof(server)),
                0);
      (void)send(fds_.back(), "G", 1, MSG_NOSIGNAL);
    }
  }
  ~SlowConnections() {
    for (const int fd : fds_) close(fd);
  }

 private:
  std::vector<int> fds_;
};

TEST(Fairness, SlowConnectionsDoNotStopProbes) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const SlowConnections http(server.http_address(), 300);
  const SlowConnections metrics(server.metrics_address(), 300);
  for (int i = 0; i < 5; ++i) {
    for (const auto& [address, path] : {std::pair(server.http_address(), "/healthz"),
                                        {server.http_address(), "/readyz"},
                                        {server.metrics_address(), "/metrics"}}) {
      const auto start = SteadyClock::now();
      EXPECT_EQ(Http(address, path).status, 200) << path;
      EXPECT_LT(SteadyClock::now() - start, 1s) << path;
    }
  }
}

}  // namespace
}  // namespace polysketch::e2e
