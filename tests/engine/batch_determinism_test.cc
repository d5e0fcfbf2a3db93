// A request's tokens and log-probabilities are the same bits whatever runs beside it, however its
// prompt is split, whichever request preempts it, and whatever is drafted: real models of every
// kind and mixtures of them, through the scheduler, in batches of 1 to 64, against each request
// alone.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/model/folder_model.h"
#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "kernels/new_backend.h"
#include "tests/engine/testing/collected.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::Random;

// Ends the names of models whose states are read at one byte.
constexpr std::string_view kByteStates = "_q8_states";
// Models of tests/data/frames: with windows in all layers and in some, with far parts and with
// gated ones, and with gated symmetric_power of grouped queries.
constexpr std::string_view kFrames[] = {"mistral_window",        "qwen3_window",
                                        "llama_window_far",      "llama_window_far_linear",
                                        "llama_window_far_gate", "brumby_small"};

std::vector<std::string> KindsAndFormats() {
  std::vector<std::string> names = testing::TinyModelNames();
  for (size_t i = 0, n = names.size(); i < n; ++i) {
    names.push_back(names[i] + std::string(kByteStates));
  }
  names.insert(names.end(), std::begin(kFrames), std::end(kFrames));
  for (const std::string_view frame : kFrames) names.push_back(StrCat(frame, kByteStates));
  return names;
}

constexpr int kRequests = 16;
constexpr int kStepTokens = 80;

class BatchDeterminismTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string suffix(kByteStates);
    const bool bytes = GetParam().ends_with(suffix);
    const std::string kind =
        bytes ? GetParam().substr(0, GetParam().size() - suffix.size()) : GetParam();
    std::filesystem::path model = folder_.path();
    if (std::ranges::find(kFrames, kind) != std::end(kFrames)) {
      model = testing::SourceDir() / "tests/data/frames" / kind;
    } else {
      testing::WriteRandomModel(model, testing::TinyConfig(kind), DataType::kF32, 3);
    }
    backend_ = NewCpuBackend(2).value();
    LoadOptions options;
    if (bytes) options.state_format = StateFormat::kQ8;
    options.max_step_tokens = kStepTokens;
    model_ = FolderModel::Load(model.string(), backend_.get(), options).value();
    context_ = {.vocab_size = model_->vocab_size(),
                .max_step_tokens = kStepTokens,
                .observer = &observer_,
                .now = [this] { return now_ += std::chrono::microseconds(random_.Int(1, 3000)); }};
    for (int i = 0; i < kRequests; ++i) {
      requests_.push_back(RandomRequest(i));
      alone_.push_back(Alone(requests_.back()));
    }
  }

  // Another one for each model.
  static uint64_t Seed() {
    const std::vector<std::string> names = testing::TinyModelNames();
    return static_cast<uint64_t>(std::ranges::find(names, GetParam()) - names.begin()) + 1;
  }

  GenerateRequest RandomRequest(int index) {
    GenerateRequest request;
    const int64_t size = random_.Uniform() < 0.3 ? random_.Int(50, 150) : random_.Int(1, 40);
    const int64_t period = random_.Int(2, 60);
    for (int64_t i = 0; i < size; ++i) {
      request.prompt.push_back(i < period
                                   ? static_cast<int32_t>(random_.Int(0, model_->vocab_size() - 1))
                                   : request.prompt[static_cast<size_t>(i - period)]);
    }
    GenerateParams& params = request.params;
    params.max_tokens = static_cast<int32_t>(random_.Int(1, 40));
    params.sampling.seed = static_cast<uint64_t>(index);
    params.sampling.temperature = random_.Uniform() < 0.5 ? 0.0f : 0.3f;
    params.sampling.logit_bias = {{5, 3.0f}, {7, 3.0f}};  // so that drafts sometimes hold
    if (random_.Uniform() < 0.3) params.sampling.repetition_penalty = 1.2f;
    if (random_.Uniform() < 0.3) params.sampling.top_p = 0.8f;
    if (random_.Uniform() < 0.2) params.sampling.top_k = 4;
    params.logprobs = 3;
    params.echo = random_.Uniform() < 0.3;
    if (random_.Uniform() < 0.2) params.n = params.best_of = 2;
    return request;
  }

  std::unique_ptr<Sequence> NewSequence(const GenerateRequest& request, RequestId id,
                                        std::shared_ptr<EventStream> stream) {
    return std::make_unique<GenerateSequence>(context_, id, request, *request.params.max_tokens,
                                              *request.params.sampling.seed, std::move(stream));
  }

  // Without neighbours, drafts or a budget.
  Collected Alone(const GenerateRequest& request) {
    context_.draft_tokens = 0;
    Scheduler scheduler(model_.get(), context_, Options(2, std::chrono::milliseconds(0)));
    const auto stream = std::make_shared<EventStream>(100000);
    scheduler.Add(NewSequence(request, 1, stream));
    while (scheduler.Tick()) {
    }
    Collected got;
    got.Drain(stream.get());
    PS_CHECK(got.finish && got.finish->status.ok());
    return got;
  }

  SchedulerOptions Options(int slots, std::chrono::milliseconds budget) const {
    const size_t memory = static_cast<size_t>(slots + 1) * model_->StateBytes(400) * 2;
    return {.max_sequences = slots,
            .slot_memory = memory,
            .preempted_memory = memory,
            .stall_deadline = std::chrono::hours(1000),
            .step_budget = budget,
            .aging = std::chrono::milliseconds(200)};
  }

  static void ExpectSameBits(const Collected& got, const Collected& alone) {
    EXPECT_EQ(got.echoed, alone.echoed);
    ASSERT_EQ(got.choices.size(), alone.choices.size());
    for (const auto& [index, choice] : got.choices) {
      EXPECT_EQ(choice.tokens, alone.choices.at(index).tokens);
      EXPECT_EQ(choice.logprobs, alone.choices.at(index).logprobs);  // floats, compared exactly
    }
    if (got.choices.size() > 1) return;  // whose alternatives come mixed
    ASSERT_EQ(got.tops.size(), alone.tops.size());
    for (size_t i = 0; i < got.tops.size(); ++i) {
      ASSERT_EQ(got.tops[i].size(), alone.tops[i].size());
      for (size_t j = 0; j < got.tops[i].size(); ++j) {
        EXPECT_EQ(got.tops[i][j].token, alone.tops[i][j].token);
        EXPECT_EQ(got.tops[i][j].logprob, alone.tops[i][j].logprob);
      }
    }
  }

  enum class Memory {
    kPreempted,  // for all states
    kDropped,    // without preempted memory: states are dropped and computed again
    kReserved,   // for a few states, of which none is taken
  };

  // Everything at once, for this many requests.
  void RunBatch(int size, Memory memory) {
    context_.draft_tokens = static_cast<int>(random_.Int(0, 10));
    // Fewer slots than requests now and then, so that priorities and slow readers take turns.
    auto slots = static_cast<int>(random_.Int(std::max(1, size / 2), size));
    if (memory == Memory::kReserved) slots = 2 * size;  // enough for two choices of each
    SchedulerOptions options = Options(slots, std::chrono::milliseconds(2));
    if (memory == Memory::kDropped) options.preempted_memory = 0;
    if (memory == Memory::kReserved) {
      options.slot_memory = 4 * model_->StateBytes(400);
      options.kv_admission = KvAdmission::kReserve;
    }
    options.slice = std::chrono::milliseconds(10);
    Scheduler scheduler(model_.get(), context_, options);
    struct Client {
      size_t request;
      std::shared_ptr<EventStream> stream;
      int64_t bite;
      Collected got;
    };
    std::vector<Client> clients;
    for (int i = 0; i < size; ++i) {
      const auto which = static_cast<size_t>(random_.Int(0, kRequests - 1));
      const auto capacity = static_cast<size_t>(random_.Uniform() < 0.3 ? 3 : 100000);
      clients.push_back(
          {which, std::make_shared<EventStream>(capacity), random_.Int(1, 20), Collected()});
      GenerateRequest request = requests_[which];
      request.info.priority = static_cast<int>(random_.Int(0, 2));
      request.info.tenant = random_.Uniform() < 0.9 ? "a" : i % 2 == 0 ? "b" : "c";
      request.info.principal.name = request.info.tenant;
      scheduler.Add(NewSequence(request, static_cast<RequestId>(i) + 1, clients.back().stream));
      if (random_.Uniform() < 0.5) scheduler.Tick();
    }
    for (int tick = 0; scheduler.size() > 0 && tick < 100000; ++tick) {
      scheduler.Tick();
      for (Client& client : clients) {
        Event event;
        for (int64_t i = 0; i < client.bite && client.stream->TryPop(&event); ++i)
          client.got.Add(event);
      }
    }
    for (Client& client : clients) {
      client.got.Drain(client.stream.get());
      ASSERT_TRUE(client.got.finish && client.got.finish->status.ok());
      ExpectSameBits(client.got, alone_[client.request]);
    }
    if (memory == Memory::kReserved) {
      EXPECT_EQ(scheduler.stats().preemptions, 0);
      EXPECT_EQ(scheduler.stats().dropped_states, 0);
    }
    preemptions_ += scheduler.stats().preemptions;
    dropped_ += scheduler.stats().dropped_states;
  }

  class Observer : public EngineObserver {
   public:
    void OnDraft(int64_t, int64_t held) override { accepted += held; }
    int64_t accepted = 0;
  };

  testing::TemporaryFolder folder_;
  Random random_{Seed()};
  Clock::time_point now_ = Clock::now();
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<FolderModel> model_;
  Observer observer_;
  SequenceContext context_;
  std::vector<GenerateRequest> requests_;
  std::vector<Collected> alone_;
  int64_t preemptions_ = 0;
  int64_t dropped_ = 0;  // states
};

