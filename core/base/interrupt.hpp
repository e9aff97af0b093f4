#pragma once

#include <atomic>

namespace isobar {

/// From now on SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under nohup) only set a flag; long work looks at
/// it. Those that come within 100 ms of one another are one request: timeout(1), for one, signals a process and then
/// its group. A file that outgrows the process's limit is an error of its write, not a signal, and children can be
/// waited for though whoever started this process ignores its own. Called once, by main.
void catch_interrupts();

/// In a child whose parent passes requests on by SIGINT, after `catch_interrupts`: what both are sent, as by a cluster
/// that ends a whole job, is no second request.
void leave_interrupts_to_parent();

/// In a child that was forked to work by itself: what this process was asked counts no longer, nor does a GracefulStop
/// that it shares with its parent, though what its parent is asked can still be seen there.
void forget_interrupts();

/// True once the process was asked to stop. Cheap enough for inner loops.
bool interrupted();

/// @throws Interrupted once the process was asked to stop.
void throw_if_interrupted();

/// While it lives, the first request to stop interrupts nothing: work looks at `asked` and comes to a good end by
/// itself. The second one interrupts. One at a time in a process, made after `catch_interrupts`; processes that are
/// forked while it lives share it, so that a request to one of them is seen by all.
class GracefulStop {
 public:
  GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;
  ~GracefulStop();

  bool asked() const;

 private:
  std::atomic<bool>* asked_;  // in memory that forked processes share
};

/// While it lives, the first request interrupts all the same: nothing has begun that could come to a good end.
class NothingBegun {
 public:
  /// @throws Interrupted when there was a request already.
  NothingBegun();
  NothingBegun(const NothingBegun&) = delete;
  NothingBegun& operator=(const NothingBegun&) = delete;
  ~NothingBegun();
};

}  // namespace isobar
