#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"
#include "exec/launch/heartbeat.hpp"
#include "exec/launch/plan_ranks.hpp"
#include "exec/launch/progress.hpp"
#include "exec/net/tcp_world.hpp"
#include "exec/run/rank_executor.hpp"
#include "exec/run/rank_report.hpp"
#include "exec/run/rank_run.hpp"
#include "exec/run/run.hpp"
#include "exec/run/step_board.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// Ranks that meet the others over TCP or NCCL, in one process or several.
namespace isobar::exec {

/// For waits without a deadline: threads end together, and the heartbeat detects dead processes.
constexpr Seconds no_limit(1e9);
/// How long ranks of this machine have to end once one of them has failed.
constexpr Seconds grace_after_fault(5);

/// The options of a run's connections, from those of its network.
TcpOptions run_tcp_options(TcpOptions tcp, const RunOptions& options, const Program& program,
                           const std::string& run_id);
/// Identifies one attempt of a run.
std::string run_id_at_step(const TcpOptions& tcp);
/// Makes NCCL listen on the loopback interface if no communicator leaves the machine, unless the user has set another
/// interface: NCCL listens while communicators start, and does not know the secret. Call it before this process has
/// threads.
void confine_nccl(const RunOptions& options, const std::vector<Endpoint>& places);
/// The links of all transfers and heartbeats.
std::vector<LinkName> links_of_run(const Program& program);

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

/// Makes one rank's executor, in `made`, and executes the rank over TCP or NCCL.
RankReport play_over(RankInWorld& here, std::unique_ptr<RankExecutor>& made, const StepEnded& step_ended);

/// The ranks of a run on this machine, as processes or threads with connections of their own. References must outlive
/// it.
class LocalRanks {
 public:
  /// Opens a listener for each rank. Call it before this process has threads.
  LocalRanks(const Workload& workload, const Plan& plan, const Program& program, const RunOptions& options);

  /// In a child: closes the listeners of all other ranks, so that the listener of a dead rank is gone.
  void keep(const std::vector<std::size_t>& ranks);
  /// Executes a rank to its end, once. All ranks must be executed at the same time.
  /// @throws its failure, or that of the rank that is lost.
  RankReport play(std::size_t rank, const StepEnded& step_ended);

 private:
  const Program& program_;
  TcpOptions tcp_;
  RunContext context_;
  std::vector<Endpoint> endpoints_;
  std::vector<std::optional<TcpListener>> listeners_;  // by rank
};

}  // namespace isobar::exec
