#include "server/app/server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <prometheus/registry.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <thread>
#include <utility>

#include "base/log_limit.h"
#include "base/logging.h"
#include "polysketch_build_info.h"
#include "server/anthropic/anthropic_api.h"
#include "server/app/available_memory.h"
#include "server/convert/status_map.h"
#include "server/gateway/vllm_engine.h"
#include "server/http/allowed_hosts.h"
#include "server/http/http_errors.h"
#include "server/http/http_server.h"
#include "server/http/metrics_page.h"
#include "server/http/status_page.h"
#include "server/metrics/scrape.h"
#include "server/net/grpc_threads.h"
#include "server/net/ignored_parameters.h"
#include "server/net/reflection.h"
#include "server/openai/openai_api.h"
#include "server/openai/response_store.h"
#include "server/rpc/service.h"
#include "server/tracing/otlp_settings.h"

namespace polysketch {
namespace {

// Time for last messages to leave after the engine's drain, before calls are cancelled.
constexpr std::chrono::milliseconds kGoodbye{1000};
// Added to --handshake-timeout, within which the relay wants the preface, where gRPC waits for the
// first SETTINGS: its threads may come late to bytes that have arrived, as in a flood of others.
constexpr std::chrono::seconds kSettingsSpare{10};
constexpr int64_t kUnreadBytes = 16 << 10;
// Of gRPC's buffers: messages of several calls that share a buffer keep it until the last is freed.
constexpr int kReadChunkBytes = 16 << 10;
// Time for the bytes of calls that were cancelled.
constexpr std::chrono::milliseconds kLastBytes{200};
// Time for the last spans, and the part of the drain, after its timeout, that ends with them. main
// ends the process a moment later.
constexpr std::chrono::milliseconds kLastSpans{1000};
constexpr std::chrono::milliseconds kDrainEnd{1600};
// Time between two SessionTable::Maintain.
constexpr std::chrono::milliseconds kMaintenance{1000};
// Request memory that is free is returned to the system in parts of at least this size: what is
// left of messages lies between what is in use, and the heap does not shrink by itself. Measured:
// 475 MiB in 0.3 s.
constexpr int64_t kReturnedBytes = int64_t{16} << 20;

int Clamped(int64_t value) {
  return static_cast<int>(std::min<int64_t>(value, std::numeric_limits<int>::max()));
}

// Maximum number of open streams of an honest client on a connection. An aborted call takes a
// moment to be freed, while another call uses its stream.
int64_t MaxStreams(const ServerConfig& config) { return 2 * config.max_concurrent_streams + 32; }

// Maximum number of fields of a header.
int64_t MaxFields(const ServerConfig& config) {
  return std::max<int64_t>(128, config.max_metadata_bytes / 32);
}

ConnectionLimits LimitsOf(const ServerConfig& config) {
  return {.max_connections = config.max_connections,
          .max_calls = config.max_calls,
          .max_calls_per_connection = MaxStreams(config),
          .resets_per_second = static_cast<double>(config.max_resets_per_second)};
}

// The scrapers of a process are few.
constexpr HttpLimits kMetricsLimits = {.max_connections = 32,
                                       .max_body_bytes = 0,
                                       .read_timeout = std::chrono::seconds(10),
                                       .write_timeout = std::chrono::seconds(5)};

// A block of fields that gRPC refuses for --max-metadata-bytes is a call's error; a much larger one
// closes the connection.
FrameLimits FrameLimitsOf(const ServerConfig& config) {
  return {.header_bytes = 2 * config.max_metadata_bytes,
          .header_fields = MaxFields(config),
          .open_streams = MaxStreams(config),
          .resets_per_second = static_cast<double>(config.max_resets_per_second),
          .stall_deadline = config.stall_deadline};
}

// A connection of gRPC has three descriptors: the client's, and both ends of the pair between the
// relay and gRPC. One of HTTP has one.
void RaiseFileLimit(int64_t max_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(4 * max_connections + 256);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
    LogWarning("few_file_descriptors", {{"wanted", wanted}, {"allowed", limit.rlim_cur}});
  }
}

// Sends the messages of the libraries to the server's log. protobuf reports every bad string of a
// client, gRPC every connection that ends unusually: most of them become debug messages.
void RouteLibraryLogs() {
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel level, const char*, int, const std::string& message) {
        const bool serious = level == google::protobuf::LOGLEVEL_FATAL;
        Log(serious ? LogLevel::kError : LogLevel::kDebug, "protobuf", {{"message", message}});
      });
  gpr_set_log_function([](gpr_log_func_args* args) {
    // Each failed handshake of TLS is an error of gRPC's.
    static LogLimit limit("grpc_messages_not_logged", 1);
    const bool serious = args->severity == GPR_LOG_SEVERITY_ERROR;
    if (serious && !limit.Allow()) return;
    Log(serious ? LogLevel::kWarning : LogLevel::kDebug, "grpc", {{"message", args->message}});
  });
}

