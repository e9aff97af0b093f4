#include "sim/platform/simgrid_message.hpp"

#include <fmt/format.h>

#include <regex>

namespace isobar::sim {

std::string first_line_of_simgrid(const std::string& message)
{
  static const std::regex address(R"( ?\(?0x[0-9a-f]+\)?)");
  return std::regex_replace(message.substr(0, message.find('\n')), address, "");
}

std::string fault_of_simgrid(const std::string& file, const std::string& loaded, const std::string& message)
{
  // "Parse error at FILE:LINE: what"; for a violation of its DTD, "Invalid XML (state of the parser): " before `what`.
  const std::string line = first_line_of_simgrid(message);
  const std::string known = "Parse error at " + loaded + ":";
  const auto number_end = line.find(':', known.size());
  if (!line.starts_with(known) || number_end == std::string::npos) return fmt::format("{}: SimGrid: {}", file, line);
  const std::string what = line.substr(number_end + 2);
  const auto state_end = what.starts_with("Invalid XML (") ? what.find("): ") : std::string::npos;
  return fmt::format("{}:{}: SimGrid: {}", file, line.substr(known.size(), number_end - known.size()),
                     state_end == std::string::npos ? what : what.substr(state_end + 3));
}

}  // namespace isobar::sim
