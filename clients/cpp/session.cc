// polysketch session: the session RPCs. Completions in a session are complete --session.
#include <cstdio>
#include <memory>

#include "clients/cpp/commands.h"
#include "clients/cpp/input.h"
#include "clients/cpp/input_rpc.h"
#include "clients/cpp/json.h"
#include "clients/cpp/unary_rpc.h"

namespace polysketch {
namespace {

using Stub = v1::PolySketch::Stub;

// Ids in a message. The session does not depend on it.
constexpr size_t kChunkTokens = 65536;

// The options of all session commands. The id of the session is CallOptions::session, which is sent
// as metadata too, so that a gateway can route the call.
struct SessionOptions {
  std::string snapshot;
  InputOptions input;
  std::optional<int64_t> expected_position;
  int32_t count = 1;
  int64_t ttl = 0;  // seconds; 0: the default of the server
  bool durable = false;
  bool progress = false;
};

void PrintSession(const v1::Session& session) { std::printf("%s\n", session.session().c_str()); }

int Create(const SessionOptions& options, const CallOptions& call) {
  v1::CreateSessionRequest request;
  request.set_durable(options.durable);
  request.set_ttl_seconds(options.ttl);
  return PrintUnary(call, &Stub::CreateSession, request, PrintSession);
}

int Append(const SessionOptions& options, const CallOptions& call) {
  InputRpc<v1::AppendRequest, v1::AppendResponse> rpc = {.method = &Stub::Append,
                                                         .chunk_tokens = kChunkTokens};
  rpc.first.set_session(call.session);
  if (options.expected_position) rpc.first.set_expected_position(*options.expected_position);
  ProgressLine progress("appending", options.progress);
  v1::AppendResponse last;
  const int code = CallWithInput(call, options.input, rpc, &progress,
                                 [&last](const v1::AppendResponse& response) {
                                   last = response;
                                   return true;
                                 });
  if (code != kExitOk) return code;
  if (!call.json) {
    std::printf("%lld tokens\n", static_cast<long long>(last.session().tokens()));
    return kExitOk;
  }
  Json json = MessageToJson(last.session());
  json["usage"] = MessageToJson(last.usage());
  AddCacheMiss(last.cache_miss(), &json);
  PrintJson(json);
  return kExitOk;
}

int Fork(const SessionOptions& options, const CallOptions& call) {
  v1::ForkSessionRequest request;
  request.set_session(call.session);
  request.set_count(options.count);
  if (options.expected_position) request.set_expected_position(*options.expected_position);
  return CallUnary(call, &Stub::ForkSession, request, [&](const v1::ForkSessionResponse& response) {
    if (call.json) {
      Json json = MessageToJson(response.sessions(0));
      json.update(MessageToJson(response));
      return PrintJson(json);
    }
    for (const v1::Session& session : response.sessions()) PrintSession(session);
  });
}

int TakeSnapshot(const SessionOptions& options, const CallOptions& call) {
  v1::SnapshotSessionRequest request;
  request.set_session(call.session);
  request.set_ttl_seconds(options.ttl);
  return PrintUnary(call, &Stub::SnapshotSession, request, [](const v1::Snapshot& snapshot) {
    std::printf("%s\n", snapshot.snapshot().c_str());
  });
}

int Restore(const SessionOptions& options, const CallOptions& call) {
  v1::RestoreSessionRequest request;
  request.set_snapshot(options.snapshot);
  request.set_durable(options.durable);
  request.set_ttl_seconds(options.ttl);
  return PrintUnary(call, &Stub::RestoreSession, request, PrintSession);
}

void PrintList(const v1::ListSessionsResponse& response) {
  for (const v1::Session& one : response.sessions()) {
    std::printf("session   %s  %10lld tokens  %10lld bytes  %8.0f s idle%s%s\n",
                one.session().c_str(), static_cast<long long>(one.tokens()),
                static_cast<long long>(one.bytes()), one.idle_seconds(),
                one.durable() ? "  durable" : "", one.in_memory() ? "" : "  stored");
  }
  for (const v1::Snapshot& one : response.snapshots()) {
    std::printf("snapshot  %s  %10lld bytes  %8.0f s old\n", one.snapshot().c_str(),
                static_cast<long long>(one.bytes()), one.age_seconds());
  }
}

int List(const SessionOptions&, const CallOptions& call) {
  return PrintUnary(call, &Stub::ListSessions, v1::ListSessionsRequest(), PrintList);
}

int Delete(const SessionOptions&, const CallOptions& call) {
  v1::DeleteSessionRequest request;
  request.set_session(call.session);
  return CallUnary(call, &Stub::DeleteSession, request, [&](const v1::DeleteSessionResponse&) {
    if (call.json) PrintJson({{"deleted", call.session}});
  });
}

// What a command takes.
enum : unsigned {
  kId = 1,
  kSnapshot = 2,
  kInput = 4,
  kPosition = 8,
  kCount = 16,
  kDurable = 32,
  kTtl = 64
};

struct Action {
  const char* name;
  const char* description;
  unsigned takes;
  int (*run)(const SessionOptions&, const CallOptions&);
};

constexpr Action kActions[] = {
    {"create", "Creates an empty session and prints its id.", kDurable | kTtl, Create},
    {"append", "Appends input to a session and prints its length.", kId | kInput | kPosition,
     Append},
    {"fork", "Creates copies of a session and prints their ids.", kId | kCount | kPosition, Fork},
    {"snapshot", "Stores a copy of a session and prints its key.", kId | kTtl, TakeSnapshot},
    {"restore", "Creates a session from a snapshot and prints its id.", kSnapshot | kDurable | kTtl,
     Restore},
    {"list", "Lists the sessions and snapshots of the tenant.", 0, List},
    {"delete", "Deletes a session or a snapshot.", kId, Delete},
};

void AddOptions(CLI::App* command, unsigned takes, std::string* id, SessionOptions* options) {
  if (takes & kId) AddArgument(command, "ID", "Session id.", id);
  if (takes & kSnapshot) AddArgument(command, "KEY", "Snapshot key.", &options->snapshot);
  if (takes & kInput) {
    options->input.AddText(command);
    options->input.AddTokens(command);
    AddFlag(command, "--progress", kProgressHelp, &options->progress);
  }
  if (takes & kPosition) {
    AddOption(command, "--expected-position", "N", "Fails unless the session holds N tokens.",
              &options->expected_position);
  }
  if (takes & kCount)
    AddOption(command, "--count", "N", "Number of copies, 1 to 64.", &options->count);
  if (takes & kDurable) {
    AddFlag(command, "--durable", "Writes the session to the state store before each response.",
            &options->durable);
  }
  if (takes & kTtl) {
    AddOption(command, "--ttl", "SECONDS",
              "Idle time until deletion, of a snapshot its age. 0: --session-ttl of\nthe server.",
              &options->ttl);
  }
}

}  // namespace

void AddSession(CommandLine* line) {
  CLI::App* const session = AddCommand(
      line->app, "session", "Manages sessions.", nullptr,
      "A session keeps a sequence between requests. complete --session ID continues it.");
  const auto options = std::make_shared<SessionOptions>();
  for (const Action& action : kActions) {
    CLI::App* const command = AddCallCommand(session, action.name, action.description, line,
                                             [=] { return action.run(*options, line->call); });
    AddOptions(command, action.takes, &line->call.session, options.get());
  }
}

}  // namespace polysketch
