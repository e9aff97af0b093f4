#include "sim/platform/platform.hpp"

#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "sim/platform/devices_file.hpp"
#include "sim/platform/prescan.hpp"
#include "sim/platform/routes.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <fmt/format.h>
#include <simgrid/Exception.hpp>

#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <regex>
#include <set>
#include <stdexcept>

namespace isobar::sim {

namespace {

/// How long SimGrid may take to load a platform in the child.
constexpr Seconds longest_load(600);
/// Pairs of devices whose route is looked up when a platform is loaded; of a larger one the neighbours, the data server
/// and one device per zone.
constexpr std::size_t most_checked_pairs = 16'384;
/// Endpoints up to which every path that was asked for is kept (270 MB): the most that a search takes, and a data
/// server.
constexpr std::size_t most_cached_endpoints = 4'097;

/// The endpoints of the cluster as the platform file has them: devices, then the data server if there is one.
struct Endpoints {
  std::vector<const ScannedHost*> devices;
  const ScannedHost* data_server = nullptr;

  std::vector<const ScannedHost*> all() const
  {
    auto hosts = devices;
    if (data_server != nullptr) hosts.push_back(data_server);
    return hosts;
  }
};

std::string place_of(const std::string& file, const ScannedHost& host)
{
  return fmt::format("{}:{}: host {}", file, host.line, host.name);
}

Endpoints endpoints_of(const std::vector<ScannedHost>& hosts, const std::string& file)
{
  Endpoints endpoints;
  std::vector<std::string> faults;
  for (const auto& host : hosts) {
    if (host.props.memory && host.computes) endpoints.devices.push_back(&host);
    if (!host.props.data_server) continue;
    if (host.props.memory) {
      faults.push_back(place_of(file, host) +
                       ": is a device, by its memory, and the data server; it can be one of them");
    } else if (endpoints.data_server != nullptr) {
      faults.push_back(fmt::format("{}: is a second data server; {} in line {} is one", place_of(file, host),
                                   endpoints.data_server->name, endpoints.data_server->line));
    } else {
      endpoints.data_server = &host;
    }
  }
  if (!faults.empty()) throw InputError(faults);
  if (endpoints.devices.empty()) {
    throw InputError(fmt::format("{}:1", file),
                     "no host is a device; give hosts the prop memory, here or in a devices file");
  }
  return endpoints;
}

/// What of the file is not taken, a line each.
std::vector<std::string> notes_on(const PlatformScan& scan, const std::string& file)
{
  std::vector<std::string> notes;
  if (scan.config_line) {
    notes.push_back(fmt::format("{}:{}: <config> is ignored; Isobar sets SimGrid's options itself", on_one_line(file),
                                *scan.config_line));
  }
  const ScannedHost* first = nullptr;
  std::size_t idle = 0;
  for (const auto& host : scan.hosts) {
    if (host.computes || !host.props.memory) continue;
    if (idle++ == 0) first = &host;
  }
  if (first != nullptr) {
    notes.push_back(fmt::format("{}:{}: host {}{}: a speed of 0, so no device", on_one_line(file), first->line,
                                shown(first->name), idle == 1 ? "" : fmt::format(" and {} more", idle - 1)));
  }
  return notes;
}

Endpoints without(Endpoints endpoints, const std::vector<std::string>& left_out)
{
  std::erase_if(endpoints.devices, [&left_out](const ScannedHost* device) {
    return std::find(left_out.begin(), left_out.end(), device->name) != left_out.end();
  });
  return endpoints;
}

/// SimGrid takes signals for itself when it starts; this gives them back to who had them.
class KeepSignals {
 public:
  KeepSignals()
  {
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], nullptr, &before_[i]);
  }
  KeepSignals(const KeepSignals&) = delete;
  KeepSignals& operator=(const KeepSignals&) = delete;
  ~KeepSignals()
  {
    for (std::size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before_[i], nullptr);
  }

 private:
  static constexpr std::array<int, 3> signals = {SIGINT, SIGSEGV, SIGBUS};
  std::array<struct sigaction, signals.size()> before_;
};

