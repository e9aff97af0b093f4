#pragma once

#include "core/order/order.hpp"
#include "core/units.hpp"
#include "schedules/orders/list_scheduler.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace isobar::testing_support {

/// Irregular orders, made for the times of some other pipeline.
inline std::map<std::string, Order> random_orders(std::mt19937_64& random, const std::vector<std::string>& devices,
                                                  std::uint64_t microbatches)
{
  const auto seconds = [&random] { return Seconds(std::uniform_real_distribution<double>(0.1, 2)(random)); };
  schedules::PipelineTimes times;
  times.microbatches = microbatches;
  times.splits_backward = random() % 2 == 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    times.devices.push_back({.forward = seconds(),
                             .backward_input = seconds(),
                             .backward_weight = seconds(),
                             .output = seconds(),
                             .gradient = seconds(),
                             .slots = microbatches});
  }
  const auto listed = schedules::list_schedule(times);
  std::map<std::string, Order> orders;
  for (std::size_t i = 0; i < devices.size(); ++i) orders[devices[i]] = listed.orders.at(i);
  return orders;
}

}  // namespace isobar::testing_support
