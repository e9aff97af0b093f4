#pragma once

#include "core/base/command_options.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

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
  std::string_view example;  ///< the footer of its help
  /// Adds its options to a command and returns the function that makes the XML once they are parsed.
  std::function<std::string()> (*add_options)(CLI::App& command);
};
const std::vector<Generator>& generators();
std::vector<std::string> generator_names();

/// The XML that `isobar platform generate` makes from these options (their names without dashes, and their values).
/// @throws InputError "option: what is wrong; what would be right".
std::string generate_platform(const std::string& generator, const std::map<std::string, std::string>& options);
/// The names of a generator's options, without dashes.
std::vector<std::string> options_of_generator(const std::string& generator);

/// Adds an option whose text is a quantity. Parsing throws InputError, naming the option, when it is not.
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

/// Adds --flows and --window, which `generate sites` and `import` share.
template <typename Options>
void add_window_options(CLI::App& command, Options& options)
{
  add_count(command, "--flows", options.flows,
            "TCP flows of a transfer between sites (default: no window limits a transfer)");
  add_quantity(command, "--window", options.window, bytes_from_text,
               "bytes in flight per flow; needs --flows (default: 2.65 MB)");
}

}  // namespace isobar::cli
