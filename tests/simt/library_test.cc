// Opening the cuda backend's library: the program opens one that was built from the same headers,
// and refuses any other one with a message that says what it expected and found.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include "kernels/new_backend.h"
#include "polysketch_cuda_interface.h"

namespace polysketch {
namespace {

Result<std::unique_ptr<Backend>> Open(const std::string& file) {
  const char* folder = std::getenv("POLYSKETCH_BIN_DIR");
  const std::string path = std::string(folder == nullptr ? "." : folder) + "/" + file;
  setenv("POLYSKETCH_CUDA_LIBRARY", path.c_str(), 1);
  Result<std::unique_ptr<Backend>> backend = NewCudaBackend();
  unsetenv("POLYSKETCH_CUDA_LIBRARY");
  return backend;
}

void ExpectRefused(const std::string& file, const std::string& expected) {
  const Status status = Open(file).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find(file + ": " + expected), std::string::npos) << status.message();
}

TEST(CudaLibraryTest, OpensALibraryOfTheSameHeaders) {
  const Result<std::unique_ptr<Backend>> backend = Open("libpolysketch-cuda-emulated.so");
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  EXPECT_TRUE((*backend)->name().starts_with("cuda/")) << (*backend)->name();
}

TEST(CudaLibraryTest, RefusesAStaleLibrary) {
  ExpectRefused("libpolysketch-cuda-stale.so",
                "expected interface " POLYSKETCH_CUDA_INTERFACE ", found 0123456789abcdef");
}

TEST(CudaLibraryTest, RefusesAnotherLibrary) {
  ExpectRefused("libpolysketch-attention-emulated.so",
                "expected interface " POLYSKETCH_CUDA_INTERFACE ", found none");
}

}  // namespace
}  // namespace polysketch
