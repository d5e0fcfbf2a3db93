// state-copies: what it takes to save a state of a KV cache in memory, as the prefix cache and a
// session do, and to go on from it: by holding its blocks, and by whole copies of its values, by
// turns in one process.
//
//   state-copies MODEL STATE_FORMAT WEIGHTS TOKENS...     state-copies models/smollm2 f32 q8 2000 8000
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/byte_buffer.h"
#include "bench/random_floats.h"
#include "bench/timing.h"
#include "engine/model/folder_model.h"
#include "engine/scheduler/state_loader.h"
#include "engine/snapshot/state_saver.h"
#include "kernels/new_backend.h"
#include "kernels/saved_state.h"

namespace polysketch::bench {
namespace {

constexpr int kTurns = 9;

struct Times {
  std::vector<double> save, load, step;

  void Add(double save_s, double load_s, double step_s) {
    save.push_back(save_s);
    load.push_back(load_s);
    step.push_back(step_s);
  }
};

double OneStep(LanguageModel* model, SequenceState* state, std::vector<float>* hidden) {
  const int32_t token = 1;
  const Stopwatch watch;
  model->Step(OneSegment(state, {&token, 1}, OutputRows::kAll), hidden->data());
  return watch.Seconds();
}

// Goes on from a saved state, and adds the times of one turn to `times`.
std::unique_ptr<SequenceState> GoOn(LanguageModel* model,
                                    const std::shared_ptr<const SavedState>& saved, double save_s,
                                    std::vector<float>* hidden, Times* times) {
  const Stopwatch load;
  std::unique_ptr<SequenceState> state = model->NewState();
  StateLoader loader(saved, state->parts());
  while (!loader.done()) {
    if (!loader.Continue(state.get(), model->pool()).ok()) std::abort();
  }
  const double load_s = load.Seconds();
  times->Add(save_s, load_s, OneStep(model, state.get(), hidden));
  return state;
}

// Bytes of blocks of `state` that `saved` does not hold too.
size_t BytesApart(const SequenceState& state, const SavedState& saved) {
  std::set<const void*> held;
  for (const StateBlock& block : saved.blocks()) held.insert(block.id);
  const StateMemory memory = state.Memory();
  size_t bytes = memory.own;
  for (const StateBlock& block : memory.blocks) bytes += held.contains(block.id) ? 0 : block.bytes;
  return bytes;
}

void Print(const char* how, int64_t tokens, const Times& times, size_t saved, size_t loaded) {
  std::printf("| %s | %ld | %.2f | %.2f | %.2f | %.2f | %.1f |\n", how, static_cast<long>(tokens),
              1e3 * Median(times.save), static_cast<double>(saved) / 1e6, 1e3 * Median(times.load),
              static_cast<double>(loaded) / 1e6, 1e3 * Median(times.step));
}

void Measure(FolderModel* model, int64_t tokens) {
  const auto original = model->NewState();
  if (!original->shares()) {
    std::fprintf(stderr, "state-copies: expected a model with KV caches on the cpu\n");
    std::exit(1);
  }
  {
    const AlignedBuffer<float> values = RandomFloats(
        static_cast<int64_t>(SavedStateBytes(model->attention(), tokens) / sizeof(float)));
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    if (!original->Load(tokens, {begin, values.size() * sizeof(float)}).ok()) std::abort();
  }
  std::vector<float> hidden(static_cast<size_t>(model->hidden_size()));
  Times shared, whole;
  size_t shared_save = 0, shared_load = 0, whole_save = 0, whole_load = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    {
      const Stopwatch save;
      StateSaver saver(*original);
      while (!saver.done()) saver.Continue(*original, model->pool());
      const std::shared_ptr<const SavedState> saved = saver.Take();
      const double save_s = save.Seconds();
      const auto state = GoOn(model, saved, save_s, &hidden, &shared);
      shared_save = saved->own_bytes();
      shared_load = BytesApart(*state, *saved);
    }
    const Stopwatch save;
    auto saved = std::make_shared<SavedState>();
    saved->position = tokens;
    saved->bytes.resize(original->SavedBytes());
    StateParts parts(original->parts());
    while (!parts.done()) {
      parts.RunNext(model->pool(), [&](int part) { original->SavePart(part, saved->bytes); });
    }
    const double save_s = save.Seconds();
    const auto state = GoOn(model, saved, save_s, &hidden, &whole);
    whole_save = saved->memory_bytes();
    whole_load = state->bytes();
  }
  Print("whole copies", tokens, whole, whole_save, whole_load);
  Print("shared blocks", tokens, shared, shared_save, shared_load);
}

int Main(int argc, char** argv) {
  if (argc < 5 || !StateFormatOf(argv[2]) || !DataTypeOf(argv[3])) {
    std::fprintf(stderr, "usage: state-copies MODEL STATE_FORMAT WEIGHTS TOKENS...\n");
    return 2;
  }
  const auto backend =
      NewCpuBackend(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  if (!backend.ok()) return 1;
  LoadOptions options;
  options.state_format = StateFormatOf(argv[2]);
  options.weights = DataTypeOf(argv[3]);
  const auto model = FolderModel::Load(std::string(argv[1]), backend.value().get(), options);
  if (!model.ok()) {
    std::fprintf(stderr, "state-copies: %s\n", model.status().ToString().c_str());
    return 1;
  }
  std::printf(
      "| state %s | tokens | save, ms | MB | go on, ms | MB | first step, ms |\n"
      "|---|---|---|---|---|---|---|\n",
      argv[2]);
  for (int i = 4; i < argc; ++i) Measure(model->get(), std::atoll(argv[i]));
  return 0;
}

}  // namespace
}  // namespace polysketch::bench

int main(int argc, char** argv) { return polysketch::bench::Main(argc, argv); }
