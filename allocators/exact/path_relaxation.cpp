#include "allocators/exact/path_relaxation.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "core/errors.hpp"

#include <algorithm>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::uint32_t no_cut = ~std::uint32_t{0};

template <Communication communication>
double cost_of(double compute, double send)
{
  if (communication == Communication::None) return compute;
  return communication == Communication::Overlapped ? std::max(compute, send) : compute + send;
}

/// Extends layers that cost `base` by a stage: the least by the group that it sends to. Written to be vectorised.
template <Communication communication>
void extend(double base, double compute, double back, double beta, double most, std::size_t groups,
            const double* __restrict outputs, double* __restrict leaving)
{
  for (std::size_t next = 0; next < groups; ++next) {
    const double cost = cost_of<communication>(compute, back + outputs[next]);
    const double sum = base + beta * cost;
    double allowed = infinity;
    if (cost <= most) allowed = sum;
    leaving[next] = allowed < leaving[next] ? allowed : leaving[next];
  }
}

/// Extends a run by a stage, for each room. Written to be vectorised.
void stay_on(double more, std::size_t rooms, const double* __restrict reached, double* __restrict within)
{
  for (std::size_t room = 0; room < rooms; ++room) {
    const double sum = reached[room] + more;
    within[room] = sum < within[room] ? sum : within[room];
  }
}

}  // namespace

PathRelaxation::PathRelaxation(const StageTables& tables, std::function<void()> check)
    : tables_(&tables),
      check_(std::move(check)),
      layers_(tables.layers()),
      groups_(tables.groups()),
      rooms_(tables, tables.levels() * (layers_ + 1)),
      beta_(tables.weights().beta),
      weight_(tables.levels(), beta_),
      outputs_(tables.all_outputs()),
      gradients_(tables.all_gradients()),
      window_(tables.levels() * (layers_ + 1) * tables.kinds())
{
  const std::size_t rows = tables.levels() * (layers_ + 1);
  if (tables.is_hereditary() || (tables.limits_turns() && groups_ == 1 && tables.memory_is_hereditary())) {
    kernel_ = Kernel::Window;
    value_.resize(rows);
    choice_.resize(rows);
    queue_.resize(tables.kinds() * layers_);
  } else {
    entering_.resize(rows * groups_ * groups_);
    staying_.resize(rows * rooms_.states_in_all());
    least_before_.resize(rows * tables.kinds());
    leaving_.resize(groups_);
    rises_.resize(rows * groups_);
    seen_.resize(tables.sizes());
    std::vector<std::uint32_t> last(tables.sizes(), no_cut);
    for (std::uint32_t cut = 0; cut <= layers_; ++cut) {
      std::uint32_t& known = last[tables.size_of(cut)];
      previous_.push_back(known == no_cut ? cut : known);
      known = cut;
    }
    least_gradient_.assign(tables.kinds() * tables.sizes(), infinity);
    for (std::size_t kind = 0; kind < tables.kinds(); ++kind) {
      for (std::size_t cut = 0; cut <= layers_; ++cut) {
        const double* gradients = tables.gradients(kind, cut);
        least_gradient_[kind * tables.sizes() + tables.size_of(cut)] =
            *std::min_element(gradients, gradients + groups_);
      }
    }
  }
}

void PathRelaxation::set_limit(double limit)
{
  limit_ = limit;
  most_ = limit * (1 + 1e-12);
  most_cost_ = most_;
  if (tables_->limits_turns()) most_cost_ = infinity;
  if (tables_->goal().communication == Communication::Played) tables_->transfers_within(most_, outputs_, gradients_);
  if (kernel_ != Kernel::Window) {
    const bool is_serial = limit == infinity && tables_->goal().communication == Communication::Serial;
    const bool is_separable = tables_->limits_turns() || is_serial;
    kernel_ = is_separable ? Kernel::Separable : Kernel::Coupled;
  }
  tabulate_windows();
}

