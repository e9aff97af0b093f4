// Checks that no placement's step is below a bound, by a search through all placements from the end of the chain, each
// of which is played (docs/certificates.md).

#include "core/certificates/proofs.hpp"
#include "core/steps/step_player.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

namespace isobar::proofs {

namespace {

// Approximate, per stage and micro-batch played.
constexpr std::uint64_t steps_of_play = 40;

/// Searches the placements whose largest turn is within one rung's limit and above the previous rung's. Complete
/// placements count whatever their turns.
class StepsOfRung {
 public:
  StepsOfRung(const Chain& chain, const GroupTransfers& transfers, const PathTable& table,
              const Certificate::Rung& rung, double limit_below, double bound)
      : chain_(chain),
        transfers_(transfers),
        table_(table),
        multipliers_(rung.multipliers),
        largest_turn_(chain.alpha() * limit_below),
        below_(bound * (1 - tolerance)),
        left_multipliers_(table.sum_of_multipliers()),
        is_used_(chain.devices)
  {
    for (const double speed : chain.speed) left_speed_ += speed;
    for (std::size_t i = 0; i < chain.devices; ++i) {
      twin_before_.push_back(chain.devices);
      for (std::size_t j = 0; j < i; ++j) {
        if (are_twins(i, j)) twin_before_.back() = j;
      }
    }
  }

  double least_found()
  {
    put_before(chain_.layers);
    return least_;
  }

 private:
  struct Placed {
    std::size_t device = 0;
    double alone = 0;  // time of one micro-batch in this stage and those after it, with the transfers between them
  };

  /// True if exchanging the two devices changes nothing.
  bool are_twins(std::size_t i, std::size_t j) const
  {
    const auto& cluster = *chain_.cluster;
    if (chain_.memory[i] != chain_.memory[j] || !chain_.computes_alike(i, j) ||
        chain_.input_s[i] != chain_.input_s[j] || chain_.input_turn_s[i] != chain_.input_turn_s[j] ||
        multipliers_[i] != multipliers_[j]) {
      return false;
    }
    if (chain_.goal.has_free_transfers()) return true;
    const auto same = [](const Path& one, const Path& other) {
      return one.latency == other.latency && one.bandwidth == other.bandwidth;
    };
    chain_.effort.take(chain_.devices);
    if (!same(cluster.path(i, j), cluster.path(j, i))) return false;
    for (std::size_t k = 0; k < chain_.devices; ++k) {
      if (k == i || k == j) continue;
      if (!same(cluster.path(i, k), cluster.path(j, k)) || !same(cluster.path(k, i), cluster.path(k, j))) return false;
    }
    return true;
  }

  /// Puts each unused device, with layers that end at the cut, before the placed stages.
  void put_before(std::size_t end)
  {
    for (std::size_t i = 0; i < chain_.devices && least_ == infinity; ++i) {
      chain_.effort.take(1);
      const bool has_free_twin = twin_before_[i] < chain_.devices && !is_used_[twin_before_[i]];
      if (is_used_[i] || has_free_twin) continue;
      is_used_[i] = true;
      const double multipliers = left_multipliers_;
      const double speed = left_speed_;
      left_multipliers_ -= multipliers_[i];
      left_speed_ -= chain_.speed[i];
      put_device_before(i, end);
      left_multipliers_ = multipliers;
      left_speed_ = speed;
      is_used_[i] = false;
    }
  }

  void put_device_before(std::size_t i, std::size_t end)
  {
    const std::uint64_t held = chain_.held_by(placed_.size());
    const double memory = chain_.memory[i] * (1 + memory_tolerance);
    const std::size_t left = table_.runs().left_of_group(i, [&](std::size_t device) { return bool(is_used_[device]); });
    PlayedStage stage;
    double between = 0;
    if (!placed_.empty() && !chain_.goal.has_free_transfers()) {
      const std::size_t next = placed_.back().device;
      stage.output = played(chain_.cluster->path(i, next), chain_.output[end]);
      stages_.front().gradient = played(chain_.cluster->path(next, i), chain_.gradient[end]);
      between =
          stage.output.latency + stage.output.data + stages_.front().gradient.latency + stages_.front().gradient.data;
    }
    const double behind = placed_.empty() ? 0 : placed_.back().alone + between;
    for (std::size_t first = end; first-- > 0 && least_ == infinity;) {
      chain_.effort.take(1 + transfers_.groups());
      if (chain_.turn_s(i, first, end, held) > table_.limit()) break;
      if (chain_.need_of_layers(first, end, held) > memory) break;
      if (chain_.need(first, end, held) > memory) continue;
      stage.forward = chain_.forward_s(i, first, end);
      stage.backward = chain_.compute_s(i, first, end) - stage.forward;
      stage.update = chain_.update_s(i, first, end);
      stages_.push_front(stage);
      placed_.push_back({i, behind + stage.forward + stage.backward});
      if (first == 0) {
        finish();
      } else if (may_go_on(first, left)) {
        put_before(first);
      }
      placed_.pop_back();
      stages_.pop_front();
    }
  }

