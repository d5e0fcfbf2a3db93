#include "tests/engine/simulation/simulated_requests.h"

#include <memory>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/score_sequence.h"
#include "tests/engine/testing/fake_model.h"
#include "tests/testing/random.h"

namespace polysketch::testing {
namespace {

// In a scheduler that runs nothing else, token by token, without drafts.
Collected RunAlone(const SimulatedRequest& request, std::shared_ptr<const Snapshot> start,
                   bool keep) {
  FakeModel model;
  FakeTokenizer tokenizer;
  EngineObserver observer;
  SequenceContext context;
  context.tokenizer = &tokenizer;
  context.vocab_size = kFakeVocab;
  context.eos_ids = {kFakeEos};
  context.max_step_tokens = 32;
  context.observer = &observer;
  Scheduler scheduler(&model, context, {.max_sequences = 1, .slot_memory = 200});
  const auto stream = std::make_shared<EventStream>(100000);
  if (request.score) {
    const auto feed = std::make_shared<TokenFeed>(10000);
    feed->Push(request.tokens);
    feed->Close();
    scheduler.Add(std::make_unique<ScoreSequence>(context, 1, ScoreRequest{{}, feed}, stream));
  } else {
    GenerateRequest work;
    work.prompt = request.tokens;
    work.params = request.params;
    work.start = std::move(start);
    work.keep = keep;
    scheduler.Add(std::make_unique<GenerateSequence>(context, 1, std::move(work),
                                                     *request.params.max_tokens,
                                                     *request.params.sampling.seed, stream));
  }
  while (scheduler.Tick()) {
  }
  Collected got;
  got.Drain(stream.get());
  return got;
}

SimulatedRequest RandomRequest(uint64_t seed, Random* random) {
  SimulatedRequest request;
  // Prompts that repeat themselves give drafts something to go by.
  const int64_t size = random->Uniform() < 0.2 ? random->Int(100, 250) : random->Int(1, 30);
  const int64_t period = random->Int(1, 40);
  for (int64_t t = 0; t < size; ++t) {
    request.tokens.push_back(
        static_cast<int32_t>(t < period ? random->Int(2, kFakeVocab - 1)
                                        : request.tokens[static_cast<size_t>(t - period)]));
  }
  request.score = random->Uniform() < 0.2;
  GenerateParams& params = request.params;
  params.sampling.seed = seed;
  params.max_tokens = static_cast<int32_t>(random->Int(0, SimulatedRequests::kMaxTokens));
  params.ignore_eos = random->Uniform() < 0.7;
  if (random->Uniform() < 0.5) params.sampling.temperature = 0;
  if (random->Uniform() < 0.2) params.sampling.frequency_penalty = 0.7f;
  if (random->Uniform() < 0.2) params.stop = {"Q", "AB"};
  if (random->Uniform() < 0.2) params.logprobs = 2;
  if (random->Uniform() < 0.2) params.echo = true;
  if (random->Uniform() < 0.3 && *params.max_tokens > 0) {
    params.n = static_cast<int32_t>(random->Int(1, 3));
    params.best_of = params.n + static_cast<int32_t>(random->Int(0, 2));
  }
  // A bias makes outputs repeat themselves.
  if (random->Uniform() < 0.5) {
    params.sampling.logit_bias = {{7, 6.0f}, {9, 5.0f}};
  }
  return request;
}

SimulatedSession RandomSession(uint64_t seed, Random* random) {
  SimulatedSession turns;
  std::shared_ptr<const Snapshot> state;
  for (int64_t turn = random->Int(1, 5); turn > 0; --turn) {
    SimulatedRequest request = RandomRequest(seed + static_cast<uint64_t>(turn), random);
    request.score = false;
    request.params.n = request.params.best_of = 1;
    request.tokens.resize(std::min<size_t>(request.tokens.size(), 40));
    request.alone = RunAlone(request, state, /*keep=*/true);
    PS_CHECK(request.alone.finish && request.alone.finish->status.ok());
    state = request.alone.finish->snapshot;
    request.session_tokens = state->tokens();
    turns.push_back(std::move(request));
  }
  return turns;
}

}  // namespace

SimulatedRequests::SimulatedRequests(int count, int session_count) {
  Random random(2026);
  for (int i = 0; i < count; ++i) {
    SimulatedRequest request = RandomRequest(static_cast<uint64_t>(i), &random);
    request.alone = RunAlone(request, nullptr, /*keep=*/false);
    PS_CHECK(request.alone.finish && request.alone.finish->status.ok());
    single.push_back(std::move(request));
  }
  for (int i = 0; i < session_count; ++i) {
    sessions.push_back(RandomSession(static_cast<uint64_t>(1000 + 10 * i), &random));
  }
}

}  // namespace polysketch::testing
