// The engine of the server: one thread that batches all running sequences into steps of the model.
//
//   auto engine = Engine::Create(model, tokenizer, options);  // runs a forward pass
//   auto stream = std::make_shared<EventStream>(64);
//   stream->SetOnReady(...);
//   Result<RequestId> id = engine->Submit(GenerateRequest{...}, stream);
//   engine->Cancel(*id);  // ends the request within one step
//
// Threads: any thread may call any method. Events are pushed by the engine thread.
#pragma once

#include <chrono>
#include <memory>

#include "base/status.h"
#include "engine/engine_options.h"
#include "engine/model/language_model.h"
#include "engine/request/observer.h"
#include "engine/request/request.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

class Engine {
 public:
  // model and tokenizer (null: token ids only) outlive the engine. Runs one forward pass, and
  // returns its error, before it starts the engine thread.
  static Result<std::unique_ptr<Engine>> Create(LanguageModel* model, const Tokenizer* tokenizer,
                                                const EngineOptions& options);
  // Ends all requests and joins the thread.
  virtual ~Engine() = default;

  // Whether prompt and output can ever fit, as Submit checks it: before a caller takes memory or quota
  // for them.
  virtual Status CheckLength(const GenerateRequest& request) const = 0;
  // Refuses with INVALID_ARGUMENT (names the field, or what of a snapshot does not fit the model),
  // RESOURCE_EXHAUSTED (queue full; with a retry delay) or UNAVAILABLE (draining). After OK the
  // stream gets exactly one FinishEvent, whatever happens.
  virtual Result<RequestId> Submit(GenerateRequest request,
                                   std::shared_ptr<EventStream> stream) = 0;
  virtual Result<RequestId> Submit(ScoreRequest request, std::shared_ptr<EventStream> stream) = 0;
  // Ends the request with kCancelled within one step. Unknown and finished ids are ignored.
  virtual void Cancel(RequestId id) = 0;

  // Ends every completion that migrates, waiting or running, with kMigrated and a snapshot that
  // another replica continues with the next token. Scores and other completions continue.
  virtual void MigrateAll() = 0;

  // Refuses new requests from now on; submitted requests continue. Returns true once all requests
  // have ended. After `timeout` it ends the remaining ones with UNAVAILABLE and returns false.
  virtual bool Drain(std::chrono::milliseconds timeout) = 0;
  virtual EngineStats stats() const = 0;
};

}  // namespace polysketch
