#include "cli/inputs.hpp"

#include "cli/platform_files.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/standard_streams.hpp"
#include "core/model/device_profile.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <map>

namespace isobar::cli {

namespace {

/// Reads all but the platform, which `platform` loads after the workload. `place` precedes the keys of settings in
/// messages.
template <typename LoadPlatform>
Inputs read_inputs(const InputOptions& options, const WorkloadSettings& settings, const std::string& place,
                   LoadPlatform load)
{
  const std::string workload_text = read_file(options.workload);
  Workload workload = workload_from_text(workload_text, options.workload, settings, place);
  sim::Platform platform = load();
  Fingerprint platform_fingerprint{options.platform, platform.hash()};
  Inputs inputs{std::move(platform),
                std::move(workload),
                std::move(platform_fingerprint),
                {options.workload, workload_fingerprint(workload_text, settings), settings},
                {},
                options.devices.empty() ? std::nullopt : std::optional(options.devices)};
  if (options.profile.empty()) return inputs;
  const DeviceProfile profile = read_profile(options.profile);
  apply_profile(profile, options.profile, inputs.workload);
  take_speeds(profile, options.profile, inputs);
  return inputs;
}

sim::Platform load_with_notes(const InputOptions& options, const std::vector<std::string>& left_out)
{
  sim::Platform platform = load_platform(options.platform, options.devices, left_out);
  print_notes(platform);
  return platform;
}

/// Inputs with what a plan changes of them.
Inputs adapted_to(Inputs inputs, const Plan& plan, const std::string& plan_file)
{
  inputs.workload = as_planned(inputs, plan, plan_file + ": ");
  recompute(inputs.workload, plan.recompute, plan_file + ": recompute");
  inputs.platform.leave_out(plan.without, plan_file + ": without");
  return inputs;
}

}  // namespace

void InputOptions::add_to(CLI::App& command)
{
  command.option_defaults()->group("Inputs");
  add_file(command, "PLATFORM", platform, "SimGrid platform file (XML)")->required();
  add_file(command, "WORKLOAD", workload, "workload file (YAML)")->required();
  add_settings(command, settings);
  add_file(command, "--devices", devices,
           "props for the platform's hosts (YAML; default: NAME.devices.yaml next to NAME.xml, if it exists)");
  add_file(command, "--profile", profile,
           "measured times of the workload's layers, or rates of its operators (JSON; isobar profile writes it; "
           "default: work over nominal speed)");
}

void take_speeds(const DeviceProfile& profile, const std::string& file, Inputs& inputs)
{
  if (profile.has_layers()) inputs.platform.set_measured_speed(profile.device, profile.speed);
  for (const auto& [type, rates] : inputs.workload.operator_rates) inputs.platform.set_speed(type, rates.flops);
  inputs.has_measured_layers = profile.has_layers();
  inputs.profile_fingerprint = Fingerprint{file, fingerprint(read_file(file))};
}

Inputs load(const InputOptions& options, const RecomputedLayers& recomputed, const std::vector<std::string>& left_out)
{
  Inputs inputs = read_inputs(options, options.settings, "--set", [&] { return load_with_notes(options, left_out); });
  recompute_layers(inputs.workload, recomputed);
  return inputs;
}

Inputs load(const InputOptions& options, const Plan& plan, const std::string& plan_file)
{
  const auto& settings = settings_of(plan, plan_file, options.settings);
  return adapted_to(read_inputs(options, settings, plan_file + ": inputs.workload.set",
                                [&] { return load_with_notes(options, plan.without); }),
                    plan, plan_file);
}

Inputs load(const InputOptions& options, const sim::Platform& platform, const Plan& plan, const std::string& plan_file)
{
  const auto& settings = settings_of(plan, plan_file, options.settings);
  return adapted_to(read_inputs(options, settings, plan_file + ": inputs.workload.set", [&] { return platform; }), plan,
                    plan_file);
}

void note_missing_rates(const Inputs& inputs)
{
  const DType dtype = inputs.workload.dtype;
  if (dtype == DType::Float32 || inputs.profile_fingerprint) return;
  std::map<std::string, std::size_t> lacking;  // devices of each type
  for (const auto& device : inputs.platform.cluster().devices) {
    if (!device.speed_in.contains(dtype)) ++lacking[device.type.empty() ? "devices without a type" : device.type];
  }
  if (lacking.empty()) return;
  std::string list;
  for (const auto& [type, count] : lacking) {
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", shown(type), count);
  }
  say(fmt::format("{}: no {} rate of {}; their float32 rate is used; set speed.{}",
                  on_one_line(inputs.platform_fingerprint.name), name_of(dtype), list, name_of(dtype)));
}

std::vector<std::string> Inputs::files() const
{
  std::vector<std::string> files = platform.files();
  files.push_back(workload_fingerprint.name);
  if (profile_fingerprint) files.push_back(profile_fingerprint->name);
  return files;
}

}  // namespace isobar::cli
