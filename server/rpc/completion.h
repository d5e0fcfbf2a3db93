// A completion of any RPC: from its CompleteRequest to a submitted request.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/convert/chunk_tokenizer.h"
#include "server/rpc/completion_renderer.h"
#include "server/rpc/engine_call.h"

namespace polysketch {

// Makes the renderer of a request that is about to be submitted.
using NewRenderer = std::function<std::unique_ptr<Renderer>(const GenerateRequest& request)>;

// How the completion of another service differs from that of polysketch.v1.
struct CompletionVariant {
  NewRenderer new_renderer = nullptr;  // null: NewCompletionRenderer
  bool migrates = true;                // GenerateRequest::migrates
};

// The steps from a parsed request to Submit. Steps run one at a time, each on the thread that it
// needs.
class Completion {
 public:
  // `call` outlives the completion.
  Completion(EngineCall* call, CompletionForm form, CompletionVariant variant = {})
      : call_(call),
        form_(form),
        variant_(std::move(variant)),
        tokenizer_([call](int64_t bytes) { return call->HoldInput(bytes); }) {}

  // Checks the request, loads the sequence that it continues, tokenizes its prompt, which may be
  // the first chunk only, and compiles its grammar. Then calls `ready`, on any thread. `state`: the
  // snapshot that the completion continues, as bytes; empty: none. An error is returned or, from a
  // later step, fails the call. Called once.
  Status Start(v1::CompleteRequest message, std::string state, std::function<Status()> ready);
  // Adds another chunk of the prompt, after `ready`.
  Status AddPrompt(const v1::CompleteStreamRequest& chunk);
  // Submits the request, whose prompt is complete.
  Status Submit();

 private:
  Status CheckFields() const;
  // On a thread of the store or of the session: the snapshot that the completion continues, and the
  // lease of its session.
  Status LoadStart();
  Status LoadMigrated();
  // Converts the fields of the message.
  Status Convert();
  // Called after Convert. Calls `ready` with the compiled grammar, at once or on a thread of
  // grammars, and there `fail` with a status that may be OK.
  Status CompileGrammar(const std::function<Status()>& ready,
                        const std::function<void(const Status&)>& fail);
  Status DecodeState();
  Status CheckReply() const;
  bool resumes() const { return !message_.resume_token().empty(); }
  // Whether tokens precede the prompt.
  bool continues() const { return request_.start != nullptr || !state_.empty(); }
  Status FinishPrompt();

  EngineCall* const call_;
  const CompletionForm form_;
  const CompletionVariant variant_;
  v1::CompleteRequest message_;  // without the prompt, once it is tokenized
  std::string state_;
  ChunkTokenizer tokenizer_;
  GenerateRequest request_;
};

}  // namespace polysketch
