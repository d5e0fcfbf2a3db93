# Language, warnings, floating point and sanitizers: the same for every target of ours.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Release keeps assertions out and debug line tables in: a crash report without them is worth little.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG -g1")
if(POLYSKETCH_QUICK)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")  # kernels: cmake/PolysketchPrecompile.cmake
endif()
# Sanitizer builds are clang's: at -O0 it compiles in two fifths of the time that g++ takes at -O1. Kernels and oracles, which are most
# of the time of tests, are optimised (PolysketchPrecompile.cmake, PolysketchTest.cmake), and so is what libFuzzer runs.
set(level -O0)
if(POLYSKETCH_FUZZ)
  set(level -O1)
endif()
set(CMAKE_CXX_FLAGS_SANITIZER "${level} -g1 -fno-omit-frame-pointer")

# The order of operations is part of the contract (numerics.md): the compiler must not fuse a*b+c on its own, since it
# would do so differently on each instruction set. Kernels fuse explicitly, by intrinsics. -ffast-math is out for the
# same reason.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>" "$<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno>")

# Libraries ask for it one by one; a precompiled header is used by files that are compiled with the same options.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-pthread>")

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ collects garbage from 128 MiB on by default. Without it, it takes a twelfth less time and an eighth more memory.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>")
endif()

if(POLYSKETCH_SANITIZE)
  add_compile_options("-fsanitize=${POLYSKETCH_SANITIZE}")
  add_link_options("-fsanitize=${POLYSKETCH_SANITIZE}")
  if(POLYSKETCH_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
    if(NOT POLYSKETCH_SANITIZE_POINTERS AND NOT POLYSKETCH_FUZZ)
      # They take time to compile, and ASan sees what a bad pointer reads and writes.
      add_compile_options(-fno-sanitize=null,object-size,pointer-overflow)
    endif()
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    add_link_options(-fuse-ld=lld)  # a quarter of the time
    # As g++ does.
    if(POLYSKETCH_SANITIZE MATCHES "address")
      add_compile_definitions(__SANITIZE_ADDRESS__)
    elseif(POLYSKETCH_SANITIZE MATCHES "thread")
      add_compile_definitions(__SANITIZE_THREAD__)
    endif()
  endif()
  if(POLYSKETCH_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)  # coverage; tests/fuzz links libFuzzer
  endif()
endif()

include_directories("${PROJECT_SOURCE_DIR}")  # includes are written from the root: "engine/engine.h"

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the tree: a fresh clone, CI's or a second checkout, finds what another one compiled. The
  # sloppiness and -fpch-preprocess are what ccache needs to keep files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros "${CCACHE_PROGRAM}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>")
  endif()
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

# Our own code compiles without a warning. Headers of the libraries are SYSTEM and thus quiet; code that protoc generates
# is built with -w (proto/CMakeLists.txt).
if(POLYSKETCH_QUICK)
  add_compile_options(-w)  # at -O1 g++ 12 warns of code that is right
else()
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>")
endif()
if(NOT POLYSKETCH_CORE)
  # A machine that is only lent has the compiler that it has, and builds GoogleTest too: a warning must not cost the run.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Werror>")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-warning-option>")  # g++ has others
endif()
