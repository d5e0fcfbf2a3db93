// polysketch-server: flags -> config -> construct -> serve -> drain.
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/logging.h"
#include "base/memory_limit.h"
#include "base/standard_descriptors.h"
#include "base/utf8.h"
#include "polysketch_build_info.h"
#include "server/app/command_line.h"
#include "server/app/drain_bound.h"
#include "server/app/flags.h"
#include "server/app/load_model.h"
#include "server/app/server.h"
#include "server/app/stop_signals.h"

namespace polysketch {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
// Time after --drain-timeout for last messages, and to free what the process holds. DrainBound's
// patience with the log follows: two seconds together.
constexpr std::chrono::milliseconds kDrainGrace{1700};

// Memory of requests without which a server does not start.
constexpr size_t kMinRequestBytes = size_t{16} << 20;

// Enough for the deepest nesting of templates, JSON and expressions (tests/e2e/chat_test.cc,
// AtTheDeepestNesting).
[[maybe_unused]] constexpr size_t kStackBytes = size_t{2} << 20;

// Lets the kernel have the memory of large messages back when they are freed. By default the
// allocator raises its threshold with the first of them, and then keeps later ones; and it has
// eight arenas a processor, each of which keeps what its threads have freed, and takes 64 MiB of a
// limit of the address space.
void SetAllocator() {
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  const unsigned arenas = MemoryIsLimited() ? 1 : std::max(2U, std::thread::hardware_concurrency());
  mallopt(M_ARENA_MAX, static_cast<int>(arenas));
}

// Of all threads that start later, those of libraries too. By default a stack takes the address
// space of RLIMIT_STACK, 8 MiB: with the threads of a server, most of a limit such as `ulimit -v`
// allows.
void SetStacks() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
#endif
}

// Below this some library ends the process without a reason that an operator could read.
constexpr rlim_t kMinAddressSpace = rlim_t{192} << 20;

Status CheckAddressSpace() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur >= kMinAddressSpace) return Status();
  return ResourceExhausted("ulimit -v: expected at least ", kMinAddressSpace >> 10, ", found ",
                           limit.rlim_cur >> 10);
}

// Prints the error. The returned exit status says whether the caller's flags and files are wrong.
int Fail(const Status& status) {
  // It may quote names that others chose: those of a model folder's links, bytes of its files.
  std::string message = WholeCharacters(status.message());
  std::ranges::replace_if(
      message, [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; }, '?');
  std::fprintf(stderr, "polysketch-server: %s\n", message.c_str());
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitFailure;
}

void PrintReady(const Server& server) {
  nlohmann::json ready;
  const auto address = [](const std::string& text) {
    return text.empty() ? nlohmann::json() : nlohmann::json(text);
  };
  ready["listen"] = server.address();
  ready["metrics"] = address(server.metrics_address());
  ready["http"] = address(server.http_address());
  std::printf("%s\n", ready.dump().c_str());
  std::fflush(stdout);
}

int Serve(const ServerConfig& config, StopSignals* signals) {
  // Before anything listens: probes must not see a server that cannot start.
  if (const Status status = CheckModelFolders(config); !status.ok()) return Fail(status);
  // Declared in the reverse order of destruction: calls refer to the model until the server is
  // destroyed, and the engine refers to the metrics.
  static DrainBound bound(config.drain_timeout + kDrainGrace);
  Metrics metrics;
  std::unique_ptr<LoadedModel> model;
  Result<std::unique_ptr<Server>> started = Server::Start(config, &metrics);
  if (!started.ok()) return Fail(started.status());
  Server& server = **started;
  LogInfo("listening", {{"listen", server.address()}, {"metrics", server.metrics_address()}});

  Result<std::unique_ptr<LoadedModel>> loaded = LoadModel(config, &metrics, server.writers());
  if (!loaded.ok()) return Fail(loaded.status());
  model = *std::move(loaded);
  SetMemoryAside();
  if (!MemoryFits(kMinRequestBytes)) {
    return Fail(ResourceExhausted(
        "a limit of memory (ulimit -v) leaves too little for requests; raise it, or lower "
        "--max-sequences"));
  }
  signals->BeginServing();
  server.SetModel(&model->served);
  LogInfo("ready", {{"listen", server.address()}});
  PrintReady(server);

  const int signal = signals->Wait();
  LogInfo("draining", {{"signal", signal}, {"timeout_ms", config.drain_timeout.count()}});
  bound.Start();
  const bool all_ended = server.Drain(config.drain_timeout);
  LogInfo("stopped", {{"drained", all_ended ? "all" : "some requests were cut"}});
  const int exit_status = model->device_failed.load() ? kExitFailure : EXIT_SUCCESS;
  bound.SetExitStatus(exit_status);
  return exit_status;
}

int Main(int argc, char** argv) {
  EndWithoutMemory();
  SetAllocator();
  SetStacks();
  const Result<CommandLine> command = LoadConfig(
      std::span<const char* const>(argv + 1, static_cast<size_t>(argc - 1)), std::getenv);
  if (!command.ok()) return Fail(command.status());
  if (command->action == CommandAction::kHelp) {
    std::fputs(HelpText().c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command->action == CommandAction::kFormattedHelp) {
    const Result<std::string> help = FormattedHelp(command->help_format, kVersionAndCommit);
    if (!help.ok()) return Fail(help.status());
    std::fputs(help->c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command->action == CommandAction::kVersion) {
    std::printf("polysketch-server %s commit %s %s%s%s\n", POLYSKETCH_VERSION, kCommit,
                POLYSKETCH_BUILD_TYPE, *POLYSKETCH_SANITIZERS != '\0' ? " " : "",
                POLYSKETCH_SANITIZERS);
    return EXIT_SUCCESS;
  }
  if (const Status status = CheckAddressSpace(); !status.ok()) return Fail(status);
  const ServerConfig& config = command->config;
  SetLogLevel(*ParseLogLevel(config.log_level));  // a choice of the flag table
  SetLogJson(config.log_format == "json");
  FlushLog();  // makes the log's thread, also where no line is written before the server is ready
  for (const std::string& warning : EnvironmentWarnings(environ)) {
    LogWarning("environment", {{"warning", warning}});
  }
  static StopSignals signals;  // its thread outlives main
  return Serve(config, &signals);
}

}  // namespace
}  // namespace polysketch

int main(int argc, char** argv) { return polysketch::Main(argc, argv); }
