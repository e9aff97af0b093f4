#include "sim/platform/platform.hpp"

#include "core/base/files.hpp"
#include "core/cluster/device_types.hpp"
#include "core/errors.hpp"
#include "sim/platform/endpoints.hpp"
#include "sim/platform/engine_loader.hpp"
#include "sim/platform/machines.hpp"
#include "sim/platform/platform_notes.hpp"
#include "sim/platform/routes.hpp"
#include "sim/platform/scaling.hpp"
#include "sim/platform/simgrid_compat.hpp"
#include "sim/platform/simgrid_network.hpp"
#include "sim/platform/trial_load.hpp"
#include "sim/scan/devices_file.hpp"
#include "sim/scan/prescan.hpp"
#include "sim/scan/systems_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <map>

namespace isobar::sim {

namespace {

Device scanned_device(const ScannedHost& host)
{
  const Props& props = host.props;
  return {.name = host.name,
          .type = props.device.value_or(""),
          .site = props.site.value_or(""),
          .speed = FlopsPerSecond(sg4::Engine::get_instance()->host_by_name(host.name)->get_speed()),
          .speed_in = props.speed_in,
          .memory = *props.memory,
          .price_usd_per_hour = props.price_usd_per_hour,
          .interference = props.interference.value_or(1),
          .collective_start = props.collective_start.value_or(Seconds(0))};
}

/// @throws InputError for routes that this SimGrid does not find.
void check_gateways(const PlatformScan& scan, const std::string& file)
{
  if (routes_from_inner_gateways || scan.inner_gateways.empty()) return;
  std::vector<std::string> faults;
  for (const auto& [line, text] : scan.inner_gateways) {
    faults.push_back(
        fmt::format("{}:{}: {}; SimGrid {} finds no routes from there: put all hosts of the outer "
                    "zone into one zone, or build Isobar with SimGrid 3.32",
                    on_one_line(file), line, text, simgrid_version()));
  }
  throw InputError(faults);
}

/// Finds a profile file where SimGrid does: in the working folder, then next to the platform file.
std::optional<std::filesystem::path> find_profile_file(const std::filesystem::path& platform, const std::string& name)
{
  const std::filesystem::path beside = platform.parent_path() / name;
  for (const auto& file : {std::filesystem::path(name), beside}) {
    if (std::filesystem::is_regular_file(file)) return file;
  }
  return std::nullopt;
}

/// NAME + `ending` next to NAME.xml, if it exists.
std::optional<std::filesystem::path> file_beside(const std::filesystem::path& platform, const char* ending)
{
  auto file = platform;
  file.replace_extension(ending);
  if (std::filesystem::exists(file)) return file;
  return std::nullopt;
}

}  // namespace

Platform Platform::load(const std::filesystem::path& file, const std::optional<std::filesystem::path>& devices_file,
                        const std::vector<std::string>& left_out)
{
  return load_text(read_file(file), file, devices_file ? devices_file : file_beside(file, ".devices.yaml"), left_out);
}

Platform Platform::from_text(const std::string& xml, const std::string& name)
{
  Platform platform = load_text(xml, name, std::nullopt, {});
  platform.cluster_.name = name;
  platform.files_.clear();
  return platform;
}

Platform Platform::load_text(const std::string& xml, const std::filesystem::path& file,
                             const std::optional<std::filesystem::path>& devices_file,
                             const std::vector<std::string>& left_out)
{
  static bool loaded = false;
  ensure(!loaded, "a process loads one platform");
  const std::string name = file.string();
  std::string content = xml;
  std::vector<std::string> files = {name};
  auto scan = scan_platform(xml, name, [&](const std::string& profile) -> std::optional<std::string> {
    const auto found = find_profile_file(file, profile);
    if (!found) return std::nullopt;
    files.push_back(found->string());
    return read_file(*found);
  });
  check_gateways(scan, name);
  if (devices_file) {
    const std::string text = read_file(*devices_file);
    apply_devices_file(scan.hosts, text, devices_file->string());
    files.push_back(devices_file->string());
    content += text;
  }
  std::map<std::string, MeasuredSystem> systems;
  if (const auto systems_file = file_beside(file, ".systems.yaml")) {
    const std::string text = read_file(*systems_file);
    systems = systems_from_yaml(text, systems_file->string());
    files.push_back(systems_file->string());
    content += text;
  }
  for (const auto& profile : scan.profiles) content += profile;
  const auto endpoints = endpoints_of(scan.hosts, name);
  const auto used = endpoints_without(endpoints, left_out);
  const TextInMemory text(scan.text_to_load);
  const EngineSource source = {text.path(), file.parent_path().string(), scan.fat_pipe_clusters};
  load_in_child(name, source, scan, used);

  load_into_engine(source);
  loaded = true;
  Platform platform;
  platform.hash_ = fingerprint(content);
  platform.files_ = std::move(files);
  platform.routes_ = std::make_shared<const Routes>(scan);
  Cluster& cluster = platform.cluster_;
  cluster.name = file.stem().string();
  const auto links = machine_links(name, used, *platform.routes_, [](const std::string&) {});
  std::size_t next = 0;  // of the used ones
  for (const auto* host : endpoints.devices) {
    cluster.devices.push_back(scanned_device(*host));
    if (next < links.size() && used.devices[next] == host) cluster.devices.back().machine = links[next++];
  }
  for (const auto* host : endpoints.machines) cluster.machines.push_back(machine_of(*host));
  cluster.systems = std::move(systems);
  if (endpoints.data_server != nullptr) cluster.data_server = endpoints.data_server->name;
  platform.network_ = std::make_shared<const SimGridNetwork>(endpoints.all(), platform.routes_);
  cluster.network = platform.network_;
  cluster.profile_speedup = scan.profile_speedup;
  platform.notes_ = platform_notes(scan, used, links, name);
  return platform;
}

void Platform::scale(Property property, double factor, const std::optional<std::string>& name)
{
  if (!std::isfinite(factor) || factor <= 0) {
    throw InputError(cluster_.name, fmt::format("scaled by {}; a factor must be greater than 0", factor));
  }
  if (property == Property::Speed || property == Property::Memory) {
    scale_devices(cluster_, property, factor, name);
  } else if (property == Property::UpdateSpeed) {
    scale_machines(cluster_, factor, name);
  } else {
    scale_links(cluster_, *routes_, property, factor, name);
    network_->forget_paths();
    for (auto& device : cluster_.devices) {
      if (device.machine) device.machine = current_link(*routes_, cluster_, device);
    }
  }
}

void Platform::set_measured_speed(const std::string& device_type, FlopsPerSecond speed)
{
  cluster_.measured_speed = speed;
  set_speed(device_type, speed);
}

void Platform::set_speed(const std::string& device_type, FlopsPerSecond speed)
{
  isobar::set_speed(cluster_, device_type, speed);
}

void Platform::leave_out(const std::vector<std::string>& devices, const std::string& where)
{
  if (!devices.empty()) cluster_ = without_devices(cluster_, devices, where);
}

}  // namespace isobar::sim
