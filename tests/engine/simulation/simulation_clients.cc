// The clients of a simulation, and what the server does for them around the scheduler
// (server/rpc/completion.cc): a queue that may be full, and a thread for the store.
#include <algorithm>
#include <utility>

#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/score_sequence.h"
#include "tests/engine/simulation/simulation.h"

namespace polysketch::testing {

using namespace std::chrono_literals;

void Simulation::Arrive() {
  auto client = std::make_unique<Client>();
  client->next_act = now_;
  client->info.arrival = now_;
  client->info.priority = static_cast<int>(random_.Int(0, kMaxPriority));
  if (random_.Uniform() < 0.1) {
    client->info.deadline = now_ + std::chrono::microseconds(random_.Int(0, 200'000));
  }
  client->capacity = static_cast<size_t>(random_.Uniform() < 0.5 ? random_.Int(1, 8) : 1000);
  client->bite = random_.Int(1, 30);
  if (random_.Uniform() < 0.4) client->pace = std::chrono::microseconds(random_.Int(100, 30'000));
  if (random_.Uniform() < 0.15) {
    client->leaves = now_ + std::chrono::microseconds(random_.Int(0, 300'000));
  }
  if (random_.Uniform() < 0.05) client->next_act += 1h;  // reads nothing, ever
  ++happened_.requests;
  Client* arrived = clients_.emplace_back(std::move(client)).get();
  if (table_ != nullptr && random_.Uniform() < 0.4) {
    const int64_t session = random_.Int(0, std::ssize(sessions_) - 1);
    arrived->session = sessions_[static_cast<size_t>(session)].get();
    arrived->info.tenant = arrived->info.principal.name = arrived->session->tenant;
    return store_thread_.Post([this, arrived] { TakeSession(arrived); });
  }
  arrived->info.tenant = arrived->info.principal.name = StrCat("tenant-", random_.Int(0, 3));
  const auto& single = requests_.single;
  arrived->request = &single[static_cast<size_t>(random_.Int(0, std::ssize(single) - 1))];
  if (QueueIsFull()) {
    ++happened_.refused;
    return Refuse(arrived, ResourceExhausted("the queue is full"));
  }
  Submit(arrived, nullptr);
}

bool Simulation::QueueIsFull() const {
  const auto alive = std::count_if(clients_.begin(), clients_.end(), [](const auto& client) {
    return client->submitted && client->endings == 0;
  });
  return alive >= options_.max_sequences + max_queue_;
}

void Simulation::Submit(Client* client, std::shared_ptr<const Snapshot> start) {
  client->id = next_id_++;
  client->stream = std::make_shared<EventStream>(client->capacity, [this] { return now_; });
  client->endings = 0;
  client->submitted = true;
  client->ready_since = now_;
  Note(client->id);
  const SimulatedRequest& request = *client->request;
  if (request.score) {
    client->feed = std::make_shared<TokenFeed>(100);
    scheduler_->Add(std::make_unique<ScoreSequence>(
        context_, client->id, ScoreRequest{client->info, client->feed}, client->stream));
    return;
  }
  GenerateRequest work{.info = client->info,
                       .prompt = request.tokens,
                       .params = request.params,
                       .start = std::move(start),
                       .keep = client->session != nullptr};
  int64_t max_tokens = *request.params.max_tokens;
  uint64_t seed = *request.params.sampling.seed;
  if (work.start != nullptr && work.start->generation) {
    const Generation& generation = *work.start->generation;
    work.prompt = {};
    work.params = generation.params;
    max_tokens = generation.max_tokens;
    seed = generation.seed;
    ++happened_.resumed;
  } else {
    happened_.forks += request.params.best_of - 1;
  }
  scheduler_->Add(std::make_unique<GenerateSequence>(context_, client->id, std::move(work),
                                                     max_tokens, seed, client->stream));
}

// --- on the store thread ---

void Simulation::TakeSession(Client* client) {
  if (client->cancelled) return Refuse(client, Status(Code::kCancelled, "left"));
  Session* session = client->session;
  if (const Status settled = Settle(session); !settled.ok()) return Refuse(client, settled);
  if (const Status ready = Prepare(session); !ready.ok()) return Refuse(client, ready);
  auto lease = table_->Acquire({session->tenant}, session->id, session->tokens());
  if (!lease.ok()) return Refuse(client, lease.status());
  CheckSessionMemory();
  if (QueueIsFull()) {
    ++happened_.refused;
    return Refuse(client, ResourceExhausted("the queue is full"));
  }
  client->lease.emplace(*std::move(lease));
  client->request = &(*session->turns)[session->turn];
  Submit(client, client->lease->snapshot());
}

Status Simulation::Settle(Session* session) {
  if (!session->unknown) return Status();
  int64_t tokens = 0;
  {
    PS_ASSIGN_OR_RETURN(const SessionLease lease,
                        table_->Acquire({session->tenant}, session->id, std::nullopt));
    tokens = lease.tokens();
  }
  session->unknown = false;
  if (tokens == session->tokens()) return Status();
  if (tokens != (*session->turns)[session->turn].session_tokens)
    Fail("session ", session->id, " has ", tokens, " tokens after a commit");
  EndTurn(session);
  return Status();
}

void Simulation::EndTurn(Session* session) {
  ++happened_.turns;
  if (++session->turn < session->turns->size()) return;
  (void)table_->Delete(session->tenant, session->id);
  session->id.clear();
  session->turn = 0;
}

// Makes it, or puts a fork or a restored snapshot in its place.
Status Simulation::Prepare(Session* session) {
  const double kind = random_.Uniform();
  std::string key;
  Result<SessionInfo> made = NotFound("");
  if (session->id.empty()) {
    made = table_->Create({session->tenant, {session->tenant}}, session->durable, 0ms);
  } else if (kind < 0.1) {
    auto forks = table_->Fork({session->tenant}, session->id, 1, session->tokens());
    if (!forks.ok()) return forks.status();
    made = (*forks)[0];
  } else if (kind < 0.2 && session->turn > 0) {
    const auto taken = table_->TakeSnapshot({session->tenant}, session->id, 1h);
    if (!taken.ok()) return taken.status();
    key = taken->key;
    made = table_->Restore({session->tenant}, key, session->durable, 0ms);
    (void)table_->Delete(session->tenant, key);
  } else {
    return Status();
  }
  if (!made.ok()) return made.status();
  // The previous session may stay when the store fails; then no client knows its id.
  if (!session->id.empty()) (void)table_->Delete(session->tenant, session->id);
  session->id = made->id;
  return Status();
}

void Simulation::OnFinish(Client* client) {
  const FinishEvent finish = *client->got.finish;
  Note(static_cast<uint64_t>(finish.reason));
  ++happened_.reasons[static_cast<int>(finish.reason)];
  if (client->endings != 1) Fail("request ", client->id, " ended ", client->endings, " times");
  if (finish.snapshot != nullptr) {
    largest_snapshot_ = std::max(largest_snapshot_, finish.snapshot->bytes());
  }
  client->end = finish.snapshot;
  if (finish.reason == FinishReason::kMigrated) {
    if (drains_ == 0) return Fail("request ", client->id, " was migrated without a MigrateAll");
    client->submitted = false;
    client->got.finish.reset();
    return store_thread_.Post([this, client] { Stop(client); });
  }
  CheckEnd(*client);
  if (client->session != nullptr && finish.status.ok()) {
    return store_thread_.Post([this, client] { Commit(client); });
  }
  client->lease.reset();
  client->over = true;
}

void Simulation::Stop(Client* client) {
  Snapshot stopped = *client->end;
  if (client->lease) {
    stopped.generation->session = client->lease->id();
    stopped.generation->session_tokens = client->lease->tokens();
  }
  const auto token = table_->PutMigrated(client->info.tenant, stopped, 1h);
  client->lease.reset();
  if (!token.ok()) return Refuse(client, token.status());
  client->resume_token = *token;
  store_thread_.Post([this, client] { Resume(client); });
}

void Simulation::Resume(Client* client) {
  if (client->cancelled) return Refuse(client, Status(Code::kCancelled, "left"));
  const auto stopped = table_->GetMigrated(client->info.tenant, client->resume_token);
  if (!stopped.ok()) return Refuse(client, stopped.status());
  if (QueueIsFull()) {  // it tries again later
    ++happened_.refused;
    return store_thread_.Post([this, client] { Resume(client); });
  }
  const Generation& generation = *(*stopped)->generation;
  if (client->session != nullptr) {
    if (const Status settled = Settle(client->session); !settled.ok())
      return Refuse(client, settled);
    const Session& session = *client->session;
    if (generation.session != session.id || generation.session_tokens != session.tokens()) {
      return Refuse(client, Status(Code::kAborted, "another request used the session in between"));
    }
    auto lease = table_->Acquire({client->info.tenant, client->info.principal}, generation.session,
                                 generation.session_tokens);
    if (!lease.ok()) return Refuse(client, lease.status());
    CheckSessionMemory();
    client->lease.emplace(*std::move(lease));
  }
  Submit(client, *stopped);
}

void Simulation::Commit(Client* client) {
  Session* session = client->session;
  const auto done = table_->Commit(*std::move(client->lease), client->end);
  client->lease.reset();
  session->unknown = IsOutcomeUnknown(done.status());
  if (!done.ok()) return Refuse(client, done.status());
  if (done->tokens != client->request->session_tokens) {
    Fail("session ", session->id, " has ", done->tokens, " tokens, expected ",
         client->request->session_tokens);
  }
  client->over = true;
  EndTurn(session);
}

void Simulation::Refuse(Client* client, const Status& status) {
  Note(static_cast<uint64_t>(status.code()));
  client->lease.reset();
  client->over = true;
  switch (status.code()) {
    case Code::kAborted:
      ++happened_.contended;
      return;
    case Code::kResourceExhausted:
      return;
    case Code::kCancelled:
      if (client->cancelled) return;
      break;
    case Code::kUnavailable:
      if (store_ != nullptr && store_->failures > 0) return;
      break;
    default:
      break;
  }
  Fail("request ", client->id, ": ", status.ToString());
}

void Simulation::CheckSessionMemory() {
  table_->Maintain();  // as the server's timer does: of sessions whose lease ended without a commit
  // Beyond the limit: those in use, the one that was just taken, and what the store refuses.
  const auto leases = static_cast<size_t>(std::count_if(
      clients_.begin(), clients_.end(), [](const auto& c) { return c->lease.has_value(); }));
  const size_t unspilled = store_ == nullptr || store_->failing == 0 ? 0 : sessions_.size();
  const size_t room = store_ == nullptr ? 0 : (leases + 1 + unspilled) * largest_snapshot_;
  const SessionStats stats = table_->stats();
  if (stats.memory_bytes > stats.memory_limit + room) {
    Fail("sessions take ", stats.memory_bytes, " bytes of ", stats.memory_limit);
  }
}

// Each session is where its last turn left it, and none is leased.
void Simulation::CheckSessions() {
  if (table_ == nullptr) return;
  if (store_ != nullptr) store_->failing = 0;
  for (const auto& session : sessions_) {
    if (const Status settled = Settle(session.get()); !settled.ok())
      Fail("session ", session->id, " in the end: ", settled.ToString());
    if (session->id.empty()) continue;
    const auto lease = table_->Acquire({session->tenant}, session->id, session->tokens());
    if (!lease.ok()) Fail("session ", session->id, " in the end: ", lease.status().ToString());
  }
}

}  // namespace polysketch::testing
