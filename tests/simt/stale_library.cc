// A cuda backend's library that was built from other headers than the program.
#include <cstdlib>

extern "C" const char* polysketch_cuda_interface() { return "0123456789abcdef"; }

extern "C" void* polysketch_cuda_backend(void*) { std::abort(); }
