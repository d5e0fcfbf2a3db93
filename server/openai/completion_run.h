// Runs a request of OpenAI's API: one Complete call for each prompt, and their responses as one
// response, whole or as server-sent events, in the form of the endpoint.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http/http_call.h"
#include "server/openai/answer_form.h"
#include "server/openai/completion_request.h"

namespace polysketch {

// The time, as the API writes it: seconds since 1970.
int64_t UnixSeconds();

class CompletionRun final : public std::enable_shared_from_this<CompletionRun> {
 public:
  // Steps of an endpoint around the calls. Called once each, at most, on any thread.
  struct Hooks {
    // After the last call, before the end of the response, which waits for `done`. Calls `done`
    // later, not at once. Null: none.
    std::function<void(const Answer& answer, std::function<void(const Status&)> done)> before_end;
    // The request has failed, or the client has left. Null: none.
    std::function<void()> on_failure;
  };

  // `service`, which has a model, outlives the calls.
  CompletionRun(std::shared_ptr<HttpExchange> exchange, CompletionJob job,
                std::unique_ptr<AnswerForm> form, ServiceContext* service, Hooks hooks = {});

  // Starts the calls. Called once, on the thread of the HTTP server.
  void Start();

 private:
  void OnResponse(size_t prompt, const v1::CompleteResponse& response);
  void OnFinish(size_t prompt, const Status& status);
  // The functions below hold mutex_.
  // `tokens`: of the prompt.
  void OnSubmitted(size_t prompt, int64_t tokens);
  AnswerChoice* ChoiceOf(size_t prompt, int choice);
  Status OnDelta(size_t prompt, const v1::Delta& delta);
  // Counts the tokens of a delta, and which of them are reasoning.
  void CountTokens(size_t prompt, const v1::Delta& delta, AnswerChoice* choice);
  // Adds output to a choice. `ends`: it is the last.
  void AddText(const std::string& generated, bool ends, AnswerChoice* choice);
  // Holds the memory of `bytes` more of the response, as JSON, that are collected.
  Status HoldReply(int64_t bytes);
  // `end`: a ChoiceFinish, or the Finish of the only choice.
  template <typename End>
  void EndChoice(size_t prompt, int choice, const End& end);
  void OnFinishMessage(size_t prompt, const v1::Finish& finish);
  void Fail(const Status& cause);
  void Complete();
  // Sends what a choice has, as an event.
  void SendChoice(const AnswerChoice* choice);
  void StartStream();
  void CancelAll();

  const std::shared_ptr<HttpExchange> exchange_;
  CompletionJob job_;                       // without the requests, once their calls have started
  const std::unique_ptr<AnswerForm> form_;  // guarded by mutex_
  ServiceContext* const service_;
  const Tokenizer* const tokenizer_;  // may be null
  std::vector<std::optional<IncrementalDecoder>>
      decoders_;  // by prompt, with logprobs or reasoning
  const Hooks hooks_;
  std::vector<std::shared_ptr<HttpCall>> calls_;  // used on the thread of the HTTP server
  std::mutex mutex_;
  // Guarded by mutex_:
  Status held_;              // whether job_memory_ has room
  HeldMemory job_memory_;    // of job_
  HeldMemory reply_memory_;  // of answer_
  int64_t collected_ = 0;    // bytes of the response, as JSON, that wait for its end or a piece
  Answer answer_;
  size_t unsubmitted_ = 0;  // calls that the engine does not have yet
  size_t running_ = 0;      // calls that have not ended
  bool started_ = false;    // the header of the stream was sent
  bool ended_ = false;      // the response is complete
};

}  // namespace polysketch
