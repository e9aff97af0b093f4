#include "core/base/child_process.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "core/plan/plan.hpp"
#include "exec/data/dataset.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/model/batch.hpp"
#include "exec/net/secret.hpp"
#include "exec/run/run.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

namespace isobar::exec::training_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::TemporaryFolder;

const auto ignore_steps = [](const StepReport&) {};

using Way = MeasuredRun (*)(const Workload&, const Plan&, const Program&, const RunOptions&, const StepEnded&);
constexpr Way in_process = run_in_process;
constexpr Way over_tcp = run_in_processes;

RunOptions with_checkpoints(RunOptions options, const TemporaryFolder& folder, std::uint64_t every_steps)
{
  options.checkpoints.folder = folder.path() / "checkpoints";
  options.checkpoints.every_steps = every_steps;
  options.checkpoints.keep = 100;
  return options;
}

Plan split(const Workload& workload, std::size_t stages)
{
  return even_split(workload, stages, ChainSchedule::OneForwardOneBackward, 2);
}

MeasuredRun trained(const Workload& workload, const Plan& plan, Way way, const RunOptions& options,
                    const StepEnded& step_ended = ignore_steps)
{
  // A measured run refers to its program.
  static std::vector<std::unique_ptr<Program>> programs;
  programs.push_back(testing_support::unit_program(plan, workload));
  return way(workload, plan, *programs.back(), options, step_ended);
}

/// Resumes from the checkpoint of step `from`. `writes`: into the same folder, where `from` must be the newest one.
enum class Writes { Nothing, Checkpoints };
std::vector<double> resumed(const Workload& workload, const Plan& plan, Way way, RunOptions options, std::uint64_t from,
                            Writes writes = Writes::Nothing)
{
  const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(from);
  options.first_step = checkpoint.step();
  options.resume_from = &checkpoint;
  if (writes == Writes::Nothing) options.checkpoints.folder.clear();
  return trained(workload, plan, way, options).losses();
}

std::vector<double> tail(const std::vector<double>& losses, std::size_t first)
{
  return {losses.begin() + static_cast<std::ptrdiff_t>(first), losses.end()};
}

TEST(Training, ResumesFromACheckpointWithTheSameLossesForEveryOptimizer)
{
  for (const Optimizer optimizer : {Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam, Optimizer::AdamW}) {
    const TemporaryFolder folder;
    Workload workload = small_gpt();
    workload.optimizer = optimizer;
    workload.training.weight_decay = 0.1;
    workload.training.dropout = 0.1;
    const auto options = with_checkpoints(options_for(8), folder, 3);
    const auto whole = trained(workload, split(workload, 2), in_process, options).losses();
    EXPECT_EQ(CheckpointStore(options.checkpoints.folder).steps(), (std::vector<std::uint64_t>{3, 6, 8}));
    EXPECT_EQ(resumed(workload, split(workload, 2), in_process, options, 3), tail(whole, 3));
    EXPECT_EQ(resumed(workload, split(workload, 2), over_tcp, options, 6), tail(whole, 6));
  }
}

TEST(Training, ResumesWithTheLearningRateOfItsStep)
{
  for (const RateDecay decay : {RateDecay::Linear, RateDecay::Cosine}) {
    const TemporaryFolder folder;
    Workload workload = small_gpt();
    workload.optimizer = Optimizer::AdamW;
    workload.training.warmup_steps = 4;
    workload.training.decay = decay;
    workload.training.decay_steps = 7;
    const auto options = with_checkpoints(options_for(8), folder, 3);
    const auto whole = trained(workload, split(workload, 2), in_process, options).losses();
    EXPECT_EQ(resumed(workload, split(workload, 3), in_process, options, 3), tail(whole, 3)) << "in the warm-up";
    EXPECT_EQ(resumed(workload, split(workload, 2), over_tcp, options, 6), tail(whole, 6)) << "in the decay";
  }
}

