#include "clients/loadgen/workload.h"

namespace polysketch::loadgen {
namespace {

// The finaliser of SplitMix64: consecutive seeds give unrelated streams.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t SeedOf(uint64_t seed, int64_t number, int64_t turn) {
  return Mix(Mix(seed + static_cast<uint64_t>(number)) + static_cast<uint64_t>(turn));
}

}  // namespace

Workload::Workload(const WorkloadOptions& options) : options_(options) {
  Random random(Mix(options.seed));
  prefixes_.resize(static_cast<size_t>(options.prefixes));
  for (auto& prefix : prefixes_) Append(options.shared_prefix, &random, &prefix);
}

void Workload::Append(int64_t count, Random* random, std::vector<int32_t>* tokens) const {
  for (int64_t i = 0; i < count; ++i) {
    tokens->push_back(static_cast<int32_t>(random->Below(options_.vocab_size)));
  }
}

Request Workload::Next() {
  Request request;
  request.number = next_++;
  Random random(request.seed = SeedOf(options_.seed, request.number, 0));
  request.prompt = prefixes_[static_cast<size_t>(random.Below(options_.prefixes))];
  Append(options_.prompt_tokens.Sample(&random), &random, &request.prompt);
  request.output_tokens = options_.output_tokens.Sample(&random);
  return request;
}

bool Workload::Continue(Request* request, const std::vector<int32_t>& output) {
  if (++request->turn >= options_.turns) return false;
  Random random(request->seed = SeedOf(options_.seed, request->number, request->turn));
  if (options_.sessions) {
    request->prompt.clear();
  } else {
    request->prompt.insert(request->prompt.end(), output.begin(), output.end());
  }
  Append(options_.prompt_tokens.Sample(&random), &random, &request->prompt);
  request->output_tokens = options_.output_tokens.Sample(&random);
  return true;
}

}  // namespace polysketch::loadgen
