#include "server/app/flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>

#include "engine/sampler/sampling_params.h"
#include "server/http/allowed_hosts.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using C = ServerConfig;

constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
constexpr int64_t kManyTokens = int64_t{1} << 48;
constexpr int64_t kDay = 24 * 3600 * 1000;
constexpr int64_t kTiB = int64_t{1} << 40;

using enum FlagKind;

constexpr Flag kFlags[] = {
    {"model", kText, "DIR", &C::model, 0, 0, "model folder (docs/model-format.md). Required."},
    {"model-root", kText, "DIR", &C::model_root, 0, 0,
     "folder into which links of the model folder and of the draft model's may lead. Empty: they "
     "lead to files of the folder itself, or of blobs of the Hugging Face cache that it is a "
     "snapshot of; another link ends the start."},
    {"chat-template", kText, "FILE", &C::chat_template, 0, 0,
     "file of the chat template, in place of that of the model folder (docs/chat-templates.md). "
     "One whose answers do not end with a control piece of the vocabulary is used, with a warning; "
     "the model folder's is not. plain: the built-in one for models that know no form of chats. "
     "Empty: that of the model folder."},
    {"trust-request-chat-template", kSwitch, "", &C::trust_request_chat_template, 0, 0,
     "accepts chat_template of chat completions, in place of the server's (docs/openai-api.md). A "
     "template may write control pieces around text of others, and take 512 MiB of work."},
    {"tool-format", kChoice, "auto|hermes|llama3_json|mistral|pythonic|json|granite",
     &C::tool_format, 0, 0,
     "form in which the model writes calls of tools (docs/openai-api.md). auto: the form that the "
     "chat template declares."},
    {"reasoning-format", kChoice, "auto|none|deepseek", &C::reasoning_format, 0, 0,
     "form of the reasoning before an answer, which responses have apart from it "
     "(docs/openai-api.md). auto: the marks that the chat template has. deepseek: <think> and "
     "</think>. none: reasoning is a part of the answer."},
    {"strict-parameters", kSwitch, "", &C::strict_parameters, 0, 0,
     "refuses HTTP requests with a parameter that has no effect (docs/openai-api.md). Without it "
     "such parameters are ignored, with the warning parameter_ignored."},
    {"generation-config", kChoice, "auto|none", &C::generation_config, 0, 0,
     "sampling parameters of requests that do not set them. auto: those of generation_config.json "
     "of the model folder. none: the defaults of the API. The tokens that end an output come from "
     "that file in both cases."},
    {"verify", kSwitch, "", &C::verify, 0, 0,
     "checks the checksum of every file of the model folder and of the draft model's before they "
     "are loaded; the folders must have SHA256SUMS, and a file that it does not list counts as "
     "missing. Without it files of at most 64 MiB are checked, if there is a SHA256SUMS."},
    {"listen", kAddress, "HOST:PORT", &C::listen, 0, 0,
     "address of the gRPC server; unix:PATH for a unix socket. Port 0: a free port. A port alone, "
     "here and at the other addresses: one of 127.0.0.1."},
    {"metrics-listen", kAddress, "HOST:PORT", &C::metrics_listen, 0, 0,
     "address of the HTTP server of /metrics, without API keys and TLS. Empty: none; http-listen "
     "has /metrics too."},
    {"http-listen", kAddress, "HOST:PORT", &C::http_listen, 0, 0,
     "address of the HTTP server: the OpenAI API (/v1/completions), Anthropic's Messages API "
     "(/v1/messages), the status page, its playground, /metrics, /healthz and /readyz. Empty: no "
     "HTTP server."},
    {"http-hosts", kHosts, "NAMES", &C::http_hosts, 0, 0,
     "names that the Host header of an HTTP request may have besides IP addresses and localhost, "
     "separated by commas; *: any name. Other requests get the HTTP status 403. Empty: none at a "
     "loopback address of http-listen or metrics-listen; at another one any name, but requests for "
     "the status page and those with an Origin header, which browsers send, may have only the name "
     "of the machine."},
    {"http-origins", kOrigins, "ORIGINS", &C::http_origins, 0, 0,
     "origins of web pages that may call the HTTP server (CORS), such as https://app.example: "
     "SCHEME://HOST[:PORT], separated by commas; *: any. Empty: none."},
    {"served-model-name", kText, "NAME", &C::served_model_name, 0, 0,
     "name of the model in the APIs over HTTP. Empty: the name of its folder."},
    {"tls-cert", kText, "FILE", &C::tls_cert, 0, 0,
     "PEM file of the server's certificate and its chain: gRPC and HTTP use TLS. Read again when "
     "it changes, with the files of tls-key and tls-client-ca. Empty: no TLS."},
    {"tls-key", kText, "FILE", &C::tls_key, 0, 0,
     "PEM file of the private key of tls-cert, without a password."},
    {"tls-client-ca", kText, "FILE", &C::tls_client_ca, 0, 0,
     "PEM file of the authorities of client certificates: clients without such a certificate are "
     "refused (mTLS). Empty: clients need no certificate."},
    {"api-keys", kText, "FILE", &C::api_keys, 0, 0,
     "file of the API keys, a JSON object a line (docs/credentials.md): calls without such a key "
     "get UNAUTHENTICATED, or the HTTP status 401. Read again when it changes. Empty: no keys."},
    {"insecure", kSwitch, "", &C::insecure, 0, 0,
     "lets listen and http-listen have addresses that are not loopback without api-keys and "
     "tls-client-ca: any client that reaches the port may use the server."},

    {"device", kChoice, "auto|cpu|cuda|reference", &C::device, 0, 0,
     "device that runs the model. auto: cuda if a GPU is found, otherwise cpu. reference: the "
     "slow scalar backend."},
    {"threads", kInteger, "N", &C::threads, 0, 1024,
     "threads of the cpu device; with a GPU, threads that sample on the host, at most 8. 0: one "
     "for each CPU that the process may use."},
    {"weights", kChoice, "auto|f32|bf16|f16|q8|q4", &C::weights, 0, 0,
     "format of the weights in memory. auto: as in the checkpoint."},
    {"state-format", kChoice, "auto|f32|bf16|f16|q8", &C::state_format, 0, 0,
     "format in which states are read; sums are always float32. auto: f32 with float32 weights, "
     "otherwise bf16. q8: a copy in one byte beside the sums: fewer bytes to read, a larger state. "
     "KV caches are float32 under f32 and bf16 (with cuda bf16 under bf16), float16 under f16 and "
     "8-bit integers under q8: fewer bytes to read and to hold. f16 is bf16 for other states, and "
     "not with cuda."},

    {"max-sequences", kInteger, "N", &C::max_sequences, 1, 65536,
     "number of slots: sequences that run at the same time. More requests wait."},
    {"max-queue", kInteger, "N", &C::max_queue, 0, kMany,
     "limit of waiting requests. More get RESOURCE_EXHAUSTED."},
    {"max-queue-tokens", kInteger, "N", &C::max_queue_tokens, 0, kManyTokens,
     "limit of the prompt tokens of waiting requests. More get RESOURCE_EXHAUSTED, unless no "
     "other request waits. 0: no limit."},
    {"max-priority", kInteger, "N", &C::max_priority, 0, 1000,
     "limit of the priority of a request: -N to N. Other priorities get INVALID_ARGUMENT. An API "
     "key may have its own limit."},
    {"max-step-tokens", kInteger, "N", &C::max_step_tokens, 0, 65536,
     "limit of the tokens in a step. Longer prompts are processed in chunks. 0: 128 for each "
     "thread, 256 to 512, on the CPU, 8192 on a GPU, or twice --max-sequences if that is more."},
    {"step-budget-ms", kInteger, "N", &C::step_budget_ms, 0, 60000,
     "milliseconds that prompts may add to a step in which other sequences decode. The rest of a "
     "prompt waits for the next step. 0: no limit."},
    {"draft-tokens", kInteger, "N", &C::draft_tokens, 0, kMaxDraftTokens,
     "limit of the tokens in a draft of speculative decoding, for requests that do not set "
     "draft_tokens. 0: no drafts."},
    {"draft-model", kText, "DIR", &C::draft_model, 0, 0,
     "folder of a small model with the same vocabulary that makes the drafts. Empty: drafts come "
     "from earlier tokens (prompt lookup)."},
    {"max-prompt-tokens", kInteger, "N", &C::max_prompt_tokens, 1, kMany,
     "limit of the tokens in a prompt. Longer ones get INVALID_ARGUMENT."},
    {"max-new-tokens", kInteger, "N", &C::max_new_tokens, 1, kMany,
     "limit of a request's max_tokens. Larger values get INVALID_ARGUMENT."},
    {"default-max-tokens", kInteger, "N", &C::default_max_tokens, 1, kMany,
     "max_tokens of requests that do not set it, at most max-new-tokens. Where it is not set "
     "itself, a lower max-new-tokens takes its place."},
    {"slot-memory", kBytes, "BYTES", &C::slot_memory, 0, 1024 * kTiB,
     "limit of slot memory: states of running sequences. A request whose state does not fit "
     "waits. 0: max-sequences states, or 4GiB for KV kinds."},
    {"preempted-memory", kBytes, "BYTES", &C::preempted_memory, 0, 1024 * kTiB,
     "limit of preempted memory: states of preempted sequences. A state that does not fit is "
     "dropped and computed again. 0: a quarter of slot-memory."},
    {"kv-admission", kChoice, "preempt|reserve", &C::kv_admission, 0, 0,
     "when a KV cache is charged to slot memory. preempt: as it grows; where memory is full, "
     "another client's share, a higher priority or its own idleness gives the memory of a sequence "
     "to another one. reserve: the prompt and max_tokens before the first token, until the "
     "sequence ends; a request that lacks memory waits, and nothing is computed twice."},

    {"state-store", kText, "URL", &C::state_store, 0, 0,
     "state store, which replicas may share: dir:PATH or "
     "redis://[USER@]HOST:PORT[/DB][?password_file=PATH]. Empty: no durable sessions and no "
     "migration."},
    {"state-store-format", kChoice, "f32|bf16|f32-zstd|bf16-zstd", &C::state_store_format, 0, 0,
     "format of states in the state store. bf16 halves their size and is not exact."},
    {"state-store-limit", kBytes, "BYTES", &C::state_store_limit, 0, 1024 * kTiB,
     "limit of the folder of a dir: store, for all replicas together. Writes beyond it get "
     "RESOURCE_EXHAUSTED. 0: no limit."},
    {"session-memory", kBytes, "BYTES", &C::session_memory, 0, 1024 * kTiB,
     "limit of session memory: sessions, and the prefix cache in the rest. The least recently used "
     "sessions go to the state store; without one, more get RESOURCE_EXHAUSTED. 0: as much as slot "
     "memory."},
    {"session-ttl", kDuration, "TIME", &C::session_ttl, 1000, kDay,
     "time without use after which a session is deleted, and age at which a snapshot is deleted, "
     "unless the request sets ttl_seconds."},
    {"max-sessions-per-tenant", kInteger, "N", &C::max_sessions_per_tenant, 1, kMany,
     "limit of the sessions of a tenant, and of its snapshots. More get RESOURCE_EXHAUSTED."},
    {"prefix-cache-min-tokens", kInteger, "N", &C::prefix_cache_min_tokens, 0, kMany,
     "length in tokens from which the prefix cache stores the state of a prompt. 0: no prefix "
     "cache."},
    {"prefix-cache-every", kInteger, "N", &C::prefix_cache_every, 0, kMany,
     "tokens between the states that the prefix cache stores inside a prompt, rounded up to "
     "blocks. 0: a state at the end only."},
    {"migration-ttl", kDuration, "TIME", &C::migration_ttl, 1000, kDay,
     "time in which a migrated completion can be resumed."},

    {"max-message-bytes", kBytes, "BYTES", &C::max_message_bytes, 1024, int64_t{1} << 30,
     "limit of a request message. Larger ones get RESOURCE_EXHAUSTED."},
    {"max-metadata-bytes", kBytes, "BYTES", &C::max_metadata_bytes, 1024, int64_t{1} << 20,
     "limit of a request's metadata, and of the header of an HTTP request. More gets "
     "RESOURCE_EXHAUSTED, or the HTTP status 431."},
    {"max-body-bytes", kBytes, "BYTES", &C::max_body_bytes, 1024, int64_t{1} << 30,
     "limit of the body of an HTTP request. Larger ones get the HTTP status 413."},
    {"request-memory", kBytes, "BYTES", &C::request_memory, 0, 1024 * kTiB,
     "limit of request memory: what clients make the server hold, as messages, uploads, prompts "
     "and replies that are not read. More gets RESOURCE_EXHAUSTED, or the HTTP status 429. A "
     "client may hold three times what is free: alone three quarters. 0: a sixteenth of the memory "
     "of the machine or the control group, 64MiB to 2GiB."},
    {"response-memory", kBytes, "BYTES", &C::response_memory, 0, 1024 * kTiB,
     "limit of the texts of stored responses, which GET /v1/responses/ID returns. Beyond it the "
     "oldest of the client that holds the most are not found any more; they can still be "
     "continued. 0: no texts are kept."},
    {"grammar-memory", kBytes, "BYTES", &C::grammar_memory, 0, 1024 * kTiB,
     "limit of the memory of all grammars together, in processes of their own. Beyond it the "
     "grammar that takes the most ends, and its request gets RESOURCE_EXHAUSTED. 0: a sixteenth of "
     "the memory of the machine or the control group, 64MiB to 1GiB."},
    {"max-connections", kInteger, "N", &C::max_connections, 1, 100000,
     "limit of open connections, for gRPC and for HTTP each. More are closed on arrival, or close "
     "an idle one of the client that has the most. One client runs as many HTTP requests at once; "
     "others find a third more."},
    {"max-concurrent-streams", kInteger, "N", &C::max_concurrent_streams, 1, 65536,
     "limit of concurrent calls on a connection. The client delays more (HTTP/2)."},
    {"max-calls", kInteger, "N", &C::max_calls, 1, kMany,
     "limit of concurrent calls on all connections. More get RESOURCE_EXHAUSTED, except for a "
     "client's address that has less than an equal share, and the first call on a connection."},
    {"max-resets-per-second", kInteger, "N", &C::max_resets_per_second, 1, kMany,
     "limit of the calls that a connection aborts, and of the streams that it resets, in a second; "
     "three times that in a burst. Beyond it the connection is closed."},
    {"stream-buffer", kInteger, "N", &C::stream_buffer, 1, 65536,
     "limit of the events that wait for a slow reader. Beyond it the sequence is idle and may be "
     "preempted."},
    {"stall-deadline", kDuration, "TIME", &C::stall_deadline, 100, kDay,
     "time after which a client that reads no output, or sends no input of a score, gets ABORTED."},

    {"keepalive-time", kDuration, "TIME", &C::keepalive_time, 1000, kDay,
     "idle time after which the server pings a connection."},
    {"keepalive-timeout", kDuration, "TIME", &C::keepalive_timeout, 100, kDay,
     "time to answer a ping of the server. Otherwise the connection is closed."},
    {"keepalive-min-interval", kDuration, "TIME", &C::keepalive_min_interval, 0, kDay,
     "minimum time between the pings of a client. An earlier ping is a strike."},
    {"max-ping-strikes", kInteger, "N", &C::max_ping_strikes, 1, 1000,
     "limit of strikes. Beyond it the connection is closed."},
    {"handshake-timeout", kDuration, "TIME", &C::handshake_timeout, 100, kDay,
     "time in which a new connection must complete TLS and start HTTP/2. Otherwise it is closed."},
    {"max-connection-idle", kDuration, "TIME", &C::max_connection_idle, 0, kDay,
     "time without calls after which a connection is closed. 0: no limit."},
    {"max-connection-age", kDuration, "TIME", &C::max_connection_age, 0, kDay,
     "age at which a connection gets GOAWAY, so that clients balance again. 0: no limit."},
    {"max-connection-age-grace", kDuration, "TIME", &C::max_connection_age_grace, 0, kDay,
     "time that calls have to end after max-connection-age."},
    {"drain-timeout", kDuration, "TIME", &C::drain_timeout, 0, kDay,
     "time that running requests have to end after SIGTERM. Later they get UNAVAILABLE."},
    {"stuck-after", kDuration, "TIME", &C::stuck_after, 100, kDay,
     "time after which a thread of the server whose work does not move is stuck: health is "
     "NOT_SERVING until it moves again."},

    {"otlp-endpoint", kText, "URL", &C::otlp_endpoint, 0, 0,
     "collector of OpenTelemetry, such as http://127.0.0.1:4318: spans of calls are posted to its "
     "/v1/traces as OTLP/HTTP with JSON (docs/tracing.md). Empty: that of the environment "
     "variables "
     "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT; without them no traces."},
    {"otlp-sample-percent", kInteger, "N", &C::otlp_sample_percent, 0, 100,
     "share of the calls without a traceparent that have spans, in percent. Calls with one follow "
     "its sampled flag."},

    {"log-level", kChoice, "debug|info|warning|error", &C::log_level, 0, 0,
     "lowest level that is written to stderr."},
    {"log-format", kChoice, "text|json", &C::log_format, 0, 0, "format of a log line."},
};

