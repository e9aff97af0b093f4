// Like plan_checker.cpp, independent of the cost model: plain sums over the layers and the Program.

#include "core/check/played_checker.hpp"

#include "core/base/quantity_text.hpp"
#include "core/check/claims.hpp"
#include "core/check/schedule_bound.hpp"
#include "core/check/step_player.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/nominal_rates.hpp"
#include "core/program/player.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace isobar {

namespace {

/// A stage for one micro-batch, in seconds. The transfers are over the cut after it.
struct StageFacts {
  std::size_t rank = 0;
  double forward = 0;
  double backward = 0;
  double next_backward = 0;  // the part of the backward pass that the stage before waits for, if it is split
  double last_weight = 0;    // the rest of it, if it is split for every micro-batch
  PlayedTransfer output;
  PlayedTransfer gradient;

  double compute() const { return forward + backward; }
};

class PlayedChecker {
 public:
  PlayedChecker(const Plan& plan, const Workload& workload, const Cluster& cluster, const Program& program)
      : plan_(plan),
        workload_(workload),
        cluster_(cluster),
        program_(program),
        claims_(plan),
        devices_(devices_of(plan)),
        stages_(plan.stages.size())
  {
    std::unordered_map<std::string, std::size_t> rank_of;
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      rank_of.emplace(devices_[rank], rank);
      device_of_rank_.push_back(cluster.device_index(devices_[rank]).value());
    }
    for (std::size_t i = 0; i < stages_.size(); ++i) stages_[i].rank = rank_of.at(plan.stages[i].device());
  }

  std::vector<std::string> faults()
  {
    const std::size_t ranks = devices_.size() + (plan_.data_server ? 1 : 0);
    ensure(program_.ranks() == ranks, "the program of a plan has its devices as ranks");
    collect_work();
    if (!claims_.empty()) return claims_.take();
    collect_transfers();
    const PlayedProgram played = play_program(program_, nominal_rates(plan_, workload_, cluster_));
    check_memory(played);
    check_claims(played);
    return claims_.take();
  }

