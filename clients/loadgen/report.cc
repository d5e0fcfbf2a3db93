#include "clients/loadgen/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace polysketch::loadgen {
namespace {

nlohmann::ordered_json ToJson(const Summary& summary) {
  return {{"mean", summary.mean},
          {"p50", summary.p50},
          {"p90", summary.p90},
          {"p99", summary.p99},
          {"max", summary.max}};
}

template <typename... Values>
std::string Format(const char* format, Values... values) {
  char line[256];
  std::snprintf(line, sizeof(line), format, values...);
  return line;
}

std::string Row(const char* name, const Summary& s) {
  constexpr double kMs = 1000;
  return Format("%-24s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, s.mean * kMs, s.p50 * kMs,
                s.p90 * kMs, s.p99 * kMs, s.max * kMs);
}

}  // namespace

double RequestResult::time_per_output_token() const {
  if (output_tokens < 2) return 0;
  return (last_token - first_token) / static_cast<double>(output_tokens - 1);
}

bool Objective::Met(const RequestResult& result) const {
  const auto within = [](double value, double limit) { return limit <= 0 || value <= limit; };
  return result.ok() && within(result.first_token, first_token) &&
         within(result.time_per_output_token(), time_per_output_token) &&
         within(result.latency(), latency);
}

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(std::max(std::ceil(share * count) - 1, 0.0))];
  };
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / count,
          .p50 = at(0.5),
          .p90 = at(0.9),
          .p99 = at(0.99),
          .max = values.back()};
}

Report Report::Of(const std::vector<RequestResult>& results, double from, double until,
                  const Objective& objective) {
  Report report;
  std::vector<double> first, gaps, per_token, latency;
  double end = from;
  int64_t met = 0;
  for (const RequestResult& result : results) {
    if (result.start < from || result.start >= until) continue;
    ++report.requests;
    end = std::max(end, result.end);
    report.output_tokens += result.output_tokens;
    met += objective.Met(result) ? 1 : 0;
    if (!result.ok()) {
      ++report.errors[result.status];
      continue;
    }
    ++report.ok;
    report.prompt_tokens += result.prompt_tokens;
    report.cached_tokens += result.cached_tokens;
    latency.push_back(result.latency());
    if (result.output_tokens > 0) first.push_back(result.first_token);
    if (result.output_tokens > 1) per_token.push_back(result.time_per_output_token());
    gaps.insert(gaps.end(), result.gaps.begin(), result.gaps.end());
  }
  report.seconds = end - from;
  const double rate = report.seconds > 0 ? 1 / report.seconds : 0;
  report.requests_per_second = static_cast<double>(report.ok) * rate;
  report.output_tokens_per_second = static_cast<double>(report.output_tokens) * rate;
  report.total_tokens_per_second =
      static_cast<double>(report.output_tokens + report.prompt_tokens) * rate;
  report.has_objective = objective.any();
  report.goodput = static_cast<double>(met) * rate;
  if (report.requests > 0)
    report.goodput_share = static_cast<double>(met) / static_cast<double>(report.requests);
  report.first_token = Summarize(std::move(first));
  report.between_tokens = Summarize(std::move(gaps));
  report.time_per_output_token = Summarize(std::move(per_token));
  report.latency = Summarize(std::move(latency));
  return report;
}

nlohmann::ordered_json Report::ToJson() const {
  nlohmann::ordered_json json = {{"requests", requests},
                                 {"ok", ok},
                                 {"errors", errors},
                                 {"seconds", seconds},
                                 {"prompt_tokens", prompt_tokens},
                                 {"cached_tokens", cached_tokens},
                                 {"output_tokens", output_tokens},
                                 {"requests_per_second", requests_per_second},
                                 {"output_tokens_per_second", output_tokens_per_second},
                                 {"total_tokens_per_second", total_tokens_per_second}};
  if (has_objective) {
    json["goodput_requests_per_second"] = goodput;
    json["goodput_share"] = goodput_share;
  }
  json["time_to_first_token_seconds"] = loadgen::ToJson(first_token);
  json["time_between_tokens_seconds"] = loadgen::ToJson(between_tokens);
  json["time_per_output_token_seconds"] = loadgen::ToJson(time_per_output_token);
  json["e2e_latency_seconds"] = loadgen::ToJson(latency);
  return json;
}

std::string Report::ToText() const {
  std::string text =
      Format("%lld requests in %.1f s, %lld failed\n", static_cast<long long>(requests), seconds,
             static_cast<long long>(requests - ok));
  for (const auto& [status, count] : errors) {
    text += Format("  %-20s %lld\n", status.c_str(), static_cast<long long>(count));
  }
  text += Format("%.2f requests/s, %.1f output tokens/s, %.1f tokens/s with prompts\n",
                 requests_per_second, output_tokens_per_second, total_tokens_per_second);
  if (cached_tokens > 0) {
    text += Format("%.1f%% of prompt tokens from a cache\n",
                   100.0 * static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens));
  }
  if (has_objective) {
    text +=
        Format("goodput %.2f requests/s: %.1f%% met the objective\n", goodput, 100 * goodput_share);
  }
  text += Format("\n%-24s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99", "max");
  text += Row("time to first token", first_token);
  text += Row("time between tokens", between_tokens);
  text += Row("time per output token", time_per_output_token);
  text += Row("end to end", latency);
  return text;
}

}  // namespace polysketch::loadgen
