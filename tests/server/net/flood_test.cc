// HTTP/2 rapid reset (CVE-2023-44487): a client that opens streams and resets them at once, as fast
// as it can, with and without TLS. The server's memory must stay bounded and another client must
// not notice.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include "tests/server/rpc/server_fixture.h"
#include "tests/testing/certificates.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

// Frames of HTTP/2 (RFC 9113), written by hand.
std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return frame.append(payload);
}
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kSettings = 4;
constexpr uint8_t kEndHeaders = 4;

// A literal header field without indexing (RFC 7541).
std::string Header(std::string_view name, std::string_view value) {
  std::string field(1, '\0');
  for (const std::string_view text : {name, value}) {
    field.push_back(static_cast<char>(text.size()));
    field.append(text);
  }
  return field;
}

std::string RequestHeaders(std::string_view method) {
  return "\x83\x86" + Header(":path", method) + Header(":authority", "x") +
         Header("content-type", "application/grpc") + Header("te", "trailers");
}

class RawClient {
 public:
  // `tls`: null for a connection without TLS.
  RawClient(const std::string& address, SSL_CTX* tls) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in peer{};
    peer.sin_family = AF_INET;
    peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0 &&
                 (tls == nullptr || Handshake(tls)) &&
                 Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, ""));
    // After the handshake of TLS the client reads nothing: bytes are dropped as they are.
    reader_ = std::thread([this] {
      char bytes[4096];
      while (recv(fd_, bytes, sizeof(bytes), 0) > 0) {
      }
    });
  }
  ~RawClient() {
    shutdown(fd_, SHUT_RDWR);
    reader_.join();
    close(fd_);
    SSL_free(tls_);
  }

  // Opens and resets streams until `most` of them, or until the server closes the connection.
  // Returns how many were sent.
  int64_t Flood(std::string_view method, int64_t most) {
    const std::string headers = RequestHeaders(method);
    const std::string reason("\0\0\0\x08", 4);  // CANCEL
    uint32_t stream = 1;
    int64_t sent = 0;
    while (connected_ && sent < most) {
      std::string bytes;
      for (int i = 0; i < 100; ++i, stream += 2) {
        bytes += Frame(kHeaders, kEndHeaders, stream, headers) + Frame(kReset, 0, stream, reason);
      }
      if (!Send(bytes)) break;
      sent += 100;
    }
    return sent;
  }

 private:
  bool Handshake(SSL_CTX* context) {
    tls_ = SSL_new(context);
    SSL_set_fd(tls_, fd_);
    return SSL_connect(tls_) == 1;
  }
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = tls_ == nullptr
                               ? send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL)
                               : SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()));
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  const int fd_;
  SSL* tls_ = nullptr;
  bool connected_ = false;
  std::thread reader_;
};

int64_t PeakMemoryMiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) / 1024;
  }
  return 0;
}

// 10 ms of each flood before it is seen, and what the allocator keeps; measured 70 to 130. Without
// the limits eight connections took 18 GB in a minute. Sanitizers keep freed memory for a while.
constexpr int64_t kMaxGrownMiB = testing::kSanitized ? 2048 : 512;

class FloodTest : public testing::ServerFixture {
 protected:
  void Configure(ServerConfig* config) override {
    config->max_concurrent_streams = 100;
    config->max_connections = 64;
    config->stall_deadline = std::chrono::seconds(60);
  }

  // `tls`: of the flood, null for none.
  void FloodEveryMethod(int rounds, SSL_CTX* tls);

  // A completion of `tokens` tokens on the fixture's connection, with its text as the result.
  std::string Stream(int tokens) {
    grpc::ClientContext context;
    const auto reader = stub_->Complete(&context, Request("p", tokens));
    std::string text;
    v1::CompleteResponse response;
    while (reader->Read(&response)) text += response.delta().text();
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return text;
  }

