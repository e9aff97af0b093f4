#include "core/check/resident_memory.hpp"

#include "core/model/layer_graph.hpp"
#include "core/plan/sharding.hpp"
#include "core/plan/tied_copies.hpp"

#include <algorithm>

namespace isobar {

namespace {

class ResidentMemory {
 public:
  ResidentMemory(const Plan& plan, const Workload& workload, std::size_t ranks, const std::vector<Holder>& holders,
                 const HoldersOfStages& holder_of)
      : plan_(plan), workload_(workload), ranks_(ranks), holders_(holders), holder_of_(holder_of)
  {
  }

  std::vector<std::array<double, tier_count>> of_ranks() const
  {
    std::vector<double> found(ranks_, 0);
    const Boundaries cuts = boundaries_of(workload_);
    for (const auto& holder : holders_) add_resident(holder, cuts, found);
    if (workload_.memory_model != MemoryModel::Sky) add_workspaces(found);
    std::vector<std::array<double, tier_count>> needed(ranks_);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      needed[rank] = {};
      needed[rank][static_cast<std::size_t>(Tier::Device)] = found[rank];
      if (uses_machine(rank)) needed[rank] = memory_of_tiers(rank);
    }
    return needed;
  }

 private:
  bool uses_machine(std::size_t rank) const
  {
    return std::any_of(holders_.begin(), holders_.end(), [&](const Holder& holder) {
      return holder.is_on(rank) && !plan_.stages[holder.stage].residence.is_on_device();
    });
  }

