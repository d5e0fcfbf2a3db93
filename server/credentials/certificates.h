// The certificate, the private key and the client authorities of --tls-cert, --tls-key and
// --tls-client-ca.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "server/credentials/file_watch.h"

typedef struct ssl_ctx_st SSL_CTX;

namespace polysketch {

struct CertificateFiles {
  std::string certificate;  // PEM: the certificate of the server, then those of its chain
  std::string key;          // PEM: its private key
  std::string client_ca;    // PEM: authorities of clients; empty: clients need no certificate
};

// Checked and immutable: contexts for servers of TLS 1.2 and 1.3.
struct Certificates {
  std::shared_ptr<SSL_CTX> context;        // for HTTP/1.1
  std::shared_ptr<SSL_CTX> http2_context;  // for gRPC: selects "h2" (ALPN)
};

// INVALID_ARGUMENT names the file of `paths` that is wrong, and the reason. `pem`: contents.
Result<std::shared_ptr<const Certificates>> ParseCertificates(const CertificateFiles& paths,
                                                              const CertificateFiles& pem);

// Thread-safe.
class CertificateStore {
 public:
  // Reads the files, and again when they change; wrong new files are reported in the log and the
  // certificates stay. Errors are those of ReadFiles and ParseCertificates.
  static Result<std::unique_ptr<CertificateStore>> Open(const CertificateFiles& paths);

  // The certificates for the next connection.
  std::shared_ptr<const Certificates> current() const;

 private:
  explicit CertificateStore(CertificateFiles paths) : paths_(std::move(paths)) {}
  Status Load(const Result<std::vector<std::string>>& files);

  const CertificateFiles paths_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Certificates> current_;  // guarded by mutex_
  std::unique_ptr<FileWatch> watch_;             // last: its thread uses the members above
};

}  // namespace polysketch
