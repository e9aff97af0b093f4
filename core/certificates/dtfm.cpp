// Checks that no placement of a plan's stages costs less communication by DT-FM, by a search over groups of
// interchangeable devices (docs/certificates.md).

#include "core/certificates/proofs.hpp"
#include "core/check/dtfm_cost.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace isobar::proofs {

namespace {

/// By how much less than claimed is proven, relative: costs that are equal but for rounding are no contradiction.
constexpr double rounding_of_pipelines = 5e-10;
constexpr std::uint64_t most_remembered = 2'000'000;  // nodes of a rung's search
constexpr std::uint64_t steps_of_node = 100;

/// The times of exchanges and passes between all devices.
struct Times {
  Times(const Cluster& cluster, const DtFmFacts& facts, Effort& effort) : devices(cluster.devices.size())
  {
    Effort::ensure_room(devices * devices, 2 * sizeof(double), "the paths");
    exchange.resize(devices * devices);
    pass.resize(devices * devices);
    for (std::size_t i = 0; i < devices; ++i) {
      effort.take(devices);
      for (std::size_t j = 0; j < devices; ++j) {
        if (i == j) continue;
        const Path path = cluster.path(i, j);
        exchange[i * devices + j] = exchange_s(path, facts);
        pass[i * devices + j] = pass_s(path, facts);
      }
    }
  }

  /// The shortest sync that some stage of every placement exceeds or meets: with the nearest other devices each.
  double least_sync(const DtFmFacts& facts) const
  {
    std::vector<double> least;
    for (std::size_t i = 0; i < devices; ++i) {
      std::vector<double> times;
      for (std::size_t j = 0; j < devices; ++j) {
        if (j != i) times.push_back(exchange[i * devices + j]);
      }
      std::sort(times.begin(), times.end());
      const auto partners = static_cast<std::ptrdiff_t>(facts.replicas - 1);
      least.push_back(std::accumulate(times.begin(), times.begin() + partners, 0.0));
    }
    std::sort(least.begin(), least.end());
    return least[facts.stages * facts.replicas - 1];
  }

  double least_passes(const DtFmFacts& facts) const
  {
    double least = infinity;
    for (std::size_t i = 0; i < devices * devices; ++i) {
      if (i / devices != i % devices) least = std::min(least, pass[i]);
    }
    return facts.stages > 1 ? static_cast<double>(facts.stages - 1) * least : 0;
  }

  /// Whether an exchange of two devices changes no time.
  bool are_alike(std::size_t a, std::size_t b) const
  {
    for (const auto* times : {&exchange, &pass}) {
      const auto time = [&](std::size_t from, std::size_t to) { return (*times)[from * devices + to]; };
      if (time(a, b) != time(b, a)) return false;
      for (std::size_t k = 0; k < devices; ++k) {
        if (k == a || k == b) continue;
        if (time(a, k) != time(b, k) || time(k, a) != time(k, b)) return false;
      }
    }
    return true;
  }

  std::size_t devices;
  std::vector<double> exchange;
  std::vector<double> pass;
};

/// Numbers of devices of each group.
using Counts = std::vector<unsigned>;

/// The ways in which a stage can have devices of the groups, and the passes between two of them.
class Ways {
 public:
  Ways(const Times& times, const std::vector<std::vector<std::size_t>>& members, std::size_t replicas, double longest,
       Effort& effort)
      : groups_(members.size()), replicas_(replicas), effort_(effort)
  {
    for (const auto& group : members) room_.push_back(static_cast<unsigned>(group.size()));
    exchange_.resize(groups_ * groups_, 0);
    std::vector<double> pass(groups_ * groups_, infinity);
    for (std::size_t s = 0; s < groups_; ++s) {
      for (std::size_t t = 0; t < groups_; ++t) {
        if (s == t && room_[s] == 1) continue;  // there is no other device
        const std::size_t pair = members[s].front() * times.devices + (s == t ? members[t][1] : members[t].front());
        exchange_[s * groups_ + t] = times.exchange[pair];
        pass[s * groups_ + t] = times.pass[pair];
      }
    }
    levels_ = pass;
    std::sort(levels_.begin(), levels_.end());
    levels_.erase(std::unique(levels_.begin(), levels_.end()), levels_.end());
    if (levels_.back() != infinity) levels_.push_back(infinity);
    if (levels_.size() > unknown / 2) {
      throw TooMuchEffort{
          fmt::format("certificate.groups: have more than {} different paths; it is not checked", unknown / 2)};
    }
    for (const double time : pass) {
      level_.push_back(
          static_cast<std::uint16_t>(std::lower_bound(levels_.begin(), levels_.end(), time) - levels_.begin()));
    }
    Counts counts(groups_, 0);
    collect(0, static_cast<unsigned>(replicas), counts);
    std::sort(all_.begin(), all_.end());
    within_ =
        static_cast<std::size_t>(std::upper_bound(all_.begin(), all_.end(), longest * (1 + rounding),
                                                  [](double limit, const auto& way) { return limit < way.first; }) -
                                 all_.begin());
    Effort::ensure_room(within_ * within_, sizeof(std::uint16_t), "the passes between stages");
    known_.resize(within_ * within_, unknown);
    onward_.resize(within_, -1);
    find_levels(to_, true);
    find_levels(from_, false);
  }