void PathRelaxation::set_slots(std::size_t slots)
{
  ensure(slots == 0 || (tables_->limits_turns() && slots <= tables_->levels()), "slots are levels of a step");
  for (std::size_t level = 0; level < tables_->levels(); ++level) {
    weight_[level] = beta_;
    if (level >= slots) continue;
    const std::uint64_t trips = 1 + (tables_->goal().microbatches - 1) / slots;
    weight_[level] = static_cast<double>(trips);
  }
}

void PathRelaxation::tabulate_windows()
{
  const bool is_exact = kernel_ == Kernel::Window;
  for (std::size_t level = 0; level < tables_->levels(); ++level) {
    for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
      std::size_t first = 0;
      for (std::size_t cut = 1; cut <= layers_; ++cut) {
        while (first < cut && (!within_limit(tables_->turn(level, kind, first, cut)) ||
                               (is_exact ? tables_->furthest(level, kind, first) < cut
                                         : tables_->surely_too_long(kind, first, cut)))) {
          ++first;
        }
        furthest_first(level, cut, kind) = static_cast<std::uint32_t>(first);
      }
    }
    check_();
  }
}

double PathRelaxation::solve(const std::vector<double>& multipliers)
{
  multipliers_ = multipliers;
  if (kernel_ == Kernel::Window) {
    std::fill(value_.begin(), value_.end(), infinity);
  } else {
    std::fill(entering_.begin(), entering_.end(), infinity);
    std::fill(staying_.begin(), staying_.end(), infinity);
  }
  for (std::size_t level = tables_->levels(); level-- > 0;) {
    if (kernel_ == Kernel::Window) solve_windows(level);
    for (std::size_t cut = 1; kernel_ != Kernel::Window && cut < layers_; ++cut) {
      if (cut % 16 == 0) check_();
      if (kernel_ == Kernel::Separable) {
        solve_separable(level, cut);
      } else if (tables_->goal().communication == Communication::Overlapped) {
        solve_coupled<Communication::Overlapped>(level, cut);
      } else if (tables_->goal().communication == Communication::Serial) {
        solve_coupled<Communication::Serial>(level, cut);
      } else {
        solve_coupled<Communication::None>(level, cut);
      }
      find_least_before(level, cut);
      find_rises(level, cut);
    }
    check_();
  }
  solve_end();
  return best_;
}

void PathRelaxation::solve_windows(std::size_t level)
{
  const std::size_t kinds = tables_->kinds();
  const double* before = &value_[row(level_before(level), 0)];
  double* value = &value_[row(level, 0)];
  Choice* choice = &choice_[row(level, 0)];
  value[0] = 0;
  if (beta_ == 0) {
    for (std::size_t cut = 1; cut <= layers_; ++cut) {
      const std::uint32_t* first = &window_[row(level, cut) * kinds];
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
  // Cost before a stage that begins at a cut: the layers before, and its gradients or, for the first layer, the input.
  const double weight = weight_[level];
  const double sent_back = weight_[level_before(level)];
  const auto begun = [&](std::size_t kind, std::size_t begin) {
    if (begin > 0) return before[begin] + sent_back * gradients(kind, begin)[0];
    return within_limit(tables_->input_turn(kind)) ? before[0] + beta_ * tables_->input_cost(kind) : infinity;
  };
  std::vector<std::uint32_t> head(kinds, 0);
  std::vector<std::uint32_t> tail(kinds, 0);
  for (std::size_t cut = 1; cut <= layers_; ++cut) {
    const std::uint32_t* first = &window_[row(level, cut) * kinds];
    double best = infinity;
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      std::uint32_t* queue = &queue_[kind * layers_];
      const double rate = weight * tables_->slowness(kind);
      const double reached = begun(kind, cut - 1);
      if (reached < infinity) {
        const double entering = reached - rate * tables_->work(kind, cut - 1);
        while (tail[kind] > head[kind]) {
          const std::uint32_t back = queue[tail[kind] - 1];
          if (begun(kind, back) - rate * tables_->work(kind, back) < entering) break;
          --tail[kind];
        }
        queue[tail[kind]++] = static_cast<std::uint32_t>(cut - 1);
      }
      while (head[kind] < tail[kind] && queue[head[kind]] < first[kind]) ++head[kind];
      if (head[kind] == tail[kind]) continue;
      const std::uint32_t begin = queue[head[kind]];
      const double sent = cut < layers_ ? weight * outputs(kind, cut)[0] : 0;
      const double work = tables_->work(kind, cut) - tables_->work(kind, begin);
      const double candidate = begun(kind, begin) + rate * work + multipliers_[kind] + sent;
      if (candidate < best) {
        best = candidate;
        choice[cut] = {static_cast<std::uint32_t>(kind), begin, 0};
      }
    }
    value[cut] = best;
  }
}

/// Keeps the least cost of stages on `kind` that end at `cut`: `leaving` by the group after them, whatever the run;
/// `entered` where they begin a run or the chain.
void PathRelaxation::keep(std::size_t level, std::size_t cut, std::size_t kind, const double* leaving, double entered)
{
  const std::size_t group = tables_->group_of(kind);
  double* to_group = &entering_[row(level, cut) * groups_ * groups_ + group];
  for (std::size_t next = 0; next < groups_; ++next) {
    if (next != group) to_group[next * groups_] = std::min(to_group[next * groups_], leaving[next]);
  }
  double* within = &staying_[row(level, cut) * rooms_.states_in_all() + rooms_.offset(group)];
  rooms_.for_each_stretch_with(kind, [&](std::size_t begin, std::size_t end) {
    for (std::size_t room = begin; room < end; ++room) within[room] = std::min(within[room], entered);
  });
}

void PathRelaxation::find_least_before(std::size_t level, std::size_t cut)
{
  double* least = &least_before_[row(level, cut) * tables_->kinds()];
  for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
    const std::size_t group = tables_->group_of(kind);
    const double* others = entering(level, cut, group);
    least[kind] = std::min(*std::min_element(others, others + groups_), staying(level, cut, group)[room_beside(kind)]);
  }
}

