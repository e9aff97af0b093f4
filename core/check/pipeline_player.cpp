#include "core/check/pipeline_player.hpp"

#include "core/check/claims.hpp"
#include "core/check/step_graph.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/collective.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace isobar {

namespace {

class PipelinePlayer {
 public:
  PipelinePlayer(const Plan& plan, const Workload& workload, const Cluster& cluster,
                 const std::vector<std::vector<StagePass>>& passes, double stretch)
      : plan_(plan),
        workload_(workload),
        cluster_(cluster),
        passes_(passes),
        stretch_(stretch),
        cuts_(boundaries_of(workload)),
        graph_(paths(plan, cluster)),
        holders_(plan.stages.size()),
        ready_(passes.size())
  {
    std::unordered_map<std::string, std::size_t> rank_of;
    for (const auto& name : devices_of(plan)) {
      rank_of.emplace(name, devices_.size());
      devices_.push_back(cluster.device_index(name).value());
    }
    for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
      for (const Replica& replica : plan.stages[stage].replicas) {
        holders_[stage].emplace_back().rank = rank_of.at(replica.shards.front().device);
      }
    }
  }

  double play()
  {
    add_passes();
    add_messages();
    add_sums();
    add_facts();
    add_updates();
    return graph_.play();
  }

 private:
  /// A replica of a stage, and its passes by micro-batch.
  struct Holder {
    std::size_t rank = 0;
    std::map<std::uint64_t, std::size_t> forwards;
    std::map<std::uint64_t, std::size_t> backwards;  // those that the stage before waits for
    std::vector<std::uint64_t> forwarded;            // in their order
    std::vector<std::uint64_t> returned;
    std::optional<std::size_t> last;    // pass that makes gradients
    std::optional<std::size_t> synced;  // the sum of its gradients
  };

  static StepGraph::Paths paths(const Plan& plan, const Cluster& cluster)
  {
    if (plan.goal.has_free_transfers()) return {};
    return [&cluster](std::size_t from, std::size_t to) {
      const Path path = cluster.path(from, to);
      return GraphPath{path.latency.value, path.bandwidth.value, cluster.network->shared_links(from, to)};
    };
  }

  double speed(std::size_t rank) const { return cluster_.devices[devices_[rank]].speed_at(workload_.dtype).value; }

  Holder& holder_on(std::size_t stage, std::size_t rank)
  {
    auto& all = holders_.at(stage);
    const auto found = std::find_if(all.begin(), all.end(), [&](const Holder& each) { return each.rank == rank; });
    ensure(found != all.end(), "a device computes its own stages");
    return *found;
  }

  /// Lets a computation be the next one of a device.
  std::size_t add_next(std::size_t rank, double seconds)
  {
    const std::size_t node = graph_.add_computation(seconds * stretch_);
    if (ready_[rank]) graph_.add_wait(node, *ready_[rank]);
    ready_[rank] = node;
    return node;
  }

