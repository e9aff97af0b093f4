#pragma once

#include "core/units.hpp"
#include "sim/generate/device_groups.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// Checks the options of a generator and builds the command line that sets them.
///
/// Each function appends "NAME VALUE". @throws InputError "NAME: what is wrong; what to write".
class GeneratorCommand {
 public:
  explicit GeneratorCommand(std::string command) : text_(std::move(command)) {}

  GeneratorCommand& argument(const std::string& word);
  GeneratorCommand& flag(const std::string& name, bool set);
  GeneratorCommand& path(const std::string& name, const std::string& file);
  GeneratorCommand& count(const std::string& name, std::size_t number, std::size_t lowest, std::size_t highest);
  GeneratorCommand& seed(const std::string& name, std::uint64_t number);
  /// A factor from 1 to 1e9.
  GeneratorCommand& spread(const std::string& name, double factor);
  /// The devices of each site. All together must not exceed `most_devices`.
  GeneratorCommand& site_devices(const std::string& name, const std::vector<std::vector<DeviceGroup>>& sites);
  /// The devices of each of `copies` sites. All together must not exceed `most_devices`.
  GeneratorCommand& devices(const std::string& name, const std::vector<DeviceGroup>& groups, std::size_t copies = 1);
  /// The nodes of each site. All their devices together must not exceed `most_devices`.
  GeneratorCommand& site_nodes(const std::string& name, const std::vector<std::vector<NodeGroup>>& sites);
  GeneratorCommand& positive(const std::string& name, FlopsPerSecond speed);
  GeneratorCommand& positive(const std::string& name, BytesPerSecond bandwidth);
  GeneratorCommand& positive(const std::string& name, Bytes size);
  GeneratorCommand& not_negative(const std::string& name, Seconds time);
  /// --speed and --memory, which only devices without a type have. Refused if every device has a type.
  GeneratorCommand& plain_device(const std::vector<DeviceGroup>& groups, const std::optional<FlopsPerSecond>& speed,
                                 const std::optional<Bytes>& memory);
  /// --flows, and --window, which needs it.
  GeneratorCommand& window_law(const std::optional<std::size_t>& flows, const std::optional<Bytes>& window);

  const std::string& text() const { return text_; }

 private:
  GeneratorCommand& append(const std::string& name, const std::string& value);

  std::string text_;
};

}  // namespace isobar::sim
