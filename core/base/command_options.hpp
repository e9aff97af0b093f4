#pragma once

#include "core/errors.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// Options as both commands take them.
namespace isobar {

/// An option that takes a whole number, 0 to 2^53, in decimal; CLI11 itself would take -1 for a huge one, and 010
/// for 8. What it refuses is thrown as InputError while options are parsed.
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

/// What CLI11 refuses the name of a file for, or "".
std::string fault_of_file_name(const std::string& name);
/// The same for an output that may be standard output.
std::string fault_of_output_name(const std::string& name);
/// An option or argument that names a file. Refuses an empty name, such as that of an unset variable, and "-".
template <typename File>
CLI::Option* add_file(CLI::App& command, const std::string& name, File& file, const std::string& what)
{
  return command.add_option(name, file, what)->check(fault_of_file_name);
}
/// An option that names a file to write, or "-" for standard output.
template <typename File>
CLI::Option* add_output(CLI::App& command, const std::string& name, File& file, const std::string& what)
{
  return command.add_option(name, file, what)->check(fault_of_output_name);
}

/// Of an option whose value, with an ending, names each file that a command writes.
/// @throws InputError when it names a folder, in which they would be hidden.
void refuse_folder(const char* option, const std::string& name);

/// The names of a list "NAME,NAME", without the blanks around them. A comma within a name is written "\,", and a
/// backslash may be written "\\".
std::vector<std::string> names_from_list(std::string_view list);
/// A name as such a list has it.
std::string in_list(std::string_view name);

/// An option that takes such a list, in one argument or several; what is in `list` is the default.
/// An empty name, or one given twice, is thrown as InputError while options are parsed.
CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<std::string>& list,
                      const std::string& what);

/// Formats help for terminals of 80 columns. Footers stay as they are. For an app before its subcommands are added.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// What is wrong with the command line, with the command whose --help says more.
InputError fault_of_command_line(const CLI::App& app, const CLI::ParseError& error);
/// Prints what --help or --version asks for. @throws EnvironmentError when standard output refuses it.
void print_help(const CLI::App& app, const CLI::Success& asked);

/// @throws InputError when an output of a command ("" where there is none) is one of its inputs or another output.
void refuse_overwriting(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs);

}  // namespace isobar
