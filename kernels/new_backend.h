// Creates backends.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/backend.h"

namespace polysketch {

// The reference backend (kernels/reference). S is float32, or float64 if `float64_state`, which
// measures the drift of float32.
std::unique_ptr<Backend> NewReferenceBackend(bool float64_state = false);

// The cuda backend (kernels/cuda), on the first GPU. Opens the backend's library: the file that the
// environment variable POLYSKETCH_CUDA_LIBRARY names, else libpolysketch-cuda.so next to the
// program, else in ../lib of the program's folder. FAILED_PRECONDITION if the library, the driver
// or a GPU is missing, or if the library was built from other headers than the program.
Result<std::unique_ptr<Backend>> NewCudaBackend();

// The cpu backend (kernels/cpu) with `threads` threads, the caller included. Uses the instruction
// set that the environment variable POLYSKETCH_ISA names (avx2, avxvnni, avx512, avx512vnni,
// avx512bf16 or avx512amx), else the fastest one of this machine. avx512bf16 and avx512amx round
// activations to bf16 where weights are bf16; avx512bf16 is selected only if a measurement at the
// first call finds it faster.
// FAILED_PRECONDITION if the name is unknown or the machine lacks the instruction set.
Result<std::unique_ptr<Backend>> NewCpuBackend(int threads);
// The cpu backend with the given instruction set, one of SupportedCpuIsas().
Result<std::unique_ptr<Backend>> NewCpuBackend(int threads, std::string_view isa);
// Names of the instruction sets that this machine can run, slowest first.
std::vector<std::string> SupportedCpuIsas();
// Names of all instruction sets that the cpu backend is compiled for, slowest first.
std::vector<std::string> CompiledCpuIsas();

}  // namespace polysketch
