#include "allocators/plan_rules.hpp"

#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace isobar::allocators {

bool RuleCheck::takes(const Plan& plan, Seconds time)
{
  if (!rules_) return true;
  auto faults = rules_->faults(plan, workload_, cluster_);
  if (faults.empty()) return true;
  if (refused_ == 0 || time < least_time_) {
    least_time_ = time;
    faults_ = std::move(faults);
  }
  ++refused_;
  return false;
}

std::string RuleCheck::reason() const
{
  return fmt::format("{} takes none of {} that fit; the best one, of {}, has {}", rules_->software,
                     counted(refused_, "plan"), text_of(least_time_), fmt::join(faults_, "; and "));
}

std::string why_too_many_stages(const PlanRules& rules, std::size_t stages, std::size_t most)
{
  return fmt::format("{} are more than the {} that {} can begin in this model", counted(stages, "stage"), most,
                     rules.software);
}

}  // namespace isobar::allocators
