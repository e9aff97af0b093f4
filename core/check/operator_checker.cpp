#include "core/check/operator_checker.hpp"

#include "core/check/checked_step.hpp"
#include "core/check/claims.hpp"
#include "core/check/tier_memory.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "core/program/round_time.hpp"
#include "core/steps/operator_needs.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace isobar {

namespace {

using Group = OperatorNeeds::Group;
using PartTimes = OperatorNeeds::PartTimes;
using Place = OperatorNeeds::Place;
using Way = OperatorNeeds::Way;

class OperatorChecker {
 public:
  OperatorChecker(const Plan& plan, const Workload& workload, const Cluster& cluster, const Program& program)
      : plan_(plan),
        workload_(workload),
        cluster_(cluster),
        program_(program),
        claims_(plan),
        needs_(plan, workload, cluster),
        microbatches_(static_cast<double>(plan.goal.microbatches))
  {
  }

  std::vector<std::string> faults()
  {
    for (std::size_t rank = 0; rank < needs_.devices().size(); ++rank) compare_work(rank);
    compare_collectives();
    compare_sums();
    compare_messages();
    if (!claims_.empty()) return claims_.take();
    const PlayedProgram played = play_program(program_, nominal_rates(plan_, cluster_));
    check_memory(played);
    check_claims();
    return claims_.take();
  }

 private:
  void compare_work(std::size_t rank)
  {
    std::vector<std::array<std::uint64_t, 3>> times(needs_.times()[rank].size());
    for (std::uint64_t i = 0; i < program_.length(rank, compute_lane); ++i) {
      const Instruction instruction = program_.at(rank, compute_lane, i);
      const PartTimes& own = needs_.times()[rank].at(instruction.stage);
      const std::size_t pass = instruction.opcode == Opcode::Forward ? 0 : instruction.opcode == Opcode::Update ? 2 : 1;
      const std::array<double, 3> expected = {own.forward, own.backward, own.update};
      ++times[instruction.stage][pass];
      if (agree(instruction.time.value, expected[pass]) || instruction.time.value == expected[pass]) continue;
      claims_.fault("part {}: the {} of {} takes {:.9g} s in its program; its operators take {:.9g}", instruction.stage,
                    name_of(instruction.opcode), shown(needs_.devices()[rank]), instruction.time.value, expected[pass]);
    }
    const std::uint64_t all = plan_.goal.microbatches;
    const Group& group = needs_.groups()[needs_.places()[rank].group];
    for (std::size_t part = 0; part < times.size(); ++part) {
      const bool is_own = part >= group.first_part && part < group.end_part;
      if (!is_own && times[part] == std::array<std::uint64_t, 3>{}) continue;
      if (!is_own) {
        claims_.fault("part {}: {} computes it, and is not a device of its stage", part, shown(needs_.devices()[rank]));
        continue;
      }
      if (times[part] == std::array<std::uint64_t, 3>{all, all, 1}) continue;
      claims_.fault("part {}: {} computes {} forwards, {} backwards and {} updates; a step has {}, {} and 1", part,
                    shown(needs_.devices()[rank]), times[part][0], times[part][1], times[part][2], all, all);
    }
    const double held = program_.resident(rank, Tier::Device).value;
    if (held == needs_.resident()[rank] || agree(held, needs_.resident()[rank])) return;
    claims_.fault("device {}: its program holds {:.9g} B throughout; its parameters need {:.9g} B",
                  shown(needs_.devices()[rank]), held, needs_.resident()[rank]);
  }

  /// The lane on which a rank meets exactly these ranks for more than gradient facts; none without one.
  std::optional<LaneId> lane_of(std::size_t rank, const std::vector<std::size_t>& ranks) const
  {
    const auto& lanes = program_.lanes(rank);
    for (std::size_t lane = 1; lane < lanes.size(); ++lane) {
      const auto id = static_cast<LaneId>(lane);
      const auto& ends = program_.channels()[lanes[lane].channel.value()].ends;
      const bool is_same = std::equal(ends.begin(), ends.end(), ranks.begin(), ranks.end(),
                                      [](const End& end, std::size_t other) { return end.rank == other; });
      const bool has_facts =
          program_.length(rank, id) > 0 && program_.at(rank, id, 0).payload == Payload::GradientFacts;
      if (is_same && !has_facts) return id;
    }
    return std::nullopt;
  }

