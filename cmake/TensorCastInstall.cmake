# `cmake --install`: the binary (component runtime), and the libraries with a CMake package (component development) for
# engines that link tensorcast::client.

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tensorcast")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/tensorcastConfig.cmake.in"
  "${CMAKE_BINARY_DIR}/tensorcastConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/tensorcastConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/tensorcastConfig.cmake" "${CMAKE_BINARY_DIR}/tensorcastConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/TensorCastDependencies.cmake"
        DESTINATION "${package_dir}" COMPONENT development)
install(EXPORT tensorcastTargets NAMESPACE tensorcast:: DESTINATION "${package_dir}" COMPONENT development)
install(TARGETS tensorcast RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
# Abseil is linked statically; those who link our static libraries need the same one.
install(DIRECTORY "${TENSORCAST_DEPS_DIR}/abseil" DESTINATION "${CMAKE_INSTALL_LIBDIR}/tensorcast/deps"
        COMPONENT development)
# The shared libraries of the relocatable package lie beside the binary. RPATH, not RUNPATH, which would not reach the
# libraries of the libraries. In the build tree there is no such folder, and the system's are used.
set_target_properties(tensorcast PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib")
target_link_options(tensorcast PRIVATE -Wl,--disable-new-dtags)
