#include "exec/run/mix_run.hpp"

#include "core/errors.hpp"
#include "core/failure.hpp"
#include "exec/control/rank_turn.hpp"
#include "exec/net/secret.hpp"
#include "exec/net/tcp_listener.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/replicated_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::exec::mix_run_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Plan sharded_plan(Plan plan, Sharding sharded)
{
  plan.sync.sharded = sharded;
  return plan;
}

/// A job of these tests, with what its run points to.
struct SmallJob {
  SmallJob(std::string job_name, Workload job_workload, const ScheduleChoice& schedule,
           const std::vector<std::vector<Takes>>& stages, std::uint64_t steps, Sharding sharded = Sharding::None)
      : name(std::move(job_name)),
        workload(std::move(job_workload)),
        plan(sharded_plan(replicated_plan(workload, schedule, stages), sharded)),
        program(testing_support::unit_program(plan, workload)),
        options(options_for(steps))
  {
  }

  MixedRun run() const
  {
    return {&workload, &plan, program.get(), options, [](const StepReport&) {}};
  }
  std::vector<double> solo_losses() const
  {
    return run_in_process(workload, plan, *program, options, [](const StepReport&) {}).losses();
  }

  std::string name;
  Workload workload;
  Plan plan;
  std::unique_ptr<Program> program;
  RunOptions options;
};

using Jobs = std::vector<std::unique_ptr<SmallJob>>;

/// The same model with other losses.
Workload otherwise_trained(Workload workload)
{
  workload.training.learning_rate = 0.03;
  return workload;
}

/// Two jobs with a replica each on two devices.
Jobs two_with_replicas()
{
  Jobs jobs;
  jobs.push_back(std::make_unique<SmallJob>("bert", small_bert(), ScheduleChoice{"gpipe"},
                                            std::vector<std::vector<Takes>>{{{"a", 1}, {"b", 2}}}, 4));
  jobs.push_back(std::make_unique<SmallJob>("gpt", small_gpt(), ScheduleChoice{"gpipe"},
                                            std::vector<std::vector<Takes>>{{{"b", 2}, {"a", 1}}}, 3));
  return jobs;
}

/// A pipeline beside replicas, whose norm of gradients is clipped.
Jobs pipeline_and_replicas()
{
  Workload clipped = small_gpt();
  clipped.training.clip_norm = 0.5;
  Jobs jobs;
  jobs.push_back(std::make_unique<SmallJob>("pipeline", otherwise_trained(small_gpt()), ScheduleChoice{"1f1b"},
                                            std::vector<std::vector<Takes>>{{{"a", 3}}, {{"b", 3}}}, 3));
  jobs.push_back(std::make_unique<SmallJob>("replicas", clipped, ScheduleChoice{"gpipe"},
                                            std::vector<std::vector<Takes>>{{{"a", 1}, {"b", 1}}}, 4));
  return jobs;
}

/// Three jobs, each on two of three devices.
Jobs triangle()
{
  Jobs jobs;
  jobs.push_back(std::make_unique<SmallJob>("ab", small_gpt(), ScheduleChoice{"1f1b"},
                                            std::vector<std::vector<Takes>>{{{"a", 2}}, {{"b", 2}}}, 3));
  jobs.push_back(std::make_unique<SmallJob>("bc", small_bert(), ScheduleChoice{"gpipe"},
                                            std::vector<std::vector<Takes>>{{{"b", 1}, {"c", 1}}}, 3));
  jobs.push_back(std::make_unique<SmallJob>("ca", otherwise_trained(small_gpt()), ScheduleChoice{"gpipe"},
                                            std::vector<std::vector<Takes>>{{{"c", 1}, {"a", 1}}}, 4));
  return jobs;
}

/// Jobs whose replicas divide what they update, and gather parameters after it, or before each pass.
Jobs with_divided_optimizers()
{
  const std::vector<std::vector<Takes>> stages = {{{"a", 1}, {"b", 1}}, {{"a", 1}, {"b", 1}}};
  Jobs jobs;
  jobs.push_back(
      std::make_unique<SmallJob>("optimizer", small_gpt(), ScheduleChoice{"gpipe"}, stages, 4, Sharding::Optimizer));
  jobs.push_back(
      std::make_unique<SmallJob>("parameters", small_bert(), ScheduleChoice{"gpipe"}, stages, 5, Sharding::Parameters));
  jobs.push_back(std::make_unique<SmallJob>("none", small_gpt(), ScheduleChoice{"gpipe"}, stages, 3));
  return jobs;
}

