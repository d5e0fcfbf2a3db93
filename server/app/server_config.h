// The configuration of the server. A value comes from its flag, or from its environment variable,
// or from the file that --config names, or it is the default below.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "kernels/step_tokens.h"

namespace polysketch {

// server/app/flags.cc describes each field and the meaning of 0.
struct ServerConfig {
  std::string model;
  std::string model_root;
  std::string chat_template;
  std::string tool_format = "auto";
  std::string reasoning_format = "auto";
  bool strict_parameters = false;
  bool trust_request_chat_template = false;
  std::string generation_config = "auto";
  bool verify = false;
  std::string listen = "127.0.0.1:50051";
  std::string metrics_listen = "127.0.0.1:9464";
  std::string http_listen = "127.0.0.1:8000";
  std::string http_hosts;
  std::string http_origins;
  std::string served_model_name;
  std::string tls_cert;
  std::string tls_key;
  std::string tls_client_ca;
  std::string api_keys;
  bool insecure = false;

  std::string device = "auto";
  int64_t threads = 0;
  std::string weights = "auto";
  std::string state_format = "auto";

  int64_t max_sequences = 16;
  int64_t max_queue = 256;
  int64_t max_queue_tokens = int64_t{1} << 24;
  int64_t max_priority = 0;
  int64_t max_step_tokens = 0;  // 0: that of the device, StepTokens
  int64_t step_budget_ms = 25;
  int64_t draft_tokens = 16;
  std::string draft_model;
  int64_t max_prompt_tokens = int64_t{1} << 24;
  int64_t max_new_tokens = int64_t{1} << 20;
  int64_t default_max_tokens = 4096;
  int64_t slot_memory = 0;
  int64_t preempted_memory = 0;
  std::string kv_admission = "preempt";

  std::string state_store;
  std::string state_store_format = "f32";
  int64_t state_store_limit = 0;
  int64_t session_memory = 0;
  std::chrono::milliseconds session_ttl{24 * 3'600'000};
  int64_t max_sessions_per_tenant = 1000;
  int64_t prefix_cache_min_tokens = 256;
  int64_t prefix_cache_every = 4096;
  std::chrono::milliseconds migration_ttl{600'000};

  int64_t max_message_bytes = int64_t{4} << 20;
  int64_t max_metadata_bytes = 16 << 10;
  int64_t max_body_bytes = int64_t{64} << 20;
  int64_t request_memory = 0;
  int64_t response_memory = int64_t{8} << 20;
  int64_t grammar_memory = 0;
  int64_t max_connections = 256;
  int64_t max_concurrent_streams = 128;
  int64_t max_calls = 1024;
  int64_t max_resets_per_second = 100;
  int64_t stream_buffer = 64;
  std::chrono::milliseconds stall_deadline{30'000};

  std::chrono::milliseconds keepalive_time{60'000};
  std::chrono::milliseconds keepalive_timeout{20'000};
  std::chrono::milliseconds keepalive_min_interval{10'000};
  int64_t max_ping_strikes = 2;
  std::chrono::milliseconds handshake_timeout{10'000};
  std::chrono::milliseconds max_connection_idle{1'800'000};
  std::chrono::milliseconds max_connection_age{0};
  std::chrono::milliseconds max_connection_age_grace{60'000};
  std::chrono::milliseconds drain_timeout{30'000};
  std::chrono::milliseconds stuck_after{60'000};

  std::string otlp_endpoint;
  int64_t otlp_sample_percent = 100;

  std::string log_level = "info";
  std::string log_format = "text";
};

// The tokens of a step, more than its sequences. threads: of the cpu device.
inline int StepTokens(const ServerConfig& config, bool on_device, int threads) {
  if (config.max_step_tokens > 0) return static_cast<int>(config.max_step_tokens);
  return std::max(DefaultStepTokens(on_device, threads),
                  static_cast<int>(2 * config.max_sequences));
}

}  // namespace polysketch