// Null without --api-keys.
Result<std::unique_ptr<Guard>> OpenGuard(const ServerConfig& config) {
  if (config.api_keys.empty()) return std::unique_ptr<Guard>();
  Result<std::unique_ptr<Guard>> guard = Guard::Open(config.api_keys);
  if (!guard.ok()) return Prefixed("--api-keys: ", guard.status());
  return guard;
}

// Null without --tls-cert.
Result<std::unique_ptr<CertificateStore>> OpenCertificates(const ServerConfig& config) {
  if (config.tls_cert.empty()) return std::unique_ptr<CertificateStore>();
  Result<std::unique_ptr<CertificateStore>> store = CertificateStore::Open(
      {.certificate = config.tls_cert, .key = config.tls_key, .client_ca = config.tls_client_ca});
  if (!store.ok()) return Prefixed("--tls-cert, --tls-key, --tls-client-ca: ", store.status());
  return store;
}

// Null without a collector. Variables of OpenTelemetry are for all programs of a machine or
// cluster: wrong ones turn traces off and do not end the start.
Result<std::unique_ptr<SpanExporter>> OpenSpanExporter(const ServerConfig& config) {
  Result<OtlpTarget> target = OtlpTargetOf(config.otlp_endpoint, "--otlp-endpoint", std::getenv);
  if (!target.ok()) {
    if (!config.otlp_endpoint.empty()) return target.status();
    LogWarning("traces_off", {{"reason", target.status().message()}});
    return std::unique_ptr<SpanExporter>();
  }
  if (target->url.empty()) return std::unique_ptr<SpanExporter>();
  return std::make_unique<SpanExporter>(
      SpanExporterOptions{.url = std::move(target->url),
                          .headers = std::move(target->headers),
                          .resource = ResourceAttributes(std::getenv)});
}

// Whether a browser asks what a page of an allowed origin may send.
bool IsPreflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.allowed_origin.empty() &&
         !request.Header("Access-Control-Request-Method").empty();
}

// The headers that the page asks for, as clients of OpenAI's API send headers of their own.
void ReplyPreflight(HttpExchange& exchange) {
  const std::string_view asked = exchange.request().Header("Access-Control-Request-Headers");
  exchange.Reply(
      200, "text/plain", "",
      {{"Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE"},
       {"Access-Control-Allow-Headers",
        asked.empty() ? "Authorization, Content-Type, X-Request-Id, X-Tenant-Id, Traceparent"
                      : std::string(asked)},
       {"Vary", "Access-Control-Request-Headers"},
       {"Access-Control-Max-Age", "600"}});
}

// What OPTIONS * asks for: the methods of all paths.
void ReplyMethods(HttpExchange& exchange) {
  exchange.Reply(200, "text/plain", "", {{"Allow", "GET, HEAD, POST, DELETE, OPTIONS"}});
}

