#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "cli/report/page_parts.hpp"
#include "cli/report/report_data.hpp"
#include "core/base/command_options.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace isobar::cli {

namespace {

constexpr auto report_footer = R"(isobar compare --keep FOLDER writes the results of several allocators.

Example:
  isobar report FOLDER/*.result.json -o report.html
)";

struct ReportOptions {
  ReportInputs inputs;
  std::string output = "report.html";
  bool json = false;
};

ExitCode report(const ReportOptions& options)
{
  ReportInputs inputs = options.inputs;
  inputs.target = options.json ? "" : options.output;
  OutputFile output(inputs.target);
  const std::string json = make_report(inputs);
  if (options.json) {
    print(json + "\n");
    return ExitCode::Done;
  }
  output.write(results::page_of(page_parts(), json));
  if (output.is_standard_output()) return ExitCode::Done;
  const Reported kind = reported_in(options.inputs.results);
  const char* what = kind == Reported::Schedules ? "schedule" : kind == Reported::Mix ? "mix" : "placement";
  print(fmt::format("{}: {}; open it in a browser\n", on_one_line(options.output),
                    counted(options.inputs.results.size(), what, kind == Reported::Mix ? "es" : "s")));
  return ExitCode::Done;
}

}  // namespace

void add_report_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("report", "show placements, their steps and what bounds them, in one page");
  auto options = std::make_shared<ReportOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "RESULT", options->inputs.results,
           "result files (JSON), of simulate -o or compare --keep; jobs of schedules (CSV), of "
           "cluster -o; or one result of simulate --mix -o")
      ->required();
  add_file(*command, "--measured", options->inputs.measured, "trace of isobar run to show below the simulated step");
  add_file(*command, "--trace", options->inputs.trace,
           "trace that simulate --mix --trace wrote, for a result of a mix");
  command->option_defaults()->group("Search");
  command->add_flag("--plan-anew", options->inputs.replans,
                    "also plan again for every change of the platform, with the allocator of each plan");
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->output, "page to write (HTML)")->capture_default_str();
  command->add_flag("--json", options->json, "print the data of the page as JSON, and write no page");
  command->footer(report_footer);
  command->callback([options, &action] { action = [options] { return report(*options); }; });
}

}  // namespace isobar::cli