void PathRelaxation::find_rises(std::size_t level, std::size_t cut)
{
  const std::size_t previous = previous_[cut];
  for (std::size_t group = 0; group < groups_; ++group) {
    const auto no_less = [](const double* a, const double* b, std::size_t count) {
      return std::equal(a, a + count, b, [](double x, double y) { return x >= y; });
    };
    rises_[row(level, cut) * groups_ + group] =
        previous != cut && previous > 0 &&
        no_less(entering(level, cut, group), entering(level, previous, group), groups_) &&
        no_less(staying(level, cut, group), staying(level, previous, group), rooms_.states(group));
  }
}

/// A stage's cost is the sum of its compute and its transfers: the layers before do not depend on the stages after.
void PathRelaxation::solve_separable(std::size_t level, std::size_t cut)
{
  const std::size_t before = level_before(level);
  const double weight = weight_[level];
  const double sent_back = weight_[before];
  for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) {
    const std::size_t group = tables_->group_of(kind);
    const double* outputs = this->outputs(kind, cut);
    double* within = &staying_[row(level, cut) * rooms_.states_in_all() + rooms_.offset(group)];
    double entered = infinity;
    double stayed = infinity;
    for_each_last_stage(level, cut, kind, [&](std::size_t first, double compute) {
      if (first == 0) {
        entered = std::min(entered, begin_on(kind) + weight * compute);
        return;
      }
      const double* gradients = this->gradients(kind, first);
      const double* others = entering(before, first, group);
      const double own = multipliers_[kind] + weight * compute;
      for (std::size_t other = 0; other < groups_; ++other) {
        entered = std::min(entered, others[other] + own + sent_back * gradients[other]);
      }
      const double* reached = staying(before, first, group);
      if (reached[room_beside(kind)] == infinity) return;
      stayed = std::min(stayed, reached[room_beside(kind)] + own + sent_back * gradients[group]);
      const double more = own + sent_back * gradients[group] + weight * outputs[group];
      const std::size_t step = rooms_.step(kind);
      rooms_.for_each_stretch_with(kind, [&](std::size_t begin, std::size_t end) {
        stay_on(more, end - begin, reached + begin - step, within + begin);
      });
    });
    for (std::size_t next = 0; next < groups_; ++next) {
      leaving_[next] = std::min(entered, stayed) + weight * outputs[next];
    }
    keep(level, cut, kind, leaving_.data(), entered + weight * outputs[group]);
  }
}

