# Finds every third-party library and gives each one imported target. Nothing else in the build names a path. Also part of
# the installed package: a project that links the client library needs what it links, and not what only the rest uses.

set(TENSORCAST_DEPS_DIR "${PROJECT_SOURCE_DIR}/build/deps" CACHE PATH "Where tools/setup.sh put what it built")

find_package(Threads REQUIRED)

# Abseil: always the one that setup.sh builds. The distributions' own are too old (Debian 12) or have a string_view that is
# not std's (Debian 13), and every library of ours has to see the same.
find_package(absl CONFIG QUIET PATHS "${TENSORCAST_DEPS_DIR}/abseil" NO_DEFAULT_PATH)
if(NOT absl_FOUND)
  message(FATAL_ERROR "There is no Abseil in ${TENSORCAST_DEPS_DIR}/abseil: run tools/setup.sh")
endif()

# tensorcast_import(NAME LIBRARIES lib... [HEADER file]): imports shared libraries by path. gRPC is imported this
# way because its own CMake package would bind the distribution's older Abseil targets.
function(tensorcast_import name)
  cmake_parse_arguments(arg "" "HEADER" "LIBRARIES" ${ARGN})
  add_library(${name} INTERFACE IMPORTED)
  foreach(library ${arg_LIBRARIES})
    string(MAKE_C_IDENTIFIER "TENSORCAST_LIB_${library}" variable)
    find_library(${variable} ${library} REQUIRED)
    target_link_libraries(${name} INTERFACE "${${variable}}")
  endforeach()
  if(arg_HEADER)
    string(MAKE_C_IDENTIFIER "TENSORCAST_INCLUDE_${arg_HEADER}" variable)
    find_path(${variable} ${arg_HEADER} REQUIRED)
    target_include_directories(${name} SYSTEM INTERFACE "${${variable}}")
  endif()
endfunction()

find_package(Protobuf MODULE REQUIRED)
tensorcast_import(thirdparty::grpc HEADER grpcpp/grpcpp.h LIBRARIES grpc++ grpc gpr)
tensorcast_import(thirdparty::grpc_reflection LIBRARIES grpc++_reflection)
# gRPC headers inline absl::Mutex: every target that includes them is to see the Abseil that is linked.
target_link_libraries(thirdparty::grpc INTERFACE protobuf::libprotobuf absl::synchronization)

tensorcast_import(thirdparty::xxhash HEADER xxhash.h LIBRARIES xxhash)
# BLAKE3: static, from what setup.sh compiled; no distribution has it as a library.
set(blake3 "${TENSORCAST_DEPS_DIR}/blake3")
if(NOT EXISTS "${blake3}/lib/libblake3.a")
  message(FATAL_ERROR "There is no BLAKE3 in ${blake3}: run tools/setup.sh (for a sanitizer's build with --sanitizer "
                      "address|thread)")
endif()
add_library(thirdparty::blake3 STATIC IMPORTED)
set_target_properties(thirdparty::blake3 PROPERTIES IMPORTED_LOCATION "${blake3}/lib/libblake3.a")
target_include_directories(thirdparty::blake3 SYSTEM INTERFACE "${blake3}/include")

find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)

# The client reads object stores with credentials of its own.
tensorcast_import(thirdparty::curl HEADER curl/curl.h LIBRARIES curl)
tensorcast_import(thirdparty::expat HEADER expat.h LIBRARIES expat)

# OpenTelemetry's headers mention absl::variant, and Debian builds it with its own Abseil. That variant is not the one
# of ours. So a source that includes them sees the distribution's Abseil headers instead of ours, and must include none
# of ours that mention Abseil: otel/sdk keeps such sources apart, behind interfaces of the standard library.
set(TENSORCAST_OTEL_LIBRARIES
  opentelemetry_trace opentelemetry_metrics opentelemetry_logs opentelemetry_resources opentelemetry_common
  opentelemetry_exporter_otlp_grpc opentelemetry_exporter_otlp_grpc_metrics opentelemetry_exporter_otlp_grpc_log
  opentelemetry_exporter_otlp_http opentelemetry_exporter_otlp_http_metric opentelemetry_exporter_otlp_http_log
  opentelemetry_http_client_curl
  opentelemetry_exporter_ostream_span opentelemetry_exporter_ostream_metrics opentelemetry_exporter_ostream_logs)
tensorcast_import(thirdparty::opentelemetry HEADER opentelemetry/version.h LIBRARIES ${TENSORCAST_OTEL_LIBRARIES})
target_compile_definitions(thirdparty::opentelemetry INTERFACE HAVE_ABSEIL OPENTELEMETRY_ABI_VERSION_NO=1)
find_library(TENSORCAST_DISTRIBUTION_ABSL_VARIANT absl_bad_variant_access REQUIRED NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH)
set(distribution_absl "${CMAKE_BINARY_DIR}/distribution-abseil")
file(MAKE_DIRECTORY "${distribution_absl}")
file(CREATE_LINK "${TENSORCAST_INCLUDE_opentelemetry_version_h}/absl" "${distribution_absl}/absl" SYMBOLIC)
# -I, which the compiler searches before the -isystem of ours.
set_property(TARGET thirdparty::opentelemetry APPEND PROPERTY INTERFACE_COMPILE_OPTIONS "-I${distribution_absl}")
target_link_libraries(thirdparty::opentelemetry INTERFACE "${TENSORCAST_DISTRIBUTION_ABSL_VARIANT}")
# The same Abseil for what gRPC itself locks by (rpc/foreign_mutexes).
find_library(TENSORCAST_DISTRIBUTION_ABSL_SYNCHRONIZATION absl_synchronization REQUIRED
  NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH)
