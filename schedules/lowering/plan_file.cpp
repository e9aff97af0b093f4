#include "schedules/lowering/plan_file.hpp"

#include "core/plan/plan_file.hpp"
#include "schedules/lowering/replicas.hpp"

namespace isobar::schedules {

Plan read_scheduled_plan(const std::filesystem::path& file)
{
  return read_plan(file, [](const Plan& plan) {
    if (!plan.stages.empty()) orders_of(plan);
  });
}

}  // namespace isobar::schedules