  void compare_collectives()
  {
    for (std::size_t group = 0; group < needs_.groups().size(); ++group) {
      if (needs_.groups()[group].shares.size() == 1) continue;
      for (const auto& ranks : needs_.groups()[group].replicas) compare_collectives(group, ranks);
    }
  }

  /// Compares the number of collectives of a replica, and the bytes that its ranks have before and after them, by kind.
  void compare_collectives(std::size_t group, const std::vector<std::size_t>& ranks)
  {
    using Kind = std::pair<Opcode, Payload>;
    struct Total {
      std::uint64_t times = 0;
      double before = 0;
      double after = 0;
    };
    std::map<Kind, Total> needed;
    std::map<Kind, Total> found;
    for (const auto& each : needs_.collectives()[group]) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        Total& total = needed[{each.opcode, each.payload}];
        total.times += each.times;
        total.before += static_cast<double>(each.times) * each.before[i];
        total.after += static_cast<double>(each.times) * each.after[i];
      }
    }
    std::vector<End> ends;
    for (const std::size_t rank : ranks) {
      if (const auto lane = lane_of(rank, ranks)) ends.push_back({rank, *lane});
    }
    const std::uint64_t length = ends.empty() ? 0 : program_.length(ends.front().rank, ends.front().lane);
    for (std::uint64_t i = 0; i < length; ++i) {
      std::vector<Instruction> met;
      for (const End& end : ends) met.push_back(program_.at(end.rank, end.lane, i));
      const bool is_even =
          std::all_of(met.begin(), met.end(), [](const auto& each) { return each.result == Bytes(0); });
      for (const Instruction& instruction : met) {
        const double before = instruction.size.value;
        const double equal =
            instruction.opcode == Opcode::ReduceScatter ? before / static_cast<double>(ranks.size()) : before;
        Total& total = found[{instruction.opcode, instruction.payload}];
        ++total.times;
        total.before += before;
        total.after += is_even ? equal : instruction.result.value;
      }
    }
    const std::string where = needs_.collectives().size() * needs_.replicas() == 1
                                  ? ""
                                  : fmt::format("the replica of {}: ", shown(needs_.devices()[ranks.front()]));
    for (const auto& [kind, total] : needed) {
      const auto& [opcode, payload] = kind;
      const Total other = found[kind];
      const bool divides = opcode == Opcode::ReduceScatter || opcode == Opcode::AllToAll;
      const bool is_same = total.times == other.times && same(total.before, other.before) &&
                           (!divides || same(total.after, other.after));
      if (is_same) continue;
      claims_.fault("{}its program has {} of {} {} times with {:.9g} B; its reforms need {} with {:.9g} B", where,
                    name_of(opcode), name_of(payload), other.times, other.before, total.times, total.before);
    }
    for (const auto& [kind, total] : found) {
      if (needed.contains(kind)) continue;
      claims_.fault("{}its program has {} of {}; no reform needs it", where, name_of(kind.first), name_of(kind.second));
    }
  }

  /// Where a rank has what concerns the gradients of a part's parameters: the instructions of a lane up to it.
  struct Counts {
    std::uint64_t made = 0;     // the last backward, in the compute lane
    std::uint64_t updated = 0;  // the Update, there
    std::uint64_t brought = 0;  // the last collective within the replica of such a gradient
  };

  std::vector<Counts> counts_of(std::size_t rank, std::optional<LaneId> collectives) const
  {
    std::vector<Counts> counts(plan_.stages.size());
    for (std::uint64_t i = 0; i < program_.length(rank, compute_lane); ++i) {
      const Instruction each = program_.at(rank, compute_lane, i);
      if (each.opcode == Opcode::Backward) counts.at(each.stage).made = i + 1;
      if (each.opcode == Opcode::Update) counts.at(each.stage).updated = i + 1;
    }
    for (std::uint64_t i = 0; collectives && i < program_.length(rank, *collectives); ++i) {
      const Instruction each = program_.at(rank, *collectives, i);
      if (each.payload != Payload::ParameterGradient) continue;
      counts.at(each.stage).brought = i + 1;
      for (const std::size_t part : parts_brought_by(each)) counts.at(part).brought = i + 1;
    }
    return counts;
  }

  /// The parts whose parameters' gradients a collective within a replica brings: of the reform that it names, or of all
  /// of the bucket that this one ends.
  std::vector<std::size_t> parts_brought_by(const Instruction& collective) const
  {
    const auto& ends = plan_.sync.bucket_ends;
    std::vector<std::size_t> parts = {needs_.divided().reforms.at(collective.place).made_in};
    const auto last = std::find(needs_.in_backward().begin(), needs_.in_backward().end(), collective.place);
    if (last == needs_.in_backward().end() || ends.empty()) return parts;
    for (auto each = std::make_reverse_iterator(last); each != needs_.in_backward().rend(); ++each) {
      const spmd::PlacedReform& reform = needs_.divided().reforms[*each];
      const std::size_t parameter = needs_.divided().graph.tensors[reform.tensor].producer;
      if (std::find(ends.begin(), ends.end(), parameter) != ends.end()) break;
      parts.push_back(reform.made_in);
    }
    return parts;
  }

  /// Checks that replicas add up the gradients of each part once, after these exist and before its Update.
  void compare_sums()
  {
    if (needs_.replicas() == 1) return;
    for (std::size_t rank = 0; rank < needs_.devices().size(); ++rank) {
      const Place& place = needs_.places()[rank];
      const Group& group = needs_.groups()[place.group];
      const auto lane = lane_of(rank, needs_.counterparts(place));
      const auto collectives =
          group.shares.size() > 1 ? lane_of(rank, group.replicas[place.replica]) : std::optional<LaneId>();
      const std::uint64_t length = lane ? program_.length(rank, *lane) : 0;
      const auto counts = counts_of(rank, collectives);
      std::map<std::size_t, std::vector<std::uint64_t>> found;  // positions of each part's
      for (std::uint64_t i = 0; i < length; ++i) found[program_.at(rank, *lane, i).stage].push_back(i);
      for (std::size_t part = 0; part < plan_.stages.size(); ++part) {
        const bool is_own = part >= group.first_part && part < group.end_part;
        const double bytes = is_own ? needs_.bytes_of_gradients(part, place) : 0;
        if (found[part].size() != (bytes > 0 ? 1U : 0U)) {
          claims_.fault("part {}: {} adds up its gradients with other replicas {} times; it has {:.9g} B of them", part,
                        shown(needs_.devices()[rank]), found[part].size(), bytes);
        } else if (bytes > 0) {
          check_sum({rank, *lane}, found[part].front(), bytes, counts[part], collectives.value_or(compute_lane));
        }
      }
    }
  }

  void check_sum(const End& at, std::uint64_t position, double bytes, const Counts& counts, LaneId collectives)
  {
    const Instruction sum = program_.at(at.rank, at.lane, position);
    const auto& name = needs_.devices()[at.rank];
    if (sum.opcode != Opcode::AllReduce || sum.payload != Payload::ParameterGradient || !same(sum.size.value, bytes)) {
      claims_.fault("part {}: replicas of {} have {} of {} with {:.9g} B; its gradients are {:.9g} B", sum.stage,
                    shown(name), name_of(sum.opcode), name_of(sum.payload), sum.size.value, bytes);
    }
    const auto waits_for = [](const Instruction& instruction, LaneId lane, std::uint64_t count) {
      return count == 0 || std::any_of(instruction.waits.begin(), instruction.waits.end(), [&](const Wait& wait) {
               return wait.lane == lane && wait.periods_back == 0 && wait.count >= count;
             });
    };
    if (!waits_for(sum, compute_lane, counts.made) || !waits_for(sum, collectives, counts.brought)) {
      claims_.fault("part {}: replicas of {} add up its gradients before all of them exist", sum.stage, shown(name));
    }
    if (counts.updated == 0) return;
    if (waits_for(program_.at(at.rank, compute_lane, counts.updated - 1), at.lane, position + 1)) return;
    claims_.fault("part {}: {} updates it before the replicas have added up its gradients", sum.stage, shown(name));
  }

  void compare_messages()
  {
    struct Total {
      std::uint64_t times = 0;
      double bytes = 0;
    };
    std::map<Way, Total> found;
    for (const Channel& channel : program_.channels()) {
      const End& sender = channel.ends.front();
      for (std::uint64_t i = 0; i < program_.length(sender.rank, sender.lane); ++i) {
        const Instruction each = program_.at(sender.rank, sender.lane, i);
        if (each.opcode != Opcode::Send) break;
        Total& total = found[{sender.rank, channel.ends.back().rank, each.payload}];
        ++total.times;
        total.bytes += each.size.value;
      }
    }
    std::map<Way, Total> needed;
    for (const auto& [way, bytes] : needs_.messages()) needed[way] = {plan_.goal.microbatches, microbatches_ * bytes};
    for (const auto& [way, total] : needed) found.try_emplace(way);
    for (const auto& [way, total] : found) {
      const Total& right = needed[way];
      if (total.times == right.times && same(total.bytes, right.bytes)) continue;
      claims_.fault(
          "{} sends {} to {} {} times with {:.9g} B; what both have of the tensors between is {} times {:.9g} B",
          shown(needs_.devices()[std::get<0>(way)]), name_of(std::get<2>(way)),
          shown(needs_.devices()[std::get<1>(way)]), total.times, total.bytes, right.times,
          right.bytes / std::max(1.0, microbatches_));
    }
  }

  /// The longest message of each boundary and direction for one micro-batch, in all.
  double time_of_messages() const
  {
    if (plan_.goal.has_free_transfers()) return 0;
    std::map<std::pair<std::size_t, Payload>, double> longest;  // by the group that sends
    for (const auto& [way, bytes] : needs_.messages()) {
      const auto& [from, to, payload] = way;
      const Path path = cluster_.path(needs_.endpoints()[from], needs_.endpoints()[to]);
      double& most = longest[{needs_.places()[from].group, payload}];
      most = std::max(most, path.latency.value + bytes / path.bandwidth.value);
    }
    double seconds = 0;
    for (const auto& [way, most] : longest) seconds += most;
    return seconds;
  }

  static bool same(double a, double b) { return a == b || agree(a, b); }

  void check_memory(const PlayedProgram& played)
  {
    const auto memories = tier_memories(plan_, cluster_, played);
    for (const auto& [name, tier, need, memory] : memories) {
      if (need.value > memory.value * (1 + claim_tolerance)) {
        const auto [needs, has] = distinct_texts(need.value / 0x1p30, memory.value / 0x1p30, 6);
        claims_.fault("{} {}: its stages need {} GiB under schedule {}, and it has {} GiB", name_of(tier), shown(name),
                      needs, shown(text_of(plan_.goal.schedule)), has);
      }
      if (plan_.predicted) claims_.check_peak_memory(name, need.value);
    }
    const std::size_t claimed = plan_.predicted ? plan_.predicted->peak_memory.size() : 0;
    if (claimed > memories.size()) {
      claims_.fault("predicted.peak_memory_bytes: {}; the plan uses {}", counted(claimed, "name"), memories.size());
    }
  }

  /// How long a collective of these ranks takes alone, in rounds of flows over the platform's paths.
  double time_of(Opcode opcode, const std::vector<double>& before, const std::vector<double>& after,
                 const std::vector<std::size_t>& ranks, Algorithm algorithm = Algorithm::Ring) const
  {
    if (plan_.goal.has_free_transfers()) return 0;
    std::vector<Bytes> sizes;
    std::vector<Bytes> results;
    std::vector<std::string> sites;
    bool is_even = true;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      sizes.emplace_back(before[i]);
      results.emplace_back(after[i]);
      sites.push_back(cluster_.devices[needs_.endpoints()[ranks[i]]].site);
      is_even = is_even && before[i] == before.front() && after[i] == after.front();
    }
    const bool divides = opcode == Opcode::ReduceScatter || opcode == Opcode::AllToAll;
    if (is_even || !divides) results.clear();
    std::vector<std::size_t> devices;
    for (const std::size_t rank : ranks) devices.push_back(needs_.endpoints()[rank]);
    const EndNetwork whole = network_of(cluster_);
    const EndNetwork network = network_between(std::move(devices), whole);
    return collective_time(rounds_of(opcode, sizes, algorithm, sites, results), network).value;
  }

  /// How long the collectives of the ranks of a group take.
  struct Communication {
    double once = 0;     // the most of a rank for one micro-batch, with those of parameters
    double longest = 0;  // the most that a lane has in a step
  };

  Communication communication_of(std::size_t index) const
  {
    const Group& group = needs_.groups()[index];
    double once = 0;
    double most_sums = 0;
    double longest = 0;
    for (const auto& ranks : group.replicas) {
      double first = 0;
      double again = 0;  // of each micro-batch after the first
      for (const auto& each : needs_.collectives()[index]) {
        const double seconds = time_of(each.opcode, each.before, each.after, ranks);
        first += seconds;
        if (each.payload == Payload::Activation || each.payload == Payload::Gradient) again += seconds;
      }
      once = std::max(once, first);
      longest = std::max(longest, first + (microbatches_ - 1) * again);
    }
    for (std::size_t position = 0; position < group.shares.size() && needs_.replicas() > 1; ++position) {
      const Place place{index, 0, position};
      double sums = 0;
      for (std::size_t part = group.first_part; part < group.end_part; ++part) {
        const std::vector<double> bytes(needs_.replicas(), needs_.bytes_of_gradients(part, place));
        if (bytes.front() == 0) continue;
        sums += time_of(Opcode::AllReduce, bytes, bytes, needs_.counterparts(place), plan_.sync.algorithm);
      }
      most_sums = std::max(most_sums, sums);
    }
    return {once + most_sums, std::max(longest, most_sums)};
  }

  void check_claims()
  {
    const double step = checked_step(plan_, workload_, cluster_, passes_of(program_));
    double facts = 0;
    if (needs_.devices().size() > 1 && needs_gradient_sync(workload_)) {
      std::vector<std::size_t> all(needs_.devices().size());
      std::iota(all.begin(), all.end(), std::size_t{0});
      const std::vector<double> bytes(needs_.devices().size(), gradient_sync_size.value);
      facts = time_of(Opcode::AllReduce, bytes, bytes, all);
    }
    double longest = 0;
    double once = 0;
    for (std::size_t group = 0; group < needs_.groups().size(); ++group) {
      const Communication own = communication_of(group);
      once += own.once;
      longest = std::max(longest, own.longest);
    }
    double bottleneck = 0;
    double busiest = 0;
    double passes = 0;
    for (std::size_t part = 0; part < needs_.times().front().size(); ++part) {
      double forward = 0;
      double backward = 0;
      for (std::size_t rank = 0; rank < needs_.devices().size(); ++rank) {
        forward = std::max(forward, needs_.times()[rank][part].forward);
        backward = std::max(backward, needs_.times()[rank][part].backward);
      }
      passes += forward + backward;
    }
    for (std::size_t rank = 0; rank < needs_.devices().size(); ++rank) {
      double pass = 0;
      double update = 0;
      for (const auto& part : needs_.times()[rank]) {
        pass += part.forward + part.backward;
        update += part.update;
      }
      bottleneck = std::max(bottleneck, pass);
      busiest = std::max(busiest, microbatches_ * pass + update);
    }
    const double communication = longest + facts;
    const double sequential = passes + once + facts + time_of_messages();
    claims_.check("objective_s", plan_.objective, step);
    claims_.check("step_bound_s", plan_.step_bound, std::max(busiest, communication) / cluster_.profile_speedup);
    if (plan_.schedule_bound) {
      claims_.fault("schedule_bound_s: only a plan with one stage on each device claims it; leave it out");
    }
    if (!plan_.predicted) {
      claims_.fault("predicted: missing; a plan that is not infeasible predicts its times and memory");
      return;
    }
    if (plan_.predicted->step_time_by != StepTimeBy::Played) {
      claims_.fault("predicted.step_time_by: {}; a step under schedule {} is played",
                    name_of(plan_.predicted->step_time_by), shown(text_of(plan_.goal.schedule)));
    }
    claims_.check("predicted.step_time_s", plan_.predicted->step_time, step);
    claims_.check("predicted.bottleneck_s", plan_.predicted->bottleneck, bottleneck);
    claims_.check("predicted.sequential_s", plan_.predicted->sequential, sequential);
    claims_.check("predicted.pipeline_s", plan_.predicted->pipeline, (microbatches_ - 1) * bottleneck + sequential);
    claims_.check_simulated();
    claims_.check_objective_bound(step);
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  const Program& program_;
  Claims claims_;
  OperatorNeeds needs_;
  double microbatches_;
};

}  // namespace

std::vector<std::string> faults_of_operators(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                             const Program& program)
{
  return OperatorChecker(plan, workload, cluster, program).faults();
}

}  // namespace isobar
