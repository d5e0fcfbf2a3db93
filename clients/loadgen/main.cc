// polysketch-loadgen: sends a load to a PolySketch server and reports throughput and latencies.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

#include "base/standard_descriptors.h"
#include "clients/cpp/first_signal.h"
#include "clients/cpp/json.h"
#include "clients/cpp/options.h"
#include "clients/cpp/rpc.h"
#include "clients/cpp/terminal.h"
#include "clients/loadgen/runner.h"
#include "polysketch_build_info.h"

namespace polysketch::loadgen {
namespace {

constexpr int64_t kMaxCount = 1 << 24;

std::atomic<bool> interrupted = false;

struct CommandLine {
  RunOptions run;
  WorkloadOptions workload;
  Objective objective;
  std::string arrivals = "poisson";
  std::string http;  // address; empty: gRPC
  int64_t connections = 1;
  double warmup = 0;
  bool quiet = false;
};

void AddCount(CLI::App* app, const char* name, const char* help, int64_t min, int64_t* target) {
  AddNumber(app, name, "N", help, min, kMaxCount, target);
}

void AddSeconds(CLI::App* app, const char* name, const char* help, double* target) {
  AddNumber(app, name, "SECONDS", help, 0, 1e9, target);
}

void AddLength(CLI::App* app, const char* name, const char* help, Distribution* target) {
  *target = *Distribution::Parse("128");
  const auto parse = [target](const std::string& text) -> Status {
    PS_ASSIGN_OR_RETURN(*target, Distribution::Parse(text));
    return Status();
  };
  AddOption(app, name, "DIST", help, parse, target->text());
}

void AddOptions(CLI::App* app, CommandLine* c) {
  AddConnectionOptions(app, &c->run.call.connection);
  AddOption(app, "--http", "HOST:PORT",
            "Sends completions over HTTP to this address: server-sent events of\n"
            "/v1/completions. Model and sessions still use --server.",
            &c->http);
  AddCount(app, "--concurrency", "Closed loop: requests in flight.", 1, &c->run.concurrency);
  AddNumber(app, "--rate", "R", "Open loop: requests a second. 0: closed loop.", 0, 1e9,
            &c->run.rate);
  const auto parse_arrivals = [c](const std::string& text) {
    c->arrivals = text;
    if (text == "poisson" || text == "constant") return Status();
    return InvalidArgument("expected poisson or constant, found '", text, "'");
  };
  AddOption(app, "--arrivals", "KIND", "Times between the requests of --rate: poisson, constant.",
            parse_arrivals, c->arrivals);
  AddCount(app, "--requests", "Requests to start. 0: 100, or no limit with --duration.", 0,
           &c->run.requests);
  AddSeconds(app, "--duration", "Time in which requests start. 0: no limit.", &c->run.duration);
  AddSeconds(app, "--warmup", "Excludes requests that were due earlier from the report.",
             &c->warmup);
  AddLength(app, "--prompt-tokens", "New tokens of a prompt.", &c->workload.prompt_tokens);
  AddLength(app, "--output-tokens", "Tokens of an output.", &c->workload.output_tokens);
  AddCount(app, "--shared-prefix", "Tokens of a prefix that prompts share.", 0,
           &c->workload.shared_prefix);
  AddCount(app, "--prefixes", "Number of shared prefixes.", 1, &c->workload.prefixes);
  AddCount(app, "--turns", "Turns of a conversation, whose prompts repeat the conversation.", 1,
           &c->workload.turns);
  AddFlag(app, "--sessions", "Runs each conversation in a session: a turn sends its new tokens.",
          &c->run.sessions);
  AddOption(app, "--temperature", "T", "Sampling temperature. 0: greedy.", &c->run.temperature);
  AddOption(app, "--seed", "N", "Seed of prompts, lengths and sampling.", &c->workload.seed);
  AddCount(app, "--connections", "gRPC connections. HTTP has one a request in flight.", 1,
           &c->connections);
  AddSeconds(app, "--timeout", "Deadline of a request. 0: none.", &c->run.call.timeout);
  AddSeconds(app, "--objective-first-token", "Goodput: limit of the time to first token. 0: none.",
             &c->objective.first_token);
  AddSeconds(app, "--objective-output-token",
             "Goodput: limit of the time per output token. 0: none.",
             &c->objective.time_per_output_token);
  AddSeconds(app, "--objective-latency", "Goodput: limit of the end-to-end latency. 0: none.",
             &c->objective.latency);
  AddFlag(app, "--json", "Prints the report as one JSON object.", &c->run.call.json);
  AddFlag(app, "--quiet", "Prints no progress on stderr.", &c->quiet);
}

const Program kProgram = {
    .name = "polysketch-loadgen",
    .version = kVersionAndCommit,
    .description = "Sends a load to a PolySketch server and reports throughput and latencies.",
    .footer =
        "DIST: N, uniform:MIN:MAX, normal:MEAN:DEVIATION, exponential:MEAN or\n"
        "lognormal:MEDIAN:SIGMA.\n"
        "Prompts are random token ids. Outputs ignore the end-of-sequence token. Latencies count\n"
        "from the time at which a request was due. SIGINT cancels the requests in flight and\n"
        "reports. Exit status: 0 all requests succeeded; 1 some failed; 2 bad command line."};

// A connection for each stub: gRPC shares one among channels with equal arguments by default.
std::vector<std::unique_ptr<v1::PolySketch::Stub>> Stubs(const CommandLine& c) {
  std::vector<std::unique_ptr<v1::PolySketch::Stub>> stubs;
  for (int64_t i = 0; i < c.connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::PolySketch::NewStub(
        Connect(c.run.call.connection, kProgram.name, std::move(arguments))));
  }
  return stubs;
}

Json SettingsToJson(const CommandLine& c) {
  Json json;
  if (c.run.rate > 0) {
    json["rate"] = c.run.rate;
    json["arrivals"] = c.arrivals;
  } else {
    json["concurrency"] = c.run.concurrency;
  }
  json["requests"] = c.run.requests;
  json["duration_seconds"] = c.run.duration;
  json["warmup_seconds"] = c.warmup;
  json["prompt_tokens"] = c.workload.prompt_tokens.text();
  json["output_tokens"] = c.workload.output_tokens.text();
  json["shared_prefix"] = c.workload.shared_prefix;
  json["prefixes"] = c.workload.prefixes;
  json["turns"] = c.workload.turns;
  json["sessions"] = c.run.sessions;
  json["temperature"] = FloatToJson(c.run.temperature);
  json["seed"] = std::to_string(c.workload.seed);
  json["connections"] = c.connections;
  json["protocol"] = c.http.empty() ? "grpc" : "http";
  json["objective"] = {{"first_token_seconds", c.objective.first_token},
                       {"time_per_output_token_seconds", c.objective.time_per_output_token},
                       {"latency_seconds", c.objective.latency}};
  return json;
}

void Print(const CommandLine& c, const v1::GetModelResponse& model, const Report& report) {
  if (!c.run.call.json) {
    std::cout << report.ToText();
    return;
  }
  PrintJson({{"server", c.run.call.connection.server},
             {"version", model.version()},
             {"commit", model.commit()},
             {"model", model.name()},
             {"device", model.device()},
             {"threads", model.threads()},
             {"weights", model.weight_format()},
             {"max_sequences", model.limits().max_sequences()},
             {"settings", SettingsToJson(c)},
             {"report", report.ToJson()}});
}

Status CheckHttp(const CommandLine& c) {
  if (c.http.empty()) return Status();
  if (c.run.call.connection.tls())
    return InvalidArgument("--http: expected no TLS options: the load generator speaks plain HTTP");
  if (c.workload.turns > 1 && !c.run.sessions)
    return InvalidArgument("--turns: with --http, expected 1 or --sessions: the events have no ",
                           "token ids to repeat, found ", c.workload.turns);
  return Status();
}

Result<std::unique_ptr<HttpClient>> MakeHttpClient(const CommandLine& c) {
  PS_RETURN_IF_ERROR(CheckHttp(c));
  if (c.http.empty()) return std::unique_ptr<HttpClient>();
  return HttpClient::Create({.address = c.http,
                             .api_key = c.run.call.connection.api_key,
                             .timeout = c.run.call.timeout,
                             .temperature = c.run.temperature});
}

int Run(CommandLine c) {
  const Result<std::unique_ptr<HttpClient>> http = MakeHttpClient(c);
  if (!http.ok()) return ReportUsageError(http.status(), kProgram.name);
  // Never destroyed: gRPC releases a unary call after its callback, in a thread of its own, and
  // must neither drop the last reference to a channel there nor find the library shut down.
  static const auto* const stubs = new std::vector<std::unique_ptr<v1::PolySketch::Stub>>(Stubs(c));
  v1::GetModelResponse model;
  grpc::ClientContext context;
  CallOptions call = c.run.call;
  call.timeout = 10;
  Prepare(call, &context);
  const grpc::Status status = stubs->front()->GetModel(&context, {}, &model);
  if (!status.ok()) return ReportRpcError(status, call, context);
  if (!c.run.call.json) {
    std::cout << TerminalText(STDOUT_FILENO,
                              StrCat("model ", model.name(), " on ", model.device(), ", max. ",
                                     model.limits().max_sequences(), " sequences\n"));
  }
  signal(SIGINT, [](int number) {
    if (IsFirstSignal(number)) interrupted = true;
  });
  c.workload.vocab_size = model.vocab_size();
  Workload workload(c.workload);
  const std::vector<RequestResult> results =
      Runner(c.run, &workload, *stubs, http->get()).Run(interrupted);
  const Report report = Report::Of(results, c.warmup, HUGE_VAL, c.objective);
  Print(c, model, report);
  return report.ok == report.requests ? kExitOk : kExitFailed;
}

int Main(int argc, char** argv) {
  SilenceGrpc();
  CommandLine c;
  const auto add = [&c](CLI::App* app) { AddOptions(app, &c); };
  if (const auto exit_code = ParseCommandLine(argc, argv, kProgram, add)) return *exit_code;
  WarnOfUnknownVariables(kProgram.name);
  const Status status = ResolveConnection(std::getenv, &c.run.call.connection);
  if (!status.ok()) return ReportUsageError(status, kProgram.name);
  if (c.run.requests == 0 && c.run.duration == 0) c.run.requests = 100;
  c.run.poisson = c.arrivals == "poisson";
  c.run.progress = !c.quiet;
  c.workload.sessions = c.run.sessions;
  return Run(std::move(c));
}

}  // namespace
}  // namespace polysketch::loadgen

int main(int argc, char** argv) {
  const int code = polysketch::loadgen::Main(argc, argv);
  std::fflush(stdout);
  return std::ferror(stdout) != 0 ? polysketch::kExitFailed : code;
}
