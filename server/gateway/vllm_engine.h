// The service vllm.grpc.engine.VllmEngine, which gateways such as PyPI's smg speak with their
// workers. A gateway tokenizes and renders chat templates itself, so a generation is a completion
// of token ids: it runs on the classes of Complete (server/rpc), and its messages are translated.
//
// Calls need an API key if the server has keys, as those of polysketch.v1. Generations do not
// migrate: no gateway could resume one on another replica, so a drain lets them run to their end.
#pragma once

#include <string>

#include "server/net/router.h"
#include "server/rpc/service_context.h"

namespace polysketch {

inline constexpr char kVllmService[] = "vllm.grpc.engine.VllmEngine";

// Adds the RPCs to `router`. `context` outlives the calls. `served_model_name`: empty means the
// name of the model folder.
void AddVllmEngineMethods(ServiceContext* context, const std::string& served_model_name,
                          Router* router);

// The parts of AddVllmEngineMethods.
void AddGenerateMethods(ServiceContext* context, Router* router);
void AddInfoMethods(ServiceContext* context, const std::string& served_model_name, Router* router);
void AddTokenizerMethod(ServiceContext* context, Router* router);

}  // namespace polysketch
