// Stored responses in the state store: a server that drains writes their texts beside their
// sessions, and the replicas that share the store return them.
//
// Thread-safe. Functions with a store block on it. `store` may be null: there is none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/store/state_store.h"
#include "server/chat/budget.h"
#include "server/openai/stored_responses.h"

namespace polysketch {

// Writes the responses that `texts` keeps, each for the rest of its time, the newest first. Logs an
// error, and ends there.
void SaveResponses(const StoredResponses& texts, StateStore* store);

// The response, and those that it continues, the last one first, as far as they are kept; empty: it
// is not. `hold` is called with the memory of each response that is read from the store.
Result<std::vector<StoredResponses::Pointer>> FindConversation(const StoredResponses::Key& key,
                                                               StoredResponses* texts,
                                                               StateStore* store,
                                                               const chat::HoldMemory& hold,
                                                               size_t most);
// Whether it was kept.
Result<bool> RemoveResponse(const StoredResponses::Key& key, StoredResponses* texts,
                            StateStore* store);

// The bytes of an entry (docs/snapshot-format.md).
std::string EncodeResponse(const StoredResponse& response);
Result<StoredResponse> DecodeResponse(std::string_view bytes);

}  // namespace polysketch
