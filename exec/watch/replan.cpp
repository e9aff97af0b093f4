#include "exec/watch/replan.hpp"

#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "exec/watch/rank_failures.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <string_view>
#include <utility>

namespace isobar::exec {

namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& text)
{
  return text.substr(0, text.find('\n'));
}

std::string last_line(std::string text)
{
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

/// Runs isobar. Returns why it failed, with the part of its standard output that `explanation` selects; "" on success.
std::string fault_of_isobar(const std::vector<std::string>& arguments,
                            const std::function<std::string(const std::string& output)>& explanation)
{
  constexpr std::size_t longest = 300;
  const ChildResult result = run_isobar_program(arguments);
  if (!result.failure) return "";
  const auto details = explanation(result.output);
  return fmt::format("isobar {} {}{}{}", arguments[0], result.failure->text, details.empty() ? "" : ": ",
                     shown(details, longest));
}

void run_isobar(const std::vector<std::string>& arguments, const Failure& failure)
{
  const auto fault = fault_of_isobar(arguments, last_line);
  if (!fault.empty()) throw EnvironmentError(fmt::format("{}; {}", failure.text, fault));
}

/// "plan-2.json" where plan.json exists, and so on.
std::string free_name(const fs::path& file)
{
  fs::path name = file;
  std::error_code unknown;
  for (int number = 2; fs::exists(name, unknown); ++number) {
    name = file.parent_path() / fmt::format("{}-{}{}", file.stem().string(), number, file.extension().string());
  }
  return name.string();
}

/// The schedule for fewer devices: numbers by device are chosen again.
std::string schedule_for_others(const ScheduleChoice& given)
{
  ScheduleChoice schedule = given;
  for (auto& [key, numbers] : schedule.numbers) {
    if (numbers.size() > 1) numbers.clear();
  }
  return text_of(schedule);
}

std::vector<std::string> with_profile(std::vector<std::string> arguments, const Plan& plan)
{
  if (plan.profile) arguments.insert(arguments.end(), {"--profile", plan.profile->name});
  return arguments;
}

}  // namespace

ChildResult run_isobar_program(std::vector<std::string> arguments)
{
  constexpr Seconds no_limit(1e9);
  std::error_code unknown;
  const auto neighbor = fs::read_symlink("/proc/self/exe", unknown).parent_path() / "isobar";
  arguments.insert(arguments.begin(), fs::exists(neighbor, unknown) ? neighbor.string() : "isobar");
  return run_command(arguments, "", no_limit);
}

std::vector<std::string> replan_arguments(const Plan& plan, const std::string& device, const ReplanInputs& inputs,
                                          const std::string& output)
{
  std::vector<std::string> without;
  for (const auto& name : plan.without) without.push_back(in_list(name));
  without.push_back(in_list(device));
  std::vector<std::string> arguments = {"plan",
                                        inputs.platform,
                                        inputs.workload,
                                        "--allocator",
                                        plan.allocator,
                                        "--objective",
                                        std::string(name_of(plan.goal.objective)),
                                        "--communication",
                                        std::string(name_of(plan.goal.communication)),
                                        "--schedule",
                                        schedule_for_others(plan.goal.schedule),
                                        "--microbatches",
                                        std::to_string(whole_microbatches(plan)),
                                        "--without",
                                        fmt::format("{}", fmt::join(without, ",")),
                                        "--output",
                                        output};
  for (const auto& [key, value] : plan.workload.set) arguments.insert(arguments.end(), {"--set", key + "=" + value});
  if (!plan.recompute.empty()) {
    arguments.insert(arguments.end(), {"--recompute", fmt::format("{}", fmt::join(plan.recompute, ","))});
  }
  return with_profile(std::move(arguments), plan);
}

std::string replanned_file(const std::string& plan_file, const Plan& plan)
{
  const fs::path file(plan_file);
  std::string stem = file.stem().string();
  const std::string before = fmt::format(".without-{}", plan.without.size());
  if (stem.ends_with(before)) stem.resize(stem.size() - before.size());
  return (file.parent_path() / fmt::format("{}.without-{}{}", stem, plan.without.size() + 1, file.extension().string()))
      .string();
}

void check_replan(const std::string& plan_file, const ReplanInputs& inputs)
{
  const Plan plan = read_plan(plan_file);
  if (plan.goal.schedule.name == "listed") {
    throw InputError("--replan", fmt::format("{} has schedule listed, and no allocator makes its orders for fewer "
                                             "devices; leave --replan out, or run a plan of another schedule, such as "
                                             "1f1b or greedy",
                                             on_one_line(plan_file)));
  }
  read_file(inputs.platform);
  const auto fault =
      fault_of_isobar(with_profile({"verify", inputs.platform, inputs.workload, plan_file}, plan), first_line);
  if (!fault.empty()) throw InputError("--replan", "the plan cannot be made again for this platform: " + fault);
}

std::string replan(const std::string& plan_file, const ReplanInputs& inputs, const Failure& failure)
{
  const Plan plan = read_plan(plan_file);
  const auto refuse = [&](const std::string& why) {
    return EnvironmentError(fmt::format("{}; {}", failure.text, why));
  };
  const auto devices = devices_of(plan);
  const auto rank = rank_lost(failure);
  if (!rank || *rank >= devices.size()) throw refuse("no device is known to be lost, so none can be left out");
  if (devices.size() == 1) throw refuse("it is the only device, so it cannot be left out");
  const std::string& device = devices[*rank];
  std::string output = free_name(replanned_file(plan_file, plan));
  run_isobar(replan_arguments(plan, device, inputs, output), failure);
  run_isobar(with_profile({"simulate", inputs.platform, inputs.workload, "--plan", output, "--stamp"}, plan), failure);
  return output;
}

}  // namespace isobar::exec
