#include "allocators/chain/placement_costs.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace isobar::allocators {

PlacementCosts::PlacementCosts(const CostModel& cost, const Goal& goal)
    : cost_(&cost),
      goal_(goal),
      schedule_(require_chain_schedule(goal.schedule)),
      devices_(cost.devices()),
      schedule_matters_(schedule_ == ChainSchedule::OneForwardOneBackward && !cost.memory_ignores_schedule()),
      has_kinds_(cost.work_kinds() > 1),
      is_step_(goal.objective == Objective::Step),
      clock_(schedule_, is_step_ ? goal.microbatches : 1),
      place_in_unused_(devices_)
{
  for (std::size_t kind = 0; kind < cost.work_kinds(); ++kind) {
    work_.push_back(0);
    for (std::size_t layer = 0; layer < cost.layers(); ++layer) {
      work_.push_back((cost.forward_work(0, layer, kind) + cost.backward_work(0, layer, kind)).value);
    }
  }
  for (std::size_t cut = 0; cut <= cost.layers(); ++cut) {
    output_.push_back(cost.boundary_output(cut).value);
    gradient_.push_back(cost.boundary_gradient(cut).value);
  }
  const bool counts_transfers = goal.communication != Communication::None;
  if (counts_transfers) paths_.emplace(cost, goal.communication);
  for (std::size_t device = 0; device < devices_; ++device) {
    seconds_per_flop_.push_back(1 / cost.rate(device).value);
    row_.push_back(cost.work_kind(device) * (cost.layers() + 1));
    inputs_.push_back(counts_transfers ? cost.input_transfer(device) : TransferTimes{});
  }
  const std::size_t most_stages = std::min(cost.layers(), devices_);
  stages_.reserve(most_stages);
  next_stages_.reserve(most_stages);
  scratch_.reserve(2 * most_stages + 8);
  new_costs_.reserve(2 * most_stages + 8);
  if (is_step_) {
    for (auto* terms : {&terms_, &new_terms_, &terms_after_}) terms->reserve(2 * most_stages + 8);
  }
  unused_.reserve(devices_);
}

void PlacementCosts::assign(const std::vector<StagePlacement>& stages)
{
  ensure(!stages.empty() && stages.size() <= devices_, "a placement has stages, and a device for each");
  stages_ = stages;
  window_count_ = 0;
  unused_.clear();
  std::fill(place_in_unused_.begin(), place_in_unused_.end(), 0);
  for (const auto& stage : stages_) place_in_unused_[stage.device] = used;
  for (std::size_t device = 0; device < devices_; ++device) {
    if (!is_used(device)) mark_unused(device);
  }
  new_costs_.clear();
  new_terms_.clear();
  for (std::size_t i = 0; i < size(); ++i) {
    add_costs(stages_[i], i > 0 ? &stages_[i - 1] : nullptr, i + 1 < size() ? &stages_[i + 1] : nullptr);
  }
  terms_.assign(new_terms_.begin(), new_terms_.end());
  leaves_ = 1;
  while (leaves_ < size()) leaves_ *= 2;
  tree_.assign(2 * leaves_, {});
  for (std::size_t i = 0; i < size(); ++i) tree_[leaves_ + i] = node_of(new_costs_[i]);
  build_tree();
  input_ = inputs_[stages_.front().device];
  input_cost_ = input_cost_of(input_);
  count_overfull();
}

void PlacementCosts::set_threshold(double threshold)
{
  threshold_ = threshold;
  for (std::size_t i = 0; i < size(); ++i) {
    tree_[leaves_ + i] = node_of({tree_[leaves_ + i].max, tree_[leaves_ + i].sum});
  }
  build_tree();
}

std::size_t PlacementCosts::bottleneck_stage() const
{
  std::size_t node = 1;
  while (node < leaves_) node = 2 * node + (tree_[2 * node].max >= tree_[2 * node + 1].max ? 0 : 1);
  return std::min(node - leaves_, size() - 1);
}

// --- costs -----------------------------------------------------------------------------------------------------------

PlacementCosts::Node PlacementCosts::node_of(StageCost cost) const
{
  return {cost.largest, cost.sum, std::max(0.0, cost.largest - threshold_)};
}

PlacementCosts::StageCost PlacementCosts::input_cost_of(TransferTimes input) const
{
  if (is_step_) return {input.data.value, input.total().value};
  const double counted = CostModel::counted(goal_.communication, input).value;
  return {counted, counted};
}

PlacementCosts::Value PlacementCosts::value_of(const Node& all, StageCost input) const
{
  Value value;
  value.bottleneck = std::max(input.largest, all.max);
  value.sum = input.sum + all.sum;
  value.objective =
      CostModel::objective_of(goal_.objective, goal_.microbatches, Seconds(value.bottleneck), Seconds(value.sum)).value;
  value.above_threshold = all.excess;
  return value;
}

