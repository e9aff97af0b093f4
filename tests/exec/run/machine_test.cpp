#include "core/errors.hpp"
#include "core/model/workload.hpp"
#include "core/program/program.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/run/profile.hpp"
#include "exec/run/run.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/machine_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"
#include "tests/support/small_models.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

/// Stages that live in the machine of their device, and on its disk.
namespace isobar::exec::machine_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::TemporaryFolder;

constexpr std::uint64_t steps = 4;

const ScheduleChoice gpipe = choice_of(ChainSchedule::GPipe);
const ScheduleChoice one_f_one_b = choice_of(ChainSchedule::OneForwardOneBackward);

Workload trained_by(Workload workload, Optimizer optimizer = Optimizer::Adam)
{
  workload.optimizer = optimizer;
  workload.training.dropout = 0.1;
  workload.training.weight_decay = 0.01;
  workload.training.decay = RateDecay::Linear;
  workload.training.decay_steps = 2 * steps;
  return workload;
}

/// What training leaves: its losses, and all tensors of its last checkpoint.
struct Left {
  std::vector<double> losses;
  std::map<std::string, std::vector<std::byte>> tensors;

  bool operator==(const Left&) const = default;
};

Left left_by(const Workload& workload, const Plan& plan, RunOptions options = options_for(steps))
{
  const TemporaryFolder folder;
  options.checkpoints.folder = folder.path() / "checkpoints";
  Left left;
  left.losses = trained(workload, plan, Way::InProcess, options).losses;
  const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(options.steps);
  for (const auto& name : checkpoint.names()) {
    left.tensors[name] = checkpoint.read(name).data;
  }
  return left;
}

std::vector<System> exact_systems()
{
  using enum UpdateOverlap;
  return {window(Step, 1, 1),
          window(Step, 0, 2),
          window(NextForward, 1, 2),
          window(None, 0, 1),
          window(NextForward, 0, 2, Tier::Disk),
          window(Step, 1, 1, Tier::Disk),
          zero_offload(),
          zero_infinity(),
          zero_infinity(Tier::Disk),
          l2l(),
          published_stronghold()};
}

/// A clipped norm needs all gradients before the first update.
Workload clipped(Workload workload)
{
  workload.training.clip_norm = 0.05;
  return workload;
}

TEST(Machine, TrainsToTheBitsOfARunOnTheDevice)
{
  const Workload workload = trained_by(small_gpt());
  for (const std::uint64_t microbatches : {1U, 2U}) {
    const Left expected = left_by(workload, resident_plan(workload, 1, gpipe, microbatches));
    for (const System& system : exact_systems()) {
      EXPECT_EQ(left_by(workload, machine_plan(workload, system, 1, gpipe, microbatches)), expected)
          << system.name << ", " << microbatches;
    }
  }
}

TEST(Machine, ClipsTheNormOfAllTiersTogetherToTheBit)
{
  const Workload workload = clipped(trained_by(small_gpt()));
  const Left expected = left_by(workload, resident_plan(workload, 1, gpipe, 2));
  EXPECT_NE(expected.losses, left_by(trained_by(small_gpt()), resident_plan(workload, 1, gpipe, 2)).losses);
  for (const System& system : exact_systems()) {
    if (system.inner.copies == Copies::Redundant) continue;  // whose updates do not wait for the norm
    EXPECT_EQ(left_by(workload, machine_plan(workload, system, 1, gpipe, 2)), expected) << system.name;
  }
}

