// A completion, whichever RPC it came by: from bytes to a running request, and what the store has
// to do before its end.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/rpc/engine_call.h"

namespace polysketch {

class GenerateCall : public EngineCall {
 protected:
  using EngineCall::EngineCall;

  // Once, by the handler of an RPC with one request message.
  void Start(const grpc::ByteBuffer& request);
  // Parses, takes what the request begins with, and submits it, on whichever thread that is for.
  // `state`: what the client keeps (CompleteWithState); empty: the empty sequence.
  void Run(const grpc::ByteBuffer& request, std::string state = {});

  void Append(const TokenEvent& event, v1::Delta* delta) const {
    AppendToken(event, with_logprobs_, call_.model()->rules.tokenizer, delta);
  }
  bool several_choices() const { return several_choices_; }
  // finish with what Store added to it.
  void FillFinish(const FinishEvent& event, v1::Finish* finish) const;
  // The state that the client asked for; empty: none.
  const std::string& returned_state() const { return returned_state_; }

  bool NeedsStore(const FinishEvent& finish) const override;
  Status Store(const FinishEvent& finish) override;
  void OnEnded() override { lease_.reset(); }
  // For messages that carry no state.
  virtual bool CanReturnState() const { return true; }

 private:
  std::shared_ptr<GenerateCall> Self() {
    return std::static_pointer_cast<GenerateCall>(shared_from_this());
  }
  Status Parse(const grpc::ByteBuffer& bytes);
  // Store thread: the session or the stopped completion.
  Status TakeStart();
  Status Resume();
  // Tokenizes and submits.
  Status RunParsed();
  void RunOrReject(Status (GenerateCall::*step)());
  // Keeps the session until the call ends; CANCELLED when it has.
  Status Hold(SessionLease lease);

  v1::CompleteRequest message_;
  std::string state_;  // from the client
  GenerateRequest request_;
  bool with_logprobs_ = false;
  bool several_choices_ = false;
  bool return_state_ = false;
  bool in_session_ = false;
  std::optional<SessionLease> lease_;  // guarded by mutex_ until the call has ended

  // Set by Store:
  std::string resume_token_;
  std::optional<SessionInfo> session_;
  std::string returned_state_;
};

}  // namespace polysketch