  std::size_t size() const { return all_.size(); }
  /// The number of those that sync within a limit.
  std::size_t within(double limit) const
  {
    const auto end = std::upper_bound(all_.begin(), all_.end(), limit * (1 + rounding),
                                      [](double most, const auto& way) { return most < way.first; });
    return static_cast<std::size_t>(end - all_.begin());
  }
  double sync(std::size_t way) const { return all_[way].first; }
  const Counts& operator[](std::size_t way) const { return all_[way].second; }
  const std::vector<unsigned>& room() const { return room_; }

  /// A time that the pass between two stages is not below; often that pass itself.
  double at_least(std::size_t from, std::size_t to)
  {
    auto& level = known_[from * within_ + to];
    if (level == unknown) level = static_cast<std::uint16_t>(2 * least_level(from, to));
    return levels_[level / 2];
  }
  /// A time that the pass from a stage to one of another way is not below.
  double least_onward(std::size_t from)
  {
    double& least = onward_[from];
    if (least >= 0) return least;
    least = infinity;
    effort_.take(within_);
    for (std::size_t to = 0; to < within_; ++to) {
      if (to != from) least = std::min(least, at_least(from, to));
    }
    return least;
  }
  /// The slowest pass between two stages, whose devices are paired so that it is fastest.
  double pass(std::size_t from, std::size_t to)
  {
    at_least(from, to);
    auto& level = known_[from * within_ + to];
    if (level % 2 == 0) {
      level = static_cast<std::uint16_t>(2 * paired_level((*this)[from], (*this)[to], level / 2) + 1);
    }
    return levels_[level / 2];
  }

 private:
  static constexpr std::uint16_t unknown = 0xffff;

  void collect(std::size_t group, unsigned left, Counts& counts)
  {
    effort_.take(1);
    if (group == groups_) {
      if (left > 0) return;
      Effort::ensure_room(all_.size() + 1, 64 + groups_ * sizeof(unsigned), "the ways to make a stage");
      double longest = 0;
      for (std::size_t s = 0; s < groups_; ++s) {
        if (counts[s] == 0) continue;
        double sync = 0;
        for (std::size_t t = 0; t < groups_; ++t) {
          sync += (counts[t] - (s == t ? 1 : 0)) * exchange_[s * groups_ + t];
        }
        longest = std::max(longest, sync);
      }
      all_.emplace_back(longest, counts);
      return;
    }
    for (unsigned count = 0; count <= std::min(left, room_[group]); ++count) {
      counts[group] = count;
      collect(group + 1, left - count, counts);
    }
    counts[group] = 0;
  }

  std::size_t level_of(std::size_t from, std::size_t to) const { return level_[from * groups_ + to]; }

  /// Where the levels of a way begin within which 0, 1, … devices of a group find as many partners in it.
  std::size_t place(std::size_t way, std::size_t group) const { return (way * groups_ + group) * (replicas_ + 1); }

