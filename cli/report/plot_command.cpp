#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "cli/report/page_parts.hpp"
#include "cli/report/report_data.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/temporary_folder.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace isobar::cli {

namespace {

constexpr auto plot_footer = R"(Example:
  isobar plot result.json --chart timeline -o figure.svg
)";

/// What files may hold, and its charts.
const std::vector<std::pair<Reported, std::vector<std::string>>> charts = {
    {Reported::Plans, {"timeline", "memory", "plan", "map", "comparison"}},
    {Reported::Schedules, {"completion", "population"}},
    {Reported::Mix, {"turns", "rates"}}};

std::vector<std::string> all_charts()
{
  std::vector<std::string> all;
  for (const auto& [kind, names] : charts) all.insert(all.end(), names.begin(), names.end());
  return all;
}

struct PlotOptions {
  ReportInputs inputs;
  std::string chart;
  std::string browser;
  std::string output;
};

/// Finds a Chromium or Chrome on the PATH. @throws EnvironmentError when there is none.
std::string find_browser()
{
  const std::vector<std::string> names = {"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"};
  const char* variable = std::getenv("PATH");
  const std::string path = variable != nullptr ? variable : "";
  for (const auto& name : names) {
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find(':', begin), path.size());
      std::string file = path.substr(begin, end - begin) + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
      begin = end + 1;
    }
  }
  throw EnvironmentError(
      fmt::format("no browser to draw with: none of {} is on the PATH; install chromium, or name one with --browser",
                  fmt::join(names, ", ")));
}

/// Extracts the figure from the page, which holds it as hexadecimal digits.
std::string figure_in(const std::string& document)
{
  const std::string mark = "<pre id=\"figure\">";
  const std::size_t begin = document.find(mark);
  if (begin == std::string::npos) throw EnvironmentError("the browser drew no figure; is it a recent Chromium?");
  const std::size_t end = document.find('<', begin + mark.size());
  std::string svg;
  for (std::size_t i = begin + mark.size(); i + 1 < end; i += 2) {
    svg += static_cast<char>(std::stoi(document.substr(i, 2), nullptr, 16));
  }
  return svg;
}

/// Draws a chart as SVG with the page's own code, in a browser without a window.
std::string draw(const std::string& report_json, const std::string& chart, const std::string& browser)
{
  auto report = nlohmann::ordered_json::parse(report_json);
  report["figure"] = chart;
  const TemporaryFolder folder;
  write_file_atomically(folder.file("page.html"), results::page_of(page_parts(), report.dump()));
  constexpr Seconds limit(120);
  std::vector<std::string> command = {browser,
                                      "--headless",
                                      "--disable-gpu",
                                      "--disable-background-networking",
                                      "--user-data-dir=" + folder.file("profile"),
                                      "--window-size=1200,900",
                                      "--virtual-time-budget=60000",
                                      "--dump-dom",
                                      "file://" + folder.file("page.html")};
  // Chromium's sandbox does not work for root; the page is our own.
  if (geteuid() == 0) command.insert(command.begin() + 1, "--no-sandbox");
  const ChildResult result = run_command(command, "", limit);
  if (result.failure) throw EnvironmentError(browser + " " + result.failure->text);
  return figure_in(result.output);
}

/// @throws InputError for a chart that does not show what the files hold.
void require_chart(const PlotOptions& options)
{
  const Reported held = reported_in(options.inputs.results);
  const auto& [kind, names] =
      *std::find_if(charts.begin(), charts.end(), [held](const auto& each) { return each.first == held; });
  if (std::find(names.begin(), names.end(), options.chart) != names.end()) return;
  throw InputError("--chart", fmt::format("{} does not show what {} holds; write {}", in_quotes(options.chart),
                                          on_one_line(options.inputs.results.front()), fmt::join(names, ", ")));
}

ExitCode plot(const PlotOptions& options)
{
  require_chart(options);
  ReportInputs inputs = options.inputs;
  inputs.target = options.output;
  const std::string browser = options.browser.empty() ? find_browser() : options.browser;
  OutputFile output(options.output);
  const std::string svg = draw(make_report(inputs), options.chart, browser);
  output.write(svg);
  if (!output.is_standard_output()) print(fmt::format("{}: {}\n", on_one_line(options.output), options.chart));
  return ExitCode::Done;
}

}  // namespace

void add_plot_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("plot", "draw one chart of a report as SVG, for papers (with Chromium)");
  auto options = std::make_shared<PlotOptions>();
  options->inputs.asks_what_if = false;
  command->option_defaults()->group("Inputs");
  add_file(*command, "RESULT", options->inputs.results,
           "result files (JSON); all charts but comparison show the first one. Or the jobs of schedules (CSV), or a "
           "result of a mix")
      ->required();
  add_file(*command, "--trace", options->inputs.trace,
           "trace that simulate --mix --trace wrote, for a result of a mix");
  command->option_defaults()->group("Output");
  command
      ->add_option("--chart", options->chart,
                   "timeline, memory, plan, map or comparison; of schedules completion or population; of a mix "
                   "turns or rates")
      ->required()
      ->check(CLI::IsMember(all_charts()).description(""));
  add_output(*command, "-o,--output", options->output, "figure to write (SVG)")->required();
  add_file(*command, "--browser", options->browser, "Chromium to draw with (default: the one on the PATH)");
  command->footer(plot_footer);
  command->callback([options, &action] { action = [options] { return plot(*options); }; });
}

}  // namespace isobar::cli
