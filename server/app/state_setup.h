// Makes the parts that keep states outside slots: state store, prefix cache, session options.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/model/model_spec.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/session/session_table.h"
#include "engine/store/state_store.h"
#include "server/app/loaded_model.h"
#include "server/app/server_config.h"

namespace polysketch {

// Opens the store of --state-store. Errors begin with the flag's name.
Result<std::unique_ptr<StateStore>> OpenConfiguredStore(const ServerConfig& config);

// Makes the prefix cache; null if it is off. Its memory limit is 0 until MakeSessionOptions sets
// it. States inside a prompt are stored at multiples of the largest block of the layers of `spec`.
std::unique_ptr<PrefixCache> NewPrefixCache(const ServerConfig& config, const ModelSpec& spec);

// Binds the states of this process to the contents of the model folder, the device and the formats.
// `loaded`: with model, tokenizer, engine and store. Reads the files of the model.
Result<SessionOptions> MakeSessionOptions(const ServerConfig& config, const LoadedModel& loaded);

}  // namespace polysketch