double PlacementCosts::cost_of(const StagePlacement& stage, const StagePlacement* before, const StagePlacement* next)
{
  const double* work = work_.data();
  if (has_kinds_) work += row_[stage.device];
  const double compute = (work[stage.last_layer + 1] - work[stage.first_layer]) * seconds_per_flop_[stage.device];
  if (!paths_) return compute;
  double send = 0;
  if (before != nullptr) send += paths_->between(stage.device, before->device).time(gradient_[stage.first_layer]);
  if (next != nullptr) send += paths_->between(stage.device, next->device).time(output_[stage.last_layer + 1]);
  return goal_.communication == Communication::Overlapped ? std::max(compute, send) : compute + send;
}

StepTerms PlacementCosts::terms_of(const StagePlacement& stage, const StagePlacement* next)
{
  const auto& [device, first, last] = stage;
  StepTerms terms;
  const std::size_t kind = has_kinds_ ? cost_->work_kind(device) : 0;
  terms.forward = cost_->forward_work(first, last, kind).value * seconds_per_flop_[device];
  terms.backward = cost_->backward_work(first, last, kind).value * seconds_per_flop_[device];
  terms.update = cost_->update_time(device, first, last).value;
  if (!paths_ || next == nullptr) return terms;
  const AffinePath& there = paths_->between(device, next->device);
  const AffinePath& back = paths_->between(next->device, device);
  terms.output_latency = there.latency;
  terms.output_data = there.per_byte * output_[last + 1];
  terms.gradient_latency = back.latency;
  terms.gradient_data = back.per_byte * gradient_[last + 1];
  return terms;
}

void PlacementCosts::add_costs(const StagePlacement& stage, const StagePlacement* before, const StagePlacement* next)
{
  if (!is_step_) {
    const double cost = cost_of(stage, before, next);
    new_costs_.push_back({cost, cost});
    return;
  }
  const StepTerms terms = terms_of(stage, next);
  new_terms_.push_back(terms);
  new_costs_.push_back({std::max({terms.forward, terms.backward, terms.output_data, terms.gradient_data}),
                        terms.forward + terms.backward + terms.output_latency + terms.output_data +
                            terms.gradient_latency + terms.gradient_data});
}

// --- after the move --------------------------------------------------------------------------------------------------

void PlacementCosts::placement_after(std::vector<StagePlacement>& stages) const
{
  stages.clear();
  for_each_after([&stages](const StagePlacement& stage) { stages.push_back(stage); });
}

/// Computes the costs of the new stages, and of those that now send to another device.
void PlacementCosts::compute_changed()
{
  if (is_changed_known_) return;
  is_changed_known_ = true;
  new_costs_.clear();
  new_terms_.clear();
  for (std::size_t w = 0; w < window_count_; ++w) {
    const Window& window = windows_[w];
    const StagePlacement* stages = &scratch_[window.first];
    const StagePlacement* before = window.begin > 0 ? &stages_[window.begin - 1] : nullptr;
    const StagePlacement* behind = window.end < size() ? &stages_[window.end] : nullptr;
    Changed& changed = changed_[w];
    changed = {window.begin, window.end, new_costs_.size(), 0};
    const bool counts_transfers = paths_.has_value();
    if (before != nullptr && counts_transfers && stages->device != stages_[window.begin].device) {
      --changed.begin;
      add_costs(*before, window.begin > 1 ? &stages_[window.begin - 2] : nullptr, stages);
    }
    for (std::size_t k = 0; k < window.count; ++k) {
      add_costs(stages[k], k > 0 ? &stages[k - 1] : before, k + 1 < window.count ? &stages[k + 1] : behind);
    }
    if (behind != nullptr && counts_transfers && stages[window.count - 1].device != stages_[window.end - 1].device) {
      ++changed.end;
      add_costs(*behind, &stages[window.count - 1], window.end + 1 < size() ? &stages_[window.end + 1] : nullptr);
    }
    changed.count = new_costs_.size() - changed.first;
  }
  const bool has_new_head = windows_[0].begin == 0;
  new_input_ = has_new_head ? inputs_[scratch_[windows_[0].first].device] : input_;
  new_input_cost_ = has_new_head ? input_cost_of(new_input_) : input_cost_;
}

/// Sets terms_after_: the terms of the stages that stay, and the new ones between them.
void PlacementCosts::splice_terms()
{
  if (are_terms_spliced_) return;
  are_terms_spliced_ = true;
  compute_changed();
  terms_after_.clear();
  const auto append = [this](const std::vector<StepTerms>& from, std::size_t begin, std::size_t end) {
    terms_after_.insert(terms_after_.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
                        from.begin() + static_cast<std::ptrdiff_t>(end));
  };
  std::size_t next = 0;
  for (std::size_t w = 0; w < window_count_; ++w) {
    const Changed& changed = changed_[w];
    append(terms_, next, changed.begin);
    append(new_terms_, changed.first, changed.first + changed.count);
    next = changed.end;
  }
  append(terms_, next, size());
}

double PlacementCosts::step_time_after()
{
  splice_terms();
  return clock_.step_time(new_input_, terms_after_);
}