  /// Fills in the levels for devices that pass to those of the ways, or that get passes from them.
  void find_levels(std::vector<std::uint16_t>& levels, bool are_senders) const
  {
    Effort::ensure_room(place(within_, 0), 2 * sizeof(std::uint16_t), "the partners of devices");
    levels.resize(place(within_, 0));
    for (std::size_t way = 0; way < within_; ++way) {
      effort_.take(groups_ * (replicas_ + levels_.size()));
      for (std::size_t s = 0; s < groups_; ++s) {
        std::size_t level = 0;
        for (unsigned devices = 0; devices <= replicas_; ++devices) {
          for (;; ++level) {
            unsigned found = 0;
            for (std::size_t t = 0; t < groups_; ++t) {
              found += (are_senders ? level_of(s, t) : level_of(t, s)) <= level ? all_[way].second[t] : 0;
            }
            if (found >= devices) break;
          }
          levels[place(way, s) + devices] = static_cast<std::uint16_t>(level);
        }
      }
    }
  }

  /// The level within which the devices of each group find as many partners as they are.
  std::uint16_t least_level(std::size_t from, std::size_t to) const
  {
    const Counts& sent = all_[from].second;
    const Counts& received = all_[to].second;
    std::uint16_t level = 0;
    for (std::size_t s = 0; s < groups_; ++s) {
      if (sent[s] + received[s] > room_[s]) return static_cast<std::uint16_t>(levels_.size() - 1);  // infinity
      level = std::max({level, to_[place(to, s) + sent[s]], from_[place(from, s) + received[s]]});
    }
    return level;
  }

  /// The least level, from `level` on, within which all devices can be paired: a flow that grows with the level.
  std::size_t paired_level(const Counts& from, const Counts& to, std::size_t level)
  {
    if (level + 1 == levels_.size() && levels_.back() == infinity) return level;
    Counts unpaired = from;
    Counts free = to;
    unsigned left = std::accumulate(from.begin(), from.end(), 0U);
    flow_.assign(groups_ * groups_, 0);
    for (;; ++level) {
      while (pair_one(level, unpaired, free)) {
        if (--left == 0) return level;
      }
    }
  }

  /// Pairs one more device: finds groups that hand over partners along a path. False if there is none.
  bool pair_one(std::size_t level, Counts& unpaired, Counts& free)
  {
    constexpr std::size_t none = static_cast<std::size_t>(-1);
    std::vector<std::size_t> sender_of(groups_, none);    // by receiver: how the path reaches it
    std::vector<std::size_t> receiver_of(groups_, none);  // by sender: whom it takes a partner from; itself: it begins
    std::vector<std::size_t> senders;
    for (std::size_t s = 0; s < groups_; ++s) {
      if (unpaired[s] == 0) continue;
      senders.push_back(s);
      receiver_of[s] = groups_;
    }
    for (std::size_t next = 0; next < senders.size(); ++next) {
      const std::size_t s = senders[next];
      for (std::size_t t = 0; t < groups_; ++t) {
        if (level_of(s, t) > level || sender_of[t] != none) continue;
        sender_of[t] = s;
        if (free[t] > 0) {
          --free[t];
          for (std::size_t receiver = t;;) {
            const std::size_t sender = sender_of[receiver];
            ++flow_[sender * groups_ + receiver];
            receiver = receiver_of[sender];
            if (receiver == groups_) {
              --unpaired[sender];
              return true;
            }
            --flow_[sender * groups_ + receiver];
          }
        }
        for (std::size_t other = 0; other < groups_; ++other) {
          if (flow_[other * groups_ + t] == 0 || receiver_of[other] != none) continue;
          receiver_of[other] = t;
          senders.push_back(other);
        }
      }
    }
    return false;
  }

