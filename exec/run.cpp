#include "exec/run.hpp"

#include "core/child_process.hpp"
#include "core/errors.hpp"
#include "exec/device.hpp"
#include "exec/nccl_transport.hpp"
#include "exec/rank_executor.hpp"
#include "exec/side_channel.hpp"
#include "exec/tcp_transport.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

constexpr double shortest_deadline_s = 30;
constexpr double steps_until_deadline = 10;

RankOptions rank_options(const RunOptions& options, const Plan& plan, std::size_t rank)
{
  RankOptions of_rank;
  of_rank.seed = options.seed;
  of_rank.device = options.device;
  if (options.emulate && rank < plan.stages.size()) {
    of_rank.slowdown = plan.stages[rank].devices.front().slowdown.value_or(1);
    constexpr double as_it_is = 1 + 1e-9;
    if (options.profiled_speed && of_rank.slowdown > as_it_is)
      of_rank.speed = *options.profiled_speed / of_rank.slowdown;
    of_rank.memory_cap = plan.stages[rank].devices.front().memory.value_or(Bytes(0));
  }
  return of_rank;
}

/// Plays one rank to the end over its transport.
RankReport play_rank(const Workload& workload, const Program& program, std::size_t rank, RankExecutor& executor,
                     const RunOptions& options, const StepEnded& step_ended)
{
  at::set_num_threads(static_cast<int>(options.threads));
  RankReport report;
  RankRecorder recorder(report);
  Seconds before = steady_time();
  const auto ended = [&](std::uint64_t step, Seconds end, std::optional<double> loss) {
    if (!loss) return;
    report.losses.push_back(*loss);
    step_ended(
        {step, *loss, end - std::exchange(before, end), workload.training.learning_rate, executor.peak_memory()});
  };
  play(program, rank, options.steps, executor, &recorder, [&](std::uint64_t step) { executor.end_step(step, ended); });
  executor.finish(ended, report);
  return report;
}

}  // namespace

Seconds default_deadline(const Plan& plan)
{
  const Seconds step = plan.predicted ? plan.predicted->step_time : Seconds(0);
  return std::max(Seconds(shortest_deadline_s), steps_until_deadline * step);
}

MeasuredRun run_in_process(const Workload& workload, const Plan& plan, const Program& program,
                           const RunOptions& options, const StepEnded& step_ended)
{
  const auto transports = in_process_transports(program.ranks(), plan.stages.size(), options.deadline);
  std::vector<std::unique_ptr<RankExecutor>> executors;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    executors.push_back(std::make_unique<RankExecutor>(workload, plan, rank, rank_options(options, plan, rank)));
    executors.back()->connect(*transports[rank]);
  }
  const NoHostSync no_host_sync(options.device);
  std::vector<RankReport> reports(program.ranks());
  std::mutex mutex;
  std::exception_ptr cause;
  const auto play_one = [&](std::size_t rank) {
    try {
      reports[rank] = play_rank(workload, program, rank, *executors[rank], options, step_ended);
    } catch (const Cancelled&) {
      // Another rank has failed, and says why.
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!cause) cause = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 1; rank < program.ranks(); ++rank) threads.emplace_back(play_one, rank);
  play_one(0);
  for (auto& thread : threads) thread.join();
  if (cause) std::rethrow_exception(cause);
  return {program, options.steps, std::move(reports)};
}

