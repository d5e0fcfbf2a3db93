// The clients' credentials, as a server sees them: a gRPC server in this process, called by the
// real clients. tests/e2e/tls_test.cc and guard_test.cc run the real server.
#include <grpcpp/grpcpp.h>

#include <map>
#include <mutex>

#include "gtest/gtest.h"
#include "polysketch/v1/polysketch.grpc.pb.h"
#include "tests/e2e/process.h"
#include "tests/testing/certificates.h"

namespace polysketch::e2e {
namespace {

using Strings = std::vector<std::string>;

constexpr char kKey[] = "the-key";

// Refuses calls without the API key, and answers others with little.
class Service final : public v1::PolySketch::Service {
 public:
  grpc::Status GetModel(grpc::ServerContext* context, const v1::GetModelRequest*,
                        v1::GetModelResponse* response) override {
    response->set_vocab_size(100);
    response->set_name("guarded");
    return Check("GetModel", *context);
  }
  grpc::Status Complete(grpc::ServerContext* context, const v1::CompleteRequest* request,
                        grpc::ServerWriter<v1::CompleteResponse>* writer) override {
    v1::CompleteResponse response;
    for (int i = 0; i < request->max_tokens(); ++i) response.mutable_delta()->add_tokens(7);
    writer->Write(response);
    response.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
    writer->Write(response);
    return Check("Complete", *context);
  }
  grpc::Status CreateSession(grpc::ServerContext* context, const v1::CreateSessionRequest*,
                             v1::Session* response) override {
    response->set_session("s-1");
    return Check("CreateSession", *context);
  }
  grpc::Status DeleteSession(grpc::ServerContext* context, const v1::DeleteSessionRequest*,
                             v1::DeleteSessionResponse*) override {
    return Check("DeleteSession", *context);
  }

  // Calls with the key, by method.
  std::map<std::string, int> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  grpc::Status Check(const char* method, const grpc::ServerContext& context) {
    const auto [first, last] = context.client_metadata().equal_range("authorization");
    if (first == last || first->second != std::string("Bearer ") + kKey) {
      return {grpc::StatusCode::UNAUTHENTICATED, "no key"};
    }
    const std::lock_guard lock(mutex_);
    ++calls_[method];
    return {};
  }

