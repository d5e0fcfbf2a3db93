// Certificates that tests make, in a folder of their own.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace polysketch::testing {

struct CertificateOptions {
  std::string authority = {};  // name of an authority made before; empty: signed by its own key
  bool is_authority = false;
  std::chrono::seconds valid = std::chrono::hours(1);  // from yesterday; negative: it has expired
};

class CertificateFolder {
 public:
  CertificateFolder();
  ~CertificateFolder();
  CertificateFolder(const CertificateFolder&) = delete;
  CertificateFolder& operator=(const CertificateFolder&) = delete;

  // Makes NAME.pem, a certificate for the address 127.0.0.1, and NAME.key. The files are replaced
  // if they exist.
  void Make(const std::string& name, const CertificateOptions& options = {});
  // Makes the authorities "ca" and "other", and for each AUTHORITY-server and AUTHORITY-client.
  void MakeUsual();
  // Copies a certificate, or a key, or any file of the folder over another one.
  void Copy(const std::string& from, const std::string& to);

  std::string File(const std::string& name) const { return folder_ / name; }
  std::string Text(const std::string& name) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace polysketch::testing
