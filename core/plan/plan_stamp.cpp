#include "core/errors.hpp"
#include "core/plan/plan.hpp"

#include <fmt/format.h>

namespace isobar {

std::vector<std::string> faults_of_stamp(const Plan& plan, const std::string& workload_hash, const std::string& version)
{
  if (!plan.stamp) return {"has no stamp"};
  std::vector<std::string> faults;
  const auto compare = [&faults](const char* what, const std::string& stamped, const std::string& actual) {
    if (stamped == actual) return;
    faults.push_back(
        fmt::format("stamp.{0}: made for a {0} with hash {1}; this one has {2}: simulate it again with "
                    "--stamp",
                    what, shown(stamped), actual));
  };
  // No platform is given here, but the plan names its own.
  if (plan.stamp->platform_hash != plan.platform.hash) {
    faults.push_back(
        fmt::format("stamp.platform: made on a platform with hash {}; the plan's, {}, has {}: simulate it "
                    "there with --stamp",
                    shown(plan.stamp->platform_hash), shown(plan.platform.name), shown(plan.platform.hash)));
  }
  compare("plan", plan.stamp->plan_hash, hash_of(plan));
  compare("workload", plan.stamp->workload_hash, workload_hash);
  if (plan.stamp->version != version) {
    faults.push_back(fmt::format("stamp.version: made by isobar {}; this is {}: simulate it again with --stamp",
                                 shown(plan.stamp->version), version));
  }
  return faults;
}

}  // namespace isobar
