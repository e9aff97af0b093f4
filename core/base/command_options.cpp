#include "core/base/command_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <system_error>
#include <utility>

namespace isobar {

namespace {

bool is_device(const std::string& file)
{
  std::error_code unknown;
  return std::filesystem::exists(file, unknown) && !std::filesystem::is_regular_file(file, unknown);
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override
  {
    const std::string footer = app->get_footer();
    return make_description(app) + make_usage(app, std::move(name)) + groups_of(app) + make_subcommands(app, mode) +
           (footer.empty() ? "" : "\n" + footer);
  }
  std::string make_description(const CLI::App* app) const override
  {
    return wrapped(CLI::Formatter::make_description(app), terminal);
  }
  std::string make_option_desc(const CLI::Option* option) const override
  {
    return wrapped(CLI::Formatter::make_option_desc(option), terminal - get_column_width());
  }
  /// Leaves out the excluded options, which can be a long list: a refusal names them.
  std::string make_option_opts(const CLI::Option* option) const override
  {
    const std::string options = CLI::Formatter::make_option_opts(option);
    return options.substr(0, options.find(" Excludes:"));
  }
  std::string make_subcommand(const CLI::App* command) const override
  {
    std::ostringstream text;
    CLI::detail::format_help(text, command->get_display_name(true),
                             wrapped(command->get_description(), terminal - get_column_width()), get_column_width());
    return text.str();
  }

 private:
  std::string groups_of(const CLI::App* app) const
  {
    auto groups = app->get_groups();
    std::stable_partition(groups.begin(), groups.end(),
                          [](const std::string& group) { return group != default_group; });
    std::string text;
    for (const auto& group : groups) {
      if (group.empty()) continue;  // hidden
      text += "\n" + group + ":\n";
      for (const bool is_positional : {true, false}) {
        for (const auto* option : app->get_options()) {
          const bool belongs_here = option->get_group() == group && option->get_positional() == is_positional;
          if (belongs_here) text += make_option(option, is_positional);
        }
      }
    }
    return text;
  }

  static constexpr std::size_t terminal = 80;
  static constexpr std::string_view default_group = "Options";  // CLI11's
};

/// The option or command of `app` whose name is spelled almost like `word`, or "".
std::string suggestion_for(const CLI::App& app, const std::string& word)
{
  std::vector<std::string> known;
  if (word.starts_with('-')) {
    for (const auto* option : app.get_options()) {
      for (const auto& name : option->get_lnames()) known.push_back("--" + name);
    }
  } else {
    for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      known.push_back(command->get_name());
    }
  }
  return nearest_word(word.substr(0, word.find('=')), known);
}

}  // namespace

std::string wrapped(const std::string& text, std::size_t width)
{
  const auto characters = [](std::string_view word) {
    return static_cast<std::size_t>(std::count_if(
        word.begin(), word.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
  };
  std::string lines;
  std::size_t used = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const std::string_view word(text.data() + begin, end - begin);
    const std::size_t length = characters(word);
    if (used > 0 && used + 1 + length > width) {
      lines += '\n';
      used = 0;
    } else if (used > 0) {
      lines += ' ';
      ++used;
    }
    lines += word;
    used += length;
    if (end < text.size() && text[end] == '\n') {
      lines += '\n';
      used = 0;
    }
    begin = end + 1;
  }
  return lines;
}

std::shared_ptr<CLI::FormatterBase> help_formatter()
{
  return std::make_shared<HelpFormatter>();
}

CLI::Option* add_count(CLI::App& command, const std::string& name, std::function<void(std::uint64_t)> set,
                       const std::string& what)
{
  constexpr std::uint64_t largest = std::uint64_t{1} << 53;
  const auto read = [name, set = std::move(set)](const std::string& text) {
    std::uint64_t count = 0;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, count);
    if (parsed.ec != std::errc{} || parsed.ptr != end || count > largest) {
      throw InputError(name, in_quotes(text) + " is not a whole number from 0 to 2^53");
    }
    set(count);
  };
  return command.add_option_function<std::string>(name, read, what)->type_name("COUNT");
}

std::string fault_of_file_name(const std::string& name)
{
  if (name == standard_output) return "\"-\" is not a file here; write ./- for a file of that name";
  return fault_of_output_name(name);
}

std::string fault_of_folder_name(const std::string& name)
{
  if (name == standard_output) return "\"-\" is not a folder here; write ./- for a folder of that name";
  return name.empty() ? "the name is empty; name a folder, such as . for this one" : "";
}

std::string fault_of_output_name(const std::string& name)
{
  return name.empty() ? "the name is empty; name a file" : "";
}

