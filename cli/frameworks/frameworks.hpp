#pragma once

#include "allocators/plan_rules.hpp"
#include "cli/frameworks/conversion.hpp"
#include "core/model/workload.hpp"
#include "core/order/schedule_choice.hpp"

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace isobar::cli {

/// The frameworks that plans are converted for, sorted.
std::vector<std::string> framework_names();

/// Adds --for to a command that searches.
void add_framework(CLI::App& command, std::string& framework);

/// A plan with stages as one of them takes it. The workload and the cluster are the plan's.
Conversion convert_to(const std::string& framework, const Plan& plan, const Workload& workload, const Cluster& cluster);

/// What a framework takes of plans of a workload. @throws InputError from `option` for a workload that it does not
/// have.
allocators::PlanRules rules_of(const std::string& framework, const Workload& workload, const std::string& option);

/// Whether a framework has a schedule, for some plans.
bool has_schedule(const std::string& framework, const ScheduleChoice& schedule);

/// Checks that a framework has a schedule, and that an allocator may make plans that it takes, with stages that pass
/// through their devices or without. @throws InputError from `option`, which names the framework.
void require_framework(const std::string& framework, const std::string& allocator, const ScheduleChoice& schedule,
                       bool offloads, const std::string& option);

}  // namespace isobar::cli
