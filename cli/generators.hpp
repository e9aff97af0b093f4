#pragma once

#include "cli/command.hpp"
#include "core/base/quantity_text.hpp"

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::cli {

/// A generator of platform files (sim/generate/platform_generator.hpp).
struct Generator {
  std::string_view name;  ///< as `isobar platform generate` takes it
  std::string_view what;
  /// Adds its options to a command, and returns what makes the XML once they are parsed.
  std::function<std::string()> (*add_options)(CLI::App& command);
};
const std::vector<Generator>& generators();
std::vector<std::string> generator_names();

/// The XML that `isobar platform generate` would make of these options, given by their names without dashes.
/// @throws InputError "option: what is there; what would be right".
std::string generate_platform(const std::string& generator, const std::map<std::string, std::string>& options);
/// The names of a generator's options, without dashes.
std::vector<std::string> options_of_generator(const std::string& generator);

/// An option whose text is a quantity; a fault names the option and exits with 2.
template <typename Value, typename FromText>
void add_quantity(CLI::App& command, const std::string& name, Value& value, FromText from_text, const std::string& what)
{
  command
      .add_option_function<std::string>(
          name,
          [&value, name, from_text](const std::string& text) {
            try {
              value = from_text(text);
            } catch (const std::invalid_argument& fault) {
              throw InputError(name, fault.what());
            }
          },
          what)
      ->type_name("TEXT");
}

/// --flows and --window, as `generate sites` and `import` take them.
template <typename Options>
void add_window_options(CLI::App& command, Options& options)
{
  add_count(command, "--flows", options.flows, "TCP flows of a transfer between sites; absent: no window law");
  add_quantity(command, "--window", options.window, bytes_from_text, "bytes in flight per flow (default: 2.65 MB)");
}

}  // namespace isobar::cli
