#include "server/credentials/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <ctime>
#include <utility>
#include <vector>

#include "base/logging.h"

namespace polysketch {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using X509Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

// The reason of the last error of OpenSSL, whose queue it empties.
std::string TakeReason() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error" : reason;
}

Bio BioOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Without this OpenSSL would ask the terminal for the password of an encrypted key.
int NoPassword(char*, int, int, void*) { return 0; }

Result<std::vector<X509Certificate>> ParseChain(const std::string& path, const std::string& pem) {
  const Bio bio = BioOf(pem);
  std::vector<X509Certificate> chain;
  while (X509Certificate certificate{PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)})
    chain.push_back(std::move(certificate));
  const unsigned long error = ERR_peek_last_error();
  const bool at_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  const std::string reason = TakeReason();
  if (chain.empty() || !at_end)
    return InvalidArgument(path, ": expected certificates in PEM form: ", reason);
  return chain;
}

Result<PrivateKey> ParseKey(const std::string& path, const std::string& pem) {
  const Bio bio = BioOf(pem);
  PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) {
    return InvalidArgument(
        path, ": expected a private key in PEM form, without a password: ", TakeReason());
  }
  return key;
}

Status AddClientAuthorities(const std::string& path, const std::string& pem, SSL_CTX* context) {
  PS_ASSIGN_OR_RETURN(const std::vector<X509Certificate> authorities, ParseChain(path, pem));
  for (const X509Certificate& authority : authorities) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get()) != 1 ||
        SSL_CTX_add_client_CA(context, authority.get()) != 1) {
      return InvalidArgument(path, ": ", TakeReason());
    }
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return Status();
}

Status SetPair(const CertificateFiles& paths, const std::vector<X509Certificate>& chain,
               const PrivateKey& key, SSL_CTX* context) {
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1)
    return InvalidArgument(paths.certificate, ": ", TakeReason());
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, chain[i].get()) != 1)
      return InvalidArgument(paths.certificate, ": ", TakeReason());
  }
  if (X509_check_private_key(chain.front().get(), key.get()) != 1 ||
      SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    return InvalidArgument(paths.key, ": expected the private key of ", paths.certificate, ": ",
                           TakeReason());
  }
  return Status();
}

// "2026-11-22T17:00:00Z".
std::string EndOf(const X509& certificate) {
  tm end{};
  char text[32] = "";
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) == 1)
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &end);
  return text;
}

void LogCertificate(const CertificateFiles& paths, const X509& certificate) {
  const bool expired = X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0;
  Log(expired ? LogLevel::kWarning : LogLevel::kInfo,
      expired ? "certificate_expired" : "certificate_loaded",
      {{"file", paths.certificate}, {"expires", EndOf(certificate)}});
}

// A client that offers other protocols only is refused.
int SelectHttp2(SSL*, const unsigned char** chosen, unsigned char* size,
                const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr unsigned char kHttp2[] = "\x02h2";
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, size, kHttp2, sizeof(kHttp2) - 1, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

// Without certificates.
Result<std::shared_ptr<SSL_CTX>> NewContext() {
  std::shared_ptr<SSL_CTX> owned(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  SSL_CTX* const context = owned.get();
  if (context == nullptr) return Internal("TLS: ", TakeReason());
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // A resumed session would keep a client certificate that is no longer accepted.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_num_tickets(context, 0);
  return owned;
}

}  // namespace

Result<std::shared_ptr<const Certificates>> ParseCertificates(const CertificateFiles& paths,
                                                              const CertificateFiles& pem) {
  ERR_clear_error();
  PS_ASSIGN_OR_RETURN(const std::vector<X509Certificate> chain,
                      ParseChain(paths.certificate, pem.certificate));
  PS_ASSIGN_OR_RETURN(const PrivateKey key, ParseKey(paths.key, pem.key));
  auto certificates = std::make_shared<Certificates>();
  for (auto* context : {&certificates->context, &certificates->http2_context}) {
    PS_ASSIGN_OR_RETURN(*context, NewContext());
    PS_RETURN_IF_ERROR(SetPair(paths, chain, key, context->get()));
    if (!paths.client_ca.empty())
      PS_RETURN_IF_ERROR(AddClientAuthorities(paths.client_ca, pem.client_ca, context->get()));
  }
  SSL_CTX* const http2 = certificates->http2_context.get();
  SSL_CTX_set_alpn_select_cb(http2, SelectHttp2, nullptr);
  // RFC 9113, section 9.2.2: of TLS 1.2, suites with forward secrecy and AEAD only.
  SSL_CTX_set_cipher_list(http2, "ECDHE+AESGCM:ECDHE+CHACHA20");
  LogCertificate(paths, *chain.front());
  return std::shared_ptr<const Certificates>(std::move(certificates));
}

Result<std::unique_ptr<CertificateStore>> CertificateStore::Open(const CertificateFiles& paths) {
  std::vector<std::string> names = {paths.certificate, paths.key};
  if (!paths.client_ca.empty()) names.push_back(paths.client_ca);
  PS_ASSIGN_OR_RETURN(std::vector<std::string> files, ReadFiles(names));
  std::unique_ptr<CertificateStore> store(new CertificateStore(paths));
  PS_RETURN_IF_ERROR(store->Load(files));
  store->watch_ = std::make_unique<FileWatch>(
      std::move(names), std::move(files),
      [store = store.get()](const Result<std::vector<std::string>>& changed) {
        if (const Status status = store->Load(changed); !status.ok())
          LogWarning("certificate_not_reloaded", {{"reason", status.message()}});
      });
  return store;
}

Status CertificateStore::Load(const Result<std::vector<std::string>>& files) {
  PS_RETURN_IF_ERROR(files.status());
  PS_ASSIGN_OR_RETURN(
      std::shared_ptr<const Certificates> certificates,
      ParseCertificates(paths_, {.certificate = files->at(0),
                                 .key = files->at(1),
                                 .client_ca = files->size() > 2 ? files->at(2) : ""}));
  const std::lock_guard lock(mutex_);
  current_ = std::move(certificates);
  return Status();
}

std::shared_ptr<const Certificates> CertificateStore::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

}  // namespace polysketch
