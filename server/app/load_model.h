// Makes everything that serves a model: backend, weights, tokenizer, engine, sessions.
#pragma once

#include <memory>

#include "base/status.h"
#include "engine/request/observer.h"
#include "server/app/loaded_model.h"
#include "server/app/server_config.h"
#include "server/rpc/executor.h"

namespace polysketch {

// Reads the config.json of each model folder. Errors are those of LoadModel.
Status CheckModelFolders(const ServerConfig& config);

// Loads the folder, runs a forward pass (Engine::Create) and logs the memory of the busy server.
// Errors name the flag, file or tensor. `observer` outlives the result. `writers` is the executor
// that writes to streams; the engine holds it while it pushes the events of a step.
Result<std::unique_ptr<LoadedModel>> LoadModel(const ServerConfig& config, EngineObserver* observer,
                                               std::shared_ptr<Executor> writers);

}  // namespace polysketch
