#include "core/check/residence_checker.hpp"

#include "core/plan/placed_shards.hpp"
#include "core/program/residence.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

namespace isobar {

namespace {

/// Adds what a stage says of its device to `known`; the key that earlier stages have with another value, if any.
std::optional<const char*> key_that_differs(const Residence& residence, Residence& known)
{
  if (residence.parameters != Tier::Device) {
    const bool is_first = known.parameters == Tier::Device;
    if (!is_first && residence.parameter_slots != known.parameter_slots) return "parameter_slots";
    if (!is_first && residence.copies != known.copies) return "copies";
    known.parameters = residence.parameters;
    known.parameter_slots = residence.parameter_slots;
    known.copies = residence.copies;
  }
  if (residence.gradients != Tier::Device) {
    if (known.gradients != Tier::Device && residence.gradient_slots != known.gradient_slots) return "gradient_slots";
    known.gradients = residence.gradients;
    known.gradient_slots = residence.gradient_slots;
  }
  if (residence.optimizer != Tier::Device) {
    if (known.optimizer != Tier::Device && residence.overlap != known.overlap) return "overlap";
    known.optimizer = residence.optimizer;
    known.overlap = residence.overlap;
  }
  return std::nullopt;
}

/// Checks that a device has the machine and the disk that a residence needs; false if not.
bool check_machine(const Residence& residence, const std::string& name, std::size_t number, const Cluster& cluster,
                   Claims& claims)
{
  const auto index = cluster.device_index(name);
  if (!index) return true;  // a fault of its own
  const Device& device = cluster.devices[*index];
  if (!device.machine) {
    claims.fault("stages[{}].residence: device {} has no machine on platform {}; give it the prop host", number,
                 shown(name), cluster.name);
    return false;
  }
  const Machine& machine = cluster.machines.at(device.machine->machine);
  if (residence.optimizer != Tier::Disk || machine.disk) return true;
  claims.fault(
      "stages[{}].residence.optimizer: disk, and machine {} of device {} has none with a capacity on platform {}",
      number, shown(machine.name), shown(name), cluster.name);
  return false;
}

/// The first device with more places than parts that take them, each of which is memory for the largest of these.
std::optional<StageFault> fault_of_places(const Plan& plan)
{
  struct Parts {
    std::size_t parameters = 0;
    std::size_t gradients = 0;
  };
  const auto device_of = [](const Replica& replica) -> const std::string& { return replica.shards.front().device; };
  std::unordered_map<std::string, Parts> passing;  // by device
  for (const Stage& stage : plan.stages) {
    for (const auto& replica : stage.replicas) {
      Parts& parts = passing[device_of(replica)];
      if (stage.residence.parameters != Tier::Device) ++parts.parameters;
      if (stage.residence.gradients != Tier::Device) ++parts.gradients;
    }
  }
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Residence& residence = plan.stages[i].residence;
    for (const auto& replica : plan.stages[i].replicas) {
      const std::string& device = device_of(replica);
      const Parts& parts = passing[device];
      const auto too_many = [&](const char* key, std::size_t slots, const char* what, std::size_t passes,
                                std::size_t most) {
        return StageFault{i, fmt::format("residence.{}", key),
                          fmt::format("{}, while {} of {} pass through device {}; write {} or less", slots, what,
                                      counted(passes, "part"), shown(device), most)};
      };
      if (residence.parameter_slots > parts.parameters) {
        return too_many("parameter_slots", residence.parameter_slots, "parameters", parts.parameters, parts.parameters);
      }
      // The published artifact, with its redundant copies, has one more than it uses.
      const std::size_t most_gradients = parts.gradients + (residence.copies == Copies::Redundant ? 1 : 0);
      if (residence.gradient_slots > most_gradients) {
        return too_many("gradient_slots", residence.gradient_slots, "gradients", parts.gradients, most_gradients);
      }
      const bool frees_in_next_step =
          residence.copies == Copies::Redundant && residence.overlap == UpdateOverlap::Delayed;
      if (!frees_in_next_step || residence.gradients == Tier::Device || residence.gradient_slots >= parts.gradients) {
        continue;
      }
      return StageFault{
          i, "residence.copies",
          fmt::format("redundant, where a gradient's place becomes free by its update, and overlap delayed has that in "
                      "the next step: {} of {} on device {} would wait for it in a circle; write copies lean, or "
                      "gradient_slots {}",
                      parts.gradients - residence.gradient_slots, counted(parts.gradients, "part"), shown(device),
                      parts.gradients)};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<StageFault> fault_of_residences(const Plan& plan)
{
  std::unordered_map<std::string, Residence> of_device;  // what its stages so far say
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const Residence& residence = stage.residence;
    if (residence.is_on_device()) continue;
    if (const auto found = fault_of(residence)) return StageFault{i, "residence." + found->key, found->text};
    if (plan.sync.sharded != Sharding::None && stage.replicas.size() > 1) {
      return StageFault{i, "residence",
                        fmt::format("sync.sharded is {}, which divides what the device holds; leave one out",
                                    name_of(plan.sync.sharded))};
    }
    for (const auto& replica : stage.replicas) {
      if (replica.shards.size() > 1) {
        return StageFault{i, "residence",
                          fmt::format("its {} keep everything on their devices; leave it out",
                                      counted(replica.shards.size(), "shard"))};
      }
      const std::string& device = replica.shards.front().device;
      if (const auto key = key_that_differs(residence, of_device[device])) {
        return StageFault{
            i, fmt::format("residence.{}", *key),
            fmt::format("another one than an earlier stage of device {} has; it is of the device", shown(device))};
      }
    }
  }
  return fault_of_places(plan);
}

void check_residences(const Plan& plan, const Workload& workload, const Cluster& cluster,
                      const std::vector<std::size_t>& number, Claims& claims)
{
  if (const auto found = fault_of_residences(plan)) {
    claims.fault("stages[{}].{}: {}", number[found->stage], found->key, found->text);
    return;
  }
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Residence& residence = plan.stages[i].residence;
    if (residence.is_on_device()) continue;
    if (workload.memory_model == MemoryModel::Sky) {
      claims.fault("stages[{}].residence: memory_model sky does not tell parameters from activations; use training",
                   number[i]);
      return;
    }
    for (const auto& replica : plan.stages[i].replicas) {
      if (!check_machine(residence, replica.shards.front().device, number[i], cluster, claims)) return;
    }
  }
}

std::optional<std::string> key_of_circle(const Plan& plan)
{
  const auto lives_elsewhere = [](const Stage& stage) { return !stage.residence.is_on_device(); };
  const auto found = std::find_if(plan.stages.begin(), plan.stages.end(), lives_elsewhere);
  if (found != plan.stages.end()) {
    const auto index = static_cast<std::size_t>(found - plan.stages.begin());
    return fmt::format("stages[{}].residence", numbers_in_file(plan)[index]);
  }
  return plan.sync.sharded == Sharding::Parameters ? std::optional("sync.sharded") : std::nullopt;
}

void check_tied_residence(const Plan& plan, std::size_t layer, std::size_t index, std::size_t owner,
                          const std::vector<std::size_t>& number, Claims& claims)
{
  const Residence& here = plan.stages[index].residence;
  if (plan.stages[owner].residence.parameters == Tier::Device) return;
  if (here.parameters == Tier::Device) {
    claims.fault(
        "stages[{}].residence.parameters: host, and layer {} of stages[{}] on the device uses its matrix; write device",
        number[owner], layer, number[index]);
  } else if (counted_step(here.overlap).overlaps()) {
    claims.fault(
        "stages[{}].residence.overlap: {}, and layer {} uses a matrix of stages[{}], which passes too; use step or "
        "none",
        number[index], name_of(here.overlap), layer, number[owner]);
  }
}

}  // namespace isobar
