# polysketch_find_built(NAME TARGET ROOT HEADER LIBRARY LINKS): what the find module of NAME does for a static library that a
# recipe of third_party has built. Searches ROOT alone, sets NAME_FOUND, and defines the imported target TARGET, which links
# LINKS. A macro: find_package reads its variables.
include(FindPackageHandleStandardArgs)

macro(polysketch_find_built name target root header library links)
  find_path(${name}_INCLUDE_DIR ${header} PATHS "${root}/include" NO_DEFAULT_PATH)
  find_library(${name}_LIBRARY ${library} PATHS "${root}/lib" NO_DEFAULT_PATH)
  find_package_handle_standard_args(${name}
    REQUIRED_VARS ${name}_LIBRARY ${name}_INCLUDE_DIR
    REASON_FAILURE_MESSAGE "run scripts/setup, which builds it")
  if(${name}_FOUND AND NOT TARGET ${target})
    add_library(${target} STATIC IMPORTED)
    set_target_properties(${target} PROPERTIES
      IMPORTED_LOCATION "${${name}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDE_DIR}"
      INTERFACE_LINK_LIBRARIES "${links}")
  endif()
  mark_as_advanced(${name}_INCLUDE_DIR ${name}_LIBRARY)
endmacro()