  void add_passes()
  {
    for (std::size_t rank = 0; rank < passes_.size(); ++rank) {
      for (const StagePass& pass : passes_[rank]) {
        const Stage& stage = plan_.stages.at(pass.stage);
        double work = 0;
        for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
          const Layer& layer = workload_.layers[k];
          if (pass.opcode == Opcode::Forward) work += layer.forward.value;
          if (pass.opcode == Opcode::Backward) work += layer.backward.value;
          if (pass.opcode == Opcode::BackwardInput) work += layer.backward.value - layer.backward_weight.value;
          if (pass.opcode == Opcode::BackwardWeight) work += layer.backward_weight.value;
        }
        Holder& holder = holder_on(pass.stage, rank);
        const std::size_t node = add_next(rank, work / speed(rank));
        if (pass.opcode == Opcode::Forward) {
          holder.forwards[pass.microbatch] = node;
          holder.forwarded.push_back(pass.microbatch);
        } else if (pass.opcode != Opcode::BackwardWeight) {
          holder.backwards[pass.microbatch] = node;
          holder.returned.push_back(pass.microbatch);
        }
        if (pass.opcode == Opcode::Backward || pass.opcode == Opcode::BackwardWeight) holder.last = node;
      }
    }
  }

  void add_messages()
  {
    if (plan_.data_server) {
      for (const Holder& first : holders_.front()) add_inputs(first);
    }
    for (std::size_t stage = 1; stage < plan_.stages.size(); ++stage) {
      const std::size_t cut = plan_.stages[stage].first_layer;
      for (const Holder& before : holders_[stage - 1]) {
        for (const Holder& here : holders_[stage]) {
          connect(before, before.forwarded, before.forwards, here, here.forwards, cuts_.output.at(cut).value);
          connect(here, here.returned, here.backwards, before, before.backwards, cuts_.gradient.at(cut).value);
        }
      }
    }
  }

  /// One input is on its way while another one is forwarded.
  void add_inputs(const Holder& first)
  {
    const std::size_t stream = graph_.add_stream(cluster_.data_server_index(), devices_[first.rank]);
    for (std::size_t i = 0; i < first.forwarded.size(); ++i) {
      const std::size_t message = graph_.add_message(stream, cuts_.output.front().value);
      if (i >= 2) graph_.add_wait(message, first.forwards.at(first.forwarded[i - 2]));
      graph_.add_wait(first.forwards.at(first.forwarded[i]), message);
    }
  }

  /// Sends what the passes of one replica make to those of another one that take the same micro-batches.
  void connect(const Holder& from, const std::vector<std::uint64_t>& order,
               const std::map<std::uint64_t, std::size_t>& makers, const Holder& to,
               const std::map<std::uint64_t, std::size_t>& takers, double bytes)
  {
    std::optional<std::size_t> stream;
    for (const std::uint64_t microbatch : order) {
      const auto taker = takers.find(microbatch);
      if (taker == takers.end()) continue;
      if (from.rank == to.rank) {
        graph_.add_wait(taker->second, makers.at(microbatch));
        continue;
      }
      if (!stream) stream = graph_.add_stream(devices_[from.rank], devices_[to.rank]);
      const std::size_t message = graph_.add_message(*stream, bytes);
      graph_.add_wait(message, makers.at(microbatch));
      graph_.add_wait(taker->second, message);
    }
  }

  double parameters_of(std::size_t stage) const
  {
    double sum = 0;
    for (std::size_t k = plan_.stages[stage].first_layer; k <= plan_.stages[stage].last_layer; ++k) {
      sum += static_cast<double>(workload_.layers[k].parameters);
    }
    return sum;
  }

  std::vector<std::size_t> ranks_of_stage(std::size_t stage) const
  {
    std::vector<std::size_t> ranks;
    for (const Holder& holder : holders_[stage]) ranks.push_back(holder.rank);
    return ranks;
  }

  std::size_t add_collective(Opcode opcode, const std::vector<std::size_t>& ranks, double bytes, Algorithm algorithm)
  {
    std::vector<std::string> sites;
    std::vector<std::size_t> ends;
    double start = 0;
    for (const std::size_t rank : ranks) {
      const Device& device = cluster_.devices[devices_[rank]];
      ends.push_back(devices_[rank]);
      sites.push_back(device.site);
      start = std::max(start, device.collective_start.value);
    }
    auto rounds = rounds_of(opcode, std::vector(ranks.size(), Bytes(bytes)), algorithm, sites);
    std::erase_if(rounds, [](const Round& round) { return round.empty(); });
    return graph_.add_collective(std::move(rounds), std::move(ends), start);
  }

  /// The replicas of a stage add up their gradients, the last stage first, neighbouring ones together.
  void add_sums()
  {
    const bool is_divided = plan_.sync.sharded != Sharding::None;
    std::vector<std::optional<std::size_t>> last(devices_.size());  // sum of each device
    for (std::size_t end = plan_.stages.size(); end > 0;) {
      std::size_t begin = end - 1;
      const auto ranks = ranks_of_stage(begin);
      if (ranks.size() == 1) {
        end = begin;
        continue;
      }
      double filled = parameters_of(begin) * 4;
      double parameters = parameters_of(begin);
      while (begin > 0 && filled < plan_.sync.bucket.value && ranks_of_stage(begin - 1) == ranks) {
        --begin;
        filled += parameters_of(begin) * 4;
        parameters += parameters_of(begin);
      }
      const std::size_t sum = add_collective(is_divided ? Opcode::ReduceScatter : Opcode::AllReduce, ranks,
                                             parameters * size_of(plan_.sync.summed), plan_.sync.algorithm);
      for (std::size_t stage = begin; stage < end; ++stage) {
        for (Holder& holder : holders_[stage]) {
          if (holder.last) graph_.add_wait(sum, *holder.last);
          holder.synced = sum;
        }
      }
      for (const std::size_t rank : ranks) {
        if (last[rank]) graph_.add_wait(sum, *last[rank]);
        last[rank] = sum;
      }
      end = begin;
    }
    last_sums_ = std::move(last);
  }

  /// All devices agree on what clipping and loss scaling need to know.
  void add_facts()
  {
    if (!needs_gradient_sync(workload_) || devices_.size() == 1) return;
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < devices_.size(); ++rank) ranks.push_back(rank);
    facts_ = add_collective(Opcode::AllReduce, ranks, gradient_sync_size.value, Algorithm::Ring);
    for (const std::size_t rank : ranks) {
      if (ready_[rank]) graph_.add_wait(*facts_, *ready_[rank]);
      if (last_sums_[rank]) graph_.add_wait(*facts_, *last_sums_[rank]);
    }
  }

  void add_updates()
  {
    std::vector<std::optional<std::size_t>> last_gather(devices_.size());
    for (std::size_t stage = 0; stage < plan_.stages.size(); ++stage) {
      const bool is_divided = holders_[stage].size() > 1 && plan_.sync.sharded != Sharding::None;
      const auto parts = static_cast<double>(is_divided ? holders_[stage].size() : 1);
      double work = 0;
      for (std::size_t k = plan_.stages[stage].first_layer; k <= plan_.stages[stage].last_layer; ++k) {
        work += update_work(workload_, workload_.layers[k]).value / parts;
      }
      std::vector<std::size_t> updates;
      for (const Holder& holder : holders_[stage]) {
        const std::size_t update = add_next(holder.rank, work / speed(holder.rank));
        if (holder.synced) graph_.add_wait(update, *holder.synced);
        if (facts_) graph_.add_wait(update, *facts_);
        updates.push_back(update);
      }
      if (!is_divided) continue;
      const auto ranks = ranks_of_stage(stage);
      const std::size_t gather =
          add_collective(Opcode::AllGather, ranks, parameters_of(stage) * 4 / parts, plan_.sync.algorithm);
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        graph_.add_wait(gather, updates[i]);
        if (last_gather[ranks[i]]) graph_.add_wait(gather, *last_gather[ranks[i]]);
        last_gather[ranks[i]] = gather;
      }
    }
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  const std::vector<std::vector<StagePass>>& passes_;
  const double stretch_;  // of computations
  const Boundaries cuts_;
  StepGraph graph_;
  std::vector<std::vector<Holder>> holders_;       // by stage
  std::vector<std::optional<std::size_t>> ready_;  // by rank: its last computation so far
  std::vector<std::size_t> devices_;               // by rank: its index in the cluster
  std::vector<std::optional<std::size_t>> last_sums_;
  std::optional<std::size_t> facts_;
};

