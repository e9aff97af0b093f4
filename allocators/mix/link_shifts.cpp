#include "allocators/mix/link_shifts.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace isobar::allocators {

namespace {

using Members = std::vector<std::size_t>;

constexpr std::size_t most_edges = 1'000'000;
constexpr Ticks not_tied = -1;
constexpr double no_excess = 1e-12;  // less is rounding

bool sends_over(const PeriodicJob& job, std::size_t link)
{
  return std::ranges::any_of(job.pieces, [&](const DemandPiece& piece) { return piece.link == link; });
}

struct Horizon {
  Ticks time = 1;
  bool is_whole = true;  ///< the least common multiple of the periods
};

/// Over which the excess on a link is counted.
Horizon horizon_of(const std::vector<PeriodicJob>& jobs, const Members& members)
{
  double least = 1;  // common multiple
  Ticks exact = 1;
  double edges_per_tick = 0;
  for (const std::size_t job : members) {
    const Ticks factor = jobs[job].period / std::gcd(exact, jobs[job].period);
    least *= static_cast<double>(factor);
    edges_per_tick += 2.0 * static_cast<double>(jobs[job].pieces.size()) / static_cast<double>(jobs[job].period);
    const double most = static_cast<double>(most_edges) / edges_per_tick;
    if (least > most || least > 1e18) return {std::max<Ticks>(1, static_cast<Ticks>(std::min(most, 1e18))), false};
    exact *= factor;
  }
  return {exact, true};
}

/// E of a link of these jobs.
double excess_on(const std::vector<PeriodicJob>& jobs, const Members& members, std::size_t link,
                 const std::vector<Ticks>& shifts)
{
  const Ticks end = horizon_of(jobs, members).time;
  std::vector<std::pair<Ticks, double>> edges;
  for (const std::size_t job : members) {
    for (const auto& piece : jobs[job].pieces) {
      if (piece.link != link) continue;
      // The period before the first one may reach into it.
      for (Ticks from = shifts[job] % jobs[job].period - jobs[job].period; from < end; from += jobs[job].period) {
        const Ticks begins = std::max<Ticks>(0, from + piece.begin);
        const Ticks ends = std::min(end, from + piece.end);
        if (begins >= ends) continue;
        edges.emplace_back(begins, piece.rate);
        edges.emplace_back(ends, -piece.rate);
      }
    }
  }
  std::ranges::sort(edges);
  double excess = 0;
  double load = 0;
  Ticks time = 0;
  for (const auto& [at, change] : edges) {
    if (load > 1 + no_excess) excess += (load - 1) * static_cast<double>(at - time);
    time = at;
    load += change;
  }
  return excess / static_cast<double>(end);
}

/// Shifts of some jobs for the least sum of excess over some links.
class ShiftSearch {
 public:
  ShiftSearch(const std::vector<PeriodicJob>& jobs, Members members, Members links, std::uint64_t most_steps)
      : jobs_(jobs), members_(std::move(members)), links_(std::move(links)), left_(most_steps)
  {
  }

  /// Fills in the members' shifts; false if others may be better.
  bool run(std::vector<Ticks>& shifts)
  {
    shifts_.assign(jobs_.size(), not_tied);
    shifts_[members_.front()] = 0;
    extend(1);
    for (const std::size_t job : members_) shifts[job] = best_.empty() ? 0 : best_[job];
    return is_exact_;
  }

 private:
  struct Tie {
    double excess = 0;
    std::size_t job = 0;
    Ticks shift = 0;
  };

  /// Of the jobs that are tied.
  double excess_so_far()
  {
    double excess = 0;
    for (const std::size_t link : links_) {
      Members tied;
      for (const std::size_t job : members_) {
        if (shifts_[job] != not_tied && sends_over(jobs_[job], link)) tied.push_back(job);
      }
      if (tied.size() < 2) continue;
      is_exact_ = is_exact_ && horizon_of(jobs_, tied).is_whole;
      excess += excess_on(jobs_, tied, link, shifts_);
    }
    return excess;
  }

  /// The ways to tie one more job to one that is tied: an edge of each meets on a link.
  std::set<std::pair<std::size_t, Ticks>> ways()
  {
    std::set<std::pair<std::size_t, Ticks>> found;
    for (const std::size_t job : members_) {
      if (shifts_[job] != not_tied) continue;
      for (const std::size_t other : members_) {
        if (shifts_[other] == not_tied) continue;
        for (const auto& piece : jobs_[job].pieces) {
          for (const auto& met : jobs_[other].pieces) {
            if (met.link != piece.link || std::ranges::find(links_, piece.link) == links_.end()) continue;
            for (const Ticks edge : {piece.begin, piece.end}) {
              for (const Ticks other_edge : {met.begin, met.end}) add_ways(job, other, other_edge - edge, found);
            }
          }
        }
      }
    }
    return found;
  }

  void add_ways(std::size_t job, std::size_t other, Ticks difference, std::set<std::pair<std::size_t, Ticks>>& found)
  {
    const Ticks period = jobs_[job].period;
    const Ticks step = std::gcd(period, jobs_[other].period);
    // Two jobs meet alike again after the greatest common divisor of their periods.
    const Ticks end = members_.size() == 2 ? step : period;
    const Ticks first = ((shifts_[other] + difference) % step + step) % step;
    for (Ticks shift = first; shift < end; shift += step) {
      if (found.size() >= left_) {
        is_exact_ = false;
        return;
      }
      found.emplace(job, shift);
    }
  }

