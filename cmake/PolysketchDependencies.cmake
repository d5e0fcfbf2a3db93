# Libraries, all from Debian 12 but SentencePiece (scripts/setup says why and builds it).

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
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
