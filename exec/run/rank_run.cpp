#include "exec/run/rank_run.hpp"

#include "exec/run/outer_rank.hpp"
#include "exec/run/run_devices.hpp"

#include "core/base/clock.hpp"
#include "exec/device/device.hpp"
#include "exec/files/huggingface_weights.hpp"
#include "exec/files/weight_files.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/run/stage_checkpoints.hpp"
#include "schedules/evaluation.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <cmath>
#include <optional>
#include <utility>

namespace isobar::exec {

namespace {

/// Decides for rank 0, and so for all, whether a step is the last one and whether a checkpoint follows it.
class StepDecisions {
 public:
  explicit StepDecisions(const RunOptions& options) : options_(options), checkpoint_at_(steady_time()) {}

  StepControl operator()(std::uint64_t step, bool stop_requested)
  {
    const auto& checkpoints = options_.checkpoints;
    const std::uint64_t done = step + 1;
    StepControl control;
    control.end = done == options_.steps || stop_requested;
    if (checkpoints.folder.empty()) return control;
    const bool by_steps = checkpoints.every_steps > 0 && done % checkpoints.every_steps == 0;
    const bool by_time = checkpoints.every > Seconds(0) && steady_time() - checkpoint_at_ >= checkpoints.every;
    control.checkpoint = by_steps || by_time || control.end;
    if (control.checkpoint) checkpoint_at_ = steady_time();
    return control;
  }

 private:
  const RunOptions& options_;
  Seconds checkpoint_at_;
};

RankOptions rank_options(const RunContext& context, std::size_t rank, Progress* progress)
{
  const RunOptions& options = context.options;
  RankOptions result;
  result.batches = options.batches ? options.batches : context.synthetic.get();
  result.control = StepDecisions(options);
  if (options.stop) result.stop_requested = [&options] { return options.stop->requested(); };
  result.timed_before = options.first_step + timed_steps(context.program);
  result.turns = options.turns;
  result.first_step = options.first_step;
  result.seed = options.seed;
  result.device = options.device;
  result.progress = progress;
  result.threads = options.threads;
  result.scratch = options.scratch;
  result.disturbed = options.disturb_copies;
  if (const auto shards = shards_of_rank(context.plan, rank); options.emulate && !shards.empty()) {
    const Shard& device = shard_of(context.plan, shards.front());
    result.slowdown = device.slowdown.value_or(1);
    result.takes_known_times = emulated_speed(context.plan, options, rank).has_value();
    result.memory_cap = device.memory.value_or(Bytes(0));
    if (!options.machines.empty()) result.machine = options.machines.at(rank);
  }
  return result;
}

/// For its lifetime, a rank takes part in the turns of a mix, unless it leaves them before.
class TakesPart {
 public:
  explicit TakesPart(RankExecutor& executor) : executor_(executor) { executor_.join_turns(); }
  TakesPart(const TakesPart&) = delete;
  TakesPart& operator=(const TakesPart&) = delete;
  ~TakesPart() { executor_.leave_turns(); }