Mix mix_of(const Jobs& jobs, Discipline discipline = Discipline::Strict, HandOver hand_over = HandOver::Step,
           LinkSharing links = LinkSharing::Fifo)
{
  Mix mix;
  for (const auto& job : jobs) {
    mix.turns.push_back({mix.jobs.size(), 1});
    mix.jobs.push_back({.name = job->name, .plan = "", .workload = "", .start = {}});
  }
  mix.discipline = discipline;
  mix.hand_over = hand_over;
  mix.links = links;
  return mix;
}

std::vector<JobOutcome> outcomes_of(const Mix& mix, const Jobs& jobs, MixProcesses processes)
{
  std::vector<MixedRun> runs;
  for (const auto& job : jobs) runs.push_back(job->run());
  return run_mix(mix, std::move(runs), processes);
}

void expect_solo_losses(const Jobs& jobs, const std::vector<JobOutcome>& outcomes)
{
  ASSERT_EQ(outcomes.size(), jobs.size());
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    ASSERT_TRUE(outcomes[job].measured) << jobs[job]->name << ": " << outcomes[job].failure->text;
    EXPECT_EQ(outcomes[job].measured->losses(), jobs[job]->solo_losses()) << jobs[job]->name;
  }
}

struct Way3 {
  std::string name;
  MixProcesses processes;
};

class AnyMix : public testing::TestWithParam<std::tuple<Way3, Discipline>> {
 protected:
  void expect_solo(const Jobs& jobs) const
  {
    const auto [way, discipline] = GetParam();
    const auto links = discipline == Discipline::None ? LinkSharing::Fair : LinkSharing::Fifo;
    expect_solo_losses(jobs, outcomes_of(mix_of(jobs, discipline, HandOver::Step, links), jobs, way.processes));
  }
};

TEST_P(AnyMix, OfReplicasHasTheLossesOfTheJobsAlone)
{
  expect_solo(two_with_replicas());
}

TEST_P(AnyMix, OfAPipelineAndReplicasHasTheLossesOfTheJobsAlone)
{
  expect_solo(pipeline_and_replicas());
}

TEST_P(AnyMix, OfThreeJobsOnTwoOfThreeDevicesEachHasTheLossesOfTheJobsAlone)
{
  expect_solo(triangle());
}

TEST_P(AnyMix, OfJobsThatGatherParametersHasTheLossesOfTheJobsAlone)
{
  expect_solo(with_divided_optimizers());
}

INSTANTIATE_TEST_SUITE_P(Mix, AnyMix,
                         testing::Combine(testing::Values(Way3{"Threads", MixProcesses::None},
                                                          Way3{"ProcessPerDevice", MixProcesses::Device},
                                                          Way3{"ProcessPerJob", MixProcesses::Job}),
                                          testing::Values(Discipline::Strict, Discipline::Conserving,
                                                          Discipline::None)),
                         [](const auto& tested) {
                           std::string name = std::get<0>(tested.param).name + "_";
                           return name + std::string(name_of(std::get<1>(tested.param)));
                         });

TEST(MixRun, LetsJobsShareTheLinks)
{
  for (const Discipline discipline : {Discipline::Strict, Discipline::Conserving}) {
    const Jobs jobs = with_divided_optimizers();
    const Mix mix = mix_of(jobs, discipline, HandOver::Step, LinkSharing::Fair);
    expect_solo_losses(jobs, outcomes_of(mix, jobs, MixProcesses::Device));
  }
}

TEST(MixRun, HandsTheDeviceOverAfterEachInstruction)
{
  for (const MixProcesses processes : {MixProcesses::None, MixProcesses::Job}) {
    for (const auto make_jobs : {pipeline_and_replicas, with_divided_optimizers}) {
      const Jobs jobs = make_jobs();
      const Mix mix = mix_of(jobs, Discipline::Conserving, HandOver::Instruction);
      expect_solo_losses(jobs, outcomes_of(mix, jobs, processes));
    }
  }
}

TEST(MixRun, RefusesARotationOfInstructionsOverSeveralDevices)
{
  const Jobs jobs = two_with_replicas();
  try {
    outcomes_of(mix_of(jobs, Discipline::Strict, HandOver::Instruction), jobs, MixProcesses::None);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "hand_over: instruction, in strict rotation, waits for ever where a job has several "
                 "devices, as bert has; use step, or discipline conserving");
  }
}

TEST(MixRun, LetsAJobJoinLaterWithItsOwnLosses)
{
  for (const Discipline discipline : {Discipline::Strict, Discipline::Conserving}) {
    Jobs jobs = two_with_replicas();
    jobs[0]->options.steps = 40;
    Mix mix = mix_of(jobs, discipline);
    mix.jobs[1].start = Seconds(0.05);
    expect_solo_losses(jobs, outcomes_of(mix, jobs, MixProcesses::Device));
  }
}

