// logits-probe FOLDER BACKEND WEIGHTS PARTS: computes the logits of the tokens on standard input
// (int32), and writes them to standard output (float32 [tokens, vocabulary]).
//
// BACKEND: reference, or an instruction set of the cpu backend. WEIGHTS: f32, bf16, f16, q8 or q4.
// PARTS: the tokens of each step, as "7,1,20"; the last part is repeated.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/new_backend.h"
#include "tests/engine/model/model_runner.h"

namespace polysketch {
namespace {

DataType TypeNamed(const std::string& name) {
  for (const DataType type :
       {DataType::kF32, DataType::kF16, DataType::kBf16, DataType::kQ8, DataType::kQ4}) {
    if (DataTypeName(type) == name) return type;
  }
  PS_CHECK(false) << "weights " << name;
  return DataType::kF32;
}

std::vector<int> Parts(const std::string& list, int tokens) {
  std::vector<int> parts;
  std::istringstream stream(list);
  int left = tokens;
  for (std::string part; left > 0; left -= parts.back()) {
    if (std::string next; std::getline(stream, next, ',')) part = next;
    parts.push_back(std::min(left, std::max(1, std::stoi(part))));
  }
  return parts;
}

int Run(const std::string& folder, const std::string& backend_name, const std::string& weights,
        const std::string& list) {
  std::unique_ptr<Backend> backend;
  if (backend_name == "reference") {
    backend = NewReferenceBackend();
  } else {
    auto cpu = NewCpuBackend(2, backend_name);
    PS_CHECK(cpu.ok()) << cpu.status().ToString();
    backend = *std::move(cpu);
  }
  std::vector<int32_t> tokens;
  for (int32_t token = 0; std::fread(&token, sizeof(token), 1, stdin) == 1;) {
    tokens.push_back(token);
  }
  LoadOptions options;
  options.weights = TypeNamed(weights);
  const auto model = testing::LoadModel(folder, backend.get(), options);
  const std::vector<float> logits =
      testing::LogitsOf(*model, tokens, Parts(list, static_cast<int>(tokens.size())));
  std::fwrite(logits.data(), sizeof(float), logits.size(), stdout);
  return 0;
}

}  // namespace
}  // namespace polysketch

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: logits-probe FOLDER BACKEND WEIGHTS PARTS\n", stderr);
    return 2;
  }
  return polysketch::Run(argv[1], argv[2], argv[3], argv[4]);
}
