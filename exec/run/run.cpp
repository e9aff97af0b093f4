#include "exec/run/run.hpp"

#include "core/base/child_process.hpp"
#include "core/base/clock.hpp"
#include "core/base/files.hpp"
#include "core/base/threads.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/huggingface_weights.hpp"
#include "exec/files/weight_files.hpp"
#include "exec/launch/heartbeat.hpp"
#include "exec/launch/lateness.hpp"
#include "exec/launch/progress.hpp"
#include "exec/launch/rank_failures.hpp"
#include "exec/model/device.hpp"
#include "exec/net/side_channel.hpp"
#include "exec/run/nccl_transport.hpp"
#include "exec/run/rank_executor.hpp"
#include "exec/run/tcp_transport.hpp"
#include "schedules/evaluation.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

/// Where nobody is waited for by the clock: threads live and die together, and that a process lives, its heart says.
constexpr Seconds no_limit(1e9);

/// What all ranks of a run share.
struct Job {
  Job(const Workload& workload_, const Plan& plan_, const Program& program_, const RunOptions& options_,
      std::string run_id_)
      : workload(workload_),
        plan(plan_),
        program(program_),
        options(options_),
        run_id(std::move(run_id_)),
        synthetic(synthetic_batches(workload_))
  {
    if (options.weights && !options.resume_from) check_weights(workload, *options.weights);
    if (options.evaluation) evaluation = schedules::make_evaluation_program(plan, workload);
    constexpr Seconds patience(30);
    const Seconds predicted = plan.predicted ? plan.predicted->step_time : Seconds(0);
    lateness = std::make_unique<Lateness>(predicted, patience, options.warn);
  }

  const Workload& workload;
  const Plan& plan;
  const Program& program;
  const RunOptions& options;
  std::string run_id;  ///< by which ranks that are processes know each other; "" of threads
  std::unique_ptr<BatchSource> synthetic;
  std::unique_ptr<Program> evaluation;
  std::unique_ptr<Lateness> lateness;  ///< told by rank 0
};

/// Decides for the first stage, and so for all: whether a step is the last one, and whether a checkpoint follows it.
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

RankOptions rank_options(const Job& job, std::size_t rank, Progress* progress)
{
  const RunOptions& options = job.options;
  RankOptions of_rank;
  of_rank.batches = options.batches ? options.batches : job.synthetic.get();
  of_rank.control = StepDecisions(options);
  if (options.stop) of_rank.stop_requested = [&options] { return options.stop->asked(); };
  of_rank.timed_before = options.first_step + timed_steps(job.program);
  of_rank.seed = options.seed;
  of_rank.device = options.device;
  of_rank.progress = progress;
  if (options.emulate && rank < job.plan.stages.size()) {
    const StageDevice& device = job.plan.stages[rank].devices.front();
    of_rank.slowdown = device.slowdown.value_or(1);
    constexpr double as_it_is = 1 + 1e-9;
    if (options.profiled_speed && of_rank.slowdown > as_it_is)
      of_rank.speed = *options.profiled_speed / of_rank.slowdown;
    of_rank.memory_cap = device.memory.value_or(Bytes(0));
  }
  return of_rank;
}

/// A rank with its part of the model, at the step that the run begins with.
std::unique_ptr<RankExecutor> make_executor(const Job& job, std::size_t rank, Progress* progress = nullptr)
{
  auto executor = std::make_unique<RankExecutor>(job.workload, job.plan, rank, rank_options(job, rank, progress));
  const bool is_stage = rank < job.plan.stages.size();
  if (is_stage && job.options.resume_from) {
    executor->with_model([&](StageModel& model) { model.restore(*job.options.resume_from); });
  } else if (is_stage && job.options.weights) {
    executor->with_model([&](StageModel& model) {
      for (const auto& name : model.load(*job.options.weights)) {
        job.options.tell(fmt::format("{}: has no {}, which begins anew", job.options.weights->where(), name));
      }
    });
  }
  return executor;
}

