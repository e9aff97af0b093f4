#include "schedules/orders/building_blocks.hpp"
#include "schedules/orders/divided_ends.hpp"
#include "schedules/orders/dualpipe_v.hpp"
#include "schedules/orders/duplex.hpp"
#include "schedules/orders/gpipe.hpp"
#include "schedules/orders/interleaved.hpp"
#include "schedules/orders/list_scheduler.hpp"
#include "schedules/orders/listed.hpp"
#include "schedules/orders/one_forward_one_backward.hpp"
#include "schedules/orders/schedule.hpp"
#include "schedules/orders/sequential.hpp"
#include "schedules/orders/zero_bubble.hpp"
#include "schedules/orders/zero_bubble_v.hpp"

#include <algorithm>

namespace isobar::schedules {

const std::vector<Schedule>& schedules()
{
  static const std::vector<Schedule> all = {
      one_forward_one_backward_schedule,
      interlaced_schedule,
      vocabulary_1_schedule,
      vocabulary_2_schedule,
      dualpipe_v_schedule,
      duplex_schedule,
      gpipe_schedule,
      greedy_schedule,
      interleaved_schedule,
      listed_schedule,
      sequential_schedule,
      v_half_schedule,
      v_min_schedule,
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

}  // namespace isobar::schedules
