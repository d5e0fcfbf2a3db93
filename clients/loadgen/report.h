// Statistics of a run, from the results of its requests.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace polysketch::loadgen {

// Times in seconds, measured by the client.
struct RequestResult {
  std::string status = "OK";  // name of the gRPC status
  double start = 0;           // time at which it was due, since the start of the run
  double end = 0;             // since the start of the run
  double first_token = 0;     // since `start`; 0: no token
  double last_token = 0;      // since `start`
  std::vector<float> gaps;    // times between tokens; 0 within a message
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;

  bool ok() const { return status == "OK"; }
  double latency() const { return end - start; }
  // 0 with fewer than two tokens.
  double time_per_output_token() const;
};

// Limits of goodput in seconds; 0: none.
struct Objective {
  double first_token = 0;
  double time_per_output_token = 0;
  double latency = 0;

  bool any() const { return first_token > 0 || time_per_output_token > 0 || latency > 0; }
  bool Met(const RequestResult& result) const;
};

struct Summary {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};
// Percentiles by nearest rank: the smallest value that at least p percent of the values do not
// exceed. All 0 without values.
Summary Summarize(std::vector<double> values);

struct Report {
  // Reports the requests that were due in [from, until), in seconds since the start of the run.
  // Rates are over the time from `from` to the end of the last of these requests.
  static Report Of(const std::vector<RequestResult>& results, double from, double until,
                   const Objective& objective);

  int64_t requests = 0;
  int64_t ok = 0;
  std::map<std::string, int64_t> errors;  // by status
  double seconds = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  double requests_per_second = 0;  // successful ones
  double output_tokens_per_second = 0;
  double total_tokens_per_second = 0;
  bool has_objective = false;
  double goodput = 0;        // requests that met the objective, a second
  double goodput_share = 0;  // requests that met the objective, as a share of all
  Summary first_token, between_tokens, time_per_output_token, latency;

  nlohmann::ordered_json ToJson() const;
  std::string ToText() const;
};

}  // namespace polysketch::loadgen