InputError diverged(std::uint64_t step, const std::string& what)
{
  return {fmt::format("step {}", step),
          what + "; training has diverged, and a smaller learning_rate, or a clip_norm, may help"};
}

/// A stage's part of each checkpoint. Rank 0 throws old ones away.
class StageCheckpoints {
 public:
  StageCheckpoints(const Job& job, std::size_t rank)
      : job_(job), rank_(rank), writer_(CheckpointStore(job.options.checkpoints.folder), kept(job, rank))
  {
    // All ranks are here, and none of them ends a step before rank 0 has begun it.
    const auto& folder = job.options.checkpoints.folder;
    if (rank != 0 || folder.empty()) return;
    const CheckpointStore store(folder);
    store.require_writable();
    store.clear_later_than(job.options.first_step);
    if (!job.run_id.empty()) write_file_atomically(run_id_file(), job.run_id);
  }

  /// Finds out what has gone wrong meanwhile.
  void step_ended()
  {
    writer_.throw_if_failed();
    if (!std::exchange(is_first_step_, false) || rank_ == 0 || rank_ >= job_.plan.stages.size()) return;
    if (!job_.run_id.empty() && !job_.options.checkpoints.folder.empty()) find_rank_zero();
  }

  void write(std::uint64_t steps_done, const StageModel& model)
  {
    writer_.finish();  // so that no two are in memory
    if (const auto name = model.not_finite(); !name.empty()) throw diverged(steps_done - 1, name + " is not finite");
    const Stage& stage = job_.plan.stages[rank_];
    StageSnapshot snapshot;
    snapshot.step = steps_done;
    snapshot.stage = rank_;
    snapshot.stages = job_.plan.stages.size();
    snapshot.first_layer = stage.first_layer;
    snapshot.last_layer = stage.last_layer;
    snapshot.run = job_.options.checkpoints.run;
    snapshot.tensors = model.state();
    writer_.write(std::move(snapshot));
  }
  void finish() { writer_.finish(); }

 private:
  static std::optional<std::size_t> kept(const Job& job, std::size_t rank)
  {
    return rank == 0 ? std::optional(job.options.checkpoints.keep) : std::nullopt;
  }

  /// Where rank 0 says which run writes into the folder.
  std::filesystem::path run_id_file() const
  {
    return std::filesystem::path(job_.options.checkpoints.folder) / ".isobar-run";
  }

  /// Parts in folders that only have the same name never are a checkpoint.
  void find_rank_zero() const
  {
    constexpr Seconds patience(10);  // for a network's file system
    constexpr std::chrono::milliseconds pause(100);
    const auto file = run_id_file();
    for (const Seconds begin = steady_time(); !std::filesystem::exists(file) || read_file(file) != job_.run_id;) {
      if (steady_time() - begin > patience) {
        throw InputError(job_.options.checkpoints.folder,
                         "rank 0 writes its checkpoints to another folder; name one that all ranks share");
      }
      std::this_thread::sleep_for(pause);
    }
  }

  const Job& job_;
  std::size_t rank_;
  bool is_first_step_ = true;
  AsyncCheckpointWriter writer_;
};

bool has_steps_to_train(const RunOptions& options)
{
  return options.first_step < options.steps;
}

/// Of a rank that has come to its end.
std::uint64_t steps_done(const RunOptions& options, const RankExecutor& executor)
{
  return has_steps_to_train(options) ? executor.steps_done() : options.first_step;
}

bool evaluation_is_cut(const RunOptions& options, const RankExecutor& executor)
{
  return options.evaluation && executor.steps_evaluated() < options.evaluation_steps;
}

/// Told at once of what failed in a rank's lanes, though one of them be busy.
using Failed = std::function<void(const std::exception_ptr& failure)>;

