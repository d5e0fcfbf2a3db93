#include "server/app/flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>

#include "engine/sampler/sampling_params.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using C = ServerConfig;

constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
constexpr int64_t kManyTokens = int64_t{1} << 48;
constexpr int64_t kDay = 24 * 3600 * 1000;
constexpr int64_t kTiB = int64_t{1} << 40;

constexpr Flag Text(std::string_view name, std::string_view values, std::string C::*field,
                    std::string_view help) {
  return {name, FlagKind::kText, values, field, 0, 0, help};
}
constexpr Flag Choice(std::string_view name, std::string_view values, std::string C::*field,
                      std::string_view help) {
  return {name, FlagKind::kChoice, values, field, 0, 0, help};
}
constexpr Flag Integer(std::string_view name, int64_t C::*field, int64_t min, int64_t max,
                       std::string_view help) {
  return {name, FlagKind::kInteger, "N", field, min, max, help};
}
constexpr Flag Bytes(std::string_view name, int64_t C::*field, int64_t min, int64_t max,
                     std::string_view help) {
  return {name, FlagKind::kBytes, "BYTES", field, min, max, help};
}
constexpr Flag Duration(std::string_view name, milliseconds C::*field, int64_t min,
                        std::string_view help) {
  return {name, FlagKind::kDuration, "TIME", field, min, kDay, help};
}

