// The dynamic program of PhaseFlow: which arc each device takes, and the placement that results.

#include "allocators/exact/phase_flow.hpp"

#include "allocators/bounds/comparisons.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::uint32_t no_arc = ~std::uint32_t{0};
/// Layers that an imbalance of 1 counts as when states must be dropped: it decides between equal losses.
constexpr double balance_weight = 1e-3;

/// Indices of packed keys, by linear probing; clear() is O(1).
class KeyTable {
 public:
  explicit KeyTable(std::size_t entries) : slots_(std::bit_ceil(2 * entries + 2)) {}

  void clear()
  {
    ++round_;
    used_ = 0;
  }
  /// Returns the slot of the key's index; `is_new`: the key was not in the table.
  std::uint32_t& find(std::uint64_t key, bool& is_new)
  {
    if (2 * used_ > slots_.size()) grow();
    Slot& slot = slot_of(key);
    is_new = slot.round != round_;
    if (is_new) {
      slot = {key, round_, 0};
      ++used_;
    }
    return slot.index;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t round = 0;
    std::uint32_t index = 0;
  };

  Slot& slot_of(std::uint64_t key)
  {
    std::size_t at = (key * 0x9e3779b97f4a7c15U) >> 20 & (slots_.size() - 1);
    while (slots_[at].round == round_ && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow()
  {
    std::vector<Slot> old(2 * slots_.size());
    std::swap(old, slots_);
    for (const Slot& slot : old) {
      if (slot.round == round_) slot_of(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_;
  std::uint32_t round_ = 1;
  std::size_t used_ = 0;
};

}  // namespace

/// The packed state: the imbalance of each node, then two bits for each watched subset (0: not touched, 1: an arc
/// inside, 2: an arc across its border).
class PhaseFlow::Key {
 public:
  explicit Key(const PhaseFlow& flow) : flow_(flow)
  {
    std::size_t bit = 0;
    for (std::size_t node = 0; node < flow.nodes_; ++node) {
      shift_.push_back(bit);
      const std::size_t width = flow.is_phase(node) ? flow.phase_bits() : 2;
      start_ |= (flow.is_phase(node) ? flow.tables_.devices() : std::uint64_t{1}) << bit;
      bit += width;
    }
    cover_at_ = bit;
    goal_ = start_ - one(0) + one(flow.nodes_ - 1);
    if (flow.cover_bits() > 0) goal_ += static_cast<std::uint64_t>(flow.tables_.layers()) << cover_at_;
    subsets_at_ = bit + flow.cover_bits();
  }

  std::uint64_t start() const { return start_; }

  /// Returns the key after an arc; none when a node outside the repetition would be left or entered twice.
  std::optional<std::uint64_t> after(std::uint64_t key, const Arc& arc) const
  {
    if (flow_.cover_bits() > 0) {
      key += static_cast<std::uint64_t>(arc.covers) << cover_at_;
      if (cover(key) > flow_.tables_.layers()) return std::nullopt;
    }
    if (arc.from == arc.to) return watched(key, arc);
    if (!flow_.is_phase(arc.from) && (key >> shift_[arc.from] & 3) == 0) return std::nullopt;
    if (!flow_.is_phase(arc.to) && (key >> shift_[arc.to] & 3) == 2) return std::nullopt;
    return watched(key - one(arc.from) + one(arc.to), arc);
  }

  /// Number of layers covered, where it is counted.
  std::size_t cover(std::uint64_t key) const
  {
    return key >> cover_at_ & ((std::uint64_t{1} << flow_.cover_bits()) - 1);
  }

  int at_phase(std::uint64_t key, std::size_t phase) const
  {
    const std::uint64_t mask = (std::uint64_t{1} << flow_.phase_bits()) - 1;
    return static_cast<int>(key >> shift_[flow_.repetition_.prefix + phase] & mask) -
           static_cast<int>(flow_.tables_.devices());
  }

  bool is_goal(std::uint64_t key) const
  {
    const std::uint64_t balances = subsets_at_ < 64 ? key & ((std::uint64_t{1} << subsets_at_) - 1) : key;
    if (balances != goal_) return false;
    for (std::size_t i = 0; i < flow_.subsets_.size(); ++i) {
      if ((key >> (subsets_at_ + 2 * i) & 3) == 1) return false;
    }
    return true;
  }

 private:
  std::uint64_t one(std::size_t node) const { return std::uint64_t{1} << shift_[node]; }

  std::uint64_t watched(std::uint64_t key, const Arc& arc) const
  {
    for (std::size_t i = 0; i < flow_.subsets_.size(); ++i) {
      const bool from = flow_.is_in(flow_.subsets_[i], arc.from);
      const bool to = flow_.is_in(flow_.subsets_[i], arc.to);
      if (!from && !to) continue;
      const std::size_t at = subsets_at_ + 2 * i;
      const std::uint64_t mark = from && to ? 1 : 2;
      if ((key >> at & 3) >= mark) continue;
      key = (key & ~(std::uint64_t{3} << at)) | mark << at;
    }
    return key;
  }

  const PhaseFlow& flow_;
  std::vector<std::size_t> shift_;
  std::size_t cover_at_ = 0;
  std::size_t subsets_at_ = 0;
  std::uint64_t start_ = 0;
  std::uint64_t goal_ = 0;
};

bool PhaseFlow::is_in(Subset subset, std::size_t node) const
{
  return is_phase(node) && (subset >> (node - repetition_.prefix) & 1) != 0;
}

/// A device's own preference: the most that an arc gains, and what the next best choice loses.
struct PhaseFlow::Preference {
  double gain = 0;
  double regret = infinity;
};

std::vector<PhaseFlow::Preference> PhaseFlow::preferences() const
{
  std::vector<Preference> all;
  for (const auto& arcs : arcs_) {
    Preference mine;
    double second = -infinity;
    for (const Arc& arc : arcs) {
      const double its = gain(arc);
      second = std::max(second, std::min(mine.gain, its));
      mine.gain = std::max(mine.gain, its);
    }
    mine.regret = mine.gain - second;
    all.push_back(mine);
  }
  return all;
}

/// What a state before a device still has to lose: when all remaining devices follow their preferences, some imbalance
/// is left at the phases. Each other choice fixes at most 4 of it, and costs at least the least remaining regret.
class PhaseFlow::Outlook {
 public:
  Outlook(const PhaseFlow& flow, const std::vector<Preference>& preferences) : flow_(flow)
  {
    const std::size_t period = flow.repetition_.period;
    drift_.assign(period, 0);
    drifts_.assign((flow.devices_.size() + 1) * period, 0);
    covers_.assign(flow.devices_.size() + 1, 0);
    for (std::size_t i = flow.devices_.size(); i-- > 0;) {
      const std::size_t kind = flow.tables_.kind_of(flow.devices_[i]);
      least_.push_back((least_.empty() ? 0 : least_.back()) + preferences[kind].regret);
      prefer_balance(flow.arcs_[kind], preferences[kind].gain);
      std::copy(drift_.begin(), drift_.end(), drifts_.begin() + static_cast<std::ptrdiff_t>(i * period));
      covers_[i] = cover_;
    }
  }

  /// Number of layers that this device and those after it cover when they follow their preferences.
  std::size_t cover(std::size_t i) const { return covers_[i]; }

  struct Ahead {
    double least_loss;
    int imbalance;  // left at the phases
  };
  /// The outlook of a state before device i (in the order of the dynamic program), from its imbalance at each phase.
  template <typename Imbalance>
  Ahead ahead(std::size_t i, const Imbalance& imbalance) const
  {
    const std::size_t period = flow_.repetition_.period;
    int left = 0;
    for (std::size_t phase = 0; phase < period; ++phase) {
      left += std::abs(imbalance(phase) + drifts_[i * period + phase]);
    }
    if (left == 0) return {0, 0};
    const std::size_t changes = static_cast<std::size_t>(left + 3) / 4;
    if (changes > flow_.devices_.size() - i) return {infinity, left};
    return {least_[changes - 1], left};
  }

 private:
  /// Takes the arc that leaves least imbalance among those that a device prefers.
  void prefer_balance(const std::vector<Arc>& arcs, double most)
  {
    const auto imbalance_after = [this](const Arc& arc) {
      int sum = 0;
      for (std::size_t phase = 0; phase < drift_.size(); ++phase) sum += std::abs(drift_[phase] + change(arc, phase));
      return sum;
    };
    const Arc* chosen = nullptr;
    for (const Arc& arc : arcs) {
      if (flow_.gain(arc) < most - cover_resolution * flow_.price()) continue;
      if (chosen == nullptr || imbalance_after(arc) < imbalance_after(*chosen)) chosen = &arc;
    }
    if (chosen == nullptr) return;
    for (std::size_t phase = 0; phase < drift_.size(); ++phase) drift_[phase] += change(*chosen, phase);
    cover_ += chosen->covers;
  }
  int change(const Arc& arc, std::size_t phase) const
  {
    const std::size_t node = flow_.repetition_.prefix + phase;
    return (arc.to == node ? 1 : 0) - (arc.from == node ? 1 : 0);
  }

  const PhaseFlow& flow_;
  std::vector<int> drift_;  // of the devices after
  std::size_t cover_ = 0;   // likewise
  std::vector<std::size_t> covers_;
  std::vector<int> drifts_;    // [device][phase]: of the device and those after it
  std::vector<double> least_;  // sums of the least regrets, which come last
};

/// Chooses at most one arc per device, balanced and covering the chain; none when the kept states contain no such
/// choice.
std::optional<std::vector<PhaseFlow::Chosen>> PhaseFlow::choose(double ceiling, std::size_t most_states, bool& dropped)
{
  const Key key(*this);
  // Without costs: the layers that devices cover in excess. With costs: the distance below the ceiling.
  const double to_lose = counts_costs_ ? ceiling + improve_potentials(1e-5 * ceiling, -infinity)
                                       : improve_potentials(1e-4, -cover_resolution) + cover_resolution;
  if (to_lose < 0) return std::nullopt;
  struct Step {
    std::uint32_t parent;
    std::uint32_t arc;
  };
  struct State {
    std::uint64_t key;
    double loss;
    double rank;  // smaller is more promising
    Step step;
  };
  std::vector<State> states = {{key.start(), 0, 0, {0, no_arc}}};
  std::vector<State> next;
  std::vector<std::vector<Step>> steps;
  KeyTable table(std::min<std::size_t>(most_states, 1 << 16));
  const auto preference = preferences();
  // Devices with the least choice come first: states stay few until the devices that can balance the rest.
  std::stable_sort(devices_.begin(), devices_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return preference[tables_.kind_of(a)].regret > preference[tables_.kind_of(b)].regret;
  });
  const Outlook outlook(*this, preference);
  for (std::size_t place = 0; place < devices_.size(); ++place) {
    check_();
    const std::size_t kind = tables_.kind_of(devices_[place]);
    const auto& arcs = arcs_[kind];
    const double most = preference[kind].gain;
    table.clear();
    next.clear();
    const auto put = [&](std::uint64_t new_key, double loss, Step step) {
      const auto ahead = outlook.ahead(place + 1, [&](std::size_t phase) { return key.at_phase(new_key, phase); });
      if (loss + ahead.least_loss > to_lose) return;
      double imbalance = ahead.imbalance;
      if (counts_costs_) {
        const auto missing = static_cast<double>(tables_.layers()) - static_cast<double>(key.cover(new_key)) -
                             static_cast<double>(outlook.cover(place + 1));
        imbalance += std::abs(missing);
      }
      const double rank = loss + ahead.least_loss + balance_weight * price() * imbalance;
      bool is_new = false;
      std::uint32_t& index = table.find(new_key, is_new);
      if (is_new) {
        index = static_cast<std::uint32_t>(next.size());
        next.push_back({new_key, loss, rank, step});
      } else if (loss < next[index].loss) {
        next[index] = {new_key, loss, rank, step};
      }
    };
    for (std::uint32_t i = 0; i < states.size(); ++i) {
      const State& state = states[i];
      if (state.loss + most <= to_lose) put(state.key, state.loss + most, {i, no_arc});
      for (std::size_t arc = 0; arc < arcs.size(); ++arc) {
        const double loss = state.loss + most - gain(arcs[arc]);
        if (loss > to_lose) continue;
        if (const auto after = key.after(state.key, arcs[arc])) put(*after, loss, {i, static_cast<std::uint32_t>(arc)});
      }
    }
    if (next.size() > most_states) {
      dropped = true;
      const auto middle = next.begin() + static_cast<std::ptrdiff_t>(most_states);
      std::nth_element(next.begin(), middle, next.end(),
                       [](const State& a, const State& b) { return a.rank < b.rank; });
      next.resize(most_states);
    }
    std::swap(states, next);
    steps.emplace_back();
    for (const State& state : states) steps.back().push_back(state.step);
  }
  auto goal = states.end();
  for (auto state = states.begin(); state != states.end(); ++state) {
    if (key.is_goal(state->key) && (goal == states.end() || state->loss < goal->loss)) goal = state;
  }
  if (goal == states.end()) return std::nullopt;
  std::vector<Chosen> chosen;
  auto index = static_cast<std::uint32_t>(goal - states.begin());
  for (std::size_t i = devices_.size(); i-- > 0;) {
    const Step step = steps[i][index];
    if (step.arc != no_arc) chosen.push_back({devices_[i], arcs_[tables_.kind_of(devices_[i])][step.arc]});
    index = step.parent;
  }
  return chosen;
}

/// Returns the phases that arcs touch without a connection to the beginning of the chain; none when all are connected.
std::optional<PhaseFlow::Subset> PhaseFlow::detached(const std::vector<Chosen>& chosen) const
{
  std::vector<bool> reached(nodes_, false);
  reached.front() = true;
  for (bool grows = true; grows;) {
    grows = false;
    for (const auto& [device, arc] : chosen) {
      if (reached[arc.from] == reached[arc.to]) continue;
      reached[arc.from] = reached[arc.to] = true;
      grows = true;
    }
  }
  Subset subset = 0;
  for (const auto& [device, arc] : chosen) {
    if (!reached[arc.from]) subset |= Subset{1} << (arc.from - repetition_.prefix);
  }
  if (subset == 0) return std::nullopt;
  return subset;
}

/// Returns the devices in the order of a trail through the arcs (Hierholzer, 1873), each filled as far as it reaches.
std::vector<StagePlacement> PhaseFlow::placement(const std::vector<Chosen>& chosen, double limit) const
{
  std::vector<std::vector<const Chosen*>> leaving(nodes_);
  for (const Chosen& each : chosen) leaving[each.arc.from].push_back(&each);
  std::vector<std::pair<std::size_t, const Chosen*>> stack = {{0, nullptr}};
  std::vector<const Chosen*> order;
  while (!stack.empty()) {
    const auto [node, by] = stack.back();
    if (!leaving[node].empty()) {
      const Chosen* next = leaving[node].back();
      leaving[node].pop_back();
      stack.emplace_back(next->arc.to, next);
      continue;
    }
    if (by != nullptr) order.push_back(by);
    stack.pop_back();
  }
  std::reverse(order.begin(), order.end());
  std::vector<StagePlacement> stages;
  std::size_t first = 0;
  for (const Chosen* each : order) {
    const std::size_t furthest = reach(tables_.kind_of(each->device), first, limit);
    const std::size_t end = counts_costs_ ? first + each->arc.covers : furthest;
    if (end > furthest) return {};
    if (end == first) continue;
    stages.push_back({each->device, first, end - 1});
    first = end;
    if (first == tables_.layers()) break;
  }
  if (first < tables_.layers()) return {};
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::size_t level = tables_.level_of(stages.size() - 1 - i);
    const auto& [device, begin, last] = stages[i];
    if (!tables_.fits(level, tables_.kind_of(device), begin, last + 1)) return {};
  }
  return stages;
}

}  // namespace isobar::allocators