void evaluate(const Job& job, std::size_t rank, RankExecutor& executor, RankReport& report, const Failed& failed)
{
  const auto nobody = [](std::uint64_t, Seconds, std::optional<double>) {};
  executor.begin_evaluation(*job.options.evaluation, job.options.evaluation_steps);
  const auto ended = [&](std::uint64_t step) { executor.end_step(step, nobody); };
  play(*job.evaluation, rank, 0, executor, nullptr, ended, failed);
  if (rank + 1 != job.plan.stages.size() || evaluation_is_cut(job.options, executor)) return;
  executor.with_model([&](StageModel& model) { report.evaluation = model.take_evaluation(); });
}

/// Of the calling thread's computation. Torch's own function is no function for several threads of a forked process.
void set_threads(std::size_t threads)
{
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  at::set_num_threads(static_cast<int>(threads));
}

/// Plays one rank to the end over its transport. `progress`: nullptr where nobody asks.
RankReport play_rank(const Job& job, std::size_t rank, RankExecutor& executor, const StepEnded& step_ended,
                     Progress* progress = nullptr, const Failed& failed = {})
{
  const RunOptions& options = job.options;
  set_threads(options.threads);
  RankReport report;
  RankRecorder recorder(report, options.first_step + timed_steps(job.program));
  StageCheckpoints checkpoints(job, rank);
  Seconds before = steady_time();
  const auto ended = [&](std::uint64_t step, Seconds end, std::optional<double> loss) {
    if (!loss) return;
    if (!std::isfinite(*loss)) throw diverged(step, fmt::format("the loss is {}", *loss));
    report.losses.push_back(*loss);
    step_ended(
        {step, *loss, end - std::exchange(before, end), job.workload.training.learning_rate, executor.peak_memory()});
  };
  const auto step_done = [&](std::uint64_t step) {
    executor.end_step(step, ended);
    if (rank == 0) job.lateness->step_ends();
    checkpoints.step_ended();
    const StepControl control = executor.orders_of(step);
    if (control.checkpoint) {
      executor.catch_up(ended);  // a step that has diverged is not kept
      const Progress::Work work(progress, step, "checkpoint");
      executor.with_model([&](StageModel& model) { checkpoints.write(step + 1, model); });
    }
    if (rank == 0 && !control.end) job.lateness->step_begins(step + 1);
  };
  if (has_steps_to_train(options)) {
    if (rank == 0) job.lateness->step_begins(options.first_step);
    const ProcessorWait processor_wait;
    play(job.program, rank, options.first_step, executor, &recorder, step_done, failed);
    report.processor_wait_fraction = processor_wait.fraction();
  }
  executor.finish(ended, report);
  // The last checkpoint is being written meanwhile: nobody's transfers wait for another one's disk.
  if (options.evaluation && steps_done(options, executor) >= options.steps)
    evaluate(job, rank, executor, report, failed);
  checkpoints.finish();
  return report;
}

}  // namespace

MeasuredRun run_in_process(const Workload& workload, const Plan& plan, const Program& program,
                           const RunOptions& options, const StepEnded& step_ended)
{
  const Job job(workload, plan, program, options, "");
  const auto transports = in_process_transports(program.ranks(), plan.stages.size(), no_limit);
  std::vector<std::unique_ptr<RankExecutor>> executors;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    executors.push_back(make_executor(job, rank));
    executors.back()->connect(*transports[rank]);
  }
  const NoHostSync no_host_sync(options.device);
  std::vector<RankReport> reports(program.ranks());
  std::mutex mutex;
  std::exception_ptr cause;
  const auto end_all = [&](std::size_t rank) {
    {
      const std::lock_guard lock(mutex);
      if (!cause) cause = std::current_exception();
    }
    executors[rank]->cancel();  // the others are not to wait for it
  };
  const auto play_one = [&](std::size_t rank) {
    try {
      reports[rank] = play_rank(job, rank, *executors[rank], step_ended);
    } catch (const std::exception& error) {
      // Whoever is cancelled is so since another rank has failed, which says why.
      if (failure_of(error).kind != Failure::Kind::Cancelled) end_all(rank);
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t rank = 1; rank < program.ranks(); ++rank) {
        threads.push_back(start_thread([&play_one, rank] { play_one(rank); }));
      }
    } catch (const EnvironmentError&) {
      end_all(0);
    }
    play_one(0);
  }
  if (cause) std::rethrow_exception(cause);
  return {program, options.first_step, std::move(reports)};
}

