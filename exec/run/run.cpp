#include "exec/run/run.hpp"

#include "core/base/child_process.hpp"
#include "core/base/files.hpp"
#include "core/base/threads.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"
#include "exec/control/step_board.hpp"
#include "exec/device/device.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/links/side_channel.hpp"
#include "exec/run/rank_run.hpp"
#include "exec/transport/nccl_transport.hpp"
#include "exec/transport/tcp_transport.hpp"
#include "exec/watch/heartbeat.hpp"
#include "exec/watch/rank_failures.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <random>
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

namespace {

TcpOptions run_tcp_options(TcpOptions tcp, const RunOptions& options, const Program& program, const std::string& run_id)
{
  tcp.connections = options.connections;
  // Part of the run id, since ranks with another choice would wait for messages that never come.
  tcp.run_id = fmt::format("{} by {}", run_id, name_of(options.transport));
  tcp.first_step = options.first_step;
  tcp.connect_deadline = options.limits.connect;
  tcp.connect_option = "twice --deadline";
  tcp.groups = groups_of(program);
  if (tcp.tls && options.transport == TransportChoice::Nccl) {
    throw InputError("--transport", "nccl does not encrypt; leave out --tls, and add --plain-text between machines");
  }
  return tcp;
}

/// Identifies one attempt of a run.
std::string run_id_at_step(const TcpOptions& tcp)
{
  return fmt::format("{} from step {}", tcp.run_id, tcp.first_step);
}

/// Makes NCCL listen on the loopback interface if no communicator leaves the machine, unless the user has set another
/// interface: NCCL listens while communicators start, and does not know the secret. Call it before this process has
/// threads.
void confine_nccl(const RunOptions& options, const std::vector<Endpoint>& places)
{
  const bool stays_here =
      std::all_of(places.begin(), places.end(), [](const Endpoint& place) { return is_loopback(place.host); });
  const bool is_confined = options.transport == TransportChoice::Auto || stays_here;
  if (options.transport != TransportChoice::Tcp && is_confined) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

std::string random_run_id()
{
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// The links of all transfers and heartbeats.
std::vector<LinkName> links_of_run(const Program& program)
{
  auto links = links_of(program);
  for (const auto& link : Heartbeat::links(program.ranks())) links.push_back(link);
  return links;
}

/// What a rank over TCP needs besides its executor: its connections, heartbeats and board, on which rank 0's decisions
/// arrive by the heartbeats.
struct RankInWorld {
  RankInWorld(const RunContext& run_context, std::size_t own_rank, TcpWorld& connected)
      : context(run_context), rank(own_rank), world(connected)
  {
    board.send_by([this](const std::string& message) { heartbeat.send(message); });
    if (const JobTurns* turns = context.options.turns) {
      board.also_cancel([turns] { turns->turns->cancel(turns->job); });
    }
  }
  RankInWorld(const RankInWorld&) = delete;
  RankInWorld& operator=(const RankInWorld&) = delete;
  ~RankInWorld() = default;

  const RunContext& context;
  std::size_t rank;
  TcpWorld& world;
  StepBoard board{rank};
  /// Turns that pass on this machine are activity too: a rank that waits for its own may wait for other jobs.
  Progress progress{[this] {
    const JobTurns* turns = context.options.turns;
    return world.moves() + (turns != nullptr ? turns->turns->activity() : 0);
  }};
  Heartbeat heartbeat{world,
                      rank,
                      names_of_ranks(context.plan),
                      context.options.limits,
                      progress,
                      [this](const std::string& longest) { context.lateness->look(longest); },
                      &board};
};

std::unique_ptr<Transport> transport_of(RankInWorld& here, const TransferWaits& waits, bool on_gpu)
{
  const RunContext& context = here.context;
  const RunOptions& options = context.options;
  if (options.transport == TransportChoice::Tcp) return tcp_transport(here.world, context.program, waits, on_gpu);
  return nccl_transport(here.rank, here.world, context.program,
                        {.choice = options.transport,
                         .device = on_gpu ? options.device : "cpu",
                         .stages = devices_of(context.plan).size(),
                         .connect = options.limits.connect,
                         .info = options.info},
                        waits);
}

/// Makes one rank's executor, in `made`, and executes the rank over TCP or NCCL.
RankReport play_over(RankInWorld& here, std::unique_ptr<RankExecutor>& made, const StepEnded& step_ended)
{
  const RunContext& context = here.context;
  made = make_executor(context, here.rank, &here.progress);
  RankExecutor& executor = *made;
  // A stage may need minutes to load what another one has at once; no deadline runs during that time.
  here.world.wait_for_all(no_limit);
  const TransferWaits waits(context.options.limits, [&here] { return here.heartbeat.idle(); });
  const auto transport = transport_of(here, waits, executor.is_on_gpu());
  executor.connect(*transport, here.board, waits);
  const NoHostSync no_host_sync(context.options.device);
  return play_rank(context, here.rank, executor, step_ended, &here.progress,
                   [&](const std::exception_ptr& failure) { here.heartbeat.failed(failure); });
}

}  // namespace

class LocalRanks::Impl {
 public:
  Impl(const Workload& workload, const Plan& plan, const Program& program, const RunOptions& options)
      : program_(program),
        tcp_(run_tcp_options(tcp_options_of_own_ranks(options.network), options, program, random_run_id())),
        context_(workload, plan, program, options, run_id_at_step(tcp_))
  {
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      auto& listener = listeners_.emplace_back(TcpListener(Endpoint{"127.0.0.1", 0}));
      endpoints_.push_back({"127.0.0.1", listener->port()});
    }
    confine_nccl(options, endpoints_);
  }

  void keep(const std::vector<std::size_t>& ranks)
  {
    for (std::size_t rank = 0; rank < listeners_.size(); ++rank) {
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) listeners_[rank].reset();
    }
  }

  RankReport play(std::size_t rank, const StepEnded& step_ended)
  {
    TcpListener own = std::move(listeners_.at(rank).value());
    listeners_[rank].reset();
    std::unique_ptr<RankExecutor> executor;
    TcpWorld world(rank, endpoints_, links_of_run(program_), tcp_, std::move(own));
    RankInWorld here(context_, rank, world);
    RankReport report;
    here.heartbeat.guard([&] { report = play_over(here, executor, step_ended); });
    return report;
  }

 private:
  const Program& program_;
  TcpOptions tcp_;
  RunContext context_;
  std::vector<Endpoint> endpoints_;
  std::vector<std::optional<TcpListener>> listeners_;  // by rank
};

LocalRanks::LocalRanks(const Workload& workload, const Plan& plan, const Program& program, const RunOptions& options)
    : impl_(std::make_unique<Impl>(workload, plan, program, options))
{
}

LocalRanks::~LocalRanks() = default;

void LocalRanks::keep(const std::vector<std::size_t>& ranks)
{
  impl_->keep(ranks);
}

RankReport LocalRanks::play(std::size_t rank, const StepEnded& step_ended)
{
  return impl_->play(rank, step_ended);
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
