#include "cli/inputs.hpp"

#include "cli/platform_files.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/standard_streams.hpp"
#include "core/cluster/device_types.hpp"
#include "core/compute/device_profile.hpp"
#include "core/compute/measurements.hpp"
#include "core/compute/pricing.hpp"
#include "core/model/differences.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace isobar::cli {

namespace {

/// That a platform has no device of the type that was measured, but these.
std::string of_no_device(const std::string& measured, const std::set<std::string>& types)
{
  std::vector<std::string> known;
  std::ranges::transform(types, std::back_inserter(known), [](const auto& type) { return in_quotes(type); });
  return fmt::format("device: measured on {}; the platform has devices {}; write one of them", in_quotes(measured),
                     fmt::join(known, ", "));
}

/// Refuses measurements of operators and layers that do not go with the workload and the platform.
void require_measurements_of(const Inputs& inputs, const compute::Measurements& measurements,
                             const std::vector<std::string>& files)
{
  const Workload& workload = inputs.workload;
  if (workload.compute != ComputeModel::Operators) {
    throw InputError(files.front(),
                     fmt::format("is a table of operators, and workload {} has compute: {}; write compute: operators "
                                 "and a framework in it, or --set compute=operators --set framework=NAME",
                                 shown(workload.name), name_of(workload.compute)));
  }
  const auto precision = [](DType dtype, bool tf32) {
    return fmt::format("{}{}", name_of(dtype), tf32 ? " with TF32" : "");
  };
  const std::string needed = precision(workload.dtype, workload.has_tf32_products);
  for (const auto& [file, table] : measurements.tables()) {
    const std::string measured = precision(table.dtype, table.tf32);
    if (measured == needed) continue;
    throw InputError(file, fmt::format("dtype: measured in {}; the workload is in {}; measure it with isobar profile "
                                       "--operators",
                                       measured, needed));
  }
  std::set<std::string> types;
  for (const auto& device : inputs.platform.cluster().devices) types.insert(device.type);
  const auto others = measurements.of_others({types.begin(), types.end()});
  if (others.empty()) return;
  throw InputError(others.front().file, of_no_device(others.front().device, types));
}

constexpr std::string_view between_files = " + ";

bool is_layer_profile(const std::string& file)
{
  return read_file(file).find("\"isobar-profile/") != std::string::npos;
}

/// The files in the order in which the platform first has a device of their type, so that the order in which they are
/// given changes nothing. Those of no device come last.
std::vector<std::string> in_order_of_devices(std::vector<std::string> files, const Cluster& cluster)
{
  std::map<std::string, std::size_t> first_device;  // by file
  for (const auto& file : files) {
    const std::string measured = read_profile(file).device;
    const auto device = std::ranges::find_if(
        cluster.devices, [&](const Device& device) { return is_same_device_type(device.type, measured); });
    first_device[file] = static_cast<std::size_t>(device - cluster.devices.begin());
  }
  std::ranges::stable_sort(files, {}, [&](const std::string& file) { return first_device.at(file); });
  return files;
}

/// Gives the devices of each type the times of their own profile. Those without one take times in proportion of the
/// first.
void add_profiles(const std::vector<std::string>& files, const DeviceProfile& first, Inputs& inputs)
{
  std::set<std::string> types;
  for (const auto& device : inputs.platform.cluster().devices) types.insert(device.type);
  std::map<std::string, std::string> file_of;  // by type
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string& file = files[i];
    const DeviceProfile profile = i == 0 ? first : read_profile(file);
    bool is_used = false;
    for (const auto& type : types) {
      if (!is_same_device_type(type, profile.device)) continue;
      is_used = true;
      const auto [other, is_new] = file_of.emplace(type, file);
      if (!is_new) {
        throw InputError(file, fmt::format("device: measured on {}, as {} was; give one profile of each device type",
                                           in_quotes(profile.device), other->second));
      }
      if (i == 0) continue;  // its work is the layers'
      add_profile(profile, file, type, inputs.workload);
      inputs.platform.set_speed(type, profile.speed);
    }
    const bool is_proportion = i == 0 && types.contains("");  // of devices whose type is not known
    if (!is_used && !is_proportion) throw InputError(file, of_no_device(profile.device, types));
  }
}

