// The messages of a completion.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "server/rpc/engine_call.h"

namespace polysketch {

// The response of the RPC: a stream of CompleteResponse, or one CompleteUnaryResponse.
enum class CompletionForm { kStream, kUnary };

// Memory of a token in a CompleteUnaryResponse, without its text, if it is returned with its
// log-probability and with `alternatives`; nullopt: without a log-probability.
int64_t UnaryTokenBytes(std::optional<int64_t> alternatives);
// Limit of the memory of one CompleteUnaryResponse.
int64_t MaxUnaryBytes(const ServiceContext& service);

// The memory of a response that collects tokens, until the call is destroyed.
class CollectedReply {
 public:
  // `call` outlives the object.
  CollectedReply(EngineCall* call, bool with_logprobs)
      : call_(call), with_logprobs_(with_logprobs) {}
  // Holds the memory of another token. An error fails the call after Render.
  Status Hold(const TokenEvent& token);

 private:
  EngineCall* const call_;
  const bool with_logprobs_;
  int64_t collected_ = 0;  // memory of the tokens
  int64_t held_ = 0;       // of HoldReply; at least collected_
};

// Maximum number of tokens in a message of a stream: a slow reader gets its backlog in several
// messages.
inline constexpr int kMaxDeltaTokens = 256;

// `call` outlives the renderer. `params` are those of its request. `return_state`: the state at the
// end is sent before the finish; kStream only.
std::unique_ptr<Renderer> NewCompletionRenderer(EngineCall* call, CompletionForm form,
                                                const GenerateParams& params, bool return_state);

// Takes the response that the next message stands for, which has no bytes.
using ResponseSlot = std::function<void(v1::CompleteResponse response)>;
// The responses of kStream for a transport in this process.
std::unique_ptr<Renderer> NewDirectRenderer(EngineCall* call, const GenerateParams& params,
                                            ResponseSlot slot);

}  // namespace polysketch
