# Installs the commands, the libraries with their public headers, platforms, workloads and examples. A project then
# writes find_package(isobar COMPONENTS allocators sim) and links isobar::allocators, isobar::sim.

# Public headers, included as <isobar/core/units.hpp>. Every other header may change without notice.
set(ISOBAR_PUBLIC_HEADERS
    allocators/allocator.hpp
    allocators/external.hpp
    allocators/registry.hpp
    core/base/child_process.hpp
    core/base/clock.hpp
    core/base/document.hpp
    core/base/files.hpp
    core/base/interrupt.hpp
    core/base/quantity_text.hpp
    core/check/certificate_checker.hpp
    core/check/plan_checker.hpp
    core/cluster/cluster.hpp
    core/errors.hpp
    core/failure.hpp
    core/model/dtype.hpp
    core/model/model_sizes.hpp
    core/model/workload.hpp
    core/plan/certificate.hpp
    core/plan/cost_model.hpp
    core/plan/device_count.hpp
    core/plan/plan.hpp
    core/plan/step_recurrence.hpp
    core/program/chrome_trace.hpp
    core/program/program.hpp
    core/program/trace.hpp
    core/units.hpp
    results/comparison.hpp
    results/explanation.hpp
    results/result.hpp
    results/table.hpp
    results/trace/trace_file.hpp
    schedules/lowering/schedule.hpp)
if(ISOBAR_BUILD_SIM)
  list(APPEND ISOBAR_PUBLIC_HEADERS
       sim/generate/device_types.hpp
       sim/generate/platform_generator.hpp
       sim/platform/platform.hpp
       sim/play/simulation.hpp)
endif()

# The sources include by the path from the root; installed headers must include each other as <isobar/...>.
set(headers ${CMAKE_CURRENT_BINARY_DIR}/install_headers.cmake)
file(CONFIGURE OUTPUT ${headers} @ONLY CONTENT [[
foreach(header @ISOBAR_PUBLIC_HEADERS@)
  set(installed "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/@CMAKE_INSTALL_INCLUDEDIR@/isobar/${header}")
  file(READ "@PROJECT_SOURCE_DIR@/${header}" text)
  string(REGEX REPLACE "#include \"([^\"]+)\"" "#include <isobar/\\1>" text "${text}")
  file(WRITE "${installed}" "${text}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${installed}")
endforeach()
]])
install(SCRIPT ${headers} COMPONENT core)

include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/isobar)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/isobarConfig.cmake.in isobarConfig.cmake
                              INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(isobarConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/isobarConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/isobarConfigVersion.cmake
        DESTINATION ${package} COMPONENT core)
foreach(component IN LISTS ISOBAR_COMPONENTS)
  install(EXPORT isobar_${component} NAMESPACE isobar:: FILE isobar-${component}.cmake DESTINATION ${package}
          COMPONENT ${component})
endforeach()

install(DIRECTORY platforms workloads examples DESTINATION ${CMAKE_INSTALL_DATADIR}/isobar)
