// A completion of any RPC: from its CompleteRequest to a submitted request.
#pragma once

#include <string>

#include "server/rpc/completion_renderer.h"
#include "server/rpc/engine_call.h"

namespace polysketch {

// The steps from a parsed request to Submit. Steps run one at a time, each on the thread that it
// needs.
class Completion {
 public:
  // `call` outlives the completion.
  Completion(EngineCall* call, CompletionForm form) : call_(call), form_(form) {}

  // Starts the completion, once. `state`: the snapshot that it continues, as bytes; empty: none. An
  // error is returned or, from a later step, fails the call.
  Status Start(v1::CompleteRequest message, std::string state);

 private:
  Status CheckFields() const;
  // On the store thread: the snapshot that the completion continues, and the lease of its session.
  Status LoadStart();
  Status LoadMigrated();
  // Tokenizes the prompt, and submits the request.
  Status Submit();
  Status DecodeState();
  Status Convert();

  EngineCall* const call_;
  const CompletionForm form_;
  v1::CompleteRequest message_;
  std::string state_;
  GenerateRequest request_;
};

}  // namespace polysketch