 private:
  /// Reads the work of each stage's computations from the program, and compares it with that of the layers.
  void collect_work()
  {
    std::vector<std::array<std::optional<double>, opcodes>> seconds(stages_.size());
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      const std::uint64_t length = program_.length(rank, compute_lane);
      for (std::uint64_t position = 0; position < length; ++position) {
        const Instruction instruction = program_.at(rank, compute_lane, position);
        if (!is_computation(instruction.opcode) || instruction.opcode == Opcode::Update) continue;
        const std::size_t stage = instruction.stage;
        ensure(stage < stages_.size() && stages_[stage].rank == rank, "a rank computes its own stages");
        seconds[stage][static_cast<std::size_t>(instruction.opcode)] = instruction.work.value / speed(rank);
      }
    }
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      double forward = 0;
      double backward = 0;
      for (std::size_t k = plan_.stages[i].first_layer; k <= plan_.stages[i].last_layer; ++k) {
        forward += workload_.layers[k].forward.value / speed(stages_[i].rank);
        backward += workload_.layers[k].backward.value / speed(stages_[i].rank);
      }
      const auto played = [&](Opcode opcode) { return seconds[i][static_cast<std::size_t>(opcode)]; };
      const auto whole = played(Opcode::Backward);
      const auto input = played(Opcode::BackwardInput);
      const auto weight = played(Opcode::BackwardWeight);
      compare_work(i, "forward", played(Opcode::Forward).value_or(0), forward);
      if (whole || !input) compare_work(i, "backward", whole.value_or(0), backward);
      if (input) compare_work(i, "backward", *input + weight.value_or(0), backward);
      StageFacts& stage = stages_[i];
      stage.forward = forward;
      stage.backward = backward;
      stage.next_backward = input.value_or(backward);
      stage.last_weight = whole ? 0 : weight.value_or(0);
    }
  }

  void compare_work(std::size_t stage, const char* pass, double played, double found)
  {
    if (agree(played, found)) return;
    const auto [is, should_be] = distinct_texts(played, found);
    claims_.fault("stages[{}]: its program takes {} s for the {} pass of a micro-batch; its layers take {} s", stage,
                  is, pass, should_be);
  }

  void collect_transfers()
  {
    const Boundaries cuts = boundaries_of(workload_);
    for (std::size_t i = 0; i + 1 < stages_.size(); ++i) {
      const std::size_t from = stages_[i].rank;
      const std::size_t to = stages_[i + 1].rank;
      if (from == to) continue;
      const std::size_t cut = plan_.stages[i + 1].first_layer;
      stages_[i].output = hop(device_of_rank_[from], device_of_rank_[to], cuts.output[cut]);
      stages_[i].gradient = hop(device_of_rank_[to], device_of_rank_[from], cuts.gradient[cut]);
    }
    if (plan_.data_server) {
      input_ = hop(cluster_.data_server_index(), device_of_rank_[stages_.front().rank], cuts.output.front());
    }
  }

  PlayedTransfer hop(std::size_t from, std::size_t to, Bytes size) const
  {
    const Path path = cluster_.path(from, to);
    return {path.latency.value, size.value / path.bandwidth.value};
  }

  void check_memory(const PlayedProgram& played)
  {
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) {
      const double peak = played.peak_memory[rank][static_cast<std::size_t>(Tier::Device)].value;
      const Bytes memory = cluster_.devices[device_of_rank_[rank]].memory;
      if (peak > memory.value * (1 + claim_tolerance)) {
        const auto [needs, has] = distinct_texts(peak / 0x1p30, memory.value / 0x1p30, 6);
        claims_.fault("device {}: its stages need {} GiB under schedule {}, and it has {} GiB", shown(devices_[rank]),
                      needs, shown(text_of(plan_.goal.schedule)), has);
      }
      if (plan_.predicted) claims_.check_peak_memory(devices_[rank], peak);
    }
    const std::size_t claimed = plan_.predicted ? plan_.predicted->peak_memory.size() : 0;
    if (claimed > devices_.size()) {
      claims_.fault("predicted.peak_memory_bytes: {}; the plan has {}", counted(claimed, "device"), devices_.size());
    }
  }

  void check_claims(const PlayedProgram& played)
  {
    const double step = played.periods.front().end.value;
    claims_.check("objective_s", plan_.objective, step);
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
    claims_.check_objective_bound(step);
  }

  /// The bound of all orders, which a plan may leave out.
  void check_schedule_bound()
  {
    if (!plan_.schedule_bound) return;
    if (devices_.size() != stages_.size()) {
      claims_.fault("schedule_bound_s: a claim of a plan with several stages on a device; leave it out");
      return;
    }
    claims_.check("schedule_bound_s", plan_.schedule_bound,
                  least_step_of_orders(plan_, device_of_rank_, workload_, cluster_) / cluster_.profile_speedup);
  }

  /// Sums of the stages' costs, transfers overlapped. A device with several stages takes the sum of theirs for each
  /// micro-batch.
  void check_formulas()
  {
    const bool counts_transfers = plan_.goal.communication != Communication::None;
    std::vector<double> cost_of_rank(devices_.size(), 0);
    double sum = counts_transfers ? input_.data : 0;
    double largest = sum;
    double alone = input_.total();
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const StageFacts& stage = stages_[i];
      const double sent = stage.output.data + (i > 0 ? stages_[i - 1].gradient.data : 0);
      const double cost = counts_transfers ? std::max(stage.compute(), sent) : stage.compute();
      cost_of_rank[stage.rank] += cost;
      sum += cost;
      alone += stage.compute() + stage.output.total() + stage.gradient.total();
    }
    for (const double cost : cost_of_rank) largest = std::max(largest, cost);
    const double pipelined = static_cast<double>(plan_.goal.microbatches - 1) * largest + sum;
    claims_.check("predicted.pipeline_s", plan_.predicted->pipeline, pipelined);
    claims_.check("predicted.bottleneck_s", plan_.predicted->bottleneck, largest);
    claims_.check("predicted.sequential_s", plan_.predicted->sequential, alone);
  }

  /// A time that no order of the same work on the same devices is below.
  double earliest_step() const
  {
    const bool is_free = plan_.goal.has_free_transfers();
    const auto microbatches = static_cast<double>(plan_.goal.microbatches);
    // The way of one micro-batch to the begin of each stage, and that of its gradient from the end of the stage's
    // backward to that of the first stage.
    std::vector<double> there = {is_free ? 0 : input_.total()};
    std::vector<double> back = {0};
    double busiest_lane = is_free ? 0 : input_.data;
    for (const StageFacts& stage : stages_) {
      there.push_back(there.back() + stage.forward + (is_free ? 0 : stage.output.total()));
      back.push_back(back.back() + stage.next_backward + (is_free ? 0 : stage.gradient.total()));
      busiest_lane = std::max({busiest_lane, stage.forward, stage.next_backward});
      if (!is_free) busiest_lane = std::max({busiest_lane, stage.output.data, stage.gradient.data});
    }
    const double last_weight = stages_.front().last_weight;
    double earliest = there.back() + back.back() + (microbatches - 1) * busiest_lane + last_weight;
    std::vector<bool> is_seen(devices_.size());
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const std::size_t rank = stages_[i].rank;
      if (is_seen[rank]) continue;
      is_seen[rank] = true;
      double all = 0;        // of a micro-batch on the device
      double dependent = 0;  // the part of it that is over before the last gradient travels back
      for (const StageFacts& stage : stages_) {
        if (stage.rank != rank) continue;
        all += stage.compute();
        dependent += stage.forward + stage.next_backward;
      }
      earliest = std::max(
          {earliest, there[i] + microbatches * all, there[i] + microbatches * dependent + back[i] + last_weight});
    }
    return earliest;
  }

  double speed(std::size_t rank) const
  {
    return cluster_.devices[device_of_rank_[rank]].speed_at(workload_.dtype).value;
  }

  static constexpr std::size_t opcodes = static_cast<std::size_t>(Opcode::Update) + 1;  // of computations

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  const Program& program_;
  Claims claims_;
  std::vector<std::string> devices_;         // by rank
  std::vector<std::size_t> device_of_rank_;  // its index in the cluster
  std::vector<StageFacts> stages_;
  PlayedTransfer input_;
};

}  // namespace

std::vector<std::string> faults_of_played(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                          const Program& program)
{
  if (plan.stages.empty() || is_chain(plan)) return {};
  return PlayedChecker(plan, workload, cluster, program).faults();
}

}  // namespace isobar
