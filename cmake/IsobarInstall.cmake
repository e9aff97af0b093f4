# Installs the commands, the libraries with their public headers, platforms, workloads and examples. A project then
# writes find_package(isobar COMPONENTS allocators sim) and links isobar::allocators, isobar::sim.

# Public headers, included as <isobar/core/units.hpp>. Every other header may change without notice.
set(ISOBAR_PUBLIC_HEADERS
    allocators/allocator.hpp
    allocators/external.hpp
    allocators/registry.hpp
    allocators/plan_rules.hpp
    allocators/share_rule.hpp
    core/base/child_process.hpp
    core/base/clock.hpp
    core/base/files.hpp
    core/base/interrupt.hpp
    core/certificates/certificate_checker.hpp
    core/check/plan_checker.hpp
    core/check/played_checker.hpp
    core/check/program_checker.hpp
    core/cluster/cluster.hpp
    core/cluster/device_types.hpp
    core/compute/as_trained.hpp
    core/compute/device_constants.hpp
    core/compute/known_pairs.hpp
    core/compute/prediction_interval.hpp
    core/costs/cost_model.hpp
    core/costs/layer_times.hpp
    core/costs/nominal_rates.hpp
    core/costs/step_recurrence.hpp
    core/errors.hpp
    core/failure.hpp
    core/jobs/mix.hpp
    core/model/decoder/decoder_sizes.hpp
    core/model/dtype.hpp
    core/model/product_recipe.hpp
    core/model/framework.hpp
    core/model/model_sizes.hpp
    core/model/routing.hpp
    core/model/sharding.hpp
    core/model/training.hpp
    core/model/workload.hpp
    core/order/order.hpp
    core/order/schedule_choice.hpp
    core/plan/certificate.hpp
    core/plan/plan.hpp
    core/plan/shard_grid.hpp
    core/plan/sharding.hpp
    core/plan/step_interval.hpp
    core/program/chrome_trace.hpp
    core/program/collective.hpp
    core/program/player.hpp
    core/program/program.hpp
    core/program/residence.hpp
    core/program/round_time.hpp
    core/program/shard_role.hpp
    core/program/trace.hpp
    core/shared_link.hpp
    core/spmd/device_rates.hpp
    core/spmd/moe_sizes.hpp
    core/text/document.hpp
    core/text/quantity_text.hpp
    core/transfer_times.hpp
    core/units.hpp
    results/comparison.hpp
    results/device_count.hpp
    results/explanation.hpp
    results/result.hpp
    results/table.hpp
    results/trace/trace_file.hpp
    schedules/lowering/order_picture.hpp
    schedules/lowering/schedule.hpp
    schedules/orders/listed.hpp
    schedules/orders/order_csv.hpp
    schedules/orders/schedule.hpp)
if(ISOBAR_BUILD_SIM)
  list(APPEND ISOBAR_PUBLIC_HEADERS
       sim/generate/device_groups.hpp
       sim/generate/platform_generator.hpp
       sim/platform/platform.hpp
       sim/play/simulation.hpp)
endif()

# Sources include headers by their path from the root; installed headers include each other as <isobar/…>.
set(script ${CMAKE_CURRENT_BINARY_DIR}/install_headers.cmake)
set(include_folder "${CMAKE_INSTALL_INCLUDEDIR}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(include_folder "\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
file(CONFIGURE OUTPUT ${script} @ONLY CONTENT [[
foreach(header @ISOBAR_PUBLIC_HEADERS@)
  file(READ "@PROJECT_SOURCE_DIR@/${header}" text)
  string(REGEX REPLACE "#include \"([^\"]+)\"" "#include <isobar/\\1>" text "${text}")
  set(rewritten "@CMAKE_CURRENT_BINARY_DIR@/installed_headers/${header}")
  if(EXISTS "${rewritten}")
    file(READ "${rewritten}" before)
  else()
    set(before)
  endif()
  if(NOT before STREQUAL text)
    file(WRITE "${rewritten}" "${text}")
  endif()
  cmake_path(GET header PARENT_PATH folder)
  file(INSTALL DESTINATION "@include_folder@/isobar/${folder}" TYPE FILE FILES "${rewritten}")
endforeach()
]])
install(SCRIPT ${script} COMPONENT core)

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
