#include "schedules/lowering/schedule.hpp"

#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "schedules/lowering/operator_program.hpp"
#include "schedules/lowering/pipeline_program.hpp"
#include "schedules/lowering/replicas.hpp"

#include <utility>

namespace isobar::schedules {

namespace {

void require_feasible(const Plan& plan)
{
  ensure(!plan.stages.empty() && plan.goal.microbatches > 0, "a program needs a feasible plan");
}

}  // namespace

std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  require_feasible(plan);
  return make_program(plan, workload, cluster, orders_of(plan));
}

std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                      std::vector<Order> orders)
{
  require_feasible(plan);
  if (divides_operators(plan)) return std::make_unique<OperatorProgram>(plan, workload, cluster, orders);
  return std::make_unique<PipelineProgram>(plan, workload, cluster, std::move(orders));
}

}  // namespace isobar::schedules
