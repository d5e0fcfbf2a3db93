// From a config to something that can be served: device, weights, tokenizer, engine.
#pragma once

#include <atomic>
#include <memory>

#include "base/status.h"
#include "engine/engine.h"
#include "kernels/backend.h"
#include "server/call.h"
#include "server/config.h"

namespace polysketch {

struct LoadedModel {
  // Set by the engine thread when the device has failed; the process is then told to stop.
  std::atomic<bool> device_failed{false};
  // In order of construction: each refers to those above it.
  std::unique_ptr<Backend> backend;
  std::unique_ptr<PolysketchModel> model;
  std::unique_ptr<PolysketchModel> draft_model;  // null without --draft-model
  std::unique_ptr<Tokenizer> tokenizer;          // null without tokenizer.model
  std::unique_ptr<PrefixCache> prefix_cache;     // null when it is off
  std::unique_ptr<Engine> engine;
  std::unique_ptr<StateStore> store;  // null without --state-store
  std::unique_ptr<SessionTable> sessions;
  ServedModel served;
};

// Loads the folder, proves the model with a forward pass (Engine::Create) and logs what memory it
// takes. Errors name the flag, file or tensor. `observer` outlives the result; `writers` write what
// the engine gives out.
Result<std::unique_ptr<LoadedModel>> LoadModel(const ServerConfig& config, EngineObserver* observer,
                                               std::shared_ptr<Executor> writers);

}  // namespace polysketch
