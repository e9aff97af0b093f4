// A user-defined allocator: gives each device layers in proportion to its speed, in the order of the platform file.
// own_allocator PLATFORM.xml WORKLOAD.yaml
//
// As for its own allocators, Isobar adds the prediction, the best bound that it can prove, and the check of the plan.
#include <isobar/allocators/registry.hpp>
#include <isobar/core/errors.hpp>
#include <isobar/core/model/workload.hpp>
#include <isobar/sim/platform/platform.hpp>

#include <cstdio>
#include <exception>

namespace {

using isobar::allocators::Placement;
using isobar::allocators::Problem;

/// Gives each device a share of the layers equal to its share of the speed. Ignores transfers and memory.
/// O(layers + devices).
Placement place_in_proportion(const Problem& problem)
{
  const auto& cost = problem.cost;
  const std::size_t layers = cost.workload().layers.size();
  const std::size_t devices = cost.cluster().devices.size();
  double all = 0;
  for (std::size_t device = 0; device < devices; ++device) all += cost.speed(device).value;

  Placement placement;
  double so_far = 0;
  std::size_t first = 0;
  for (std::size_t device = 0; device < devices && first < layers; ++device) {
    so_far += cost.speed(device).value;
    const auto end =
        device + 1 == devices ? layers : static_cast<std::size_t>(so_far / all * static_cast<double>(layers));
    if (end <= first) continue;
    placement.stages.push_back({device, first, end - 1});
    first = end;
  }
  return placement;
}

constexpr isobar::allocators::Allocator in_proportion = {
    .name = "in-proportion",
    .problem = "layers in proportion to speed",
    .guarantee = "none",
    .cost = "O(L + D)",
    .source = "this example",
    .place = place_in_proportion,
};

}  // namespace

int main(int argc, char** argv)
{
  if (argc != 3) {
    std::fprintf(stderr, "usage: own_allocator PLATFORM.xml WORKLOAD.yaml\n");
    return 2;
  }
  try {
    const auto platform = isobar::sim::Platform::load(argv[1]);
    const auto workload = isobar::read_workload(argv[2]);
    const auto goal = isobar::Goal::with_defaults(isobar::Objective::Step);
    const auto plan = isobar::allocators::allocate(in_proportion, workload, platform.cluster(), goal, {});
    for (const auto& stage : plan.stages) {
      std::printf("%-8s layers %3zu to %3zu\n", stage.device().c_str(), stage.first_layer, stage.last_layer);
    }
    std::printf("step %.3f s, no chain below %.3f s\n", plan.predicted->step_time.value, plan.objective_bound->value);
    return 0;
  } catch (const isobar::InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
