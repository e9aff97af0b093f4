# isobar_module(NAME SOURCES ... PUBLIC ... PRIVATE ... HEADERS ... [PRECOMPILED TARGET]): adds the library of a folder or
# room, isobar::NAME; without sources, an interface to the libraries that it links. HEADERS: header-only libraries, which
# an installed Isobar does not need. With CMAKE_UNITY_BUILD its sources are compiled as one, so names in unnamed
# namespaces are unique in a library. PRECOMPILED: whose precompiled headers it takes, isobar_standard if none is named,
# its own if that is NONE.
# isobar_rows(TARGET TABLE PATTERN ROW FILE): makes a file of initializers, which the target may include, of the lines of a
# CSV file that match the pattern, each replaced by ROW: #include "generated/FILE".
# isobar_text(TARGET TEXT FILE): makes a string literal of a text file, which the target may include: #include
# "generated/FILE".
# isobar_unite(TARGET): with CMAKE_UNITY_BUILD, compiles all sources of a target as one.
# isobar_settings(TARGET): the compile settings of all our targets; there are no global flags.
# isobar_precompile(TARGET HEADER... | REUSE_FROM OTHER): compiles headers once for all sources of a target, or takes those
# of another target with the same settings. A source still includes what it uses: preset core-only and clang-tidy
# precompile nothing.
# isobar_precompiled(TARGET LINK ... HEADERS ... [OPTIONS ...]): a target that only compiles headers, for others to take
# that have the same options.