constexpr Flag kFlags[] = {
    Text("model", "DIR", &C::model, "model folder (docs/model-format.md); required"),
    Text("listen", "HOST:PORT", &C::listen, "address of the gRPC server; port 0 takes a free one"),
    Text("metrics-listen", "HOST:PORT", &C::metrics_listen,
         "address of the HTTP server that answers /metrics; empty: none"),
    Text("http-listen", "HOST:PORT", &C::http_listen,
         "address of the status page, its playground, /healthz and /readyz; empty: none"),

    Choice("device", "auto|cpu|cuda|reference", &C::device,
           "where the model runs; auto takes the fastest there is, reference is the slow oracle"),
    Integer("threads", &C::threads, 0, 1024,
            "threads of the cpu device, or beside a gpu (8 at most); 0: as many as this process "
            "may use"),
    Choice("weights", "auto|f32|bf16|f16|q8|q4", &C::weights,
           "format of the weights in memory; auto: as in the checkpoint"),
    Choice("state-format", "auto|f32|bf16", &C::state_format,
           "how the recurrent state is kept and read (sums are f32); auto: f32 with f32 weights, "
           "else bf16"),

    Integer("max-sequences", &C::max_sequences, 1, 65536, "requests that run at once"),
    Integer("max-queue", &C::max_queue, 0, kMany,
            "requests that wait; more get RESOURCE_EXHAUSTED"),
    Integer("max-queue-tokens", &C::max_queue_tokens, 0, kManyTokens,
            "prompt tokens that wait; more get RESOURCE_EXHAUSTED; 0: no bound"),
    Integer("max-priority", &C::max_priority, 0, 1000,
            "priorities of requests are within plus and minus this"),
    Integer("max-step-tokens", &C::max_step_tokens, 1, 65536,
            "most tokens of one step of the model"),
    Integer("step-budget-ms", &C::step_budget_ms, 0, 60000,
            "milliseconds that prompts may add to a step beside running outputs; 0: no bound"),
    Integer("draft-tokens", &C::draft_tokens, 0, kMaxDraftTokens,
            "speculative decoding: tokens guessed ahead at most, for requests that do not say; 0: "
            "none"),
    Text("draft-model", "DIR", &C::draft_model,
         "model folder of a small model with the same vocabulary that guesses; empty: prompt "
         "lookup"),
    Integer("max-prompt-tokens", &C::max_prompt_tokens, 1, kMany, "longest prompt of a completion"),
    Integer("max-new-tokens", &C::max_new_tokens, 1, kMany,
            "longest output, and the default of max_tokens"),
    Bytes("slot-memory", &C::slot_memory, 0, 1024 * kTiB,
          "memory for the states of all running requests; 0: enough for max-sequences, or 4GiB for "
          "KV caches"),
    Bytes("preempted-memory", &C::preempted_memory, 0, 1024 * kTiB,
          "memory for the states of requests that lend their place to others; 0: a quarter of "
          "slot-memory"),

    Text("state-store", "URL", &C::state_store,
         "dir:PATH or redis://[USER@]HOST:PORT[/DB][?password_file=PATH], shared among replicas: "
         "durable sessions, snapshots, migration; empty: none"),
    Choice("state-store-format", "f32|bf16|f32-zstd|bf16-zstd", &C::state_store_format,
           "how states are written there; bf16 halves them and is not exact"),
    Bytes("state-store-limit", &C::state_store_limit, 0, 1024 * kTiB,
          "most bytes in the folder of a dir: store; what does not fit is refused; 0: no bound"),
    Bytes("session-memory", &C::session_memory, 0, 1024 * kTiB,
          "memory for states at rest: sessions, then stored prompts; 0: as much as for running "
          "requests"),
    Duration("session-ttl", &C::session_ttl, 1000,
             "default life of a session without use, and of a snapshot"),
    Integer("max-sessions-per-tenant", &C::max_sessions_per_tenant, 1, kMany,
            "sessions of one tenant, and as many snapshots"),
    Integer("prefix-cache-min-tokens", &C::prefix_cache_min_tokens, 0, kMany,
            "the states of prompts of at least so many tokens are stored in what sessions leave of "
            "state-memory, for later prompts of the tenant that begin so; 0: none"),
    Integer("prefix-cache-every", &C::prefix_cache_every, 0, kMany,
            "tokens between states stored inside a prompt, rounded up to blocks; 0: at its end "
            "only"),
    Duration("migration-ttl", &C::migration_ttl, 1000,
             "life of a completion that a shutdown stopped, until it is resumed"),

    Bytes("max-message-bytes", &C::max_message_bytes, 1024, int64_t{1} << 30,
          "largest request message"),
    Bytes("max-metadata-bytes", &C::max_metadata_bytes, 1024, int64_t{1} << 20,
          "largest request metadata"),
    Integer("max-connections", &C::max_connections, 1, 100000,
            "open connections; more are closed at once"),
    Integer("max-concurrent-streams", &C::max_concurrent_streams, 1, 65536,
            "calls at once on one connection"),
    Integer("max-calls", &C::max_calls, 1, kMany,
            "calls at once in all; more get RESOURCE_EXHAUSTED"),
    Integer("max-resets-per-second", &C::max_resets_per_second, 1, kMany,
            "calls that one connection may abort, sustained; ten times as many in a burst; then it "
            "is closed"),
    Integer("stream-buffer", &C::stream_buffer, 1, 65536,
            "events that wait for a slow reader before its request is parked"),
    Duration("stall-deadline", &C::stall_deadline, 100,
             "a client that takes no output, or sends no input of a score, for so long is ended"),

    Duration("keepalive-time", &C::keepalive_time, 1000,
             "idle time before the server pings a connection"),
    Duration("keepalive-timeout", &C::keepalive_timeout, 100, "time to answer that ping"),
    Duration("keepalive-min-interval", &C::keepalive_min_interval, 0,
             "least time between a client's own pings"),
    Integer("max-ping-strikes", &C::max_ping_strikes, 1, 1000,
            "pings too early before a connection is closed"),
    Duration("handshake-timeout", &C::handshake_timeout, 100,
             "time for the start of HTTP/2 on a new connection"),
    Duration("max-connection-idle", &C::max_connection_idle, 0,
             "a connection without calls is closed; 0: never"),
    Duration("max-connection-age", &C::max_connection_age, 0,
             "a connection gets GOAWAY, so that clients spread again; 0: never"),
    Duration("max-connection-age-grace", &C::max_connection_age_grace, 0,
             "time for its calls to end after that"),
    Duration("drain-timeout", &C::drain_timeout, 0,
             "time for running requests to end after SIGTERM"),

    Choice("log-level", "debug|info|warning|error", &C::log_level,
           "least level that is written to stderr"),
    Choice("log-format", "text|json", &C::log_format, "form of a log line"),
};

constexpr RenamedFlag kRenamedFlags[] = {{"parked-memory", "preempted-memory"},
                                         {"state-memory", "session-memory"}};

