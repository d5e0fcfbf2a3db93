# Run by the target polysketch_build_commit; see PolysketchVersion.cmake.
# POLYSKETCH_COMMIT: where there is no checkout, as in an image build.
set(COMMIT "$ENV{POLYSKETCH_COMMIT}")
if(NOT COMMIT)
  set(COMMIT "unknown")
endif()
find_package(Git QUIET)
if(GIT_FOUND AND COMMIT STREQUAL "unknown")
  execute_process(
    COMMAND "${GIT_EXECUTABLE}" describe --always --dirty --abbrev=12 --match=NO_TAGS
    WORKING_DIRECTORY "${SOURCE_DIR}" OUTPUT_VARIABLE _describe OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE _result)
  if(_result EQUAL 0)
    set(COMMIT "${_describe}")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT [[
#include "polysketch_build_info.h"

const char polysketch::kCommit[] = "@COMMIT@";
const char polysketch::kVersionAndCommit[] = "@VERSION@ (@COMMIT@)";
]] @ONLY)