void SetMessageLimits(const ServerConfig& config, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(Clamped(config.max_message_bytes));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, Clamped(config.max_metadata_bytes));
  builder->AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadChunkBytes);
  // Compression is off: a compressed message may expand to a thousand times its size.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

void SetConnectionLimits(const ServerConfig& config, grpc::ServerBuilder* builder) {
  const auto set = [builder](const char* name, int64_t value) {
    builder->AddChannelArgument(name, Clamped(value));
  };
  set(GRPC_ARG_MAX_CONCURRENT_STREAMS, config.max_concurrent_streams);
  set(GRPC_ARG_ENABLE_CHANNELZ, 0);
  // Bytes of whole messages that a call may send before they are read. gRPC opens the window for
  // the rest of a message that is being read, whatever its size.
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kUnreadBytes);
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // it would enlarge that for fast connections
  set(GRPC_ARG_KEEPALIVE_TIME_MS, config.keepalive_time.count());
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config.keepalive_timeout.count());
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // of the server's pings: no limit
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, config.keepalive_min_interval.count());
  set(GRPC_ARG_HTTP2_MAX_PING_STRIKES, config.max_ping_strikes);
  set(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, (config.handshake_timeout + kSettingsSpare).count());
  if (config.max_connection_idle.count() > 0)
    set(GRPC_ARG_MAX_CONNECTION_IDLE_MS, config.max_connection_idle.count());
  if (config.max_connection_age.count() > 0) {
    set(GRPC_ARG_MAX_CONNECTION_AGE_MS, config.max_connection_age.count());
    set(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, config.max_connection_age_grace.count());
  }
}

}  // namespace

Server::Server(const ServerConfig& config, Metrics* metrics, std::unique_ptr<Guard> guard,
               std::unique_ptr<SpanExporter> spans)
    : memory_(config.request_memory > 0 ? config.request_memory
                                        : DefaultRequestMemory(AvailableMemory())),
      connections_(LimitsOf(config)),
      metrics_(metrics),
      guard_(std::move(guard)),
      spans_(std::move(spans)),
      stuck_after_(config.stuck_after),
      health_(&connections_),
      router_(&connections_, guard_.get(), &refusals_) {
  context_.connections = &connections_;
  context_.metrics = metrics;
  context_.refusals = &refusals_;
  context_.memory = &memory_;
  context_.spans = spans_.get();
  context_.trace_sample_percent = config.otlp_sample_percent;
  context_.writers = std::make_shared<Executor>(1);
  context_.tokenizers = &tokenizers_;
  context_.stores = std::make_shared<Executor>(
      config.state_store.empty() ? kSessionThreads : kStoreThreads, Executor::Threads::kShares);
  context_.sessions = std::make_shared<Executor>(kSessionThreads);
  context_.grammars = std::make_shared<Executor>(kGrammarThreads, Executor::Threads::kShares);
  context_.migration_ttl = config.migration_ttl;
  context_.stall_deadline = config.stall_deadline;
  context_.stream_buffer = static_cast<size_t>(config.stream_buffer);
  AddCompletionMethods(&context_, &router_);
  AddScoreMethod(&context_, &router_);
  AddSessionMethods(&context_, &router_);
  AddAppendMethod(&context_, &router_);
  AddTextMethods(&context_, &router_);
  AddVllmEngineMethods(&context_, config.served_model_name, &router_);
  health_.AddMethods(&router_);
  AddReflectionMethods(&connections_, &router_);
}

Result<std::unique_ptr<Server>> Server::Start(const ServerConfig& config, Metrics* metrics) {
  RouteLibraryLogs();
  RaiseFileLimit(config.max_connections);
  PS_ASSIGN_OR_RETURN(std::unique_ptr<Guard> guard, OpenGuard(config));
  PS_ASSIGN_OR_RETURN(std::unique_ptr<CertificateStore> certificates, OpenCertificates(config));
  PS_ASSIGN_OR_RETURN(std::unique_ptr<SpanExporter> spans, OpenSpanExporter(config));
  std::unique_ptr<Server> server(new Server(config, metrics, std::move(guard), std::move(spans)));
  server->certificates_ = std::move(certificates);
  server->scrape_ = server->NewScrape(config);
  if (!config.metrics_listen.empty()) PS_RETURN_IF_ERROR(server->StartMetrics(config));
  if (!config.http_listen.empty()) PS_RETURN_IF_ERROR(server->StartHttp(config));
  PS_RETURN_IF_ERROR(server->StartGrpc(config));
  return server;
}