TEST(MixRun, GivesAJobSeveralStepsPerTurn)
{
  const Jobs jobs = two_with_replicas();
  Mix mix = mix_of(jobs);
  mix.turns = {{0, 2}, {1, 1}};
  expect_solo_losses(jobs, outcomes_of(mix, jobs, MixProcesses::Device));
}

/// A job whose loss is not finite after its first update.
Jobs with_a_diverging_job()
{
  Jobs jobs = triangle();
  Workload diverging = small_gpt();
  diverging.training.learning_rate = 1e30;
  jobs[1] = std::make_unique<SmallJob>("diverging", diverging, ScheduleChoice{"gpipe"},
                                       std::vector<std::vector<Takes>>{{{"b", 1}, {"c", 1}}}, 30);
  return jobs;
}

TEST(MixRun, AJobThatFailsLeavesTheLossesOfTheOthers)
{
  for (const MixProcesses processes : {MixProcesses::None, MixProcesses::Device, MixProcesses::Job}) {
    for (const Discipline discipline : {Discipline::Strict, Discipline::Conserving}) {
      const Jobs jobs = with_a_diverging_job();
      const auto outcomes = outcomes_of(mix_of(jobs, discipline), jobs, processes);
      EXPECT_FALSE(outcomes[1].measured);
      ASSERT_TRUE(outcomes[1].failure);
      EXPECT_THAT(outcomes[1].failure->text, HasSubstr("the loss is"));
      for (const std::size_t job : {0, 2}) {
        ASSERT_TRUE(outcomes[job].measured) << outcomes[job].failure->text;
        EXPECT_EQ(outcomes[job].measured->losses(), jobs[job]->solo_losses());
      }
    }
  }
}

/// The first of so many ports in a row that nobody has now; below those that connections take by themselves.
std::uint16_t first_free_port(std::size_t count)
{
  std::random_device random;
  while (true) {
    const auto first = static_cast<std::uint16_t>(10000 + random() % 20000);
    std::vector<TcpListener> held;
    try {
      for (std::size_t i = 0; i < count; ++i) {
        held.emplace_back(Endpoint{"127.0.0.1", static_cast<std::uint16_t>(first + i)});
      }
      return first;
    } catch (const EnvironmentError&) {
      held.clear();  // one of them is taken: look elsewhere
    }
  }
}

/// The outcomes of the jobs on each of two machines, which have a mix each.
std::vector<std::vector<JobOutcome>> outcomes_on_machines(const Jobs& jobs, const std::vector<Mix>& mixes)
{
  const auto first = first_free_port(jobs.size() * mixes.size());
  std::vector<Endpoint> endpoints;
  for (std::size_t device = 0; device < mixes.size(); ++device) {
    endpoints.push_back({"127.0.0.1", static_cast<std::uint16_t>(first + device * jobs.size())});
  }
  const auto secret = std::make_shared<const Secret>("a test", "a secret of tests, known to all");
  std::vector<std::vector<JobOutcome>> outcomes(mixes.size());
  std::vector<std::jthread> machines;
  for (std::size_t device = 0; device < mixes.size(); ++device) {
    machines.emplace_back([&, device] {
      std::vector<MixedRun> runs;
      for (const auto& job : jobs) runs.push_back(job->run());
      outcomes[device] = run_mix_device(mixes[device], std::move(runs), {device, endpoints, secret});
    });
  }
  machines.clear();
  return outcomes;
}

TEST(MixRun, OverMachinesHasTheLossesOfTheJobsAlone)
{
  const Jobs jobs = pipeline_and_replicas();
  const Mix mix = mix_of(jobs);
  expect_solo_losses(jobs, outcomes_on_machines(jobs, {mix, mix}).front());
}

TEST(MixRun, CatchesADeviceThatGrantsInAnotherOrder)
{
  const Jobs jobs = pipeline_and_replicas();
  Mix other = mix_of(jobs);
  std::swap(other.turns[0], other.turns[1]);
  const auto outcomes = outcomes_on_machines(jobs, {mix_of(jobs), other});
  for (const auto& of_machine : outcomes) {
    for (const auto& outcome : of_machine) {
      ASSERT_TRUE(outcome.failure);
      EXPECT_THAT(outcome.failure->text,
                  testing::ContainsRegex("turn 0 has number [01] on rank [01] and [01] on rank [01]; all devices must "
                                         "grant turns in one order, so give all ranks the same mix"));
    }
  }
}

}  // namespace
}  // namespace isobar::exec::mix_run_test
