// polysketch session: what a session can do besides complete --session.
#include <cstdio>
#include <iostream>
#include <utility>

#include "clients/cpp/commands.h"
#include "clients/cpp/input.h"
#include "clients/cpp/input_rpc.h"
#include "clients/cpp/json.h"
#include "clients/cpp/unary_rpc.h"

namespace polysketch {
namespace {

using Stub = v1::PolySketch::Stub;

// Ids of a message. Any size gives the same session.
constexpr size_t kChunkTokens = 65536;

void PrintSession(const v1::Session& session, bool json) {
  if (json) return PrintJson(MessageToJson(session));
  std::printf("%s\n", session.session().c_str());
}

int Create(Arguments args, CallOptions call, const std::string&) {
  v1::CreateSessionRequest request;
  bool durable = false;
  Options options("session create [options]", "An empty session; prints its id.");
  options.Switch("--durable", "it survives the server; needs --state-store there", &durable);
  options.Field<int32_t>("--ttl", "SECONDS", "life without use; default: the server's",
                         [&request](int32_t ttl) { request.set_ttl_seconds(ttl); });
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;
  request.set_durable(durable);
  v1::Session session;
  const grpc::Status status = CallUnary(call, &Stub::CreateSession, request, &session);
  if (!status.ok()) return ReportRpcError(status, call);
  PrintSession(session, call.json);
  return kExitOk;
}

int SendAppend(const CallOptions& call, const InputOptions& input, InputFile* file,
               v1::AppendRequest first, bool show_progress) {
  const InputRpc<v1::AppendRequest, v1::AppendResponse> rpc = {
      .method = &Stub::Append, .chunk_tokens = kChunkTokens, .first = std::move(first)};
  ProgressLine progress("appending", show_progress);
  v1::AppendResponse last;
  const int code = CallWithInput(call, input, file, rpc, &progress,
                                 [&last](const v1::AppendResponse& response) { last = response; });
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

int Append(Arguments args, CallOptions call, const std::string& id) {
  InputOptions input;
  v1::AppendRequest request;
  bool progress = false;
  Options options("session append ID (--prompt TEXT | --prompt-file F | --prompt-tokens F)",
                  "Adds input of any length to a session; prints its length.");
  input.AddText(&options);
  input.AddTokens(&options);
  options.Field<uint64_t>(
      "--expected-position", "N", "refuse unless the session is at N tokens",
      [&request](uint64_t n) { request.set_expected_position(static_cast<int64_t>(n)); });
  options.Switch("--progress", "show how far it is, also without a terminal", &progress);
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;
  if (const Status status = input.Check(); !status.ok()) return ReportUsageError(status);
  const auto file = input.Open();
  if (!file.ok()) return ReportUsageError(file.status());
  request.set_session(id);
  return SendAppend(call, input, file->get(), std::move(request), progress);
}

int Fork(Arguments args, CallOptions call, const std::string& id) {
  v1::ForkSessionRequest request;
  request.set_session(id);
  Options options("session fork ID [options]", "Sessions with the same past; prints their ids.");
  options.Field<int32_t>("--count", "N", "how many; default 1",
                         [&request](int32_t n) { request.set_count(n); });
  options.Field<uint64_t>(
      "--expected-position", "N", "refuse unless the session is at N tokens",
      [&request](uint64_t n) { request.set_expected_position(static_cast<int64_t>(n)); });
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;
  v1::ForkSessionResponse response;
  const grpc::Status status = CallUnary(call, &Stub::ForkSession, request, &response);
  if (!status.ok()) return ReportRpcError(status, call);
  if (!call.json) {
    for (const v1::Session& session : response.sessions()) PrintSession(session, false);
    return kExitOk;
  }
  Json json = MessageToJson(response.sessions(0));  // "session": the first
  json["sessions"] = Json::array();
  for (const v1::Session& session : response.sessions()) {
    json["sessions"].push_back(MessageToJson(session));
  }
  PrintJson(json);
  return kExitOk;
}

int TakeSnapshot(Arguments args, CallOptions call, const std::string& id) {
  v1::SnapshotSessionRequest request;
  request.set_session(id);
  Options options("session snapshot ID [options]",
                  "A copy that stays when the session goes on; prints its key.");
  options.Field<int32_t>("--ttl", "SECONDS", "its life; default: the server's",
                         [&request](int32_t ttl) { request.set_ttl_seconds(ttl); });
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;
  v1::Snapshot snapshot;
  const grpc::Status status = CallUnary(call, &Stub::SnapshotSession, request, &snapshot);
  if (!status.ok()) return ReportRpcError(status, call);
  if (call.json) {
    PrintJson(MessageToJson(snapshot));
  } else {
    std::printf("%s\n", snapshot.snapshot().c_str());
  }
  return kExitOk;
}

int Restore(Arguments args, CallOptions call, const std::string& key) {
  v1::RestoreSessionRequest request;
  request.set_snapshot(key);
  bool durable = false;
  Options options("session restore KEY [options]", "A session from a snapshot; prints its id.");
  options.Switch("--durable", "it survives the server", &durable);
  options.Field<int32_t>("--ttl", "SECONDS", "life without use; default: the server's",
                         [&request](int32_t ttl) { request.set_ttl_seconds(ttl); });
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;
  request.set_durable(durable);
  v1::Session session;
  const grpc::Status status = CallUnary(call, &Stub::RestoreSession, request, &session);
  if (!status.ok()) return ReportRpcError(status, call);
  PrintSession(session, call.json);
  return kExitOk;
}

int List(Arguments args, CallOptions call, const std::string&) {
  Options options("session list [options]", "The tenant's sessions and snapshots.");
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;
  v1::ListSessionsResponse response;
  const grpc::Status status =
      CallUnary(call, &Stub::ListSessions, v1::ListSessionsRequest(), &response);
  if (!status.ok()) return ReportRpcError(status, call);
  if (call.json) {
    Json json;
    json["sessions"] = Json::array();
    json["snapshots"] = Json::array();
    for (const auto& one : response.sessions()) json["sessions"].push_back(MessageToJson(one));
    for (const auto& one : response.snapshots()) json["snapshots"].push_back(MessageToJson(one));
    PrintJson(json);
    return kExitOk;
  }
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
  return kExitOk;
}

int Delete(Arguments args, CallOptions call, const std::string& id) {
  Options options("session delete ID [options]", "Deletes a session or a snapshot.");
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;
  v1::DeleteSessionRequest request;
  request.set_session(id);
  v1::DeleteSessionResponse response;
  const grpc::Status status = CallUnary(call, &Stub::DeleteSession, request, &response);
  if (!status.ok()) return ReportRpcError(status, call);
  if (call.json) PrintJson({{"deleted", id}});
  return kExitOk;
}

struct Action {
  const char* name;
  const char* operand;  // null: none
  const char* summary;
  int (*run)(Arguments, CallOptions, const std::string&);
};

constexpr Action kActions[] = {
    {"create", nullptr, "an empty session", Create},
    {"append", "ID", "adds input of any length", Append},
    {"fork", "ID", "sessions with the same past", Fork},
    {"snapshot", "ID", "a copy that stays", TakeSnapshot},
    {"restore", "KEY", "a session from a snapshot", Restore},
    {"list", nullptr, "sessions and snapshots", List},
    {"delete", "ID", "deletes a session or a snapshot", Delete},
};

std::string Help() {
  std::string help =
      "Usage: polysketch session ACTION [ID] [options]\n"
      "Sequences that wait on the server for their next request; complete --session ID goes on\n"
      "with one.\n\n";
  for (const Action& action : kActions) {
    std::string left = action.name;
    if (action.operand != nullptr) left += std::string(" ") + action.operand;
    help += "  " + left + std::string(14 - left.size(), ' ') + action.summary + "\n";
  }
  return help;
}

}  // namespace

int RunSession(Arguments args, CallOptions call) {
  if (!args.empty() && args.front() == "--help") {
    std::cout << Help();
    return kExitOk;
  }
  if (args.empty()) {
    std::cerr << Help();
    return kExitUsage;
  }
  const std::string name = args.front();
  args.pop_front();
  for (const Action& action : kActions) {
    if (name != action.name) continue;
    std::string operand;
    const bool help = !args.empty() && args.front() == "--help";
    if (action.operand != nullptr && !help) {
      if (args.empty() || args.front().starts_with("-")) {
        return ReportUsageError(
            InvalidArgument("session ", name, ": expected ", action.operand, " behind it"));
      }
      operand = args.front();
      args.pop_front();
    }
    if (std::string_view(action.operand == nullptr ? "" : action.operand) == "ID")
      call.session = operand;
    return action.run(std::move(args), std::move(call), operand);
  }
  return ReportUsageError(
      InvalidArgument("there is no session ", name, "; polysketch session --help lists them"));
}

}  // namespace polysketch
