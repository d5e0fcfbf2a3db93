// TLS and mTLS of the real server, over gRPC (by the command line client and the load generator)
// and over HTTP (by curl).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/certificates.h"

namespace polysketch::e2e {
namespace {

using Strings = std::vector<std::string>;

// Statuses of curl.
constexpr int kConnectError = 35;  // the handshake failed
constexpr int kReceiveError = 56;  // the connection failed after the client's part of the handshake
constexpr int kUntrustedError = 60;  // the certificate of the server is not accepted

constexpr char kPem[] = ".pem";
constexpr char kKey[] = ".key";

class Tls : public ::testing::Test {
 protected:
  Tls() {
    folder_.MakeUsual();
    Use("ca-server");
  }

  // Makes a pair of the folder the server's, without a moment in which files of two pairs are
  // there.
  void Use(const std::string& pair) {
    folder_.Copy(pair + kPem, "tls.pem");
    folder_.Copy(pair + kKey, "tls.key");
  }
  void Start(Strings more = {}) {
    more.insert(more.end(), {"--http-listen", "127.0.0.1:0", "--tls-cert", folder_.File("tls.pem"),
                             "--tls-key", folder_.File("tls.key")});
    server_ = std::make_unique<Server>(ServerOptions{.flags = more});
  }
  // `authority`: what the client trusts. `pair`: the client's; empty: none.
  ProcessResult Rpc(const std::string& authority, const std::string& pair = "") {
    Strings arguments = {Binary("polysketch"), "info", "--server", server_->address()};
    if (!authority.empty())
      arguments.insert(arguments.end(), {"--tls-ca", folder_.File(authority + kPem)});
    if (!pair.empty()) {
      arguments.insert(arguments.end(),
                       {"--cert", folder_.File(pair + kPem), "--key", folder_.File(pair + kKey)});
    }
    return RunProcess({.arguments = arguments});
  }
  ProcessResult Curl(const Strings& more) {
    Strings arguments = {"/usr/bin/curl", "--silent", "--show-error", "--include",
                         "--noproxy",     "*",        "--max-time",   "60"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProcess({.arguments = arguments});
  }
  ProcessResult Https(const std::string& authority, const std::string& pair = "",
                      const Strings& more = {}) {
    Strings arguments = {"--cacert", folder_.File(authority + kPem)};
    if (!pair.empty()) {
      arguments.insert(arguments.end(),
                       {"--cert", folder_.File(pair + kPem), "--key", folder_.File(pair + kKey)});
    }
    if (more.empty()) arguments.push_back("https://" + server_->http_address() + "/v1/models");
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Curl(arguments);
  }
  // Both protocols accept each other.
  void ExpectGood(const std::string& authority, const std::string& pair = "") {
    const ProcessResult rpc = Rpc(authority, pair);
    EXPECT_EQ(rpc.exit_status, 0) << rpc.standard_error;
    const ProcessResult https = Https(authority, pair);
    EXPECT_EQ(https.exit_status, 0) << https.standard_error;
    EXPECT_TRUE(https.standard_output.starts_with("HTTP/1.1 200 OK\r\n")) << https.standard_output;
  }
  bool Logs(const std::string& text) { return server_->Logs(text); }

  testing::CertificateFolder folder_;
  std::unique_ptr<Server> server_;
};

TEST_F(Tls, BothProtocols) {
  Start();
  ExpectGood("ca");
  const std::string url = "https://" + server_->http_address();
  const ProcessResult stream =
      Https("ca", "",
            {url + "/v1/completions", "--json",
             R"({"prompt": "It was", "max_tokens": 200, "stream": true})"});
  EXPECT_EQ(stream.exit_status, 0) << stream.standard_error;
  EXPECT_TRUE(stream.standard_output.ends_with("data: [DONE]\n\n")) << stream.standard_output;
  // Two requests on one connection, then one that the server closes.
  const ProcessResult twice = Https("ca", "", {url + "/v1/models", url + "/healthz"});
  EXPECT_EQ(twice.exit_status, 0) << twice.standard_error;
  EXPECT_TRUE(twice.standard_output.ends_with("ok\n")) << twice.standard_output;
  const ProcessResult closed = Https("ca", "", {"--http1.0", url + "/healthz"});
  EXPECT_EQ(closed.exit_status, 0) << closed.standard_error;
  // A large body is refused while it is sent.
  WriteFile(folder_.File("body"), std::string(8 << 20, 'x'));
  const ProcessResult large =
      Https("ca", "", {url + "/nowhere", "--json", "@" + folder_.File("body")});
  EXPECT_TRUE(large.standard_output.find("HTTP/1.1 404") != std::string::npos)
      << large.standard_output << large.standard_error;

  const ProcessResult load = RunProcess(
      {.arguments = {Binary("polysketch-loadgen"), "--server", server_->address(), "--requests",
                     "8", "--concurrency", "4", "--tls-ca", folder_.File("ca.pem"), "--quiet"}});
  EXPECT_EQ(load.exit_status, 0) << load.standard_output << load.standard_error;
  EXPECT_NE(server_->MetricsPage(), "");  // without TLS
}

TEST_F(Tls, ClientsThatDoNotTrustTheServer) {
  folder_.Make("alone");
  folder_.Make("expired", {.authority = "ca", .valid = -std::chrono::hours(1)});
  Start();
  const auto expect_refused = [&](const char* what) {
    const ProcessResult rpc = Rpc("ca");
    EXPECT_EQ(rpc.exit_status, 1) << what;
    EXPECT_TRUE(rpc.standard_error.starts_with("polysketch: TLS with 127.0.0.1:"))
        << what << rpc.standard_error;
    EXPECT_EQ(Https("ca").exit_status, kUntrustedError) << what;
  };
  EXPECT_EQ(Rpc("other").exit_status, 1);
  EXPECT_EQ(Https("other").exit_status, kUntrustedError);
  ExpectGood("ca");
  Use("alone");
  ASSERT_TRUE(WaitUntil([&] { return Https("ca").exit_status == kUntrustedError; }));
  expect_refused("self-signed");
  Use("expired");
  ASSERT_TRUE(Logs("WARNING certificate_expired "));
  expect_refused("expired");
  EXPECT_NE(Https("ca").standard_error.find("expired"), std::string::npos);
}

TEST_F(Tls, CertificatesOfClients) {
  folder_.Make("expired-client", {.authority = "ca", .valid = -std::chrono::hours(1)});
  folder_.Make("alone-client");
  folder_.Copy("ca.pem", "clients.pem");
  Start({"--tls-client-ca", folder_.File("clients.pem")});
  ExpectGood("ca", "ca-client");
  for (const char* pair : {"", "other-client", "expired-client", "alone-client"}) {
    EXPECT_EQ(Rpc("ca", pair).exit_status, 1) << pair;
    const int status = Https("ca", pair).exit_status;
    EXPECT_TRUE(status == kReceiveError || status == kConnectError) << pair << status;
  }
  ExpectGood("ca", "ca-client");
  // The authority of clients is reloaded too.
  folder_.Copy("other.pem", "clients.pem");
  ASSERT_TRUE(WaitUntil([&] { return Https("ca", "other-client").exit_status == 0; }));
  ExpectGood("ca", "other-client");
  EXPECT_EQ(Rpc("ca", "ca-client").exit_status, 1);
  EXPECT_NE(Https("ca", "ca-client").exit_status, 0);
}

TEST_F(Tls, NewPairsAreUsedAndBrokenOnesAreNot) {
  Start();
  ExpectGood("ca");
  Client client(server_->address());  // without TLS: no call succeeds
  EXPECT_EQ(client.Complete(Greedy("x", 1)).status.code(), Code::kUnavailable);

  folder_.Copy("other-server.key", "tls.key");
  ASSERT_TRUE(Logs("WARNING certificate_not_reloaded reason=\"" + folder_.File("tls.key") +
                   ": expected the private key of " + folder_.File("tls.pem") +
                   ": key values mismatch\""))
      << server_->process().StandardError();
  ExpectGood("ca");
  WriteFile(folder_.File("tls.pem"), folder_.Text("other-server.pem").substr(0, 300));
  ASSERT_TRUE(Logs("certificate_not_reloaded reason=\"" + folder_.File("tls.pem") +
                   ": expected certificates in PEM form: "));
  ExpectGood("ca");
  std::filesystem::remove(folder_.File("tls.pem"));
  ASSERT_TRUE(Logs("certificate_not_reloaded reason=\"" + folder_.File("tls.pem") +
                   ": No such file or directory\""));
  ExpectGood("ca");
  Use("other-server");
  ASSERT_TRUE(WaitUntil([&] { return Https("other").exit_status == 0; }));
  ExpectGood("other");
  EXPECT_EQ(Rpc("ca").exit_status, 1);
}

TEST_F(Tls, ClientsWithoutTls) {
  Start();
  const ProcessResult http = Curl({"http://" + server_->http_address() + "/healthz"});
  EXPECT_EQ(http.standard_output,
            "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nexpected TLS (https://), "
            "found HTTP without TLS\n");
  const ProcessResult rpc = Rpc("");
  EXPECT_EQ(rpc.exit_status, 1);
  EXPECT_NE(rpc.standard_error.find("does it expect TLS? (--tls-ca FILE"), std::string::npos)
      << rpc.standard_error;
  ExpectGood("ca");
}

int ConnectTo(const std::string& address) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
  return fd;
}

TEST_F(Tls, AHandshakeThatDoesNotEndDelaysNobody) {
  Start({"--handshake-timeout", "3s"});
  // The first bytes of a ClientHello of 512 bytes, and nothing.
  const std::string begin("\x16\x03\x01\x02\x00\x01", 6);
  std::vector<int> stuck;
  for (int i = 0; i < 20; ++i) {
    stuck.push_back(ConnectTo(i % 2 == 0 ? server_->address() : server_->http_address()));
    if (i % 4 < 2) {
      EXPECT_EQ(write(stuck.back(), begin.data(), begin.size()), 6);
    }
  }
  ExpectGood("ca");
  // The timeout ends them.
  for (const int fd : stuck) {
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char bytes[256];
    ssize_t count = 0;
    while ((count = read(fd, bytes, sizeof(bytes))) > 0) {
    }
    EXPECT_TRUE(count == 0 || errno == ECONNRESET) << errno;
    close(fd);
  }
  ExpectGood("ca");
}

TEST_F(Tls, AWrongPairAtStart) {
  folder_.Copy("other-server.key", "tls.key");
  Server server(
      {.flags = {"--tls-cert", folder_.File("tls.pem"), "--tls-key", folder_.File("tls.key")}},
      Server::Wait::kNot);
  EXPECT_EQ(server.process().Wait(), 2);
  EXPECT_NE(
      server.process().StandardError().find(
          "polysketch-server: --tls-cert, --tls-key, --tls-client-ca: " + folder_.File("tls.key") +
          ": expected the private key of " + folder_.File("tls.pem") + ": key values mismatch\n"),
      std::string::npos)
      << server.process().StandardError();
}

}  // namespace
}  // namespace polysketch::e2e
