#include "server/gateway/tokenizer_archive.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/hex.h"
#include "server/credentials/api_keys.h"
#include "server/gateway/zip_archive.h"

namespace polysketch {
namespace {

constexpr char kTokenizer[] = "tokenizer.json";
constexpr const char* kFiles[] = {kTokenizer, "tokenizer_config.json", "special_tokens_map.json",
                                  "added_tokens.json", "chat_template.jinja"};
constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;

}  // namespace

Result<std::string> TokenizerArchive(const std::string& folder, HeldMemory* memory) {
  ZipArchive archive;
  for (const char* name : kFiles) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::error_code error;
    const uintmax_t bytes = std::filesystem::file_size(path, error);
    if (error) {
      if (name != kTokenizer) continue;
      return FailedPrecondition("the model folder has no ", kTokenizer,
                                "; tools/convert writes it, and a gateway may have its own");
    }
    if (bytes > kMaxFileBytes) {
      return ResourceExhausted(name, ": expected at most ", kMaxFileBytes, " bytes, found ", bytes);
    }
    PS_RETURN_IF_ERROR(memory->Hold(2 * static_cast<int64_t>(bytes)));
    std::ifstream file(path, std::ios::binary);
    archive.Add(name, std::string(std::istreambuf_iterator<char>(file), {}));
  }
  return archive.Finish();
}

std::string Sha256Hex(const std::string& bytes) { return HexDigits(Sha256Of(bytes)); }

}  // namespace polysketch
