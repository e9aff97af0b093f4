// Plans a workload on a platform by two allocators, and simulates each plan: plan_and_simulate PLATFORM.xml
// WORKLOAD.yaml
//
// SimGrid has one clock per process, so each plan is simulated in a child process.
#include <isobar/allocators/registry.hpp>
#include <isobar/core/base/child_process.hpp>
#include <isobar/core/errors.hpp>
#include <isobar/core/model/workload.hpp>
#include <isobar/schedules/lowering/schedule.hpp>
#include <isobar/sim/platform/platform.hpp>
#include <isobar/sim/play/simulation.hpp>

#include <cstdio>
#include <exception>
#include <string>

namespace {

std::string planned_and_simulated(const std::string& allocator, const std::string& platform_file,
                                  const std::string& workload_file)
{
  const auto platform = isobar::sim::Platform::load(platform_file);
  const auto workload = isobar::read_workload(workload_file);
  const auto goal = isobar::Goal::with_defaults(isobar::Objective::Step);

  const auto plan = isobar::allocators::allocate(allocator, workload, platform.cluster(), goal, {.budget = 1000});
  if (plan.stages.empty()) return allocator + ": " + plan.reason + "\n";

  const auto program = isobar::schedules::make_program(plan, workload, platform.cluster());
  const auto ranks = isobar::sim::rank_hosts(plan, platform.cluster());
  const auto report = isobar::sim::simulate(platform, *program, ranks, 1, nullptr);

  char line[160];
  std::snprintf(line, sizeof line, "%-12s %2zu stages, predicted %.3f s, simulated %.3f s, bound %.3f s\n",
                allocator.c_str(), plan.stages.size(), plan.predicted->step_time.value, report.step_times[0].value,
                plan.objective_bound->value);
  return line;
}

}  // namespace

int main(int argc, char** argv)
{
  if (argc != 3) {
    std::fprintf(stderr, "usage: plan_and_simulate PLATFORM.xml WORKLOAD.yaml\n");
    return 2;
  }
  try {
    constexpr isobar::Seconds limit(60);
    for (const std::string allocator : {"even", "chain-dp"}) {
      const auto work = [&] { return planned_and_simulated(allocator, argv[1], argv[2]); };
      std::fputs(isobar::run_in_child(work, limit).output_or_throw().c_str(), stdout);
    }
    return 0;
  } catch (const isobar::InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
