#include "server/credentials/guard.h"

#include <openssl/crypto.h>
#include <strings.h>

#include <utility>

#include "base/logging.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

constexpr std::string_view kScheme = "Bearer ";

Status Unauthenticated(const char* message) { return Status(Code::kUnauthenticated, message); }

Status BeyondLimit(const ApiKey& key, int64_t limit, const char* what) {
  return ResourceExhausted("the API key ", key.name, ": expected at most ", limit, " ", what,
                           " a minute")
      .WithReason(Reason::kRateLimited);
}

// Returns the key of "Bearer KEY"; empty for another form.
std::string_view BearerKey(std::string_view value) {
  if (value.size() <= kScheme.size() ||
      strncasecmp(value.data(), kScheme.data(), kScheme.size()) != 0) {
    return {};
  }
  value.remove_prefix(std::min(value.size(), value.find_first_not_of(' ', kScheme.size())));
  return value;
}

}  // namespace

Result<int64_t> Caller::ReserveTokens(int64_t tokens, RateLimit::Clock::time_point now) const {
  const int64_t limit = key_.tokens_per_minute;
  const int64_t taken = limit == 0 ? 0 : std::min(tokens, limit);
  const std::lock_guard lock(used_->mutex);
  const bool alone = used_->reserving == (reservations_ > 0 ? 1 : 0);
  const bool goes_on = alone && reservations_ > 0;
  const auto wait = used_->tokens.Wait(limit, static_cast<double>(alone ? 1 : taken), now);
  if (!goes_on && wait.count() > 0) {
    (*used_->refused)[static_cast<size_t>(Refusal::kTokens)].fetch_add(1);
    return BeyondLimit(key_, limit, "tokens").WithRetryAfter(wait);
  }
  used_->tokens.Use(static_cast<double>(taken));
  if (reservations_++ == 0) ++used_->reserving;
  return taken;
}

void Caller::SettleTokens(int calls, int64_t reserved, int64_t used) const {
  const std::lock_guard lock(used_->mutex);
  reservations_ -= calls;
  if (calls > 0 && reservations_ == 0) --used_->reserving;
  const auto more = static_cast<double>(used - reserved);
  more < 0 ? used_->tokens.Return(-more) : used_->tokens.Use(more);
}

Result<std::unique_ptr<Guard>> Guard::Open(const std::string& path) {
  PS_ASSIGN_OR_RETURN(std::vector<std::string> files, ReadFiles({path}));
  std::unique_ptr<Guard> guard(new Guard(path));
  PS_RETURN_IF_ERROR(guard->Load(files.front()));
  guard->watch_ = std::make_unique<FileWatch>(
      std::vector<std::string>{path}, std::move(files),
      [guard = guard.get()](const Result<std::vector<std::string>>& changed) {
        guard->Reload(changed);
      });
  return guard;
}

Status Guard::Load(const std::string& text) {
  Result<std::vector<ApiKey>> keys = ParseApiKeys(text);
  if (!keys.ok()) return Prefixed(path_ + ": ", keys.status());
  const std::lock_guard lock(mutex_);
  std::unordered_map<std::string, std::shared_ptr<Caller::Used>> used;
  for (const auto& caller : callers_) used[caller->key().name] = caller->used();
  Callers callers;
  for (ApiKey& key : *keys) {
    std::shared_ptr<Caller::Used>& mine = used[key.name];
    if (mine == nullptr) mine = std::make_shared<Caller::Used>();
    mine->refused = refused_;
    callers.push_back(std::make_shared<Caller>(std::move(key), mine));
  }
  callers_ = std::move(callers);
  LogInfo("api_keys_loaded", {{"file", path_}, {"keys", callers_.size()}});
  return Status();
}

void Guard::Reload(const Result<std::vector<std::string>>& files) {
  const Status status = files.ok() ? Load(files->front()) : files.status();
  if (!status.ok()) LogWarning("api_keys_not_reloaded", {{"reason", status.message()}});
}

std::shared_ptr<const Caller> Guard::Find(std::string_view key) const {
  const Sha256 hash = Sha256Of(key);
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Caller> found;
  // All keys, whole: the time tells nothing about them.
  for (const auto& caller : callers_) {
    if (CRYPTO_memcmp(caller->key().sha256.data(), hash.data(), hash.size()) == 0) found = caller;
  }
  return found;
}

Guard::Decision Guard::Decide(const std::vector<std::string_view>& authorization,
                              RateLimit::Clock::time_point now,
                              std::shared_ptr<const Caller>* caller) const {
  const std::string_view key =
      authorization.size() == 1 ? BearerKey(authorization.front()) : std::string_view();
  if (key.empty()) {
    return {
        Refusal::kNoKey,
        Unauthenticated(authorization.empty()
                            ? "authorization: expected \"Bearer KEY\", found none"
                            : "authorization: expected \"Bearer KEY\" once, found another form")};
  }
  *caller = Find(key);
  if (*caller == nullptr) {
    return {Refusal::kUnknownKey,
            Unauthenticated("authorization: expected an API key of this server, found another")};
  }
  const ApiKey& limits = (*caller)->key();
  Caller::Used& used = *(*caller)->used();
  const std::lock_guard lock(used.mutex);
  const auto wait_for_request = used.requests.Wait(limits.requests_per_minute, 1, now);
  if (wait_for_request.count() > 0) {
    return {Refusal::kRequests, BeyondLimit(limits, limits.requests_per_minute, "requests")
                                    .WithRetryAfter(wait_for_request)};
  }
  // While requests hold tokens, ReserveTokens knows better when those of this one fit.
  const auto wait_for_token = used.reserving > 0
                                  ? std::chrono::milliseconds(0)
                                  : used.tokens.Wait(limits.tokens_per_minute, 1, now);
  if (wait_for_token.count() > 0) {
    return {Refusal::kTokens,
            BeyondLimit(limits, limits.tokens_per_minute, "tokens").WithRetryAfter(wait_for_token)};
  }
  used.requests.Use(1);
  return {};
}

Result<std::shared_ptr<const Caller>> Guard::Admit(
    const std::vector<std::string_view>& authorization, RateLimit::Clock::time_point now) {
  std::shared_ptr<const Caller> caller;
  const auto [refusal, status] = Decide(authorization, now, &caller);
  if (status.ok()) return std::make_shared<const Caller>(caller->key(), caller->used());
  (*refused_)[static_cast<size_t>(*refusal)].fetch_add(1);
  return status;
}

RefusedCounts Guard::refused() const {
  RefusedCounts counts{};
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = (*refused_)[i].load();
  return counts;
}

}  // namespace polysketch
