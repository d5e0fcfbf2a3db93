# xgrammar as third_party/xgrammar/build builds it: static. Defines the imported target polysketch::xgrammar. Its headers
# are included in engine/grammar_host only.

set(XGRAMMAR_ROOT "${PROJECT_SOURCE_DIR}/.deps/xgrammar" CACHE PATH "Where third_party/xgrammar/build installed xgrammar")

include(PolysketchBuiltLibrary)
polysketch_find_built(Xgrammar polysketch::xgrammar "${XGRAMMAR_ROOT}" xgrammar/xgrammar.h libxgrammar.a
  Threads::Threads)