std::unique_ptr<ScrapeMetrics> Server::NewScrape(const ServerConfig& config) {
  return std::make_unique<ScrapeMetrics>(
      [this] { return context_.ready(); },
      [this, name = config.served_model_name]() -> std::optional<ServedFacts> {
        const ServedModel* model = context_.model.load();
        if (model == nullptr) return std::nullopt;
        const v1::GetModelResponse& info = model->description;
        const StoredResponses::Stats stored =
            api_ == nullptr ? StoredResponses::Stats() : api_->texts()->stats();
        return ServedFacts{.engine = model->engine->stats(),
                           .model_name = name.empty() ? info.name() : name,
                           .sessions = model->sessions->stats(),
                           .prefix_cache = model->prefix_cache == nullptr
                                               ? PrefixCacheStats()
                                               : model->prefix_cache->stats(),
                           .stored_responses = stored.responses,
                           .response_bytes = stored.bytes,
                           .response_bytes_limit = stored.limit,
                           .max_sequences = info.limits().max_sequences(),
                           .max_queue = info.limits().max_queue(),
                           .weight_bytes = info.weight_bytes(),
                           .state_bytes_per_sequence = info.state_bytes_per_sequence()};
      },
      [this] { return connections_.stats(); },
      [this] { return guard_ == nullptr ? RefusedCounts() : guard_->refused(); },
      [this] { return refusals_.counts(); }, [this] { return memory_.stats(); },
      [this] { return spans_ == nullptr ? SpanExporter::Stats() : spans_->stats(); });
}

Status Server::StartMetrics(const ServerConfig& config) {
  HttpServer::Guards guards;
  guards.check = [hosts = AllowedHostsOf(config.http_hosts, config.metrics_listen, MachineName())](
                     HttpRequest* request) {
    const bool browser = !request->Header("Origin").empty();
    return CheckHost(request->Header("Host"), browser, hosts);
  };
  guards.refusals = &refusals_;
  Result<std::unique_ptr<HttpServer>> http =
      HttpServer::Start(config.metrics_listen, kMetricsLimits, std::move(guards),
                        [this](const std::shared_ptr<HttpExchange>& exchange) {
                          HandleMetrics(exchange.get(), [this] { return CollectMetrics(); });
                        });
  if (!http.ok()) return Prefixed("--metrics-listen: ", http.status());
  metrics_http_ = *std::move(http);
  metrics_address_ = metrics_http_->address();
  return Status();
}

std::vector<prometheus::MetricFamily> Server::CollectMetrics() const {
  std::vector<prometheus::MetricFamily> families = metrics_->registry()->Collect();
  for (auto& family : scrape_->Collect()) families.push_back(std::move(family));
  return families;
}

