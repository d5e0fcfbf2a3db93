#include "server/app/model_checksums.h"

#include <openssl/evp.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hex.h"
#include "base/logging.h"
#include "engine/tokenizer/tokenizer_files.h"

namespace polysketch {
namespace {

constexpr char kSums[] = "SHA256SUMS";
constexpr size_t kMaxSumsBytes = size_t{1} << 20;
constexpr size_t kDigits = 64;
// Bytes whose pages are released at a time: a start must not need memory for all of a file.
constexpr size_t kPiece = size_t{4} << 20;

// "DIGITS  NAME", or "DIGITS *NAME" of a file that was read as binary.
bool ParseLine(const std::string& line, std::string* name, std::string* digits) {
  if (line.size() < kDigits + 3 || line[kDigits] != ' ') return false;
  if (line[kDigits + 1] != ' ' && line[kDigits + 1] != '*') return false;
  *digits = line.substr(0, kDigits);
  *name = line.substr(kDigits + 2);
  return digits->find_first_not_of("0123456789abcdef") == std::string::npos && !name->empty() &&
         name->find('/') == std::string::npos && name->find('\0') == std::string::npos &&
         *name != "." && *name != "..";
}

// Checksums by the name of the file.
Result<std::map<std::string, std::string>> ReadSums(const ModelFolder& folder) {
  PS_ASSIGN_OR_RETURN(const std::string text, folder.Read(kSums, kMaxSumsBytes));
  std::istringstream file(text);
  std::map<std::string, std::string> sums;
  std::string line, name, digits;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!ParseLine(line, &name, &digits)) {
      return InvalidArgument(
          folder.PathOf(kSums), ": line ", number, ": expected ", kDigits,
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

// Whether `verify` requires a checksum of this file: no model loads without what it holds.
bool MustBeListed(std::string_view name) {
  return name == "config.json" || name == kSentencePieceFile || name.ends_with(".safetensors") ||
         name == "model.safetensors.index.json";
}

// Whether the server reads this file where the folder has one.
bool IsRead(std::string_view name) {
  return MustBeListed(name) || name == kSums ||
         std::ranges::find(kHuggingFaceFiles, name) != kHuggingFaceFiles.end();
}

Status CheckAllListed(const ModelFolder& folder, const std::vector<std::string>& names,
                      const std::map<std::string, std::string>& sums) {
  for (const std::string& name : names) {
    if (sums.contains(name) || name == kSums) continue;
    if (MustBeListed(name)) {
      return InvalidArgument("--verify: ", folder.PathOf(kSums), ": expected the checksum of ",
                             name, ", found none");
    }
    if (IsRead(name)) {
      LogWarning("not_listed", {{"file", folder.PathOf(name)},
                                {"reason", "SHA256SUMS has no checksum of it"},
                                {"effect", "the file counts as missing"}});
    }
  }
  return Status();
}

}  // namespace

Result<ModelFolder> CheckModelFiles(ModelFolder folder, bool verify) {
  PS_ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.Names());
  for (const std::string& name : names) {
    if (IsRead(name)) PS_RETURN_IF_ERROR(folder.Open(name).status());
  }
  const auto sums = ReadSums(folder);
  if (sums.status().code() == Code::kNotFound) {
    if (!verify) return folder;
    return InvalidArgument("--verify: expected checksums in ", folder.PathOf(kSums),
                           ", found no such file (sha256sum makes it)");
  }
  if (!sums.ok()) return sums.status();
  if (verify) PS_RETURN_IF_ERROR(CheckAllListed(folder, names, *sums));
  std::map<std::string, FileIdentity> checked;
  for (const auto& [name, expected] : *sums) {
    const Result<ModelFile> file = folder.Open(name);
    if (!file.ok()) {
      return InvalidArgument(folder.PathOf(kSums), ": expected the file ", name,
                             ", found: ", file.status().message());
    }
    if (!verify && file->size() > kAlwaysChecked) continue;
    PS_ASSIGN_OR_RETURN(const MappedFile mapped, file->Map());
    const std::string found = Sha256Of(mapped);
    if (found != expected) {
      return InvalidArgument(file->path, ": expected the SHA-256 ", expected, " (", kSums,
                             "), found ", found);
    }
    checked.emplace(name, file->identity);
  }
  LogInfo("model_checksums", {{"folder", folder.path().string()},
                              {"files", std::to_string(sums->size())},
                              {"checked", std::to_string(checked.size())}});
  if (verify) folder.Keep(std::move(checked));
  return folder;
}

}  // namespace polysketch
