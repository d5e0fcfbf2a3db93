#include "server/app/model_checksums.h"

#include <openssl/evp.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/hex.h"
#include "base/logging.h"
#include "engine/checkpoint/mapped_file.h"

namespace polysketch {
namespace {

namespace fs = std::filesystem;

constexpr char kSums[] = "SHA256SUMS";
constexpr size_t kDigits = 64;
// Bytes whose pages are released at a time: a start must not need memory for all of a file.
constexpr size_t kPiece = size_t{4} << 20;

// "DIGITS  NAME", or "DIGITS *NAME" of a file that was read as binary.
bool ParseLine(const std::string& line, std::string* name, std::string* digits) {
  if (line.size() < kDigits + 3 || line[kDigits] != ' ') return false;
  if (line[kDigits + 1] != ' ' && line[kDigits + 1] != '*') return false;
  *digits = line.substr(0, kDigits);
  *name = line.substr(kDigits + 2);
  return digits->find_first_not_of("0123456789abcdef") == std::string::npos &&
         name->find('/') == std::string::npos && *name != "." && *name != "..";
}

// Checksums by the name of the file.
Result<std::map<std::string, std::string>> ReadSums(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("there is no ", path.string());
  std::map<std::string, std::string> sums;
  std::string line, name, digits;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!ParseLine(line, &name, &digits)) {
      return InvalidArgument(
          path.string(), ": line ", number, ": expected ", kDigits,
          " hexadecimal digits, two spaces and the name of a file of the folder, "
          "found \"",
          line.substr(0, 200), "\"");
    }
    sums[name] = digits;
  }
  return sums;
}

struct FreeDigest {
  void operator()(EVP_MD_CTX* digest) const { EVP_MD_CTX_free(digest); }
};

std::string Sha256Of(const MappedFile& file) {
  const std::unique_ptr<EVP_MD_CTX, FreeDigest> digest(EVP_MD_CTX_new());
  PS_CHECK(EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) == 1);
  for (size_t first = 0; first < file.size(); first += kPiece) {
    const size_t bytes = std::min(kPiece, file.size() - first);
    PS_CHECK(EVP_DigestUpdate(digest.get(), file.data() + first, bytes) == 1);
    file.Release(file.data() + first, bytes);
  }
  unsigned char sum[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  PS_CHECK(EVP_DigestFinal_ex(digest.get(), sum, &size) == 1);
  return HexDigits({sum, size});
}

// Whether `verify` requires a checksum of this file.
bool MustBeListed(std::string_view name) {
  return name == "config.json" || name == "tokenizer.model" || name.ends_with(".safetensors");
}

Status CheckAllListed(const fs::path& folder, const std::map<std::string, std::string>& sums) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (MustBeListed(name) && !sums.contains(name)) {
      return InvalidArgument("--verify: ", (folder / kSums).string(), ": expected the checksum of ",
                             name, ", found none");
    }
  }
  if (error) return InvalidArgument(folder.string(), ": ", error.message());
  return Status();
}

}  // namespace

Status CheckModelFiles(const fs::path& folder, bool verify) {
  const auto sums = ReadSums(folder / kSums);
  if (sums.status().code() == Code::kNotFound) {
    if (!verify) return Status();
    return InvalidArgument("--verify: expected checksums in ", (folder / kSums).string(),
                           ", found no such file (sha256sum makes it)");
  }
  if (!sums.ok()) return sums.status();
  if (verify) PS_RETURN_IF_ERROR(CheckAllListed(folder, *sums));
  int checked = 0;
  for (const auto& [name, expected] : *sums) {
    const fs::path path = folder / name;
    const Result<MappedFile> file = MappedFile::Open(path.string());
    if (!file.ok()) {
      return InvalidArgument((folder / kSums).string(), ": expected the file ", name,
                             ", found: ", file.status().message());
    }
    if (!verify && file->size() > kAlwaysChecked) continue;
    const std::string found = Sha256Of(*file);
    if (found != expected) {
      return InvalidArgument(path.string(), ": expected the SHA-256 ", expected, " (", kSums,
                             "), found ", found);
    }
    ++checked;
  }
  LogInfo("model_checksums", {{"folder", folder.string()},
                              {"files", std::to_string(sums->size())},
                              {"checked", std::to_string(checked)}});
  return Status();
}

}  // namespace polysketch
