#include "allocators/exact/phase_flow.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "core/errors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace isobar::allocators {

namespace {

bool repeats(const CostModel& cost, std::size_t layer, std::size_t period)
{
  const std::size_t other = layer + period;
  const auto work = [&](std::size_t k, std::size_t kind) {
    return (cost.forward_work(k, k, kind) + cost.backward_work(k, k, kind)).value;
  };
  // Prefix sums lose some bits of a layer's own memory; two levels distinguish parameters from activations.
  const auto memory = [&](std::size_t k, std::uint64_t held) { return cost.memory(k, k, held).value; };
  const auto close = [](double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b)); };
  for (std::size_t kind = 0; kind < cost.work_kinds(); ++kind) {
    if (!close(work(layer, kind), work(other, kind))) return false;
  }
  return close(memory(layer, 1), memory(other, 1)) && close(memory(layer, 2), memory(other, 2));
}

}  // namespace

std::optional<Repetition> repetition_of(const CostModel& cost)
{
  std::optional<Repetition> best;
  const std::size_t layers = cost.layers();
  for (std::size_t period = 1; period <= longest_period && 2 * period < layers; ++period) {
    std::size_t begin = 1;
    for (std::size_t layer = 1; layer + period <= layers; ++layer) {
      if (layer + period < layers && repeats(cost, layer, period)) continue;
      // Layers begin..layer+period-1 repeat.
      const std::size_t count = (layer + period - begin) / period;
      const std::size_t covered = count * period;
      if (count > 1 && 2 * covered > layers && (!best || covered > best->period * best->repeats)) {
        best = Repetition{begin, period, count};
      }
      begin = layer + 1;
    }
  }
  return best;
}

PhaseFlow::PhaseFlow(const StageTables& tables, const Repetition& repetition, std::function<void()> check)
    : tables_(tables),
      counts_costs_(tables.weights().beta != 0),
      repetition_(repetition),
      check_(std::move(check)),
      nodes_(repetition.prefix + repetition.period + tables.layers() - repetition.end() + 1),
      arcs_(tables.kinds()),
      potential_(nodes_ + 1, 0)
{
  potential_.back() = counts_costs_ ? 0 : 1;
  ensure(tables.is_hereditary(), "phase flow needs memory that shrinks with the stage, and no transfers");
  for (std::uint32_t device = 0; device < tables.devices(); ++device) devices_.push_back(device);
}

bool PhaseFlow::is_small_enough() const
{
  return key_bits() <= 64;
}

std::size_t PhaseFlow::key_bits() const
{
  const std::size_t absolute = nodes_ - repetition_.period;
  const std::size_t subsets = (std::size_t{1} << repetition_.period) - 2;
  return repetition_.period * phase_bits() + 2 * absolute + 2 * subsets + cover_bits();
}

std::size_t PhaseFlow::cover_bits() const
{
  return counts_costs_ ? static_cast<std::size_t>(std::bit_width(tables_.layers())) : 0;
}

std::size_t PhaseFlow::phase_bits() const
{
  return static_cast<std::size_t>(std::bit_width(2 * tables_.devices() + 1));
}

std::size_t PhaseFlow::node_of(std::size_t position) const
{
  if (position < repetition_.prefix) return position;
  if (position >= repetition_.end()) return repetition_.prefix + repetition_.period + position - repetition_.end();
  return repetition_.prefix + (position - repetition_.prefix) % repetition_.period;
}

bool PhaseFlow::is_phase(std::size_t node) const
{
  return node >= repetition_.prefix && node < repetition_.prefix + repetition_.period;
}

std::size_t PhaseFlow::reach(std::size_t kind, std::size_t first, double limit) const
{
  std::size_t low = first;
  std::size_t high = tables_.furthest(0, kind, first);
  const double most = limit * (1 + 1e-12);
  // Stages are short compared with the chain: double the step, then halve it.
  for (std::size_t step = 1; low < high;) {
    const std::size_t end = std::min(low + step, high);
    if (turn(kind, first, end) <= most) {
      low = end;
      step *= 2;
    } else {
      high = end - 1;
      step = std::max<std::size_t>(1, (high - low) / 2);
    }
  }
  return low;
}

