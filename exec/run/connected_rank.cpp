#include "exec/run/connected_rank.hpp"

#include "core/errors.hpp"
#include "exec/device/device.hpp"
#include "exec/transport/nccl_transport.hpp"
#include "exec/transport/tcp_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <random>
#include <utility>

namespace isobar::exec {

namespace {

std::string random_run_id()
{
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

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

}  // namespace

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

std::string run_id_at_step(const TcpOptions& tcp)
{
  return fmt::format("{} from step {}", tcp.run_id, tcp.first_step);
}

void confine_nccl(const RunOptions& options, const std::vector<Endpoint>& places)
{
  const bool stays_here =
      std::all_of(places.begin(), places.end(), [](const Endpoint& place) { return is_loopback(place.host); });
  const bool is_confined = options.transport == TransportChoice::Auto || stays_here;
  if (options.transport != TransportChoice::Tcp && is_confined) setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

std::vector<LinkName> links_of_run(const Program& program)
{
  auto links = links_of(program);
  for (const auto& link : Heartbeat::links(program.ranks())) links.push_back(link);
  return links;
}

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

LocalRanks::LocalRanks(const Workload& workload, const Plan& plan, const Program& program, const RunOptions& options)
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

void LocalRanks::keep(const std::vector<std::size_t>& ranks)
{
  for (std::size_t rank = 0; rank < listeners_.size(); ++rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) listeners_[rank].reset();
  }
}

RankReport LocalRanks::play(std::size_t rank, const StepEnded& step_ended)
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

}  // namespace isobar::exec