TEST(Machine, TrainsTheStagesOfAPipelineToTheBit)
{
  const Workload workload = clipped(trained_by(small_gpt()));
  for (const std::size_t devices : {2U, 3U}) {
    for (const ScheduleChoice& schedule : {gpipe, one_f_one_b}) {
      const Left expected = left_by(workload, resident_plan(workload, devices, schedule, 4));
      for (const System& system : {window(UpdateOverlap::NextForward, 0, 2), zero_infinity(Tier::Disk)}) {
        System with_places = system;
        with_places.inner.gradient_slots = 3;  // 1f1b has the backwards of all parts of a device at a time
        if (with_places.ends.gradient_slots > 0) with_places.ends.gradient_slots = 3;
        const Plan plan = machine_plan(workload, with_places, devices, schedule, 4);
        EXPECT_EQ(left_by(workload, plan), expected) << system.name << ", " << devices << ", " << schedule.name;
        if (devices > 2) continue;
        EXPECT_EQ(trained(workload, plan, Way::Tcp, options_for(steps)).losses, expected.losses) << system.name;
      }
    }
  }
}

TEST(Machine, UpdatesByEveryOptimizerToTheBit)
{
  for (const Optimizer optimizer : {Optimizer::Sgd, Optimizer::Momentum, Optimizer::AdamW}) {
    const Workload workload = trained_by(small_gpt(), optimizer);
    const Left expected = left_by(workload, resident_plan(workload, 1, gpipe, 1));
    for (const Tier tier : {Tier::Host, Tier::Disk}) {
      EXPECT_EQ(left_by(workload, machine_plan(workload, window(UpdateOverlap::Step, 0, 1, tier), 1, gpipe, 1)),
                expected);
    }
  }
}

TEST(Machine, TrainsOtherModelsAndDtypesToTheBit)
{
  Workload half = trained_by(small_gpt());
  half.dtype = DType::BFloat16;
  half.layers.clear();
  build_gpt(std::get<GptSizes>(half.model), half);
  const Workload moe = testing_support::small_moe(spmd::Trunk::Bert);
  for (const Workload& workload :
       {trained_by(small_bert()), trained_by(small_llama_by_operators()), trained_by(moe), half}) {
    const Left expected = left_by(workload, resident_plan(workload, 1, gpipe, 2));
    for (const System& system : {window(UpdateOverlap::NextForward, 0, 2), zero_infinity()}) {
      EXPECT_EQ(left_by(workload, machine_plan(workload, system, 1, gpipe, 2)), expected)
          << workload.name << ", " << system.name;
    }
  }
}

TEST(Machine, AddsUpTheGradientsOfAMatrixOfTwoLayersToTheBit)
{
  const Workload workload = trained_by(small_tied_gpt());
  for (const std::uint64_t microbatches : {1U, 3U}) {
    const Left expected = left_by(workload, resident_plan(workload, 1, gpipe, microbatches));
    for (const System& system : {window(UpdateOverlap::NextForward, 0, 2), zero_offload(), zero_infinity(), l2l()}) {
      EXPECT_EQ(left_by(workload, machine_plan(workload, system, 1, gpipe, microbatches)), expected)
          << system.name << ", " << microbatches;
    }
  }
}

TEST(Machine, KeepsActivationsOnTheHostToTheBit)
{
  const Workload workload = trained_by(small_gpt());
  const Left expected = left_by(workload, resident_plan(workload, 1, gpipe, 2));
  System with_activations = window(UpdateOverlap::Step, 0, 2);
  with_activations.inner.activations = Tier::Host;
  EXPECT_EQ(left_by(workload, machine_plan(workload, with_activations, 1, gpipe, 2)), expected);
  System only = {"activations", {}, {}, 0};
  only.inner.activations = Tier::Host;
  EXPECT_EQ(left_by(workload, machine_plan(workload, only, 1, gpipe, 2)), expected);
}

/// The most that each tier of the only rank held.
std::array<double, tier_count> peaks_of(const Workload& workload, const Plan& plan)
{
  const auto program = testing_support::unit_program(plan, workload);
  const auto measured = run_by(Way::InProcess, workload, plan, *program, options_for(2));
  std::array<double, tier_count> peaks{};
  for (const Tier tier : {Tier::Device, Tier::Host, Tier::Disk}) {
    peaks[static_cast<std::size_t>(tier)] = measured.ranks().front().peak_of(tier).value;
  }
  return peaks;
}

