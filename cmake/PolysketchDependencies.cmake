# Libraries, all from Debian 12 but SentencePiece (scripts/setup says why and builds it).

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
if(POLYSKETCH_CORE)
  # scripts/gpu-check brings these two along, as sources.
  set(POLYSKETCH_CARRIED "${PROJECT_SOURCE_DIR}/.gpu" CACHE PATH "Where they lie if the machine lacks them")
  find_package(nlohmann_json QUIET)
  if(NOT nlohmann_json_FOUND)
    add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
    target_include_directories(nlohmann_json::nlohmann_json INTERFACE "${POLYSKETCH_CARRIED}/include")
  endif()
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    add_subdirectory("${POLYSKETCH_CARRIED}/googletest" googletest EXCLUDE_FROM_ALL)
    if(NOT TARGET GTest::gtest)
      add_library(GTest::gtest ALIAS gtest)
      add_library(GTest::gtest_main ALIAS gtest_main)
    endif()
  endif()
  return()
endif()

find_package(nlohmann_json REQUIRED)
find_package(Protobuf REQUIRED)
find_package(SentencePiece REQUIRED)
find_path(POLYSKETCH_XXHASH_INCLUDE xxhash.h REQUIRED)  # used as a header only
find_library(POLYSKETCH_ZSTD zstd REQUIRED)
find_library(POLYSKETCH_HIREDIS hiredis REQUIRED)

if(POLYSKETCH_SERVER)
  find_package(gRPC CONFIG REQUIRED)
  find_package(prometheus-cpp CONFIG REQUIRED)
  find_package(civetweb CONFIG REQUIRED)
endif()

if(POLYSKETCH_TESTS)
  find_package(GTest REQUIRED)
endif()
