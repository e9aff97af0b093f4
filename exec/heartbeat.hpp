#pragma once

#include "core/errors.hpp"
#include "exec/deadlines.hpp"
#include "exec/tcp_world.hpp"

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// A rank that the others can no longer count on, and how they know: "rank 1 (b): no sign of life for 10 s".
struct LostRank {
  std::size_t rank = 0;
  std::string what;
  ExitCode code = ExitCode::EnvironmentError;  ///< what it ends with, and so all do
};

/// What this rank's work ended with follows from the loss of another rank, which it names.
class RankLost : public EnvironmentError {
 public:
  explicit RankLost(const LostRank& lost) : EnvironmentError(lost.what), rank_(lost.rank) {}
  std::size_t rank() const { return rank_; }

 private:
  std::size_t rank_;
};

/// Signs of life of a world's ranks, apart from the data: over links of their own, by threads of their own, every
/// `limits.beat`. A rank is lost when nothing came from it for `limits.heartbeat`, at once when its connection closes,
/// and when it says that it has failed. It is lost to all: rank 0, with whom all others exchange beats, passes on who
/// it was. The world's other links are then cancelled.
///
/// A rank that has itself stood still for longer, such as one that was stopped and goes on, is lost to itself.
class Heartbeat {
 public:
  /// The links that it needs, for the world of `ranks` ranks.
  static std::vector<LinkName> links(std::size_t ranks);

  /// Begins to beat. `names`: of all ranks as messages call them, "rank 1 (b)". `world` must outlive it.
  Heartbeat(TcpWorld& world, std::size_t rank, std::vector<std::string> names, const TimeLimits& limits);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  /// Takes leave: whoever leaves so is not lost.
  ~Heartbeat();

  /// This rank's work. Where it fails because another rank is lost, it ends as that one did: with a RankLost, or with
  /// the InputError, Interrupted or std::logic_error that no other attempt would be spared. Of anything else the others
  /// are told, and it is passed on. A deadline that passes while all ranks are alive says so.
  void guard(const std::function<void()>& work);
  /// From any thread within `guard`: part of the work has failed with this, which the others are told now, though the
  /// rest of it may go on for long. The first one counts, and is what `guard` throws of.
  void failed(const std::exception_ptr& failure);

  /// Who is lost, waiting for so long at most; from any thread.
  std::optional<LostRank> lost(Seconds wait = Seconds(0)) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// True of what a rank says when another one is gone or late, or when it has given up itself; not once `guard` has
/// found that all ranks are alive.
bool follows_from_another(const std::string& message);

}  // namespace isobar::exec
