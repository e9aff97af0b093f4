#include "core/outer/outer.hpp"

#include <fmt/format.h>

namespace isobar {

std::vector<std::uint64_t> snapshot_steps(std::uint64_t steps, std::uint64_t fragments)
{
  std::vector<std::uint64_t> after;
  for (std::uint64_t f = 1; f <= fragments; ++f) after.push_back((f * steps + fragments - 1) / fragments);
  return after;
}

std::uint64_t samples_of_round(const OuterPlan& plan, std::uint64_t micro_batch)
{
  std::uint64_t samples = 0;
  for (const auto& [name, steps, own] : plan.workers) {
    samples += steps * own.samples.value_or(own.goal.microbatches * own.micro_batch.value_or(micro_batch));
  }
  return samples;
}

std::string numerics_note(const Outer& outer)
{
  std::string note =
      "same samples, not the same loss: workers train apart, and loss for the same samples depends on "
      "the steps of a round and the number of workers (docs/rounds.md has published figures)";
  if (changes_numerics(outer.codec)) note += fmt::format("; codec {} changes the numerics", text_of(outer.codec));
  if (outer.delay > 0) note += fmt::format("; updates come {} steps late", outer.delay);
  return note;
}

}  // namespace isobar
