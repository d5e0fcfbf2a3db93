#include "server/credentials/grpc_credentials.h"

#include <grpc/grpc_security.h>

#include <string>
#include <utility>

namespace polysketch {
namespace {

// gRPC's C++ interface has no credentials that ask for certificates at each handshake; its C
// interface has.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  ReloadingCredentials(const CertificateStore* store, bool client_certificates) : store_(store) {
    const auto request = client_certificates
                             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, Fetch, this));
  }
  ~ReloadingCredentials() override { grpc_server_credentials_release(credentials_); }
  ReloadingCredentials(const ReloadingCredentials&) = delete;
  ReloadingCredentials& operator=(const ReloadingCredentials&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // gRPC calls it at each handshake, one at a time.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    auto* const credentials = static_cast<ReloadingCredentials*>(self);
    std::shared_ptr<const Certificates> current = credentials->store_->current();
    if (current == credentials->given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    credentials->given_ = std::move(current);
    const CertificateFiles& pem = credentials->given_->pem;
    const grpc_ssl_pem_key_cert_pair pair = {pem.key.c_str(), pem.certificate.c_str()};
    // gRPC aborts without authorities, also where it does not ask for certificates of clients.
    const std::string& authorities = pem.client_ca.empty() ? pem.certificate : pem.client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const CertificateStore* const store_;
  std::shared_ptr<const Certificates> given_;
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> NewGrpcCredentials(const CertificateStore* store,
                                                            bool client_certificates) {
  return std::make_shared<ReloadingCredentials>(store, client_certificates);
}

}  // namespace polysketch
