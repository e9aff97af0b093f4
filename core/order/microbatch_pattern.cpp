#include "core/order/microbatch_pattern.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <numeric>
#include <queue>
#include <utility>

namespace isobar {

namespace {

/// The next micro-batch of a replica with `count` of them in a period: it is due in the middle of its part of the
/// period, after (2 index + 1) / (2 count) of it.
struct StageTurn {
  std::uint64_t index = 0;
  std::uint64_t count = 1;
  std::uint32_t replica = 0;

  /// True if the other one is due first; of two at the same time, that of the first replica.
  bool operator<(const StageTurn& other) const
  {
    const std::uint64_t due = (2 * index + 1) * other.count;  // below 2^42: a period has at most 2^20 micro-batches
    const std::uint64_t other_due = (2 * other.index + 1) * count;
    return due != other_due ? due > other_due : replica > other.replica;
  }
};

}  // namespace

MicrobatchPattern::MicrobatchPattern(std::vector<std::uint64_t> counts) : counts_(std::move(counts))
{
  ensure(!counts_.empty(), "a stage has replicas");
  std::uint64_t divisor = 0;
  std::uint64_t all = 0;
  for (const std::uint64_t count : counts_) {
    ensure(count > 0, "a replica takes micro-batches");
    divisor = std::gcd(divisor, count);
    all += count;
  }
  const std::uint64_t period = all / divisor;
  if (period > longest_period) {
    throw InputError(
        fmt::format("the counts of replicas repeat only after {} micro-batches; use counts with a common "
                    "divisor, so that they repeat after at most {}",
                    period, longest_period));
  }
  std::priority_queue<StageTurn> turns;
  for (std::size_t replica = 0; replica < counts_.size(); ++replica) {
    turns.push({0, counts_[replica] / divisor, static_cast<std::uint32_t>(replica)});
  }
  of_replica_.resize(counts_.size());
  places_.reserve(period);
  while (places_.size() < period) {
    StageTurn turn = turns.top();
    turns.pop();
    of_replica_[turn.replica].push_back(static_cast<std::uint32_t>(places_.size()));
    places_.push_back({turn.replica, static_cast<std::uint32_t>(turn.index)});
    if (++turn.index < turn.count) turns.push(turn);
  }
}

std::uint64_t MicrobatchPattern::index_of(std::uint64_t microbatch) const
{
  const Place& place = places_[microbatch % places_.size()];
  return microbatch / places_.size() * of_replica_[place.replica].size() + place.index;
}

std::uint64_t MicrobatchPattern::nth(std::size_t replica, std::uint64_t index) const
{
  const auto& places = of_replica_.at(replica);
  return index / places.size() * places_.size() + places[index % places.size()];
}

}  // namespace isobar
