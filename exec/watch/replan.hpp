#pragma once

#include "core/base/child_process.hpp"
#include "core/failure.hpp"
#include "core/plan/plan.hpp"

#include <string>
#include <vector>

namespace isobar::exec {

/// Runs the program isobar with arguments: the one next to this program, else the one on the PATH.
ChildResult run_isobar_program(std::vector<std::string> arguments);

/// Inputs for making a plan again, by the program isobar.
struct ReplanInputs {
  std::string platform;  ///< file of the platform for which the plan was made
  std::string workload;  ///< file
};

/// Arguments of `isobar plan` that make `plan` again without one more device. What a plan does not record (budget,
/// seed, time limit) has its default.
std::vector<std::string> replan_arguments(const Plan& plan, const std::string& device, const ReplanInputs& inputs,
                                          const std::string& output);

/// File of the plan without one more device: "plan.without-1.json" next to plan.json, then "plan.without-2.json".
std::string replanned_file(const std::string& plan_file, const Plan& plan);

/// Checks before a run that `replan` will be able to plan.
/// @throws EnvironmentError when isobar is missing; InputError when the plan was made for another platform, and for
/// schedule listed, whose orders only a user can write.
void check_replan(const std::string& plan_file, const ReplanInputs& inputs);

/// Plans again without the rank that is lost by `failure` (rank_lost), simulates the new plan and stamps it.
/// @returns the new plan's file; where replanned_file exists already, "plan.without-1-2.json" and so on.
/// @throws EnvironmentError with `failure` and why no device can be left out: the failure loses no stage's rank, the
/// stage is the only one, or there is no plan without it.
std::string replan(const std::string& plan_file, const ReplanInputs& inputs, const Failure& failure);

}  // namespace isobar::exec