/// Refuses a calibration of no device of the platform, and prints what it changes besides, or may lack.
void check_system(const compute::Calibration& system, const Cluster& cluster)
{
  std::set<std::string> others;
  bool is_used = false;
  for (const auto& device : cluster.devices) {
    if (is_same_device_type(device.type, system.device)) {
      is_used = true;
    } else {
      others.insert(in_quotes(device.type));
    }
  }
  const std::string file = on_one_line(system.file);
  if (!is_used) {
    throw InputError("--system", fmt::format("{} calibrates devices of {}; the platform has {}", file,
                                             in_quotes(system.device), fmt::join(others, ", ")));
  }
  if (!others.empty()) {
    say(fmt::format("{}: calibrated on {}; devices of {} take its flags of {} too", file, shown(system.device),
                    fmt::join(others, ", "), system.system.name));
  }
  if (!(system.links == compute::LinkFactors{})) {
    say(
        fmt::format("{}: its factors of links are those of a platform that isobar platform generate machine --system "
                    "makes",
                    file));
  }
}

/// Reads all but the platform, which `load` loads after the workload. `place` precedes the keys of settings in
/// messages.
template <typename LoadPlatform>
Inputs read_inputs(const InputOptions& options, const WorkloadSettings& settings, const std::string& place,
                   const LeftOut& left_out, LoadPlatform load)
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
  if (options.system) {
    check_system(*options.system, inputs.platform.cluster());
    inputs.system_file = options.system->file;
  }
  auto profiles = options.profiles;
  const bool has_layers = std::ranges::any_of(profiles, is_layer_profile);
  if (!profiles.empty() && !has_layers) {
    const compute::Measurements measurements(profiles);
    require_measurements_of(inputs, measurements, profiles);
    price(inputs, measurements, left_out);
    inputs.profile_fingerprint = fingerprint_of(profiles);
    return inputs;
  }
  price(inputs, {}, left_out);
  if (profiles.empty()) return inputs;
  if (inputs.workload.compute == ComputeModel::Operators) {
    throw InputError(profiles.front(),
                     "has no table of operators, which compute: operators takes; write one with isobar profile "
                     "--operators, or --set compute=rate");
  }
  if (profiles.size() > 1) profiles = in_order_of_devices(std::move(profiles), inputs.platform.cluster());
  const DeviceProfile profile = read_profile(profiles.front());
  apply_profile(profile, profiles.front(), inputs.workload);
  take_speeds(profile, profiles.front(), inputs);
  if (profiles.size() == 1 && !profile.has_layers()) return inputs;  // rates of operators, by type
  add_profiles(profiles, profile, inputs);
  inputs.profile_fingerprint = fingerprint_of(profiles);
  return inputs;
}

/// Prints which devices have no rate for the workload's dtype.
void note_missing_rates(const Inputs& inputs)
{
  const DType dtype = inputs.workload.dtype;
  const bool needs_rates = inputs.workload.compute == ComputeModel::Rate && !inputs.profile_fingerprint;
  if (dtype == DType::Float32 || !needs_rates) return;
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

sim::Platform load_with_notes(const InputOptions& options, const std::vector<std::string>& left_out)
{
  sim::Platform platform = load_platform(options.platform, options.devices, left_out);
  print_notes(platform);
  return platform;
}

LeftOut left_out_by(const Plan& plan, const std::string& plan_file)
{
  return {plan.without, plan_file + ": without"};
}

/// Inputs with what a plan changes of them.
Inputs adapted_to(Inputs inputs, const Plan& plan, const std::string& plan_file)
{
  inputs.workload = as_planned(inputs, plan, plan_file + ": ");
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
  // Options are read in the order in which they are added, so the settings and the workload are known here.
  command
      .add_option_function<std::string>(
          "--system",
          [this](const std::string& file) {
            system = compute::read_calibration(file);
            if (workload.empty()) return;  // which is refused
            const auto replaced = add_calibration(*system, workload, settings);
            if (replaced.empty()) return;
            say(fmt::format("{}: as calibrated, in place of what {} says: {}", on_one_line(file), on_one_line(workload),
                            fmt::join(replaced, ", ")));
          },
          "training software and links as calibrated; means compute: operators (YAML; isobar calibrate writes it; "
          "default: the workload's framework)")
      ->check(fault_of_file_name);
  add_file(command, "--devices", devices,
           "props for the platform's hosts (YAML; default: NAME.devices.yaml next to NAME.xml, if it exists)");
  add_file(command, "--profile", profiles,
           "measured times of the workload's layers, rates of its operators, or with compute: operators tables of "
           "operators or Sailor's profiles, a file for each device type (JSON; isobar profile writes it; default: "
           "work over nominal speed)")
      ->allow_extra_args(false);
}

void add_without(CLI::App& command, std::vector<std::string>& without)
{
  add_list(
      command, "--without", without,
      "devices of the platform to leave out, NAME,…; a site leaves out all of its devices; write \\, for a comma in "
      "a name (default: none)");
}

Fingerprint fingerprint_of(const std::vector<std::string>& profiles)
{
  if (profiles.size() == 1) return {profiles.front(), fingerprint(read_file(profiles.front()))};
  std::string hashes;
  for (const auto& file : profiles) hashes += fingerprint(read_file(file));
  return {fmt::format("{}", fmt::join(profiles, between_files)), fingerprint(hashes)};
}

std::vector<std::string> files_of(const Fingerprint& profiles)
{
  std::vector<std::string> files;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = profiles.name.find(between_files, begin);
    files.push_back(profiles.name.substr(begin, end - begin));
    if (end == std::string::npos) return files;
    begin = end + between_files.size();
  }
}