add_library(thirdparty::grpc_abseil INTERFACE IMPORTED)
set_property(TARGET thirdparty::grpc_abseil PROPERTY INTERFACE_COMPILE_OPTIONS "-I${distribution_absl}")
target_link_libraries(thirdparty::grpc_abseil INTERFACE "${TENSORCAST_DISTRIBUTION_ABSL_SYNCHRONIZATION}")

tensorcast_import(thirdparty::zstd HEADER zstd.h LIBRARIES zstd)

if(PROJECT_NAME STREQUAL "tensorcast")  # not in the installed package
  tensorcast_import(thirdparty::ucx HEADER ucp/api/ucp.h LIBRARIES ucp uct ucs)
  tensorcast_import(thirdparty::sqlite HEADER sqlite3.h LIBRARIES sqlite3)
  # etcd's API, as .proto files.
  set(TENSORCAST_ETCD_PROTOS "${TENSORCAST_DEPS_DIR}/etcd")
  if(NOT EXISTS "${TENSORCAST_ETCD_PROTOS}/etcd/rpc.proto")
    message(FATAL_ERROR "There is no API of etcd in ${TENSORCAST_ETCD_PROTOS}: run tools/setup.sh (for a sanitizer's build with "
                        "--sanitizer address|thread)")
  endif()
  find_package(nlohmann_json REQUIRED)
  tensorcast_import(thirdparty::opentelemetry_memory LIBRARIES
    opentelemetry_exporter_in_memory opentelemetry_exporter_in_memory_metric)
  find_program(TENSORCAST_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
  tensorcast_import(thirdparty::yaml HEADER yaml-cpp/yaml.h LIBRARIES yaml-cpp)
  find_path(TENSORCAST_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
  add_library(thirdparty::cli11 INTERFACE IMPORTED)
  target_include_directories(thirdparty::cli11 SYSTEM INTERFACE "${TENSORCAST_CLI11_INCLUDE}")
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()

# CUDA is optional: the runtime is linked statically, so the binary also starts on a host without a driver.
set(TENSORCAST_CUDA_ROOT "/usr/local/cuda" CACHE PATH "The CUDA toolkit, if there is one")
find_path(TENSORCAST_CUDA_INCLUDE cuda_runtime_api.h HINTS "${TENSORCAST_CUDA_ROOT}/include")
find_library(TENSORCAST_CUDART_STATIC cudart_static HINTS "${TENSORCAST_CUDA_ROOT}/lib64")
if(TENSORCAST_CUDA_INCLUDE AND TENSORCAST_CUDART_STATIC)
  set(TENSORCAST_HAVE_CUDA ON)
  add_library(thirdparty::cudart INTERFACE IMPORTED)
  target_include_directories(thirdparty::cudart SYSTEM INTERFACE "${TENSORCAST_CUDA_INCLUDE}")
  # What is to run where there is no GPU has its property, and our stand-in (tests/stand_ins) instead.
  target_link_libraries(thirdparty::cudart INTERFACE
    "$<IF:$<BOOL:$<TARGET_PROPERTY:TENSORCAST_ON_STAND_INS>>,tensorcast_cuda_stand_in,${TENSORCAST_CUDART_STATIC}>"
    Threads::Threads ${CMAKE_DL_LIBS} rt)
  # The stand-ins for libraries that are loaded at run time find the one for CUDA in the program that loads them.
  target_link_options(thirdparty::cudart INTERFACE
    "$<$<BOOL:$<TARGET_PROPERTY:TENSORCAST_ON_STAND_INS>>:LINKER:--export-dynamic-symbol=cuda*,--export-dynamic-symbol=tensorcast_stand_in_*>")
  # For the kernels; without them what arrives on a GPU is verified on its way through the host.
  find_program(TENSORCAST_NVCC nvcc HINTS "${TENSORCAST_CUDA_ROOT}/bin")
  message(STATUS "CUDA toolkit: ${TENSORCAST_CUDA_INCLUDE} (cuda device backend built; nvcc: ${TENSORCAST_NVCC})")
else()
  set(TENSORCAST_HAVE_CUDA OFF)
  message(STATUS "CUDA toolkit: not found (only the fake device backend is built)")
endif()

# NCCL is optional, and loaded at run time: of it only the header is here, which includes CUDA's.
find_path(TENSORCAST_NCCL_INCLUDE nccl.h HINTS "${TENSORCAST_CUDA_ROOT}/include")
if(TENSORCAST_HAVE_CUDA AND TENSORCAST_NCCL_INCLUDE)
  set(TENSORCAST_HAVE_NCCL ON)
  add_library(thirdparty::nccl_header INTERFACE IMPORTED)
  target_include_directories(thirdparty::nccl_header SYSTEM INTERFACE
    "${TENSORCAST_NCCL_INCLUDE}" "${TENSORCAST_CUDA_INCLUDE}")
  message(STATUS "NCCL: ${TENSORCAST_NCCL_INCLUDE} (loaded at run time)")
else()
  set(TENSORCAST_HAVE_NCCL OFF)
  message(STATUS "NCCL: no header found (broadcasts between GPUs are not built)")
endif()
