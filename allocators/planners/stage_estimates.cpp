#include "allocators/planners/stage_estimates.hpp"

#include "allocators/schedule_numbers.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

namespace isobar::allocators {

namespace {

constexpr Path free_path{Seconds(0), BytesPerSecond(std::numeric_limits<double>::infinity())};

std::uint64_t ceiling(std::uint64_t number, std::uint64_t divisor)
{
  return (number + divisor - 1) / divisor;
}

}  // namespace

Path slower_of(Path a, Path b)
{
  return {std::max(a.latency, b.latency), std::min(a.bandwidth, b.bandwidth)};
}

Seconds ring_all_reduce(Bytes size, std::size_t ends, const Path& slowest)
{
  const double messages = 2 * static_cast<double>(ends - 1);
  return messages * slowest.transfer_time(size / static_cast<double>(ends));
}

StageEstimates::StageEstimates(const HybridProblem& problem, const CostModel& cost, const schedules::Schedule& schedule)
    : problem_(problem), cost_(cost), schedule_(schedule)
{
}

const ShardedLayers& StageEstimates::layers(std::uint64_t shards, const ShardGrid& grid)
{
  return layers_.try_emplace({shards, grid}, cost_, shards, grid).first->second;
}

Path StageEstimates::path(std::size_t from, std::size_t to) const
{
  return problem_.goal.has_free_transfers() ? free_path : problem_.cluster.path(from, to);
}

Path StageEstimates::path_of_shards(std::span<const std::size_t> devices, std::size_t shards) const
{
  Path slowest = free_path;
  for (std::size_t i = 0; i < devices.size() && shards > 1; ++i) {
    const std::size_t replica = i - i % shards;
    slowest = slower_of(slowest, path(devices[i], devices[replica + (i + 1 - replica) % shards]));
  }
  return slowest;
}

Path StageEstimates::path_of_replicas(std::span<const std::size_t> devices, std::size_t shards) const
{
  Path slowest = free_path;
  for (std::size_t i = 0; i < devices.size() && devices.size() > shards; ++i) {
    slowest = slower_of(slowest, path(devices[i], devices[(i + shards) % devices.size()]));
  }
  return slowest;
}

FlopsPerSecond StageEstimates::slowest(std::span<const std::size_t> devices) const
{
  FlopsPerSecond least = cost_.speed(devices.front());
  for (const std::size_t device : devices) least = std::min(least, cost_.speed(device));
  return least;
}

Bytes StageEstimates::least_memory(std::span<const std::size_t> devices) const
{
  const auto memory = [&](std::size_t device) { return problem_.cluster.devices[device].memory; };
  Bytes least = memory(devices.front());
  for (const std::size_t device : devices) least = std::min(least, memory(device));
  return least;
}

std::uint64_t StageEstimates::in_flight(std::size_t before, std::size_t after, std::uint64_t own)
{
  const std::uint64_t all = problem_.goal.microbatches;
  const auto ranks_before = static_cast<std::size_t>(ceiling(before * own, all));
  const auto ranks_after = static_cast<std::size_t>(ceiling(after * own, all));
  if (const auto chain = chain_schedule(problem_.goal.schedule))
    return microbatches_in_flight(*chain, ranks_after, own);
  const std::size_t ranks = ranks_before + 1 + ranks_after;
  const auto [entry, is_new] = held_.try_emplace({ranks, own});
  if (is_new) {
    for (const auto& parts : parts_in_flight(schedule_, {std::string(schedule_.name), {}, {}}, ranks, 1, own)) {
      entry->second.push_back(parts.front());
    }
  }
  return entry->second[ranks_before];
}

}  // namespace isobar::allocators