  std::size_t groups_;
  std::size_t replicas_;
  Effort& effort_;
  std::vector<unsigned> room_;
  std::vector<double> exchange_;
  std::vector<double> levels_;
  std::vector<std::uint16_t> level_;
  std::vector<std::pair<double, Counts>> all_;  // with the sync, in rising order
  std::size_t within_ = 0;                      // the longest limit
  std::vector<std::uint16_t> known_;  // twice the level of a pass, and 1 if it is the pass itself and no bound on it
  std::vector<double> onward_;        // by way; below 0: not known yet
  std::vector<std::uint16_t> to_;     // by way, group and number of its devices
  std::vector<std::uint16_t> from_;   // likewise
  std::vector<unsigned> flow_;
};

/// Searches the placements whose stages are among the first `count` ways.
class PipelineSearch {
 public:
  PipelineSearch(Ways& ways, std::size_t count, std::size_t stages, const std::vector<double>& multipliers,
                 Effort& effort)
      : ways_(ways), count_(count), stages_(stages), multipliers_(multipliers), effort_(effort), left_(ways.room())
  {
    std::vector<double> charge(count, 0);
    most_.resize(count, stages);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t s = 0; s < left_.size(); ++s) {
        charge[i] += multipliers[s] * ways[i][s];
        if (ways[i][s] > 0) most_[i] = std::min<std::size_t>(most_[i], left_[s] / ways[i][s]);
      }
    }
    charge_ = std::move(charge);
    Effort::ensure_room(count * (stages + 1), 2 * sizeof(double) + sizeof(std::size_t), "the rungs");
    from_.assign(stages + 1, std::vector<double>(count, infinity));
    behind_.assign(stages + 1, std::vector<double>(count, infinity));
    order_.assign(stages + 1, std::vector<std::size_t>(count));
    std::fill(behind_[0].begin(), behind_[0].end(), 0);
    for (std::size_t k = 1; k <= stages; ++k) relax(k);
  }

  /// The least cost found below `limit`; infinity if there is none. DP counts as at least `sync`.
  double least_below(double limit, double sync)
  {
    limit_ = limit;
    least_ = infinity;
    visit(stages_, none, 0, sync);
    return least_;
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  /// The time of a run's passes within it.
  double within_run(std::size_t way, std::size_t length)
  {
    return length > 1 ? static_cast<double>(length - 1) * ways_.pass(way, way) : 0;
  }

  /// The shortest paths of k stages, charged for their devices: that begin with a way, and after a run of a way.
  void relax(std::size_t k)
  {
    for (std::size_t i = 0; i < count_; ++i) {
      effort_.take(k);
      for (std::size_t length = 1; length <= std::min(k, most_[i]); ++length) {
        from_[k][i] = std::min(
            from_[k][i], within_run(i, length) + static_cast<double>(length) * charge_[i] + behind_[k - length][i]);
      }
    }
    std::iota(order_[k].begin(), order_[k].end(), std::size_t{0});
    std::sort(order_[k].begin(), order_[k].end(),
              [&](std::size_t a, std::size_t b) { return from_[k][a] < from_[k][b]; });
    for (std::size_t i = 0; i < count_ && k < stages_; ++i) {
      std::size_t scanned = 0;
      double& least = behind_[k][i];
      for (const std::size_t j : order_[k]) {
        if (from_[k][j] + ways_.least_onward(i) >= least) break;
        ++scanned;
        if (j == i || from_[k][j] + ways_.at_least(i, j) >= least) continue;
        least = std::min(least, from_[k][j] + ways_.pass(i, j));
      }
      effort_.take(scanned);
    }
  }

  void visit(std::size_t stages, std::size_t last, double passes, double sync)
  {
    effort_.take(steps_of_node);
    if (stages == 0) {
      least_ = std::min(least_, sync + 2 * passes);
      return;
    }
    double unused = 0;
    for (std::size_t s = 0; s < left_.size(); ++s) unused += multipliers_[s] * left_[s];
    std::size_t scanned = 0;
    const double least_pass = last == none ? 0 : ways_.least_onward(last);
    for (const std::size_t way : order_[stages]) {
      if (sync + 2 * (passes + least_pass + from_[stages][way] - unused) >= limit_) break;
      ++scanned;
      const double longest = std::max(sync, ways_.sync(way));
      const bool is_too_dear = way == last || longest + 2 * (passes + (last == none ? 0 : ways_.at_least(last, way)) +
                                                             from_[stages][way] - unused) >=
                                                  limit_;
      if (is_too_dear) continue;
      const Counts& counts = ways_[way];
      std::size_t most = stages;
      for (std::size_t s = 0; s < left_.size(); ++s) {
        if (counts[s] > 0) most = std::min<std::size_t>(most, left_[s] / counts[s]);
      }
      if (most == 0) continue;
      const double arrived = passes + (last == none ? 0 : ways_.pass(last, way));
      for (std::size_t length = 1; length <= most; ++length) {
        const double ended = arrived + within_run(way, length);
        const double onward = static_cast<double>(length) * charge_[way] + behind_[stages - length][way];
        if (longest + 2 * (ended + onward - unused) >= limit_) continue;
        use(counts, length, true);
        if (is_new(way, ended, longest)) visit(stages - length, way, ended, longest);
        use(counts, length, false);
      }
    }
    effort_.take(scanned);
  }

  void use(const Counts& counts, std::size_t length, bool takes)
  {
    for (std::size_t s = 0; s < left_.size(); ++s) {
      const auto devices = static_cast<unsigned>(length) * counts[s];
      left_[s] = takes ? left_[s] - devices : left_[s] + devices;
    }
  }

  /// False if the same devices have been used before, ending alike, at no higher cost.
  bool is_new(std::size_t last, double passes, double sync)
  {
    const auto entry = remembered_.find({left_, last});
    if (entry == remembered_.end()) {
      if (remembered_.size() < most_remembered) remembered_[{left_, last}] = {{passes, sync}};
      return true;
    }
    auto& known = entry->second;
    const auto is_no_dearer = [&](const auto& other) { return other.first <= passes && other.second <= sync; };
    if (std::any_of(known.begin(), known.end(), is_no_dearer)) return false;
    known.emplace_back(passes, sync);
    return true;
  }

  Ways& ways_;
  std::size_t count_;
  std::size_t stages_;
  const std::vector<double>& multipliers_;
  Effort& effort_;
  std::vector<unsigned> left_;               // devices of each group
  std::vector<double> charge_;               // of a way
  std::vector<std::size_t> most_;            // stages in a run of it
  std::vector<std::vector<double>> from_;    // by stages
  std::vector<std::vector<double>> behind_;  // likewise
  std::vector<std::vector<std::size_t>> order_;
  std::map<std::pair<std::vector<unsigned>, std::size_t>, std::vector<std::pair<double, double>>> remembered_;
  double limit_ = 0;
  double least_ = infinity;
};

}  // namespace

