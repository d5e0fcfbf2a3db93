// polysketch-bench: measures a model on this machine, beside what the machine reaches.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <thread>

#include "bench/ceilings.h"
#include "bench/drift.h"
#include "bench/kernel_bench.h"
#include "bench/model_bench.h"
#include "bench/report.h"
#include "kernels/new_backend.h"

namespace polysketch::bench {
namespace {

constexpr const char* kHelp =
    R"(polysketch-bench --model DIR [options]

Measures prefill and decoding of a model folder. A decode row covers whole blocks of the model; GB/s and
GFLOP/s count what the model's definition needs, shares are of what this machine reached in the same run.

  --model DIR           model folder (tools/convert, tools/make-random)
  --stages LIST         prefill,decode,kernels (default prefill,decode)
  --prefill LIST        prompt lengths (default 512,262144)
  --decode LIST         tokens processed before a decode measurement (default 4096,262144)
  --batches LIST        more decode rows at each of these depths (default 32; "none" for none)
  --weights LIST        f32,bf16,f16,q8,q4 (default all)
  --state-format F      f32 | bf16: how the state is kept and read (default: f32 with f32 weights, else bf16)
  --threads N           default: every CPU
  --device D            cpu | cuda | reference (default cpu)
  --device-ceilings A,B with --device cuda: GB/s of a copy and TFLOP/s of bf16 products there, for the shares
                        (bench/cuda_peer.py --ceilings measures them)
  --step-tokens N       tokens of one prefill step (default 512)
  --decode-blocks N     whole blocks of a decode row, by turns with the bandwidth; the median counts (default 3)
  --repeats N           of prompts up to 16384 tokens; the median counts (default 3)
  --drift FILE          instead of measuring speed: the perplexity of a text (token ids of 16 bits) under
                        each format, in both state formats, beside that under f32
  --drift-tokens N      its first N tokens (default 65536)
  --profile             time every op too: operations, bytes and the share of its ceiling
  --json                one JSON object on stdout
  --help
Environment: POLYSKETCH_ISA (avx2, avx512, avx512vnni, avx512bf16, avx512amx) forces an instruction set.
)";

[[noreturn]] void Usage(const std::string& message) {
  std::cerr << "polysketch-bench: " << message << "\n" << kHelp;
  std::exit(2);
}

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::stringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

int64_t ParseNumber(const std::string& flag, const std::string& text, int64_t most) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 1 || value > most) {
    Usage(flag + ": expected a whole number from 1 to " + std::to_string(most) + ", found \"" +
          text + "\"");
  }
  return value;
}

double ParsePositive(const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value <= 0) {
    Usage(flag + ": expected a positive number, found \"" + text + "\"");
  }
  return value;
}

std::vector<int64_t> ParseNumbers(const std::string& flag, const std::string& list, int64_t most) {
  std::vector<int64_t> numbers;
  if (list == "none") return numbers;
  for (const std::string& part : Split(list)) numbers.push_back(ParseNumber(flag, part, most));
  return numbers;
}

std::optional<DataType> ParseFormat(const std::string& name) {
  if (const std::optional<DataType> type = DataTypeOf(name)) return type;
  Usage("--weights: expected f32, bf16, f16, q8 or q4, found \"" + name + "\"");
}

struct Arguments {
  BenchOptions options;
  bool json = false;
  std::string drift;  // file of a text; empty: measure speed
  int64_t drift_tokens = 65536;
};

