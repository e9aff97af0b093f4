// Like plan_checker.cpp, independent of the cost model: plain sums over the layers and the Program.

#include "core/check/played_checker.hpp"

#include "core/check/checked_step.hpp"
#include "core/check/claims.hpp"
#include "core/check/dtfm_cost.hpp"
#include "core/check/operator_checker.hpp"
#include "core/check/resident_memory.hpp"
#include "core/check/schedule_bound.hpp"
#include "core/check/tier_memory.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "core/program/round_time.hpp"
#include "core/steps/holders.hpp"
#include "core/steps/step_player.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

namespace isobar {

namespace {

/// The micro-batches that go from one replica to another of the next stage, and their transfers.
struct Passage {
  std::size_t from = 0;  // indices of holders
  std::size_t to = 0;
  std::uint64_t microbatches = 0;
  PlayedTransfer output;
  PlayedTransfer gradient;
};

class PlayedChecker {
 public:
  PlayedChecker(const Plan& plan, const Workload& workload, const Cluster& cluster, const Program& program,
                const PlayedProgram* folded)
      : plan_(plan),
        workload_(workload),
        cluster_(cluster),
        program_(program),
        folded_(folded),
        claims_(plan),
        number_(numbers_in_file(plan)),
        devices_(devices_of(plan)),
        holders_(holders_of(plan)),
        holder_of_(plan.stages.size())
  {
    for (const auto& name : devices_) device_of_rank_.push_back(cluster.device_index(name).value());
    for (std::size_t i = 0; i < holders_.size(); ++i) {
      const auto& parts = holders_[i].parts;
      for (std::size_t k = 0; k < parts.size(); ++k) {
        holder_of_[holders_[i].stage].emplace(parts[k].rank, std::pair(i, k));
      }
    }
  }

  std::vector<std::string> faults()
  {
    const std::size_t ranks = devices_.size() + (plan_.data_server ? 1 : 0);
    ensure(program_.ranks() == ranks, "the program of a plan has its devices as ranks");
    collect_work();
    check_resident();
    if (!claims_.empty()) return claims_.take();
    collect_transfers();
    const PlayedProgram played =
        folded_ != nullptr ? *folded_
                           : play_program(program_, nominal_rates(plan_, cluster_), counted_step(plan_).played());
    check_memory(played);
    check_claims(folded_ != nullptr ? played.periods[counted_step(plan_).before].step_time.value
                                    : checked_step(plan_, workload_, cluster_, passes_of(program_)));
    return claims_.take();
  }

 private:
  /// Reads the work of each replica's computations from the program, compares it with that of the layers, and finds
  /// which micro-batches go from which replica to which.
  void collect_work()
  {
    std::vector<std::vector<std::size_t>> taker(plan_.stages.size());  // the holder of each micro-batch
    for (auto& of_stage : taker) of_stage.resize(plan_.goal.microbatches);
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      const std::uint64_t length = program_.length(rank, compute_lane);
      for (std::uint64_t position = 0; position < length; ++position) {
        const Instruction instruction = program_.at(rank, compute_lane, position);
        if (!is_pass(instruction.opcode)) continue;
        ensure(instruction.stage < holder_of_.size() && holder_of_[instruction.stage].contains(rank),
               "a rank computes its own stages");
        const auto [index, shard] = holder_of_[instruction.stage].at(rank);
        Part& part = holders_[index].parts[shard];
        part.seconds[static_cast<std::size_t>(instruction.opcode)] = instruction.time.value;
        if (instruction.opcode != Opcode::Forward) continue;
        ++part.forwards;
        taker[instruction.stage].at(instruction.microbatch) = index;
      }
    }
    for (auto& holder : holders_) {
      const bool is_grid = grid_of(plan_, holder).is_grid();
      for (auto& part : holder.parts) compare_work(holder, part);
      const auto extreme = [&](bool least, double Times::*time) {
        double found = holder.parts.front().times.*time;
        for (const auto& part : holder.parts) {
          found = least ? std::min(found, part.times.*time) : std::max(found, part.times.*time);
        }
        return found;
      };
      holder.forward = extreme(is_grid, &Times::forward);
      holder.backward = extreme(is_grid, &Times::backward);
      holder.next_backward = extreme(is_grid, &Times::next_backward);
      holder.last_weight = extreme(true, &Times::last_weight);
      holder.slowest = holder.compute();
      for (const auto& part : holder.parts) holder.slowest = std::max(holder.slowest, part.times.compute());
    }
    for (const auto& of_stage : taker) first_takers_.push_back(of_stage.front());
    std::map<std::pair<std::size_t, std::size_t>, std::uint64_t> counts;
    for (std::size_t stage = 1; stage < taker.size(); ++stage) {
      for (std::uint64_t m = 0; m < plan_.goal.microbatches; ++m) ++counts[{taker[stage - 1][m], taker[stage][m]}];
    }
    for (const auto& [pair, count] : counts) passages_.push_back({pair.first, pair.second, count, {}, {}});
    for (const auto& passage : passages_) find_meetings(holders_[passage.from], holders_[passage.to]);
  }