TEST(Machine, HoldsWhatThePlanCountsInEachTier)
{
  const Workload workload = trained_by(small_gpt());
  for (const System& system : exact_systems()) {
    const Plan plan = machine_plan(workload, system, 1, gpipe, 2);
    const auto program = testing_support::unit_program(plan, workload);
    const auto peaks = peaks_of(workload, plan);
    EXPECT_EQ(peaks[1], program->resident(0, Tier::Host).value) << system.name;
    EXPECT_EQ(peaks[2], program->resident(0, Tier::Disk).value) << system.name;
  }
}

/// The most that the first device holds at once in a step, if its activations do not leave it.
double counted_on_device(const Program& program)
{
  double held = program.resident(0, Tier::Device).value;
  double most = held;
  for (std::uint64_t i = 0; i < program.length(0, compute_lane); ++i) {
    const Instruction instruction = program.at(0, compute_lane, i);
    most = std::max(most, held += instruction.acquires.size.value);
    held -= instruction.releases.size.value;
  }
  return most;
}

TEST(Machine, HoldsOnTheDeviceWhatAPlanWithItsProfileCounts)
{
  Workload workload = trained_by(small_gpt());
  ProfileOptions options;
  options.warm_up = options.repetitions = 1;
  apply_profile(measure_profile(workload, options), "profile", workload);
  for (const System& system : exact_systems()) {
    for (const std::uint64_t microbatches : {1U, 3U}) {
      const Plan plan = machine_plan(workload, system, 1, gpipe, microbatches);
      const Workload planned = with_recomputation(workload, plan.recompute);
      const auto program = testing_support::unit_program(plan, planned);
      const double not_counted = peaks_of(planned, plan)[0] - counted_on_device(*program);
      EXPECT_GE(not_counted, 0) << system.name << " x " << microbatches;
      EXPECT_LE(not_counted, static_cast<double>(microbatches * sizeof(float))) << "the losses; " << system.name;
    }
  }
}

TEST(Machine, HoldsNoMoreOnTheDeviceThanAPlanWithoutAProfileCounts)
{
  Workload llama = small_llama_by_operators();
  llama.optimizer = Optimizer::Adam;
  Workload gpt = trained_by(small_gpt());
  gpt = with_micro_batch(gpt, gpt.micro_batch);  // with its dropout
  for (const Workload& workload : {gpt, small_bert(), llama}) {
    for (const System& system : exact_systems()) {
      const Plan plan = machine_plan(workload, system, 1, gpipe, 1);
      const Workload planned = with_recomputation(workload, plan.recompute);
      const double counted = counted_on_device(*testing_support::unit_program(plan, planned));
      EXPECT_LE(peaks_of(planned, plan)[0], counted) << workload.name << ", " << system.name;
    }
  }
}

TEST(Machine, HoldsAsManyMorePlacesOnTheDeviceAsThePlanCounts)
{
  const Workload workload = trained_by(small_gpt());
  std::array<double, 2> measured{};
  std::array<double, 2> counted{};
  for (const std::size_t places : {2U, 4U}) {
    const Plan plan = machine_plan(workload, window(UpdateOverlap::Step, 0, places), 1, gpipe, 1);
    measured[places / 4] = peaks_of(workload, plan)[0];
    counted[places / 4] = testing_support::unit_program(plan, workload)->resident(0, Tier::Device).value;
  }
  EXPECT_EQ(measured[1] - measured[0], counted[1] - counted[0]);
}

