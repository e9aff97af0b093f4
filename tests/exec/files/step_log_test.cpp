#include "exec/files/step_log.hpp"

#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

namespace isobar::exec::step_log_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::TemporaryFolder;

StepReport report_of(std::uint64_t step)
{
  return {step, 1.0 / static_cast<double>(step + 1), Seconds(0.5), 0.01, Bytes(4096)};
}

StepLogOptions logs_in(const TemporaryFolder& folder)
{
  StepLogOptions options;
  options.table = false;
  options.json_lines = folder.path() / "log.jsonl";
  options.tensorboard = folder.path() / "events";
  options.prometheus = folder.path() / "isobar.prom";
  options.samples = 32;
  return options;
}

std::vector<std::uint64_t> steps_of(const std::string& log)
{
  std::vector<std::uint64_t> steps;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line).at("step"));
  return steps;
}

TEST(StepLog, LogsEachStepInEveryForm)
{
  const TemporaryFolder folder;
  const StepLogOptions options = logs_in(folder);
  StepLog log(options);
  log(report_of(0));
  log(report_of(1));
  EXPECT_EQ(
      read_file(options.json_lines),
      R"({"step":0,"loss":1.0,"step_time_s":0.5,"samples_per_s":64.0,"learning_rate":0.01,"peak_memory_bytes":4096.0})"
      "\n"
      R"({"step":1,"loss":0.5,"step_time_s":0.5,"samples_per_s":64.0,"learning_rate":0.01,"peak_memory_bytes":4096.0})"
      "\n");
  EXPECT_THAT(read_file(options.prometheus), HasSubstr("isobar_steps_total 2\n"));
  EXPECT_THAT(read_file(options.prometheus), HasSubstr("isobar_loss 0.5\n"));
  for (const auto& events : std::filesystem::directory_iterator(options.tensorboard)) {
    EXPECT_THAT(read_file(events.path()), HasSubstr("samples_per_s"));
  }
}

TEST(StepLog, LeavesOutUnknownValues)
{
  const TemporaryFolder folder;
  StepLogOptions options = logs_in(folder);
  StepLog log(options);
  log({0, 2, Seconds(1), {}, {}});
  EXPECT_EQ(read_file(options.json_lines), R"({"step":0,"loss":2.0,"step_time_s":1.0,"samples_per_s":32.0})"
                                           "\n");
  EXPECT_THAT(read_file(options.prometheus), Not(HasSubstr("learning_rate")));
}

TEST(StepLog, StartsNewUnlessAskedToContinue)
{
  const TemporaryFolder folder;
  const StepLogOptions options = logs_in(folder);
  for (int run = 0; run < 2; ++run) {
    StepLog log(options);
    log(report_of(0));
  }
  EXPECT_EQ(steps_of(read_file(options.json_lines)), std::vector<std::uint64_t>{0});
}

TEST(StepLog, IsRefusedAtTheStartWhereItsFolderCannotBeWritten)
{
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  StepLogOptions options;
  options.json_lines = (folder.path() / "log.jsonl").string();
  std::ofstream(options.json_lines) << R"({"step":0,"loss":1})" << '\n';
  fs::permissions(options.json_lines, fs::perms::all);
  fs::permissions(folder.path(), fs::perms(0555));
  const auto child = run_in_child(
      [&] {
        constexpr uid_t unprivileged = 65534;
        ensure(geteuid() != 0 || seteuid(unprivileged) == 0, "root, which ignores permissions, can change its user");
        const StepLog log(options);
        return std::string("it is not refused");
      },
      Seconds(250));
  fs::permissions(folder.path(), fs::perms::owner_all);
  EXPECT_THAT([&] { child.output_or_throw(); },
              ThrowsMessage<EnvironmentError>(options.json_lines + ": cannot write there: Permission denied"));
}

TEST(StepLog, HasEachStepOnceWhenAKilledRunResumes)
{
  const TemporaryFolder folder;
  StepLogOptions options = logs_in(folder);
  {
    StepLog log(options);
    for (const std::uint64_t step : {0, 1, 2, 3}) log(report_of(step));
  }
  std::ofstream(options.json_lines, std::ios::app) << R"({"step":4,"lo)";  // the run is killed here
  options.append = true;
  options.first_step = 2;  // the last checkpoint
  StepLog log(options);
  for (const std::uint64_t step : {2, 3, 4}) log(report_of(step));
  EXPECT_EQ(steps_of(read_file(options.json_lines)), (std::vector<std::uint64_t>{0, 1, 2, 3, 4}));
}

