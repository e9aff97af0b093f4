#include "sim/play/device_turns.hpp"

#include "core/program/gathered_updates.hpp"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>
#include <utility>

namespace isobar::sim {

namespace {

/// The position of the last computation of a rank that has work; without `updates`, of the last that is no update.
std::optional<std::uint64_t> last_computation(const Program& program, std::size_t rank, bool updates)
{
  for (std::uint64_t position = program.length(rank, compute_lane); position-- > 0;) {
    const Instruction instruction = program.at(rank, compute_lane, position);
    if (instruction.time > Seconds(0) && (updates || instruction.opcode != Opcode::Update)) return position;
  }
  return std::nullopt;
}

}  // namespace

DeviceTurns::DeviceTurns(const SimulationState& state, Lanes& lanes, const Mix& mix)
    : state_(state),
      lanes_(lanes),
      hand_over_(mix.hand_over),
      places_(places_of(state, devices_)),
      at_(devices_.size(), std::vector<Place*>(state.jobs.size())),
      memory_(TurnOrder::words(state.jobs.size(), devices_.size())),
      order_(mix, devices_of_jobs(), devices_.size(), memory_)
{
  for (std::size_t job = 0; job < places_.size(); ++job) {
    for (Place& place : places_[job]) {
      if (place.computes) at_[place.device][job] = &place;
    }
  }
}

std::vector<std::vector<DeviceTurns::Place>> DeviceTurns::places_of(const SimulationState& state,
                                                                    std::vector<std::string>& devices)
{
  std::vector<std::vector<Place>> places;
  std::unordered_map<const sg4::Host*, std::size_t> numbers;
  for (const auto& job : state.jobs) {
    auto& own = places.emplace_back(job.ranks.size());
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      const bool updates_in_turns = !gathers_updates(*job.program, rank);
      const auto last = last_computation(*job.program, rank, updates_in_turns);
      if (!last) continue;
      const auto* host = job.ranks[rank].host;
      const auto [number, is_new] = numbers.try_emplace(host, devices.size());
      if (is_new) devices.push_back(host->get_name());
      own[rank].computes = true;
      own[rank].updates_in_turns = updates_in_turns;
      own[rank].device = number->second;
      own[rank].end_of_step = last_computation(*job.program, rank, false).value_or(*last);
      own[rank].last = *last;
    }
  }
  return places;
}

std::vector<std::vector<std::size_t>> DeviceTurns::devices_of_jobs() const
{
  std::vector<std::vector<std::size_t>> devices;
  for (const auto& ranks : places_) {
    auto& own = devices.emplace_back();
    for (const Place& place : ranks) {
      if (place.computes) own.push_back(place.device);
    }
  }
  return devices;
}

bool DeviceTurns::may_compute(LaneState& lane)
{
  Place& place = place_of(lane);
  if (place.holds || is_outside(place, lane)) return true;
  if (place.waiting != nullptr) return false;
  place.waiting = &lane;
  place.asked = now();
  order_.ask(lane.job->index, place.device);
  LaneState* granted = grant(place.device);
  if (granted != nullptr && granted != &lane) lanes_.try_again(*granted);
  return granted == &lane;
}

/// Gives a free device to the next job, if that has asked for it. Returns the lane that it is for, or null.
LaneState* DeviceTurns::grant(std::size_t device)
{
  const auto job = order_.grant(device);
  if (!job) return nullptr;
  Place& place = *at_[device][*job];
  place.holds = true;
  place.got = now();
  return std::exchange(place.waiting, nullptr);
}

void DeviceTurns::computed(const LaneState& lane)
{
  Place& place = place_of(lane);
  if (is_outside(place, lane)) return;
  const JobState& job = *lane.job;
  place.has_left = lane.turn.position == place.last && lane.turn.period + 1 == job.iterations;
  const bool ends_step = lane.turn.position == place.end_of_step || place.has_left;
  if (hand_over_ == HandOver::Step && !ends_step) return;
  order_.give_back(job.index, place.device, ends_step);
  place.holds = false;
  if (job.sink != nullptr) {
    job.sink->device_held(lane.rank, place.asked - state_.begin, place.got - state_.begin, now() - state_.begin);
  }
  if (place.has_left) order_.leave(job.index, place.device);
  if (LaneState* granted = grant(place.device)) lanes_.try_again(*granted);
}

/// "job a", "jobs a and b", "jobs a, b and c".
std::string DeviceTurns::names_of(const std::vector<std::size_t>& jobs) const
{
  std::string text = jobs.size() == 1 ? "job " : "jobs ";
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (i > 0) text += i + 1 == jobs.size() ? " and " : ", ";
    text += state_.jobs[jobs[i]].name;
  }
  return text;
}

void DeviceTurns::throw_if_deadlocked() const
{
  for (std::size_t device = 0; device < devices_.size(); ++device) {
    std::vector<std::size_t> asking;
    std::vector<std::size_t> others;
    for (std::size_t job = 0; job < state_.jobs.size(); ++job) {
      const Place* place = at_[device][job];
      if (place == nullptr || place->has_left) continue;
      (place->waiting != nullptr ? asking : others).push_back(job);
    }
    if (asking.empty() || others.empty()) continue;
    throw DeadlockOfTurns(
        fmt::format("device {} is kept for {}, and {} can compute there only after it, so that no job continues; set "
                    "discipline to conserving, or hand_over to step",
                    devices_[device], names_of(others), names_of(asking)));
  }
}

}  // namespace isobar::sim
