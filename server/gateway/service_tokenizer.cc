// GetTokenizer.
#include <string>
#include <string_view>
#include <utility>

#include "base/hex.h"
#include "base/logging.h"
#include "common.pb.h"
#include "engine/tokenizer/tokenizer_files.h"
#include "server/convert/wire.h"
#include "server/credentials/api_keys.h"
#include "server/gateway/vllm_engine.h"
#include "server/gateway/zip_archive.h"
#include "server/rpc/unary_call.h"

namespace polysketch {
namespace {

// Below the 4 MiB that gRPC accepts by default.
constexpr size_t kChunkBytes = size_t{1} << 20;

constexpr size_t kMaxFileBytes = size_t{256} << 20;

// A zip archive of the folder's tokenizer files in Hugging Face's form, with those that exist.
// `memory` holds the files and the archive.
Result<std::string> TokenizerArchive(const ModelFolder& folder, HeldMemory* memory) {
  ZipArchive archive;
  for (const std::string_view file_name : kHuggingFaceFiles) {
    const std::string name(file_name);
    const Result<ModelFile> file = folder.Open(name);
    if (file.status().code() == Code::kNotFound) {
      if (name != kTokenizerJsonFile) continue;
      return FailedPrecondition("the model folder has no ", kTokenizerJsonFile,
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

Result<Messages> GetTokenizer(const UnaryInput& input) {
  PS_ASSIGN_OR_RETURN(const std::string archive, TokenizerArchive(input.model.folder, input.reply));
  Messages messages;
  for (size_t first = 0; first < archive.size(); first += kChunkBytes) {
    smg::grpc::common::GetTokenizerChunk chunk;
    chunk.set_data(archive.substr(first, kChunkBytes));
    if (first + kChunkBytes >= archive.size()) chunk.set_sha256(HexDigits(Sha256Of(archive)));
    messages.push_back(SerializeMessage(chunk));
  }
  return messages;
}

}  // namespace

void AddTokenizerMethod(ServiceContext* context, Router* router) {
  const auto files = [](const UnaryInput&, const ServiceContext& service) -> Result<Executor*> {
    return service.stores.get();
  };
  AddStreamWork({"GetTokenizer", kVllmService}, GetTokenizer, context, router, files);
}

}  // namespace polysketch
