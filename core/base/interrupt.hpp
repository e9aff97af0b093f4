#pragma once

#include <atomic>

namespace isobar {

/// Turns SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 into a flag that long work polls. Call it once, in main.
///
/// Clusters send SIGUSR1 or SIGUSR2 before a job's time is over. SIGHUP, SIGUSR1 and SIGUSR2 stay ignored if they are,
/// as under nohup. Signals within 100 ms of each other count as one request: timeout(1),
/// for example, signals a process and then its group. Also ignores SIGXFSZ, so that a write beyond the file size limit
/// fails with an error. Resets SIGCHLD, so that children can be waited for even if the parent process ignores it.
void catch_interrupts();

/// Ignores all these signals but SIGINT, by which its parent passes requests on, in a child; call it after
/// `catch_interrupts`.
/// So a signal to both processes, as from a cluster that ends a whole job, is not a second request.
void leave_interrupts_to_parent();

/// Resets the requests of this process, in a child that was forked to work on its own. A GracefulStop that it shares
/// with its parent no longer applies to the child, but still shows requests to the parent.
void forget_interrupts();

/// True once the process was asked to stop. Cheap enough for inner loops.
bool interrupted();

/// @throws Interrupted once the process was asked to stop.
void throw_if_interrupted();

/// For the lifetime of the object, the first request to stop does not interrupt: work polls `requested` and finishes on
/// its own. The second request interrupts.
///
/// At most one per process at a time, made after `catch_interrupts`. Processes forked during its lifetime share it: a
/// request to any of them is visible to all.
class GracefulStop {
 public:
  GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;
  ~GracefulStop();

  bool requested() const;

 private:
  std::atomic<bool>* requested_;  // in memory that forked processes share
};

/// Suspends a GracefulStop for the lifetime of the object: the first request interrupts, since no work has begun that
/// could finish.
class ImmediateStop {
 public:
  /// @throws Interrupted if there was a request already.
  ImmediateStop();
  ImmediateStop(const ImmediateStop&) = delete;
  ImmediateStop& operator=(const ImmediateStop&) = delete;
  ~ImmediateStop();
};

}  // namespace isobar
