// polysketch-bench: measures a model on this machine, and what share of the machine's limits it
// reaches.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <thread>

#include "base/standard_descriptors.h"
#include "bench/ceilings.h"
#include "bench/drift.h"
#include "bench/kernel_bench.h"
#include "bench/model_bench.h"
#include "bench/report.h"
#include "kernels/new_backend.h"
#include "kernels/step_tokens.h"

namespace polysketch::bench {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 32;

struct CommandLine {
  BenchOptions options;
  std::vector<std::string> weights;
  std::string state = "auto";
  std::vector<double> device_ceilings = {0, 0};  // GB/s, TFLOP/s
  DriftText drift;                               // without a file speed is measured
  bool json = false;
};

// --help shows the range and the initial value of *target. A list may be "none", which is 0.
template <typename T>
CLI::Option* AddNumber(CLI::App* app, const char* name, const char* help, int64_t max, T* target) {
  CLI::Option* const option = app->add_option(name, *target, help)->type_name("N");
  if constexpr (std::is_arithmetic_v<T>) return option->check(CLI::Range(int64_t{1}, max));
  const auto replace_none = [](std::string& item) {
    return item = item == "none" ? "0" : item, "";
  };
  option->type_name("LIST")->delimiter(',')->check(CLI::Range(int64_t{0}, max));
  return option->transform(CLI::Validator(replace_none, ""));
}

template <typename T>
CLI::Option* AddChoice(CLI::App* app, const char* name, const char* help,
                       const std::vector<std::string>& choices, T* target) {
  return app->add_option(name, *target, help)->type_name("NAME")->check(CLI::IsMember(choices));
}

void AddOptions(CLI::App* app, CommandLine* line) {
  BenchOptions& o = line->options;
  app->add_option("--model", o.model, "Model folder (tools/convert, tools/make-random).")
      ->type_name("DIR")
      ->required();
  AddChoice(app, "--stages", "Measurements.", {"prefill", "decode", "kernels"}, &o.stages)
      ->delimiter(',');
  AddNumber(app, "--prefill", "Prompt lengths in tokens.", kMaxTokens, &o.prefill_contexts);
  AddNumber(app, "--decode", "Numbers of tokens processed before a decode measurement.", kMaxTokens,
            &o.decode_contexts);
  AddNumber(app, "--batches", "Batch sizes besides 1 of decode measurements.", 1024, &o.batches);
  AddChoice(app, "--weights", "Weight formats.", {"f32", "bf16", "f16", "q8", "q4"}, &line->weights)
      ->delimiter(',');
  AddChoice(app, "--state-format", "State format. auto: f32 with f32 weights, else bf16.",
            {"auto", "f32", "bf16", "f16", "q8"}, &line->state);
  AddNumber(app, "--threads", "Threads. Default: all CPUs.", 1024, &o.threads);
  AddChoice(app, "--device", "Device.", {"cpu", "cuda", "reference"}, &o.device);
  app->add_option("--device-ceilings", line->device_ceilings,
                  "Limits of the cuda device, for shares: GB/s of a kernel, TFLOP/s of bf16\n"
                  "products (scripts/gpu-check ceilings). 0: no shares.")
      ->type_name("A,B")
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
      ->expected(2)
      ->check(CLI::Range(0.0, 1e6));
  AddNumber(app, "--step-tokens", "Tokens of a prefill step. Default: those of the server.", 65536,
            &o.max_step_tokens)
      ->default_str("");
  AddNumber(app, "--decode-blocks",
            "Blocks of a decode measurement, by turns with the bandwidth; the median is\nreported.",
            1024, &o.decode_blocks);
  AddNumber(app, "--repeats", "Runs of prompts up to 16384 tokens; the median is reported.", 1000,
            &o.repeats);
  app->add_option("--drift", line->drift.file,
                  "In place of speed: the perplexity of a text (16-bit token ids) under each\n"
                  "weight and state format and under f32.")
      ->type_name("FILE");
  app->add_option("--drift-baseline", o.baseline,
                  "Model folder whose f32 is compared with, for a --model that is quantised.\n"
                  "Default: --model.")
      ->type_name("DIR");
  AddNumber(app, "--drift-tokens", "Tokens of the text.", kMaxTokens, &line->drift.tokens);
  AddNumber(app, "--drift-from",
            "Tokens that a token must have before it to count; those before it are read.",
            kMaxTokens, &line->drift.min_depth);
  app->add_flag(
      "--own-caches", o.own_caches,
      "Gives each sequence of a batch KV caches of its own. Default: they share the blocks "
      "of one text, as forks do, and a step reads these once.");
  app->add_flag("--random-states", o.random_states,
                "Decodes from states of random values where no prompt of the length was "
                "processed: for contexts whose prefill would take hours.");
  app->add_flag("--profile", o.profile, "Measures every op as well, and its share of its limit.");
  app->add_flag("--json", line->json, "Prints one JSON object on stdout.");
}

int Fail(const Status& status) {
  std::cerr << "polysketch-bench: " << status.ToString() << "\n";
  return 1;
}

int MeasureDrift(const CommandLine& line) {
  std::vector<DriftRow> rows;
  const auto on_row = [&](const DriftRow& row) {
    if (!line.json) Print(row);
    rows.push_back(row);
  };
  const Status status = RunDrift(line.options, line.drift, on_row);
  if (!status.ok()) return Fail(status);
  if (line.json) PrintJson(line.options, rows);
  return 0;
}

int MeasureSpeed(const CommandLine& line) {
  const BenchOptions& options = line.options;
  const Result<std::unique_ptr<Backend>> probe = NewCpuBackend(options.threads);
  if (!probe.ok()) return Fail(probe.status());
  const std::string backend(options.device == "cpu" ? probe.value()->name() : options.device);
  ProductPeaks peaks;  // of the host; the limits of a cuda device are options
  if (options.device != "cuda") {
    ThreadPool pool(options.threads);
    peaks = MeasureProductPeaks(&pool);
  }
  Report report(options, backend, peaks, line.json);
  const auto add = [&](const auto& row) { report.Add(row); };
  if (std::ranges::count(options.stages, "kernels") > 0) {
    const Status status = RunKernelBench(options, peaks, add);
    if (!status.ok()) return Fail(status);
  }
  const Status status = RunModelBench(options, peaks, add);
  if (!status.ok()) return Fail(status);
  report.Finish();
  return 0;
}

int Main(int argc, char** argv) {
  CommandLine line;
  BenchOptions& options = line.options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (const DataType type : AllDataTypes()) line.weights.emplace_back(DataTypeName(type));
  CLI::App app(
      "Measures prefill and decoding of a model folder. A decode row covers whole blocks of the\n"
      "model. GB/s and GFLOP/s count what the definition of the model needs; shares are of what\n"
      "the machine reached in the same run.\n",
      "polysketch-bench");
  app.footer(
      "A LIST is separated by commas; none: the empty list. POLYSKETCH_ISA in the environment\n"
      "(avx2, avxvnni, avx512, avx512vnni, avx512bf16, avx512amx) forces an instruction set.");
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  AddOptions(&app, &line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.max_step_tokens == 0) {
    options.max_step_tokens = DefaultStepTokens(options.device == "cuda", options.threads);
  }
  for (const std::string& name : line.weights) options.formats.push_back(*DataTypeOf(name));
  options.device_bandwidth = 1e9 * line.device_ceilings[0];
  options.device_flops = 1e12 * line.device_ceilings[1];
  std::erase(options.prefill_contexts, 0);
  std::erase(options.decode_contexts, 0);
  std::erase(options.batches, 0);
  options.state_format = StateFormatOf(line.state);  // none: "auto"
  return line.drift.file.empty() ? MeasureSpeed(line) : MeasureDrift(line);
}

}  // namespace
}  // namespace polysketch::bench

int main(int argc, char** argv) { return polysketch::bench::Main(argc, argv); }
