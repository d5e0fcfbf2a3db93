// Opens the cuda backend's library. It brings CUDA's runtime with it, and nothing else links to it:
// a machine without a GPU needs neither.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/cuda/library.h"
#include "kernels/new_backend.h"

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
    // Never closed: states and matrices run its code as long as the process lives.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return FailedPrecondition("CUDA library: ", dlerror());
    const auto version = reinterpret_cast<int (*)()>(dlsym(library, "polysketch_cuda_version"));
    const auto make =
        reinterpret_cast<CudaBackendFactory>(dlsym(library, "polysketch_cuda_backend"));
    if (version == nullptr || make == nullptr || version() != kCudaLibraryVersion) {
      return FailedPrecondition("CUDA library ", path.string(),
                                ": it belongs to another version of this program");
    }
    Status status;
    std::unique_ptr<Backend> backend(make(&status));
    if (backend == nullptr) return status;
    return backend;
  }
  return FailedPrecondition("no CUDA library; looked for", tried);
}

}  // namespace polysketch