void refuse_folder(const char* option, const std::string& name)
{
  const std::filesystem::path path = name;
  std::error_code unknown;
  if (path.has_filename() && !std::filesystem::is_directory(path, unknown)) return;
  throw InputError(option, on_one_line(name) + " is a folder; write " + on_one_line((path / "NAME").string()));
}

std::vector<std::string> names_from_list(std::string_view list)
{
  std::vector<std::string> names(1);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool is_escape = list[i] == '\\' && i + 1 < list.size() && (list[i + 1] == ',' || list[i + 1] == '\\');
    if (is_escape) {
      names.back() += list[++i];
    } else if (list[i] == ',') {
      names.emplace_back();
    } else {
      names.back() += list[i];
    }
  }
  for (auto& name : names) CLI::detail::trim(name);
  return names;
}

std::string in_list(std::string_view name)
{
  std::string text;
  for (const char letter : name) {
    if (letter == ',' || letter == '\\') text += '\\';
    text += letter;
  }
  return text;
}

CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<std::string>& list,
                      const std::string& what)
{
  const auto read = [name, &list](const std::vector<std::string>& arguments) {
    list.clear();
    for (const auto& argument : arguments) {
      for (auto& item : names_from_list(argument)) {
        if (item.empty()) throw InputError(name, "a name of the list is empty; write NAME,NAME");
        if (std::find(list.begin(), list.end(), item) != list.end()) {
          throw InputError(name, in_quotes(item) + " is listed twice; leave one out");
        }
        list.push_back(std::move(item));
      }
    }
  };
  auto* option = command.add_option_function<std::vector<std::string>>(name, read, what);
  return list.empty() ? option : option->default_str(CLI::detail::join(list, in_list, ","));
}

CLI::Option* add_settings(CLI::App& command, std::map<std::string, std::string>& settings)
{
  const std::string name = "--set";
  const auto read = [name, &settings](const std::vector<std::string>& arguments) {
    settings.clear();
    for (const auto& argument : arguments) {
      const std::size_t sign = std::min(argument.find('='), argument.size());
      std::string key = argument.substr(0, sign);
      CLI::detail::trim(key);
      if (key.empty()) throw InputError(name, in_quotes(argument) + " names no key; write KEY=VALUE");
      if (sign == argument.size()) {
        throw InputError(name, fmt::format("{0}: no value; write {0}=VALUE", shown(key)));
      }
      std::string value = argument.substr(sign + 1);
      CLI::detail::trim(value);
      if (!settings.emplace(key, std::move(value)).second) {
        throw InputError(name, shown(key) + " is given twice; leave one out");
      }
    }
  };
  return command
      .add_option_function<std::vector<std::string>>(
          name, read,
          "value of a key of the workload file, such as layers=48, in place of the file's; repeat it for other keys")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

InputError fault_of_command_line(const CLI::App& app, const CLI::ParseError& error)
{
  constexpr std::size_t longest = 500;
  const CLI::App* chosen = &app;
  std::string name = app.get_name();
  while (!chosen->get_subcommands().empty()) {
    chosen = chosen->get_subcommands().back();
    name += " " + chosen->get_name();
  }
  const std::string help = "see " + name + " --help";
  // CLI11 reports missing required options before unknown arguments.
  const auto unknown = chosen->remaining();
  if (unknown.empty()) return InputError(shown(error.what(), longest) + "; " + help);
  const bool is_group = !chosen->get_subcommands([](const CLI::App*) { return true; }).empty();
  const bool names_command = is_group && !unknown.front().starts_with('-');
  const std::string meant = suggestion_for(*chosen, unknown.front());
  return InputError(in_quotes(unknown.front()) + (names_command ? " is not a command here" : " is not expected here") +
                    "; " + (meant.empty() ? "" : "did you mean " + meant + "? If not, ") + help);
}

void print_help(const CLI::App& app, const CLI::Success& asked)
{
  app.exit(asked);
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0) throw EnvironmentError("cannot write to standard output");
}

void refuse_overwriting(const std::vector<std::string>& inputs, const std::vector<std::string>& outputs)
{
  const auto place_of = [](const std::string& file) {
    std::error_code unknown;
    auto place = std::filesystem::weakly_canonical(std::filesystem::absolute(file, unknown), unknown);
    return unknown ? std::filesystem::path(file) : place;
  };
  const auto same_file = [&](const std::string& a, const std::string& b) { return place_of(a) == place_of(b); };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].empty()) continue;
    for (const auto& input : inputs) {
      if (!input.empty() && same_file(outputs[i], input))
        throw InputError(outputs[i], "is an input; name another file to write");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!outputs[j].empty() && same_file(outputs[i], outputs[j]) && !is_device(outputs[i])) {
        throw InputError(outputs[i], "is written twice; name two files");
      }
    }
  }
}

}  // namespace isobar