TEST(Machine, HoldsActivationsOnTheHostWhileTheyAreThere)
{
  const Workload workload = trained_by(small_gpt());
  System system = window(UpdateOverlap::Step, 0, 2);
  const double without = peaks_of(workload, machine_plan(workload, system, 1, gpipe, 2))[1];
  system.inner.activations = Tier::Host;
  const double with = peaks_of(workload, machine_plan(workload, system, 1, gpipe, 2))[1];
  // Each of four layers and two micro-batches keeps its input.
  const double input = 2 * 8 * 16 * sizeof(float);
  EXPECT_LE(with - without, 8 * input);
  EXPECT_GE(with - without, 6 * input);
}

TEST(Machine, ChangesNoBitWhenCopiesAreLateAndFreeMemoryHoldsNothing)
{
  const Workload workload = trained_by(small_gpt());
  const auto expected = trained(workload, resident_plan(workload, 1, gpipe, 2), Way::InProcess, options_for(2)).losses;
  const auto systems = exact_systems();
  constexpr std::uint64_t runs = 100;
  for (std::uint64_t run = 0; run < runs; ++run) {
    System system = systems[run % systems.size()];
    if (run % 2 == 1 && system.inner.gradients == Tier::Host) system.inner.activations = Tier::Host;
    RunOptions options = options_for(2);
    options.disturb_copies = run;
    EXPECT_EQ(trained(workload, machine_plan(workload, system, 1, gpipe, 2), Way::InProcess, options).losses, expected)
        << system.name << ", " << run;
  }
}

TEST(Machine, ResumesCheckpointsOfOtherTiersToTheBit)
{
  const Workload workload = trained_by(small_gpt());
  const Plan resident = resident_plan(workload, 1, gpipe, 2);
  const auto all = trained(workload, resident, Way::Tcp, options_for(steps)).losses;
  const std::vector<double> second_half(all.begin() + steps / 2, all.end());
  const Plan on_host = machine_plan(workload, window(UpdateOverlap::NextForward, 1, 1), 1, gpipe, 2);
  const Plan on_disk = machine_plan(workload, zero_infinity(Tier::Disk), 1, gpipe, 2);
  for (const auto& [before, after] :
       {std::pair(&resident, &on_host), {&on_host, &resident}, {&on_host, &on_disk}, {&on_disk, &resident}}) {
    EXPECT_EQ(losses_after_resuming(workload, *before, *after, steps), second_half);
  }
}

TEST(Machine, TrainsOtherwiseWithUpdatesThatAreLateAndResumesThem)
{
  const Workload workload = trained_by(small_gpt());
  const Plan plan = machine_plan(workload, window(UpdateOverlap::Delayed, 0, 2, Tier::Disk), 1, gpipe, 2);
  const auto all = trained(workload, plan, Way::InProcess, options_for(steps)).losses;
  const auto exact = trained(workload, resident_plan(workload, 1, gpipe, 2), Way::InProcess, options_for(steps)).losses;
  EXPECT_EQ(all.front(), exact.front());
  EXPECT_NE(all[1], exact[1]);
  const std::vector<double> second_half(all.begin() + steps / 2, all.end());
  EXPECT_EQ(losses_after_resuming(workload, plan, plan, steps), second_half);
  RunOptions disturbed = options_for(steps);
  disturbed.disturb_copies = 1;
  EXPECT_EQ(trained(workload, plan, Way::InProcess, disturbed).losses, all);
}

TEST(Machine, WritesTheSameCheckpointsInEachStep)
{
  const Workload workload = trained_by(small_gpt());
  RunOptions options = options_for(steps);
  options.disturb_copies = 1;
  for (const System& system : {window(UpdateOverlap::NextForward, 0, 2, Tier::Disk), zero_offload()}) {
    const TemporaryFolder folder;
    options.checkpoints.folder = folder.path() / "checkpoints";
    options.checkpoints.every_steps = 1;
    options.checkpoints.keep = steps;
    trained(workload, machine_plan(workload, system, 1, gpipe, 1), Way::InProcess, options);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const Left expected = left_by(workload, resident_plan(workload, 1, gpipe, 1), options_for(step));
      const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(step);
      for (const auto& [name, values] : expected.tensors) EXPECT_EQ(checkpoint.read(name).data, values) << name;
    }
  }
}

