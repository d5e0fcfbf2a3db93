# SentencePiece as third_party/sentencepiece/build builds it: static, against the system's protobuf.
#
# Defines the imported target polysketch::sentencepiece. Debian's own shared library is not searched for on purpose: it
# exports a bundled protobuf 3.14 and crashes any process that also holds gRPC. Include sentencepiece_processor.h and
# sentencepiece_model.pb.h in engine/tokenizer/*.cc only: the first declares an absl::string_view that clashes with the one
# that gRPC's headers use.

set(SENTENCEPIECE_ROOT "${PROJECT_SOURCE_DIR}/.deps/sentencepiece" CACHE PATH
  "Where third_party/sentencepiece/build installed SentencePiece")

find_path(SentencePiece_INCLUDE_DIR sentencepiece_model.pb.h
  PATHS "${SENTENCEPIECE_ROOT}/include" NO_DEFAULT_PATH)
find_library(SentencePiece_LIBRARY libsentencepiece.a
  PATHS "${SENTENCEPIECE_ROOT}/lib" NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece
  REQUIRED_VARS SentencePiece_LIBRARY SentencePiece_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, which builds it")

if(SentencePiece_FOUND AND NOT TARGET polysketch::sentencepiece)
  add_library(polysketch::sentencepiece STATIC IMPORTED)
  set_target_properties(polysketch::sentencepiece PROPERTIES
    IMPORTED_LOCATION "${SentencePiece_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${SentencePiece_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "protobuf::libprotobuf;Threads::Threads")
endif()
mark_as_advanced(SentencePiece_INCLUDE_DIR SentencePiece_LIBRARY)
