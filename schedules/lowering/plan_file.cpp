#include "schedules/lowering/plan_file.hpp"

#include "core/plan/plan_file.hpp"
#include "schedules/orders/schedule.hpp"

namespace isobar::schedules {

Plan read_scheduled_plan(const std::filesystem::path& file)
{
  return read_plan(file, [](const Plan& plan) {
    if (plan.stages.empty()) return;
    const ScheduleChoice& choice = plan.goal.schedule;
    require_schedule(choice.name).orders(shape_of(plan), choice);
  });
}

}  // namespace isobar::schedules