/// Makes the scratch file of this process, which has no name, shorter.
void cut_scratch_file(const std::filesystem::path& folder)
{
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!target.starts_with(folder.string()) || target.find("(deleted)") == std::string::npos) continue;
    std::filesystem::resize_file(entry.path(), 0);
    return;
  }
  FAIL() << "no scratch file is open";
}

TEST(Machine, EndsWhenItsDiskFailsWithTheLastCheckpointIntact)
{
  const Workload workload = trained_by(small_gpt());
  const Plan plan = machine_plan(workload, zero_infinity(Tier::Disk), 1, gpipe, 1);
  const TemporaryFolder folder;
  const auto scratch = folder.path() / "scratch";
  std::filesystem::create_directory(scratch);
  RunOptions options = options_for(20);
  options.scratch = scratch;
  options.checkpoints.folder = folder.path() / "checkpoints";
  options.checkpoints.every_steps = 5;
  const auto cut_after_five = [&](const StepReport& step) {
    if (step.step >= 7) cut_scratch_file(scratch);  // again, since a write makes it longer
  };
  EXPECT_THAT([&] { trained(workload, plan, Way::InProcess, options, cut_after_five); },
              ThrowsMessage<EnvironmentError>(HasSubstr("the scratch file became shorter")));
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
  const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(5);
  checkpoint.verify();
}

TEST(Machine, ReservesItsDiskBeforeTheFirstStep)
{
  const Workload workload = trained_by(small_gpt());
  const Plan plan = machine_plan(workload, zero_infinity(Tier::Disk), 1, gpipe, 1);
  const auto never = [](const StepReport&) { FAIL() << "a step has begun"; };
  RunOptions options = options_for(2);
  options.scratch = "/no/such/folder";
  EXPECT_THAT([&] { trained(workload, plan, Way::InProcess, options, never); },
              ThrowsMessage<EnvironmentError>(HasSubstr("/no/such/folder: cannot write there")));
  const TemporaryFolder folder;
  options.scratch = folder.path();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small = {4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  EXPECT_THAT([&] { trained(workload, plan, Way::InProcess, options, never); },
              ThrowsMessage<EnvironmentError>(HasSubstr("has no space for a file of")));
  std::signal(SIGXFSZ, ignored);
  setrlimit(RLIMIT_FSIZE, &before);
}

/// For .ci/full: all systems, models, schedules and numbers of micro-batches and devices.
TEST(Machine, DISABLED_HasTheBitsOfRunsOnTheDeviceThroughout)
{
  for (const Workload& model : {trained_by(small_gpt()), trained_by(small_bert()), trained_by(small_tied_gpt())}) {
    for (const Workload& workload : {model, clipped(model)}) {
      for (const std::uint64_t microbatches : {1U, 2U, 4U}) {
        for (const std::size_t devices : {1U, 2U, 3U}) {
          if (devices > 1 && std::get_if<GptSizes>(&workload.model) && std::get<GptSizes>(workload.model).tied)
            continue;
          for (const ScheduleChoice& schedule : {gpipe, one_f_one_b}) {
            const Left expected = left_by(workload, resident_plan(workload, devices, schedule, microbatches));
            for (System system : exact_systems()) {
              if (system.inner.copies == Copies::Redundant && workload.training.clip_norm) continue;
              for (Residence* residence : {&system.inner, &system.ends}) {
                if (residence->gradient_slots == 0 || schedule == gpipe) continue;
                residence->gradient_slots = workload.layers.size();
              }
              EXPECT_EQ(left_by(workload, machine_plan(workload, system, devices, schedule, microbatches)), expected)
                  << workload.name << ", " << system.name << ", " << microbatches << ", " << devices << ", "
                  << schedule.name;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace isobar::exec::machine_test
