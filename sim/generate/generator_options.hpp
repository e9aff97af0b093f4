#pragma once

#include "core/units.hpp"
#include "sim/generate/device_types.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// Checks the options of one generator and writes down the command that gives them again.
///
/// Each function appends "NAME VALUE". @throws InputError "NAME: what is there; what would be right".
class GeneratorCommand {
 public:
  explicit GeneratorCommand(std::string command) : text_(std::move(command)) {}

  GeneratorCommand& argument(const std::string& word);
  GeneratorCommand& flag(const std::string& name, bool set);
  GeneratorCommand& path(const std::string& name, const std::string& file);
  GeneratorCommand& count(const std::string& name, std::size_t number, std::size_t lowest, std::size_t highest);
  GeneratorCommand& seed(const std::string& name, std::uint64_t number);
  /// A factor of 1 or more.
  GeneratorCommand& spread(const std::string& name, double factor);
  /// `copies` times these devices must not be more than a platform holds.
  /// One list for each site.
  GeneratorCommand& site_devices(const std::string& name, const std::vector<std::vector<DeviceGroup>>& sites);
  GeneratorCommand& devices(const std::string& name, const std::vector<DeviceGroup>& groups, std::size_t copies = 1);
  GeneratorCommand& positive(const std::string& name, FlopsPerSecond speed);
  GeneratorCommand& positive(const std::string& name, BytesPerSecond bandwidth);
  GeneratorCommand& positive(const std::string& name, Bytes size);
  GeneratorCommand& not_negative(const std::string& name, Seconds time);
  /// --speed and --memory, which devices without a type need and others do not take.
  GeneratorCommand& plain_device(const std::vector<DeviceGroup>& groups, const std::optional<FlopsPerSecond>& speed,
                                 const std::optional<Bytes>& memory);
  /// --flows and, with them, --window.
  GeneratorCommand& window_law(const std::optional<std::size_t>& flows, const std::optional<Bytes>& window);

  const std::string& text() const { return text_; }

 private:
  GeneratorCommand& append(const std::string& name, const std::string& value);

  std::string text_;
};

}  // namespace isobar::sim