namespace {

TcpOptions tcp_options(const RunOptions& options, const Plan& plan, std::string world)
{
  TcpOptions tcp;
  tcp.flows = options.flows;
  // Ranks of another choice would wait for what is never said.
  tcp.world = options.transport == TransportChoice::Tcp ? std::move(world) : world + " " + name_of(options.transport);
  tcp.connect_deadline = options.deadline;
  tcp.summing_ranks = plan.stages.size();
  return tcp;
}

/// True of what a rank says when another one is gone or stands still.
bool follows_from_another(const std::string& message)
{
  return message.find(TcpLink::closed_by_peer) != std::string::npos ||
         message.find(TcpLink::deadline_passed) != std::string::npos;
}

std::unique_ptr<Transport> transport_of(std::size_t rank, TcpWorld& world, const std::vector<LinkName>& links,
                                        const Plan& plan, const RunOptions& options, const RankExecutor& executor)
{
  const std::size_t stages = plan.stages.size();
  if (options.transport == TransportChoice::Tcp || rank >= stages) {
    return tcp_transport(rank, world, options.deadline, executor.is_on_gpu());
  }
  return nccl_transport(rank, world, links,
                        {options.transport, options.device, stages, options.deadline, options.tell});
}

std::string random_word()
{
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// "rank 1 (device b)".
std::string rank_in_words(const Plan& plan, std::size_t rank)
{
  return rank < plan.stages.size() ? fmt::format("rank {} ({})", rank, plan.stages[rank].device())
                                   : fmt::format("rank {} (data server)", rank);
}

}  // namespace

MeasuredRun run_in_processes(const Workload& workload, const Plan& plan, const Program& program,
                             const RunOptions& options, const StepEnded& step_ended)
{
  const auto links = links_of(program);
  const auto tcp = tcp_options(options, plan, random_word());
  std::vector<Endpoint> endpoints;
  std::vector<TcpListener> listeners;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    listeners.emplace_back(Endpoint{"127.0.0.1", 0});
    endpoints.push_back({"127.0.0.1", listeners.back().port()});
  }
  std::vector<std::function<std::string()>> work;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    work.emplace_back([&, rank] {
      TcpListener own = std::move(listeners[rank]);
      listeners.clear();  // the others' are theirs alone, so that a rank that dies is gone
      // The stage first, then the others, so that nobody's deadline runs while parameters are made.
      RankExecutor executor(workload, plan, rank, rank_options(options, plan, rank));
      TcpWorld world(rank, endpoints, links, tcp, std::move(own));
      const auto transport = transport_of(rank, world, links, plan, options, executor);
      executor.connect(*transport);
      const NoHostSync no_host_sync(options.device);
      return report_to_json(play_rank(workload, program, rank, executor, options, step_ended));
    });
  }
  // Whoever fails closes its connections, and the others fail after it, though they may end before it.
  std::optional<std::string> first_failure;
  std::optional<std::string> first_cause;
  const auto ended = [&](std::size_t rank, const ChildResult& result) {
    if (result.status == ChildResult::Status::Done) return;
    const bool stands_still = result.status == ChildResult::Status::TimedOut;
    const std::string failure =
        fmt::format("{}: {}", rank_in_words(plan, rank), stands_still ? "did not answer" : result.message);
    if (!first_failure) first_failure = failure;
    if (!first_cause && !follows_from_another(result.message)) first_cause = failure;
  };
  constexpr Seconds no_limit(1e9);
  constexpr Seconds grace(5);
  const auto results = run_in_children(work, work.size(), no_limit, ended, grace);
  if (first_cause) throw EnvironmentError(*first_cause);
  if (first_failure) throw EnvironmentError(*first_failure);
  std::vector<RankReport> reports;
  for (const auto& result : results) reports.push_back(report_from_json(result.output));
  return {program, options.steps, std::move(reports)};
}

std::optional<MeasuredRun> run_rank(const Workload& workload, const Plan& plan, const Program& program,
                                    std::size_t rank, const std::vector<std::string>& endpoints,
                                    const RunOptions& options, const StepEnded& step_ended)
{
  std::vector<Endpoint> places;
  for (const auto& endpoint : endpoints) places.push_back(endpoint_from_text("--ranks", endpoint));
  if (places.size() != program.ranks()) {
    throw InputError("--ranks", fmt::format("names {} places; the plan has {} ranks", places.size(), program.ranks()));
  }
  RankExecutor executor(workload, plan, rank, rank_options(options, plan, rank));
  const auto links = links_of(program);
  auto all_links = links;
  for (const auto& link : SideChannel::links(places.size())) all_links.push_back(link);
  TcpWorld world(rank, places, all_links, tcp_options(options, plan, hash_of(plan)));
  SideChannel side_channel(world, rank, places.size(), options.deadline);
  const Seconds offset = side_channel.clock_offset();
  const auto transport = transport_of(rank, world, links, plan, options, executor);
  executor.connect(*transport);
  const NoHostSync no_host_sync(options.device);
  RankReport report = play_rank(workload, program, rank, executor, options, step_ended);
  report.shift(offset);
  const auto texts = side_channel.gather(report_to_json(report));
  if (rank != 0) return std::nullopt;
  std::vector<RankReport> reports;
  for (const auto& text : texts) reports.push_back(report_from_json(text));
  return MeasuredRun(program, options.steps, std::move(reports));
}

}  // namespace isobar::exec
