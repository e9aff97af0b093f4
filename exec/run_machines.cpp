#include "exec/run_machines.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/program/player.hpp"
#include "exec/device/device.hpp"
#include "exec/launch/device_name.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/run/machine_needs.hpp"
#include "exec/watch/replan.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

namespace {

using Json = nlohmann::json;

const Json& named(const Json& list, const std::string& name, const std::string& platform)
{
  const auto found = std::find_if(list.begin(), list.end(), [&](const Json& each) { return each.at("name") == name; });
  if (found == list.end()) throw InputError(platform, fmt::format("has no {}, which the plan uses", shown(name)));
  return *found;
}

MachineRates rates_of(const Json& link, const Json& machine)
{
  MachineRates rates;
  rates.in = {Seconds(link.at("in_latency_s")), BytesPerSecond(link.at("in_bytes_per_s"))};
  rates.out = {Seconds(link.at("out_latency_s")), BytesPerSecond(link.at("out_bytes_per_s"))};
  rates.update_speed = FlopsPerSecond(machine.at("update_flops_per_s"));
  rates.busy_update_speed = FlopsPerSecond(machine.at("busy_update_flops_per_s"));
  return rates;
}

std::shared_ptr<SharedDisk> disk_of(const Json& machine)
{
  const Json& disk = machine.at("disk");
  if (disk.is_null()) return nullptr;
  return std::make_shared<SharedDisk>(BytesPerSecond(disk.at("read_bytes_per_s")),
                                      BytesPerSecond(disk.at("write_bytes_per_s")));
}

/// Whether one of the plan's stages on a device is one of those.
template <typename Is>
bool has_stage(const Plan& plan, const std::string& device, Is is)
{
  return std::any_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
    return is(stage.residence) &&
           std::any_of(stage.replicas.begin(), stage.replicas.end(),
                       [&](const Replica& replica) { return replica.shards.front().device == device; });
  });
}

}  // namespace

void set_machine_rates(const Plan& plan, RunCommandOptions& options)
{
  if (options.platform.empty()) {
    if (!uses_machines(plan)) return;
    throw InputError("--emulate", "the plan's stages live in machines, whose rates are the platform's; add --platform");
  }
  if (!options.run.emulate || is_gpu(options.run.device)) {
    throw InputError("--platform", "sets the rates of emulated machines; add --emulate, and use a CPU");
  }
  const std::string hash = fingerprint(read_file(options.platform));
  if (hash != plan.platform.hash) {
    throw InputError(options.platform, fmt::format("has hash {}; the plan was made for {}, with hash {}", hash,
                                                   shown(plan.platform.name), shown(plan.platform.hash)));
  }
  const auto shown_platform = run_isobar_program({"platform", "show", options.platform, "--json"});
  const Json cluster = Json::parse(shown_platform.output_or_throw());
  std::map<std::string, std::shared_ptr<SharedDisk>> disks;  // by machine
  for (const auto& device : devices_of_ranks(plan)) {
    auto& emulated = options.run.machines.emplace_back();
    if (plan.data_server == device) continue;
    const Json link = named(cluster.at("devices"), device, options.platform).value("machine", Json());
    if (link.is_null()) {
      if (!has_stage(plan, device, [](const Residence& residence) { return !residence.is_on_device(); })) continue;
      throw InputError(options.platform, fmt::format("device {} has no machine, which the plan uses", shown(device)));
    }
    const Json& machine = named(cluster.at("machines"), link.at("name"), options.platform);
    emulated = {rates_of(link, machine), disks.try_emplace(machine.at("name"), disk_of(machine)).first->second};
    if (!emulated.disk && has_stage(plan, device, [](const Residence& each) { return each.optimizer == Tier::Disk; })) {
      throw InputError(options.platform, fmt::format("machine {} has no disk with a capacity, which the plan uses",
                                                     shown(machine.at("name").get<std::string>())));
    }
  }
}

void require_memory(const std::string& who_needs, Bytes needed)
{
  const MachineMemory memory = machine_memory();
  const MachineNeed need = memory_need(who_needs, needed, memory.available, text_of(memory));
  if (!need.is_met())
    throw EnvironmentError(need.subject, need.text + "; make more available, or run fewer ranks here");
}

void require_machine(const Program& program, const RunCommandOptions& options)
{
  for (const auto& need : machine_needs(program, options.rank, is_gpu(options.run.device), options.run.scratch)) {
    if (!need.is_met()) throw EnvironmentError(need.text);
  }
}

}  // namespace isobar::exec