TEST(Training, ResumesOnOtherNumbersOfStagesFromThreeToTwoToFour)
{
  const TemporaryFolder folder;
  const Workload workload = small_bert();
  const auto whole = trained(workload, split(workload, 3), over_tcp, options_for(12)).losses();
  auto options = with_checkpoints(options_for(4), folder, 0);
  EXPECT_EQ(trained(workload, split(workload, 3), over_tcp, options).losses(),
            (std::vector(whole.begin(), whole.begin() + 4)));
  options.steps = 8;
  EXPECT_EQ(resumed(workload, split(workload, 2), in_process, options, 4, Writes::Checkpoints),
            (std::vector(whole.begin() + 4, whole.begin() + 8)));
  options.steps = 12;
  EXPECT_EQ(resumed(workload, split(workload, 4), over_tcp, options, 8), tail(whole, 8));
}

TEST(Training, KeepsTheLossScaleOfHalfPrecision)
{
  const TemporaryFolder folder;
  Workload workload = small_bert();
  workload.dtype = DType::Float16;
  workload.layers.clear();
  build_bert(std::get<BertSizes>(workload.model), workload);
  const auto options = with_checkpoints(options_for(6), folder, 3);
  const auto whole = trained(workload, split(workload, 2), in_process, options).losses();
  EXPECT_EQ(resumed(workload, split(workload, 3), in_process, options, 3), tail(whole, 3));
  const auto checkpoint = CheckpointStore(options.checkpoints.folder).open(3);
  EXPECT_NE(checkpoint.find("loss_scale"), nullptr);
}

