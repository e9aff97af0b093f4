# isobar_module(NAME SOURCES ... PUBLIC ... PRIVATE ...): the library of a room or of a folder, isobar::NAME. Without
# sources it stands for what it links.
# isobar_settings(TARGET): what every target of ours is compiled with; no global flags.
# isobar_precompile(TARGET HEADER...): compiles the headers once for all of a target's sources.

function(isobar_settings target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  if(ISOBAR_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${ISOBAR_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${ISOBAR_SANITIZE})
  endif()
endfunction()

function(isobar_precompile target)
  target_precompile_headers(${target} PRIVATE ${ARGN})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # ccache needs it
endfunction()

function(isobar_module name)
  cmake_parse_arguments(PARSE_ARGV 1 module "" "" "SOURCES;PUBLIC;PRIVATE")
  if(module_SOURCES)
    add_library(isobar_${name} STATIC ${module_SOURCES})
    isobar_settings(isobar_${name})
    target_link_libraries(isobar_${name} PUBLIC ${module_PUBLIC} PRIVATE ${module_PRIVATE})
  else()
    add_library(isobar_${name} INTERFACE)
    target_link_libraries(isobar_${name} INTERFACE ${module_PUBLIC})
  endif()
  add_library(isobar::${name} ALIAS isobar_${name})
  install(TARGETS isobar_${name})
endfunction()

# isobar_tests(NAME SOURCES ... LINK ...): one test program of a folder; each test is a process of its own, since SimGrid's clock is global.
function(isobar_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 tests "" "" "SOURCES;LINK")
  add_executable(isobar_${name}_tests ${tests_SOURCES})
  isobar_settings(isobar_${name}_tests)
  target_link_libraries(isobar_${name}_tests PRIVATE ${tests_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(isobar_${name}_tests PRIVATE ISOBAR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(isobar_${name}_tests TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS ${name} TIMEOUT 300
                       ENVIRONMENT TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:die_after_fork=0)
endfunction()