namespace {

TcpOptions tcp_options(TcpOptions tcp, const RunOptions& options, const Plan& plan, const std::string& run_id)
{
  tcp.flows = options.flows;
  // Ranks of another choice would wait for what is never said.
  tcp.run_id = fmt::format("{} by {}", run_id, name_of(options.transport));
  tcp.first_step = options.first_step;
  tcp.connect_deadline = options.limits.connect;
  tcp.connect_option = "twice --deadline";
  tcp.all_reduce_ranks = plan.stages.size();
  if (tcp.tls && options.transport == TransportChoice::Nccl) {
    throw InputError("--transport",
                     "nccl encrypts nothing; it goes without --tls, with --plain-text to other machines");
  }
  return tcp;
}

/// What the ranks of one attempt have in common.
std::string run_id_at_step(const TcpOptions& tcp)
{
  return fmt::format("{} from step {}", tcp.run_id, tcp.first_step);
}

/// NCCL listens while its communicators begin, and knows no secret: on the loopback interface where none of them leaves
/// the machine, unless the user says another one. Before this process has threads.
void confine_nccl(const RunOptions& options, const std::vector<Endpoint>& places)
{
  const bool stays_here =
      std::all_of(places.begin(), places.end(), [](const Endpoint& place) { return is_loopback(place.host); });
  const bool is_confined = options.transport == TransportChoice::Auto || stays_here;
  if (options.transport != TransportChoice::Tcp && is_confined) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

std::string random_word()
{
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// The links of a rank of a run, and those of all ranks' signs of life.
std::vector<LinkName> links_of_run(const Program& program, std::size_t rank)
{
  auto links = links_of(program, rank);
  for (const auto& link : Heartbeat::links(program.ranks())) links.push_back(link);
  return links;
}

std::unique_ptr<Transport> transport_of(TcpWorld& world, const Heartbeat& heartbeat, const Job& job, std::size_t rank,
                                        bool on_gpu)
{
  const RunOptions& options = job.options;
  const std::size_t stages = job.plan.stages.size();
  const TransferWaits waits(options.limits, [&heartbeat] { return heartbeat.idle(); });
  if (options.transport == TransportChoice::Tcp || rank >= stages) {
    return tcp_transport(rank, world, waits, on_gpu);
  }
  return nccl_transport(rank, world, job.program,
                        {options.transport, options.device, stages, options.limits.connect, options.tell}, waits);
}

/// Plays one rank of a world, from its parameters on, and leaves its executor in `made`.
RankReport play_over(TcpWorld& world, Heartbeat& heartbeat, Progress& progress, const Job& job, std::size_t rank,
                     std::unique_ptr<RankExecutor>& made, const StepEnded& step_ended)
{
  made = make_executor(job, rank, &progress);
  RankExecutor& executor = *made;
  // One stage may read for minutes what another one has at once; nobody's deadline runs meanwhile.
  world.wait_for_all(no_limit);
  const auto transport = transport_of(world, heartbeat, job, rank, executor.is_on_gpu());
  executor.connect(*transport);
  const NoHostSync no_host_sync(job.options.device);
  return play_rank(job, rank, executor, step_ended, &progress,
                   [&](const std::exception_ptr& failure) { heartbeat.failed(failure); });
}

}  // namespace

MeasuredRun run_in_processes(const Workload& workload, const Plan& plan, const Program& program,
                             const RunOptions& options, const StepEnded& step_ended)
{
  const auto tcp = tcp_options(tcp_options_of_own_ranks(options.network), options, plan, random_word());
  const Job job(workload, plan, program, options, run_id_at_step(tcp));
  const auto names = names_of_ranks(plan);
  std::vector<Endpoint> endpoints;
  std::vector<TcpListener> listeners;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    listeners.emplace_back(Endpoint{"127.0.0.1", 0});
    endpoints.push_back({"127.0.0.1", listeners.back().port()});
  }
  confine_nccl(options, endpoints);
  const auto beaten = [&job](const std::string& longest) { job.lateness->look(longest); };
  std::vector<std::function<std::string()>> work;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    work.emplace_back([&, rank] {
      if (options.stop) catch_interrupts();  // a request to one rank ends them all in good order
      TcpListener own = std::move(listeners[rank]);
      listeners.clear();  // the others' are theirs alone, so that a rank that dies is gone
      std::unique_ptr<RankExecutor> executor;
      TcpWorld world(rank, endpoints, links_of_run(program, rank), tcp, std::move(own));
      Progress progress([&world] { return world.moves(); });
      Heartbeat heartbeat(world, rank, names, options.limits, progress, beaten);
      RankReport report;
      heartbeat.guard([&] { report = play_over(world, heartbeat, progress, job, rank, executor, step_ended); });
      return report_to_json(report);
    });
  }
  // Whoever fails closes its connections, and the others fail after it, though they may end before it.
  RankFailures failures(names);
  const auto ended = [&](std::size_t rank, const ChildResult& result) { failures.ended(rank, result); };
  constexpr Seconds grace(5);
  const auto results = run_in_children(work, work.size(), no_limit, ended, grace);
  failures.throw_if_any();
  std::vector<RankReport> reports;
  for (const auto& result : results) reports.push_back(report_from_json(result.output));
  return {program, options.first_step, std::move(reports)};
}