TEST(Training, WritesCheckpointsAtIntervalsOfTime)
{
  const TemporaryFolder folder;
  const Workload workload = small_gpt();
  auto options = with_checkpoints(options_for(5), folder, 0);
  options.checkpoints.every = Seconds(1e-9);
  trained(workload, split(workload, 2), in_process, options);
  EXPECT_EQ(CheckpointStore(options.checkpoints.folder).steps(), (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
}

TEST(Training, KeepsOnlyTheLastCheckpoints)
{
  const TemporaryFolder folder;
  const Workload workload = small_gpt();
  auto options = with_checkpoints(options_for(9), folder, 1);
  options.checkpoints.keep = 2;
  trained(workload, split(workload, 2), over_tcp, options);
  const CheckpointStore store(options.checkpoints.folder);
  EXPECT_EQ(store.newest_complete().step, 9u);
  // The other rank may have written its last parts after the first rank's clean-up.
  EXPECT_LE(store.steps().size(), 4u);
}

/// Requests a stop after four steps by a signal to one rank; returns the number of steps that are done.
std::uint64_t steps_until_stopped(const Plan& plan, Way way, RunOptions options, int signal)
{
  const auto train = [&] {
    catch_interrupts();
    const GracefulStop stop;
    options.stop = &stop;
    // After the request, steps take long enough for rank 0 to hear of it.
    const auto request_stop = [signal](const StepReport& step) {
      if (step.step == 3) std::raise(signal);
      if (step.step > 3) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    };
    return fmt::format("{}", trained(small_gpt(), plan, way, options, request_stop).steps());
  };
  return std::stoull(
      run_in_child(train, Seconds(120)).output_or_throw());  // a child, since a request stays with its process
}

TEST(Training, EndsAfterTheCurrentStepOnRequest)
{
  for (const Way way : {in_process, over_tcp}) {
    for (const bool has_data_server : {false, true}) {
      for (const std::size_t stages : {1U, 3U}) {
        const TemporaryFolder folder;
        const auto options = with_checkpoints(options_for(1'000'000), folder, 0);
        Plan plan = split(small_gpt(), stages);
        if (has_data_server) plan.data_server = "server";
        const std::uint64_t steps = steps_until_stopped(plan, way, options, has_data_server ? SIGUSR1 : SIGTERM);
        // Rank 0 may have begun the next step already.
        EXPECT_GE(steps, 4u);
        EXPECT_LE(steps, 7u);
        EXPECT_EQ(CheckpointStore(options.checkpoints.folder).newest_complete().step, steps);
      }
    }
  }
}

TEST(Training, EndsOnTheRequestOfAnyRankAfterTheSameStepOnAll)
{
  const TemporaryFolder folder;
  const Workload workload = small_gpt();
  Plan plan = split(workload, 3);
  plan.data_server = "server";
  const auto program = testing_support::unit_program(plan, workload);
  for (std::size_t asking = 0; asking < program->ranks(); ++asking) {
    std::vector<Endpoint> endpoints;
    std::vector<TcpListener> listeners;
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      listeners.emplace_back(Endpoint{"127.0.0.1", 0});
      endpoints.push_back({"127.0.0.1", listeners.back().port()});
    }
    const auto secret = random_secret();
    auto options = with_checkpoints(options_for(1'000'000), folder, 5);
    options.checkpoints.folder += std::to_string(asking);
    const CheckpointStore store(options.checkpoints.folder);
    std::vector<std::function<std::string()>> work;
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      work.emplace_back([&, rank] {
        catch_interrupts();
        const GracefulStop stop;  // of this process alone
        RunOptions mine = options;
        mine.stop = &stop;
        std::jthread request;
        if (rank == asking) {
          request = std::jthread([&store] {
            while (!store.newest_complete().step) std::this_thread::sleep_for(std::chrono::milliseconds(10));
            ::kill(::getpid(), SIGTERM);
          });
        }
        RankPlace place{rank, endpoints, secret, std::move(listeners[rank])};
        listeners.clear();  // closes this process's copies
        return std::to_string(run_rank(workload, plan, *program, std::move(place), mine, ignore_steps).steps_done);
      });
    }
    const auto results = run_in_children(work, work.size(), Seconds(120));
    for (const auto& result : results) {
      ASSERT_FALSE(result.failure) << result.failure->text;
      EXPECT_EQ(result.output, results.front().output) << "asked by rank " << asking;
    }
    const std::uint64_t steps = std::stoull(results.front().output);
    EXPECT_GE(steps, 5U);
    EXPECT_LT(steps, 1'000'000U);
    EXPECT_EQ(store.newest_complete().step, steps);
  }
}

TEST(Training, WritesTheFilesOfAllStagesOfARank)
{
  const TemporaryFolder folder;
  const Workload workload = small_gpt();
  Plan folded = even_split_over(workload, 4, {"interleaved"}, 4, [](std::size_t stage) { return stage % 2; });
  const auto options = with_checkpoints(options_for(6), folder, 3);
  for (const Way way : {in_process, over_tcp}) {
    const auto whole = trained(workload, folded, way, options).losses();
    const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(3);
    EXPECT_EQ(checkpoint.stages(), 4U);
    EXPECT_EQ(resumed(workload, folded, way, options, 3), tail(whole, 3));
    const Plan unfolded = even_split(workload, 3, ChainSchedule::OneForwardOneBackward, 4);
    EXPECT_EQ(resumed(workload, unfolded, way, options, 3), tail(whole, 3));
    folded.goal.schedule = {"zero-bubble-v"};
    folded.stages[2].replicas.swap(folded.stages[3].replicas);
    EXPECT_EQ(resumed(workload, folded, way, options, 3), tail(whole, 3));
    folded.goal.schedule = {"interleaved"};
    folded.stages[2].replicas.swap(folded.stages[3].replicas);
    std::filesystem::remove_all(options.checkpoints.folder);
  }
}

