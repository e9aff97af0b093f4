#include "allocators/path_relaxation.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <limits>

namespace isobar::allocators {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

PathRelaxation::PathRelaxation(const StageTables& tables, const std::function<void()>& check)
    : tables_(&tables),
      check_(check),
      layers_(tables.layers()),
      groups_(tables.groups()),
      beta_(tables.weights().beta)
{
  if (tables.is_hereditary()) {
    kernel_ = Kernel::Window;
    window_.resize(tables.levels() * (layers_ + 1) * tables.kinds());
    queue_.resize(tables.kinds() * layers_);
  }
}

void PathRelaxation::set_limit(double limit)
{
  limit_ = limit;
  if (kernel_ != Kernel::Window) {
    const bool is_separable = limit == infinity && tables_->goal().communication == Communication::Serial;
    kernel_ = is_separable ? Kernel::Separable : Kernel::Coupled;
    if (is_separable) {
      way_in_.resize(tables_->levels() * (layers_ + 1) * tables_->kinds());
      way_in_group_.resize(way_in_.size());
    }
  }
  nexts_ = kernel_ == Kernel::Coupled ? groups_ : 1;
  const std::size_t states = tables_->levels() * (layers_ + 1) * groups_ * nexts_;
  value_.resize(states);
  choice_.resize(states);
  if (kernel_ == Kernel::Window) tabulate_windows();
}

void PathRelaxation::tabulate_windows()
{
  for (std::size_t level = 0; level < tables_->levels(); ++level) {
    for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
      std::size_t first = 0;
      for (std::size_t cut = 1; cut <= layers_; ++cut) {
        while (first < cut && (!within_limit(tables_->compute(kind, first, cut)) ||
                               tables_->furthest(level, kind, first) < cut)) {
          ++first;
        }
        window_[(level * (layers_ + 1) + cut) * tables_->kinds() + kind] = static_cast<std::uint32_t>(first);
      }
    }
    check_();
  }
}

double PathRelaxation::solve(const std::vector<double>& multipliers)
{
  multipliers_ = multipliers;
  std::fill(value_.begin(), value_.end(), infinity);
  for (std::size_t level = tables_->levels(); level-- > 0;) {
    switch (kernel_) {
      case Kernel::Window:
        solve_windows(level);
        break;
      case Kernel::Separable:
        solve_separable(level);
        break;
      case Kernel::Coupled:
        for (std::size_t cut = 1; cut < layers_; ++cut) {
          if (cut % 16 == 0) check_();
          solve_coupled(level, cut);
        }
        break;
    }
    check_();
  }
  solve_end();
  return best_;
}

void PathRelaxation::solve_windows(std::size_t level)
{
  const std::size_t kinds = tables_->kinds();
  const double* before = &value_[state(level_before(level), 0, 0, 0)];
  double* value = &value_[state(level, 0, 0, 0)];
  Choice* choice = &choice_[state(level, 0, 0, 0)];
  value[0] = 0;
  if (beta_ == 0) {
    for (std::size_t cut = 1; cut <= layers_; ++cut) {
      const std::uint32_t* first = &window_[(level * (layers_ + 1) + cut) * kinds];
      double best = infinity;
      std::size_t best_kind = 0;
      for (std::size_t kind = 0; kind < kinds; ++kind) {
        if (first[kind] >= cut) continue;
        const double candidate = before[first[kind]] + multipliers_[kind];
        if (candidate < best) {
          best = candidate;
          best_kind = kind;
        }
      }
      value[cut] = best;
      choice[cut] = {static_cast<std::uint32_t>(best_kind), first[best_kind], 0};
    }
    return;
  }
  std::vector<std::uint32_t> head(kinds, 0);
  std::vector<std::uint32_t> tail(kinds, 0);
  for (std::size_t cut = 1; cut <= layers_; ++cut) {
    const std::uint32_t* first = &window_[(level * (layers_ + 1) + cut) * kinds];
    const double reached = before[cut - 1];
    const double work_before = tables_->work(cut - 1);
    const double work = tables_->work(cut);
    double best = infinity;
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      std::uint32_t* queue = &queue_[kind * layers_];
      const double rate = beta_ * tables_->slowness(kind);
      if (reached < infinity) {
        const double entering = reached - rate * work_before;
        while (tail[kind] > head[kind]) {
          const std::uint32_t back = queue[tail[kind] - 1];
          if (before[back] - rate * tables_->work(back) < entering) break;
          --tail[kind];
        }
        queue[tail[kind]++] = static_cast<std::uint32_t>(cut - 1);
      }
      while (head[kind] < tail[kind] && queue[head[kind]] < first[kind]) ++head[kind];
      if (head[kind] == tail[kind]) continue;
      const std::uint32_t begin = queue[head[kind]];
      const double candidate = before[begin] + rate * (work - tables_->work(begin)) + multipliers_[kind];
      if (candidate < best) {
        best = candidate;
        choice[cut] = {static_cast<std::uint32_t>(kind), begin, 0};
      }
    }
    value[cut] = best;
  }
}