  /// What a device and its machine hold throughout for stages that do not all live on the device. On the device: what
  /// stays there, places for what passes, and what crosses the cuts to other devices. On the host: what the machine
  /// updates, gradients that wait for that, and optimizer states on their way from and to the disk.
  std::array<double, tier_count> memory_of_tiers(std::size_t rank) const
  {
    constexpr double waiting_gradients = 3;
    constexpr double staged_states = 3;
    const Boundaries cuts = boundaries_of(workload_);
    const ParameterBytes bytes = parameter_bytes(workload_);
    double device = 0;
    double host = 0;
    double disk = 0;
    double passing_parameters = 0;  // of the largest part
    double passing_gradients = 0;
    double updated_gradients = 0;  // of the largest part that the machine updates
    double all_updated_gradients = 0;
    double staged = 0;
    double updated = 0;  // parts, by the machine
    double spilled = 0;  // parts, with their state on the disk
    Residence common;
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      const auto here = holder_of_[i].find(rank);
      if (here == holder_of_[i].end()) continue;
      const Stage& stage = plan_.stages[i];
      device +=
          buffers_of(i, holders_[here->second.first].parts[here->second.second], cuts, plan_.data_server.has_value());
      double count = 0;
      for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
        count += static_cast<double>(workload_.layers[k].parameters);
      }
      const Residence& residence = stage.residence;
      const double parameters = count * bytes.parameter;
      const double gradients = count * bytes.gradient;
      const double state = count * bytes.optimizer;
      if (residence.parameters == Tier::Device) {
        device += parameters;
      } else {
        common.parameter_slots = residence.parameter_slots;
        common.copies = residence.copies;
        passing_parameters = std::max(passing_parameters, parameters + tied_parameters(stage) * bytes.parameter);
      }
      if (residence.gradients == Tier::Device) {
        device += gradients;
      } else {
        common.gradient_slots = residence.gradient_slots;
        passing_gradients = std::max(passing_gradients, gradients);
      }
      if (residence.optimizer == Tier::Device) {
        device += state;
        continue;
      }
      common.overlap = residence.overlap;
      ++updated;
      host += parameters;
      updated_gradients = std::max(updated_gradients, gradients);
      all_updated_gradients += gradients;
      if (residence.optimizer == Tier::Host) {
        host += state;
      } else {
        disk += state;
        staged = std::max(staged, state);
        ++spilled;
      }
    }
    const bool agrees_first = needs_gradient_sync(workload_) && common.copies != Copies::Redundant;
    const bool keeps_all =
        agrees_first || common.overlap == UpdateOverlap::None || common.overlap == UpdateOverlap::Delayed;
    device += static_cast<double>(common.parameter_slots) * passing_parameters;
    device += static_cast<double>(common.gradient_slots) * passing_gradients;
    const bool has_place_each = keeps_all || updated <= waiting_gradients;
    host += has_place_each ? all_updated_gradients : updated_gradients * waiting_gradients;
    host += staged * std::min(spilled, staged_states);
    return {device, host, disk};
  }

  /// The parameters of layers before the stage that pass through the device, and of which it uses a matrix.
  double tied_parameters(const Stage& stage) const
  {
    double count = 0;
    for (const std::size_t owner : matrices_of_earlier_layers(workload_, stage.first_layer, stage.last_layer)) {
      for (const auto& other : plan_.stages) {
        const bool has_it = other.first_layer <= owner && owner <= other.last_layer;
        if (has_it && other.residence.parameters != Tier::Device) {
          count += static_cast<double>(workload_.layers[owner].parameters);
        }
      }
    }
    return count;
  }

  /// Adds what the parts of a holder hold on their devices throughout.
  void add_resident(const Holder& holder, const Boundaries& cuts, std::vector<double>& found) const
  {
    const ParameterBytes bytes = parameter_bytes(workload_);
    const Stage& stage = plan_.stages[holder.stage];
    const auto replicas = static_cast<double>(stage.replicas.size());
    const bool divides_parameters = plan_.sync.sharded == Sharding::Parameters;
    const bool divides_gradients = divides_parameters || plan_.sync.sharded == Sharding::Gradients;
    const bool divides_optimizer = divides_gradients || plan_.sync.sharded == Sharding::Optimizer;
    const auto each_of = [&](double copies) {  // a parameter that so many replicas have
      return bytes.parameter / (divides_parameters ? copies : 1) + bytes.gradient / (divides_gradients ? copies : 1) +
             bytes.optimizer / (divides_optimizer ? copies : 1);
    };
    const double each = each_of(replicas);
    const double each_of_experts = each_of(replicas / static_cast<double>(workload_.experts.degree));
    const bool is_sky = workload_.memory_model == MemoryModel::Sky;
    const bool has_buffers = workload_.memory_model == MemoryModel::Training;
    for (const auto& part : holder.parts) {
      for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
        const Layer& layer = workload_.layers[k];
        const double experts = workload_.experts.divides() ? experts_of(plan_, holder, part, layer) : 0;
        const double others = parameters_of(plan_, holder, part, layer) - experts;
        found[part.rank] += is_sky ? layer.sky_memory.value : others * each + experts * each_of_experts;
      }
      if (has_buffers) found[part.rank] += buffers_of(holder.stage, part, cuts, true) / blocks_of(plan_, holder);
    }
  }

  /// The bytes in which a part of a stage has what it exchanges with other devices, and the input of the step.
  double buffers_of(std::size_t stage, const Part& part, const Boundaries& cuts, bool has_input) const
  {
    const std::size_t before = plan_.stages[stage].first_layer;
    const std::size_t after = plan_.stages[stage].last_layer + 1;
    double bytes = 0;
    if (stage == 0 ? has_input : part.meets_before) bytes += cuts.output[before].value + cuts.gradient[before].value;
    if (part.meets_after) bytes += cuts.output[after].value + cuts.gradient[after].value;
    return bytes;
  }

  /// Adds what the passes of each device need besides, whatever the number of its stages. Under a training system it is
  /// that of the device's largest layer, beside what the device needs for itself.
  void add_workspaces(std::vector<double>& found) const
  {
    std::vector<double> most(found.size(), 0);
    for (const auto& holder : holders_) {
      for (const auto& part : holder.parts) {
        most[part.rank] = std::max(most[part.rank], workspace_of(holder, part));
      }
    }
    for (std::size_t rank = 0; rank < found.size(); ++rank) found[rank] += most[rank];
  }

  double workspace_of(const Holder& holder, const Part& part) const
  {
    if (workload_.memory_model == MemoryModel::Training) return workload_.workspace.value / blocks_of(plan_, holder);
    const Stage& stage = plan_.stages[holder.stage];
    double most = 0;
    for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
      const Layer& layer = workload_.layers[k];
      const double divided = holder.parts.size() > 1 ? layer.split->workspace.value : 0;
      most = std::max(most, (layer.workspace.value - divided) / blocks_of(plan_, holder) +
                                fraction_of(plan_, holder, part, layer) * divided);
    }
    return workload_.workspace.value + most;
  }

  const Plan& plan_;
  const Workload& workload_;
  std::size_t ranks_;
  const std::vector<Holder>& holders_;
  const HoldersOfStages& holder_of_;
};

}  // namespace

std::vector<std::array<double, tier_count>> resident_memory(const Plan& plan, const Workload& workload,
                                                            std::size_t ranks, const std::vector<Holder>& holders,
                                                            const HoldersOfStages& holder_of)
{
  return ResidentMemory(plan, workload, ranks, holders, holder_of).of_ranks();
}

}  // namespace isobar