  mutable std::mutex mutex_;
  std::map<std::string, int> calls_;
};

class GuardedServer {
 public:
  explicit GuardedServer(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  const Service& service() const { return service_; }

 private:
  int port_ = 0;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};

using polysketch::testing::CertificateFolder;

class Certificates : public CertificateFolder {
 public:
  Certificates() { MakeUsual(); }
};

ProcessResult RunClient(const GuardedServer& server, Strings arguments,
                        std::vector<std::pair<std::string, std::string>> environment = {}) {
  arguments.insert(arguments.begin(), Binary("polysketch"));
  arguments.insert(arguments.end(), {"--server", server.address()});
  return RunProcess({.arguments = std::move(arguments), .environment = std::move(environment)});
}

TEST(Credentials, TheKeyGoesWithEveryCall) {
  const GuardedServer server(grpc::InsecureServerCredentials());
  const ProcessResult refused = RunClient(server, {"info"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_EQ(refused.standard_error,
            "polysketch: UNAUTHENTICATED: no key (--api-key KEY or POLYSKETCH_API_KEY sets the "
            "key)\n");
  EXPECT_EQ(RunClient(server, {"info", "--api-key", "wrong"}).exit_status, 1);
  EXPECT_EQ(RunClient(server, {"info", "--api-key", kKey}).exit_status, 0);
  EXPECT_EQ(RunClient(server, {"info"}, {{"POLYSKETCH_API_KEY", kKey}}).exit_status, 0);
  const ProcessResult complete =
      RunClient(server, {"--api-key", kKey, "complete", "-p", "x", "--max-tokens", "2", "--ids"});
  EXPECT_EQ(complete.exit_status, 0) << complete.standard_error;
  EXPECT_EQ(complete.standard_output, "7 7 \n");
  EXPECT_EQ(server.service().calls(),
            (std::map<std::string, int>{{"Complete", 1}, {"GetModel", 2}}));

  const ProcessResult load =
      RunProcess({.arguments = {Binary("polysketch-loadgen"), "--server", server.address(),
                                "--requests", "3", "--sessions", "--quiet"},
                  .environment = {{"POLYSKETCH_API_KEY", kKey}}});
  EXPECT_EQ(load.exit_status, 0) << load.standard_output << load.standard_error;
  EXPECT_EQ(server.service().calls(),
            (std::map<std::string, int>{
                {"Complete", 4}, {"CreateSession", 3}, {"DeleteSession", 3}, {"GetModel", 3}}));
}

TEST(Credentials, Tls) {
  const Certificates certificates;
  grpc::SslServerCredentialsOptions tls;
  tls.pem_key_cert_pairs = {
      {certificates.Text("ca-server.key"), certificates.Text("ca-server.pem")}};
  const GuardedServer server(grpc::SslServerCredentials(tls));
  const std::string ca = certificates.File("ca.pem");
  const ProcessResult good = RunClient(server, {"info", "--tls-ca", ca, "--api-key", kKey});
  EXPECT_EQ(good.exit_status, 0) << good.standard_error;
  EXPECT_NE(good.standard_output.find("guarded"), std::string::npos);
  EXPECT_EQ(RunClient(server, {"info"}, {{"POLYSKETCH_TLS_CA", ca}, {"POLYSKETCH_API_KEY", kKey}})
                .exit_status,
            0);
  const ProcessResult load =
      RunProcess({.arguments = {Binary("polysketch-loadgen"), "--server", server.address(),
                                "--requests", "3", "--tls-ca", ca, "--api-key", kKey, "--quiet"}});
  EXPECT_EQ(load.exit_status, 0) << load.standard_output << load.standard_error;

  const ProcessResult stranger =
      RunClient(server, {"info", "--tls-ca", certificates.File("other.pem"), "--api-key", kKey});
  EXPECT_EQ(stranger.exit_status, 1);
  EXPECT_TRUE(stranger.standard_error.starts_with("polysketch: TLS with 127.0.0.1:"))
      << stranger.standard_error;
  const ProcessResult plain = RunClient(server, {"info", "--api-key", kKey});
  EXPECT_EQ(plain.exit_status, 1) << plain.standard_error;
  EXPECT_TRUE(plain.standard_error.find("TLS") != std::string::npos) << plain.standard_error;
}

TEST(Credentials, TheClientsCertificate) {
  const Certificates certificates;
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_key_cert_pairs = {
      {certificates.Text("ca-server.key"), certificates.Text("ca-server.pem")}};
  tls.pem_root_certs = certificates.Text("ca.pem");
  const GuardedServer server(grpc::SslServerCredentials(tls));
  const auto info = [&](const std::string& pair) {
    Strings arguments = {"info", "--api-key", kKey, "--tls-ca", certificates.File("ca.pem")};
    if (!pair.empty()) {
      arguments.insert(arguments.end(), {"--cert", certificates.File(pair + ".pem"), "--key",
                                         certificates.File(pair + ".key")});
    }
    return RunClient(server, arguments);
  };
  const ProcessResult good = info("ca-client");
  EXPECT_EQ(good.exit_status, 0) << good.standard_error;
  for (const char* pair : {"", "other-client"}) {
    const ProcessResult bad = info(pair);
    EXPECT_EQ(bad.exit_status, 1) << pair;
    EXPECT_NE(bad.standard_error, "") << pair;
  }
  EXPECT_EQ(server.service().calls(), (std::map<std::string, int>{{"GetModel", 1}}));
}

TEST(Credentials, TlsWithAServerThatHasNone) {
  const Certificates certificates;
  const GuardedServer server(grpc::InsecureServerCredentials());
  const ProcessResult result = RunClient(server, {"info", "--tls-ca", certificates.File("ca.pem")});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_TRUE(result.standard_error.starts_with("polysketch: TLS with 127.0.0.1:"))
      << result.standard_error;
}

}  // namespace
}  // namespace polysketch::e2e
