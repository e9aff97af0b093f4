#include "core/errors.hpp"
#include "schedules/orders/gpipe.hpp"
#include "schedules/orders/interleaved.hpp"
#include "schedules/orders/list_scheduler.hpp"
#include "schedules/orders/listed.hpp"
#include "schedules/orders/one_forward_one_backward.hpp"
#include "schedules/orders/schedule.hpp"
#include "schedules/orders/sequential.hpp"
#include "schedules/orders/zero_bubble.hpp"
#include "schedules/orders/zero_bubble_v.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace isobar::schedules {

const std::vector<Schedule>& schedules()
{
  static const std::vector<Schedule> all = {
      one_forward_one_backward_schedule,
      gpipe_schedule,
      greedy_schedule,
      interleaved_schedule,
      listed_schedule,
      sequential_schedule,
      zero_bubble_h1_schedule,
      zero_bubble_h2_schedule,
      zero_bubble_v_schedule,
  };
  return all;
}

const Schedule* find_schedule(std::string_view name)
{
  const auto& all = schedules();
  const auto schedule = std::find_if(all.begin(), all.end(), [&](const Schedule& known) { return known.name == name; });
  return schedule == all.end() ? nullptr : &*schedule;
}

const Schedule& require_schedule(std::string_view name)
{
  const Schedule* schedule = find_schedule(name);
  if (schedule != nullptr) return *schedule;
  std::vector<std::string> names;
  for (const auto& known : schedules()) names.emplace_back(known.name);
  const std::string nearest = nearest_word(std::string(name), names);
  throw InputError("schedule", fmt::format("{} is not known; {}", in_quotes(name),
                                           nearest.empty() ? fmt::format("use {}", fmt::join(names, ", "))
                                                           : fmt::format("did you mean {}?", nearest)));
}

}  // namespace isobar::schedules