Status Server::StartHttp(const ServerConfig& config) {
  page_ = std::make_unique<StatusPage>(&router_, &context_, [this] { return CollectMetrics(); });
  SetStrictParameters(config.strict_parameters);
  api_ = std::make_unique<HttpApi>(
      &router_, &context_, config.served_model_name,
      std::make_unique<StoredResponses>(config.response_memory, config.session_ttl));
  const HttpLimits limits = {.max_connections = config.max_connections,
                             .max_header_bytes = config.max_metadata_bytes,
                             .max_header_fields = MaxFields(config),
                             .max_body_bytes = config.max_body_bytes,
                             .read_timeout = config.handshake_timeout,
                             .write_timeout = config.stall_deadline};
  HttpServer::Guards guards = {
      .check = [this, origins = config.http_origins,
                hosts = AllowedHostsOf(config.http_hosts, config.http_listen, MachineName())](
                   HttpRequest* request) { return CheckHttp(hosts, origins, request); },
      .is_probe = StatusPage::IsHealthPath,
      .certificates = certificates_.get(),
      .memory = &memory_,
      .refusals = &refusals_};
  Result<std::unique_ptr<HttpServer>> http = HttpServer::Start(
      config.http_listen, limits, std::move(guards),
      [this](const std::shared_ptr<HttpExchange>& exchange) {
        if (IsPreflight(exchange->request())) return ReplyPreflight(*exchange);
        if (exchange->request().path == "*") return ReplyMethods(*exchange);
        if (exchange->request().path == kMetricsPath)
          return HandleMetrics(exchange.get(), [this] { return CollectMetrics(); });
        if (HandleOpenAi(*api_, exchange) || HandleAnthropic(*api_, exchange)) return;
        page_->Handle(exchange);
      });
  if (!http.ok()) return Prefixed("--http-listen: ", http.status());
  http_ = *std::move(http);
  return Status();
}

Status Server::CheckHttp(const AllowedHosts& hosts, const std::string& origins,
                         HttpRequest* request) {
  if (IsAnthropicPath(request->path)) request->error_shape = ErrorShape::kAnthropic;
  // Browsers send Origin with every POST, but not with a GET to the server that a page is from. A
  // page of an origin that --http-origins lists does not depend on names.
  const std::string_view origin = request->Header("Origin");
  request->allowed_origin = AllowedOrigin(origin, origins);
  const bool browser = StatusPage::IsPagePath(request->path) || request->path == kMetricsPath ||
                       (!origin.empty() && request->allowed_origin.empty());
  PS_RETURN_IF_ERROR(CheckHost(request->Header("Host"), browser, hosts));
  if (guard_ == nullptr || StatusPage::IsOpen(*request)) return Status();
  if (IsPreflight(*request)) return Status();  // browsers send it without credentials
  std::vector<std::string_view> authorization = request->Headers("Authorization");
  // Anthropic's clients send the key alone.
  const std::string bearer = StrCat("Bearer ", request->Header("x-api-key"));
  if (authorization.empty() && !request->Header("x-api-key").empty()) authorization = {bearer};
  PS_ASSIGN_OR_RETURN(request->caller, guard_->Admit(authorization));
  return Status();
}

std::string Server::http_address() const { return http_ == nullptr ? "" : http_->address(); }

Status Server::StartGrpc(const ServerConfig& config) {
  Result<std::unique_ptr<Listener>> listener = Listener::Bind(config.listen);
  if (!listener.ok()) return Prefixed("--listen: ", listener.status());
  listener_ = *std::move(listener);
  address_ = listener_->address();

  grpc::ServerBuilder builder;
  SetMessageLimits(config, &builder);
  SetConnectionLimits(config, &builder);
  builder.RegisterCallbackGenericService(&router_);
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());  // the relay terminates TLS
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr) return Internal("gRPC did not start");
  StartGrpcThreads();
  const auto serve = [this](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor_->HandleNewConnection(&connection);
  };
  relay_ = std::make_unique<Relay>(RelayOptions{.frames = FrameLimitsOf(config),
                                                .handshake_timeout = config.handshake_timeout,
                                                .certificates = certificates_.get()},
                                   &connections_, &memory_, serve);
  listener_->Start([this](int fd, const std::string& key) { relay_->Add(fd, key); });
  return Status();
}

void Server::SetModel(const ServedModel* model) {
  const v1::GetModelResponse& info = model->description;
  metrics_->SetBuildInfo({.version = POLYSKETCH_VERSION,
                          .commit = kCommit,
                          .model = info.name(),
                          .attention = info.attention(),
                          .device = info.device()});
  WatchForStuck(model);
  ChangeHealth([this, model] { context_.model.store(model); });
  MaintainSessions();
  ReturnMemory();
}

