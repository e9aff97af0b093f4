#include "exec/links/transfer_waits.hpp"

#include "core/failure.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <utility>

namespace isobar::exec {

namespace {

/// "stage 1, receive activation of micro-batch 3, 4.00 KiB", "AllReduce of gradient facts".
std::string text_of_transfer(const Instruction& instruction)
{
  if (!is_transfer(instruction.opcode)) {
    return fmt::format("{} of {}", name_of(instruction.opcode), name_of(instruction.payload));
  }
  return fmt::format("stage {}, {} {} of micro-batch {}, {}", instruction.stage,
                     instruction.opcode == Opcode::Send ? "send" : "receive", name_of(instruction.payload),
                     instruction.microbatch, text_of(instruction.size));
}

}  // namespace

TransferWaits::TransferWaits(const TimeLimits& limits, std::function<Seconds()> idle)
    : limits_(limits), idle_(limits.transfer_is_set ? nullptr : std::move(idle))
{
}

void TransferWaits::transfer(const Instruction& instruction, const Work& work) const
{
  run(work, [&instruction] { return text_of_transfer(instruction); });
}

void TransferWaits::decision(std::uint64_t step, const Work& work) const
{
  run(work, [step] { return fmt::format("rank 0's decision about step {}", step); });
}

void TransferWaits::turn(std::uint64_t step, const Work& work) const
{
  run(work, [step] { return fmt::format("the turn of step {}", step); });
}

void TransferWaits::loss(std::uint64_t step, const Work& work) const
{
  run(work, [step] { return fmt::format("the loss of step {}", step); });
}

void TransferWaits::run(const Work& work, const std::function<std::string()>& description) const
{
  try {
    work(idle_ ? Deadline(limits_.transfer, idle_) : Deadline(limits_.transfer));
  } catch (const EnvironmentError& error) {
    Failure failure = failure_of(error);
    const std::string limit = in_seconds(limits_.transfer);
    std::string why;
    if (failure.kind == Failure::Kind::DeadlinePassed) {
      why = idle_ ? fmt::format("; no rank was at work for {}; raise it with --deadline", limit)
                  : "; --deadline " + limit;
    }
    failure.text = fmt::format("{} ({}{})", failure.text, description(), why);
    throw_failure(failure);
  }
}

}  // namespace isobar::exec
