# xgrammar as third_party/xgrammar/build builds it: static. Defines the imported target polysketch::xgrammar. Its headers
# are included in engine/grammar_host only.

set(XGRAMMAR_ROOT "${PROJECT_SOURCE_DIR}/.deps/xgrammar" CACHE PATH "Where third_party/xgrammar/build installed xgrammar")

find_path(Xgrammar_INCLUDE_DIR xgrammar/xgrammar.h PATHS "${XGRAMMAR_ROOT}/include" NO_DEFAULT_PATH)
find_library(Xgrammar_LIBRARY libxgrammar.a PATHS "${XGRAMMAR_ROOT}/lib" NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Xgrammar
  REQUIRED_VARS Xgrammar_LIBRARY Xgrammar_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "run scripts/setup, which builds it")

if(Xgrammar_FOUND AND NOT TARGET polysketch::xgrammar)
  add_library(polysketch::xgrammar STATIC IMPORTED)
  set_target_properties(polysketch::xgrammar PROPERTIES
    IMPORTED_LOCATION "${Xgrammar_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Xgrammar_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "Threads::Threads")
endif()
mark_as_advanced(Xgrammar_INCLUDE_DIR Xgrammar_LIBRARY)
