#include "cli/commands/base_build.hpp"

#include "allocators/registry.hpp"
#include "core/base/child_process.hpp"
#include "core/base/progress_line.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <cstdio>
#include <fstream>
#include <functional>
#include <thread>

namespace isobar::cli {

namespace {

namespace fs = std::filesystem;

constexpr Seconds git_limit(60);
constexpr Seconds build_limit(7200);

/// How a command failed; "" when it did not.
std::string failure_text(const std::optional<Failure>& failure)
{
  return failure ? failure->text : "";
}

/// The output of a Git command, without line breaks at its end. @throws `fault` when the command fails.
std::string git(const fs::path& folder, std::vector<std::string> arguments, const InputError& fault)
{
  arguments.insert(arguments.begin(), {"git", "-C", folder.string()});
  const ChildResult result = run_command(arguments, "", git_limit);
  if (result.failure) throw fault;
  std::string text = result.output;
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Runs a step of the build; appends its output to the log.
void build_step(const std::vector<std::string>& arguments, const fs::path& log)
{
  const ChildResult result = run_command(arguments, "", build_limit);
  std::ofstream(log, std::ios::app) << result.output << failure_text(result.failure) << '\n';
  if (!result.failure) return;
  throw EnvironmentError(
      fmt::format("--base: {} {} (its output: {})", arguments.front(), result.failure->text, log.string()));
}

bool is_program(const fs::path& file)
{
  return fs::is_regular_file(file) && access(file.c_str(), X_OK) == 0;
}

fs::path build_revision(const std::string& revision, const fs::path& inside)
{
  const fs::path folder = fs::absolute(inside).parent_path();
  const fs::path root = git(
      folder, {"rev-parse", "--show-toplevel"},
      InputError("--base", fmt::format("{} is in no Git repository; name an isobar program", shown(inside.string()))));
  const std::string commit = git(root, {"rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}"},
                                 InputError("--base", fmt::format("{} is neither a program nor a revision of {}",
                                                                  in_quotes(revision), shown(root.string()))));
  git(root, {"cat-file", "-e", commit + ":cli/main.cpp"},
      InputError("--base", fmt::format("{} is not a revision of Isobar; name the isobar program of the other build",
                                       in_quotes(revision))));

  const fs::path folder_of_commit = root / "build" / "base" / commit;
  fs::path program = folder_of_commit / "build" / "bin" / "isobar";
  if (is_program(program)) return program;
  if (isatty(STDERR_FILENO) == 1) fmt::print(stderr, "check: building {} in {}\n", revision, folder_of_commit.string());
  fs::create_directories(folder_of_commit);
  const fs::path source = folder_of_commit / "source";
  const fs::path log = folder_of_commit / "build.log";
  if (!fs::exists(source)) {
    const fs::path archive = folder_of_commit / "source.tar";
    const fs::path unpacked = folder_of_commit / "unpacked";  // renamed to `source` when it is complete
    fs::create_directories(unpacked);
    build_step({"git", "-C", root.string(), "archive", "--output", archive.string(), commit}, log);
    build_step({"tar", "--extract", "--file", archive.string(), "--directory", unpacked.string()}, log);
    fs::rename(unpacked, source);
    fs::remove(archive);
  }
  const fs::path build = folder_of_commit / "build";
  build_step({"cmake", "-S", source.string(), "-B", build.string(), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
              "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY=" + (build / "bin").string(), "-DISOBAR_BUILD_TESTS=OFF"},
             log);
  build_step({"cmake", "--build", build.string(), "--target", "isobar_cli"}, log);
  return program;
}

std::vector<std::string> command_for(const fs::path& program, const results::ComparisonRow& row,
                                     const results::BaselineMeta& meta)
{
  std::vector<std::string> arguments = {program.string(),  "compare",
                                        row.platform,      row.workload,
                                        "--allocators",    row.allocator,
                                        "--objective",     std::string(name_of(row.goal.objective)),
                                        "--communication", std::string(name_of(row.goal.communication)),
                                        "--schedule",      isobar::text_of(row.goal.schedule),
                                        "--microbatches",  std::to_string(row.goal.microbatches),
                                        "--seed",          std::to_string(row.seed),
                                        "--json"};
  const auto add = [&arguments](const char* option, const std::string& value) {
    arguments.insert(arguments.end(), {option, value});
  };
  using allocators::Allocator;
  const bool offloads = meta.offload && allocators::has_property(row.allocator, &Allocator::takes_offload);
  // Older builds know fewer options, which their rows do not need.
  const bool may_recompute = offloads || allocators::has_property(row.allocator, &Allocator::uses_machines);
  if (row.recompute != "none" || may_recompute) add("--recompute", row.recompute);
  if (offloads) add("--offload", *meta.offload);
  if (meta.window && allocators::has_property(row.allocator, &Allocator::takes_window)) {
    add("--window", std::to_string(*meta.window));
  }
  if (const auto budget = meta.budgets.find(row.allocator); budget != meta.budgets.end()) {
    add("--budget", std::to_string(budget->second));
  }
  return arguments;
}

/// Fills a row with the output of the other build.
void fill(results::ComparisonRow& row, const std::string& output, const std::string& failure)
{
  row.outcome = results::failed_outcome;
  const auto document = nlohmann::json::parse(output, nullptr, false);
  if (!document.is_object() || !document.contains("rows") || document["rows"].size() != 1) {
    row.reason = failure.empty() ? "its answer is not a table of one row" : failure;
    return;
  }
  const auto& answer = document["rows"].front();
  const auto number = [&answer](const char* key, auto& quantity) {
    if (answer.at(key).is_number()) quantity.emplace(answer.at(key).template get<double>());
  };
  row.outcome = answer.at("outcome").get<std::string>();
  row.reason = answer.at("reason").get<std::string>();
  number("objective_s", row.objective);
  number("objective_bound_s", row.objective_bound);
  number("step_time_s", row.step_time);
  number("step_bound_s", row.step_bound);
  number("peak_memory_bytes", row.peak_memory);
  row.replicas = answer.value("replicas", std::size_t{1});  // older builds have none
  row.uses_machines = answer.value("uses_machines", false);
}

}  // namespace

fs::path base_program(const std::string& base, const fs::path& inside)
{
  return is_program(base) ? fs::absolute(base) : build_revision(base, inside);
}

std::vector<results::ComparisonRow> rows_by(const fs::path& program, std::vector<results::ComparisonRow> rows,
                                            const results::BaselineMeta& meta, Seconds row_time_limit)
{
  // A child waits for each command and returns its output and, after a NUL, its failure: compare exits with 4 when a
  // row is infeasible, and that is an answer.
  std::vector<std::function<std::string()>> work;
  for (const auto& row : rows) {
    work.emplace_back([command = command_for(program, row, meta), row_time_limit] {
      const ChildResult result = run_command(command, "", {row_time_limit, "--row-time-limit"});
      return result.output + '\0' + failure_text(result.failure);
    });
  }
  ProgressLine progress("check: the other build", rows.size());
  std::size_t ended = 0;
  run_in_children(work, std::thread::hardware_concurrency(), {row_time_limit, "--row-time-limit"},
                  [&](std::size_t index, const ChildResult& child) {
                    const auto end = child.output.rfind('\0');
                    if (end == std::string::npos) {
                      fill(rows[index], "", failure_text(child.failure));
                    } else {
                      fill(rows[index], child.output.substr(0, end), child.output.substr(end + 1));
                    }
                    progress.done(++ended);
                  });
  return rows;
}

}  // namespace isobar::cli
