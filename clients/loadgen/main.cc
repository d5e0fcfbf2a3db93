// polysketch-loadgen: puts a load on a PolySketch server and says how it was served.
#include <signal.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>

#include "clients/cpp/json.h"
#include "clients/cpp/options.h"
#include "clients/cpp/rpc.h"
#include "clients/loadgen/runner.h"
#include "polysketch_build_info.h"

namespace polysketch::loadgen {
namespace {

std::atomic<bool> interrupted = false;

struct CommandLine {
  CallOptions call;
  RunOptions run;
  Objective objective;
  std::string prompt_tokens = "128";
  std::string output_tokens = "128";
  std::string arrivals = "poisson";
  uint64_t concurrency = 8;
  uint64_t connections = 1;
  uint64_t requests = 0;
  uint64_t shared_prefix = 0;
  uint64_t prefixes = 1;
  uint64_t turns = 1;
  uint64_t seed = 1;
  double warmup = 0;
  bool quiet = false;
  bool help = false;
  bool version = false;
};

Options OptionsOf(CommandLine* c) {
  Options options("[options]", "Puts a load on a PolySketch server and says how it was served.",
                  "polysketch-loadgen");
  options.Value("--server", "HOST:PORT", "default " + DefaultServer(), &c->call.server);
  options.Value("--concurrency", "N", "closed loop: N requests at once, always; default 8",
                &c->concurrency);
  options.Value("--rate", "R", "open loop instead: R requests begin a second, however many run",
                &c->run.rate);
  options.Value("--arrivals", "KIND", "of --rate: poisson (default) or constant", &c->arrivals);
  options.Value("--requests", "N", "begin so many; default 100 unless --duration is given",
                &c->requests);
  options.Value("--duration", "SECONDS", "begin requests for so long", &c->run.duration);
  options.Value("--warmup", "SECONDS", "leave out what began before; default 0", &c->warmup);
  options.Value("--prompt-tokens", "DIST", "new tokens of a prompt; default 128",
                &c->prompt_tokens);
  options.Value("--output-tokens", "DIST", "tokens to generate; default 128", &c->output_tokens);
  options.Value("--shared-prefix", "N", "tokens that prompts have in common, in front; default 0",
                &c->shared_prefix);
  options.Value("--prefixes", "K", "different shared prefixes; default 1", &c->prefixes);
  options.Value("--turns", "N",
                "of a conversation: a turn's prompt is all before it and new tokens; default 1",
                &c->turns);
  options.Switch("--sessions", "each conversation is a session: a turn sends its new tokens alone",
                 &c->run.sessions);
  options.Value("--temperature", "T", "0 is greedy; default 1", &c->run.temperature);
  options.Value("--seed", "N", "of prompts, lengths and sampling; default 1", &c->seed);
  options.Value("--connections", "N", "to spread streams over; default 1", &c->connections);
  options.Value("--timeout", "SECONDS", "of a request; default none", &c->run.timeout);
  options.Value("--objective-first-token", "SECONDS", "of goodput: time to first token",
                &c->objective.first_token);
  options.Value("--objective-output-token", "SECONDS", "of goodput: mean time per output token",
                &c->objective.time_per_output_token);
  options.Value("--objective-latency", "SECONDS", "of goodput: end to end", &c->objective.latency);
  options.Switch("--json", "print one JSON object", &c->call.json);
  options.Switch("--quiet", "no progress on stderr", &c->quiet);
  options.Switch("--version", "print the version", &c->version);
  options.Switch("--help", "print this", &c->help);
  options.Footer(
      "DIST: N, uniform:LEAST:MOST, normal:MEAN:DEVIATION, exponential:MEAN or\n"
      "lognormal:MEDIAN:SIGMA. Prompts are random token ids; outputs go on to the length drawn.\n"
      "Latencies count from when a request was due: an open loop does not wait for a slow server.\n"
      "Ctrl-C ends what runs and reports. Exit status: 0 all requests went well; 1 some did not;\n"
      "2 the command line is wrong.\n");
  return options;
}

Status Check(CommandLine* c, WorkloadOptions* workload) {
  static constexpr uint64_t kMax = 1 << 24;
  const auto range = [](const char* name, uint64_t value, uint64_t least) {
    if (value >= least && value <= kMax) return Status();
    return InvalidArgument(name, ": expected ", least, " to ", kMax, ", found ", value);
  };
  const auto seconds = [](const char* name, double value) {
    if (std::isfinite(value) && value >= 0) return Status();
    return InvalidArgument(name, ": expected a number of at least 0, found ", value);
  };
  PS_RETURN_IF_ERROR(range("--concurrency", c->concurrency, 1));
  PS_RETURN_IF_ERROR(range("--connections", c->connections, 1));
  PS_RETURN_IF_ERROR(range("--requests", c->requests, 0));
  PS_RETURN_IF_ERROR(range("--shared-prefix", c->shared_prefix, 0));
  PS_RETURN_IF_ERROR(range("--prefixes", c->prefixes, 1));
  PS_RETURN_IF_ERROR(range("--turns", c->turns, 1));
  PS_RETURN_IF_ERROR(seconds("--rate", c->run.rate));
  PS_RETURN_IF_ERROR(seconds("--duration", c->run.duration));
  PS_RETURN_IF_ERROR(seconds("--warmup", c->warmup));
  PS_RETURN_IF_ERROR(seconds("--timeout", c->run.timeout));
  if (c->arrivals != "poisson" && c->arrivals != "constant") {
    return InvalidArgument("--arrivals: expected poisson or constant, found '", c->arrivals, "'");
  }
  const auto parsed = [](const char* name, const std::string& text, Distribution* distribution) {
    const Result<Distribution> result = Distribution::Parse(text);
    if (!result.ok()) return InvalidArgument(name, ": ", result.status().message());
    *distribution = *result;
    return Status();
  };
  PS_RETURN_IF_ERROR(parsed("--prompt-tokens", c->prompt_tokens, &workload->prompt_tokens));
  PS_RETURN_IF_ERROR(parsed("--output-tokens", c->output_tokens, &workload->output_tokens));
  if (c->requests == 0 && c->run.duration == 0) c->requests = 100;
  c->run.concurrency = static_cast<int64_t>(c->concurrency);
  c->run.requests = static_cast<int64_t>(c->requests);
  c->run.poisson = c->arrivals == "poisson";
  c->run.progress = !c->quiet;
  workload->shared_prefix = static_cast<int64_t>(c->shared_prefix);
  workload->prefixes = static_cast<int64_t>(c->prefixes);
  workload->turns = static_cast<int64_t>(c->turns);
  workload->sessions = c->run.sessions;
  workload->seed = c->seed;
  return Status();
}

// A connection of its own each: gRPC would share one among channels with equal arguments.
std::vector<std::unique_ptr<v1::PolySketch::Stub>> Stubs(const CommandLine& c) {
  std::vector<std::unique_ptr<v1::PolySketch::Stub>> stubs;
  for (uint64_t i = 0; i < c.connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetUserAgentPrefix("polysketch-loadgen");
    stubs.push_back(v1::PolySketch::NewStub(
        grpc::CreateCustomChannel(c.call.server, grpc::InsecureChannelCredentials(), arguments)));
  }
  return stubs;
}

Json SettingsToJson(const CommandLine& c) {
  Json json;
  if (c.run.rate > 0) {
    json["rate"] = c.run.rate;
    json["arrivals"] = c.arrivals;
  } else {
    json["concurrency"] = c.concurrency;
  }
  json["requests"] = c.requests;
  json["duration_seconds"] = c.run.duration;
  json["warmup_seconds"] = c.warmup;
  json["prompt_tokens"] = c.prompt_tokens;
  json["output_tokens"] = c.output_tokens;
  json["shared_prefix"] = c.shared_prefix;
  json["prefixes"] = c.prefixes;
  json["turns"] = c.turns;
  json["sessions"] = c.run.sessions;
  json["temperature"] = FloatToJson(c.run.temperature);
  json["seed"] = c.seed;
  json["connections"] = c.connections;
  json["objective"] = {{"first_token_seconds", c.objective.first_token},
                       {"time_per_output_token_seconds", c.objective.time_per_output_token},
                       {"latency_seconds", c.objective.latency}};
  return json;
}

int Run(CommandLine c, WorkloadOptions workload_options) {
  // Never destroyed. gRPC lets go of a unary call behind its callback, on a thread of its own: the
  // last reference to a channel must not be that one, nor must the library be shut down by then.
  static const auto* const stubs = new std::vector<std::unique_ptr<v1::PolySketch::Stub>>(Stubs(c));
  v1::GetModelResponse model;
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::Status status = stubs->front()->GetModel(&context, {}, &model);
    if (!status.ok()) return ReportRpcError(status, c.call);
  }
  workload_options.vocab_size = model.vocab_size();
  if (!c.call.json) {
    std::cout << "model " << model.name() << " on " << model.device() << ", "
              << model.limits().max_sequences() << " at once\n";
  }
  signal(SIGINT, [](int) {
    interrupted = true;
    signal(SIGINT, SIG_DFL);  // the second one ends the process
  });
  Workload workload(workload_options);
  const std::vector<RequestResult> results = Runner(c.run, &workload, *stubs).Run(interrupted);
  const Report report = Report::Of(results, c.warmup, HUGE_VAL, c.objective);
  if (c.call.json) {
    PrintJson({{"server", c.call.server},
               {"version", model.version()},
               {"commit", model.commit()},
               {"model", model.name()},
               {"device", model.device()},
               {"threads", model.threads()},
               {"weights", model.weight_format()},
               {"max_sequences", model.limits().max_sequences()},
               {"settings", SettingsToJson(c)},
               {"report", report.ToJson()}});
  } else {
    std::cout << report.ToText();
  }
  return report.ok == report.requests ? kExitOk : kExitFailed;
}

int Main(Arguments args) {
  CommandLine c;
  c.call.server = DefaultServer();
  const Options options = OptionsOf(&c);
  if (const Status status = options.Parse(&args); !status.ok()) return ReportUsageError(status);
  if (c.help) {
    std::cout << options.Help();
    return kExitOk;
  }
  if (c.version) {
    std::cout << "polysketch-loadgen " << POLYSKETCH_VERSION << " (" << POLYSKETCH_COMMIT << ")\n";
    return kExitOk;
  }
  if (!args.empty())
    return ReportUsageError(InvalidArgument("unexpected argument '", args[0], "'"));
  WorkloadOptions workload;
  if (const Status status = Check(&c, &workload); !status.ok()) return ReportUsageError(status);
  return Run(std::move(c), workload);
}

}  // namespace
}  // namespace polysketch::loadgen

int main(int argc, char** argv) {
  const int code = polysketch::loadgen::Main(polysketch::Arguments(argv + 1, argv + argc));
  std::fflush(stdout);
  return std::ferror(stdout) != 0 ? polysketch::kExitFailed : code;
}
