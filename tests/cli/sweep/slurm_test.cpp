#include "cli/sweep/slurm.hpp"

#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>

namespace isobar::cli::slurm_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::ThrowsMessage;

TEST(RunsPerTask, IsOneWhileThereAreEnoughTasks)
{
  EXPECT_EQ(runs_per_task(0, 1000), 1);
  EXPECT_EQ(runs_per_task(20, 1000), 1);
  EXPECT_EQ(runs_per_task(1000, 1000), 1);
}

TEST(RunsPerTask, GrowsSoThatAllRunsFit)
{
  EXPECT_EQ(runs_per_task(1001, 1000), 2);
  EXPECT_EQ(runs_per_task(20, 8), 3);
  for (std::size_t runs = 1; runs < 50; ++runs) {
    for (std::size_t most = 1; most < 20; ++most) {
      std::vector<std::size_t> all(runs);
      std::iota(all.begin(), all.end(), std::size_t{0});
      const auto tasks = tasks_with(all, runs_per_task(runs, most));
      EXPECT_LE(tasks.size(), most);
      EXPECT_LT(*tasks.rbegin(), most);
    }
  }
}

TEST(TasksWith, NamesATaskOnceForSeveralOfItsRuns)
{
  EXPECT_THAT(tasks_with({0, 1, 2, 7, 19}, 3), ElementsAre(0, 2, 6));
  EXPECT_THAT(tasks_with({4, 5}, 1), ElementsAre(4, 5));
  EXPECT_THAT(tasks_with({}, 3), IsEmpty());
}

TEST(ArrayText, JoinsNeighboursToRanges)
{
  EXPECT_EQ(array_text({5}), "5");
  EXPECT_EQ(array_text({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(array_text({0, 2, 3, 7, 9, 10, 11}), "0,2-3,7,9-11");
}

JobArray some_array()
{
  JobArray array;
  array.name = "isobar-0123456789abcdef";
  array.folder = "/data/my study.db.slurm";
  array.command = {"/opt/isobar", "sweep", "/data/it's 100 % mine.yaml"};
  array.runs_per_task = 3;
  return array;
}

TEST(ScriptOf, EntersTheWorkingFolderAndMakesTheRunsOfItsTask)
{
  EXPECT_EQ(script_of(some_array()), "#!/bin/sh\ncd '" + std::filesystem::current_path().string() +
                                         "' || exit\nfirst=$((SLURM_ARRAY_TASK_ID * 3))\n"
                                         "exec '/opt/isobar' 'sweep' '/data/it'\\''s 100 % mine.yaml' "
                                         "\"$first-$((first + 2))\"\n");
}

TEST(ScriptOf, PutsTheOptionsUnchangedBeforeTheFirstCommand)
{
  JobArray array = some_array();
  array.options = "--partition=long --comment=\"a b\"";
  EXPECT_TRUE(script_of(array).starts_with("#!/bin/sh\n#SBATCH --partition=long --comment=\"a b\"\ncd "));
}

TEST(ScriptOf, RefusesOptionsThatAreNotOneLine)
{
  JobArray array = some_array();
  array.options = "--time=10\nrm -r data";
  EXPECT_THAT([&] { script_of(array); },
              ThrowsMessage<InputError>("--slurm-options: \"--time=10\\x0arm -r data\" is not one line"));
}

TEST(ScriptOf, IsUnderstoodByTheShell)
{
  JobArray array = some_array();
  array.command = {"/usr/bin/printf", "<%s>", "", "it's", "a  b", "$HOME `id` \"\\\n"};
  const auto result =
      run_command({"/usr/bin/env", "SLURM_ARRAY_TASK_ID=7", "/bin/sh", "-c", script_of(array)}, "", Seconds(60));
  EXPECT_EQ(result.output, "<><it's><a  b><$HOME `id` \"\\\n><21-23>") << (result.failure ? result.failure->text : "");
}

TEST(Submit, NamesTheLogOfEachTaskAlsoInAFolderWhosePercentSignsSbatchWouldReplace)
{
  const testing_support::TemporaryFolder folder;
  const auto sbatch = folder.write("sbatch", "#!/bin/sh\nprintf '%s\\n' \"$@\" > \"$0.arguments\"; echo 17\n");
  std::filesystem::permissions(sbatch, std::filesystem::perms::owner_all);
  ASSERT_EQ(::setenv("PATH", (folder.path().string() + ":/usr/bin:/bin").c_str(), 1), 0);
  JobArray array = some_array();
  array.folder = folder.path() / "100 %a";
  std::filesystem::create_directory(array.folder);
  EXPECT_EQ(submit(array, {0, 1, 5}), "17");
  EXPECT_EQ(read_file(sbatch.string() + ".arguments"),
            "--parsable\n--array=0-1,5\n--job-name=isobar-0123456789abcdef\n--output=" + folder.path().string() +
                "/100 %%a/%a.log\n" + array.script().string() + "\n");
}

TEST(QueuedTasksFrom, SeparatesActiveTasksFromEndedOnes)
{
  const auto queued = queued_tasks_from(
      "17 0 COMPLETED\n17 1 RUNNING\n17 2 PENDING\n17 3 COMPLETING\n17 4 OUT_OF_MEMORY\n17 5 REQUEUED\n");
  EXPECT_THAT(queued.jobs, ElementsAre("17"));
  EXPECT_THAT(queued.active, ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(queued.ends, ElementsAre(Pair(0, "COMPLETED"), Pair(4, "OUT_OF_MEMORY")));
}

TEST(QueuedTasksFrom, HasTheLastEndOfATaskThatWasSubmittedAgain)
{
  const auto queued = queued_tasks_from("101 3 TIMEOUT\n9 3 CANCELLED\n101 4 NODE_FAIL\n102 4 RUNNING\n");
  EXPECT_THAT(queued.ends, ElementsAre(Pair(3, "TIMEOUT"), Pair(4, "NODE_FAIL")));
  EXPECT_THAT(queued.active, ElementsAre(4));
  EXPECT_THAT(queued.jobs, ElementsAre("102"));
}

TEST(QueuedTasksFrom, LeavesOutJobsThatAreNotArrays)
{
  const auto queued = queued_tasks_from("17 N/A RUNNING\n");
  EXPECT_THAT(queued.active, IsEmpty());
  EXPECT_THAT(queued.jobs, IsEmpty());
}

TEST(QueuedTasksFrom, IsEmptyForAnEmptyQueue)
{
  EXPECT_THAT(queued_tasks_from("").active, IsEmpty());
}

}  // namespace
}  // namespace isobar::cli::slurm_test
