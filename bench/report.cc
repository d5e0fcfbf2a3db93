#include "bench/report.h"

#include <cstdio>
#include <fstream>
#include <iostream>

namespace polysketch::bench {
namespace {

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// The limit that an op is compared with.
struct Ceiling {
  const char* name = "";
  double operations = 0;  // a second; 0: none
};

Ceiling CeilingOf(OpClass kind, const ProductPeaks& peaks) {
  switch (kind) {
    case OpClass::kF32:
      return {"f32", peaks.f32};
    case OpClass::kBf16:
      return {"bf16", peaks.bf16};
    case OpClass::kInt8:
      return {"int8", peaks.int8};
    case OpClass::kMemory:
      break;
  }
  return {};
}

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

Report::Report(const BenchOptions& options, const std::string& backend, const ProductPeaks& peaks,
               bool as_json)
    : peaks_(peaks), on_device_(options.device == "cuda"), as_json_(as_json) {
  json_ = {{"cpu", CpuModel()},
           {"threads", options.threads},
           {"backend", backend},
           {"peak_gop_per_s",
            {{"f32", peaks.f32 / 1e9}, {"bf16", peaks.bf16 / 1e9}, {"int8", peaks.int8 / 1e9}}},
           {"device_ceilings",
            {{"gbyte_per_s", options.device_bandwidth / 1e9},
             {"gflop_per_s", options.device_flops / 1e9}}},
           {"model", options.model},
           {"results", nlohmann::json::array()},
           {"kernels", nlohmann::json::array()}};
  if (as_json_) return;
  if (on_device_) {
    std::printf("%s, %s\nceilings of the device: %.0f GB/s, %.1f TFLOP/s\n", CpuModel().c_str(),
                backend.c_str(), options.device_bandwidth / 1e9, options.device_flops / 1e12);
    return;
  }
  std::printf("%s, %d threads, %s\npeaks in GOP/s: f32 %.0f, bf16 %.0f, int8 %.0f\n",
              CpuModel().c_str(), options.threads, backend.c_str(), peaks.f32 / 1e9,
              peaks.bf16 / 1e9, peaks.int8 / 1e9);
}

void Report::Add(const BenchRow& row) {
  if (!as_json_) Print(row);
  json_["results"].push_back(ToJson(row));
}

void Report::Add(const KernelRow& row) {
  if (!as_json_) Print(row);
  json_["kernels"].push_back({{"op", row.op},
                              {"shape", row.shape},
                              {"microseconds", row.microseconds},
                              {"gflop_per_s", row.gflop_per_s},
                              {"fma_share", row.fma_share},
                              {"gbyte_per_s", row.gbyte_per_s}});
}

void Report::Finish() {
  if (as_json_) std::cout << json_.dump(1) << "\n";
}

nlohmann::json Report::ToJson(const BenchRow& row) const {
  nlohmann::json json = {{"stage", row.stage},
                         {"context", row.context},
                         {"batch", row.batch},
                         {"weights", row.weights},
                         {"state", row.state},
                         {"threads", row.threads},
                         {"tokens_per_s", row.tokens_per_s},
                         {"seconds", row.seconds},
                         {"tokens", row.tokens},
                         {"gflop_per_s", row.gflop_per_s},
                         {"fma_share", row.fma_share}};
  json["attention"] = row.attention;
  if (row.stage == "decode") {
    json["state_bytes"] = row.state_bytes;
    json["step_bytes"] = row.step_bytes;
    json["gbyte_per_s"] = row.gbyte_per_s;
    json["read_bandwidth_gbyte_per_s"] = row.bandwidth;
    json["read_bandwidth_1_thread_gbyte_per_s"] = row.bandwidth_1;
    json["bandwidth_share"] = row.bandwidth_share;
  }
  for (const OpTotals& op : row.ops) {
    const Ceiling ceiling = CeilingOf(op.kind, peaks_);
    json["ops"].push_back({{"op", op.op},
                           {"calls", op.calls},
                           {"seconds", op.seconds},
                           {"time_share", Share(op.seconds, row.seconds)},
                           {"flop", op.flop},
                           {"bytes", op.bytes},
                           {"ceiling", ceiling.name},
                           {"ceiling_share", Share(op.flop / op.seconds, ceiling.operations)}});
  }
  return json;
}

void Report::Print(const BenchRow& row) const {
  std::printf(
      "%-8s context %8lld batch %3d weights %-5s %9.1f tokens/s %8.1f GFLOP/s (%4.1f%% of %s peak)",
      row.stage.c_str(), static_cast<long long>(row.context), row.batch, row.weights.c_str(),
      row.tokens_per_s, row.gflop_per_s, 100 * row.fma_share, on_device_ ? "bf16" : "f32");
  if (row.stage == "decode") {
    std::printf(" %6.1f GB/s (%4.1f%% of %.1f", row.gbyte_per_s, 100 * row.bandwidth_share,
                row.bandwidth);
    if (!on_device_) std::printf("; 1 thread %.1f", row.bandwidth_1);
    std::printf(")");
  }
  std::printf("\n");
  for (const OpTotals& op : row.ops) Print(op, row);
  std::fflush(stdout);
}

void Report::Print(const OpTotals& op, const BenchRow& row) const {
  std::printf("    %-26s %8lld calls %9.1f us %5.1f%% of time", op.op.c_str(),
              static_cast<long long>(op.calls), op.seconds / static_cast<double>(op.calls) * 1e6,
              100 * Share(op.seconds, row.seconds));
  if (op.flop > 0) {
    std::printf(" %8.1f GOP/s", op.flop / op.seconds / 1e9);
    const Ceiling ceiling = CeilingOf(op.kind, peaks_);
    if (ceiling.operations > 0) {
      std::printf(" (%4.1f%% of %s)", 100 * op.flop / op.seconds / ceiling.operations,
                  ceiling.name);
    }
  }
  if (op.bytes > 0) std::printf(" %7.1f GB/s", op.bytes / op.seconds / 1e9);
  std::printf("\n");
}

void Report::Print(const KernelRow& row) const {
  std::printf("%-22s %-34s %10.1f us %8.1f GFLOP/s (%4.1f%% of f32 peak) %7.1f GB/s\n",
              row.op.c_str(), row.shape.c_str(), row.microseconds, row.gflop_per_s,
              100 * row.fma_share, row.gbyte_per_s);
  std::fflush(stdout);
}

void Print(const DriftRow& row) {
  std::printf(
      "weights %-6s state %-4s %8lld tokens, perplexity %10.4f, change %+8.4f%%, a token's "
      "log-probability: mean %.2e, max %.2e\n",
      row.weights.c_str(), row.state.c_str(), static_cast<long long>(row.tokens), row.perplexity,
      100 * row.change, row.mean_token, row.max_token);
  std::fflush(stdout);
}

void PrintJson(const BenchOptions& options, const std::vector<DriftRow>& rows) {
  nlohmann::json json = {{"model", options.model}, {"drift", nlohmann::json::array()}};
  for (const DriftRow& row : rows) {
    json["drift"].push_back({{"weights", row.weights},
                             {"state", row.state},
                             {"tokens", row.tokens},
                             {"perplexity", row.perplexity},
                             {"change", row.change},
                             {"mean_logprob_change", row.mean_token},
                             {"max_logprob_change", row.max_token}});
  }
  std::cout << json.dump(1) << "\n";
}

}  // namespace polysketch::bench
