#include "sim/generate/generator_options.hpp"

#include "core/errors.hpp"
#include "sim/generate/platform_generator.hpp"
#include "sim/generate/platform_xml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace isobar::sim {

namespace {

constexpr std::size_t most_measured_flows = 65'536;

/// A word of a shell command, in quotes where it needs them.
std::string shell_word(const std::string& word)
{
  constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char character : word) quoted += character == '\'' ? std::string("'\\''") : std::string(1, character);
  return quoted + "'";
}

void require_positive(const std::string& name, double value, const std::string& text)
{
  if (!(value > 0) || !std::isfinite(value)) throw InputError(name, text + " is out of range; write a value above 0");
}

/// Devices of a group, or more than `most_devices`: a product of two counts may not fit.
std::size_t devices_of(const DeviceGroup& group)
{
  return group.count;
}
std::size_t devices_of(const NodeGroup& group)
{
  return group.count > most_devices || group.devices.count > most_devices ? most_devices + 1 : group.device_count();
}

/// The groups of each site, with commas between the sites. @throws InputError where they have too many devices.
template <typename Group>
std::string text_of_sites(const std::string& name, const std::vector<std::vector<Group>>& sites)
{
  if (sites.size() > most_sites) {
    throw InputError(name, fmt::format("{} sites; there are at most {}", sites.size(), most_sites));
  }
  std::string text;
  std::size_t left = most_devices;
  for (const auto& groups : sites) {
    text += (text.empty() ? "" : ",") + text_of(groups);
    for (const auto& group : groups) {
      if (devices_of(group) > left) {
        throw InputError(name, fmt::format("{} and the sites before are too many; a platform has at most {} devices",
                                           text_of(groups), most_devices));
      }
      left -= devices_of(group);
    }
  }
  return text;
}

}  // namespace

GeneratorCommand& GeneratorCommand::append(const std::string& name, const std::string& value)
{
  text_ += fmt::format(" {} {}", name, value);
  return *this;
}

GeneratorCommand& GeneratorCommand::argument(const std::string& word)
{
  text_ += " " + shell_word(word);
  return *this;
}

GeneratorCommand& GeneratorCommand::flag(const std::string& name, bool set)
{
  if (set) text_ += " " + name;
  return *this;
}

GeneratorCommand& GeneratorCommand::path(const std::string& name, const std::string& file)
{
  return append(name, shell_word(file));
}

GeneratorCommand& GeneratorCommand::count(const std::string& name, std::size_t number, std::size_t lowest,
                                          std::size_t highest)
{
  if (number < lowest || number > highest) {
    throw InputError(name, fmt::format("{} is out of range; write a number from {} to {}", number, lowest, highest));
  }
  return append(name, std::to_string(number));
}

GeneratorCommand& GeneratorCommand::seed(const std::string& name, std::uint64_t number)
{
  return append(name, std::to_string(number));
}

GeneratorCommand& GeneratorCommand::spread(const std::string& name, double factor)
{
  constexpr double widest = 1e9;
  if (!(factor >= 1 && factor <= widest)) {
    throw InputError(name, fmt::format("{} is out of range; write a factor from 1 to 1e9", factor));
  }
  return append(name, fmt::format("{}", factor));
}

GeneratorCommand& GeneratorCommand::devices(const std::string& name, const std::vector<DeviceGroup>& groups,
                                            std::size_t copies)
{
  std::size_t left = most_devices / copies;
  for (const auto& group : groups) {
    if (group.count > left) {
      throw InputError(name,
                       fmt::format("{} is too many; a platform has at most {} devices", text_of(groups), most_devices));
    }
    left -= group.count;
  }
  return append(name, text_of(groups));
}

GeneratorCommand& GeneratorCommand::site_devices(const std::string& name,
                                                 const std::vector<std::vector<DeviceGroup>>& sites)
{
  return append(name, text_of_sites(name, sites));
}

GeneratorCommand& GeneratorCommand::site_nodes(const std::string& name,
                                               const std::vector<std::vector<NodeGroup>>& sites)
{
  return append(name, shell_word(text_of_sites(name, sites)));
}

GeneratorCommand& GeneratorCommand::positive(const std::string& name, FlopsPerSecond speed)
{
  require_positive(name, speed.value, option_of(speed));
  return append(name, option_of(speed));
}

GeneratorCommand& GeneratorCommand::positive(const std::string& name, BytesPerSecond bandwidth)
{
  require_positive(name, bandwidth.value, option_of(bandwidth));
  return append(name, option_of(bandwidth));
}

GeneratorCommand& GeneratorCommand::positive(const std::string& name, Bytes size)
{
  require_positive(name, size.value, option_of(size));
  return append(name, option_of(size));
}

GeneratorCommand& GeneratorCommand::not_negative(const std::string& name, Seconds time)
{
  if (!(time.value >= 0) || !std::isfinite(time.value)) {
    throw InputError(name, option_of(time) + " is out of range; write 0s or more");
  }
  return append(name, option_of(time));
}

GeneratorCommand& GeneratorCommand::plain_device(const std::vector<DeviceGroup>& groups,
                                                 const std::optional<FlopsPerSecond>& speed,
                                                 const std::optional<Bytes>& memory)
{
  if (std::any_of(groups.begin(), groups.end(), [](const DeviceGroup& group) { return group.type.empty(); })) {
    return positive("--speed", speed.value_or(plain_speed)).positive("--memory", memory.value_or(plain_memory));
  }
  constexpr auto no_effect = "changes nothing, since every device has a type; leave it out";
  if (speed) throw InputError("--speed", no_effect);
  if (memory) throw InputError("--memory", no_effect);
  return *this;
}

GeneratorCommand& GeneratorCommand::window_law(const std::optional<std::size_t>& flows,
                                               const std::optional<Bytes>& window)
{
  if (flows)
    return count("--flows", *flows, 1, most_measured_flows).positive("--window", window.value_or(measured_window));
  if (window) throw InputError("--window", "changes nothing without --flows; give both");
  return *this;
}

}  // namespace isobar::sim