  void extend(std::size_t tied)
  {
    if (tied == members_.size()) {
      const double excess = excess_so_far();
      if (!best_.empty() && excess >= least_) return;
      least_ = excess;
      best_ = shifts_;
      return;
    }
    std::vector<Tie> ties;
    for (const auto& [job, shift] : ways()) {
      if (left_ == 0) {
        is_exact_ = false;
        break;
      }
      --left_;
      shifts_[job] = shift;
      if (seen_.insert(shifts_).second) ties.push_back({excess_so_far(), job, shift});
      shifts_[job] = not_tied;
    }
    std::ranges::stable_sort(ties, {}, &Tie::excess);
    for (const auto& [excess, job, shift] : ties) {
      if (!best_.empty() && excess >= least_ - no_excess) return;
      shifts_[job] = shift;
      extend(tied + 1);
      shifts_[job] = not_tied;
    }
  }

  const std::vector<PeriodicJob>& jobs_;
  Members members_;
  Members links_;
  std::uint64_t left_;
  std::vector<Ticks> shifts_;
  std::set<std::vector<Ticks>> seen_;
  std::vector<Ticks> best_;
  double least_ = std::numeric_limits<double>::infinity();
  bool is_exact_ = true;
};

/// The jobs that meet on each link.
std::vector<Members> meetings_of(const std::vector<PeriodicJob>& jobs, std::size_t links)
{
  std::vector<Members> meetings(links);
  for (std::size_t link = 0; link < links; ++link) {
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      if (sends_over(jobs[job], link)) meetings[link].push_back(job);
    }
  }
  return meetings;
}

bool has_in_common(const Members& a, const Members& b)
{
  return std::ranges::any_of(a, [&](std::size_t job) { return std::ranges::find(b, job) != b.end(); });
}

/// Links whose jobs hang together, and whether jobs and links form a tree.
struct Component {
  Members links;
  Members jobs;  ///< ascending
  bool is_tree = true;
};

std::vector<Component> components_of(const std::vector<Members>& meetings)
{
  std::vector<Component> components;
  std::vector<bool> is_taken(meetings.size());
  for (std::size_t first = 0; first < meetings.size(); ++first) {
    if (is_taken[first] || meetings[first].size() < 2) continue;
    Component component;
    component.links = {first};
    is_taken[first] = true;
    std::size_t arrows = 0;
    std::set<std::size_t> jobs;
    for (std::size_t i = 0; i < component.links.size(); ++i) {
      const Members& members = meetings[component.links[i]];
      arrows += members.size();
      jobs.insert(members.begin(), members.end());
      for (std::size_t link = 0; link < meetings.size(); ++link) {
        if (is_taken[link] || meetings[link].size() < 2 || !has_in_common(meetings[link], members)) continue;
        is_taken[link] = true;
        component.links.push_back(link);
      }
    }
    component.jobs.assign(jobs.begin(), jobs.end());
    component.is_tree = arrows + 1 == component.links.size() + component.jobs.size();
    components.push_back(std::move(component));
  }
  return components;
}

}  // namespace

std::vector<double> excess_of(const std::vector<PeriodicJob>& jobs, std::size_t links, const std::vector<Ticks>& shifts)
{
  ensure(shifts.size() == jobs.size(), "not one shift for each job");
  std::vector<double> excess;
  const auto meetings = meetings_of(jobs, links);
  for (std::size_t link = 0; link < links; ++link) excess.push_back(excess_on(jobs, meetings[link], link, shifts));
  return excess;
}

LinkShifts best_shifts(const std::vector<PeriodicJob>& jobs, std::size_t links, std::uint64_t most_steps)
{
  const auto meetings = meetings_of(jobs, links);
  LinkShifts found;
  found.shifts.assign(jobs.size(), 0);
  for (const auto& component : components_of(meetings)) {
    if (!component.is_tree) {
      found.is_exact &= ShiftSearch(jobs, component.jobs, component.links, most_steps).run(found.shifts);
      continue;
    }
    std::vector<bool> is_fixed(jobs.size());
    is_fixed[meetings[component.links.front()].front()] = true;
    // Each link of the tree is reached from one before it, with which it has one job in common.
    for (const std::size_t link : component.links) {
      std::vector<Ticks> own(jobs.size());
      found.is_exact &= ShiftSearch(jobs, meetings[link], {link}, most_steps).run(own);
      const auto fixed = std::ranges::find_if(meetings[link], [&](std::size_t job) { return is_fixed[job]; });
      ensure(fixed != meetings[link].end(), "a tree of links that does not hang together");
      const Ticks offset = found.shifts[*fixed] - own[*fixed];
      for (const std::size_t job : meetings[link]) {
        const Ticks period = jobs[job].period;
        if (!is_fixed[job]) found.shifts[job] = ((own[job] + offset) % period + period) % period;
        is_fixed[job] = true;
      }
    }
  }
  found.excess = excess_of(jobs, links, found.shifts);
  return found;
}

}  // namespace isobar::allocators
