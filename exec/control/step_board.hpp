#pragma once

#include "exec/links/deadlines.hpp"
#include "exec/watch/heartbeat.hpp"

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace isobar::exec {

/// Rank 0's decision about a step, made when it begins the step.
struct StepControl {
  bool checkpoint = false;  ///< write one after the step
  bool end = false;         ///< this is the last step
};

/// The steps of a run are counted in each phase.
enum class Phase : std::uint8_t { Training, Evaluation };

/// How the ranks of a run agree on its checkpoints and its end. Rank 0 decides about each step when it begins it; a
/// rank ends a step once it knows the decision. Any rank may request a stop from rank 0.
///
/// Ranks that are threads share one board. Each rank that is a process has its own, and the boards send each other
/// control messages over the heartbeats. Where several ranks have an addend of the loss, rank 0 gets these so too.
/// O(checkpoints) memory. Thread-safe.
class StepBoard : public Heartbeat::Listener {
 public:
  using Send = std::function<void(const std::string& message)>;

  /// `rank`: 0 for a board that ranks share.
  explicit StepBoard(std::size_t rank = 0) : rank_(rank) {}

  /// From now on `send` sends decisions and requests to other ranks. Call it before the first of either.
  void send_by(Send send) { send_ = std::move(send); }
  bool receive(std::string_view message) override;
  void cancel() noexcept override;

  /// Decides about the next step of a phase; for rank 0.
  void decide(Phase phase, std::uint64_t step, StepControl control);
  /// Waits for the decision about a step.
  /// @throws a failure of kind Cancelled or DeadlinePassed with a text such as
  ///   rank 2: no word from rank 0 after 40 s: deadline passed
  /// and Interrupted.
  StepControl await(Phase phase, std::uint64_t step, Deadline deadline);

  /// Tells rank 0 the addend of another rank to the loss of a step of training. `rank` is this rank, also on a board
  /// that ranks share. A rank tells each step once, in order, or none.
  void add_loss(std::uint64_t step, std::size_t rank, double addend);
  /// For rank 0: whether the addends of `ranks` other ranks to the loss of a step have arrived.
  bool has_losses(std::uint64_t step, std::size_t ranks);
  /// Waits for them, and returns their sum, added up in the order of ranks. Once for each step. @throws as `await`
  /// does.
  double await_losses(std::uint64_t step, std::size_t ranks, Deadline deadline);

  /// Compares the number of a job's turn in the order of a mix with those of the other ranks, which are the same where
  /// all devices grant turns in one order. `rank`: as for `add_loss`.
  void add_turn(std::uint64_t turn, std::size_t rank, std::uint64_t number);
  /// @throws a failure that names the ranks once two of them have had different numbers for a turn; on rank 0.
  void check_turns();

  /// From now on `cancel` also calls this.
  void also_cancel(std::function<void()> other) { also_cancel_ = std::move(other); }

  /// Requests that the run ends after a complete step.
  void request_stop();
  /// Whether a stop is requested: on rank 0 by any rank.
  bool stop_is_requested();

 private:
  /// What is decided about a phase.
  struct Decisions {
    std::uint64_t end = 0;  // the step after the last one that is decided about
    std::optional<std::uint64_t> last_step;
    std::set<std::uint64_t> checkpoints;
  };

  void post(Phase phase, std::uint64_t step, StepControl control);
  void post_turn(std::uint64_t turn, std::size_t rank, std::uint64_t number);
  void post_loss(std::uint64_t step, std::size_t rank, double addend);
  template <typename Arrived>
  void wait(Deadline deadline, const char* missing, Arrived arrived);
  std::optional<StepControl> known(Phase phase, std::uint64_t step) const;

  std::size_t rank_;
  Send send_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Decisions, 2> decisions_;                                    // by phase
  std::map<std::uint64_t, std::map<std::size_t, double>> losses_;         // by step and rank, until they are added up
  std::map<std::uint64_t, std::pair<std::size_t, std::uint64_t>> turns_;  // the last ones: rank and number
  std::string other_order_;                                               // the two ranks that have one, in words
  std::function<void()> also_cancel_;
  bool stop_requested_ = false;
  bool cancelled_ = false;
};

}  // namespace isobar::exec