TEST_P(BatchDeterminismTest, SameBitsAsAlone) {
  std::vector<int> sizes = {1, 2, 3, 5, 8, 16, 64};
  if (testing::FullCounts()) {
    sizes.clear();
    for (int size = 1; size <= 64; ++size) sizes.push_back(size);
  }
  for (const int size : sizes) {
    for (const Memory memory : {Memory::kPreempted, Memory::kDropped, Memory::kReserved}) {
      RunBatch(size, memory);
      ASSERT_FALSE(HasFailure()) << "a batch of " << size << ", memory "
                                 << static_cast<int>(memory);
    }
  }
  // A hundred preemptions of a model whose layers differ.
  const auto differs = [&](const AttentionSpec& layer) { return layer != model_->attention()[0]; };
  const bool mixture = std::ranges::any_of(model_->attention(), differs);
  const int64_t preemptions = mixture ? 100 : 1;
  const auto enough = [&] { return preemptions_ >= preemptions && dropped_ > 0; };
  for (int batch = 0; batch < 100 && !enough(); ++batch) {
    RunBatch(16, batch % 2 == 0 ? Memory::kDropped : Memory::kPreempted);
    ASSERT_FALSE(HasFailure()) << "more preemptions, batch " << batch;
  }
  EXPECT_GE(preemptions_, preemptions);
  EXPECT_GT(dropped_, 0);
  EXPECT_GT(observer_.accepted, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BatchDeterminismTest, ::testing::ValuesIn(KindsAndFormats()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace polysketch
