# polysketch_build_info: an interface target whose header "polysketch_build_info.h" holds the version and the commit.
#
# The commit is read at every build, not when CMake is configured, and the header is only rewritten when it changed:
# --version tells the truth and nothing is recompiled for nothing.

set(_build_info_dir "${CMAKE_BINARY_DIR}/generated")
set(_build_info_command
  "${CMAKE_COMMAND}" -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
  -DBUILD_TYPE=${CMAKE_BUILD_TYPE} -DSANITIZE=${POLYSKETCH_SANITIZE} -DOUTPUT=${_build_info_dir}/polysketch_build_info.h
  -P "${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake")
add_custom_target(polysketch_build_info_header
  COMMAND ${_build_info_command}
  BYPRODUCTS "${_build_info_dir}/polysketch_build_info.h"
  COMMENT "Reading the commit"
  VERBATIM)

add_library(polysketch_build_info INTERFACE)
target_include_directories(polysketch_build_info INTERFACE "${_build_info_dir}")
add_dependencies(polysketch_build_info polysketch_build_info_header)