constexpr char kUsage[] =
    R"(polysketch-server serves a PolySketchFormer model over gRPC.

Usage: polysketch-server --model DIR [FLAG...]

A flag is given as --name VALUE or --name=VALUE (--insecure without a value), as the environment variable POLYSKETCH_NAME (dashes
become underscores), or as a key of the JSON object in the file that --config names. A flag
overrides the variable, and the variable overrides the key. Defaults are in brackets.
SIGTERM, SIGINT and SIGQUIT drain: running requests end within --drain-timeout. A second signal ends
the process at once.
Exit status: 0 drained; 1 the server cannot run (an address in use, no model folder, the state store
away), its device failed, or the drain did not end in time; 2 a flag or a file of the model folder is
wrong; 128 + SIGNAL a second signal.
When the server is ready, it writes one line of JSON with the bound addresses to stdout:
{"listen": ..., "metrics": ..., "http": ...}.

)";

struct Unit {
  std::string_view suffix;
  int64_t factor;
};
constexpr Unit kDurationUnits[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}};
constexpr Unit kByteUnits[] = {{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", kTiB}};

// The form of a value, for error messages.
std::string_view FormOf(FlagKind kind) {
  switch (kind) {
    case kInteger:
      return "an integer";
    case kBytes:
      return "bytes as 65536, 64KiB, 4MiB or 1GiB";
    case kDuration:
      return "a time as 500ms, 30s, 5m or 2h";
    case kSwitch:
      return "true or false";
    case kText:
    case kAddress:
    case kHosts:
    case kOrigins:
    case kChoice:
      break;
  }
  return "text";
}

std::span<const Unit> UnitsOf(FlagKind kind) {
  if (kind == kDuration) return kDurationUnits;
  if (kind == kBytes) return kByteUnits;
  return {};
}

// Parses a number and its unit. Returns false for another form, and for one that overflows.
bool ParseNumber(FlagKind kind, std::string_view text, int64_t* value) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  const std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  if (suffix.empty()) {
    *value = number;
    return kind != kDuration || number == 0;  // a time needs its unit
  }
  for (const Unit& unit : UnitsOf(kind)) {
    if (suffix == unit.suffix) return !__builtin_mul_overflow(number, unit.factor, value);
  }
  return false;
}

// The value in the largest unit that divides it.
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

// The address of `text`, which may be a port alone.
Result<std::string> ListenAddress(std::string_view text) {
  const bool port = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  if (!port) return std::string(text);
  int64_t number = 0;
  if (!ParseNumber(kInteger, text, &number) || number > 65535)
    return InvalidArgument("expected HOST:PORT, or a port from 0 to 65535, found ", text);
  return StrCat("127.0.0.1:", number);
}

// The value of a text flag.
Result<std::string> TextOf(const Flag& flag, std::string_view text) {
  // A path would end at a NUL, and names stand in lines of the log and in headers.
  const auto control = std::ranges::find_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (control != text.end()) {
    return InvalidArgument("expected text without control characters, found the byte ",
                           int{*control}, " at position ", control - text.begin());
  }
  if (flag.kind == kChoice && !IsChoice(flag.values, text))
    return InvalidArgument("expected ", flag.values, ", found \"", text, "\"");
  if (flag.kind == kAddress) return ListenAddress(text);
  if (flag.kind == kHosts) return ParseHostList(text);
  if (flag.kind == kOrigins) return ParseOriginList(text);
  return std::string(text);
}

}  // namespace