TEST(Training, TakesItsMicroBatchesFromADataServer)
{
  const Workload workload = small_bert();
  for (const std::uint64_t microbatches : {1U, 2U, 3U}) {
    Plan plan = even_split(workload, 2, ChainSchedule::Sequential, microbatches);
    plan.data_server = "server";
    at::set_num_threads(1);
    PlainLoop loop(workload, seed, microbatches);
    std::vector<double> expected;
    for (int step = 0; step < 20; ++step) expected.push_back(loop.step());
    EXPECT_EQ(trained(workload, plan, in_process, options_for(20)).losses(), expected);
    EXPECT_EQ(trained(workload, plan, over_tcp, options_for(20)).losses(), expected);
  }
}

TEST(Training, EndsWithoutACheckpointWhenTheLossIsNotFinite)
{
  const TemporaryFolder folder;
  Workload workload = small_gpt();
  workload.optimizer = Optimizer::Sgd;
  workload.training.learning_rate = 1e30;
  const auto options = with_checkpoints(options_for(50), folder, 1);
  for (const Way way : {in_process, over_tcp}) {
    EXPECT_THAT([&] { trained(workload, split(workload, 2), way, options); },
                ThrowsMessage<InputError>(AllOf(HasSubstr("step "), HasSubstr("; training has diverged"))));
    const CheckpointStore store(options.checkpoints.folder);
    const auto step = store.newest_complete().step;
    ASSERT_TRUE(step.has_value());
    for (const auto& name : store.open(*step).names()) EXPECT_FALSE(name.empty());
    std::filesystem::remove_all(options.checkpoints.folder);
  }
}

TEST(Training, NamesWhatACheckpointOfAnotherModelLacks)
{
  const TemporaryFolder folder;
  const auto options = with_checkpoints(options_for(2), folder, 0);
  trained(small_gpt(), split(small_gpt(), 2), in_process, options);
  EXPECT_THAT([&] { resumed(small_bert(), split(small_bert(), 2), in_process, options, 2); },
              ThrowsMessage<InputError>(HasSubstr("step-00000002")));
  Workload wider = small_gpt();
  auto sizes = std::get<GptSizes>(wider.model);
  sizes.vocabulary += 1;
  wider.model = sizes;
  wider.layers.clear();
  build_gpt(sizes, wider);
  EXPECT_THAT([&] { resumed(wider, split(wider, 2), in_process, options, 2); },
              ThrowsMessage<InputError>(AllOf(HasSubstr("step-00000002"),
                                              HasSubstr(R"(tensor "layers.0.words" is F32 [40, 16])"),
                                              HasSubstr("the workload's is F32 [41, 16]"))));
}

TEST(Training, ComparesShapesOfACheckpointBeforeItAllocatesTensors)
{
  const TemporaryFolder folder;
  const auto options = with_checkpoints(options_for(2), folder, 0);
  const Workload workload = small_gpt();
  constexpr std::uint64_t many = std::uint64_t{1} << 53U;
  StageSnapshot snapshot{.step = 1, .last_layer = workload.layers.size() - 1, .tensors = {}};
  snapshot.tensors.push_back({{"layers.0.words", ElementType::F32, {0, many, many, many}}, {}});
  CheckpointStore(options.checkpoints.folder).write(snapshot);
  EXPECT_THAT([&] { resumed(workload, split(workload, 2), in_process, options, 1); },
              ThrowsMessage<InputError>(HasSubstr(R"(tensor "layers.0.words" is F32 [0, 9007199254740992, )")));
}

TEST(Training, EndsWhenACheckpointCannotBeWritten)
{
  const TemporaryFolder folder;
  const Workload workload = small_gpt();
  auto options = with_checkpoints(options_for(2), folder, 0);
  trained(workload, split(workload, 2), in_process, options);
  options.checkpoints.folder = "/proc/checkpoints";
  EXPECT_THROW(trained(workload, split(workload, 2), in_process, options), EnvironmentError);
}

