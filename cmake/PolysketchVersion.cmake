# polysketch_build_info: a library whose header "polysketch_build_info.h" has the version and the commit.
#
# The commit is read at every build, not when CMake is configured, and its source is only rewritten when it changed: --version tells
# the truth, and another commit compiles one small file.

set(_build_info_dir "${CMAKE_BINARY_DIR}/generated")
configure_file("${PROJECT_SOURCE_DIR}/cmake/polysketch_build_info.h.in" "${_build_info_dir}/polysketch_build_info.h" @ONLY)
add_custom_target(polysketch_build_commit
  COMMAND "${CMAKE_COMMAND}" -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
    -DOUTPUT=${_build_info_dir}/polysketch_build_commit.cc -P "${PROJECT_SOURCE_DIR}/cmake/write_build_commit.cmake"
  BYPRODUCTS "${_build_info_dir}/polysketch_build_commit.cc"
  COMMENT "Reading the commit"
  VERBATIM)

add_library(polysketch_build_info STATIC "${_build_info_dir}/polysketch_build_commit.cc")
target_include_directories(polysketch_build_info PUBLIC "${_build_info_dir}")
add_dependencies(polysketch_build_info polysketch_build_commit)