RankOutcome run_rank(const Workload& workload, const Plan& plan, const Program& program, RankPlace place,
                     const RunOptions& options, const StepEnded& step_ended)
{
  const std::size_t rank = place.rank;
  const auto& places = place.endpoints;
  ensure(places.size() == program.ranks(), "every rank has an endpoint");
  const auto tcp = tcp_options(tcp_options_of(options.network, place.secret, rank, places), options, plan,
                               fmt::format("{} {}", hash_of(plan), fingerprint(options.settings)));
  confine_nccl(options, places);
  const Job job(workload, plan, program, options, run_id_at_step(tcp));
  auto links = links_of_run(program, rank);
  for (const auto& link : SideChannel::links(places.size())) links.push_back(link);
  TcpWorld world = [&] {
    const NothingBegun until_all_are_here;
    return place.listener ? TcpWorld(rank, places, links, tcp, std::move(*place.listener))
                          : TcpWorld(rank, places, links, tcp);
  }();
  Progress progress([&world] { return world.moves(); });
  Heartbeat heartbeat(world, rank, names_of_ranks(plan), options.limits, progress,
                      [&job](const std::string& longest) { job.lateness->look(longest); });
  std::unique_ptr<RankExecutor> executor;
  std::vector<std::string> texts;
  heartbeat.guard([&] {
    SideChannel side_channel(world, rank, places.size(), no_limit);
    const Seconds offset = side_channel.clock_offset();
    RankReport report = play_over(world, heartbeat, progress, job, rank, executor, step_ended);
    report.shift(offset);
    // A rank may write its last checkpoint for long.
    texts = side_channel.gather(report_to_json(report), no_limit);
  });
  RankOutcome outcome = {steps_done(options, *executor), evaluation_is_cut(options, *executor), std::nullopt};
  if (rank != 0) return outcome;
  std::vector<RankReport> reports;
  for (const auto& text : texts) reports.push_back(report_from_json(text));
  outcome.measured.emplace(program, options.first_step, std::move(reports));
  return outcome;
}

}  // namespace isobar::exec