/// A text as a file without a place on the disk, until it is destroyed.
class TextAsFile {
 public:
  explicit TextAsFile(const std::string& text) : descriptor_(memfd_create("platform", MFD_CLOEXEC))
  {
    if (descriptor_ < 0) throw EnvironmentError("no memory for a platform file");
    std::ofstream(path(), std::ios::binary) << text;
  }
  TextAsFile(const TextAsFile&) = delete;
  TextAsFile& operator=(const TextAsFile&) = delete;
  ~TextAsFile() { close(descriptor_); }

  std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

/// What SimGrid is to load: a file with the platform's text, and the folder of the platform, where its profiles are.
struct Source {
  std::string file;
  std::string folder;
};

/// Starts this process's one engine, silent but for its last words before it aborts, and lets it read the file.
void load_into_engine(const Source& source)
{
  static std::vector<std::string> arguments = {"isobar", "--log=root.thres:critical", "--log=root.fmt:%m%n"};
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  {
    const KeepSignals keep;
    static auto* engine = new sg4::Engine(&count, pointers.data());  // lives as long as the process
    for (const auto& [name, value] : network_settings()) sg4::Engine::set_config(name + ":" + value);
    if (!source.folder.empty()) sg4::Engine::set_config("path", source.folder);
    engine->load_platform(source.file);
    engine->seal_platform();  // zones complete their routes only now
  }
}

/// What SimGrid says in its first line, without the addresses of its objects.
std::string first_words(const std::string& text)
{
  static const std::regex address(R"( ?\(?0x[0-9a-f]+\)?)");
  return std::regex_replace(text.substr(0, text.find('\n')), address, "");
}

/// SimGrid's word for a fault as ours. Where it knows the line it says "Parse error at FILE:LINE: what", and for what
/// breaks its DTD "Invalid XML (its parser's state): " before that.
std::string fault_of_simgrid(const std::string& file, const std::string& loaded, const std::string& message)
{
  const std::string line = first_words(message);
  const std::string known = "Parse error at " + loaded + ":";
  const auto number_end = line.find(':', known.size());
  if (!line.starts_with(known) || number_end == std::string::npos) return fmt::format("{}: SimGrid: {}", file, line);
  const std::string what = line.substr(number_end + 2);
  const auto state_end = what.starts_with("Invalid XML (") ? what.find("): ") : std::string::npos;
  return fmt::format("{}:{}: SimGrid: {}", file, line.substr(known.size(), number_end - known.size()),
                     state_end == std::string::npos ? what : what.substr(state_end + 3));
}

/// What a child leaves behind when it dies: what it was about to find out, and what SimGrid wrote to stderr.
class Testament {
 public:
  Testament()
      : errors_(memfd_create("simgrid", MFD_CLOEXEC)),
        fault_(mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
  {
    if (errors_ < 0 || fault_ == MAP_FAILED) throw EnvironmentError("no memory to share with a child process");
  }
  Testament(const Testament&) = delete;
  Testament& operator=(const Testament&) = delete;
  ~Testament()
  {
    munmap(fault_, capacity);
    close(errors_);
  }

  /// In the child: from now on stderr is kept here.
  void catch_errors() const { dup2(errors_, STDERR_FILENO); }
  /// In the child: the fault if it dies now.
  void expect(const std::string& fault) const
  {
    const auto length = std::min(fault.size(), capacity - 1);
    fault.copy(static_cast<char*>(fault_), length);
    static_cast<char*>(fault_)[length] = '\0';
  }

  std::string fault() const { return static_cast<const char*>(fault_); }
  std::string first_error() const
  {
    std::string text(capacity, '\0');
    const ssize_t count = pread(errors_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return first_words(text);
  }

 private:
  static constexpr std::size_t capacity = 4096;
  int errors_;
  void* fault_;
};

/// What closed forms and the simulator compute with: rates of 1 and more per second, up to what a double carries far.
bool is_rate(double value)
{
  return value >= 1 && value <= 1e30;
}

/// Eleven days; a platform that needs more has a slip in its units.
constexpr double most_latency_s = 1e6;

/// What the checks in the child work on.
struct Check {
  const std::string& file;
  const Endpoints& endpoints;
  const Routes& routes;
  const Testament& testament;
};

void check_route(const Check& check, const ScannedHost& from, const ScannedHost& to)
{
  // Devices are checked in their order: `to` is the one that is new.
  const std::string place = place_of(check.file, to);
  const std::string missing = fmt::format("{}: no route from {}; every two devices need one", place, from.name);
  check.testament.expect(missing);
  const auto* engine = sg4::Engine::get_instance();
  Route route;
  try {
    route = check.routes.between(*engine->host_by_name(from.name), *engine->host_by_name(to.name));
  } catch (const std::exception& error) {
    throw InputError(fmt::format("{} (SimGrid: {})", missing, first_words(error.what())));
  }
  if (route.missing()) throw InputError(missing);
  if (!(route.latency.value >= 0 && route.latency.value <= most_latency_s)) {
    throw InputError(place, fmt::format("a latency of {:.6g} s from {}; the most is {:.0e} s", route.latency.value,
                                        from.name, most_latency_s));
  }
  for (const auto* link : route.links) {
    if (!is_rate(link->get_bandwidth())) {
      throw InputError(place, fmt::format("link {}, on the way from {}, has {:.6g} B/s; a bandwidth is 1 to 1e30 B/s",
                                          link->get_name(), from.name, link->get_bandwidth()));
    }
    if (link->get_sharing_policy() == sg4::Link::SharingPolicy::WIFI) {
      throw InputError(place, fmt::format("link {}, on the way from {}, is WIFI; a platform file cannot set its rates",
                                          link->get_name(), from.name));
    }
  }
}

/// All pairs of a small platform. Of a large one: each device with the next, and one device of each zone with those of
/// the others, while the bound lasts; what is left is found when its path is asked for.
void check_routes(const Check& check)
{
  const auto check_pairs = [&](const std::vector<const ScannedHost*>& hosts) {
    for (const auto* from : hosts) {
      for (const auto* to : hosts) {
        if (from != to) check_route(check, *from, *to);
      }
    }
  };
  const auto all = check.endpoints.all();
  if (all.size() * all.size() <= most_checked_pairs) {
    check_pairs(all);
    return;
  }
  const auto& devices = check.endpoints.devices;
  std::vector<const ScannedHost*> one_per_zone;
  std::set<std::size_t> zones;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const ScannedHost& device = *devices[i];
    const ScannedHost& next = *devices[(i + 1) % devices.size()];
    check_route(check, device, next);
    check_route(check, next, device);
    if (check.endpoints.data_server != nullptr) check_route(check, *check.endpoints.data_server, device);
    const std::size_t pairs = (zones.size() + 1) * (zones.size() + 1);
    if (pairs <= most_checked_pairs && zones.insert(device.zone).second) one_per_zone.push_back(&device);
  }
  check_pairs(one_per_zone);
}

void check_speeds(const Check& check)
{
  for (const auto* device : check.endpoints.devices) {
    const auto* host = sg4::Engine::get_instance()->host_by_name_or_null(device->name);
    const std::string place = place_of(check.file, *device);
    if (host == nullptr) throw InputError(place, "SimGrid did not make this host");
    if (!is_rate(host->get_speed()))
      throw InputError(place,
                       fmt::format("its speed is {:.6g} FLOP/s; a speed is 1 to 1e30 FLOP/s", host->get_speed()));
  }
}

/// Loads and checks the platform where a crash of SimGrid's costs nothing.
void try_in_child(const std::string& file, const Source& source, const PlatformScan& scan, const Endpoints& endpoints)
{
  const Testament testament;
  const auto result = run_in_child(
      [&]() -> std::string {
        testament.catch_errors();
        try {
          load_into_engine(source);
        } catch (const std::exception& error) {
          throw InputError(fault_of_simgrid(file, source.file, error.what()));
        }
        const Routes routes(scan);
        const Check check = {file, endpoints, routes, testament};
        check_speeds(check);
        check_routes(check);
        return {};
      },
      longest_load);
  if (result.failure && result.failure->kind == Failure::Kind::Died) {
    const std::string said = testament.first_error();
    const std::string reason = said.empty() ? result.failure->text : said;
    if (testament.fault().empty()) throw InputError(file, fmt::format("SimGrid cannot load it: {}", reason));
    throw InputError(fmt::format("{} (SimGrid: {})", testament.fault(), reason));
  }
  if (result.failure && result.failure->kind == Failure::Kind::Silent) {
    throw InputError(file, fmt::format("SimGrid takes more than {:.0f} s to load it", longest_load.value));
  }
  result.output_or_throw();
}

Device device_of(const ScannedHost& host)
{
  const Props& props = host.props;
  return {.name = host.name,
          .type = props.device.value_or(""),
          .site = props.site.value_or(""),
          .speed = FlopsPerSecond(sg4::Engine::get_instance()->host_by_name(host.name)->get_speed()),
          .speed_in = props.speed_in,
          .memory = *props.memory,
          .price_usd_per_hour = props.price_usd_per_hour};
}

/// Profile files as SimGrid looks for them: in the working directory first, then beside the platform file.
std::optional<std::filesystem::path> find_profile_file(const std::filesystem::path& platform, const std::string& name)
{
  const std::filesystem::path beside = platform.parent_path() / name;
  for (const auto& file : {std::filesystem::path(name), beside}) {
    if (std::filesystem::is_regular_file(file)) return file;
  }
  return std::nullopt;
}

std::optional<std::filesystem::path> devices_file_beside(const std::filesystem::path& platform)
{
  auto file = platform;
  file.replace_extension(".devices.yaml");
  if (std::filesystem::exists(file)) return file;
  return std::nullopt;
}

[[noreturn]] void refuse_scaled(const Cluster& cluster, double factor, const char* what, const std::string& whose)
{
  throw InputError(cluster.name, fmt::format("scaled by {}, the {} of {} is out of range", factor, what, shown(whose)));
}

void scale_devices(Cluster& cluster, Property property, double factor, const std::optional<std::string>& name)
{
  if (name && !cluster.device_index(*name)) {
    throw InputError(cluster.name, fmt::format("there is no device {} to scale", shown(*name)));
  }
  for (auto& device : cluster.devices) {
    if (name && device.name != *name) continue;
    if (property == Property::Memory) {
      device.memory = factor * device.memory;
      if (!std::isfinite(device.memory.value)) refuse_scaled(cluster, factor, "memory", device.name);
      continue;
    }
    device.speed = factor * device.speed;
    if (!is_rate(device.speed.value)) refuse_scaled(cluster, factor, "speed", device.name);
    for (auto& [dtype, speed] : device.speed_in) speed = factor * speed;
  }
}

void scale_links(const Cluster& cluster, const Routes& routes, Property property, double factor,
                 const std::optional<std::string>& name)
{
  std::vector<sg4::Link*> links;
  if (!name) {
    links = sg4::Engine::get_instance()->get_all_links();
  } else if (auto* link = sg4::Link::by_name_or_null(*name)) {
    links.push_back(link);
  } else {
    throw InputError(cluster.name, fmt::format("there is no link {} to scale", shown(*name)));
  }
  for (auto* link : links) {
    if (routes.has_profile(*link)) {
      throw InputError(cluster.name,
                       fmt::format("a profile sets link {}; only links without one can be scaled", link->get_name()));
    }
    if (property == Property::Bandwidth) {
      const double bandwidth = factor * link->get_bandwidth();
      if (!is_rate(bandwidth)) refuse_scaled(cluster, factor, "bandwidth", link->get_name());
      link->set_bandwidth(bandwidth);
    } else {
      const double latency = factor * link->get_latency();
      if (latency > most_latency_s) refuse_scaled(cluster, factor, "latency", link->get_name());
      link->set_latency(latency);
    }
  }
}

}  // namespace

/// Paths by SimGrid's routes. Not for several threads: neither the cache nor SimGrid is.
class SimGridNetwork : public Network {
 public:
  SimGridNetwork(const std::vector<const ScannedHost*>& hosts, std::shared_ptr<const Routes> routes)
      : routes_(std::move(routes))
  {
    for (const auto* host : hosts) hosts_.push_back(sg4::Engine::get_instance()->host_by_name(host->name));
  }

