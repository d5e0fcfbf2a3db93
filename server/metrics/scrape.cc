#include "server/metrics/scrape.h"

#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "base/thread_name.h"

namespace polysketch {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class Families {
 public:
  void Gauge(std::string name, std::string help, double value) {
    Add(MetricType::Gauge, name, help, value);
  }
  void Counter(std::string name, std::string help, double value) {
    Add(MetricType::Counter, name, help, value);
  }
  // One series for each value of a label.
  void Labelled(MetricType type, std::string name, std::string help, const std::string& label,
                const std::vector<std::pair<std::string, double>>& values) {
    MetricFamily family{std::move(name), std::move(help), type, {}};
    for (const auto& [value_of_label, value] : values) {
      ClientMetric metric;
      metric.label.push_back({label, value_of_label});
      (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
      family.metric.push_back(std::move(metric));
    }
    families_.push_back(std::move(family));
  }
  std::vector<MetricFamily> Take() && { return std::move(families_); }

 private:
  void Add(MetricType type, std::string& name, std::string& help, double value) {
    ClientMetric metric;
    (type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) = value;
    families_.push_back({std::move(name), std::move(help), type, {std::move(metric)}});
  }
  std::vector<MetricFamily> families_;
};

// Fields of /proc/self/stat behind the command's name, which may hold spaces; [0] is field 3, the
// state.
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

void AddProcess(Families* families) {
  const std::vector<std::string> stat = ProcessStat();
  if (stat.size() < 22) return;
  const auto field = [&stat](int number) {
    return std::stod(stat[static_cast<size_t>(number - 3)]);
  };
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  families->Counter("process_cpu_seconds_total", "CPU time of the process, user and system.",
                    (field(14) + field(15)) / ticks);
  families->Gauge("process_threads", "Threads of the process.", field(20));
  families->Gauge("process_start_time_seconds", "Start of the process since the epoch.",
                  BootTimeSeconds() + field(22) / ticks);
  families->Gauge("process_virtual_memory_bytes", "Virtual memory of the process.", field(23));
  families->Gauge("process_resident_memory_bytes", "Resident memory of the process.",
                  field(24) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  std::error_code error;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd", error);
  if (!error) {
    families->Gauge("process_open_fds", "Open file descriptors.",
                    static_cast<double>(std::distance(begin(descriptors), end(descriptors))));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    families->Gauge("process_max_fds", "Most file descriptors that the process may open.",
                    static_cast<double>(limit.rlim_cur));
  }
}

// CPU time that a thread of ours has had; 0 when it ended meanwhile.
double ThreadCpuSeconds(const std::filesystem::path& task) {
  int64_t nanoseconds = 0;
  std::ifstream(task / "schedstat") >> nanoseconds;
  return static_cast<double>(nanoseconds) * 1e-9;
}

// The model's threads live as long as the process, so that what is left is a counter too.
void AddCpuParts(Families* families) {
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
  families->Labelled(MetricType::Counter, "polysketch_cpu_seconds_total",
                     "CPU time of the model's threads (engine) and of all others (server).", "part",
                     {{"engine", engine}, {"server", std::max(0.0, all - engine)}});
}

void AddServed(const ServedFacts& served, Families* families) {
  const EngineStats& engine = served.engine;
  families->Gauge("polysketch_num_requests_running", "Requests in the running batch.",
                  engine.running);
  families->Gauge("polysketch_num_requests_waiting", "Requests that wait for a place.",
                  engine.waiting);
  families->Gauge("polysketch_num_requests_preempted",
                  "Requests that gave their place to others and will go on.", engine.preempted);
  families->Counter("polysketch_num_preemptions_total",
                    "How often a request gave its place to another.",
                    static_cast<double>(engine.preemptions));
  families->Gauge("polysketch_num_prompt_tokens_waiting", "Prompt tokens of waiting requests.",
                  static_cast<double>(engine.waiting_tokens));
  families->Gauge("polysketch_num_requests_idle",
                  "Running requests that wait for their reader, or for the input of a score.",
                  engine.idle);
  families->Gauge("polysketch_max_sequences", "Most requests that run at once.",
                  static_cast<double>(served.max_sequences));
  families->Gauge("polysketch_max_queue", "Most requests that wait; more are rejected.",
                  static_cast<double>(served.max_queue));
  families->Gauge("polysketch_slot_memory_bytes", "Memory held by the states of running requests.",
                  static_cast<double>(engine.state_bytes));
  families->Gauge("polysketch_slot_memory_limit_bytes", "Most memory that those may hold.",
                  static_cast<double>(engine.state_bytes_limit));
  families->Gauge("polysketch_preempted_memory_bytes",
                  "Memory held by the states of requests that gave their place to others.",
                  static_cast<double>(engine.preempted_bytes));
  families->Gauge("polysketch_preempted_memory_limit_bytes", "Most memory that those may hold.",
                  static_cast<double>(engine.preempted_bytes_limit));
  families->Gauge("polysketch_state_bytes_per_sequence", "Memory of the state of one request.",
                  static_cast<double>(served.state_bytes_per_sequence));
  families->Gauge("polysketch_weight_bytes", "Memory of the weights, which every step reads.",
                  static_cast<double>(served.weight_bytes));
  families->Counter("polysketch_steps_total", "Steps of the model.",
                    static_cast<double>(engine.steps));
}

void AddPrefixCache(const PrefixCacheStats& cache, Families* families) {
  families->Gauge("polysketch_prefix_cache_entries", "States of prompts that are stored.",
                  static_cast<double>(cache.entries));
  families->Gauge("polysketch_prefix_cache_bytes", "Memory of those.",
                  static_cast<double>(cache.bytes));
  families->Counter("polysketch_prefix_cache_queries_total",
                    "Prompt tokens of requests that asked for a stored state.",
                    static_cast<double>(cache.queried_tokens));
  families->Counter("polysketch_prefix_cache_hits_total",
                    "Of these, tokens taken from a stored state.",
                    static_cast<double>(cache.hit_tokens));
  families->Counter("polysketch_prefix_cache_stored_total", "States of prompts stored.",
                    static_cast<double>(cache.stored));
  families->Counter("polysketch_prefix_cache_evicted_total", "Stored states dropped to make room.",
                    static_cast<double>(cache.evicted));
}

void AddSessions(const SessionStats& sessions, Families* families) {
  families->Gauge("polysketch_sessions", "Sessions and snapshots that this process knows.",
                  sessions.sessions);
  families->Gauge("polysketch_session_memory_bytes", "Memory of sessions at rest.",
                  static_cast<double>(sessions.memory_bytes));
  families->Gauge("polysketch_session_memory_limit_bytes",
                  "Most memory that states at rest may hold (--session-memory).",
                  static_cast<double>(sessions.memory_limit));
  families->Counter("polysketch_session_loads_total", "Sessions read from the store.",
                    static_cast<double>(sessions.loads));
  families->Counter("polysketch_session_spills_total",
                    "Sessions that left memory for the store to make room.",
                    static_cast<double>(sessions.spills));
  families->Counter("polysketch_session_writes_total", "Sessions written to the store.",
                    static_cast<double>(sessions.writes));
  families->Counter("polysketch_session_written_bytes_total", "Bytes of those.",
                    static_cast<double>(sessions.written_bytes));
  families->Gauge("polysketch_state_store_bytes",
                  "Bytes in the store's folder, or memory of Redis, when last looked.",
                  static_cast<double>(sessions.store.bytes));
  families->Gauge("polysketch_state_store_limit_bytes",
                  "Most of those (--state-store-limit, Redis' maxmemory); 0: no bound.",
                  static_cast<double>(sessions.store.limit));
  families->Counter("polysketch_state_store_errors_total", "Failed operations of the store.",
                    static_cast<double>(sessions.store_errors));
}

}  // namespace

ScrapeMetrics::ScrapeMetrics(std::function<bool()> ready,
                             std::function<std::optional<ServedFacts>()> served,
                             std::function<ConnectionTable::Stats()> connections)
    : ready_(std::move(ready)), served_(std::move(served)), connections_(std::move(connections)) {}

std::vector<MetricFamily> ScrapeMetrics::Collect() const {
  Families families;
  families.Gauge("polysketch_ready", "1 while health says SERVING: loaded and not draining.",
                 ready_() ? 1 : 0);
  if (const std::optional<ServedFacts> served = served_()) {
    AddServed(*served, &families);
    AddSessions(served->sessions, &families);
    AddPrefixCache(served->prefix_cache, &families);
  }
  const ConnectionTable::Stats connections = connections_();
  families.Gauge("polysketch_connections", "Open connections.",
                 static_cast<double>(connections.open));
  families.Gauge("polysketch_calls_in_flight", "Calls not yet freed, health checks included.",
                 static_cast<double>(connections.calls));
  families.Counter("polysketch_connections_refused_total", "Connections over the limits.",
                   static_cast<double>(connections.refused));
  families.Counter("polysketch_connections_abusive_total",
                   "Connections closed for aborting too many calls.",
                   static_cast<double>(connections.abusive));
  AddCpuParts(&families);
  AddProcess(&families);
  return std::move(families).Take();
}

}  // namespace polysketch