  // An honest client, connected before the flood, with one completion after another.
  class Neighbour {
   public:
    explicit Neighbour(FloodTest* test) : expected_(test->Stream(kTokens)) {
      EXPECT_EQ(expected_.size(), kTokens);
      thread_ = std::thread([this, test] {
        do {
          EXPECT_EQ(test->Stream(kTokens), expected_);
          ++done_;
        } while (!stop_);
      });
    }
    ~Neighbour() { Stop(); }
    // How many completions were the same as without a flood.
    int Stop() {
      stop_ = true;
      if (thread_.joinable()) thread_.join();
      return done_;
    }

   private:
    static constexpr int kTokens = 500;
    const std::string expected_;
    std::atomic<bool> stop_ = false;
    std::atomic<int> done_ = 0;
    std::thread thread_;
  };
};

void FloodTest::FloodEveryMethod(int rounds, SSL_CTX* tls) {
  Ready();
  Neighbour neighbour(this);
  const int64_t before = PeakMemoryMiB();
  // Without the limits, 1.51 held 12 KB for each of these: 12 GB.
  constexpr int64_t kStreams = 1000000;
  for (int round = 0; round < rounds; ++round) {
    for (const char* method :
         {"/polysketch.v1.PolySketch/Score", "/polysketch.v1.PolySketch/Complete",
          "/polysketch.v1.PolySketch/Tokenize", "/grpc.health.v1.Health/Watch",
          "/grpc.health.v1.Health/Check",
          "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/no.such/Method"}) {
      int64_t sent = 0;
      // The server refuses connections until it has freed the calls of the flood before.
      ASSERT_TRUE(Eventually([&] {
        RawClient client(server_->address(), tls);
        sent = client.Flood(method, kStreams);
        return sent > 0;
      })) << method
          << ": no connection";
      ASSERT_LT(sent, kStreams) << method << ": the connection was never closed";
    }
  }
  const int64_t grown = PeakMemoryMiB() - before;
  RecordProperty("grown_mib", static_cast<int>(grown));
  EXPECT_LT(grown, kMaxGrownMiB);
  EXPECT_GE(neighbour.Stop(), 1);
  EXPECT_EQ(engine_.cancelled(), 0);
}

TEST_F(FloodTest, RapidResetsOfAnyMethod) { FloodEveryMethod(testing::Count(4, 40), nullptr); }

class FloodTlsTest : public FloodTest {
 protected:
  FloodTlsTest() {
    folder_.Make("server");
    signal(SIGPIPE, SIG_IGN);  // of SSL_write
    static constexpr unsigned char kHttp2[] = "\x02h2";
    SSL_CTX_set_alpn_protos(context_.get(), kHttp2, 3);
  }
  void Configure(ServerConfig* config) override {
    FloodTest::Configure(config);
    config->tls_cert = folder_.File("server.pem");
    config->tls_key = folder_.File("server.key");
  }
  std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials() override {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = folder_.Text("server.pem");
    return grpc::SslCredentials(options);
  }

  testing::CertificateFolder folder_;
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_{SSL_CTX_new(TLS_client_method()),
                                                              SSL_CTX_free};
};

TEST_F(FloodTlsTest, RapidResetsOfAnyMethod) {
  FloodEveryMethod(testing::Count(1, 10), context_.get());
}

TEST_F(FloodTest, ManyConnectionsAtOnce) {
  Ready();
  Neighbour neighbour(this);
  const int64_t before = PeakMemoryMiB();
  std::vector<std::thread> floods;
  for (int i = 0; i < 8; ++i) {
    floods.emplace_back([&] {
      for (int round = 0; round < testing::Count(4, 40); ++round) {
        RawClient client(server_->address(), nullptr);
        client.Flood("/polysketch.v1.PolySketch/Score", 1000000);
      }
    });
  }
  for (std::thread& flood : floods) flood.join();
  const int64_t grown = PeakMemoryMiB() - before;
  RecordProperty("grown_mib", static_cast<int>(grown));
  EXPECT_LT(grown, kMaxGrownMiB);
  EXPECT_GE(neighbour.Stop(), 1);
  EXPECT_TRUE(Eventually([this] {  // a newcomer, as soon as the flood's calls are freed
    grpc::ClientContext context;
    v1::GetModelResponse response;
    return v1::PolySketch::NewStub(NewChannel())->GetModel(&context, {}, &response).ok();
  }));
}

}  // namespace
}  // namespace polysketch