  /// The part of a holder from which one of another holder gets what all of them have: that on its own device, and
  /// elsewhere they take turns.
  static std::size_t sender(const std::vector<Part>& parts, const std::vector<Part>& receivers, std::size_t receiver)
  {
    if (parts.size() != receivers.size()) {
      for (std::size_t k = 0; k < parts.size(); ++k) {
        if (parts[k].rank == receivers[receiver].rank) return k;
      }
    }
    return receiver % parts.size();
  }

  /// Each shard gets its input, and its output's gradient, from one shard of the other holder.
  static void find_meetings(Holder& from, Holder& to)
  {
    const auto meet = [](Part& before, Part& after) {
      if (before.rank == after.rank) return;
      before.meets_after = true;
      after.meets_before = true;
    };
    for (std::size_t k = 0; k < to.parts.size(); ++k) meet(from.parts[sender(from.parts, to.parts, k)], to.parts[k]);
    for (std::size_t k = 0; k < from.parts.size(); ++k) meet(from.parts[k], to.parts[sender(to.parts, from.parts, k)]);
  }

  void compare_work(const Holder& holder, Part& part)
  {
    if (part.forwards != holder.microbatches) {
      claims_.fault("stages[{}]: {} takes {} in its program; its replica has {}", number_[holder.stage],
                    shown(devices_[part.rank]), counted(part.forwards, "micro-batch", "es"), holder.microbatches);
    }
    const Stage& stage = plan_.stages[holder.stage];
    Times& times = part.times;
    for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
      const Device& device = cluster_.devices[device_of_rank_[part.rank]];
      const PassTimes found = pass_times_of(plan_, holder, part, workload_, k, device);
      times.forward += found.forward;
      times.backward += found.backward;
    }
    const auto played = [&](Opcode opcode) { return part.seconds[static_cast<std::size_t>(opcode)]; };
    const auto whole = played(Opcode::Backward);
    const auto input = played(Opcode::BackwardInput);
    const auto weight = played(Opcode::BackwardWeight);
    compare_work(holder.stage, "forward", played(Opcode::Forward).value_or(0), times.forward);
    if (whole || !input) compare_work(holder.stage, "backward", whole.value_or(0), times.backward);
    if (input) compare_work(holder.stage, "backward", *input + weight.value_or(0), times.backward);
    times.next_backward = input.value_or(times.backward);
    times.last_weight = whole ? 0 : weight.value_or(0);
  }

  void compare_work(std::size_t stage, const char* pass, double played, double found)
  {
    if (agree(played, found)) return;
    const auto [is, should_be] = distinct_texts(played, found);
    claims_.fault("stages[{}]: its program takes {} s for the {} pass of a micro-batch; its layers take {} s",
                  number_[stage], is, pass, should_be);
  }

