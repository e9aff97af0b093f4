#include "exec/transfer_waits.hpp"

#include "core/failure.hpp"
#include "core/quantity_text.hpp"
#include "exec/clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace isobar::exec {

TransferWaits::TransferWaits(const Program& program, std::size_t rank, const TimeLimits& limits)
{
  for (const Lane lane : all_lanes) {
    const std::uint64_t per_step = lane == Lane::Compute ? 1 : program.length(rank, lane);
    deadlines_.emplace_back(limits, std::max<std::uint64_t>(1, per_step));
  }
}

void TransferWaits::of(const Instruction& transfer, const Work& work)
{
  try {
    timed(transfer.lane, work);
  } catch (const EnvironmentError& error) {
    Failure failure = failure_of(error);
    failure.text = fmt::format("{} (stage {}, {} of micro-batch {}, {})", failure.text, transfer.stage,
                               name_of(transfer.lane), transfer.microbatch, text_of(transfer.size));
    throw_failure(failure);
  }
}

void TransferWaits::timed(Lane lane, const Work& work)
{
  OperationDeadline& deadline = deadlines_[static_cast<std::size_t>(lane)];
  const auto begin = Clock::now();
  work(deadline.limit());
  deadline.done_after(time_since(begin));
}

}  // namespace isobar::exec
