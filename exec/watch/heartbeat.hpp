#pragma once

#include "core/failure.hpp"
#include "exec/links/deadlines.hpp"
#include "exec/links/tcp_world.hpp"
#include "exec/watch/progress.hpp"

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::exec {

/// Exchanges heartbeats between the ranks of a process group, over links and by threads of their own, every
/// `limits.heartbeat_interval`.
///
/// A rank is lost when no heartbeat has come from it for `limits.heartbeat_timeout`, when its connection closes, and
/// when it reports that it has failed. Rank 0, with which all others exchange heartbeats, tells all ranks which one is
/// lost. All other links of the process group are then cancelled. A rank that was itself suspended for longer than the
/// timeout, such as by SIGSTOP, counts itself as lost.
///
/// Heartbeats carry what a rank is doing (Progress); those of rank 0 also how long all ranks have been idle. Between
/// heartbeats, ranks send each other control messages: rank 0 to all others, the others to rank 0.
class Heartbeat {
 public:
  /// Links that it needs in a process group of `ranks` ranks.
  static std::vector<LinkName> links(std::size_t ranks);

  /// Called after each heartbeat. `longest`: the rank that has been doing one thing for longest, such as
  /// "rank 1 (b): Backward 3 of step 0 for 41 s"; "" while none is at work.
  using OnHeartbeat = std::function<void(const std::string& longest)>;

  /// Receives the control messages of other ranks. Called by threads of the Heartbeat, or of `guard`.
  class Listener {
   public:
    Listener() = default;
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    virtual ~Listener() = default;

    /// Receives a message. Returns false if no rank sends such a message; its sender then counts as lost.
    virtual bool receive(std::string_view message) = 0;
    /// A rank is lost: no message comes from it any more. Called once, after the links are cancelled.
    virtual void cancel() noexcept = 0;
  };

  /// Starts the heartbeats. `names`: of all ranks in messages, such as "rank 1 (b)". `progress`: of this rank. `world`,
  /// `progress` and `listener` must outlive this object; without a listener every control message is refused.
  /// `on_heartbeat` is called by a thread of this object; on rank 0 it covers all ranks.
  Heartbeat(TcpWorld& world, std::size_t rank, std::vector<std::string> names, const TimeLimits& limits,
            Progress& progress, OnHeartbeat on_heartbeat = {}, Listener* listener = nullptr);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  /// Tells the peers that this rank leaves, so that it is not reported as lost.
  ~Heartbeat();

  /// Runs this rank's work. When it fails because another rank is lost, throws that rank's failure with its exit code.
  /// Any other failure is reported to the other ranks and rethrown. A deadline that passes while all ranks are alive is
  /// this rank's failure, and its text ends with "all ranks are alive".
  void guard(const std::function<void()>& work);
  /// Reports a failure to the other ranks at once, while this rank's other threads may still run. Only the first report
  /// counts; `guard` rethrows it. Callable from any thread within `guard`.
  void failed(const std::exception_ptr& failure);

  /// Sends a control message, one line: rank 0 to all others, another rank to rank 0. Returns at once; a thread of this
  /// object sends the messages in their order without waiting for the next heartbeat, the last ones before this rank
  /// leaves. Callable from any thread.
  void send(std::string message);

  /// Failure of the rank that is lost ("rank 1 (b): no heartbeat for 10 s"); waits for one for `wait` at most. Callable
  /// from any thread.
  std::optional<Failure> lost(Seconds wait = Seconds(0)) const;
  /// Time since any rank was last at work or moved bytes. Knowledge of other ranks is at most two heartbeats old.
  /// Callable from any thread.
  Seconds idle() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