  static PlayedTransfer played(const Path& path, double bytes)
  {
    return {path.latency.value, bytes / path.bandwidth.value};
  }

  /// Time of the placed stages if the first never waits for its input, without updates.
  double played_alone()
  {
    played_.assign(stages_.begin(), stages_.end());
    for (PlayedStage& stage : played_) stage.update = 0;
    return play({});
  }

  double play(PlayedTransfer input)
  {
    chain_.effort.take(steps_of_play * played_.size() * chain_.goal.microbatches);
    return play_step(chain_.schedule.value(), chain_.goal.microbatches, input, played_);
  }

  void finish()
  {
    played_.assign(stages_.begin(), stages_.end());
    PlayedTransfer input;
    if (chain_.cluster->data_server && !chain_.goal.has_free_transfers()) {
      input =
          played(chain_.cluster->path(chain_.cluster->data_server_index(), placed_.back().device), chain_.output[0]);
    }
    const double step = play(input);
    if (step < below_) least_ = std::min(least_, step);
  }

  /// False if no continuation ends below the bound: by the time of one micro-batch in the layers before, from the table
  /// and the multipliers of the unused devices, and by the placed stages.
  bool may_go_on(std::size_t cut, std::size_t left)
  {
    if (placed_.size() == chain_.devices) return false;
    const std::size_t group = transfers_.group_of(placed_.back().device);
    const double* gradient = transfers_.gradient(placed_.back().device, cut);
    double before = infinity;
    for (std::size_t other = 0; other < transfers_.groups(); ++other) {
      const double least = table_.before(cut, placed_.size(), other, group, left);
      before = std::min(before, least + chain_.beta() * gradient[other]);
    }
    if (!(before < infinity)) return false;
    const double slack = rounding * (before + table_.sum_of_multipliers() + 1e3 * below_);
    before = std::max(0.0, (before - left_multipliers_) / chain_.beta());
    const double largest = std::max(largest_turn_, least_turns(chain_) * chain_.work.both[cut] / left_speed_);
    if (chain_.beta() * (placed_.back().alone + before) + largest - slack >= below_) return false;
    return before + played_alone() - slack < below_;
  }

  const Chain& chain_;
  const GroupTransfers& transfers_;
  const PathTable& table_;
  const std::vector<double>& multipliers_;
  double largest_turn_;  // the least that it adds to a step
  double below_;
  double left_multipliers_;  // of the unused devices
  double left_speed_ = 0;    // likewise
  std::vector<bool> is_used_;
  std::vector<std::size_t> twin_before_;  // the last earlier interchangeable device; the number of devices if none
  std::vector<Placed> placed_;            // last stage first
  std::deque<PlayedStage> stages_;        // in the order of the chain
  std::vector<PlayedStage> played_;
  double least_ = infinity;
};

}  // namespace

SearchFinding search_steps_below(const Chain& chain, const Certificate& certificate, double bound)
{
  const std::size_t levels = levels_of(chain, certificate);
  double limit_below = 0;
  for (const auto& rung : certificate.rungs) {
    const double limit = rung.limit.value_or(Seconds(infinity)).value;
    const GroupTransfers transfers(chain, certificate.groups, limit);
    const PathTable table(chain, transfers, levels, rung);
    const double least = StepsOfRung(chain, transfers, table, rung, limit_below, bound).least_found();
    if (least < infinity) return {least, ""};
    limit_below = limit;
  }
  return {};
}

}  // namespace isobar::proofs