void Server::ChangeHealth(const std::function<void()>& change) {
  std::lock_guard lock(health_mutex_);
  change();
  health_.SetServing(context_.ready());
}

void Server::WatchForStuck(const ServedModel* model) {
  const auto watch = [](auto* executor) { return [executor] { return executor->progress(); }; };
  const auto engine = [model] {
    const EngineStats stats = model->engine->stats();
    return WorkProgress{.has_work = stats.working, .done = stats.turns};
  };
  const auto store = [this, model] {
    WorkProgress progress = context_.stores->progress();
    const StateStore* const states = model->sessions->options().store;
    if (states != nullptr) progress.AddRunning(states->hangs_since());
    return progress;
  };
  stuck_watch_ = std::make_unique<StuckWatch>(
      stuck_after_,
      std::vector<StuckWatch::Part>{{"engine", engine},
                                    {"writer", watch(context_.writers.get())},
                                    {"store", store},
                                    {"session", watch(context_.sessions.get())},
                                    {"tokenizer", watch(context_.tokenizers)}},
      [this](bool stuck) { ChangeHealth([this, stuck] { context_.stuck.store(stuck); }); });
}

void Server::MaintainSessions() {
  context_.stores->PostAfter(kMaintenance, [this] {
    context_.model.load()->sessions->Maintain();
    MaintainSessions();
  });
}

void Server::ReturnMemory() {
  context_.stores->PostAfter(kMaintenance, [this] {
    if (memory_.TakeFreed(kReturnedBytes)) malloc_trim(0);
    ReturnMemory();
  });
}

bool Server::Drain(std::chrono::milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  // A client that has seen NOT_SERVING is always refused.
  ChangeHealth([this] { context_.draining.store(true); });
  const auto deadline = std::chrono::system_clock::now() + timeout;
  const ServedModel* model = context_.model.load();
  const bool migrates = model != nullptr && model->sessions->options().store != nullptr;
  if (migrates) model->engine->MigrateAll();
  const bool all_ended = model == nullptr || model->engine->Drain(timeout);
  if (migrates) {
    // Requests that end later may commit after this: the table then writes them through.
    context_.stores->Post([model] { model->sessions->Flush(); });
  }
  health_.EndWatches();
  listener_.reset();
  // Calls whose input still arrives end by themselves too (EngineCall::CheckDraining).
  const auto goodbye = std::chrono::system_clock::now() + kGoodbye;
  const auto last = std::max(goodbye, deadline);
  grpc_->Shutdown(last);
  grpc_->Wait();
  if (http_ != nullptr) http_->Drain(Draining());
  // The last bytes of gRPC and HTTP are on their way.
  const auto busy = [this] {
    return connections_.stats().open > 0 || (http_ != nullptr && http_->running() > 0);
  };
  const auto end =
      std::max(migrates ? last : goodbye, std::chrono::system_clock::now() + kLastBytes);
  while (busy() && std::chrono::system_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (migrates && api_ != nullptr) {
    context_.stores->Post(
        [this, store = model->sessions->options().store] { SaveResponses(*api_->texts(), store); });
  }
  if (spans_ != nullptr) {
    const auto now = std::chrono::steady_clock::now();
    spans_->Stop(std::min(now + kLastSpans, start + timeout + kDrainEnd));
  }
  return all_ended;
}

Server::~Server() {
  // First stop the threads that read other members.
  stuck_watch_.reset();
  http_.reset();
  metrics_http_.reset();
  listener_.reset();
  if (grpc_ != nullptr) {
    health_.EndWatches();
    grpc_->Shutdown(std::chrono::system_clock::now());
    grpc_->Wait();
  }
  tokenizers_.Stop();
  const ServedModel* model = context_.model.load();
  if (model != nullptr && model->rules.grammars != nullptr) model->rules.grammars->Stop();
  context_.grammars->Stop();
  context_.writers->Stop();
  context_.sessions->Stop();
  context_.stores->Stop();
}

}  // namespace polysketch