struct Unit {
  std::string_view suffix;
  int64_t factor;
};
constexpr Unit kDurationUnits[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}};
constexpr Unit kByteUnits[] = {{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", kTiB}};

// The form of a kind, for messages.
std::string_view FormOf(FlagKind kind) {
  switch (kind) {
    case FlagKind::kInteger:
      return "an integer";
    case FlagKind::kBytes:
      return "bytes as 65536, 64KiB, 4MiB or 1GiB";
    case FlagKind::kDuration:
      return "a time as 500ms, 30s, 5m or 2h";
    case FlagKind::kText:
    case FlagKind::kChoice:
      break;
  }
  return "text";
}

std::span<const Unit> UnitsOf(FlagKind kind) {
  if (kind == FlagKind::kDuration) return kDurationUnits;
  if (kind == FlagKind::kBytes) return kByteUnits;
  return {};
}

// A number and its unit; false when `text` has another form or overflows.
bool ParseNumber(FlagKind kind, std::string_view text, int64_t* value) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  const std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  if (suffix.empty()) {
    *value = number;
    return kind != FlagKind::kDuration || number == 0;  // 30 of what?
  }
  for (const Unit& unit : UnitsOf(kind)) {
    if (suffix == unit.suffix) return !__builtin_mul_overflow(number, unit.factor, value);
  }
  return false;
}

// The largest unit that divides the value.
std::string NumberText(FlagKind kind, int64_t value) {
  const Unit* best = nullptr;
  for (const Unit& unit : UnitsOf(kind)) {
    if (value != 0 && value % unit.factor == 0) best = &unit;
  }
  return best == nullptr ? StrCat(value) : StrCat(value / best->factor, best->suffix);
}

bool IsChoice(std::string_view choices, std::string_view text) {
  while (true) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == text) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

}  // namespace

std::span<const Flag> Flags() { return kFlags; }

std::span<const RenamedFlag> RenamedFlags() { return kRenamedFlags; }

const Flag* FindFlag(std::string_view name) {
  const auto* found = std::ranges::find(kFlags, name, &Flag::name);
  return found == std::end(kFlags) ? nullptr : found;
}

Status SetFlag(const Flag& flag, std::string_view text, ServerConfig* config) {
  if (const auto* field = std::get_if<std::string C::*>(&flag.field)) {
    if (flag.kind == FlagKind::kChoice && !IsChoice(flag.values, text)) {
      return InvalidArgument("expected ", flag.values, ", found \"", text, "\"");
    }
    config->** field = text;
    return Status();
  }
  int64_t value = 0;
  if (!ParseNumber(flag.kind, text, &value)) {
    return InvalidArgument("expected ", FormOf(flag.kind), ", found \"", text, "\"");
  }
  if (value < flag.min || value > flag.max) {
    return InvalidArgument("expected ", NumberText(flag.kind, flag.min), " to ",
                           NumberText(flag.kind, flag.max), ", found ", text);
  }
  if (const auto* field = std::get_if<int64_t C::*>(&flag.field)) {
    config->** field = value;
  } else {
    config->*std::get<milliseconds C::*>(flag.field) = milliseconds(value);
  }
  return Status();
}

std::string FlagText(const Flag& flag, const ServerConfig& config) {
  if (const auto* text = std::get_if<std::string C::*>(&flag.field)) return config.**text;
  if (const auto* number = std::get_if<int64_t C::*>(&flag.field))
    return NumberText(flag.kind, config.**number);
  return NumberText(flag.kind, (config.*std::get<milliseconds C::*>(flag.field)).count());
}

std::string EnvironmentName(std::string_view flag_name) {
  std::string name = "POLYSKETCH_";
  for (const char c : flag_name) {
    name.push_back(c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  }
  return name;
}

std::string HelpText() {
  std::string text =
      "polysketch-server serves a PolySketchFormer model over gRPC.\n\n"
      "Usage: polysketch-server --model DIR [FLAG...]\n\n"
      "A flag is given as --name VALUE or --name=VALUE, as the environment variable "
      "POLYSKETCH_NAME (dashes become\n"
      "underscores), or as a key of the JSON object in the file that --config names; the first of "
      "these wins.\n"
      "SIGTERM and SIGINT drain: running requests end within --drain-timeout. A second signal ends "
      "the process at once.\n"
      "Once ready, one line of JSON on stdout tells the real addresses: {\"listen\": ..., "
      "\"metrics\": ...}, and\n"
      "with --http-listen \"http\".\n\n";
  const auto line = [&text](std::string_view name, std::string_view values, std::string_view help,
                            std::string_view value) {
    text += StrCat("  --", name, values.empty() ? "" : " ", values, "\n      ", help);
    if (!value.empty()) text += StrCat(" [", value, "]");
    text += "\n";
  };
  const ServerConfig defaults;
  for (const Flag& flag : kFlags) line(flag.name, flag.values, flag.help, FlagText(flag, defaults));
  line("config", "FILE", "JSON object of flag names and values", "");
  line("help", "", "this text", "");
  line("version", "", "version, commit and build", "");
  return text;
}

}  // namespace polysketch
