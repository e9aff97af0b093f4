#include "core/command_options.hpp"

#include "core/errors.hpp"

#include <charconv>
#include <system_error>
#include <utility>

namespace isobar {

CLI::Option* add_count(CLI::App& command, const std::string& name, std::function<void(std::uint64_t)> set,
                       const std::string& what)
{
  constexpr std::uint64_t largest = std::uint64_t{1} << 53;
  const auto read = [name, set = std::move(set)](const std::string& text) {
    std::uint64_t count = 0;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, count);
    if (parsed.ec != std::errc{} || parsed.ptr != end || count > largest) {
      throw InputError(name, in_quotes(text) + " is no whole number from 0 to 2^53");
    }
    set(count);
  };
  return command.add_option_function<std::string>(name, read, what)->type_name("COUNT");
}

std::string fault_of_file_name(const std::string& name)
{
  return name.empty() ? "the name is empty; name a file" : "";
}

}  // namespace isobar
