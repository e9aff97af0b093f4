// What a solved PathRelaxation answers: the least sequence, how often it uses each kind, and least completions.

#include "allocators/exact/path_relaxation.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "core/errors.hpp"

#include <algorithm>

namespace isobar::allocators {

namespace {

}  // namespace

/// Chooses the last stage, which sends no activations.
void PathRelaxation::solve_end()
{
  if (kernel_ == Kernel::Window) {
    best_ = value_[row(0, layers_)];
    last_stage_ = choice_[row(0, layers_)];
    return;
  }
  best_ = infinity;
  for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
    for_each_last_stage(0, layers_, kind, [&](std::size_t first, double compute) {
      const double candidate = multipliers_[kind] + least_completion(1, first, kind, compute, 0);
      if (candidate >= best_) return;
      best_ = candidate;
      last_stage_ = {static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(first), 0};
    });
  }
  if (best_ == infinity || last_stage_.first == 0) return;
  const std::size_t kind = last_stage_.kind;
  const double compute = tables_->compute(kind, last_stage_.first, layers_);
  double best = infinity;
  for_each_way_in(tables_->level_of(1), last_stage_.first, kind, room_beside(kind),
                  [&](std::size_t before, double reached, double gradient) {
                    const double cost = tables_->stage_cost(compute, gradient);
                    const double sum = weighted(0, compute, 0, gradient) + reached;
                    if (!may_cost(cost) || !(sum < best)) return;
                    best = sum;
                    last_stage_.group_before = static_cast<std::uint32_t>(before);
                  });
}

/// Calls visit(group before, least of the layers before, time of the gradients) for a stage on `kind` that begins at
/// `cut`; a run that it continues has `room` left.
template <typename Visit>
void PathRelaxation::for_each_way_in(std::size_t level, std::size_t cut, std::size_t kind, std::size_t room,
                                     const Visit& visit) const
{
  const std::size_t group = tables_->group_of(kind);
  const double* gradients = this->gradients(kind, cut);
  const double* others = entering(level, cut, group);
  for (std::size_t before = 0; before < groups_; ++before) {
    visit(before, before == group ? staying(level, cut, group)[room] : others[before], gradients[before]);
  }
}

double PathRelaxation::least_completion(std::size_t stages, std::size_t cut, std::size_t kind, double compute,
                                        double sent, std::size_t room) const
{
  const std::size_t level = tables_->level_of(stages);
  const std::size_t own_level = tables_->level_of(stages - 1);
  if (cut == 0) {
    const double cost = tables_->stage_cost(compute, sent);
    const double input = tables_->input_cost(kind);
    return may_cost(cost) && within_limit(tables_->input_turn(kind))
               ? weighted(own_level, compute, sent, 0) + beta_ * input
               : infinity;
  }
  if (kernel_ == Kernel::Window) {
    return weighted(own_level, compute, sent, gradients(kind, cut)[0]) + value_[row(level, cut)];
  }
  double best = infinity;
  for_each_way_in(level, cut, kind, room, [&](std::size_t, double reached, double gradient) {
    const double cost = tables_->stage_cost(compute, sent + gradient);
    if (may_cost(cost)) best = std::min(best, weighted(own_level, compute, sent, gradient) + reached);
  });
  return best;
}

/// The last stage of the cheapest layers before a front.
PathRelaxation::Choice PathRelaxation::last_stage_of(const Front& front) const
{
  const std::size_t before = level_before(front.level);
  Choice chosen;
  double best = infinity;
  for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
    if (tables_->group_of(kind) != front.group || !rooms_.has(front.room, kind)) continue;
    for_each_last_stage(front.level, front.cut, kind, [&](std::size_t first, double compute) {
      const auto offer = [&](double base, double back, std::size_t group_before) {
        const double sent = outputs(kind, front.cut)[front.next];
        const double cost = tables_->stage_cost(compute, back + sent);
        const double sum = base + weighted(front.level, compute, sent, back);
        if (!may_cost(cost) || !(sum < best)) return;  // 0 x infinity is not a number
        best = sum;
        chosen = {static_cast<std::uint32_t>(kind), static_cast<std::uint32_t>(first),
                  static_cast<std::uint32_t>(group_before)};
      };
      if (first == 0) {
        offer(begin_on(kind), 0, front.group);
        return;
      }
      for_each_way_in(before, first, kind, front.room - rooms_.step(kind),
                      [&](std::size_t group_before, double reached, double gradient) {
                        offer(reached + multipliers_[kind], gradient, group_before);
                      });
    });
  }
  return chosen;
}

std::vector<PathRelaxation::Choice> PathRelaxation::choices() const
{
  ensure(best_ < infinity, "a relaxation without a sequence has no uses");
  std::vector<Choice> found = {last_stage_};
  std::size_t level = tables_->level_of(1);
  if (kernel_ == Kernel::Window) {
    for (; found.back().first > 0; level = level_before(level)) {
      found.push_back(choice_[row(level, found.back().first)]);
    }
    return found;
  }
  std::size_t room = rooms_.all(tables_->group_of(last_stage_.kind));
  for (; found.back().first > 0; level = level_before(level)) {
    const auto& [kind, first, before] = found.back();
    const std::size_t group = tables_->group_of(kind);
    room = before == group ? room - rooms_.step(kind) : rooms_.all(before);
    found.push_back(last_stage_of({level, first, before, group, room}));
  }
  return found;
}

void PathRelaxation::count_uses(std::vector<std::uint32_t>& uses) const
{
  uses.assign(tables_->kinds(), 0);
  for (const Choice& choice : choices()) ++uses[choice.kind];
}

}  // namespace isobar::allocators