  /// Compares the memory that the program holds throughout with that of the stages' layers: parameters, gradients,
  /// optimizers and buffers, of which the replicas of a stage may divide some.
  void check_resident()
  {
    const auto needed = resident_memory(plan_, workload_, devices_.size(), holders_, holder_of_);
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      for (const Tier tier : {Tier::Device, Tier::Host, Tier::Disk}) {
        const double held = program_.resident(rank, tier).value;
        const double need = needed[rank][static_cast<std::size_t>(tier)];
        if (held == need || agree(held, need)) continue;
        const auto [is, should_be] = distinct_texts(held, need);
        claims_.fault("device {}: its program holds {} B of {} memory throughout; its stages need {} B",
                      shown(devices_[rank]), is, name_of(tier), should_be);
      }
    }
  }

  /// The time of a collective in which the parts of a holder pass messages around their ring.
  double around_ring(const Holder& holder, double messages, double bytes) const
  {
    double start = 0;
    double slowest = 0;
    for (std::size_t k = 0; k < holder.parts.size(); ++k) {
      const std::size_t next = holder.parts[k + 1 < holder.parts.size() ? k + 1 : 0].rank;
      const Path path = cluster_.path(device_of_rank_[holder.parts[k].rank], device_of_rank_[next]);
      slowest = std::max(slowest, messages * path.latency.value + bytes / path.bandwidth.value);
      start = std::max(start, cluster_.devices[device_of_rank_[holder.parts[k].rank]].collective_start.value);
    }
    return start + slowest;
  }

  /// The time of a collective of the parts of a holder, alone. In a ring, an AllReduce of V bytes among n passes
  /// 2 (n-1) messages of V/n bytes, an AllGather n-1 of V.
  double time_among_parts(const Holder& holder, Opcode opcode, Bytes size) const
  {
    std::vector<std::size_t> devices;
    std::vector<std::string> sites;
    for (const auto& part : holder.parts) {
      devices.push_back(device_of_rank_[part.rank]);
      sites.push_back(cluster_.devices[devices.back()].site);
    }
    const Algorithm algorithm = algorithm_of_shards(plan_.sync.algorithm, sites);
    if (algorithm == Algorithm::Ring) {
      const auto n = static_cast<double>(holder.parts.size());
      return opcode == Opcode::AllGather ? around_ring(holder, n - 1, (n - 1) * size.value)
                                         : around_ring(holder, 2 * (n - 1), 2 * (n - 1) * size.value / n);
    }
    EndNetwork whole = network_of(cluster_);
    whole.shared_links = {};
    return collective_time(rounds_of(opcode, std::vector(devices.size(), size), algorithm, sites),
                           network_between(devices, whole))
        .value;
  }

  void collect_sums(Holder& holder, const Boundaries& cuts) const
  {
    if (holder.parts.size() == 1 || grid_of(plan_, holder).form != ShardGrid::Form::OneD) return;
    const std::size_t layer = plan_.stages[holder.stage].first_layer;
    const Split& split = *workload_.layers[layer].split;
    const auto among_parts = [&](Opcode opcode, Bytes size) {
      return time_among_parts(holder, opcode, split.exchanged_fraction * size);
    };
    const auto all_reduce = [&](Bytes size) { return among_parts(Opcode::AllReduce, size); };
    holder.forward_sum =
        split.gathered ? among_parts(Opcode::AllGather, *split.gathered) : all_reduce(cuts.output[layer + 1]);
    holder.backward_sum = holder.stage == 0 ? 0 : all_reduce(cuts.gradient[layer]);
  }

  void collect_transfers()
  {
    const Boundaries cuts = boundaries_of(workload_);
    for (auto& holder : holders_) collect_sums(holder, cuts);
    for (auto& passage : passages_) {
      const auto& from = holders_[passage.from].parts;
      const auto& to = holders_[passage.to].parts;
      const std::size_t cut = plan_.stages[holders_[passage.to].stage].first_layer;
      const double parts = parts_between(holders_[passage.from], holders_[passage.to]);
      passage.output = quickest(from, to, cuts.output[cut] / parts);
      passage.gradient = quickest(to, from, cuts.gradient[cut] / parts);
      passage.output.latency += holders_[passage.from].forward_sum;
      passage.gradient.latency += holders_[passage.to].backward_sum;
    }
    if (!plan_.data_server) return;
    for (auto& holder : holders_) {
      if (holder.stage > 0) continue;
      std::optional<PlayedTransfer> first;
      for (const auto& part : holder.parts) {
        const auto each = hop(cluster_.data_server_index(), device_of_rank_[part.rank], cuts.output.front());
        if (!first || each.total() < first->total()) first = each;
      }
      holder.input = *first;
    }
  }

  /// In how many parts what crosses a cut travels. As many shards on both sides may have one each.
  double parts_between(const Holder& from, const Holder& to) const
  {
    const bool has_slices = plan_.transfers.sliced && from.parts.size() == to.parts.size();
    return has_slices ? static_cast<double>(to.parts.size()) : blocks_of(plan_, to);
  }

  /// The quickest of the transfers by which the shards of one replica, in turns, bring those of another the same bytes.
  PlayedTransfer quickest(const std::vector<Part>& from, const std::vector<Part>& to, Bytes size) const
  {
    std::optional<PlayedTransfer> least;
    for (std::size_t k = 0; k < to.size(); ++k) {
      const std::size_t by = from[sender(from, to, k)].rank;
      PlayedTransfer each;
      if (by != to[k].rank) each = hop(device_of_rank_[by], device_of_rank_[to[k].rank], size);
      if (!least || each.total() < least->total()) least = each;
    }
    return *least;
  }

  PlayedTransfer hop(std::size_t from, std::size_t to, Bytes size) const
  {
    const Path path = cluster_.path(from, to);
    return {path.latency.value, size.value / path.bandwidth.value};
  }

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

  void check_claims(double step)
  {
    const bool is_dtfm = plan_.goal.objective == Objective::DtFm;
    const double objective = is_dtfm ? dtfm_cost(plan_, workload_, cluster_) : step;
    claims_.check("objective_s", plan_.objective, objective);
    claims_.check("step_bound_s", plan_.step_bound, earliest_step() / cluster_.profile_speedup);
    check_schedule_bound();
    if (!plan_.predicted) {
      claims_.fault("predicted: missing; a plan that is not infeasible predicts its times and memory");
      return;
    }
    if (plan_.predicted->step_time_by != StepTimeBy::Played) {
      claims_.fault("predicted.step_time_by: {}; a step under schedule {} is played",
                    name_of(plan_.predicted->step_time_by), shown(text_of(plan_.goal.schedule)));
    }
    claims_.check("predicted.step_time_s", plan_.predicted->step_time, step);
    check_formulas();
    claims_.check_simulated();
    claims_.check_objective_bound(objective);
  }

  /// The bound of all orders, which a plan may leave out.
  void check_schedule_bound()
  {
    if (!plan_.schedule_bound) return;
    const bool is_one_each =
        devices_.size() == holders_.size() && holders_.size() == plan_.stages.size() && !has_shards(plan_);
    if (!is_one_each) {
      claims_.fault("schedule_bound_s: only a plan with one stage on each device claims it; leave it out");
      return;
    }
    claims_.check("schedule_bound_s", plan_.schedule_bound,
                  least_step_of_orders(plan_, device_of_rank_, workload_, cluster_) / cluster_.profile_speedup);
  }

  /// Sums of the replicas' costs, transfers overlapped. A device takes for each micro-batch of the step what it takes
  /// for those that it has, divided by all.
  void check_formulas()
  {
    const bool counts_transfers = plan_.goal.communication != Communication::None;
    const auto all = static_cast<double>(plan_.goal.microbatches);
    std::vector<double> sent(holders_.size(), 0);  // seconds in a step
    for (const auto& passage : passages_) {
      sent[passage.from] += static_cast<double>(passage.microbatches) * passage.output.data;
      sent[passage.to] += static_cast<double>(passage.microbatches) * passage.gradient.data;
    }
    std::vector<double> cost_of_rank(devices_.size(), 0);
    std::vector<double> cost(holders_.size(), 0);
    double largest = 0;
    for (std::size_t i = 0; i < holders_.size(); ++i) {
      const auto taken = static_cast<double>(holders_[i].microbatches);
      cost[i] = counts_transfers ? std::max(holders_[i].slowest, sent[i] / taken) : holders_[i].slowest;
      for (const auto& part : holders_[i].parts) cost_of_rank[part.rank] += cost[i] * taken / all;
      if (counts_transfers) largest = std::max(largest, holders_[i].input.data * taken / all);
    }
    for (const double each : cost_of_rank) largest = std::max(largest, each);
    const Holder& first = holders_[first_takers_.front()];
    double sum = counts_transfers ? first.input.data : 0;
    double alone = first.input.total();
    for (const std::size_t taker : first_takers_) {
      sum += cost[taker];
      alone += holders_[taker].slowest;
    }
    for (const auto& passage : passages_) {
      const std::size_t stage = holders_[passage.from].stage;
      if (passage.from != first_takers_[stage] || passage.to != first_takers_[stage + 1]) continue;
      alone += passage.output.total() + passage.gradient.total();
    }
    const double pipelined = (all - 1) * largest + sum;
    claims_.check("predicted.pipeline_s", plan_.predicted->pipeline, pipelined);
    claims_.check("predicted.bottleneck_s", plan_.predicted->bottleneck, largest);
    claims_.check("predicted.sequential_s", plan_.predicted->sequential, alone);
  }

  /// The least times of a micro-batch outside of a replica: from the begin of the step to its forward, from there to
  /// its backward, and from the end of that to the end of the first stage's.
  struct Around {
    double before = std::numeric_limits<double>::infinity();
    double between = std::numeric_limits<double>::infinity();
    double after = std::numeric_limits<double>::infinity();
  };

  std::vector<Around> times_around() const
  {
    const bool is_free = plan_.goal.has_free_transfers();
    const auto time_of = [is_free](const PlayedTransfer& transfer) { return is_free ? 0 : transfer.total(); };
    std::vector<Around> around(holders_.size());
    for (std::size_t i = 0; i < holders_.size(); ++i) {
      if (holders_[i].stage == 0) around[i].before = time_of(holders_[i].input);
      if (holders_[i].stage == 0) around[i].after = 0;
      const bool is_last = holders_[i].stage + 1 == plan_.stages.size();
      const bool waits = !is_free && !sums_loss_with_gradients(plan_.goal.schedule);
      if (is_last) around[i].between = waits ? holders_[i].forward_sum : 0;
    }
    // Passages are in the order of stages, since holders are.
    for (const auto& passage : passages_) {
      const Holder& from = holders_[passage.from];
      around[passage.to].before =
          std::min(around[passage.to].before, around[passage.from].before + from.forward + time_of(passage.output));
      around[passage.to].after = std::min(around[passage.to].after,
                                          time_of(passage.gradient) + from.next_backward + around[passage.from].after);
    }
    for (std::size_t i = passages_.size(); i-- > 0;) {
      const Passage& passage = passages_[i];
      around[passage.from].between = std::min(around[passage.from].between, time_beyond(passage, around));
    }
    return around;
  }

  /// From the end of a forward, over this passage, to the begin of its backward.
  double time_beyond(const Passage& passage, const std::vector<Around>& around) const
  {
    const bool is_free = plan_.goal.has_free_transfers();
    const Holder& to = holders_[passage.to];
    return to.forward + around[passage.to].between + to.next_backward +
           (is_free ? 0 : passage.output.total() + passage.gradient.total());
  }

  /// A time that no order of the same work on the same devices is below.
  double earliest_step() const
  {
    const bool is_free = plan_.goal.has_free_transfers();
    const std::vector<Around> around = times_around();
    double last_weight = std::numeric_limits<double>::infinity();
    for (const auto& holder : holders_) {
      if (holder.stage == 0) last_weight = std::min(last_weight, holder.last_weight);
    }
    // A lane that is busy for all micro-batches that use it, and what one of them takes besides.
    const auto with_busy_lane = [&](std::size_t index, double between, std::uint64_t users, double each) {
      const Holder& holder = holders_[index];
      return around[index].before + holder.forward + between + holder.next_backward + around[index].after +
             last_weight + static_cast<double>(users - 1) * each;
    };
    double earliest = 0;
    // Steps that overlap may fill the pipeline while the one before drains it.
    const bool flows = counted_step(plan_).overlaps();
    for (std::size_t i = 0; i < holders_.size() && !flows; ++i) {
      const Holder& holder = holders_[i];
      double each = std::max(holder.forward, holder.next_backward);
      if (!is_free) each = std::max(each, holder.input.data);
      earliest = std::max(earliest, with_busy_lane(i, around[i].between, holder.microbatches, each));
    }
    for (const auto& passage : passages_) {
      if (flows) break;
      const double each = is_free ? 0 : std::max(passage.output.data, passage.gradient.data);
      earliest =
          std::max(earliest, with_busy_lane(passage.from, time_beyond(passage, around), passage.microbatches, each));
    }
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      double begin = std::numeric_limits<double>::infinity();
      double back = std::numeric_limits<double>::infinity();
      double all = 0;
      double dependent = 0;  // the part of it that is over before the last gradient travels back
      double forward_sums = 0;
      double backward_sums = 0;
      for (std::size_t i = 0; i < holders_.size(); ++i) {
        const Holder& holder = holders_[i];
        if (!holder.is_on(rank)) continue;
        const Times& times = holder.parts[holder_of_[holder.stage].at(rank).second].times;
        begin = std::min(begin, around[i].before);
        back = std::min(back, around[i].after);
        all += static_cast<double>(holder.microbatches) * times.compute();
        dependent += static_cast<double>(holder.microbatches) * (times.forward + times.next_backward);
        forward_sums += static_cast<double>(holder.microbatches) * holder.forward_sum;
        backward_sums += static_cast<double>(holder.microbatches) * holder.backward_sum;
      }
      if (flows) {
        earliest = std::max(earliest, all);
        continue;
      }
      earliest = std::max({earliest, begin + all, begin + dependent + back + last_weight});
      if (!is_free) earliest = std::max({earliest, begin + forward_sums, begin + backward_sums});
    }
    return std::max(earliest, earliest_by_machines());
  }

  /// A time that no step is below because of what the machines do: all updates of a device one after another, and every
  /// gradient and parameter once between device and host.
  double earliest_by_machines() const
  {
    if (!uses_machines(plan_)) return 0;
    const ParameterBytes bytes = parameter_bytes(workload_);
    double earliest = 0;
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      double parameters = 0;
      double work = 0;
      for (const auto& holder : holders_) {
        const Stage& stage = plan_.stages[holder.stage];
        if (!holder.is_on(rank) || stage.residence.optimizer == Tier::Device) continue;
        for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
          const Layer& layer = workload_.layers[k];
          parameters += static_cast<double>(layer.parameters);
          work += static_cast<double>(layer.parameters) * update_flops_per_parameter(workload_.optimizer);
        }
      }
      if (parameters == 0) continue;
      const MachineRates rates = machine_rates(plan_, cluster_.devices[device_of_rank_[rank]], cluster_);
      const double fastest = std::max(rates.update_speed.value, rates.busy_update_speed.value);
      earliest = std::max({earliest, work / fastest, parameters * bytes.parameter / rates.in.bandwidth.value,
                           parameters * bytes.gradient / rates.out.bandwidth.value});
    }
    return earliest;
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  const Program& program_;
  const PlayedProgram* folded_;
  Claims claims_;
  std::vector<std::size_t> number_;          // of each stage in a file
  std::vector<std::string> devices_;         // by rank
  std::vector<std::size_t> device_of_rank_;  // its index in the cluster
  std::vector<Holder> holders_;              // by stage and replica
  /// By stage and rank: the holder and which of its parts.
  HoldersOfStages holder_of_;
  std::vector<Passage> passages_;          // by holders
  std::vector<std::size_t> first_takers_;  // by stage: the holder of the first micro-batch
};

}  // namespace

std::vector<std::string> faults_of_played(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                          const Program& program, const PlayedProgram* folded)
{
  if (plan.stages.empty() || is_chain(plan)) return {};
  if (divides_operators(plan)) return faults_of_operators(plan, workload, cluster, program);
  return PlayedChecker(plan, workload, cluster, program, folded).faults();
}

}  // namespace isobar
