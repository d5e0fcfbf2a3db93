# The hash of the cuda backend's interface changes with every header that both sides see, and with no other file.
#
#   cmake -DSOURCE_DIR=... -DSCRATCH_DIR=... -P interface_hash_test.cmake
function(interface_hash variable)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -DSOURCE_DIR=${SCRATCH_DIR} -DOUTPUT=${SCRATCH_DIR}/out.h
            -P "${SOURCE_DIR}/cmake/write_cuda_interface.cmake"
    COMMAND_ERROR_IS_FATAL ANY)
  file(READ "${SCRATCH_DIR}/out.h" text)
  if(NOT text MATCHES "\"([0-9a-f]+)\"")
    message(FATAL_ERROR "expected a hash, found: ${text}")
  endif()
  set(${variable} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${SCRATCH_DIR}")
file(COPY "${SOURCE_DIR}/base" "${SOURCE_DIR}/kernels" DESTINATION "${SCRATCH_DIR}" FILES_MATCHING PATTERN "*.h")
interface_hash(before)
foreach(header IN ITEMS kernels/cuda/library.h kernels/backend.h kernels/sequence_state.h kernels/matrix.h
        kernels/row_sampling.h kernels/attention_spec.h base/status.h base/check.h)
  file(READ "${SCRATCH_DIR}/${header}" text)
  file(WRITE "${SCRATCH_DIR}/${header}" "${text}// changed\n")
  interface_hash(after)
  file(WRITE "${SCRATCH_DIR}/${header}" "${text}")
  if(after STREQUAL before)
    message(FATAL_ERROR "${header}: expected another hash after a change, found the same")
  endif()
endforeach()
file(APPEND "${SCRATCH_DIR}/kernels/cpu/state.h" "// changed\n")
interface_hash(after)
if(NOT after STREQUAL before)
  message(FATAL_ERROR "kernels/cpu/state.h is not shared: expected the same hash, found another")
endif()
