#include "schedules/orders/warm_up.hpp"

#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace isobar::schedules {

namespace {

constexpr double tolerance = 1e-12;

/// The rule for one period, over the times from the first stage on.
class WarmUpRule {
 public:
  WarmUpRule(const std::vector<StageRhythm>& stages, std::uint64_t microbatches)
      : stages_(&stages), microbatches_(microbatches), passes_(1, 0.0), round_trips_(1, 0.0)
  {
    for (const auto& stage : stages) {
      passes_.push_back(passes_.back() + stage.pass.value);
      round_trips_.push_back(round_trips_.back() + (stage.output.total() + stage.gradient.total()).value);
    }
  }

  /// The period of the slowest stage or lane.
  double shortest_period() const
  {
    double period = 0;
    for (std::size_t i = 0; i < stages_->size(); ++i) {
      const StageRhythm& stage = (*stages_)[i];
      period = std::max(period, (stage.pass + stage.weights).value);
      if (i + 1 < stages_->size()) period = std::max({period, stage.output.data.value, stage.gradient.data.value});
    }
    return period;
  }

  /// A period at which no stage forwards ahead.
  double longest_period() const
  {
    double period = shortest_period();
    for (std::size_t i = 0; i + 1 < stages_->size(); ++i)
      period = std::max(period, there_and_back(i, stages_->size() - 1));
    return period;
  }

  std::vector<std::uint64_t> forwards(double period) const
  {
    std::vector<std::uint64_t> ahead(stages_->size(), 0);
    for (std::size_t i = stages_->size(); i-- > 0;) {
      for (std::size_t j = i + 1; j < stages_->size(); ++j) {
        const double periods = std::ceil(there_and_back(i, j) / period * (1 - tolerance));
        const double further = std::clamp(periods - 1, 0.0, static_cast<double>(microbatches_));
        ahead[i] = std::max(ahead[i], std::min(microbatches_, ahead[j] + static_cast<std::uint64_t>(further)));
      }
    }
    return ahead;
  }

  bool fit(const std::vector<std::uint64_t>& forwards) const
  {
    for (std::size_t i = 0; i < forwards.size(); ++i) {
      const StageRhythm& stage = (*stages_)[i];
      const std::uint64_t lag = std::min(stage.lag, microbatches_);
      if (std::min(microbatches_, forwards[i] + lag + 1) > stage.most_in_flight) return false;
    }
    return true;
  }

 private:
  /// From the start of a forward on stage i through stage j until stage i has ended the backward.
  double there_and_back(std::size_t i, std::size_t j) const
  {
    return passes_[j + 1] - passes_[i] + (*stages_)[i].weights.value + round_trips_[j] - round_trips_[i];
  }

  const std::vector<StageRhythm>* stages_;
  std::uint64_t microbatches_;
  std::vector<double> passes_;       // of the stages before
  std::vector<double> round_trips_;  // over the hops before
};

}  // namespace

std::optional<WarmUp> least_warm_up(const std::vector<StageRhythm>& stages, std::uint64_t microbatches)
{
  ensure(!stages.empty() && microbatches > 0, "a warm-up needs stages and micro-batches");
  const WarmUpRule rule(stages, microbatches);
  double too_short = rule.shortest_period();
  ensure(too_short > 0, "a warm-up needs stages that take time");
  auto forwards = rule.forwards(too_short);
  if (rule.fit(forwards)) return WarmUp{std::move(forwards), Seconds(too_short)};

  double period = rule.longest_period();
  forwards = rule.forwards(period);
  if (!rule.fit(forwards)) return std::nullopt;
  while (period - too_short > tolerance * period) {
    const double middle = too_short + (period - too_short) / 2;
    auto ahead = rule.forwards(middle);
    if (rule.fit(ahead)) {
      period = middle;
      forwards = std::move(ahead);
    } else {
      too_short = middle;
    }
  }
  return WarmUp{std::move(forwards), Seconds(period)};
}

std::optional<std::vector<std::uint64_t>> given_warm_up(const PipelineShape& shape, const ScheduleChoice& choice)
{
  const auto found = choice.numbers.find("warm_up");
  if (found == choice.numbers.end()) return std::nullopt;
  const std::vector<std::uint64_t>& warm_up = found->second;
  if (warm_up.size() != shape.ranks()) {
    throw InputError("schedule", fmt::format("warm_up has {} for {}; give one for each",
                                             counted(warm_up.size(), "number"), counted(shape.ranks(), "device")));
  }
  // A warm-up of M - 1 or more forwards is the same order: all forwards come first.
  const std::uint64_t most = shape.microbatches - 1;
  for (std::size_t rank = 1; rank < shape.ranks(); ++rank) {
    if (std::min(warm_up[rank], most) <= std::min(warm_up[rank - 1], most)) continue;
    throw InputError("schedule",
                     fmt::format("warm_up[{}] is {} and warm_up[{}] is {}, so the two devices would wait for each "
                                 "other; give no device more than the one before",
                                 rank, warm_up[rank], rank - 1, warm_up[rank - 1]));
  }
  return warm_up;
}

}  // namespace isobar::schedules
