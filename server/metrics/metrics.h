// Prometheus metrics of requests and steps. docs/metrics.md lists them. A name is polysketch_ and
// the name that vLLM uses after "vllm:".
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "engine/request/observer.h"

namespace prometheus {
class Registry;
}

namespace polysketch {

struct BuildLabels {
  std::string_view version;
  std::string_view commit;
  std::string_view model;  // name of the model folder
  std::string_view attention;
  std::string_view device;  // "cpu/avx512"
};

// Thread-safe. Observations cost about 60 ns each.
class Metrics : public EngineObserver {
 public:
  Metrics();
  ~Metrics() override;

  // Sets polysketch_build_info. Called once, when the model is loaded.
  void SetBuildInfo(const BuildLabels& labels);

  void OnAdmitted(std::chrono::nanoseconds queue_time) override;
  void OnFirstToken(std::chrono::nanoseconds since_arrival) override;
  void OnTokenGap(std::chrono::nanoseconds since_previous_token) override;
  void OnStep(int sequences, int prefill_tokens, int decode_tokens,
              std::chrono::nanoseconds duration) override;
  void OnStepParts(const StepParts& parts) override;
  void OnStore(StoreOperation operation, std::chrono::nanoseconds duration) override;
  void OnDraft(int64_t proposed, int64_t accepted) override;
  void OnFinished(const FinishEvent& finish) override;

  // A call ended. `rejected`: with an error before it reached the engine (bad input, a limit, the
  // queue, a drain).
  void OnRpc(std::string_view rpc, Code code, bool rejected);

  const std::shared_ptr<prometheus::Registry>& registry() const { return registry_; }

 private:
  struct Instruments;
  const std::shared_ptr<prometheus::Registry> registry_;
  const std::unique_ptr<Instruments> instruments_;
};

}  // namespace polysketch