  Path path(std::size_t from, std::size_t to) const override
  {
    if (from == to) return {Seconds(0), BytesPerSecond(std::numeric_limits<double>::infinity())};
    if (hosts_.size() > most_cached_endpoints) return find(from, to);
    if (kept_.empty()) kept_.assign(hosts_.size() * hosts_.size(), unknown);
    Path& path = kept_[from * hosts_.size() + to];
    if (path.latency < Seconds(0)) path = find(from, to);
    return path;
  }

  std::vector<std::string> links(std::size_t from, std::size_t to) const override
  {
    std::vector<std::string> names;
    for (const auto* link : route(from, to).links) names.push_back(link->get_name());
    return names;
  }

  /// Links have changed.
  void forget_paths() const { kept_.clear(); }

  Path path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const override
  {
    if (from == to) return path(from, to);
    const auto found = route(from, to);
    return {found.latency, std::min(routes_->bandwidth_with(found, link, factor), found.rate_cap)};
  }

 private:
  static constexpr Path unknown = {Seconds(-1), BytesPerSecond(0)};

  Route route(std::size_t from, std::size_t to) const
  {
    auto found = routes_->between(*hosts_[from], *hosts_[to]);
    if (found.missing()) {
      throw InputError(fmt::format("no route from {} to {}; every two devices need one", hosts_[from]->get_cname(),
                                   hosts_[to]->get_cname()));
    }
    return found;
  }
  Path find(std::size_t from, std::size_t to) const
  {
    const auto found = route(from, to);
    return {found.latency, std::min(found.bandwidth, found.rate_cap)};
  }

