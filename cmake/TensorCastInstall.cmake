# `cmake --install`: the programs (component runtime); the client library with its headers and a CMake package (component
# development), for programs that link tensorcast::client. What is not named here is not installed.

include(CMakePackageConfigHelpers)

# The public headers, all of them: tensorcast/client.h, and the values that it speaks of. Each includes none of ours but
# these (tools/lint/check_includes.py).
set(TENSORCAST_PUBLIC_HEADERS
  base/request_context.h
  base/steady_time.h
  base/trace_context.h
  base/wall_time.h
  client/include/tensorcast/changes.h
  client/include/tensorcast/client.h
  client/include/tensorcast/replica.h
  client/include/tensorcast/telemetry.h
  core/device/device_runtime.h
  core/replica/replica.h
  core/replica/transfer_report.h
  core/tensor/tensor.h)

# All lie below include/tensorcast, so that ours are never taken for another project's: base/status.h is a common name.
# base/request_context.h becomes <tensorcast/base/request_context.h>, and is included as that by the others.
set(public_headers)
foreach(header ${TENSORCAST_PUBLIC_HEADERS})
  string(REPLACE "client/include/tensorcast/" "" installed "${header}")
  string(PREPEND installed "tensorcast/")
  set(copy "${CMAKE_BINARY_DIR}/include/${installed}")
  cmake_path(GET copy PARENT_PATH folder)
  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(OUTPUT "${copy}"
    COMMAND sed -E "s@^#include \"(base|core)/@#include \"tensorcast/\\1/@" "${PROJECT_SOURCE_DIR}/${header}" > "${copy}"
    DEPENDS "${PROJECT_SOURCE_DIR}/${header}"
    VERBATIM)
  list(APPEND public_headers "${copy}")
  cmake_path(GET installed PARENT_PATH folder)
  install(FILES "${copy}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}" COMPONENT development)
endforeach()
add_custom_target(tensorcast_public_headers ALL DEPENDS ${public_headers})

# Sets `ours` to the libraries of ours that a library links, however far away, itself included, and `theirs` to those of
# third parties.
function(_tensorcast_closure library ours theirs)
  set(open "${library}")
  set(found_ours)
  set(found_theirs)
  while(open)
    list(POP_FRONT open item)
    string(REGEX REPLACE "^[$]<LINK_ONLY:(.*)>$" "\\1" item "${item}")
    string(REGEX REPLACE "^tensorcast::" "tensorcast_" item "${item}")
    if(NOT item MATCHES "^tensorcast_")
      list(APPEND found_theirs "${item}")
    elseif(NOT item IN_LIST found_ours)
      list(APPEND found_ours "${item}")
      get_target_property(kind ${item} TYPE)
      if(kind STREQUAL "INTERFACE_LIBRARY")
        get_target_property(links ${item} INTERFACE_LINK_LIBRARIES)
      else()
        get_target_property(links ${item} LINK_LIBRARIES)
      endif()
      if(links)
        list(APPEND open ${links})
      endif()
    endif()
  endwhile()
  list(REMOVE_DUPLICATES found_theirs)
  set(${ours} "${found_ours}" PARENT_SCOPE)
  set(${theirs} "${found_theirs}" PARENT_SCOPE)
endfunction()

# tensorcast::client as others link it: one archive with the objects of every library of ours that the client needs, and
# with the OpenTelemetry SDK's side, which a program links only where it calls StartTelemetry.
add_library(tensorcast_client_package STATIC)
set(objects)
set(third_parties)
foreach(library tensorcast_client tensorcast_client_telemetry)
  _tensorcast_closure(${library} ours theirs)
  foreach(one ${ours})
    get_target_property(kind ${one} TYPE)
    if(kind STREQUAL "STATIC_LIBRARY")
      list(APPEND objects "$<TARGET_OBJECTS:${one}>")
      # Those that a command of ours makes are not among them.
      get_target_property(made ${one} TENSORCAST_MADE_OBJECTS)
      if(made)
        list(APPEND objects ${made})
      endif()
    endif()
  endforeach()
  list(APPEND third_parties ${theirs})
endforeach()
list(REMOVE_DUPLICATES objects)
list(REMOVE_DUPLICATES third_parties)
target_sources(tensorcast_client_package PRIVATE ${objects})
set_target_properties(tensorcast_client_package PROPERTIES
  LINKER_LANGUAGE CXX OUTPUT_NAME tensorcast_client EXPORT_NAME client)
target_compile_features(tensorcast_client_package INTERFACE cxx_std_20)
target_include_directories(tensorcast_client_package INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
# Header-only, and in no public header.
list(REMOVE_ITEM third_parties nlohmann_json::nlohmann_json)
foreach(library ${third_parties})
  if(library MATCHES "^absl::")  # in the public headers
    target_link_libraries(tensorcast_client_package INTERFACE ${library})
  else()
    target_link_libraries(tensorcast_client_package INTERFACE "$<LINK_ONLY:${library}>")
  endif()
endforeach()
# Programs without telemetry are not to load the SDK's libraries.
target_link_options(tensorcast_client_package INTERFACE LINKER:--as-needed)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tensorcast")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/tensorcastConfig.cmake.in"
  "${CMAKE_BINARY_DIR}/tensorcastConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/tensorcastConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/tensorcastConfig.cmake" "${CMAKE_BINARY_DIR}/tensorcastConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/TensorCastDependencies.cmake"
        DESTINATION "${package_dir}" COMPONENT development)
install(TARGETS tensorcast_client_package EXPORT tensorcastTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}/tensorcast" COMPONENT development)
install(EXPORT tensorcastTargets NAMESPACE tensorcast:: DESTINATION "${package_dir}" COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/tensorcast-dev" COMPONENT development)
install(TARGETS tensorcast tensorcast-bench RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT runtime)
# Abseil and BLAKE3 are linked statically; a project that links our static library needs the same ones. (The slash: a sanitizer's
# BLAKE3 is a symbolic link.)
install(DIRECTORY "${TENSORCAST_DEPS_DIR}/blake3/" DESTINATION "${CMAKE_INSTALL_LIBDIR}/tensorcast/deps/blake3"
        COMPONENT development)
install(DIRECTORY "${TENSORCAST_DEPS_DIR}/abseil" DESTINATION "${CMAKE_INSTALL_LIBDIR}/tensorcast/deps"
        COMPONENT development)
# The shared libraries of the relocatable package lie in the folder lib/ beside that of the programs. RPATH, not RUNPATH,
# which would not reach the libraries of the libraries. In the build tree there is no such folder, and the system's are used.
foreach(program tensorcast tensorcast-bench)
  set_target_properties(${program} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib")
  target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endforeach()
