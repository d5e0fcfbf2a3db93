#include "tests/testing/certificates.h"

#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/check.h"

namespace polysketch::testing {
namespace {

// Before any other use of OpenSSL. OpenSSL frees the error queue of a thread when the thread ends,
// but after its own handler of exit it no longer does, and gRPC has threads that end later:
// LeakSanitizer would report them.
[[maybe_unused]] const int kOpensslWithoutExitHandler =
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

using File = std::unique_ptr<FILE, int (*)(FILE*)>;
using Certificate = std::unique_ptr<X509, void (*)(X509*)>;
using Key = std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)>;

File Open(const std::string& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode), std::fclose);
  PS_CHECK(file != nullptr) << path;
  return file;
}

Key ReadKey(const std::string& path) {
  return Key(PEM_read_PrivateKey(Open(path, "r").get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
}

Certificate ReadCertificate(const std::string& path) {
  return Certificate(PEM_read_X509(Open(path, "r").get(), nullptr, nullptr, nullptr), X509_free);
}

void AddExtension(int id, const char* value, X509* certificate) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
  PS_CHECK(extension != nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

Certificate NewCertificate(const std::string& name, EVP_PKEY* key,
                           const CertificateOptions& options) {
  Certificate certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  uint32_t serial = 0;
  PS_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) == 1);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -24 * 3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), options.valid.count());
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  AddExtension(NID_subject_alt_name, "IP:127.0.0.1", certificate.get());
  if (options.is_authority)
    AddExtension(NID_basic_constraints, "critical,CA:TRUE", certificate.get());
  return certificate;
}

}  // namespace

CertificateFolder::CertificateFolder() {
  std::string name = std::filesystem::temp_directory_path() / "polysketch-certificates-XXXXXX";
  PS_CHECK(mkdtemp(name.data()) != nullptr) << name;
  folder_ = name;
}

CertificateFolder::~CertificateFolder() { std::filesystem::remove_all(folder_); }

void CertificateFolder::Make(const std::string& name, const CertificateOptions& options) {
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Certificate certificate = NewCertificate(name, key.get(), options);
  if (options.authority.empty()) {
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
    PS_CHECK(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0);
  } else {
    const Certificate authority = ReadCertificate(File(options.authority + ".pem"));
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(authority.get()));
    PS_CHECK(X509_sign(certificate.get(), ReadKey(File(options.authority + ".key")).get(),
                       EVP_sha256()) > 0);
  }
  PS_CHECK(PEM_write_X509(Open(File(name + ".pem"), "w").get(), certificate.get()) == 1);
  PS_CHECK(PEM_write_PrivateKey(Open(File(name + ".key"), "w").get(), key.get(), nullptr, nullptr,
                                0, nullptr, nullptr) == 1);
}

void CertificateFolder::MakeUsual() {
  for (const std::string authority : {"ca", "other"}) {
    Make(authority, {.is_authority = true});
    for (const char* name : {"-server", "-client"})
      Make(authority + name, {.authority = authority});
  }
}

void CertificateFolder::Copy(const std::string& from, const std::string& to) {
  std::filesystem::copy_file(File(from), File(to),
                             std::filesystem::copy_options::overwrite_existing);
}

std::string CertificateFolder::Text(const std::string& name) const {
  std::ostringstream text;
  text << std::ifstream(File(name), std::ios::binary).rdbuf();
  return std::move(text).str();
}

}  // namespace polysketch::testing
