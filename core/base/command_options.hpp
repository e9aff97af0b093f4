#pragma once

#include "core/errors.hpp"

#include <CLI/CLI.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// Options that both commands share.
namespace isobar {

/// Adds an option that takes a decimal whole number, 0 to 2^53. (CLI11 itself would read -1 as a huge number, and 010
/// as 8.) A refused value is thrown as InputError while options are parsed.
CLI::Option* add_count(CLI::App& command, const std::string& name, std::function<void(std::uint64_t)> set,
                       const std::string& what);
template <typename Count>
CLI::Option* add_count(CLI::App& command, const std::string& name, Count& value, const std::string& what)
{
  return add_count(
      command, name, [&value](std::uint64_t count) { value = count; }, what);
}

/// Stands for standard output where an option takes it.
inline constexpr std::string_view standard_output = "-";

/// A check for CLI11: returns why the name of a file is refused, or "".
std::string fault_of_file_name(const std::string& name);
/// The same for an output that may be standard output.
std::string fault_of_output_name(const std::string& name);
/// Adds an option or argument that names a file. Refuses "-" and an empty name, such as that of an unset variable.
template <typename File>
CLI::Option* add_file(CLI::App& command, const std::string& name, File& file, const std::string& what)
{
  return command.add_option(name, file, what)->check(fault_of_file_name);
}
/// The same for a folder.
std::string fault_of_folder_name(const std::string& name);
template <typename Folder>
CLI::Option* add_folder(CLI::App& command, const std::string& name, Folder& folder, const std::string& what)
{
  return command.add_option(name, folder, what)->check(fault_of_folder_name);
}
/// Adds an option that names a file to write, or "-" for standard output.
template <typename File>
CLI::Option* add_output(CLI::App& command, const std::string& name, File& file, const std::string& what)
{
  return command.add_option(name, file, what)->check(fault_of_output_name);
}

/// Refuses a folder as the value of an option that is the common beginning of the names of output files.
/// @throws InputError for a folder, because the files would become hidden files in it.
void refuse_folder(const char* option, const std::string& name);

/// Splits a list "NAME,NAME" into its names, without the blanks around them. A comma within a name is written "\,", and
/// a backslash may be written "\\".
std::vector<std::string> names_from_list(std::string_view list);
/// A name as such a list spells it.
std::string in_list(std::string_view name);

/// Adds an option that takes such a list, in one argument or several. The value of `list` is the default.
/// An empty or repeated name is thrown as InputError while options are parsed.
CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<std::string>& list,
                      const std::string& what);

/// Adds option --set, which takes KEY=VALUE of a workload file and may be repeated. Drops the blanks around both. A
/// fault, such as a missing "=" or a repeated key, is thrown as InputError while options are parsed.
CLI::Option* add_settings(CLI::App& command, std::map<std::string, std::string>& settings);

/// Breaks lines at blanks so that they have at most `width` characters, unless a word is longer.
std::string wrapped(const std::string& text, std::size_t width);

/// Formats help for terminals of 80 columns; footers stay as they are. Set it before subcommands are added.
/// Positional arguments come first in their group; options without a group, such as --help, come last.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// The error for a command line that CLI11 refused; it names the command whose --help explains the options.
InputError fault_of_command_line(const CLI::App& app, const CLI::ParseError& error);
/// Prints what --help or --version asks for. @throws EnvironmentError when writing to standard output fails.
void print_help(const CLI::App& app, const CLI::Success& asked);

/// Refuses outputs that would overwrite an input or one another; "" stands for no file.
/// @throws InputError naming the output.
void refuse_overwriting(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);

}  // namespace isobar
