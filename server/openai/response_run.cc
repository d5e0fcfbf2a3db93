#include "server/openai/response_run.h"

#include <utility>

#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/http/unary_http_call.h"
#include "server/openai/responses_form.h"

namespace polysketch {

void ResponseRun::Start() {
  if (!held_.ok()) return ReplyError(exchange_.get(), held_);
  const auto self = shared_from_this();
  if (!response_.previous.session.empty()) {
    v1::ForkSessionRequest request;
    request.set_session(response_.previous.session);
    CallUnary<v1::ForkSessionResponse>(*router_, exchange_, "ForkSession", request,
                                       [self](Result<v1::ForkSessionResponse> forked) {
                                         if (!forked.ok()) return self->OnSession(forked.status());
                                         self->OnSession(forked->sessions(0).session());
                                       });
  } else if (response_.store) {
    v1::CreateSessionRequest request;
    request.set_evictable(true);  // a client that is done with a response does not say so
    CallUnary<v1::Session>(*router_, exchange_, "CreateSession", request,
                           [self](Result<v1::Session> created) {
                             if (!created.ok()) return self->OnSession(created.status());
                             self->OnSession(created->session());
                           });
  } else {
    exchange_->Post([self] { self->Complete(); });
  }
}

void ResponseRun::OnSession(Result<std::string> session) {
  if (session.ok()) {
    session_ = *std::move(session);
    return Complete();
  }
  if (session.status().code() != Code::kNotFound)
    return ReplyError(exchange_.get(), session.status());
  ReplyError(exchange_.get(),
             NotFound("previous_response_id: expected the id of a stored response, found \"",
                      response_.previous.ToString(), "\""));
}

void ResponseRun::Complete() {
  const auto self = shared_from_this();
  if (!session_.empty()) response_.job.common.set_session(session_);
  response_.id.session = session_;
  const std::string id =
      session_.empty() ? StrCat(kResponseIdPrefix, header_.request_id) : response_.id.ToString();
  CompletionRun::Hooks hooks;
  hooks.before_end = [self](const Answer& answer, Done done) {
    // The state of a migrated turn is in the store, and its session is as it was.
    const bool migrated = !answer.resume_token.empty();
    self->exchange_->Post(
        [self, migrated, last = answer.choices[0].last_token, done = std::move(done)]() mutable {
          if (migrated)
            return done(Unavailable("the server is draining").WithReason(Reason::kDraining));
          self->EndTurn(last, std::move(done));
        });
  };
  hooks.on_failure = [self] { self->exchange_->Post([self] { self->DeleteSession(); }); };
  memory_.Release();
  std::unique_ptr<AnswerForm> form =
      NewResponseForm(id, std::move(response_.echo), header_, response_.job.options);
  std::make_shared<CompletionRun>(exchange_, std::move(response_.job), std::move(form), tokenizer_,
                                  std::move(hooks))
      ->Start(service_);
}

void ResponseRun::EndTurn(int32_t last_token, Done done) {
  if (session_.empty()) return done(Status());
  if (!response_.store) {
    DeleteSession();
    return done(Status());
  }
  if (response_.turn_end < 0 || last_token == response_.turn_end) return done(Status());
  v1::AppendRequest request;
  request.set_session(session_);
  request.mutable_tokens()->add_ids(response_.turn_end);
  CallUnary<v1::AppendResponse>(
      *router_, exchange_, "Append", request,
      [done = std::move(done)](const Result<v1::AppendResponse>& appended) {
        // An answer is not thrown away because its session found no room any more: it is not found when
        // it is continued.
        const Code code = appended.status().code();
        const bool full = appended.status().reason_or_none() == Reason::kContextLengthExceeded;
        const bool gone = code == Code::kNotFound || code == Code::kResourceExhausted || full;
        done(gone ? Status() : appended.status());
      });
}

// A session that cannot be deleted, because the server drains, expires.
void ResponseRun::DeleteSession() {
  if (session_.empty()) return;
  v1::DeleteSessionRequest request;
  request.set_session(std::exchange(session_, ""));
  CallUnary<v1::DeleteSessionResponse>(*router_, exchange_, "DeleteSession", request,
                                       [](const Result<v1::DeleteSessionResponse>&) {});
}

void DeleteResponse(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                    const Router* router) {
  const Result<ResponseId> parsed = ParseResponseId(id, "response_id");
  if (!parsed.ok()) return ReplyError(exchange.get(), parsed.status());
  v1::DeleteSessionRequest request;
  request.set_session(parsed->session);
  CallUnary<v1::DeleteSessionResponse>(
      *router, exchange, "DeleteSession", request,
      [exchange, id](const Result<v1::DeleteSessionResponse>& deleted) {
        if (deleted.ok()) {
          const nlohmann::ordered_json json = {
              {"id", id}, {"object", "response"}, {"deleted", true}};
          return exchange->Reply(200, kJsonType, JsonText(json));
        }
        if (deleted.status().code() != Code::kNotFound)
          return ReplyError(exchange.get(), deleted.status());
        ReplyError(
            exchange.get(),
            NotFound("response_id: expected the id of a stored response, found \"", id, "\""));
      });
}

}  // namespace polysketch
