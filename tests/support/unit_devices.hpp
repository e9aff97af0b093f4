#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/order/order.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "schedules/evaluation.hpp"
#include "schedules/lowering/schedule.hpp"

#include <memory>
#include <utility>
#include <vector>

/// Programs on equal devices.
namespace isobar::testing_support {

/// The devices of a plan, of one speed, in a machine each, which updates at that speed.
inline Cluster devices_at(FlopsPerSecond speed, const Plan& plan)
{
  Cluster cluster;
  for (const auto& name : devices_of(plan)) {
    Device& device = cluster.devices.emplace_back();
    device.name = name;
    device.speed = speed;
    device.machine = MachineLink{.machine = cluster.machines.size(), .in = {}, .out = {}};
    Machine& machine = cluster.machines.emplace_back();
    machine.update_speed = machine.busy_update_speed = speed;
  }
  return cluster;
}

inline std::unique_ptr<Program> program_at(FlopsPerSecond speed, const Plan& plan, const Workload& workload)
{
  return schedules::make_program(plan, workload, devices_at(speed, plan));
}

/// The times of unit programs in seconds are their layers' FLOPs.
inline std::unique_ptr<Program> unit_program(const Plan& plan, const Workload& workload)
{
  return program_at(FlopsPerSecond(1), plan, workload);
}
inline std::unique_ptr<Program> unit_program(const Plan& plan, const Workload& workload, std::vector<Order> orders)
{
  return schedules::make_program(plan, workload, devices_at(FlopsPerSecond(1), plan), std::move(orders));
}
inline std::unique_ptr<Program> unit_evaluation(const Plan& plan, const Workload& workload)
{
  return schedules::make_evaluation_program(plan, workload, devices_at(FlopsPerSecond(1), plan));
}

}  // namespace isobar::testing_support
