#include "server/openai/response_run.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/http/http_call.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/http/request_path.h"
#include "server/openai/response_items.h"
#include "server/openai/response_store.h"
#include "server/rpc/call.h"

namespace polysketch {
namespace {

using Parameters = std::vector<std::pair<std::string, std::string>>;

constexpr char kTenantHeader[] = "x-tenant-id";
constexpr int64_t kJsonOfText = 20;   // memory of values, in bytes of their text
constexpr size_t kMaxTurns = 10'000;  // of a conversation whose items are listed

Status NoSuchResponse(const std::string& id) {
  return NotFound("response_id: expected the id of a stored response, found \"", id, "\"");
}

// It may be continued all the same.
Status NoSuchText(const std::string& id) {
  return NotFound(
      "response_id: expected the id of a stored response whose text is kept "
      "(--response-memory), found \"",
      id, "\"");
}

// The place of a response among those of the client's tenant.
Result<StoredResponses::Key> KeyOf(const HttpRequest& request, const std::string& id) {
  PS_ASSIGN_OR_RETURN(ResponseId parsed, ParseResponseId(id, "response_id"));
  auto tenant = TenantOf(request.caller.get(), request.Headers(kTenantHeader));
  if (!tenant.has_value()) {
    return InvalidArgument("x-tenant-id: expected it once, 1 to 128 characters of [A-Za-z0-9._:-]");
  }
  return StoredResponses::Key(*std::move(tenant), std::move(parsed.session));
}

Result<Parameters> QueryOf(const HttpRequest& request) {
  std::optional<Parameters> query = DecodedQuery(request.query);
  if (!query.has_value())
    return InvalidArgument("the query: expected two hexadecimal digits after %");
  return *std::move(query);
}

Status ReplyHeld(HttpExchange* exchange, const std::string& json) {
  HeldMemory memory = exchange->NewMemory(RequestPhase::kReply);
  PS_RETURN_IF_ERROR(memory.Hold(std::ssize(json)));
  exchange->Reply(200, kJsonType, json);
  return Status();
}

}  // namespace

template <typename Response, typename F>
void ResponseRun::Call(std::string_view method, const google::protobuf::Message& request,
                       const F& done) {
  CallUnary<Response>(*api_.router(), exchange_, method, request,
                      [self = shared_from_this(), done](const Result<Response>& response) {
                        self->exchange_->Post([response, done] { done(response); });
                      });
}

void ResponseRun::Start() {
  if (!held_.ok()) return ReplyError(exchange_.get(), held_);
  const auto self = shared_from_this();
  if (!response_.previous.session.empty()) {
    v1::ForkSessionRequest request;
    request.set_session(response_.previous.session);
    Call<v1::ForkSessionResponse>("ForkSession", request, [self](const auto& forked) {
      forked.ok() ? self->OnSession(forked->sessions(0).session())
                  : self->OnSession(forked.status());
    });
  } else if (response_.store) {
    v1::CreateSessionRequest request;
    request.set_evictable(true);  // a client that is done with a response does not say so
    Call<v1::Session>("CreateSession", request, [self](const auto& created) {
      created.ok() ? self->OnSession(created->session()) : self->OnSession(created.status());
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
    self->exchange_->Post(
        [self, last = answer.choices[0].last_token, done = std::move(done)]() mutable {
          self->EndTurn(last, std::move(done));
        });
  };
  hooks.on_failure = [self] { self->exchange_->Post([self] { self->DeleteSession(); }); };
  (void)memory_.HoldOnly(std::ssize(input_));  // less
  std::unique_ptr<AnswerForm> form =
      NewResponseForm(id, std::move(response_.echo), header_, response_.job.options, Keeper());
  std::make_shared<CompletionRun>(exchange_, std::move(response_.job), std::move(form),
                                  api_.service(), std::move(hooks))
      ->Start();
}

std::function<void(const std::string&)> ResponseRun::Keeper() {
  if (!response_.store || session_.empty()) return nullptr;
  // The session is deleted if the request fails; its response is not made then.
  return [self = shared_from_this(), session = session_](const std::string& response) {
    const HttpRequest& request = self->exchange_->request();
    const auto tenant = TenantOf(request.caller.get(), request.Headers(kTenantHeader));
    if (!tenant.has_value()) return;
    self->api_.texts()->Keep(
        {*tenant, session}, request.principal.name,
        {.body = response, .input = self->input_, .previous = self->response_.previous.session});
  };
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
  Call<v1::AppendResponse>("Append", request, [done = std::move(done)](const auto& appended) {
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
  Call<v1::DeleteSessionResponse>("DeleteSession", request, [](const auto&) {});
}

void DeleteResponse(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                    const HttpApi& api) {
  const Result<StoredResponses::Key> key = KeyOf(exchange->request(), id);
  if (!key.ok()) return ReplyError(exchange.get(), key.status());
  v1::DeleteSessionRequest request;
  request.set_session(key->second);
  const auto remove = [exchange, id, key = *key, &api](const Status& session) -> Status {
    // The session may have given way before its text.
    const bool gone = session.code() == Code::kNotFound;
    if (!gone) PS_RETURN_IF_ERROR(session);
    PS_ASSIGN_OR_RETURN(const bool kept, RemoveResponse(key, api.texts(), api.store()));
    if (gone && !kept) return NoSuchResponse(id);
    const nlohmann::ordered_json json = {{"id", id}, {"object", "response"}, {"deleted", true}};
    exchange->Reply(200, kJsonType, JsonText(json));
    return Status();
  };
  CallUnary<v1::DeleteSessionResponse>(
      *api.router(), exchange, "DeleteSession", request,
      [exchange, remove, &api](const auto& deleted) {
        api.RunOnStore(exchange, [remove, status = deleted.status()](const chat::HoldMemory&) {
          return remove(status);
        });
      });
}

Status RetrieveResponse(HttpExchange* exchange, const std::string& id, const chat::HoldMemory& hold,
                        const HttpApi& api) {
  PS_ASSIGN_OR_RETURN(const Parameters query, QueryOf(exchange->request()));
  if (std::ranges::find(query, Parameters::value_type("stream", "true")) != query.end())
    return InvalidArgument("stream: expected false, found true: a stored response has ended");
  PS_ASSIGN_OR_RETURN(const StoredResponses::Key key, KeyOf(exchange->request(), id));
  PS_ASSIGN_OR_RETURN(const auto found, FindConversation(key, api.texts(), api.store(), hold, 1));
  return found.empty() ? NoSuchText(id) : ReplyHeld(exchange, found.front()->body);
}

Status ListInputItems(HttpExchange* exchange, const std::string& id, const chat::HoldMemory& hold,
                      const HttpApi& api) {
  PS_ASSIGN_OR_RETURN(const Parameters parameters, QueryOf(exchange->request()));
  PS_ASSIGN_OR_RETURN(const ItemsQuery query, ToItemsQuery(parameters));
  PS_ASSIGN_OR_RETURN(const StoredResponses::Key key, KeyOf(exchange->request(), id));
  PS_ASSIGN_OR_RETURN(const auto conversation,
                      FindConversation(key, api.texts(), api.store(), hold, kMaxTurns));
  if (conversation.empty()) return NoSuchText(id);
  // The page is not larger than all, and one response is parsed at a time.
  int64_t all = 0, largest = 0;
  for (const StoredResponses::Pointer& response : conversation) {
    const int64_t bytes = std::ssize(response->body) + std::ssize(response->input);
    all += bytes;
    largest = std::max(largest, bytes);
  }
  PS_RETURN_IF_ERROR(hold(all + kJsonOfText * largest));
  PS_ASSIGN_OR_RETURN(const std::string page, ItemsPage(conversation, query));
  return ReplyHeld(exchange, page);
}

}  // namespace polysketch
