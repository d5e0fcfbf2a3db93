// GetTokenizer.
#include <string>
#include <utility>

#include "common.pb.h"
#include "server/convert/wire.h"
#include "server/gateway/tokenizer_archive.h"
#include "server/gateway/vllm_engine.h"
#include "server/rpc/unary_call.h"

namespace polysketch {
namespace {

// Below the 4 MiB that gRPC accepts by default.
constexpr size_t kChunkBytes = size_t{1} << 20;

Result<Messages> GetTokenizer(const UnaryInput& input) {
  PS_ASSIGN_OR_RETURN(const std::string archive, TokenizerArchive(input.model.folder, input.reply));
  Messages messages;
  for (size_t first = 0; first < archive.size(); first += kChunkBytes) {
    smg::grpc::common::GetTokenizerChunk chunk;
    chunk.set_data(archive.substr(first, kChunkBytes));
    if (first + kChunkBytes >= archive.size()) chunk.set_sha256(Sha256Hex(archive));
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