/// Calls visit(kind, first, compute) for each stage that ends at `cut` within memory and, by its compute alone, within
/// the limit.
template <typename Visit>
void PathRelaxation::for_each_last_stage(std::size_t level, std::size_t cut, const Visit& visit) const
{
  for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
    for (std::size_t first = cut; first-- > 0;) {
      const double compute = tables_->compute(kind, first, cut);
      if (!within_limit(compute)) break;
      if (!tables_->fits(level, kind, first, cut)) {
        if (tables_->surely_too_long(kind, first, cut)) break;
        continue;
      }
      visit(kind, first, compute);
    }
  }
}

/// way_in_[cut][kind]: everything before a stage of `kind` that begins at `cut`, with its transfers over the cut.
void PathRelaxation::find_ways_in(std::size_t level, std::size_t cut)
{
  for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
    const std::size_t at = (level * (layers_ + 1) + cut) * tables_->kinds() + kind;
    if (cut == 0) {
      way_in_[at] = beta_ * tables_->input_cost(kind);
      continue;
    }
    const double* gradients = tables_->gradients(kind, cut);
    const double* outputs = &least_output_[(tables_->size_of(cut) * groups_ + tables_->group_of(kind)) * groups_];
    way_in_[at] = infinity;
    for (std::size_t group = 0; group < groups_; ++group) {
      const double candidate = value_[state(level, cut, group, 0)] + beta_ * (outputs[group] + gradients[group]);
      if (candidate < way_in_[at]) {
        way_in_[at] = candidate;
        way_in_group_[at] = static_cast<std::uint32_t>(group);
      }
    }
  }
}

void PathRelaxation::solve_separable(std::size_t level)
{
  if (least_output_.empty()) {  // [size][to][from]
    least_output_.assign(tables_->sizes() * groups_ * groups_, infinity);
    for (std::size_t cut = 0; cut <= layers_; ++cut) {
      for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
        const double* outputs = tables_->outputs(kind, cut);
        for (std::size_t to = 0; to < groups_; ++to) {
          double& least = least_output_[(tables_->size_of(cut) * groups_ + to) * groups_ + tables_->group_of(kind)];
          least = std::min(least, outputs[to]);
        }
      }
    }
  }
  const std::size_t kinds = tables_->kinds();
  const std::size_t before = level_before(level);
  if (before == level) find_ways_in(level, 0);
  for (std::size_t cut = 1; cut < layers_; ++cut) {
    if (cut % 64 == 0) check_();
    for_each_last_stage(level, cut, [&](std::size_t kind, std::size_t first, double compute) {
      const double candidate =
          way_in_[(before * (layers_ + 1) + first) * kinds + kind] + beta_ * compute + multipliers_[kind];
      const std::size_t at = state(level, cut, tables_->group_of(kind), 0);
      if (candidate < value_[at]) {
        value_[at] = candidate;
        choice_[at] = {static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(first),
                       way_in_group_[(before * (layers_ + 1) + first) * kinds + kind]};
      }
    });
    find_ways_in(level, cut);
  }
  if (before != level) find_ways_in(level, 0);
}

