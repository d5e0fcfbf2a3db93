// TLS for gRPC.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/credentials/certificates.h"

namespace polysketch {

// Credentials whose connections use the current certificates of `store`, which outlives the server.
std::shared_ptr<grpc::ServerCredentials> NewGrpcCredentials(const CertificateStore* store,
                                                            bool client_certificates);

}  // namespace polysketch
