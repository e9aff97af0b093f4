#include "allocators/registry.hpp"
#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "core/base/command_options.hpp"
#include "core/errors.hpp"
#include "core/plan/plan.hpp"
#include "core/text/json_text.hpp"
#include "results/table.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace isobar::cli {

namespace {

using Row = std::vector<std::string>;

constexpr auto list_footer = R"(Example:
  isobar list allocators
)";

/// Columns and rows of a list.
struct Listing {
  Row header;
  std::vector<Row> rows;
};

Listing list_allocators()
{
  Listing listing{{"name", "problem", "guarantee", "cost", "source"}, {}};
  for (const auto& allocator : allocators::allocators()) {
    listing.rows.push_back({std::string(allocator.name), std::string(allocator.problem),
                            std::string(allocator.guarantee), std::string(allocator.cost),
                            std::string(allocator.source)});
  }
  return listing;
}

Listing list_schedules()
{
  Listing listing{{"name", "order of work", "numbers", "source"}, {}};
  for (const auto& schedule : schedules::schedules()) {
    std::string numbers;
    for (const auto key : schedule.numbers) {
      if (!key.empty()) numbers += (numbers.empty() ? "" : ", ") + std::string(key);
    }
    listing.rows.push_back({std::string(schedule.name), std::string(schedule.summary),
                            numbers.empty() ? "none" : numbers, std::string(schedule.source)});
  }
  return listing;
}

Listing list_objectives()
{
  Listing listing{{"name", "minimizes", "defaults"}, {}};
  for (const auto& name : objective_names()) {
    const Goal goal = Goal::with_defaults(objective_from_name(name).value());
    listing.rows.push_back({name, std::string(minimized_by(goal.objective)),
                            fmt::format("communication {}, schedule {}, M = {}", name_of(goal.communication),
                                        text_of(goal.schedule), goal.microbatches)});
  }
  return listing;
}

/// The files of a folder in the working directory or, if there is none, of the installed one.
Listing list_files(const std::string& folder, const std::string& ending)
{
  namespace fs = std::filesystem;
  fs::path directory = folder;
  if (!fs::is_directory(directory)) {
    const auto command = fs::read_symlink("/proc/self/exe");
    directory = command.parent_path().parent_path() / "share" / "isobar" / folder;
  }
  if (!fs::is_directory(directory)) throw InputError(folder, "no such folder here, and none is installed");
  Listing listing{{"file"}, {}};
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ending) {
      listing.rows.push_back({entry.path().string()});
    }
  }
  std::sort(listing.rows.begin(), listing.rows.end());
  return listing;
}

Listing listing_of(const std::string& what)
{
  if (what == "allocators") return list_allocators();
  if (what == "objectives") return list_objectives();
  if (what == "schedules") return list_schedules();
  if (what == "platforms") return list_files(what, ".xml");
  if (what == "workloads") return list_files(what, ".yaml");
  throw InputError("list", in_quotes(what) + " is none of allocators, objectives, schedules, platforms, workloads");
}

std::string to_json(const Listing& listing)
{
  auto list = nlohmann::ordered_json::array();
  for (const auto& row : listing.rows) {
    nlohmann::ordered_json entry;
    for (std::size_t i = 0; i < row.size(); ++i) entry[listing.header[i]] = row[i];
    list.push_back(std::move(entry));
  }
  return json_lines(list);
}

/// For people: the first entry of each row and, indented below it, the others after their headers. Lines are broken so
/// that they fit a terminal.
std::string to_text(const Listing& listing)
{
  constexpr std::size_t terminal = 80;
  const std::string indent = "    ";
  std::string text;
  for (const auto& row : listing.rows) {
    text += row.front() + "\n";
    for (std::size_t i = 1; i < row.size(); ++i) {
      std::istringstream lines(wrapped(fmt::format("{}: {}", listing.header[i], row[i]), terminal - indent.size()));
      bool is_first = true;
      for (std::string line; std::getline(lines, line); is_first = false) {
        text += (is_first ? "  " : indent) + line + "\n";
      }
    }
  }
  return text;
}

/// For people with wide terminals: a row a line.
std::string to_table(const Listing& listing)
{
  return results::table_of(listing.header, listing.rows, listing.header.size());
}

struct ListOptions {
  std::string what;
  bool wide = false;
  bool json = false;
};

}  // namespace

void add_list_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("list", "list allocators, objectives, schedules, platforms or workloads");
  auto options = std::make_shared<ListOptions>();
  command->option_defaults()->group("Inputs");
  command->add_option("WHAT", options->what, "allocators, objectives, schedules, platforms or workloads")->required();
  command->option_defaults()->group("Output");
  command->add_flag("--wide", options->wide, "print a table, however wide (default: lines of at most 80 characters)");
  command->add_flag("--json", options->json, "print the list as JSON");
  command->footer(list_footer);
  command->callback([options, &action] {
    action = [options] {
      const Listing listing = listing_of(options->what);
      print(options->json ? to_json(listing) : options->wide ? to_table(listing) : to_text(listing));
      return ExitCode::Done;
    };
  });
}

}  // namespace isobar::cli