void PathRelaxation::solve_coupled(std::size_t level, std::size_t cut)
{
  const std::size_t before = level_before(level);
  const Communication communication = tables_->goal().communication;
  const double most = limit_ * (1 + 1e-12);
  for_each_last_stage(level, cut, [&](std::size_t kind, std::size_t first, double compute) {
    const std::size_t group = tables_->group_of(kind);
    const double* outputs = tables_->outputs(kind, cut);
    double* value = &value_[state(level, cut, group, 0)];
    Choice* choice = &choice_[state(level, cut, group, 0)];
    const auto extend = [&](double base, double back, std::uint32_t group_before) {
      if (base == infinity) return;
      for (std::size_t next = 0; next < groups_; ++next) {
        const double send = back + outputs[next];
        const double cost = communication == Communication::None         ? compute
                            : communication == Communication::Overlapped ? std::max(compute, send)
                                                                         : compute + send;
        const double candidate = base + beta_ * cost;
        if (candidate < value[next] && cost <= most) {
          value[next] = candidate;
          choice[next] = {static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(first), group_before};
        }
      }
    };
    if (first == 0) {
      if (within_limit(tables_->input_cost(kind))) {
        extend(multipliers_[kind] + beta_ * tables_->input_cost(kind), 0, 0);
      }
      return;
    }
    const double* gradients = tables_->gradients(kind, first);
    for (std::size_t group_before = 0; group_before < groups_; ++group_before) {
      extend(value_[state(before, first, group_before, group)] + multipliers_[kind], gradients[group_before],
             static_cast<std::uint32_t>(group_before));
    }
  });
}

/// The last stage: nothing behind it to send to.
void PathRelaxation::solve_end()
{
  if (kernel_ == Kernel::Window) {
    best_ = value_[state(0, layers_, 0, 0)];
    last_stage_ = choice_[state(0, layers_, 0, 0)];
    return;
  }
  best_ = infinity;
  for_each_last_stage(0, layers_, [&](std::size_t kind, std::size_t first, double compute) {
    const double candidate = multipliers_[kind] + least_completion(1, first, kind, compute, 0);
    if (candidate < best_) {
      best_ = candidate;
      last_stage_ = {static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(first), 0};
      if (first > 0) last_stage_.group_before = group_before_of(1, first, kind, compute, 0);
    }
  });
}

double PathRelaxation::least_completion(std::size_t stages, std::size_t cut, std::size_t kind, double compute,
                                        double sent) const
{
  const std::size_t level = tables_->level_of(stages);
  if (cut == 0) {
    const double cost = tables_->stage_cost(compute, sent);
    const double input = tables_->input_cost(kind);
    return within_limit(cost) && within_limit(input) ? beta_ * (cost + input) : infinity;
  }
  if (kernel_ == Kernel::Window) return beta_ * compute + value_[state(level, cut, 0, 0)];
  if (kernel_ == Kernel::Separable) {
    return beta_ * (compute + sent) + way_in_[(level * (layers_ + 1) + cut) * tables_->kinds() + kind];
  }
  const double* gradients = tables_->gradients(kind, cut);
  const std::size_t group = tables_->group_of(kind);
  double best = infinity;
  for (std::size_t before = 0; before < groups_; ++before) {
    const double cost = tables_->stage_cost(compute, sent + gradients[before]);
    if (!within_limit(cost)) continue;
    best = std::min(best, beta_ * cost + value_[state(level, cut, before, group)]);
  }
  return best;
}

std::uint32_t PathRelaxation::group_before_of(std::size_t stages, std::size_t cut, std::size_t kind, double compute,
                                              double sent) const
{
  const std::size_t level = tables_->level_of(stages);
  if (kernel_ == Kernel::Separable) {
    return way_in_group_[(level * (layers_ + 1) + cut) * tables_->kinds() + kind];
  }
  const double* gradients = tables_->gradients(kind, cut);
  double best = infinity;
  std::uint32_t chosen = 0;
  for (std::size_t before = 0; before < groups_; ++before) {
    const double cost = tables_->stage_cost(compute, sent + gradients[before]);
    const double candidate = beta_ * cost + value_[state(level, cut, before, tables_->group_of(kind))];
    if (!within_limit(cost) || candidate >= best) continue;
    best = candidate;
    chosen = static_cast<std::uint32_t>(before);
  }
  return chosen;
}

std::vector<PathRelaxation::Choice> PathRelaxation::choices() const
{
  ensure(best_ < infinity, "a relaxation without a sequence has no uses");
  std::vector<Choice> found = {last_stage_};
  std::size_t level = tables_->level_of(1);
  while (found.back().first > 0) {
    const Choice& next = found.back();
    const std::size_t next_group = nexts_ == 1 ? 0 : tables_->group_of(next.kind);
    found.push_back(choice_[state(level, next.first, next.group_before, next_group)]);
    level = level_before(level);
  }
  return found;
}

void PathRelaxation::count_uses(std::vector<std::uint32_t>& uses) const
{
  uses.assign(tables_->kinds(), 0);
  for (const Choice& choice : choices()) ++uses[choice.kind];
}

}  // namespace isobar::allocators