PlacementCosts::Value PlacementCosts::value_after()
{
  compute_changed();
  Node all = tree_[1];
  double old_max = 0;
  double new_max = 0;
  for (std::size_t w = 0; w < window_count_; ++w) {
    const Changed& changed = changed_[w];
    for (std::size_t i = changed.begin; i < changed.end; ++i) {
      const Node& old = tree_[leaves_ + i];
      old_max = std::max(old_max, old.max);
      all.sum -= old.sum;
      all.excess -= old.excess;
    }
    for (std::size_t k = 0; k < changed.count; ++k) {
      const Node node = node_of(new_costs_[changed.first + k]);
      new_max = std::max(new_max, node.max);
      all.sum += node.sum;
      all.excess += node.excess;
    }
  }
  if (new_max >= all.max) {
    all.max = new_max;
  } else if (old_max >= all.max) {
    all.max = std::max(new_max, rest_max());
  }
  return value_of(all, new_input_cost_);
}

/// The largest cost of the stages that the move does not change.
double PlacementCosts::rest_max() const
{
  double largest = 0;
  std::size_t next = 0;
  for (std::size_t w = 0; w < window_count_; ++w) {
    largest = std::max(largest, max_in(next, changed_[w].begin));
    next = changed_[w].end;
  }
  return std::max(largest, max_in(next, size()));
}

double PlacementCosts::max_in(std::size_t begin, std::size_t end) const
{
  double largest = 0;
  if (begin >= end) return largest;
  for (begin += leaves_, end += leaves_; begin < end; begin /= 2, end /= 2) {
    if (begin % 2 == 1) largest = std::max(largest, tree_[begin++].max);
    if (end % 2 == 1) largest = std::max(largest, tree_[--end].max);
  }
  return largest;
}

void PlacementCosts::apply()
{
  ensure(window_count_ > 0, "a move is proposed before it is applied");
  compute_changed();
  if (is_step_) {
    splice_terms();
    terms_.swap(terms_after_);
  }
  for (std::size_t w = 0; w < window_count_; ++w) {
    for (std::size_t i = windows_[w].begin; i < windows_[w].end; ++i) {
      if (is_used(stages_[i].device)) mark_unused(stages_[i].device);
    }
  }
  for (const auto& stage : scratch_) {
    if (!is_used(stage.device)) mark_used(stage.device);
  }
  bool same_places = true;
  for (std::size_t w = 0; w < window_count_; ++w) {
    same_places = same_places && windows_[w].count == windows_[w].end - windows_[w].begin;
  }
  if (same_places) {
    for (std::size_t w = 0; w < window_count_; ++w) {
      const Window& window = windows_[w];
      for (std::size_t k = 0; k < window.count; ++k) stages_[window.begin + k] = scratch_[window.first + k];
      const Changed& changed = changed_[w];
      for (std::size_t k = 0; k < changed.count; ++k) update_leaf(changed.begin + k, new_costs_[changed.first + k]);
    }
  } else {
    // The costs of the stages that stay are copied first: their old leaves lie where the new ones go.
    const std::size_t old_size = size();
    placement_after(next_stages_);
    std::size_t next = 0;
    const std::size_t kept_from = new_costs_.size();
    const auto keep_cost = [this](std::size_t stage) {
      const Node& leaf = tree_[leaves_ + stage];
      new_costs_.push_back({leaf.max, leaf.sum});
    };
    for (std::size_t w = 0; w < window_count_; ++w) {
      const Changed changed = changed_[w];
      for (; next < changed.begin; ++next) keep_cost(next);
      for (std::size_t k = 0; k < changed.count; ++k) new_costs_.push_back(new_costs_[changed.first + k]);
      next = changed.end;
    }
    for (; next < old_size; ++next) keep_cost(next);
    stages_.swap(next_stages_);
    while (leaves_ < size()) {
      leaves_ *= 2;
      tree_.resize(2 * leaves_);
    }
    for (std::size_t i = 0; i < size(); ++i) tree_[leaves_ + i] = node_of(new_costs_[kept_from + i]);
    for (std::size_t i = size(); i < leaves_; ++i) tree_[leaves_ + i] = {};
    build_tree();
  }
  input_cost_ = new_input_cost_;
  input_ = new_input_;
  if (fits_after_ == true) {
    overfull_ = 0;
  } else {
    count_overfull();
  }
  window_count_ = 0;
}

void PlacementCosts::build_tree()
{
  if (leaves_ == 1) return;  // the root is the only leaf
  for (std::size_t i = leaves_; i-- > 1;) tree_[i] = join(tree_[2 * i], tree_[2 * i + 1]);
}

void PlacementCosts::update_leaf(std::size_t stage, StageCost cost)
{
  std::size_t i = leaves_ + stage;
  tree_[i] = node_of(cost);
  while (i > 1) {
    i /= 2;
    tree_[i] = join(tree_[2 * i], tree_[2 * i + 1]);
  }
}

void PlacementCosts::mark_unused(std::size_t device)
{
  place_in_unused_[device] = unused_.size();
  unused_.push_back(device);
}

void PlacementCosts::mark_used(std::size_t device)
{
  const std::size_t place = place_in_unused_[device];
  unused_[place] = unused_.back();
  place_in_unused_[unused_[place]] = place;
  unused_.pop_back();
  place_in_unused_[device] = used;
}

}  // namespace isobar::allocators
