// HealthCheck, GetModelInfo, GetServerInfo and GetLoads, and the RPCs that this server lacks.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "server/convert/wire.h"
#include "server/gateway/vllm_engine.h"
#include "server/net/counted_call.h"
#include "server/rpc/unary_call.h"
#include "vllm_engine.pb.h"

namespace polysketch {
namespace {

namespace vllm_engine = ::vllm::grpc::engine;

template <typename Int>
Int Clamped(int64_t value) {
  return static_cast<Int>(std::min<int64_t>(value, std::numeric_limits<Int>::max()));
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

Result<grpc::ByteBuffer> HealthResponse(const ServiceContext& service) {
  vllm_engine::HealthCheckResponse response;
  response.set_healthy(service.ready());
  response.set_message(response.healthy()         ? "serving"
                       : service.draining.load()  ? "the server is draining"
                       : service.model == nullptr ? "the server is loading its model"
                                                  : "a thread is stuck");
  return SerializeMessage(response);
}

void FillModelInfo(const ServedModel& model, const std::string& name,
                   vllm_engine::GetModelInfoResponse* info) {
  const v1::GetModelResponse& model_info = model.description;
  const v1::Limits& limits = model_info.limits();
  // Not a path: a gateway on another machine could not read it, and calls GetTokenizer instead.
  info->set_model_path(name);
  info->set_served_model_name(name);
  info->set_is_generation(true);
  info->set_model_type(model.model_type);
  info->add_architectures(model.architecture);
  info->set_vocab_size(static_cast<uint32_t>(model_info.vocab_size()));
  const int64_t most = limits.max_prompt_tokens() + limits.max_new_tokens();
  const int64_t context = model_info.context_limit() > 0 ? model_info.context_limit() : most;
  info->set_max_context_length(Clamped<uint32_t>(std::min(context, most)));
  info->set_max_req_input_len(Clamped<int32_t>(std::min(context, limits.max_prompt_tokens())));
  *info->mutable_eos_token_ids() = model_info.eos_ids();
  info->set_bos_token_id(model_info.bos_id());
  info->set_pad_token_id(-1);
}

void FillLoad(const ServedModel& model, vllm_engine::SchedulerLoad* load) {
  const EngineStats stats = model.engine->stats();
  const int slots = model.description.limits().max_sequences();
  load->set_num_running_reqs(stats.running);
  load->set_num_waiting_reqs(stats.waiting + stats.preempted);
  load->set_num_total_reqs(stats.running + stats.waiting + stats.preempted);
  load->set_num_waiting_uncached_tokens(Clamped<int32_t>(stats.waiting_tokens));
  load->set_max_running_requests(slots);
  if (slots > 0) load->set_utilization(static_cast<double>(stats.running) / slots);
  if (stats.state_bytes_limit > 0) {
    load->set_token_usage(static_cast<double>(stats.state_bytes) /
                          static_cast<double>(stats.state_bytes_limit));
  }
  if (model.prefix_cache == nullptr) return;
  const PrefixCacheStats cache = model.prefix_cache->stats();
  if (cache.queried_tokens == 0) return;
  load->set_cache_hit_rate(static_cast<double>(cache.hit_tokens) /
                           static_cast<double>(cache.queried_tokens));
}

// Adds an RPC whose response does not depend on its request.
template <typename Response>
void AddInfo(const char* rpc, ServiceContext* context, Router* router,
             std::function<void(const ServedModel& model, Response* response)> fill) {
  const auto work = [fill = std::move(fill)](const UnaryInput& input) -> Result<grpc::ByteBuffer> {
    Response response;
    fill(input.model, &response);
    return SerializeMessage(response);
  };
  AddUnaryWork({rpc, kVllmService}, work, context, router);
}

// The error comes without initial metadata: smg takes one that follows initial metadata for a
// stream that broke, and calls SubscribeKvEvents again and again.
void AddAbsent(const char* rpc, const char* reason, ServiceContext* context, Router* router) {
  router->Add(kVllmService, rpc, [context, reason](CallContext* call) {
    return new RefusedCall(context->connections, call, Status(Code::kUnimplemented, reason));
  });
}

void AddAbsentMethods(ServiceContext* context, Router* router) {
  AddAbsent("Embed", "this server computes no embeddings", context, router);
  AddAbsent("FlushCache", "the prefix cache evicts by itself", context, router);
  AddAbsent("SubscribeKvEvents", "this server reports no events of its prefix cache", context,
            router);
  for (const char* rpc : {"StartProfile", "StopProfile"})
    AddAbsent(rpc, "this server has no profiler", context, router);
}

}  // namespace

void AddInfoMethods(ServiceContext* context, const std::string& served_model_name, Router* router) {
  // Answered while the server loads and drains too, when other calls are refused. Gateways ask
  // often, so the log has no line of it.
  router->Add(kVllmService, "HealthCheck", [context](CallContext* call) {
    return new AnsweredCall(
        context->connections, call, /*limited=*/true,
        [context](const grpc::ByteBuffer&) { return HealthResponse(*context); });
  });
  AddInfo<vllm_engine::GetModelInfoResponse>(
      "GetModelInfo", context, router, [served_model_name](const ServedModel& model, auto* info) {
        FillModelInfo(
            model, served_model_name.empty() ? model.description.name() : served_model_name, info);
      });
  AddInfo<vllm_engine::GetServerInfoResponse>(
      "GetServerInfo", context, router,
      [start = Clock::now()](const ServedModel& model, auto* info) {
        const EngineStats stats = model.engine->stats();
        info->set_active_requests(
            static_cast<uint32_t>(stats.running + stats.waiting + stats.preempted));
        info->set_uptime_seconds(std::chrono::duration<double>(Clock::now() - start).count());
        info->set_server_type("vllm-grpc");  // the protocol
        info->set_data_parallel_size(1);
        info->set_max_num_seqs(model.description.limits().max_sequences());
      });
  AddInfo<vllm_engine::GetLoadsResponse>("GetLoads", context, router,
                                         [](const ServedModel& model, auto* response) {
                                           response->set_timestamp(UtcNow());
                                           response->set_version(model.description.version());
                                           response->set_dp_rank_count(1);
                                           FillLoad(model, response->add_loads());
                                         });
  AddAbsentMethods(context, router);
}

void AddVllmEngineMethods(ServiceContext* context, const std::string& served_model_name,
                          Router* router) {
  AddGenerateMethods(context, router);
  AddInfoMethods(context, served_model_name, router);
  AddTokenizerMethod(context, router);
}

}  // namespace polysketch