DtFmFinding search_dtfm_below(const Plan& plan, const Workload& workload, const Cluster& cluster, Effort& effort)
{
  const DtFmFacts facts = dtfm_facts(plan, workload);
  const Times times(cluster, facts, effort);
  const double least_sync = times.least_sync(facts);
  const double least_passes = times.least_passes(facts);
  const Certificate& certificate = plan.certificate;
  if (certificate.rungs.empty()) return {{}, least_sync + 2 * least_passes};

  std::vector<std::vector<std::size_t>> members;
  for (std::size_t i = 0; i < times.devices; ++i) {
    const std::size_t group = certificate.groups.empty() ? 0 : certificate.groups[i];
    members.resize(std::max(members.size(), group + 1));
    if (!members[group].empty() && !times.are_alike(members[group].front(), i)) {
      return {{infinity, fmt::format("certificate.groups[{}]: claims {}, that of {}; it is another, since the paths of "
                                     "{} differ",
                                     i, group, shown(cluster.devices[members[group].front()].name),
                                     shown(cluster.devices[i].name))},
              0};
    }
    members[group].push_back(i);
    effort.take(times.devices);
  }
  const auto& last = certificate.rungs.back().limit;
  double longest = infinity;
  if (last) longest = last->value;
  Ways ways(times, members, facts.replicas, longest, effort);
  const auto least_beyond = [&](std::size_t count) {
    if (count >= ways.size()) return infinity;
    return std::max(least_sync, ways.sync(count));
  };
  DtFmFinding result;
  result.proven = std::min(plan.objective_bound->value,
                           least_beyond(last ? ways.within(last->value) : ways.size()) + 2 * least_passes);
  std::size_t before = 0;
  for (const auto& rung : certificate.rungs) {
    const std::size_t count = rung.limit ? ways.within(rung.limit->value) : ways.size();
    if (count > before) {
      PipelineSearch search(ways, count, facts.stages, rung.multipliers, effort);
      result.least =
          std::min(result.least, search.least_below(result.proven * (1 - rounding_of_pipelines), least_beyond(before)));
    }
    before = count;
  }
  return result;
}

}  // namespace isobar::proofs
