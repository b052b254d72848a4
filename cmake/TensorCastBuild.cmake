# How every TensorCast target is built: tensorcast_library(), tensorcast_test(), tensorcast_add_test(),
# tensorcast_benchmark().

include(GNUInstallDirs)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

find_program(TENSORCAST_CCACHE ccache)
if(TENSORCAST_CCACHE)
  # Paths relative to the checkout, so that every build folder and every clone shares one cache. The sloppiness lets it
  # keep what uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=true
      CCACHE_SLOPPINESS=pch_defines,time_macros "${TENSORCAST_CCACHE}")
endif()

find_program(TENSORCAST_LLD ld.lld)

# Private to each of our targets: what is installed carries none of it.
function(_tensorcast_target_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
  if(TENSORCAST_LLD)
    target_link_options(${target} PRIVATE -fuse-ld=lld)
  endif()
endfunction()

# Both halve a build from nothing. They hide includes that are missing and names that two sources of a target share,
# which the other presets find.
option(TENSORCAST_BATCHES "Compile up to eight sources of a library or test together, and the headers of all tests once"
       OFF)

# With TENSORCAST_BATCHES, the target's sources are compiled eight at a time.
function(_tensorcast_batch target)
  if(TENSORCAST_BATCHES)
    # A type with fields of unnamed namespaces is safe in a source; in a batch the compiler takes it for a header's.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# tensorcast_library(NAME core_memory SRCS pool.cc HDRS pool.h DEPS tensorcast::base ... [PRIVATE_DEPS ...])
#
# One small static library a leaf folder, linked as tensorcast::<NAME>. Without SRCS it is an interface library.
# DEPS are those that its headers mention, PRIVATE_DEPS those that only its sources do.
function(tensorcast_library)
  cmake_parse_arguments(arg "" "NAME" "SRCS;HDRS;DEPS;PRIVATE_DEPS" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tensorcast_library(${arg_NAME}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(target tensorcast_${arg_NAME})
  if(arg_SRCS)
    add_library(${target} STATIC ${arg_SRCS} ${arg_HDRS})
    _tensorcast_target_options(${target})
    target_link_libraries(${target} PUBLIC ${arg_DEPS} PRIVATE ${arg_PRIVATE_DEPS})
    _tensorcast_batch(${target})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${target} INTERFACE ${arg_DEPS})
  endif()
  add_library(tensorcast::${arg_NAME} ALIAS ${target})
endfunction()

# Sets `out` to whether the target links, however far away, a library that is not built with our sanitizers and
# synchronises threads for us. To ThreadSanitizer what such a library orders looks like races.
function(_tensorcast_links_uninstrumented target out)
  set(${out} FALSE PARENT_SCOPE)
  string(REGEX REPLACE "^[$]<LINK_ONLY:(.*)>$" "\\1" target "${target}")
  if(target MATCHES "^thirdparty::(grpc|ucx|opentelemetry)")
    set(${out} TRUE PARENT_SCOPE)
    return()
  endif()
  string(REGEX REPLACE "^tensorcast::" "tensorcast_" target "${target}")
  if(NOT target MATCHES "^tensorcast_|_test$")
    return()
  endif()
  get_property(known GLOBAL PROPERTY "_links_uninstrumented_${target}")
  if("${known}" STREQUAL "" AND NOT TARGET ${target})
    set(known TRUE)  # not built here: be careful
  elseif("${known}" STREQUAL "")
    set(known FALSE)
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(libraries ${target} ${property})
      foreach(library ${libraries})
        _tensorcast_links_uninstrumented("${library}" found)
        if(found)
          set(known TRUE)
        endif()
      endforeach()
    endforeach()
    set_property(GLOBAL PROPERTY "_links_uninstrumented_${target}" ${known})
  endif()
  set(${out} ${known} PARENT_SCOPE)
endfunction()

# tensorcast_build_with_tests(label target): the build target tests_<label> builds `target`, a test or what a test runs.
function(tensorcast_build_with_tests label target)
  if(NOT TARGET tests_${label})
    add_custom_target(tests_${label})
  endif()
  add_dependencies(tests_${label} ${target})
endfunction()

# The label (and build target tests_) tsan for what ThreadSanitizer can judge. Called in the last folder, when all that a
# test links is declared: doubles are often declared after the tests that use them. CTest reads the labels there, too,
# since CMake lets a folder set the properties of its own tests alone.
function(tensorcast_label_tsan_tests)
  get_property(candidates GLOBAL PROPERTY _tensorcast_tsan_candidates)
  set(script "")
  foreach(candidate ${candidates})
    string(REGEX MATCH "^(.*):(.*)$" _ "${candidate}")
    set(name "${CMAKE_MATCH_1}")
    set(label "${CMAKE_MATCH_2}")
    _tensorcast_links_uninstrumented(${name} uninstrumented)
    if(NOT uninstrumented)
      tensorcast_build_with_tests(tsan ${name})
      string(APPEND script "set_tests_properties(${name} PROPERTIES LABELS \"${label};tsan\")\n")
    endif()
  endforeach()
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/tsan_labels.cmake" "${script}")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${CMAKE_CURRENT_BINARY_DIR}/tsan_labels.cmake")
endfunction()

set(TENSORCAST_TIMEOUT_FACTOR 1 CACHE STRING "What each test's TIMEOUT is multiplied by: sanitized code is slower")
set(TENSORCAST_TEST_OPTIONS "" CACHE STRING "Compiler options for the tests' own sources, after all others")

# tensorcast_add_test(NAME name COMMAND program [ARGUMENT...]): add_test() of a program (a path, no target) that has a
# temporary folder and a working folder of its own and fails when it leaves anything behind.
function(tensorcast_add_test)
  cmake_parse_arguments(arg "" "NAME" "COMMAND" ${ARGN})
  add_test(NAME ${arg_NAME} COMMAND "${PROJECT_SOURCE_DIR}/tests/in_own_folder.sh" ${arg_COMMAND})
endfunction()

# With TENSORCAST_BATCHES, the target uses the precompiled tests/precompiled.h. Sources that see the distribution's Abseil
# (thirdparty::opentelemetry) cannot, for it includes ours.
function(_tensorcast_precompile_test_headers target deps)
  if(NOT TENSORCAST_BATCHES OR "${deps}" MATCHES "thirdparty::opentelemetry")
    return()
  endif()
  set(options ${TENSORCAST_TEST_OPTIONS} $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # for ccache
  if(NOT TARGET tensorcast_precompiled_tests)
    # Position-independent as an executable is, which a library is not.
    add_executable(tensorcast_precompiled_tests EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/precompiled.cc")
    _tensorcast_target_options(tensorcast_precompiled_tests)
    target_compile_options(tensorcast_precompiled_tests PRIVATE ${options})
    target_link_libraries(tensorcast_precompiled_tests PRIVATE
      absl::any_invocable absl::check absl::flat_hash_map absl::log absl::statusor absl::synchronization GTest::gmock
      GTest::gtest GTest::gtest_main)
    target_precompile_headers(tensorcast_precompiled_tests PRIVATE "${PROJECT_SOURCE_DIR}/tests/precompiled.h")
  endif()
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  target_precompile_headers(${target} REUSE_FROM tensorcast_precompiled_tests)
endfunction()

# tensorcast_test(NAME core_memory_test SRCS host_pool_test.cc ... DEPS tensorcast::core_memory [LABELS unit] [TIMEOUT s])
#
# One GoogleTest binary, one CTest entry: the tests of a folder that have the same label. LABELS: unit (default), contract,
# integration, e2e, robustness, gpu.
function(tensorcast_test)
  cmake_parse_arguments(arg "" "NAME;TIMEOUT" "SRCS;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${arg_NAME} ${arg_SRCS})
  _tensorcast_target_options(${arg_NAME})
  target_compile_options(${arg_NAME} PRIVATE ${TENSORCAST_TEST_OPTIONS})
  _tensorcast_precompile_test_headers(${arg_NAME} "${arg_DEPS}")
  _tensorcast_batch(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  tensorcast_add_test(NAME ${arg_NAME} COMMAND "$<TARGET_FILE:${arg_NAME}>" ${arg_ARGS})
  math(EXPR timeout "${arg_TIMEOUT} * ${TENSORCAST_TIMEOUT_FACTOR}")
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${timeout})
  foreach(label ${arg_LABELS})
    tensorcast_build_with_tests(${label} ${arg_NAME})
  endforeach()
  # Fuzz tests have one thread.
  if("${arg_LABELS}" MATCHES "^(unit|contract)$" AND NOT arg_NAME MATCHES "_fuzz_test$")
    set_property(GLOBAL APPEND PROPERTY _tensorcast_tsan_candidates "${arg_NAME}:${arg_LABELS}")
  endif()
endfunction()

# tensorcast_benchmark(NAME digest_benchmark SRCS ... DEPS ...): a Google Benchmark binary; not a test.
function(tensorcast_benchmark)
  cmake_parse_arguments(arg "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${arg_NAME} ${arg_SRCS})
  _tensorcast_target_options(${arg_NAME})
  target_link_libraries(${arg_NAME} PRIVATE ${arg_DEPS} benchmark::benchmark benchmark::benchmark_main)
endfunction()
