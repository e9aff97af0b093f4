#include "exec/net/transfer_waits.hpp"

#include "core/base/quantity_text.hpp"
#include "core/failure.hpp"

#include <fmt/format.h>

#include <utility>

namespace isobar::exec {

TransferWaits::TransferWaits(const TimeLimits& limits, std::function<Seconds()> idle)
    : limits_(limits), idle_(limits.transfer_is_said ? nullptr : std::move(idle))
{
}

void TransferWaits::of(const Instruction& transfer, const Work& work) const
{
  timed(work, [&transfer] {
    return fmt::format("stage {}, {} of micro-batch {}, {}", transfer.stage, name_of(transfer.lane),
                       transfer.microbatch, text_of(transfer.size));
  });
}

void TransferWaits::of_sum(const Work& work) const
{
  timed(work, [] { return "a sum over all stages"; });
}

void TransferWaits::timed(const Work& work, const std::function<std::string()>& what) const
{
  try {
    work(idle_ ? Deadline(limits_.transfer, idle_) : Deadline(limits_.transfer));
  } catch (const EnvironmentError& error) {
    Failure failure = failure_of(error);
    const std::string limit = in_seconds(limits_.transfer);
    std::string why;
    if (failure.kind == Failure::Kind::DeadlinePassed) {
      why = idle_ ? fmt::format("; no rank was at work for {}, which --deadline sets", limit) : "; --deadline " + limit;
    }
    failure.text = fmt::format("{} ({}{})", failure.text, what(), why);
    throw_failure(failure);
  }
}

}  // namespace isobar::exec
