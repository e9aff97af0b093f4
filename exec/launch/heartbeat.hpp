#pragma once

#include "core/failure.hpp"
#include "exec/launch/progress.hpp"
#include "exec/net/deadlines.hpp"
#include "exec/net/tcp_world.hpp"

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// Signs of life of a world's ranks, apart from the data: over links of their own, by threads of their own, every
/// `limits.beat`. A rank is lost when nothing came from it for `limits.heartbeat`, at once when its connection closes,
/// and when it says that it has failed. It is lost to all: rank 0, with whom all others exchange beats, passes on who
/// it was. The world's other links are then cancelled.
///
/// With its signs of life a rank says what it is at (Progress), and rank 0 passes on how long all ranks have waited.
///
/// A rank that has itself stood still for longer, such as one that was stopped and goes on, is lost to itself.
class Heartbeat {
 public:
  /// The links that it needs, for the world of `ranks` ranks.
  static std::vector<LinkName> links(std::size_t ranks);

  /// Told of the rank that has been at one thing for longest, such as "rank 1 (b): Backward 3 of step 0 for 41 s"; ""
  /// while none is at work.
  using Beaten = std::function<void(const std::string& longest)>;

  /// Begins to beat. `names`: of all ranks as messages call them, "rank 1 (b)". `world` and `progress`, which is this
  /// rank's, must outlive it. `beaten` is called after each beat, by a thread of this; rank 0 knows of all ranks.
  Heartbeat(TcpWorld& world, std::size_t rank, std::vector<std::string> names, const TimeLimits& limits,
            Progress& progress, Beaten beaten = {});
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  /// Takes leave: whoever leaves so is not lost.
  ~Heartbeat();

  /// This rank's work. Where it fails because another rank is lost, it ends with that one's failure, by its exit code.
  /// Of anything else the others are told, and it is passed on. A deadline that passes while all ranks are alive says
  /// so, and is this rank's failure.
  void guard(const std::function<void()>& work);
  /// From any thread within `guard`: part of the work has failed with this, which the others are told now, though the
  /// rest of it may go on for long. The first one counts, and is what `guard` throws of.
  void failed(const std::exception_ptr& failure);

  /// The failure of the rank that the others can no longer count on ("rank 1 (b): no sign of life for 10 s"), waiting
  /// for it so long at most; from any thread.
  std::optional<Failure> lost(Seconds wait = Seconds(0)) const;
  /// How long since any rank was last at work or moved bytes, as far as is known here: of others the word is as old as
  /// two beats. From any thread.
  Seconds idle() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
