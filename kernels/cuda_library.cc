// Opens the cuda backend's library. The library contains CUDA's runtime and nothing links to it, so
// that a machine without a GPU needs neither.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "kernels/cuda/library.h"
#include "kernels/new_backend.h"
#include "polysketch_cuda_interface.h"

namespace polysketch {
namespace {

constexpr const char* kName = "libpolysketch-cuda.so";

std::vector<std::filesystem::path> Candidates() {
  if (const char* named = std::getenv("POLYSKETCH_CUDA_LIBRARY")) return {named};
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const std::filesystem::path folder = program.parent_path();
  return {folder / kName, folder.parent_path() / "lib" / kName};
}

}  // namespace

Result<std::unique_ptr<Backend>> NewCudaBackend() {
  std::string tried;
  for (const std::filesystem::path& path : Candidates()) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      tried.append(" ").append(path.string());
      continue;
    }
    // Never closed: states and matrices run its code until the process ends.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return FailedPrecondition("CUDA library: ", dlerror());
    const auto interface =
        reinterpret_cast<CudaInterfaceName>(dlsym(library, "polysketch_cuda_interface"));
    const auto make =
        reinterpret_cast<CudaBackendFactory>(dlsym(library, "polysketch_cuda_backend"));
    const std::string_view found = interface == nullptr ? "none" : interface();
    if (found != POLYSKETCH_CUDA_INTERFACE || make == nullptr) {
      return FailedPrecondition("CUDA library ", path.string(), ": expected interface ",
                                POLYSKETCH_CUDA_INTERFACE, ", found ", found,
                                "; build the library and the program from the same sources");
    }
    Status status;
    std::unique_ptr<Backend> backend(make(&status));
    if (backend == nullptr) return status;
    return backend;
  }
  return FailedPrecondition("no CUDA library: expected one of these files:", tried);
}

}  // namespace polysketch