void price(Inputs& inputs, const compute::Measurements& measurements, const LeftOut& left_out)
{
  const Cluster used = without_devices(inputs.platform.cluster(), left_out.devices, left_out.source);
  compute::price(inputs.workload, used, measurements);
  if (inputs.system_file) return;  // constants are fitted to runs
  inputs.notes_of_constants = compute::notes_of_constants(inputs.workload, used, measurements);
}

void take_speeds(const DeviceProfile& profile, const std::string& file, Inputs& inputs)
{
  if (profile.has_layers()) inputs.platform.set_measured_speed(profile.device, profile.speed);
  for (const auto& [type, rates] : inputs.workload.operator_rates) inputs.platform.set_speed(type, rates.flops);
  inputs.has_measured_layers = profile.has_layers();
  inputs.profile_fingerprint = Fingerprint{file, fingerprint(read_file(file))};
}

Inputs load(const InputOptions& options, const RecomputedLayers& recomputed, const LeftOut& left_out)
{
  LeftOut found = left_out;  // by devices alone once the platform is loaded
  Inputs inputs = read_inputs(options, options.settings, options.system ? "--set and --system" : "--set", found, [&] {
    sim::Platform platform = load_with_notes(options, left_out.devices);
    found.devices = devices_named(platform.cluster(), left_out.devices, left_out.source);
    return platform;
  });
  inputs.without = std::move(found.devices);
  recompute_layers(inputs.workload, recomputed);
  return inputs;
}

Inputs load(const InputOptions& options, const Plan& plan, const std::string& plan_file)
{
  const auto& settings =
      settings_of(plan, plan_file, options.settings, options.system ? "--set and --system" : "--set");
  return adapted_to(read_inputs(options, settings, plan_file + ": inputs.workload.set", left_out_by(plan, plan_file),
                                [&] { return load_with_notes(options, plan.without); }),
                    plan, plan_file);
}

Inputs load(const InputOptions& options, const sim::Platform& platform, const Plan& plan, const std::string& plan_file)
{
  const auto& settings =
      settings_of(plan, plan_file, options.settings, options.system ? "--set and --system" : "--set");
  return adapted_to(read_inputs(options, settings, plan_file + ": inputs.workload.set", left_out_by(plan, plan_file),
                                [&] { return platform; }),
                    plan, plan_file);
}

void note_approximations(const Inputs& inputs)
{
  note_missing_rates(inputs);
  if (const auto note = note_of_head(inputs.workload, inputs.workload_fingerprint.name)) say(*note);
  for (const auto& note : inputs.notes_of_constants) say(note);
}

std::vector<std::string> Inputs::files() const
{
  std::vector<std::string> files = platform.files();
  files.push_back(workload_fingerprint.name);
  if (system_file) files.push_back(*system_file);
  if (profile_fingerprint) {
    for (auto& file : files_of(*profile_fingerprint)) files.push_back(std::move(file));
  }
  return files;
}

}  // namespace isobar::cli
