#include "server/credentials/certificates.h"

#include <gtest/gtest.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <fstream>
#include <thread>

#include "base/logging.h"
#include "tests/testing/certificates.h"

namespace polysketch {
namespace {

using testing::CertificateFolder;

class CertificatesTest : public ::testing::Test {
 protected:
  CertificatesTest() {
    SetLogLevel(LogLevel::kError);
    folder_.MakeUsual();
    Use("ca-server");
  }
  void Use(const std::string& pair) {
    folder_.Copy(pair + ".pem", "tls.pem");
    folder_.Copy(pair + ".key", "tls.key");
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.File(name)) << text;
  }
  CertificateFiles Paths(bool clients = false) const {
    return {.certificate = folder_.File("tls.pem"),
            .key = folder_.File("tls.key"),
            .client_ca = clients ? folder_.File("clients.pem") : ""};
  }
  std::string OpenError(bool clients = false) {
    const auto store = CertificateStore::Open(Paths(clients));
    if (store.ok()) return "no error";
    EXPECT_EQ(store.status().code(), Code::kInvalidArgument);
    return store.status().message();
  }
  static bool Starts(const std::string& text, const std::string& start) {
    return text.starts_with(start);
  }

  CertificateFolder folder_;
};

TEST_F(CertificatesTest, WrongFilesAreNamed) {
  const CertificateFiles paths = Paths(true);
  EXPECT_EQ(OpenError(), "no error");
  EXPECT_EQ(OpenError(true), paths.client_ca + ": No such file or directory");
  Write("clients.pem", "");
  EXPECT_TRUE(Starts(OpenError(true), paths.client_ca + ": expected certificates in PEM form: "))
      << OpenError(true);
  folder_.Copy("ca.pem", "clients.pem");
  EXPECT_EQ(OpenError(true), "no error");

  folder_.Copy("other-server.key", "tls.key");
  EXPECT_EQ(OpenError(), StrCat(paths.key, ": expected the private key of ", paths.certificate,
                                ": key values mismatch"));
  Write("tls.key", folder_.Text("ca-server.key").substr(0, 100));
  EXPECT_TRUE(Starts(OpenError(), paths.key + ": expected a private key in PEM form, without a "
                                              "password: "))
      << OpenError();
  folder_.Copy("ca-server.key", "tls.key");
  const std::string pem = folder_.Text("ca-server.pem");
  for (const std::string& text : {std::string(), std::string("x"), pem.substr(0, pem.size() / 2),
                                  pem + pem.substr(0, pem.size() / 2), folder_.Text("ca.key")}) {
    Write("tls.pem", text);
    EXPECT_TRUE(Starts(OpenError(), paths.certificate + ": expected certificates in PEM form: "))
        << text << OpenError();
  }
  Write("tls.pem", pem + folder_.Text("ca.pem"));  // with its chain
  EXPECT_EQ(OpenError(), "no error");
}

TEST_F(CertificatesTest, AnEncryptedKeyIsRefusedWithoutAQuestion) {
  Write("tls.key",
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
        "DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\nAAAA\n"
        "-----END EC PRIVATE KEY-----\n");
  EXPECT_TRUE(Starts(OpenError(), Paths().key + ": expected a private key in PEM form, without a "
                                                "password: "))
      << OpenError();
}

// The certificate that servers of a context present.
std::string PemOf(SSL_CTX* context) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  PEM_write_bio_X509(bio.get(), SSL_CTX_get0_certificate(context));
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

TEST_F(CertificatesTest, AGoodPairReplacesTheOldOneAndABrokenOneDoesNot) {
  const auto store = CertificateStore::Open(Paths());
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto first = (*store)->current();
  EXPECT_EQ(PemOf(first->context.get()), folder_.Text("ca-server.pem"));
  EXPECT_EQ(PemOf(first->http2_context.get()), folder_.Text("ca-server.pem"));
  folder_.Copy("other-server.pem", "tls.pem");  // without its key
  std::this_thread::sleep_for(std::chrono::seconds(3));
  EXPECT_EQ((*store)->current(), first);
  std::filesystem::remove(folder_.File("tls.key"));
  std::this_thread::sleep_for(std::chrono::seconds(3));
  EXPECT_EQ((*store)->current(), first);
  Use("other-server");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while ((*store)->current() == first && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto second = (*store)->current();
  EXPECT_EQ(PemOf(second->context.get()), folder_.Text("other-server.pem"));
  EXPECT_EQ(PemOf(second->http2_context.get()), folder_.Text("other-server.pem"));
}

}  // namespace
}  // namespace polysketch
