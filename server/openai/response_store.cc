#include "server/openai/response_store.h"

#include <utility>

#include "base/byte_buffer.h"
#include "base/logging.h"
#include "engine/snapshot/content_hash.h"
#include "engine/snapshot/fields.h"
#include "engine/store/state_key.h"

namespace polysketch {
namespace {

constexpr std::string_view kResponseMagic = "PSKRESP1";

std::string ResponseKey(const std::string& session) { return "response-" + session; }

// The response that `texts` or the store has; null: neither does.
Result<StoredResponses::Pointer> FindResponse(const StoredResponses::Key& key,
                                              StoredResponses* texts, StateStore* store,
                                              const chat::HoldMemory& hold) {
  StoredResponses::Pointer kept = texts->Find(key);
  const auto& [tenant, session] = key;
  // A client may have made up the id.
  if (kept != nullptr || store == nullptr || !IsStateKey(session)) return kept;
  const auto info = store->Stat(tenant, ResponseKey(session));
  if (info.status().code() == Code::kNotFound) return kept;
  PS_RETURN_IF_ERROR(info.status());
  PS_RETURN_IF_ERROR(hold(2 * info->bytes));  // the entry, and the texts of it
  const auto entry = store->Get(tenant, ResponseKey(session));
  if (entry.status().code() == Code::kNotFound) return kept;
  PS_RETURN_IF_ERROR(entry.status());
  PS_ASSIGN_OR_RETURN(StoredResponse response, DecodeResponse(AsText(entry->bytes)));
  return std::make_shared<const StoredResponse>(std::move(response));
}

}  // namespace

std::string EncodeResponse(const StoredResponse& response) {
  FieldWriter fields(kResponseMagic);
  fields(response.body, response.input, response.previous);
  std::string bytes = std::move(fields).Take();
  FieldWriter checksum;
  checksum(HashContent(bytes));
  return bytes + std::move(checksum).Take();
}

Result<StoredResponse> DecodeResponse(std::string_view bytes) {
  StoredResponse response;
  ContentHash checksum{};
  const bool ours = bytes.starts_with(kResponseMagic);
  FieldReader fields(ours ? bytes.substr(kResponseMagic.size()) : "");
  fields(response.body, response.input, response.previous, checksum);
  if (!fields.Finished() ||
      checksum != HashContent(bytes.substr(0, bytes.size() - sizeof(checksum))))
    return DataLoss("response: expected a stored response, found ", bytes.size(), " other bytes");
  return response;
}

void SaveResponses(const StoredResponses& texts, StateStore* store) {
  for (const auto& [key, response, ttl] : texts.NewestFirst()) {
    const auto put = store->Put(key.first, ResponseKey(key.second), EncodeResponse(*response), ttl);
    if (!put.ok()) return LogError("responses_not_written", {{"why", put.status().message()}});
  }
}

Result<std::vector<StoredResponses::Pointer>> FindConversation(const StoredResponses::Key& key,
                                                               StoredResponses* texts,
                                                               StateStore* store,
                                                               const chat::HoldMemory& hold,
                                                               size_t most) {
  std::vector<StoredResponses::Pointer> responses;
  std::string session = key.second;
  while (!session.empty() && responses.size() < most) {
    PS_ASSIGN_OR_RETURN(StoredResponses::Pointer found,
                        FindResponse({key.first, session}, texts, store, hold));
    if (found == nullptr) break;
    session = found->previous;
    responses.push_back(std::move(found));
  }
  return responses;
}

Result<bool> RemoveResponse(const StoredResponses::Key& key, StoredResponses* texts,
                            StateStore* store) {
  const bool kept = texts->Remove(key);
  if (store == nullptr || !IsStateKey(key.second)) return kept;
  const Status deleted = store->Delete(key.first, ResponseKey(key.second));
  if (deleted.code() == Code::kNotFound) return kept;
  PS_RETURN_IF_ERROR(deleted);
  return true;
}

}  // namespace polysketch
