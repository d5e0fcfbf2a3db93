// From a config to where states rest.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/session/session_table.h"
#include "engine/store/state_store.h"
#include "server/config.h"
#include "server/load_model.h"

namespace polysketch {

// Errors begin with the flag's name.
Result<std::unique_ptr<StateStore>> OpenStateStore(const ServerConfig& config);

// What the states of this process belong to: the contents of the model folder, the device and the
// formats. `loaded`: with model, tokenizer, engine and store. Reads the weights once more.
Result<SessionOptions> MakeSessionOptions(const ServerConfig& config, const LoadedModel& loaded);

}  // namespace polysketch