TEST(StepLog, ContinuesALogThatDoesNotExist)
{
  const TemporaryFolder folder;
  StepLogOptions options = logs_in(folder);
  options.append = true;
  options.first_step = 7;
  StepLog log(options);
  log(report_of(7));
  EXPECT_EQ(steps_of(read_file(options.json_lines)), std::vector<std::uint64_t>{7});
}

RC_GTEST_PROP(StepLog, KeepsTheLinesBeforeAStepWhereverTheRunWasCutOff, ())
{
  const auto steps = *rc::gen::inRange<std::uint64_t>(0, 20);
  const auto first = *rc::gen::inRange<std::uint64_t>(0, 25);
  std::string log;
  for (std::uint64_t step = 0; step < steps; ++step) log += "{\"step\":" + std::to_string(step) + ",\"loss\":1}\n";
  const auto length = *rc::gen::inRange<std::size_t>(0, log.size() + 1);
  const std::string cut = log.substr(0, length);
  const auto whole = static_cast<std::uint64_t>(std::count(cut.begin(), cut.end(), '\n'));
  RC_ASSERT(steps_of(lines_before(cut, "log", first)).size() == std::min(first, whole));
}

TEST(StepLog, RefusesToContinueAFileThatIsNotALog)
{
  const auto fault = [](const std::string& log) { return [log] { lines_before(log, "log.jsonl", 1); }; };
  EXPECT_THAT(
      fault("{\"step\":0}\nwords\n"),
      ThrowsMessage<InputError>("log.jsonl:2: \"words\" is not a step of a log; name a file that --log has written"));
  for (const char* line : {"", "[]", "{}", "3", R"({"step":-1})", R"({"step":"1"})", R"({"step":1.5})", "\xff"}) {
    EXPECT_THAT(fault(line + std::string("\n")), ThrowsMessage<InputError>(HasSubstr("log.jsonl:1: ")));
  }
}

TEST(StepLog, SaysInOneLineWhatCannotBeWritten)
{
  const TemporaryFolder folder;
  const std::string nowhere = folder.path() / "no/such/folder/file";
  for (std::string StepLogOptions::*where : {&StepLogOptions::json_lines, &StepLogOptions::prometheus}) {
    StepLogOptions options;
    options.*where = nowhere;
    EXPECT_THAT([&] { StepLog log(options); },
                ThrowsMessage<EnvironmentError>(HasSubstr(nowhere + ": cannot write there")));
  }
  StepLogOptions options;
  options.table = false;
  options.json_lines = "/dev/full";
  StepLog log(options);
  EXPECT_THAT([&] { log(report_of(0)); },
              ThrowsMessage<EnvironmentError>("/dev/full: cannot be written; is the disk full?"));
}

TEST(PrometheusText, FollowsTheTextFormat)
{
  EXPECT_EQ(prometheus_text({9, 0.25, Seconds(2), {}, {}}, 16),
            "# HELP isobar_steps_total Steps done.\n# TYPE isobar_steps_total counter\nisobar_steps_total 10\n"
            "# HELP isobar_loss Mean loss of the last step.\n# TYPE isobar_loss gauge\nisobar_loss 0.25\n"
            "# HELP isobar_step_time_seconds Time of the last step.\n# TYPE isobar_step_time_seconds gauge\n"
            "isobar_step_time_seconds 2\n"
            "# HELP isobar_samples_per_second Samples per second in the last step.\n"
            "# TYPE isobar_samples_per_second gauge\nisobar_samples_per_second 16\n");
}

TEST(PrometheusText, SpellsNanAndInfinityAsPrometheusDoes)
{
  constexpr double infinite = std::numeric_limits<double>::infinity();
  EXPECT_THAT(prometheus_text({0, std::nan(""), Seconds(1), {}, {}}, 1), HasSubstr("isobar_loss NaN\n"));
  EXPECT_THAT(prometheus_text({0, -infinite, Seconds(1), infinite, {}}, 1), HasSubstr("isobar_loss -Inf\n"));
  EXPECT_THAT(prometheus_text({0, 1, Seconds(1), infinite, {}}, 1), HasSubstr("isobar_learning_rate +Inf\n"));
}

}  // namespace
}  // namespace isobar::exec::step_log_test
