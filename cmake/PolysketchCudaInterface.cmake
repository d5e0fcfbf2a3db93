# polysketch_cuda_interface: an interface target whose header "polysketch_cuda_interface.h" holds the hash of the headers
# that the program and the cuda backend's library share. A change of one of them changes it.

set(_cuda_interface_dir "${CMAKE_BINARY_DIR}/generated")
file(GLOB _shared_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/base/*.h" "${PROJECT_SOURCE_DIR}/kernels/*.h")
add_custom_command(
  OUTPUT "${_cuda_interface_dir}/polysketch_cuda_interface.h"
  COMMAND "${CMAKE_COMMAND}" -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
          -DOUTPUT=${_cuda_interface_dir}/polysketch_cuda_interface.h
          -P "${PROJECT_SOURCE_DIR}/cmake/write_cuda_interface.cmake"
  DEPENDS ${_shared_headers} "${PROJECT_SOURCE_DIR}/kernels/cuda/library.h"
          "${PROJECT_SOURCE_DIR}/cmake/write_cuda_interface.cmake"
  COMMENT "Hashing the headers of the cuda backend's interface"
  VERBATIM)
add_custom_target(polysketch_cuda_interface_header DEPENDS "${_cuda_interface_dir}/polysketch_cuda_interface.h")

add_library(polysketch_cuda_interface INTERFACE)
target_include_directories(polysketch_cuda_interface INTERFACE "${_cuda_interface_dir}")
add_dependencies(polysketch_cuda_interface polysketch_cuda_interface_header)
