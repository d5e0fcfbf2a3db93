# polysketch_test(NAME source... [LIBS target...] [LABELS label...] [PARALLEL] [TIMEOUT seconds] [ARGS arg...] [ENVIRONMENT K=V...])
#
# One GoogleTest executable, build/<preset>/bin/NAME, registered as the ctest NAME. gtest_main is linked; list
# GTest::gmock in LIBS where it is used. POLYSKETCH_TEST_FULL=1 in the environment of a test selects its full counts; the
# CMake option of that name sets the variable and raises the timeouts.
#
# polysketch_test_properties(NAME [LABELS] [PARALLEL] [TIMEOUT] [ENVIRONMENT]) gives any other ctest the same environment.

option(POLYSKETCH_TEST_FULL "Run the tests with full counts; takes hours" OFF)

# ASan: a report ends the test. The stack-use-after-return check stays off: it doubles the time of coroutine-free code
# like ours for a fault that g++ warns of.
set(POLYSKETCH_TEST_ENVIRONMENT
  "POLYSKETCH_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
  "POLYSKETCH_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
if(POLYSKETCH_SANITIZE MATCHES "address")
  list(APPEND POLYSKETCH_TEST_ENVIRONMENT
    "ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=0:check_initialization_order=1"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/sanitizers/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1")
elseif(POLYSKETCH_SANITIZE MATCHES "thread")
  list(APPEND POLYSKETCH_TEST_ENVIRONMENT
    "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=${PROJECT_SOURCE_DIR}/cmake/sanitizers/tsan.supp")
endif()

if(POLYSKETCH_TEST_FULL)
  list(APPEND POLYSKETCH_TEST_ENVIRONMENT "POLYSKETCH_TEST_FULL=1")
endif()

# Sanitizers slow the arithmetic about threefold and allocations much more.
set(POLYSKETCH_TIMEOUT_FACTOR 1)
if(POLYSKETCH_SANITIZE)
  set(POLYSKETCH_TIMEOUT_FACTOR 4)
endif()

function(polysketch_test_properties name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "PARALLEL" "TIMEOUT" "LABELS;ENVIRONMENT")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  math(EXPR timeout "${arg_TIMEOUT} * ${POLYSKETCH_TIMEOUT_FACTOR}")
  if(POLYSKETCH_TEST_FULL)
    math(EXPR timeout "${timeout} * 30")
  endif()
  set_tests_properties(${name} PROPERTIES
    TIMEOUT ${timeout}
    SKIP_RETURN_CODE 77
    ENVIRONMENT_MODIFICATION "PATH=path_list_prepend:${PROJECT_SOURCE_DIR}/.deps/bin"  # promtool
    ENVIRONMENT "${POLYSKETCH_TEST_ENVIRONMENT};${arg_ENVIRONMENT}")
  if(arg_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}")
  endif()
  # Servers use every core, and their deadlines are real. PARALLEL: there are none in this test.
  if(arg_LABELS MATCHES "server|e2e|deploy|device" AND NOT arg_PARALLEL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# Compiling a test takes longer than running it, and what it tests is optimised in any case.
function(polysketch_quick_to_compile target)
  if(NOT POLYSKETCH_SANITIZE)
    # At -O1, g++ 12 warns of bounds within std::string.
    target_compile_options(${target} PRIVATE -O1 -g0 -Wno-array-bounds -Wno-stringop-overflow)
  endif()
endfunction()

# polysketch_not_sanitized(TARGET [OPTION...]): programs that drive the real binaries, and oracles of arithmetic, which are most of the
# time of their tests. What they test is sanitized, they are not.
function(polysketch_not_sanitized target)
  if(POLYSKETCH_SANITIZE)
    target_compile_options(${target} PRIVATE -fno-sanitize=all ${ARGN})
  endif()
endfunction()

function(polysketch_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "PARALLEL" "TIMEOUT" "LIBS;LABELS;ARGS;ENVIRONMENT")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} GTest::gtest GTest::gtest_main Threads::Threads)
  polysketch_quick_to_compile(${name})
  if(POLYSKETCH_SANITIZE AND arg_LABELS MATCHES "e2e")
    polysketch_not_sanitized(${name})
    polysketch_share_precompiled(${name} polysketch_driver_headers)
  elseif(POLYSKETCH_SANITIZE AND arg_LABELS MATCHES "kernels|model")
    polysketch_not_sanitized(${name} -O1)
    polysketch_share_precompiled(${name} polysketch_oracle_headers)
  elseif(arg_LIBS MATCHES "polysketch_(server_lib|e2e|client_rpc)")
    polysketch_share_precompiled(${name} polysketch_grpc_test_headers)
  else()
    polysketch_share_precompiled(${name} polysketch_test_headers)
  endif()
  polysketch_unity(${name})
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
  set(parallel)
  if(arg_PARALLEL)
    set(parallel PARALLEL)
  endif()
  polysketch_test_properties(${name} ${parallel}
    TIMEOUT "${arg_TIMEOUT}" LABELS ${arg_LABELS} ENVIRONMENT ${arg_ENVIRONMENT})
endfunction()
