#include "server/metrics/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "server/metrics/scrape.h"

namespace polysketch {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

std::string Exposition(const Metrics& metrics) {
  const ScrapeMetrics scrape(
      [] { return true; },
      [] {
        return ServedFacts{.engine = {.running = 3,
                                      .waiting = 2,
                                      .preempted = 4,
                                      .state_bytes = 1000,
                                      .state_bytes_limit = 4000,
                                      .preempted_bytes = 300},
                           .model_name = "served",
                           .max_sequences = 16,
                           .weight_bytes = 1 << 20};
      },
      [] { return ConnectionTable::Stats{.open = 1}; },
      [] {
        return RefusedCounts{0, 5, 0, 0};
      },
      [] {
        Refusals refusals;
        (void)refusals.Count(ResourceExhausted("x").WithReason(Reason::kQueueFull));
        (void)refusals.Count(InvalidArgument("x"));
        return refusals.counts();
      },
      [] {
        return RequestMemory::Stats{.limit = 500, .bytes = {0, 0, 70, 30}, .refused = {0, 2, 0, 0}};
      },
      [] { return SpanExporter::Stats{.exported = 7, .dropped = 4}; });
  const prometheus::TextSerializer serializer;
  return serializer.Serialize(metrics.registry()->Collect()) +
         serializer.Serialize(scrape.Collect());
}

void ObserveARequest(Metrics* metrics) {
  metrics->SetBuildInfo(
      {.version = "1.2.3", .commit = "abc", .model = "m", .attention = "softmax", .device = "cpu"});
  metrics->OnAdmitted(microseconds(120));
  metrics->OnStep(1, 100, 0, milliseconds(2));
  metrics->OnStepParts({.layers = microseconds(1500), .logits = microseconds(250)});
  metrics->OnStore(StoreOperation::kGet, milliseconds(3));
  metrics->OnFirstToken(milliseconds(3));
  metrics->OnStep(1, 0, 1, microseconds(250));
  metrics->OnTokenGap(microseconds(240));
  FinishEvent finish;
  finish.reason = FinishReason::kLength;
  finish.usage = {.prompt_tokens = 100, .completion_tokens = 2};
  finish.timings = {
      .prefill = milliseconds(2), .decode = microseconds(250), .total = milliseconds(4)};
  metrics->OnFinished(finish);
  metrics->OnRpc("Complete", Code::kOk, false);
  metrics->OnRpc("Complete", Code::kInvalidArgument, true);
}

TEST(Metrics, CountWhatHappened) {
  Metrics metrics;
  ObserveARequest(&metrics);
  const std::string text = Exposition(metrics);
  for (const char* line : {
           "polysketch_prompt_tokens_total 100\n",
           "polysketch_requests_refused_total{reason=\"QUEUE_FULL\"} 1\n",
           "polysketch_requests_refused_total{reason=\"INVALID_ARGUMENT\"} 1\n",
           "polysketch_requests_refused_total{reason=\"MALFORMED_REQUEST\"} 0\n",
           "polysketch_generation_tokens_total 2\n",
           "polysketch_request_success_total{finished_reason=\"length\"} 1\n",
           "polysketch_request_success_total{finished_reason=\"stop\"} 0\n",
           "polysketch_time_to_first_token_seconds_count 1\n",
           "polysketch_inter_token_latency_seconds_count 1\n",
           // A token of a quarter of a millisecond is told from one of a fifth and of a third.
           "polysketch_inter_token_latency_seconds_bucket{le=\"0.0002\"} 0\n",
           "polysketch_inter_token_latency_seconds_bucket{le=\"0.00025\"} 1\n",
           "polysketch_e2e_request_latency_seconds_sum 0.004\n",
           "polysketch_request_queue_time_seconds_count 1\n",
           "polysketch_iteration_tokens_count 2\n",
           "polysketch_requests_rejected_total{code=\"INVALID_ARGUMENT\",rpc=\"Complete\"} 1\n",
           "polysketch_rpcs_total{code=\"OK\",rpc=\"Complete\"} 1\n",
           "polysketch_num_requests_running 3\n",
           "polysketch_num_requests_waiting 2\n",
           "# TYPE vllm:num_requests_waiting gauge\n",
           "vllm:num_requests_running{model_name=\"served\"} 3\n",
           "vllm:num_requests_waiting{model_name=\"served\"} 6\n",
           "vllm:kv_cache_usage_perc{model_name=\"served\"} 0.25\n",
           "polysketch_slot_memory_bytes 1000\n",
           "polysketch_preempted_memory_bytes 300\n",
           "polysketch_max_sequences 16\n",
           "polysketch_weight_bytes 1048576\n",
           "polysketch_ready 1\n",
           "polysketch_request_memory_bytes{phase=\"request\"} 70\n",
           "polysketch_request_memory_bytes{phase=\"message\"} 0\n",
           "polysketch_request_memory_limit_bytes 500\n",
           "polysketch_request_memory_refused_total{phase=\"upload\"} 2\n",
           "polysketch_state_store_seconds_count{operation=\"get\"} 1\n",
           "polysketch_state_store_seconds_count{operation=\"put\"} 0\n",
           "polysketch_step_part_seconds_total{part=\"layers\"} 0.0015\n",
           "polysketch_cpu_seconds_total{part=\"engine\"} 0\n",
           "version=\"1.2.3\"",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
  for (const char* name :
       {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds",
        "process_max_fds", "process_start_time_seconds", "process_virtual_memory_bytes"}) {
    EXPECT_NE(text.find(StrCat("\n", name, " ")), std::string::npos) << name;
  }
}

TEST(Metrics, PromtoolHasNoObjection) {
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed (scripts/setup brings it)";
  }
  Metrics metrics;
  ObserveARequest(&metrics);
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "polysketch_metrics.txt";
  const std::filesystem::path report =
      std::filesystem::path(testing::TempDir()) / "polysketch_promtool.txt";
  std::istringstream page(Exposition(metrics));
  std::ofstream own(file);
  for (std::string line; std::getline(page, line);) {
    // promtool keeps colons for names of rules.
    if (line.find("vllm:") == std::string::npos) own << line << "\n";
  }
  own.close();
  const int status = std::system(
      StrCat("promtool check metrics < '", file.string(), "' > '", report.string(), "' 2>&1")
          .c_str());
  std::ostringstream said;
  said << std::ifstream(report).rdbuf();
  EXPECT_EQ(status, 0);
  EXPECT_EQ(said.str(), "");
  std::filesystem::remove(file);
  std::filesystem::remove(report);
}

// docs/metrics.md is the users' list: it must not miss one.
TEST(Metrics, AreAllDocumented) {
  const char* source = std::getenv("POLYSKETCH_SOURCE_DIR");
  ASSERT_NE(source, nullptr) << "ctest sets it";
  std::ostringstream page;
  page << std::ifstream(std::filesystem::path(source) / "docs/metrics.md").rdbuf();
  Metrics metrics;
  ObserveARequest(&metrics);
  std::istringstream text(Exposition(metrics));
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    const std::string name = line.substr(7, line.find(' ', 7) - 7);
    EXPECT_NE(page.str().find(StrCat("`", name)), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace polysketch