template <Communication communication>
void PathRelaxation::solve_coupled(std::size_t level, std::size_t cut)
{
  for (std::size_t kind = 0; kind < tables_->kinds(); ++kind) extend_by<communication>(level, cut, kind);
}

/// Extends by stages on `kind` that end at `cut`, the longest first: the others begin later, where more has been paid.
/// When the compute of one is hidden behind its transfers, later cuts of the same size are no better beginnings.
template <Communication communication>
void PathRelaxation::extend_by(std::size_t level, std::size_t cut, std::size_t kind)
{
  const std::size_t kinds = tables_->kinds();
  const std::size_t groups = groups_;
  const std::size_t group = tables_->group_of(kind);
  const std::size_t before = level_before(level);
  const std::size_t step = rooms_.step(kind);
  const double beta = beta_;
  const double most = most_;
  const double* outputs = this->outputs(kind, cut);
  const double least_output = *std::min_element(outputs, outputs + groups);
  double* leaving = leaving_.data();
  double* within = &staying_[row(level, cut) * rooms_.states_in_all() + rooms_.offset(group)];
  std::fill(leaving, leaving + groups, infinity);
  const auto extend_from = [&](double base, double compute, double back) {
    extend<communication>(base, compute, back, beta, most, groups, outputs, leaving);
  };
  double entered = infinity;  // leaving[group], without what stays in the group
  double worst = infinity;    // the largest of `leaving` that can be reached
  const auto find_worst = [&] {
    worst = entered;
    for (std::size_t next = 0; next < groups; ++next) {
      if (outputs[next] <= most && next != group) worst = std::max(worst, leaving[next]);
    }
  };
  std::fill(seen_.begin(), seen_.end(), Seen{no_cut, false});
  for (std::size_t first = window_[row(level, cut) * kinds + kind]; first < cut; ++first) {
    const std::size_t size = tables_->size_of(first);
    Seen& seen = seen_[size];
    if (communication == Communication::Overlapped && seen.is_hidden && seen.first == previous_[first] &&
        rises_[row(before, first) * groups + group] != 0) {
      seen.first = static_cast<std::uint32_t>(first);
      continue;
    }
    const double compute = tables_->compute(kind, first, cut);
    if (first == 0) {
      if (!tables_->fits(level, kind, first, cut)) continue;
      extend_from(begin_on(kind), compute, 0);
      entered = leaving[group];
      find_worst();
      continue;
    }
    const double own = multipliers_[kind];
    const double least = least_before_[row(before, first) * kinds + kind] + own + beta * compute;
    if (least == infinity) continue;
    const double* reached = staying(before, first, group);
    const double reached_at_best = reached[room_beside(kind)];
    if (least >= worst && reached_at_best == infinity) continue;
    if (!tables_->fits(level, kind, first, cut)) continue;
    seen = {static_cast<std::uint32_t>(first),
            compute <= least_gradient_[kind * tables_->sizes() + size] + least_output};
    const double* gradients = this->gradients(kind, first);
    if (least < worst) {
      const double* others = entering(before, first, group);
      const auto from = [&](double reached_there, double back) {
        const double base = reached_there + own;
        const double cost = cost_of<communication>(compute, back + least_output);
        if (cost <= most && base + beta * cost < worst) extend_from(base, compute, back);
      };
      for (std::size_t other = 0; other < groups; ++other) {
        if (others[other] < infinity) from(others[other], gradients[other]);
      }
      entered = leaving[group];
      if (reached_at_best < infinity) from(reached_at_best, gradients[group]);
      leaving[group] = entered;
      find_worst();
    }
    const double cost = cost_of<communication>(compute, gradients[group] + outputs[group]);
    if (reached_at_best == infinity || !(cost <= most)) continue;
    const double more = own + beta * cost;
    rooms_.for_each_stretch_with(kind, [=](std::size_t begin, std::size_t end) {
      stay_on(more, end - begin, reached + begin - step, within + begin);
    });
  }
  keep(level, cut, kind, leaving, entered);
}

}  // namespace isobar::allocators
