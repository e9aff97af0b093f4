#include "exec/run_machines.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/program/player.hpp"
#include "exec/device/device.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/launch/replan.hpp"
#include "exec/run/machine_needs.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
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

CopyRate rate_of(const Json& disk, const char* key)
{
  return {Seconds(0), BytesPerSecond(disk.at(key))};
}

MachineRates rates_of(const Json& link, const Json& machine)
{
  MachineRates rates;
  rates.in = {Seconds(link.at("in_latency_s")), BytesPerSecond(link.at("in_bytes_per_s"))};
  rates.out = {Seconds(link.at("out_latency_s")), BytesPerSecond(link.at("out_bytes_per_s"))};
  rates.update_speed = FlopsPerSecond(machine.at("update_flops_per_s"));
  rates.busy_update_speed = FlopsPerSecond(machine.at("busy_update_flops_per_s"));
  if (const Json& disk = machine.at("disk"); !disk.is_null()) {
    rates.read = rate_of(disk, "read_bytes_per_s");
    rates.write = rate_of(disk, "write_bytes_per_s");
  }
  return rates;
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
  for (const auto& device : devices_of_ranks(plan)) {
    options.run.machines.emplace_back();
    if (plan.data_server == device) continue;
    const Json link = named(cluster.at("devices"), device, options.platform).value("machine", Json());
    if (link.is_null()) continue;
    options.run.machines.back() = rates_of(link, named(cluster.at("machines"), link.at("name"), options.platform));
  }
}

void require_machine(const Program& program, const RunCommandOptions& options)
{
  for (const auto& need : machine_needs(program, options.rank, is_gpu(options.run.device), options.run.scratch)) {
    if (!need.is_met()) throw EnvironmentError(need.text);
  }
}

}  // namespace isobar::exec
