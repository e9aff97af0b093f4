#pragma once

#include "core/failure.hpp"
#include "core/plan/plan.hpp"

#include <string>
#include <vector>

namespace isobar::exec {

/// What a plan is made anew from, by the program isobar beside this one, else one on the PATH.
struct ReplanInputs {
  std::string platform;  ///< file of the platform that the plan was made for
  std::string workload;  ///< file
};

/// The arguments of `isobar plan` that ask for `plan` again without one more device. What a plan does not record
/// (budget, seed, time limit) is as by default.
std::vector<std::string> replan_arguments(const Plan& plan, const std::string& device, const ReplanInputs& inputs,
                                          const std::string& output);

/// Where the plan without one more device lies: "plan.without-1.json" beside plan.json, then "plan.without-2.json".
std::string replanned_file(const std::string& plan_file, const Plan& plan);

/// Finds out before a run what would keep `replan` from planning: isobar that is not there, or a platform that is not
/// the one that the plan was made for. @throws EnvironmentError for the former, InputError for the latter.
void check_replan(const std::string& plan_file, const ReplanInputs& inputs);

/// Plans again without the rank that is lost by `failure` (rank_lost), simulates the new plan and stamps it.
/// @returns the new plan's file; where replanned_file is there already, "plan.without-1-2.json" and so on. @throws
/// EnvironmentError, `failure` and why nothing can be left out: no stage's rank is lost by it, the stage is the only
/// one, or there is no plan without it.
std::string replan(const std::string& plan_file, const ReplanInputs& inputs, const Failure& failure);

}  // namespace isobar::exec
