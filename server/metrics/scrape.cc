#include "server/metrics/scrape.h"

#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/logging.h"
#include "base/thread_name.h"
#include "server/net/ignored_parameters.h"

namespace polysketch {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// A metric without labels, by its name without the prefix. A name that ends in _total is that of a
// counter, others are gauges.
struct Sample {
  template <typename Number>
  Sample(std::string_view name, const char* help, Number value)
      : name(name), help(help), value(static_cast<double>(value)) {}

  std::string_view name;
  const char* help;
  double value;
};

// The families of one answer.
struct Page {
  // `name` with its prefix.
  MetricFamily& AddFamily(std::string name, const char* help) {
    MetricFamily& family = families.emplace_back();
    family.type = name.ends_with("_total") ? MetricType::Counter : MetricType::Gauge;
    family.name = std::move(name);
    family.help = help;
    return family;
  }
  void Add(std::initializer_list<Sample> samples, const char* prefix = "polysketch_") {
    for (const Sample& sample : samples) {
      AddSeries(sample.value, {}, &AddFamily(StrCat(prefix, sample.name), sample.help));
    }
  }
  // A family with a series for each pair of `counts`, a value of `label` and a number.
  template <typename Counts>
  void AddByLabel(const char* name, const char* help, const char* label, const Counts& counts) {
    MetricFamily& family = AddFamily(name, help);
    for (const auto& [value, count] : counts)
      AddSeries(static_cast<double>(count), {{label, std::string(value)}}, &family);
  }
  static void AddSeries(double value, std::vector<ClientMetric::Label> labels,
                        MetricFamily* family) {
    ClientMetric& metric = family->metric.emplace_back();
    metric.label = std::move(labels);
    (family->type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
  }

  std::vector<MetricFamily> families;
};

// The numbers of an array with the names of its elements.
template <typename Names, typename Numbers>
auto Named(const Names& names, const Numbers& numbers) {
  std::vector<std::pair<std::string_view, double>> named;
  for (size_t i = 0; i < numbers.size(); ++i)
    named.emplace_back(names[i], static_cast<double>(numbers[i]));
  return named;
}

// Fields of /proc/self/stat after the name of the command, which may contain spaces. [0] is field
// 3, the state.
std::vector<std::string> ProcessStat() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(std::move(field));
  return fields;
}

double BootTimeSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string key, rest; file >> key && std::getline(file, rest);) {
    if (key == "btime") return std::stod(rest);
  }
  return 0;
}

void AddProcess(Page* page) {
  const std::vector<std::string> stat = ProcessStat();
  if (stat.size() < 22) return;
  const auto field = [&stat](int number) {
    return std::stod(stat[static_cast<size_t>(number - 3)]);
  };
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  std::error_code error;  // after an error the count is 0
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  page->Add({{"cpu_seconds_total", "CPU time of the process, user and system.",
              (field(14) + field(15)) / ticks},
             {"threads", "Threads of the process.", field(20)},
             {"start_time_seconds", "Start of the process, in seconds since the epoch.",
              BootTimeSeconds() + field(22) / ticks},
             {"virtual_memory_bytes", "Virtual memory of the process.", field(23)},
             {"resident_memory_bytes", "Resident memory of the process.",
              field(24) * static_cast<double>(sysconf(_SC_PAGESIZE))},
             {"open_fds", "Open file descriptors of the process.",
              std::distance(begin(descriptors), end(descriptors))},
             {"max_fds", "Limit of open file descriptors of the process.", limit.rlim_cur}},
            "process_");
}

// CPU time of a thread of this process; 0 for a thread that has ended.
double ThreadCpuSeconds(const std::filesystem::path& task) {
  int64_t nanoseconds = 0;
  std::ifstream(task / "schedstat") >> nanoseconds;
  return static_cast<double>(nanoseconds) * 1e-9;
}

// The threads of the model live as long as the process, so the difference never decreases.
void AddCpuParts(Page* page) {
  double engine = 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name == kEngineThreadName || name == kPoolThreadName) engine += ThreadCpuSeconds(task);
  }
  timespec process{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &process);
  const double all = static_cast<double>(process.tv_sec) + 1e-9 * double(process.tv_nsec);
  const std::pair<const char*, double> parts[] = {{"engine", engine},
                                                  {"server", std::max(0.0, all - engine)}};
  page->AddByLabel(
      "polysketch_cpu_seconds_total",
      "CPU time of the process by part: engine (the threads of the model), server (all "
      "other threads).",
      "part", parts);
}

