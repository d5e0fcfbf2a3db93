// From the times of single requests to the figures of a run.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace polysketch::loadgen {

// Times in seconds, as the client saw them.
struct RequestResult {
  std::string status = "OK";  // the name of a gRPC status
  double start = 0;           // since the run began: when it was due
  double end = 0;
  double first_token = 0;   // since `start`; 0: there was none
  double last_token = 0;    // since `start`
  std::vector<float> gaps;  // between tokens; 0 for those that came in one message
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;

  bool ok() const { return status == "OK"; }
  double latency() const { return end - start; }
  // 0 with fewer than two tokens.
  double time_per_output_token() const;
};

// Seconds; 0: not asked for.
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
// Nearest rank: the least value that at least that share of all values does not exceed. Zeros when
// there are none.
Summary Summarise(std::vector<double> values);

struct Report {
  // Requests that began within [from, until), seconds since the run began. Rates are over the time
  // from `from` until the last of them ended.
  static Report Of(const std::vector<RequestResult>& results, double from, double until,
                   const Objective& objective);

  int64_t requests = 0;
  int64_t ok = 0;
  std::map<std::string, int64_t> errors;  // by status
  double seconds = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  double requests_per_second = 0;  // that ended well
  double output_tokens_per_second = 0;
  double total_tokens_per_second = 0;
  bool has_objective = false;
  double goodput = 0;        // requests a second that met the objective
  double goodput_share = 0;  // of all requests
  Summary first_token, between_tokens, time_per_output_token, latency;

  nlohmann::ordered_json ToJson() const;
  std::string ToText() const;
};

}  // namespace polysketch::loadgen