function(isobar_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  if(ISOBAR_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${ISOBAR_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${ISOBAR_SANITIZE})
  endif()
  if(ISOBAR_NO_SANITIZE)
    target_compile_options(${target} PUBLIC -fno-sanitize=${ISOBAR_NO_SANITIZE})
  endif()
endfunction()

function(isobar_precompile target)
  if(ARGV1 STREQUAL "REUSE_FROM")
    target_precompile_headers(${target} ${ARGN})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # ccache needs it
endfunction()

function(isobar_precompiled target)
  cmake_parse_arguments(PARSE_ARGV 1 precompiled "" "" "LINK;HEADERS;OPTIONS")
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/empty.cpp CONTENT "")
  add_library(${target} OBJECT ${PROJECT_BINARY_DIR}/generated/empty.cpp)
  isobar_settings(${target})
  target_compile_options(${target} PRIVATE ${precompiled_OPTIONS})
  target_link_libraries(${target} PRIVATE ${precompiled_LINK})
  isobar_precompile(${target} ${precompiled_HEADERS})
endfunction()

# What most sources include.
set(isobar_standard_headers
    <algorithm> <array> <charconv> <cmath> <cstddef> <cstdint> <deque> <filesystem> <functional> <limits> <map> <memory>
    <numeric> <optional> <set> <span> <stdexcept> <string> <string_view> <tuple> <unordered_map> <utility> <variant>
    <vector> <fmt/format.h> <fmt/ranges.h>)
find_package(fmt REQUIRED)
isobar_precompiled(isobar_standard LINK fmt::fmt HEADERS ${isobar_standard_headers})

function(isobar_unite target)
  if(CMAKE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE 0)
    # These warn of types that only one source uses, since that source is included here, and of local names that another
    # source has in its unnamed namespace. Preset core-only, which unites nothing, still warns of shadowed names.
    target_compile_options(${target} PRIVATE
                           "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage;-Wno-shadow>")
  endif()
endfunction()

function(isobar_module name)
  cmake_parse_arguments(PARSE_ARGV 1 module "" "PRECOMPILED" "SOURCES;PUBLIC;PRIVATE;HEADERS")
  if(module_SOURCES)
    add_library(isobar_${name} STATIC ${module_SOURCES})
    isobar_settings(isobar_${name})
    isobar_unite(isobar_${name})
    if(NOT module_PRECOMPILED)
      isobar_precompile(isobar_${name} REUSE_FROM isobar_standard)
    elseif(NOT module_PRECOMPILED STREQUAL NONE)
      isobar_precompile(isobar_${name} REUSE_FROM ${module_PRECOMPILED})
    endif()
    target_link_libraries(isobar_${name} PUBLIC ${module_PUBLIC}
                          PRIVATE ${module_PRIVATE} "$<BUILD_INTERFACE:${module_HEADERS}>")
  else()
    add_library(isobar_${name} INTERFACE)
    target_link_libraries(isobar_${name} INTERFACE ${module_PUBLIC})
  endif()
  add_library(isobar::${name} ALIAS isobar_${name})
  set_target_properties(isobar_${name} PROPERTIES EXPORT_NAME ${name})
  string(REGEX MATCH "^[a-z]+" component ${name})
  if(component IN_LIST ISOBAR_COMPONENTS)
    install(TARGETS isobar_${name} EXPORT isobar_${component} COMPONENT ${component}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  endif()
endfunction()

function(isobar_rows target table pattern row file)
  file(STRINGS "${table}" rows REGEX "${pattern}")
  if(NOT rows)
    message(FATAL_ERROR "${table}: no line matches ${pattern}")
  endif()
  list(TRANSFORM rows REPLACE "${pattern}" "${row}")
  list(JOIN rows "\n" text)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/${file}" CONTENT "${text}\n" @ONLY)
  target_include_directories(${target} PRIVATE "${PROJECT_BINARY_DIR}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${table}")
endfunction()

function(isobar_text target text file)
  file(READ "${text}" content)
  if(content MATCHES "\\)isobar\"")
    message(FATAL_ERROR "${text}: has )isobar\", which ends a string literal")
  endif()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/${file}" CONTENT "R\"isobar(@content@)isobar\"\n" @ONLY)
  target_include_directories(${target} PRIVATE "${PROJECT_BINARY_DIR}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${text}")
endfunction()

# Test programs' own code computes little, and takes half the time to compile so. The libraries keep their optimization.
set(isobar_test_options -Og)

# Seconds after which a test has hung. Several times what the slowest one takes on a busy machine.
set(isobar_test_timeout 1800)

# isobar_tests(NAME SOURCES ... LINK ... [SLOW PATTERN...] [WAITING PATTERN...] [QUICK PATTERN...] [PRECOMPILED TARGET]): the
# test program of a folder. Each test runs in its own process, since SimGrid's clock is global. The label of a test is the
# folder's name after a kind: `slow` for patterns of SLOW, which compute for long and are left out under sanitizers in CI;
# `waiting` for those of WAITING, which wait for clocks; `quick` for all others, which `./test quick` runs. With QUICK only
# those that match it are quick, and the others have no kind. PRECOMPILED: as for a module, isobar_testing if none is named.
function(isobar_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 tests "" "PRECOMPILED" "SOURCES;LINK;SLOW;WAITING;QUICK")
  add_executable(isobar_${name}_tests ${tests_SOURCES})
  isobar_settings(isobar_${name}_tests)
  target_compile_options(isobar_${name}_tests PRIVATE ${isobar_test_options})
  set_target_properties(isobar_${name}_tests PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  target_link_libraries(isobar_${name}_tests PRIVATE ${tests_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(isobar_${name}_tests PRIVATE ISOBAR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(NOT tests_PRECOMPILED)
    set(tests_PRECOMPILED isobar_testing)
  endif()
  isobar_precompile(isobar_${name}_tests REUSE_FROM ${tests_PRECOMPILED})
  list(JOIN tests_QUICK ":" quick)
  list(JOIN tests_SLOW ":" slow)
  list(JOIN tests_WAITING ":" waiting)
  if(quick)
    isobar_discover_tests(${name} "${quick}" quick.)
    isobar_discover_tests(${name} "-${quick}" "")
    return()
  endif()
  if(slow)
    isobar_discover_tests(${name} "${slow}" slow.)
  endif()
  if(waiting)
    isobar_discover_tests(${name} "${waiting}" waiting.)
  endif()
  isobar_discover_tests(${name} "-${slow}:${waiting}" quick.)
endfunction()

# One label, since gtest_discover_tests takes a list of labels apart: "quick.core" is found as quick and as core.
function(isobar_discover_tests name filter kind)
  gtest_discover_tests(isobar_${name}_tests TEST_PREFIX "${name}." TEST_FILTER "${filter}" DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS ${kind}${name} TIMEOUT ${isobar_test_timeout}
                       ENVIRONMENT TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:die_after_fork=0)
endfunction()