void AddEngine(const ServedFacts& served, Page* page) {
  const EngineStats& engine = served.engine;
  page->Add(
      {{"num_requests_running",
        "Running sequences: they have a slot. Each choice of a request counts.", engine.running},
       {"num_requests_waiting",
        "Waiting requests: they have had no slot yet. Each choice that waits counts.",
        engine.waiting},
       {"num_requests_preempted",
        "Preempted sequences: they gave their slot to another one and continue later.",
        engine.preempted},
       {"num_requests_displaced_total",
        "Waiting requests that ended with RESOURCE_EXHAUSTED because the queue was full and a "
        "client with fewer requests got their place.",
        engine.given_up},
       {"num_preemptions_total", "Preemptions: a sequence gave its slot to another one.",
        engine.preemptions},
       {"num_dropped_states_total",
        "States of preempted sequences that were dropped because preempted memory was full; their "
        "tokens are processed again.",
        engine.dropped_states},
       {"num_dropped_tokens_total", "Tokens of dropped states, to be processed again.",
        engine.dropped_tokens},
       {"num_prompt_tokens_waiting", "Prompt tokens of waiting requests.", engine.waiting_tokens},
       {"num_requests_idle",
        "Idle sequences: they have a slot and can use no step now, because the reader of the "
        "output or the input of a score is late.",
        engine.idle},
       {"max_sequences", "Number of slots (--max-sequences).", served.max_sequences},
       {"max_queue", "Limit of waiting requests (--max-queue). More get RESOURCE_EXHAUSTED.",
        served.max_queue},
       {"slot_memory_bytes",
        "Slot memory in use: what is charged for the states of running sequences, and all states "
        "of a draft model.",
        engine.state_bytes},
       {"slot_memory_limit_bytes",
        "Limit of slot memory (--slot-memory), and of the states of a draft model. A request whose "
        "state does not fit waits.",
        engine.state_bytes_limit},
       {"preempted_memory_bytes", "Preempted memory in use: the states of preempted sequences.",
        engine.preempted_bytes},
       {"preempted_memory_limit_bytes",
        "Limit of preempted memory (--preempted-memory). A state that does not fit is dropped and "
        "computed again.",
        engine.preempted_bytes_limit},
       {"state_bytes_per_sequence",
        "Size of the state of one sequence; for a KV kind, at the context length of the model.",
        served.state_bytes_per_sequence},
       {"weight_bytes",
        "Size of the weights, a draft model not included. Every step reads all weights once.",
        served.weight_bytes},
       {"steps_total", "Steps: forward passes of the model over a batch.", engine.steps}});
}

// The names by which gateways' endpoint pickers know the load of a server. As in vLLM a preempted
// sequence waits, and the usage of the cache is a fraction.
void AddVllmNames(const ServedFacts& served, Page* page) {
  const EngineStats& engine = served.engine;
  const auto limit = static_cast<double>(engine.state_bytes_limit);
  const Sample samples[] = {
      {"num_requests_running", "As polysketch_num_requests_running.", engine.running},
      {"num_requests_waiting",
       "polysketch_num_requests_waiting and polysketch_num_requests_preempted together.",
       engine.waiting + engine.preempted},
      {"kv_cache_usage_perc",
       "Used share of slot memory, 0 to 1: what is charged for the states of running sequences.",
       limit > 0 ? std::min(1.0, static_cast<double>(engine.state_bytes) / limit) : 0.0}};
  for (const Sample& sample : samples) {
    Page::AddSeries(sample.value, {{"model_name", served.model_name}},
                    &page->AddFamily(StrCat("vllm:", sample.name), sample.help));
  }
}

void AddPrefixCache(const PrefixCacheStats& cache, Page* page) {
  page->Add(
      {{"prefix_cache_entries", "States in the prefix cache.", cache.entries},
       {"prefix_cache_bytes", "Session memory in use by the prefix cache.", cache.bytes},
       {"prefix_cache_text_bytes",
        "Of these bytes, token ids of known texts without a state. They tell where prompts part.",
        cache.text_bytes},
       {"prefix_cache_queries_total",
        "Prompt tokens of requests that were looked up in the prefix cache.", cache.queried_tokens},
       {"prefix_cache_hits_total",
        "Prompt tokens that a state of the prefix cache provided. They are not processed again.",
        cache.hit_tokens},
       {"prefix_cache_stored_total", "States added to the prefix cache.", cache.stored},
       {"prefix_cache_evicted_total", "States removed from the prefix cache to free memory.",
        cache.evicted}});
}

void AddSessions(const SessionStats& sessions, Page* page) {
  page->Add(
      {{"sessions", "Sessions and snapshots that this process knows.", sessions.sessions},
       {"session_memory_bytes", "Session memory in use by sessions. Forks share their memory.",
        sessions.memory_bytes},
       {"session_memory_limit_bytes",
        "Limit of session memory (--session-memory). The least recently used sessions go to the "
        "state store; without one, more get RESOURCE_EXHAUSTED, and so do those of a client that "
        "holds three times what is free.",
        sessions.memory_limit},
       {"session_loads_total", "Sessions read from the state store.", sessions.loads},
       {"session_spills_total", "Sessions moved to the state store to free memory.",
        sessions.spills},
       {"sessions_evicted_total", "Evictable sessions that were deleted to make room.",
        sessions.evicted},
       {"session_writes_total", "Sessions written to the state store, moved ones included.",
        sessions.writes},
       {"session_written_bytes_total", "Bytes of the sessions written to the state store.",
        sessions.written_bytes},
       {"state_store_bytes",
        "Size of the state store: bytes of the folder, or memory of Redis. Changes of other "
        "processes appear within a minute.",
        sessions.store.bytes},
       {"state_store_limit_bytes",
        "Limit of the state store (--state-store-limit, or maxmemory of Redis). Writes beyond it "
        "get RESOURCE_EXHAUSTED. 0: no limit.",
        sessions.store.limit},
       {"state_store_errors_total",
        "Failed operations of the state store, reads of damaged entries included.",
        sessions.store_errors}});
}

