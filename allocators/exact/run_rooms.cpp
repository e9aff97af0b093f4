#include "allocators/exact/run_rooms.hpp"

#include "core/plan/certificate.hpp"

#include <algorithm>

namespace isobar::allocators {

namespace {

/// Most numbers in tables whose kinds are counted separately.
constexpr std::size_t most_numbers = 20'000'000;

}  // namespace

RunRooms::RunRooms(const StageTables& tables, std::size_t cells)
    : states_(tables.groups(), 1), step_(tables.kinds(), 0), radix_(tables.kinds(), 1)
{
  std::vector<std::size_t> devices(tables.groups(), 0);
  for (std::size_t kind = 0; kind < tables.kinds(); ++kind) {
    group_of_kind_.push_back(tables.group_of(kind));
    devices[tables.group_of(kind)] += tables.devices_of(kind).size();
  }
  if (tables.groups() > 1) {
    for (std::size_t kind = 0; kind < tables.kinds(); ++kind) {
      std::size_t& states = states_[tables.group_of(kind)];
      states = std::min(most_run_states + 1, states * (tables.devices_of(kind).size() + 1));
    }
    std::size_t in_all = 0;
    for (const std::size_t states : states_) in_all += states;
    const bool is_small = cells * in_all <= most_numbers;
    std::vector<std::size_t> next_step(tables.groups(), 1);
    for (std::size_t kind = 0; kind < tables.kinds(); ++kind) {
      const std::size_t group = tables.group_of(kind);
      const bool is_apart = is_small && states_[group] <= most_run_states;
      radix_[kind] = 1 + (is_apart ? tables.devices_of(kind).size() : devices[group]);
      step_[kind] = is_apart ? next_step[group] : 1;
      next_step[group] = step_[kind] * radix_[kind];
    }
    states_ = next_step;
  }
  for (const std::size_t states : states_) {
    offset_.push_back(states_in_all_);
    states_in_all_ += states;
  }
}

}  // namespace isobar::allocators
