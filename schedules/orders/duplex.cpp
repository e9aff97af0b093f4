#include "schedules/orders/duplex.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace isobar::schedules {

namespace {

constexpr std::uint64_t wave = 2;  // micro-batches

/// Adds the slots of `count` micro-batches from `first` on through all parts, forward or backward; again so much later
/// in each repetition.
void add_passes(std::vector<Slot>& slots, Opcode opcode, std::size_t parts, std::uint64_t first, std::uint64_t count)
{
  for (std::size_t i = 0; i < parts; ++i) {
    for (std::uint64_t k = 0; k < count; ++k) {
      const bool is_forward = opcode == Opcode::Forward;
      const auto part = static_cast<std::uint32_t>(is_forward ? i : parts - 1 - i);
      slots.push_back({{opcode, part, first + (is_forward ? k : count - 1 - k)}, wave});
    }
  }
}

/// All micro-batches as one wave.
Order by_parts(std::size_t parts, std::uint64_t microbatches)
{
  std::vector<Run> runs;
  for (std::uint32_t part = 0; part < parts; ++part) {
    runs.push_back({microbatches, {{{Opcode::Forward, part, 0}, 1}}});
  }
  for (auto part = static_cast<std::uint32_t>(parts); part-- > 0;) {
    runs.push_back({microbatches, {{{Opcode::Backward, part, microbatches - 1}, -1}}});
  }
  return Order(std::move(runs));
}

/// Waves of two by 1F1B; the last one has the rest.
Order by_waves(std::size_t parts, std::uint64_t microbatches, std::uint64_t ranks_after)
{
  const std::uint64_t waves = (microbatches + wave - 1) / wave;
  const std::uint64_t whole = microbatches / wave;
  const std::uint64_t warm_up = std::min(ranks_after, waves);
  const auto size_of_wave = [&](std::uint64_t index) { return std::min(wave, microbatches - wave * index); };
  std::vector<Run> runs;
  // So many times the forwards and backwards of waves from these on; both are whole except in a single time.
  const auto add = [&](std::uint64_t times, std::optional<std::uint64_t> forward,
                       std::optional<std::uint64_t> backward) {
    if (times == 0) return;
    Run& run = runs.emplace_back(Run{times, {}});
    if (forward) add_passes(run.slots, Opcode::Forward, parts, wave * *forward, size_of_wave(*forward));
    if (backward) add_passes(run.slots, Opcode::Backward, parts, wave * *backward, size_of_wave(*backward));
  };
  const std::uint64_t whole_warm_up = std::min(warm_up, whole);
  add(whole_warm_up, 0, std::nullopt);
  add(warm_up - whole_warm_up, whole_warm_up, std::nullopt);
  const std::uint64_t steady = waves - warm_up;
  const std::uint64_t whole_steady = whole - whole_warm_up;
  add(whole_steady, warm_up, 0);
  add(steady - whole_steady, warm_up + whole_steady, whole_steady);
  const std::uint64_t whole_rest = whole - std::min(whole, steady);
  add(whole_rest, std::nullopt, steady);
  add(warm_up - whole_rest, std::nullopt, steady + whole_rest);
  return Order(std::move(runs));
}

}  // namespace

std::vector<Order> duplex_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  const bool is_pipeline = shape.ranks() > 1 && std::is_sorted(shape.rank_of_stage.begin(), shape.rank_of_stage.end());
  std::vector<Order> orders;
  for (const auto& stages : stages_by_rank(shape)) {
    const std::uint64_t after = shape.ranks() - 1 - orders.size();
    orders.push_back(is_pipeline ? by_waves(stages.size(), shape.microbatches, after)
                                 : by_parts(stages.size(), shape.microbatches));
  }
  return orders;
}

}  // namespace isobar::schedules
