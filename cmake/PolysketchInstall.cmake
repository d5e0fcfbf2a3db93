# What `cmake --install` installs, and the Debian package that CPack makes of it: cpack --config build/cpu/CPackConfig.cmake
# (scripts/release calls it; deploy/wheel/make-wheel takes the programs from what is installed). Paths follow the Filesystem Hierarchy Standard; the configuration is in /etc with every prefix.

include(GNUInstallDirs)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # the tests are not installed: packing must not build them

set(models "${CMAKE_INSTALL_DATADIR}/polysketch/models")

if(NOT POLYSKETCH_GRAMMAR_HOST)
  return()  # what is installed is whole
endif()
# The server starts polysketch-grammar-host, which is beside it.
install(TARGETS polysketch-server polysketch-grammar-host polysketch polysketch-loadgen RUNTIME)
# The model of the quick start; models/demo, with what the authors' code recorded of it, is for tests.
install(DIRECTORY models/novels DESTINATION "${models}")
install(FILES README.md CHANGELOG.md SECURITY.md DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs DESTINATION "${CMAKE_INSTALL_DOCDIR}" FILES_MATCHING PATTERN *.md)
install(FILES deploy/debian/server.json DESTINATION /etc/polysketch)
install(FILES deploy/debian/polysketch-server.service DESTINATION lib/systemd/system)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME polysketch-server)
set(CPACK_PACKAGE_VENDOR "PolySketch Server")
set(CPACK_PACKAGE_CONTACT "PolySketch Server maintainers <maintainers@polysketch.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server for PolySketchFormer language models")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "Serves PolySketchFormer models over gRPC and HTTP (the OpenAI API): completions, scores and sessions whose state has
constant size. With the client polysketch, the load generator polysketch-loadgen and a small model.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # dpkg-shlibdeps finds the packages of the libraries
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(debian "${PROJECT_SOURCE_DIR}/deploy/debian")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${debian}/postinst;${debian}/prerm;${debian}/postrm;${debian}/conffiles")
include(CPack)
