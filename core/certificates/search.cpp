// Checks that no placement is below a bound, by a search over the devices themselves (docs/certificates.md).

#include "core/certificates/proofs.hpp"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace isobar::proofs {

namespace {

constexpr std::uint64_t most_labels = 20'000'000;
// Approximate, with its share of the table.
constexpr std::uint64_t bytes_of_label = 216;
// Approximate, relative to one iteration of the innermost loop of a path's table.
constexpr std::uint64_t steps_of_label = 100;

/// The stages from a cut to the end of the chain, seen from the stage before them.
struct Label {
  std::size_t device = 0;  // of the first stage
  std::size_t stages = 0;
  double multipliers = 0;  // of the devices used
  double largest = 0;      // of the known costs: those of all stages except the first
  double sum = 0;          // likewise
  double compute = 0;      // of the first stage
  double sent_on = 0;      // likewise; what it sends back is known with the stage before
};

using DeviceSet = std::vector<std::uint64_t>;

bool holds(const DeviceSet& set, std::size_t device)
{
  return (set[device / 64] >> (device % 64) & 1) != 0;
}

/// True if every continuation costs `a` at most as much as `b`. If the sum does not count, costs within the limit do
/// not either; the first stage's cost is still open.
bool is_as_good(const Label& a, const Label& b, bool counts_sum)
{
  if (!counts_sum) return a.compute <= b.compute && a.sent_on <= b.sent_on;
  return std::max(a.largest, a.compute) <= std::max(b.largest, b.compute) && a.sum + a.compute <= b.sum + b.compute &&
         a.sum + a.sent_on <= b.sum + b.sent_on && a.compute <= b.compute && a.sent_on <= b.sent_on;
}

/// Labels that begin at one cut, grouped by the devices used and the first device, without dominated labels.
class LabelsAtCut {
 public:
  /// Adds a label. Returns by how much the number of labels grew: 1, 0 or less.
  long add(const Label& label, const DeviceSet& used, bool counts_sum, Effort& effort)
  {
    std::string key(reinterpret_cast<const char*>(used.data()), used.size() * sizeof(std::uint64_t));
    key.append(reinterpret_cast<const char*>(&label.device), sizeof label.device);
    auto& same = labels_[std::move(key)];
    effort.take(steps_of_label + same.size());
    for (const Label& known : same) {
      if (is_as_good(known, label, counts_sum)) return 0;
    }
    const auto dropped = std::erase_if(same, [&](const Label& known) { return is_as_good(label, known, counts_sum); });
    same.push_back(label);
    size_ += 1 - static_cast<long>(dropped);
    return 1 - static_cast<long>(dropped);
  }
  long size() const { return size_; }

  void for_each(std::size_t words, const std::function<void(const Label&, const DeviceSet&)>& visit) const
  {
    DeviceSet used(words);
    for (const auto& [key, same] : labels_) {
      std::copy_n(key.data(), words * sizeof(std::uint64_t), reinterpret_cast<char*>(used.data()));
      for (const Label& label : same) visit(label, used);
    }
  }

  void clear() { *this = {}; }

 private:
  long size_ = 0;
  std::unordered_map<std::string, std::vector<Label>> labels_;
};

/// Searches the placements whose largest cost is within one rung's limit. Each counts the previous rung's limit at
/// least as its largest cost.
class RungSearch {
 public:
  RungSearch(const Chain& chain, const GroupTransfers& transfers, const PathTable& table, const Certificate::Rung& rung,
             double limit_below, double bound)
      : chain_(chain),
        transfers_(transfers),
        table_(table),
        multipliers_(rung.multipliers),
        limit_below_(limit_below),
        below_(bound * (1 - tolerance)),
        labels_(chain.layers + 1)
  {
    for (std::size_t i = 0; i < chain_.devices; ++i) {
      twin_before_.emplace_back();
      for (std::size_t j = 0; j < i; ++j) {
        if (are_twins(i, j)) twin_before_.back() = j;
      }
    }
  }

  /// Runs the search and adds the number of kept labels to `labels`; ends when there are too many.
  SearchFinding run(std::uint64_t& labels)
  {
    const std::size_t words = (chain_.devices + 63) / 64;
    extend(chain_.layers, nullptr, DeviceSet(words));
    for (std::size_t cut = chain_.layers - 1; cut > 0; --cut) {
      if (is_over()) break;
      labels_[cut].for_each(words, [&](const Label& label, const DeviceSet& used) {
        if (!is_over()) extend(cut, &label, used);
      });
      live_ -= labels_[cut].size();
      labels_[cut].clear();
      if (labels + static_cast<std::uint64_t>(kept_) > most_labels) too_many_ = true;
    }
    labels += static_cast<std::uint64_t>(kept_);
    SearchFinding finding{least_, ""};
    if (too_many_) {
      finding.fault =
          fmt::format("certificate: needs a search through more than {} labels; it is not checked", most_labels);
    }
    return finding;
  }

 private:
  bool is_over() const { return too_many_ || least_ < infinity; }

  /// True if exchanging the two devices changes nothing.
  bool are_twins(std::size_t i, std::size_t j) const
  {
    const auto& cluster = *chain_.cluster;
    if (chain_.memory[i] != chain_.memory[j] || !chain_.computes_alike(i, j) ||
        chain_.input_s[i] != chain_.input_s[j] || multipliers_[i] != multipliers_[j]) {
      return false;
    }
    if (chain_.goal.communication == Communication::None) return true;
    const auto same = [&](std::size_t a, std::size_t b, std::size_t c, std::size_t d) {
      const Path one = cluster.path(a, b);
      const Path other = cluster.path(c, d);
      return one.latency == other.latency && one.bandwidth == other.bandwidth;
    };
    chain_.effort.take(chain_.devices);
    if (!same(i, j, j, i)) return false;
    for (std::size_t k = 0; k < chain_.devices; ++k) {
      if (k != i && k != j && !(same(i, k, j, k) && same(k, i, k, j))) return false;
    }
    return true;
  }

