# SentencePiece as third_party/sentencepiece/build builds it: static, against the system's protobuf.
#
# Defines the imported target polysketch::sentencepiece. Debian's own shared library is not searched for on purpose: it
# exports a bundled protobuf 3.14 and crashes any process that also holds gRPC. Include sentencepiece_processor.h and
# sentencepiece_model.pb.h in engine/tokenizer/*.cc only: the first declares an absl::string_view that clashes with the one
# that gRPC's headers use.

set(SENTENCEPIECE_ROOT "${PROJECT_SOURCE_DIR}/.deps/sentencepiece" CACHE PATH
  "Where third_party/sentencepiece/build installed SentencePiece")

include(PolysketchBuiltLibrary)
polysketch_find_built(SentencePiece polysketch::sentencepiece "${SENTENCEPIECE_ROOT}" sentencepiece_model.pb.h libsentencepiece.a
  "protobuf::libprotobuf;Threads::Threads")