std::span<const Flag> Flags() { return kFlags; }

const Flag* FindFlag(std::string_view name) {
  const auto* found = std::ranges::find(kFlags, name, &Flag::name);
  return found == std::end(kFlags) ? nullptr : found;
}

Status SetFlag(const Flag& flag, std::string_view text, ServerConfig* config) {
  if (const auto* field = std::get_if<std::string C::*>(&flag.field)) {
    PS_ASSIGN_OR_RETURN(config->**field, TextOf(flag, text));
    return Status();
  }
  if (const auto* field = std::get_if<bool C::*>(&flag.field)) {
    if (text != "true" && text != "false")
      return InvalidArgument("expected ", FormOf(flag.kind), ", found \"", text, "\"");
    config->** field = text == "true";
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
  if (const auto* on = std::get_if<bool C::*>(&flag.field)) return config.**on ? "true" : "false";
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
  std::string text = kUsage;
  const auto add = [&text](std::string_view name, std::string_view values, std::string_view help) {
    text += StrCat("  --", name, values.empty() ? "" : " ", values, "\n      ", help, "\n");
  };
  const ServerConfig defaults;
  for (const Flag& flag : kFlags) {
    const std::string value = FlagText(flag, defaults);
    add(flag.name, flag.values, StrCat(flag.help, value.empty() ? "" : StrCat(" [", value, "]")));
  }
  add("config", "FILE", "JSON object of flag names and values.");
  add("help-format", kHelpFormats,
      "prints this text as a man page or as a completion script of bash.");
  add("help, -h", "", "prints this text.");
  add("version", "", "prints the version, the commit and the build.");
  return text;
}

}  // namespace polysketch