  double objective(double largest, double sum) const { return chain_.alpha() * largest + chain_.beta() * sum; }

  /// Extends a label by a stage before it, on each unused device and from each cut.
  void extend(std::size_t end, const Label* after, const DeviceSet& used)
  {
    const std::size_t stages = after == nullptr ? 0 : after->stages;
    const std::uint64_t held = chain_.held_by(stages);
    for (std::size_t i = 0; i < chain_.devices; ++i) {
      chain_.effort.take(chain_.devices);
      if (holds(used, i)) continue;
      if (twin_before_[i] && !holds(used, *twin_before_[i])) continue;  // equal to a label with the twin
      Label label;
      label.device = i;
      label.stages = stages + 1;
      label.multipliers = multipliers_[i];
      if (after != nullptr) {
        const double cost =
            chain_.cost(after->compute, after->sent_on + transfer_s(after->device, i, chain_.gradient[end]));
        if (cost > table_.limit()) continue;
        label.multipliers += after->multipliers;
        label.largest = std::max(after->largest, cost);
        label.sum = after->sum + cost;
        label.sent_on = transfer_s(i, after->device, chain_.output[end]);
      }
      DeviceSet with_device = used;
      with_device[i / 64] |= std::uint64_t{1} << (i % 64);
      const double memory = chain_.memory[i] * (1 + memory_tolerance);
      const std::size_t left =
          table_.runs().left_of_group(i, [&](std::size_t device) { return holds(with_device, device); });
      for (std::size_t first = end; first-- > 0;) {
        chain_.effort.take(1 + transfers_.groups());
        label.compute = chain_.compute_s(i, first, end);
        if (label.compute > table_.limit() || chain_.need_of_layers(first, end, held) > memory) break;
        if (chain_.need(first, end, held) > memory) continue;
        if (first == 0) {
          finish(label);
        } else if (may_go_on(label, first, left)) {
          const long grown = labels_[first].add(label, with_device, chain_.beta() != 0, chain_.effort);
          kept_ += grown;
          live_ += grown;
          Effort::ensure_room(static_cast<std::uint64_t>(live_), bytes_of_label + with_device.size() * 8,
                              "the labels of a search");
          if (kept_ > static_cast<long>(most_labels)) too_many_ = true;
        }
        if (is_over()) return;
      }
    }
  }

  double transfer_s(std::size_t from, std::size_t to, double bytes) const
  {
    if (chain_.goal.communication == Communication::None) return 0;
    return chain_.transfer_s(chain_.cluster->path(from, to), bytes);
  }

  void finish(const Label& label)
  {
    const double input = chain_.cost(0, chain_.input_s[label.device]);
    const double cost = chain_.cost(label.compute, label.sent_on);
    const double largest = std::max({label.largest, cost, input});
    if (largest > table_.limit()) return;
    const double found = objective(largest, label.sum + cost + input);
    if (found < below_) least_ = std::min(least_, found);
  }

  /// False if no continuation ends below the bound: by the table's least cost of the layers before `cut`, less the
  /// multipliers of the unused devices. `left_of_group` is the state of the run in the label's group.
  bool may_go_on(const Label& label, std::size_t cut, std::size_t left_of_group) const
  {
    const double left = table_.sum_of_multipliers() - label.multipliers;
    const double slack = rounding * (table_.sum_of_multipliers() + 1e3 * below_);
    const std::size_t group = transfers_.group_of(label.device);
    const double* gradient = transfers_.gradient(label.device, cut);
    for (std::size_t before = 0; before < transfers_.groups(); ++before) {
      const double least = table_.before(cut, label.stages, before, group, left_of_group);
      const double cost = chain_.cost(label.compute, label.sent_on + gradient[before]);
      if (!(least < infinity) || cost > table_.limit()) continue;
      const double gained = std::max(0.0, least - left);
      if (chain_.beta() == 0 && gained > slack) continue;
      const double largest = std::max({limit_below_, label.largest, cost});
      const double reached =
          chain_.beta() == 0 ? chain_.alpha() * largest : objective(largest, label.sum + cost) + gained;
      if (reached - slack < below_) return true;
    }
    return false;
  }

  std::vector<std::optional<std::size_t>> twin_before_;  // the last earlier device that is interchangeable with it
  const Chain& chain_;
  const GroupTransfers& transfers_;
  const PathTable& table_;
  const std::vector<double>& multipliers_;
  double limit_below_;
  double below_;
  std::vector<LabelsAtCut> labels_;
  double least_ = infinity;
  long kept_ = 0;
  long live_ = 0;  // kept, and not yet extended
  bool too_many_ = false;
};

}  // namespace

SearchFinding search_below(const Chain& chain, const Certificate& certificate, double bound)
{
  const GroupTransfers transfers(chain, certificate.groups);
  const std::size_t levels = levels_of(chain, certificate);
  double limit_below = 0;
  std::uint64_t labels = 0;
  for (const auto& rung : certificate.rungs) {
    const PathTable table(chain, transfers, levels, rung);
    SearchFinding finding = RungSearch(chain, transfers, table, rung, limit_below, bound).run(labels);
    if (finding.least < infinity || !finding.fault.empty()) return finding;
    limit_below = rung.limit.value_or(Seconds(infinity)).value;
  }
  return {};
}

}  // namespace isobar::proofs
