# The shared library, its install rules and the CMake package. Only the C ABI is exported: the version script hides everything else,
# the standard library's templates included.
enable_language(C)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(version_script ${CMAKE_CURRENT_LIST_DIR}/exports.map)
# The soname is the version of the ABI: a program never gets a library whose structs or functions differ from those it was built with.
file(STRINGS ${CMAKE_SOURCE_DIR}/include/monomoe/monomoe.h abi_version REGEX "^#define MONOMOE_ABI_VERSION ")
string(REGEX MATCH "[0-9]+" abi_version "${abi_version}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/include/monomoe/monomoe.h)
file(WRITE ${CMAKE_BINARY_DIR}/empty.c "typedef int monomoe_shared_library;\n")
# Not named monomoe: that name belongs to the command-line program's file. Its users see monomoe::monomoe.
add_library(monomoe_shared SHARED ${CMAKE_BINARY_DIR}/empty.c)
target_link_libraries(monomoe_shared PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,monomoe_core> ${CMAKE_DL_LIBS})
target_link_options(monomoe_shared PRIVATE -Wl,--version-script=${version_script})
if(NOT MONOMOE_SANITIZE)  # a sanitizer's own symbols come from the program
  target_link_options(monomoe_shared PRIVATE -Wl,-z,defs)
endif()
target_include_directories(monomoe_shared INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set_target_properties(monomoe_shared PROPERTIES OUTPUT_NAME monomoe EXPORT_NAME monomoe VERSION ${PROJECT_VERSION} SOVERSION ${abi_version}
                      LINKER_LANGUAGE CXX LINK_DEPENDS ${version_script})
add_library(monomoe::monomoe ALIAS monomoe_shared)
target_link_libraries(monomoe_core PUBLIC ${CMAKE_DL_LIBS})

install(TARGETS monomoe_shared EXPORT monomoeTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/monomoe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
install(EXPORT monomoeTargets NAMESPACE monomoe:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/monomoe COMPONENT library)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/monomoeConfig.cmake.in ${CMAKE_BINARY_DIR}/monomoeConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/monomoe)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/monomoeConfigVersion.cmake VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/monomoeConfig.cmake ${CMAKE_BINARY_DIR}/monomoeConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/monomoe COMPONENT library)
# For builds without CMake. Paths are relative to the file, so the tree can be moved.
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" AND NOT IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/monomoe.pc.in ${CMAKE_BINARY_DIR}/monomoe.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/monomoe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
endif()