Arguments Parse(int argc, char** argv) {
  Arguments args;
  BenchOptions& o = args.options;
  o.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  o.stages = {"prefill", "decode"};
  o.prefill_contexts = {512, 262144};
  o.decode_contexts = {4096, 262144};
  o.batches = {32};
  o.formats.assign(AllDataTypes().begin(), AllDataTypes().end());
  constexpr int64_t kMaxTokens = int64_t{1} << 32;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help") {
      std::cout << kHelp;
      std::exit(0);
    }
    if (flag == "--json") {
      args.json = true;
      continue;
    }
    if (flag == "--profile") {
      o.profile = true;
      continue;
    }
    if (i + 1 >= argc) Usage("expected a value behind " + flag);
    const std::string value = argv[++i];
    if (flag == "--model") {
      o.model = value;
    } else if (flag == "--stages") {
      o.stages = Split(value);
      for (const std::string& stage : o.stages) {
        if (stage != "prefill" && stage != "decode" && stage != "kernels") {
          Usage("--stages: expected prefill, decode or kernels, found \"" + stage + "\"");
        }
      }
    } else if (flag == "--prefill") {
      o.prefill_contexts = ParseNumbers(flag, value, kMaxTokens);
    } else if (flag == "--decode") {
      o.decode_contexts = ParseNumbers(flag, value, kMaxTokens);
    } else if (flag == "--batches") {
      o.batches.clear();
      for (const int64_t batch : ParseNumbers(flag, value, 1024))
        o.batches.push_back(static_cast<int>(batch));
    } else if (flag == "--weights") {
      o.formats.clear();
      for (const std::string& name : Split(value)) o.formats.push_back(ParseFormat(name));
    } else if (flag == "--state-format") {
      if (value != "f32" && value != "bf16")
        Usage("--state-format: expected f32 or bf16, found \"" + value + "\"");
      o.state_format = value == "f32" ? StateFormat::kF32 : StateFormat::kBf16;
    } else if (flag == "--drift") {
      args.drift = value;
    } else if (flag == "--drift-tokens") {
      args.drift_tokens = ParseNumber(flag, value, kMaxTokens);
    } else if (flag == "--threads") {
      o.threads = static_cast<int>(ParseNumber(flag, value, 1024));
    } else if (flag == "--device") {
      if (value != "cpu" && value != "cuda" && value != "reference")
        Usage("--device: expected cpu, cuda or reference, found \"" + value + "\"");
      o.device = value;
    } else if (flag == "--device-ceilings") {
      const std::vector<std::string> ceilings = Split(value);
      if (ceilings.size() != 2) {
        Usage("--device-ceilings: expected GB/s,TFLOP/s, found \"" + value + "\"");
      }
      o.device_bandwidth = 1e9 * ParsePositive(flag, ceilings[0]);
      o.device_flops = 1e12 * ParsePositive(flag, ceilings[1]);
    } else if (flag == "--step-tokens") {
      o.max_step_tokens = static_cast<int>(ParseNumber(flag, value, 65536));
    } else if (flag == "--decode-blocks") {
      o.decode_blocks = static_cast<int>(ParseNumber(flag, value, 1024));
    } else if (flag == "--repeats") {
      o.repeats = static_cast<int>(ParseNumber(flag, value, 1000));
    } else {
      Usage("unknown option " + flag);
    }
  }
  if (o.model.empty()) Usage("--model DIR is required");
  return args;
}

int Fail(const Status& status) {
  std::cerr << "polysketch-bench: " << status.ToString() << "\n";
  return 1;
}

int Main(int argc, char** argv) {
  const Arguments args = Parse(argc, argv);
  const BenchOptions& options = args.options;
  if (!args.drift.empty()) {
    const auto rows = RunDrift(options, args.drift, args.drift_tokens, [&](const DriftRow& row) {
      if (!args.json) Print(row);
    });
    if (!rows.ok()) return Fail(rows.status());
    if (args.json) PrintJson(options, *rows);
    return 0;
  }
  const bool kernels =
      std::find(options.stages.begin(), options.stages.end(), "kernels") != options.stages.end();
  Result<std::unique_ptr<Backend>> probe = NewCpuBackend(options.threads);
  if (!probe.ok()) return Fail(probe.status());
  const std::string backend(options.device == "cpu" ? probe.value()->name() : options.device);
  const ProductPeaks peaks = [&] {
    if (options.device == "cuda") return ProductPeaks();  // the host's are not what limits it
    ThreadPool pool(options.threads);
    return MeasureProductPeaks(&pool);
  }();
  Report report(options, backend, peaks, args.json);
  if (kernels) {
    const auto rows =
        RunKernelBench(options, peaks, [&](const KernelRow& row) { report.Add(row); });
    if (!rows.ok()) return Fail(rows.status());
  }
  const auto rows = RunModelBench(options, peaks, [&](const BenchRow& row) { report.Add(row); });
  if (!rows.ok()) return Fail(rows.status());
  report.Finish();
  return 0;
}

}  // namespace
}  // namespace polysketch::bench

int main(int argc, char** argv) { return polysketch::bench::Main(argc, argv); }