/// Whether a stage of a chain forwards next, by how far it is ahead of its backward passes.
bool forwards_next(ChainSchedule schedule, std::uint64_t ahead, std::size_t stages_left)
{
  switch (schedule) {
    case ChainSchedule::Sequential:
      return ahead == 0;
    case ChainSchedule::GPipe:
      return true;
    case ChainSchedule::OneForwardOneBackward:
      return ahead < stages_left;
  }
  return true;
}

}  // namespace

bool has_plain_pipelines(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  if (divides_operators(plan) || plan.transfers != TransferRules{} || plan.sync.each_microbatch) return false;
  if (plan.sync.sharded == Sharding::Parameters || counted_step(plan).played() != 1) return false;
  const bool has_gradients = std::any_of(workload.layers.begin(), workload.layers.end(),
                                         [](const auto& layer) { return layer.backward.value > 0; });
  const auto is_plain = [&](const Stage& stage) {
    return stage.residence.is_on_device() &&
           std::all_of(stage.replicas.begin(), stage.replicas.end(), [&](const Replica& each) {
             const auto device = cluster.device_index(each.shards.front().device);
             return each.shards.size() == 1 && device && cluster.devices[*device].interference == 1;
           });
  };
  return has_gradients && std::all_of(plan.stages.begin(), plan.stages.end(), is_plain);
}

std::vector<std::vector<StagePass>> passes_of(const Program& program)
{
  std::vector<std::vector<StagePass>> passes(program.ranks());
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (std::uint64_t position = 0; position < program.length(rank, compute_lane); ++position) {
      const Instruction instruction = program.at(rank, compute_lane, position);
      if (instruction.opcode >= Opcode::Update) continue;
      passes[rank].push_back({instruction.opcode, instruction.stage, instruction.microbatch});
    }
  }
  return passes;
}

std::vector<std::vector<StagePass>> passes_of_chain(const Plan& plan)
{
  const ChainSchedule schedule = chain_schedule(plan.goal.schedule).value();
  const std::uint64_t microbatches = plan.goal.microbatches;
  std::vector<std::vector<StagePass>> passes(plan.stages.size());
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    std::uint64_t forwards = 0;
    for (std::uint64_t backwards = 0; backwards < microbatches;) {
      const bool forwards_now =
          forwards < microbatches && forwards_next(schedule, forwards - backwards, plan.stages.size() - stage);
      if (forwards_now) {
        passes[stage].push_back({Opcode::Forward, stage, forwards++});
        continue;
      }
      const std::uint64_t next = schedule == ChainSchedule::GPipe ? microbatches - 1 - backwards : backwards;
      passes[stage].push_back({Opcode::Backward, stage, next});
      ++backwards;
    }
  }
  return passes;
}

double play_pipelines(const Plan& plan, const Workload& workload, const Cluster& cluster,
                      const std::vector<std::vector<StagePass>>& passes)
{
  return PipelinePlayer(plan, workload, cluster, passes, 1).play();
}

double checked_step(const Plan& plan, const Workload& workload, const Cluster& cluster,
                    const std::vector<std::vector<StagePass>>& passes)
{
  constexpr double margin = 100;
  constexpr double most = 0.02;
  const double step = play_pipelines(plan, workload, cluster, passes);
  if (!plan.predicted) return step;
  const double claimed = plan.predicted->step_time.value;
  if (agree(claimed, step)) return claimed;
  if (!(std::abs(claimed - step) <= most * step)) return step;  // also NaN
  double moved = 0;
  for (const double stretch : {1 - 4e-15, 1 + 4e-15, 1 + 8e-15}) {
    moved = std::max(moved, std::abs(PipelinePlayer(plan, workload, cluster, passes, stretch).play() - step));
  }
  return std::abs(claimed - step) <= margin * moved ? claimed : step;
}

}  // namespace isobar
