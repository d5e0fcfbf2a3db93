# Unity builds: one translation unit for the sources of a module, or of several. The headers of gRPC, JSON and the standard library
# are then parsed and their templates compiled once for all of them: a third of the time for server/rpc, half for engine/scheduler.
# The presets that no one develops in use them, and so does scripts/test in a new tree. The preset cpu does not: a change of one
# file compiles that file alone, and a file that forgets an include fails.

option(POLYSKETCH_UNITY "Compile the sources of a module, or of several, as one translation unit" OFF)

# polysketch_unity(TARGET [GROUP...]) makes one unit of the sources of each folder. GROUP: the folders, between spaces, whose sources
# are one unit: they take about as long as other units, so that no core waits for the last one. Sources with compile options of
# their own stay alone.
function(polysketch_unity target)
  if(NOT POLYSKETCH_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${folder}" NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    cmake_path(GET path PARENT_PATH module)
    foreach(group IN LISTS ARGN)
      string(REPLACE " " ";" modules "${group}")
      if(module IN_LIST modules)
        list(GET modules 0 module)
        break()
      endif()
    endforeach()
    string(MAKE_C_IDENTIFIER "${module}" group)
    set_source_files_properties("${source}" TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP "${group}")
  endforeach()
endfunction()
