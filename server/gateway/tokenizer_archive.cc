#include "server/gateway/tokenizer_archive.h"

#include <utility>

#include "base/hex.h"
#include "base/logging.h"
#include "server/credentials/api_keys.h"
#include "server/gateway/zip_archive.h"

namespace polysketch {
namespace {

constexpr char kTokenizer[] = "tokenizer.json";
constexpr const char* kFiles[] = {kTokenizer, "tokenizer_config.json", "special_tokens_map.json",
                                  "added_tokens.json", "chat_template.jinja"};
constexpr size_t kMaxFileBytes = size_t{256} << 20;

}  // namespace

Result<std::string> TokenizerArchive(const ModelFolder& folder, HeldMemory* memory) {
  ZipArchive archive;
  for (const char* name : kFiles) {
    const Result<ModelFile> file = folder.Open(name);
    if (file.status().code() == Code::kNotFound) {
      if (name != kTokenizer) continue;
      return FailedPrecondition("the model folder has no ", kTokenizer,
                                "; tools/convert writes it, and a gateway may have its own");
    }
    if (file.ok() && file->size() > kMaxFileBytes) {
      return ResourceExhausted(name, ": expected at most ", kMaxFileBytes, " bytes, found ",
                               file->size());
    }
    if (file.ok()) PS_RETURN_IF_ERROR(memory->Hold(2 * static_cast<int64_t>(file->size())));
    Result<std::string> text = file.ok() ? file->Read() : file.status();
    if (!text.ok()) {
      LogWarning("tokenizer_file", {{"reason", text.status().message()}});
      return FailedPrecondition(name, ": cannot be read; the server's log says why");
    }
    archive.Add(name, *std::move(text));
  }
  return archive.Finish();
}

std::string Sha256Hex(const std::string& bytes) { return HexDigits(Sha256Of(bytes)); }

}  // namespace polysketch
