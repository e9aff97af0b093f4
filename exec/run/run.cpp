#include "exec/run/run.hpp"

#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/base/threads.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"
#include "exec/device/device.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/launch/rank_failures.hpp"
#include "exec/net/side_channel.hpp"
#include "exec/run/connected_rank.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

TransferWaits waits_without_limit()
{
  TimeLimits limits;
  limits.transfer = no_limit;
  limits.transfer_is_set = true;
  return {limits, nullptr};
}

}  // namespace

MeasuredRun run_in_process(const Workload& workload, const Plan& plan, const Program& program,
                           const RunOptions& options, const StepEnded& step_ended)
{
  const RunContext context(workload, plan, program, options, "");
  const auto transports = in_process_transports(program, no_limit);
  StepBoard board;
  if (const JobTurns* turns = options.turns) board.also_cancel([turns] { turns->turns->cancel(turns->job); });
  std::vector<std::unique_ptr<RankExecutor>> executors;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    executors.push_back(make_executor(context, rank));
    executors.back()->connect(*transports[rank], board, waits_without_limit());
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
    executors[rank]->cancel();  // ends the other ranks' waits
  };
  const auto play_one = [&](std::size_t rank) {
    try {
      reports[rank] = play_rank(context, rank, *executors[rank], step_ended);
    } catch (const std::exception& error) {
      // A rank is cancelled because another one has failed, whose failure is the cause.
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

MeasuredRun run_in_processes(const Workload& workload, const Plan& plan, const Program& program,
                             const RunOptions& options, const StepEnded& step_ended)
{
  LocalRanks ranks(workload, plan, program, options);
  std::vector<std::function<std::string()>> work;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    work.emplace_back([&, rank] {
      if (options.stop) catch_interrupts();  // a request to one rank stops all of them gracefully
      ranks.keep({rank});
      return report_to_json(ranks.play(rank, step_ended));
    });
  }
  // A rank that fails closes its connections. The others fail after it, but may end before it.
  RankFailures failures(names_of_ranks(plan));
  const auto ended = [&](std::size_t rank, const ChildResult& result) { failures.ended(rank, result); };
  const auto results = run_in_children(work, work.size(), no_limit, ended, grace_after_fault);
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
  const auto tcp = run_tcp_options(tcp_options_of(options.network, place.secret, rank, places), options, program,
                                   fmt::format("{} {}", hash_of(plan), fingerprint(options.settings)));
  confine_nccl(options, places);
  const RunContext context(workload, plan, program, options, run_id_at_step(tcp));
  auto links = links_of_run(program);
  for (const auto& link : SideChannel::links(places.size())) links.push_back(link);
  TcpWorld world = [&] {
    const ImmediateStop until_all_have_connected;
    return place.listener ? TcpWorld(rank, places, links, tcp, std::move(*place.listener))
                          : TcpWorld(rank, places, links, tcp);
  }();
  RankInWorld here(context, rank, world);
  std::unique_ptr<RankExecutor> executor;
  std::vector<std::string> texts;
  here.heartbeat.guard([&] {
    SideChannel side_channel(world, rank, places.size(), no_limit);
    const Seconds offset = side_channel.clock_offset();
    RankReport report = play_over(here, executor, step_ended);
    report.shift(offset);
    // Without a limit, since a rank may take long to write its last checkpoint.
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