void AddResponses(const ServedFacts& served, Page* page) {
  page->Add(
      {{"stored_responses", "Responses whose text GET /v1/responses/ID returns.",
        served.stored_responses},
       {"response_memory_bytes", "Memory of the texts of stored responses.", served.response_bytes},
       {"response_memory_limit_bytes",
        "Limit of that memory (--response-memory). The oldest texts of the client that holds the "
        "most give way.",
        served.response_bytes_limit}});
}

void AddConnections(const ConnectionTable::Stats& stats, Page* page) {
  page->Add(
      {{"connections", "Open connections.", stats.open},
       {"calls_in_flight", "Calls that are not yet freed, health checks included.", stats.calls},
       {"connections_refused_total",
        "Connections closed on arrival: more than --max-connections, too many calls, or too many "
        "abusive connections of the same client.",
        stats.refused},
       {"connections_abusive_total",
        "Connections closed for too many aborted calls or open streams (HTTP/2 rapid reset).",
        stats.abusive}});
}

void AddRequestMemory(const RequestMemory::Stats& stats, Page* page) {
  page->Add({{"request_memory_limit_bytes",
              "Limit of request memory (--request-memory). Work that does not fit gets "
              "RESOURCE_EXHAUSTED.",
              stats.limit}});
  page->AddByLabel(
      "polysketch_request_memory_bytes",
      "Request memory in use, by phase: message (bytes of messages that have not arrived whole), "
      "upload (collected input of requests that have not started), request (prompts and other "
      "parts of requests), reply (responses that clients have not read).",
      "phase", Named(kRequestPhaseNames, stats.bytes));
  page->AddByLabel("polysketch_request_memory_refused_total",
                   "Refusals because request memory was full, by phase.", "phase",
                   Named(kRequestPhaseNames, stats.refused));
}

void AddSpans(const SpanExporter::Stats& spans, Page* page) {
  page->Add({{"trace_spans_exported_total", "Spans that the collector of --otlp-endpoint took.",
              spans.exported},
             {"trace_spans_dropped_total",
              "Spans dropped because the buffer was full or the collector did not take them.",
              spans.dropped}});
}

}  // namespace

ScrapeMetrics::ScrapeMetrics(std::function<bool()> ready,
                             std::function<std::optional<ServedFacts>()> served,
                             std::function<ConnectionTable::Stats()> connections,
                             std::function<RefusedCounts()> refused,
                             std::function<Refusals::Counts()> refusals,
                             std::function<RequestMemory::Stats()> memory,
                             std::function<SpanExporter::Stats()> spans)
    : ready_(std::move(ready)),
      served_(std::move(served)),
      connections_(std::move(connections)),
      refused_(std::move(refused)),
      refusals_(std::move(refusals)),
      memory_(std::move(memory)),
      spans_(std::move(spans)) {}

std::vector<MetricFamily> ScrapeMetrics::Collect() const {
  Page page;
  page.Add(
      {{"ready",
        "1 while health is SERVING: the model is loaded, the server does not drain and no thread "
        "is stuck. Otherwise 0.",
        ready_()},
       {"log_lines_dropped_total", "Log lines dropped because the reader of stderr stalled.",
        LogLinesDropped()}});
  if (const std::optional<ServedFacts> served = served_()) {
    AddEngine(*served, &page);
    AddVllmNames(*served, &page);
    AddSessions(served->sessions, &page);
    AddResponses(*served, &page);
    AddPrefixCache(served->prefix_cache, &page);
  }
  AddConnections(connections_(), &page);
  page.AddByLabel(
      "polysketch_credentials_refused_total",
      "Calls that --api-keys refused, by reason: no_key, unknown_key, requests_per_minute, "
      "tokens_per_minute.",
      "reason", Named(kRefusalNames, refused_()));
  page.AddByLabel("polysketch_requests_refused_total",
                  "Refused requests of all doors by reason, those that became no call included.",
                  "reason", refusals_());
  page.AddByLabel(
      "polysketch_parameters_ignored_total",
      "HTTP requests with a parameter that has no effect, by its name; other: names beyond "
      "the first 100.",
      "parameter", IgnoredParameters());
  AddRequestMemory(memory_(), &page);
  AddSpans(spans_(), &page);
  AddCpuParts(&page);
  AddProcess(&page);
  return std::move(page.families);
}

}  // namespace polysketch