 private:
  RankExecutor& executor_;
};

bool has_steps_to_train(const RunOptions& options)
{
  return options.first_step < options.steps;
}

void evaluate(const RunContext& context, std::size_t rank, RankExecutor& executor, RankReport& report,
              const Failed& failed)
{
  const auto ignore = [](std::uint64_t, Seconds, std::optional<double>) {};
  executor.begin_evaluation(*context.evaluation, *context.options.evaluation, context.options.evaluation_steps);
  const auto ended = [&](std::uint64_t step) { executor.end_step(step, ignore); };
  play(*context.evaluation, rank, 0, executor, nullptr, ended, failed);
  if (!executor.has_last_stage() || evaluation_is_cut(context.options, executor)) return;
  executor.with_models([&](std::size_t stage, StageModel& model) {
    if (stage + 1 == context.plan.stages.size()) report.evaluation = model.take_evaluation();
  });
}

}  // namespace

RunContext::RunContext(const Workload& run_workload, const Plan& run_plan, const Program& run_program,
                       const RunOptions& run_options, std::string id)
    : workload(run_workload),
      plan(run_plan),
      program(run_program),
      options(run_options),
      run_id(std::move(id)),
      synthetic(synthetic_batches(run_workload))
{
  if (options.weights && !options.resume_from) check_weights(workload, *options.weights);
  if (options.evaluation) evaluation = schedules::make_evaluation_program(plan, workload, run_devices(plan, options));
  constexpr Seconds patience(30);
  Seconds predicted = plan.predicted ? plan.predicted->step_time : Seconds(0);
  if (options.turns != nullptr) predicted = options.turns->round;
  lateness = std::make_unique<Lateness>(predicted, patience, options.warn);
}

std::unique_ptr<RankExecutor> make_executor(const RunContext& context, std::size_t rank, Progress* progress)
{
  const RunOptions& options = context.options;
  auto executor = std::make_unique<RankExecutor>(context.workload, context.plan, context.program, rank,
                                                 rank_options(context, rank, progress));
  if (options.resume_from) {
    executor->with_models([&](std::size_t, StageModel& model) { model.restore(*options.resume_from); });
  } else if (options.weights) {
    executor->with_models([&](std::size_t stage, StageModel& model) {
      for (const auto& name : model.load(*options.weights)) {
        if (!executor->has_first_shard(stage)) continue;  // which says it
        options.info(fmt::format("{}: has no {}, which is newly initialised", options.weights->where(), name));
      }
    });
  }
  return executor;
}

RankReport play_rank(const RunContext& context, std::size_t rank, RankExecutor& executor, const StepEnded& step_ended,
                     Progress* progress, const Failed& failed)
{
  const RunOptions& options = context.options;
  set_computing_threads(options.threads);
  RankReport report = RankReport::of(context.program, rank);
  RankRecorder recorder(report, options.first_step + timed_steps(context.program));
  StageCheckpoints checkpoints(context.plan, options, context.run_id, rank);
  std::optional<OuterRank> outer;
  const bool has_stages = rank < devices_of(context.plan).size();
  if (options.outer != nullptr && has_stages) outer.emplace(*options.outer, rank, executor);
  const TakesPart takes_part(executor);
  Seconds before = steady_time();
  const auto ended = [&](std::uint64_t step, Seconds end, std::optional<double> loss) {
    if (!loss) return;
    if (!std::isfinite(*loss)) throw diverged(step, fmt::format("the loss is {}", *loss));
    report.losses.push_back(*loss);
    step_ended({step, *loss, end - std::exchange(before, end), learning_rate_at(context.workload.training, step),
                executor.peak_memory()});
  };
  const auto step_done = [&](std::uint64_t step) {
    executor.end_step(step, ended);
    if (rank == 0) context.lateness->step_ends();
    checkpoints.step_ended();
    const StepControl control = executor.control_of(step);
    if (control.end) executor.leave_turns();
    if (control.checkpoint) {
      executor.catch_up(ended);  // throws before a diverged step is saved
      const Progress::Work work(progress, step, "checkpoint");
      checkpoints.begin(step + 1);
      executor.with_models([&](std::size_t stage, StageModel& model) {
        if (checkpoints.writes(stage)) checkpoints.write(stage, model);
      });
    }
    if (outer) {
      const Progress::Work work(progress, step, "outer sync");
      outer->step_ended(step, executor);
    }
    if (rank == 0 && !control.end) context.lateness->step_begins(step + 1);
  };
  if (has_steps_to_train(options)) {
    if (rank == 0) context.lateness->step_begins(options.first_step);
    const ProcessorWait processor_wait;
    play(context.program, rank, options.first_step, executor, &recorder, step_done, failed);
    report.processor_wait_fraction = processor_wait.fraction();
  }
  executor.finish(ended, report);
  // The last checkpoint is written during the evaluation, so no rank's transfers wait for another rank's disk.
  if (options.evaluation && steps_done(options, executor) >= options.steps) {
    evaluate(context, rank, executor, report, failed);
  }
  checkpoints.finish();
  return report;
}

std::uint64_t steps_done(const RunOptions& options, const RankExecutor& executor)
{
  return has_steps_to_train(options) ? executor.steps_done() : options.first_step;
}

bool evaluation_is_cut(const RunOptions& options, const RankExecutor& executor)
{
  return options.evaluation && executor.steps_evaluated() < options.evaluation_steps;
}

}  // namespace isobar::exec
