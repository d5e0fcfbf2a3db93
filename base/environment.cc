#include "base/environment.h"

#include <algorithm>
#include <cctype>

namespace polysketch {
namespace {

// Without the prefix. The flags of the server are not listed.
constexpr std::string_view kVariables[] = {
    // Clients.
    "API_KEY", "CERT", "KEY", "SERVER", "TLS_CA",
    // Backends.
    "ATTENTION_LIBRARY", "CUDA_DENSE", "CUDA_FAIL_AFTER", "CUDA_GRAPHS", "CUDA_LIBRARY",
    "CUDA_SAMPLING", "ISA",
    // Builds, images and tests.
    "BIN_DIR", "COMMIT", "COMPILE_COMMANDS", "IMAGE_CACHE", "MODEL_DIR", "REQUIRE_GPU",
    "SCREENSHOT", "SHARED", "SIMT_MEMORY", "SIMULATION_SEED", "SOURCE_DIR", "TEST_FULL"};

// NAME_SERVICE_HOST, NAME_SERVICE_PORT[_...], NAME_PORT and NAME_PORT_443_TCP[_...], which
// Kubernetes sets in every pod for each service of its namespace.
bool IsOfKubernetes(std::string_view name) {
  constexpr size_t kNone = std::string_view::npos;
  if (name.find("SERVICE_HOST") != kNone || name.find("SERVICE_PORT") != kNone) return true;
  const size_t port = name.rfind("PORT");
  if (port == kNone) return false;
  const std::string_view rest = name.substr(port + 4);
  return rest.empty() || (rest.size() > 1 && rest[0] == '_' &&
                          std::isdigit(static_cast<unsigned char>(rest[1])) != 0);
}

}  // namespace

std::vector<std::string> UnknownVariables(const char* const* environment,
                                          const std::function<bool(std::string_view)>& is_known) {
  constexpr std::string_view kPrefix = "POLYSKETCH_";
  std::vector<std::string> unknown;
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    if (!variable.starts_with(kPrefix)) continue;
    const std::string_view name = variable.substr(0, variable.find('='));
    const std::string_view rest = name.substr(kPrefix.size());
    if (std::ranges::find(kVariables, rest) != std::end(kVariables)) continue;
    if (!is_known(name) && !IsOfKubernetes(rest)) unknown.emplace_back(name);
  }
  std::ranges::sort(unknown);
  return unknown;
}

std::string UnknownVariableText(std::string_view name) {
  return "the environment variable " + std::string(name) + " is not known and has no effect";
}

}  // namespace polysketch
