// A user-defined schedule, kFkB: 1F1B with groups of k micro-batches in place of single ones. Compares it with 1f1b on
// one placement: own_schedule PLATFORM.xml WORKLOAD.yaml
//
// Isobar makes a program of the orders, and checks, predicts and simulates it, as for its own schedules. SimGrid has
// one clock per process, so each schedule is simulated in a child process.
#include <isobar/allocators/registry.hpp>
#include <isobar/core/base/child_process.hpp>
#include <isobar/core/check/program_checker.hpp>
#include <isobar/core/costs/nominal_rates.hpp>
#include <isobar/core/errors.hpp>
#include <isobar/core/model/workload.hpp>
#include <isobar/core/program/player.hpp>
#include <isobar/schedules/lowering/schedule.hpp>
#include <isobar/schedules/orders/listed.hpp>
#include <isobar/schedules/orders/schedule.hpp>
#include <isobar/sim/platform/platform.hpp>
#include <isobar/sim/play/simulation.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

using isobar::Opcode;
using isobar::Order;
using isobar::Run;
using isobar::ScheduleChoice;
using isobar::schedules::PipelineShape;
using isobar::schedules::Schedule;

/// While one micro-batch of a group travels between devices, they compute the others. Up to k times as many
/// micro-batches are in flight as under 1F1B. O(k) slots a rank.
std::vector<Order> kfkb_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  const auto given = choice.numbers.find("k");
  const std::uint64_t k = given == choice.numbers.end() ? 2 : given->second.front();
  if (k == 0 || shape.microbatches % k != 0) {
    throw isobar::InputError("schedule", "k is " + std::to_string(k) + "; use a divisor of the " +
                                             std::to_string(shape.microbatches) + " micro-batches");
  }
  const std::uint64_t groups = shape.microbatches / k;
  // A slot for each micro-batch of a group; each repetition of a run takes the next group.
  const auto add_group = [k](Run& run, Opcode opcode, std::uint64_t group) {
    for (std::uint64_t i = 0; i < k; ++i) {
      run.slots.push_back({{opcode, 0, group * k + i}, static_cast<std::int64_t>(k)});
    }
  };
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    const std::uint64_t warm_up = std::min<std::uint64_t>(groups, shape.ranks() - 1 - rank);
    std::vector<Run> runs = {{warm_up, {}}, {groups - warm_up, {}}, {warm_up, {}}};
    add_group(runs[0], Opcode::Forward, 0);
    add_group(runs[1], Opcode::Forward, warm_up);
    add_group(runs[1], Opcode::Backward, 0);
    add_group(runs[2], Opcode::Backward, groups - warm_up);
    orders.emplace_back(std::move(runs));
  }
  return orders;
}

constexpr Schedule kfkb = {
    .name = "kfkb",
    .summary = "1f1b with groups of k micro-batches, for slow links",
    .source = "Wang et al., Ada-Grouper (arXiv 2303.01675), 2023",
    .numbers = {"k"},
    .make_orders = kfkb_orders,
};

void refuse(const std::vector<std::string>& faults)
{
  if (!faults.empty()) throw isobar::InputError(faults);
}

/// One line: the step of a placement under a schedule, as predicted and as simulated, and how full its fullest device
/// is.
std::string judged(const Schedule& schedule, const ScheduleChoice& choice, const std::string& platform_file,
                   const std::string& workload_file)
{
  const auto platform = isobar::sim::Platform::load(platform_file);
  const auto& cluster = platform.cluster();
  const auto workload = isobar::read_workload(workload_file);
  const auto goal = isobar::Goal::with_defaults(isobar::Objective::Step);
  const auto plan = isobar::allocators::allocate("even", workload, cluster, goal, {});
  if (plan.stages.empty()) return text_of(choice) + ": " + plan.reason + "\n";

  const auto shape = isobar::schedules::shape_of(plan);
  const auto orders = schedule.orders(shape, choice);
  refuse(isobar::schedules::faults_of_orders(shape, orders));
  const auto program = isobar::schedules::make_program(plan, workload, cluster, orders);
  refuse(isobar::faults_of(*program));
  const auto played = isobar::play_program(*program, isobar::nominal_rates(plan, cluster));
  const auto ranks = isobar::sim::rank_hosts(plan, cluster);
  const auto report = isobar::sim::simulate(platform, *program, ranks, 1, nullptr);

  constexpr auto tier = static_cast<std::size_t>(isobar::Tier::Device);
  double fullest = 0;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    const auto& device = cluster.devices[*cluster.device_index(shape.devices[rank])];
    fullest = std::max(fullest, played.peak_memory[rank][tier] / device.memory);
  }
  char line[160];
  std::snprintf(line, sizeof line, "%-10s predicted %.3f s, simulated %.3f s, fullest device %3.0f %%\n",
                text_of(choice).c_str(), played.periods[0].step_time.value, report.step_times[0].value, 100 * fullest);
  return line;
}

}  // namespace

int main(int argc, char** argv)
{
  if (argc != 3) {
    std::fprintf(stderr, "usage: own_schedule PLATFORM.xml WORKLOAD.yaml\n");
    return 2;
  }
  try {
    const auto compare = [&](const Schedule& schedule, const ScheduleChoice& choice) {
      const auto work = [&] { return judged(schedule, choice, argv[1], argv[2]); };
      constexpr isobar::Seconds limit(60);
      std::fputs(isobar::run_in_child(work, limit).output_or_throw().c_str(), stdout);
    };
    compare(isobar::schedules::require_schedule("1f1b"), {"1f1b"});
    for (const std::uint64_t k : {2, 4}) compare(kfkb, {"kfkb", {{"k", {k}}}});
    return 0;
  } catch (const isobar::InputError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