  std::vector<const sg4::Host*> hosts_;
  std::shared_ptr<const Routes> routes_;
  mutable std::vector<Path> kept_;  // from x endpoints + to
};

Platform Platform::load(const std::filesystem::path& file, const std::optional<std::filesystem::path>& devices_file,
                        const std::vector<std::string>& left_out)
{
  return load_text(read_file(file), file, devices_file ? devices_file : devices_file_beside(file), left_out);
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
  if (devices_file) {
    const std::string text = read_file(*devices_file);
    apply_devices_file(scan.hosts, text, devices_file->string());
    files.push_back(devices_file->string());
    content += text;
  }
  for (const auto& profile : scan.profiles) content += profile;
  const auto endpoints = endpoints_of(scan.hosts, name);
  const TextAsFile text(scan.without_config);
  const Source source = {text.path(), file.parent_path().string()};
  try_in_child(name, source, scan, without(endpoints, left_out));

  load_into_engine(source);
  loaded = true;
  Platform platform;
  platform.hash_ = fingerprint(content);
  platform.files_ = std::move(files);
  platform.notes_ = notes_on(scan, name);
  platform.routes_ = std::make_shared<const Routes>(scan);
  Cluster& cluster = platform.cluster_;
  cluster.name = file.stem().string();
  for (const auto* host : endpoints.devices) cluster.devices.push_back(device_of(*host));
  if (endpoints.data_server != nullptr) cluster.data_server = endpoints.data_server->name;
  platform.network_ = std::make_shared<const SimGridNetwork>(endpoints.all(), platform.routes_);
  cluster.network = platform.network_;
  cluster.profile_speedup = scan.profile_speedup;
  return platform;
}

void Platform::scale(Property property, double factor, const std::optional<std::string>& name)
{
  if (!std::isfinite(factor) || factor <= 0) {
    throw InputError(cluster_.name, fmt::format("scaled by {}; a factor is more than 0", factor));
  }
  if (property == Property::Speed || property == Property::Memory) {
    scale_devices(cluster_, property, factor, name);
  } else {
    scale_links(cluster_, *routes_, property, factor, name);
    network_->forget_paths();
  }
}

void Platform::set_measured_speed(const std::string& device_type, FlopsPerSecond speed)
{
  cluster_.measured_speed = speed;
  for (auto& device : cluster_.devices) {
    if (device.type != device_type) continue;
    device.speed = speed;
    device.speed_in.clear();
  }
}

void Platform::leave_out(const std::vector<std::string>& devices, const std::string& where)
{
  if (!devices.empty()) cluster_ = without_devices(cluster_, devices, where);
}

}  // namespace isobar::sim
