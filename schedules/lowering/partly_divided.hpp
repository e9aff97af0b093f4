#pragma once

#include "core/order/order.hpp"
#include "core/plan/plan.hpp"
#include "schedules/lowering/replicas.hpp"

#include <vector>

/// Plans whose devices divide some stages, and have others alone (is_partly_divided). Internal to schedules/lowering.
namespace isobar::schedules {

/// As orders_of. Each device has an order of its own. Neighbouring layers that the same devices divide are one stage,
/// unless one starts a chunk.
/// @throws InputError for stages with other replicas than the first, for replicas that exchange around a layer, for
/// stages that live elsewhere than on their devices, and as Schedule::orders does.
std::vector<Order> orders_of_partly_divided(const Plan& plan);

/// As first_pipeline_of.
OrderedPipeline first_partly_divided_pipeline(const Plan& plan);

}  // namespace isobar::schedules
