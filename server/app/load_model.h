// Makes everything that serves a model: backend, weights, tokenizer, engine, sessions.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/request/observer.h"
#include "server/app/loaded_model.h"
#include "server/app/server_config.h"
#include "server/rpc/executor.h"

namespace polysketch {

// Loads the folder, proves the model with a forward pass (Engine::Create) and logs the memory that
// it needs. Errors name the flag, file or tensor. `observer` outlives the result; `writers` run what
// the engine's events cause.
Result<std::unique_ptr<LoadedModel>> LoadModel(const ServerConfig& config, EngineObserver* observer,
                                               std::shared_ptr<Executor> writers);

}  // namespace polysketch
