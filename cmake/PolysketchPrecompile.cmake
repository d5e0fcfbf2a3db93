# Precompiled headers. Parsing the standard library, gRPC or GoogleTest takes most of the time of compiling a file of ours.
# clang-tidy reads every file without them, so that one which forgets an include fails there.

option(POLYSKETCH_PRECOMPILE "Precompile the headers of libraries" ON)

set(POLYSKETCH_STD_HEADERS <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring>
  <functional> <limits> <map> <memory> <mutex> <optional> <span> <string> <string_view> <thread> <utility> <variant> <vector>)
set(POLYSKETCH_GRPC_HEADERS <grpcpp/grpcpp.h> <grpcpp/support/server_callback.h> "<polysketch/v1/polysketch.grpc.pb.h>")
set(POLYSKETCH_TEST_HEADERS <filesystem> <fstream> <gtest/gtest.h>)

# polysketch_precompile(TARGET HEADER...) precompiles the headers for a library or an executable.
function(polysketch_precompile target)
  if(POLYSKETCH_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

# polysketch_share_precompiled(TARGET OWNER) uses the headers that another target precompiled: both are executables or neither,
# with the same compile options.
function(polysketch_share_precompiled target owner)
  if(POLYSKETCH_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

# polysketch_kernel_target(TARGET) gives a target with kernels its precompiled header, and optimises it in quick and sanitizer
# builds as well, without poisoning every scope of the stack, which slows loops over vector registers most. They need a header of their
# own: g++ 12 crashes when it compiles at -O3 with a header that it compiled at -O1, and clang refuses it.
function(polysketch_kernel_target target)
  if(POLYSKETCH_SANITIZE)
    set(options -O1)
    if(POLYSKETCH_SANITIZE MATCHES "address")
      list(APPEND options -fno-sanitize-address-use-after-scope)
    endif()
  elseif(POLYSKETCH_QUICK)
    set(options -O3)
  else()
    polysketch_share_precompiled(${target} polysketch_base)
    return()
  endif()
  if(NOT TARGET polysketch_kernel_headers)
    set(source "${CMAKE_BINARY_DIR}/generated/polysketch_kernel_headers.cc")
    file(GENERATE OUTPUT "${source}" CONTENT "")
    add_library(polysketch_kernel_headers OBJECT "${source}")
    target_link_libraries(polysketch_kernel_headers PRIVATE polysketch_base)
    target_compile_options(polysketch_kernel_headers PRIVATE ${options})
    polysketch_precompile(polysketch_kernel_headers ${POLYSKETCH_STD_HEADERS} <immintrin.h>)
  endif()
  target_compile_options(${target} PRIVATE ${options})
  polysketch_share_precompiled(${target} polysketch_kernel_headers)
endfunction()

# polysketch_precompiled_tests(NAME [GRPC] [NOT_SANITIZED] [OPTION...]) makes the executable NAME, which owns the headers of tests.
# NOT_SANITIZED: of tests that polysketch_not_sanitized has, with these options.
function(polysketch_precompiled_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "GRPC;NOT_SANITIZED" "" "")
  set(source "${CMAKE_BINARY_DIR}/generated/${name}.cc")
  file(GENERATE OUTPUT "${source}" CONTENT "int main() { return 0; }\n")
  add_executable(${name} EXCLUDE_FROM_ALL "${source}")
  if(arg_GRPC)
    target_link_libraries(${name} PRIVATE polysketch_stubs)
    set(headers ${POLYSKETCH_GRPC_HEADERS})
  endif()
  target_link_libraries(${name} PRIVATE GTest::gtest)
  polysketch_quick_to_compile(${name})
  if(arg_NOT_SANITIZED)
    polysketch_not_sanitized(${name} ${arg_UNPARSED_ARGUMENTS})
  endif()
  polysketch_precompile(${name} ${POLYSKETCH_STD_HEADERS} ${POLYSKETCH_TEST_HEADERS} ${headers})
endfunction()