/// Calls visit(first) for the beginnings that determine the arcs: those in the prefix, one of each phase, and those
/// near the end whose stage can reach beyond the repeating part.
template <typename Visit>
void PhaseFlow::for_each_beginning(std::size_t kind, double limit, const Visit& visit) const
{
  const std::size_t first_period_end = std::min(repetition_.prefix + repetition_.period, repetition_.end());
  for (std::size_t first = 0; first < first_period_end; ++first) visit(first);
  std::size_t inside = 0;  // successive beginnings whose stages stay inside
  for (std::size_t first = tables_.layers(); first-- > first_period_end && inside < repetition_.period;) {
    inside = reach(kind, first, limit) < repetition_.end() ? inside + 1 : 0;
    visit(first);
  }
}

/// Finds all arcs, or only those that can gain most under some potentials: the shortest and the longest between two
/// nodes, since the gain is linear in the periods covered.
void PhaseFlow::find_arcs(double limit, bool all)
{
  const std::size_t period = repetition_.period;
  for (std::size_t kind = 0; kind < tables_.kinds(); ++kind) {
    auto& arcs = arcs_[kind];
    arcs.clear();
    for_each_beginning(kind, limit, [&](std::size_t first) {
      const std::size_t furthest = reach(kind, first, limit);
      if (furthest == first) return;
      if (!counts_costs_) {  // only the longest stages matter
        add_arc(arcs, kind, first, furthest, all);
        return;
      }
      for (std::size_t end = first + 1; end <= furthest; ++end) {
        const bool is_extreme = end <= first + period || end + period > furthest || end >= repetition_.end() ||
                                end + period >= repetition_.end();
        if (all || is_extreme) add_arc(arcs, kind, first, end, all);
      }
    });
  }
}

void PhaseFlow::add_arc(std::vector<Arc>& arcs, std::size_t kind, std::size_t first, std::size_t end, bool all) const
{
  const Arc arc{static_cast<std::uint8_t>(node_of(first)), static_cast<std::uint8_t>(node_of(end)),
                static_cast<std::uint32_t>(end - first), counts_costs_ ? tables_.compute(kind, first, end) : 0};
  Arc* shortest = nullptr;
  Arc* longest = nullptr;
  for (Arc& known : arcs) {
    if (known.from != arc.from || known.to != arc.to) continue;
    if (known.covers == arc.covers) return;
    if (shortest == nullptr || known.covers < shortest->covers) shortest = &known;
    if (longest == nullptr || known.covers > longest->covers) longest = &known;
  }
  const bool is_one = shortest == longest;
  if (shortest == nullptr || (counts_costs_ && (all || is_one))) {
    arcs.push_back(arc);
  } else if (arc.covers > longest->covers) {
    *longest = arc;
  } else if (counts_costs_ && arc.covers < shortest->covers) {
    *shortest = arc;
  }
}

/// Total gain of the devices by the potentials beyond what the chain requires, and its slope. When it is below 0, or
/// below minus the cost to undercut, no choice of arcs is a placement.
double PhaseFlow::excess(std::vector<double>& slope) const
{
  const auto layers = static_cast<double>(tables_.layers());
  std::fill(slope.begin(), slope.end(), 0);
  slope[0] = -1;
  slope[nodes_ - 1] = 1;
  slope[nodes_] = -layers;
  double excess = potential_[nodes_ - 1] - potential_[0] - price() * layers;
  for (std::size_t kind = 0; kind < arcs_.size(); ++kind) {
    const Arc* chosen = nullptr;
    double most = 0;
    for (const Arc& arc : arcs_[kind]) {
      if (gain(arc) <= most) continue;
      most = gain(arc);
      chosen = &arc;
    }
    if (chosen == nullptr) continue;
    const auto count = static_cast<double>(tables_.devices_of(kind).size());
    excess += count * most;
    slope[chosen->from] += count;
    slope[chosen->to] -= count;
    slope[nodes_] += count * chosen->covers;
  }
  return excess;
}

