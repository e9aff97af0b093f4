#pragma once

#include "core/errors.hpp"
#include "core/outer/codec.hpp"
#include "exec/outer/peers.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// The mean of workers' encoded outer gradients by direct exchange.
///
/// 1. Each worker owns a part of the values, and receives everybody's encoded values of it.
/// 2. The owner decodes them, takes their mean by `weighted_mean`, encodes it, and sends it to all.
/// 3. All tell each other which workers failed.
///
/// With K workers and an encoding of B bytes each sends and receives 2 (K-1)/K B, in three one-way delays. Encodings of
/// sparse codecs have no common places: each worker sends all of its B bytes to all others, and takes the mean itself.
/// docs/codecs.md has bounds of the error.
namespace isobar::exec {

/// Largest weight of a worker.
inline constexpr double most_weight = 0x1p53;

/// The part of the values that a worker owns: whole chunks of codecs, so that the encodings of all parts, one after
/// another, are that of all values.
struct OwnedPart {
  std::size_t first = 0;
  std::size_t count = 0;
};
OwnedPart owned_part(std::size_t values, std::size_t place, std::size_t workers);

/// What the worker at a place sends and receives in an exchange without failures.
struct ExchangeBytes {
  std::uint64_t sent = 0;      ///< of encoded values
  std::uint64_t received = 0;  ///< of encoded values
  std::uint64_t control = 0;   ///< weights and reports of failures, each way
};
ExchangeBytes exchange_bytes(const Codec& codec, std::size_t values, std::size_t place, std::size_t workers);

/// Workers without which an exchange could not end.
class WorkersFailed : public EnvironmentError {
 public:
  WorkersFailed(std::vector<std::size_t> workers, const std::string& what)
      : EnvironmentError(what), workers_(std::move(workers))
  {
  }
  /// In ascending order.
  const std::vector<std::size_t>& workers() const { return workers_; }

 private:
  std::vector<std::size_t> workers_;
};

struct ExchangeGroup {
  std::vector<std::size_t> workers;  ///< in ascending order, this one among them; the same at all of them
  double weight = 1;                 ///< of this worker, such as its samples: 0 to most_weight
  /// For each of the three turns, the first once, the second twice and the third three times as long: a worker that
  /// waits for one that is silent is not taken for silent itself.
  Seconds limit{60};
  std::size_t threads = 1;  ///< that take means and decode
};

/// Replaces `mean` by the mean of all workers' values; it has the same bits at all of them. `encoded`: this worker's
/// values, by `encode` or ErrorFeedback, as many as those of `mean`. One call at a time for each Peers, with the same
/// codec and number of values at all workers.
///
/// Allocates the encodings that it receives.
/// @throws WorkersFailed naming those that closed their connection, sent nothing before the limit, or sent what is no
/// encoding. If one worker fails, all others throw, or none does, and they can exchange without it by the same Peers;
/// if several fail at once, they may differ. EnvironmentError when no worker has a weight, at all workers alike.
/// Interrupted.
void exchange_mean(Peers& peers, const Codec& codec, const ExchangeGroup& group, std::span<const std::byte> encoded,
                   std::span<float> mean);

}  // namespace isobar::exec