/// Repeats a few short sentences.
class Parrot final : public Dataset {
 public:
  explicit Parrot(const Workload& workload) : sequence_(workload.sequence) {}
  std::uint64_t samples() const override { return 5; }
  Batch batch(std::uint64_t, std::uint64_t first, std::uint64_t count) const override
  {
    return of(first % samples(), count, samples());
  }
  Batch evaluation_batch(std::uint64_t first, std::uint64_t count) const override { return of(first, count, 0); }

 private:
  /// `wraps`: 0 if samples beyond the end have no labels.
  Batch of(std::uint64_t first, std::uint64_t count, std::uint64_t wraps) const
  {
    Batch batch;
    batch.samples = count;
    batch.sequence = sequence_;
    for (std::uint64_t sample = first; sample < first + count; ++sample) {
      for (std::uint64_t i = 0; i < sequence_; ++i) {
        batch.tokens.push_back(static_cast<std::int64_t>((sample % samples() + i) % 7));
        const bool is_labelled = wraps > 0 || sample < samples();
        batch.labels.push_back(is_labelled ? static_cast<std::int64_t>((sample % samples() + i + 1) % 7)
                                           : ignored_label);
      }
    }
    return batch;
  }

  std::uint64_t sequence_;
};

TEST(Training, EvaluatesOnRanksWithSeveralStages)
{
  const Workload workload = small_gpt();
  const Parrot parrot(workload);
  const auto batches = dataset_batches(workload, parrot, 4);
  std::optional<EvaluationSums> first;
  for (const Way way : {in_process, over_tcp}) {
    for (const bool has_data_server : {false, true}) {
      Plan one = even_split(workload, 1, ChainSchedule::Sequential, 4);
      Plan folded = even_split_over(workload, 4, {"interleaved"}, 4, [](std::size_t stage) { return stage % 2; });
      Plan v = even_split_over(workload, 4, {"zero-bubble-v"}, 4,
                               [](std::size_t stage) { return stage < 2 ? stage : 3 - stage; });
      for (Plan* plan : {&one, &folded, &v}) {
        if (has_data_server) plan->data_server = "server";
        auto options = options_for(2);
        options.batches = batches.get();
        options.evaluation = batches.get();
        options.evaluation_steps = 3;
        const auto sums = trained(workload, *plan, way, options).evaluation();
        ASSERT_TRUE(sums.has_value());
        if (!first) first = sums;
        EXPECT_EQ(sums->loss, first->loss);
        EXPECT_EQ(sums->labels, first->labels);
        EXPECT_EQ(sums->correct, first->correct);
      }
    }
  }
}

TEST(Training, LearnsADatasetAndEvaluatesItTheSameOnEverySplit)
{
  Workload workload = small_gpt();
  workload.optimizer = Optimizer::Adam;
  workload.training.learning_rate = 0.01;
  workload.training.dropout = 0.1;
  const Parrot parrot(workload);
  const auto training = dataset_batches(workload, parrot, 2);
  const auto evaluation = dataset_batches(workload, parrot, 2);
  std::optional<EvaluationSums> first;
  for (const Way way : {in_process, over_tcp}) {
    for (const std::size_t stages : {1U, 3U}) {
      for (const bool has_data_server : {false, true}) {
        auto options = options_for(60);
        options.batches = training.get();
        options.evaluation = evaluation.get();
        options.evaluation_steps = 20;  // of 4 samples: all except the first 5 are beyond the end
        Plan plan = split(workload, stages);
        if (has_data_server) plan.data_server = "server";
        const auto measured = trained(workload, plan, way, options);
        const auto sums = measured.evaluation();
        ASSERT_TRUE(sums.has_value());
        EXPECT_EQ(sums->labels, 5 * 8);
        EXPECT_GT(sums->correct, 30);
        EXPECT_LT(sums->loss / sums->labels, measured.losses().front() / 2);
        if (!first) first = sums;
        EXPECT_EQ(sums->loss, first->loss);
        EXPECT_EQ(sums->correct, first->correct);
      }
    }
  }
}

}  // namespace
}  // namespace isobar::exec::training_test