/// Finds the potentials, and where costs count the price of a layer, that minimise the excess, to `precision` or until
/// it is below `enough`. Uses the ellipsoid method with deep cuts (Yudin and Nemirovski, 1976), since nodes are few and
/// kinks are many.
double PhaseFlow::improve_potentials(double precision, double enough)
{
  const std::size_t free = nodes_ - 1 + (counts_costs_ ? 1 : 0);  // the first node's potential is fixed
  const auto n = static_cast<double>(free);
  double longest = 1;
  double dearest = 0;
  double highest_price = 0;
  for (const auto& arcs : arcs_) {
    for (const Arc& arc : arcs) {
      longest = std::max<double>(longest, arc.covers);
      dearest = std::max(dearest, arc.cost);
      highest_price = std::max(highest_price, arc.cost / arc.covers);
    }
  }
  const double reach_of_potentials = counts_costs_ ? 4 * dearest : 2 * longest;
  std::vector<double> shape(free * free, 0);
  for (std::size_t i = 0; i < free; ++i) {
    const double radius = i + 1 == nodes_ ? 16 * highest_price : reach_of_potentials;
    shape[i * free + i] = radius * radius * n;
  }
  std::vector<double> slope(nodes_ + 1);
  std::vector<double> step(free);
  std::vector<double> best = potential_;
  double least = infinity;
  for (std::size_t round = 0; round < 400 * free; ++round) {
    const double now = excess(slope);
    if (now < least) {
      least = now;
      best = potential_;
    }
    double across = 0;
    for (std::size_t i = 0; i < free; ++i) {
      step[i] = 0;
      for (std::size_t j = 0; j < free; ++j) step[i] += shape[i * free + j] * slope[j + 1];
      across += step[i] * slope[i + 1];
    }
    across = std::sqrt(std::max(across, 0.0));
    if (least < enough || across <= precision) break;
    const double depth = std::min(0.999, (now - least) / across);
    const double move = (1 + n * depth) / (n + 1) / across;
    const double shrink = 2 * (1 + n * depth) / ((n + 1) * (1 + depth)) / (across * across);
    const double grow = n * n / (n * n - 1) * (1 - depth * depth);
    for (std::size_t i = 0; i < free; ++i) potential_[i + 1] -= move * step[i];
    for (std::size_t i = 0; i < free; ++i) {
      for (std::size_t j = 0; j < free; ++j) {
        shape[i * free + j] = grow * (shape[i * free + j] - shrink * step[i] * step[j]);
      }
    }
  }
  potential_ = best;
  return least;
}

bool PhaseFlow::potentials_refuse(double limit)
{
  find_arcs(limit, false);
  return improve_potentials(1e-3, -cover_resolution) < -cover_resolution;
}

double PhaseFlow::largest_refused_limit(double refused, double known)
{
  double open = 2 * refused;
  while (open < known && potentials_refuse(open)) {
    refused = open;
    open *= 2;
  }
  open = std::min(open, known);
  while (open - refused > 1e-9 * open) {
    const double limit = (refused + open) / 2;
    (potentials_refuse(limit) ? refused : open) = limit;
  }
  return potentials_refuse(refused) ? refused : 0;
}

double PhaseFlow::least_sum(double limit)
{
  find_arcs(limit, false);
  return -improve_potentials(1e-5 * std::max(1e-300, least_cost()), -infinity);
}

/// Cost of all layers on the fastest device.
double PhaseFlow::least_cost() const
{
  double least = infinity;
  for (std::size_t kind = 0; kind < tables_.kinds(); ++kind) {
    least = std::min(least, tables_.compute(kind, 0, tables_.layers()));
  }
  return least;
}

std::vector<double> PhaseFlow::multipliers() const
{
  std::vector<double> multipliers;
  for (const auto& arcs : arcs_) {
    double most = 0;
    for (const Arc& arc : arcs) most = std::max(most, gain(arc));
    multipliers.push_back(most);
  }
  return multipliers;
}

double PhaseFlow::next_limit(double limit) const
{
  double next = infinity;
  for (std::size_t kind = 0; kind < tables_.kinds(); ++kind) {
    for_each_beginning(kind, limit, [&](std::size_t first) {
      const std::size_t end = reach(kind, first, limit) + 1;
      if (end <= tables_.furthest(0, kind, first)) next = std::min(next, turn(kind, first, end));
    });
  }
  return next;
}

PhaseFlow::Answer PhaseFlow::solve(double limit, std::size_t most_states, double ceiling)
{
  find_arcs(limit, true);
  for (bool dropped = false;; dropped = false) {
    const auto chosen = choose(ceiling, most_states, dropped);
    if (!chosen) return {dropped ? Verdict::Unknown : Verdict::Infeasible, {}};
    if (const auto subset = detached(*chosen)) {
      ensure(std::find(subsets_.begin(), subsets_.end(), *subset) == subsets_.end(),
             "a watched subset is never detached again");
      subsets_.push_back(*subset);
      continue;
    }
    auto stages = placement(*chosen, limit);
    const Verdict verdict = stages.empty() ? Verdict::Unknown : Verdict::Feasible;
    return {verdict, std::move(stages)};
  }
}

}  // namespace isobar::allocators
