#include "exec/watch/heartbeat.hpp"

#include "core/base/clock.hpp"
#include "core/base/threads.hpp"
#include "exec/watch/rank_failures.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

constexpr auto channel = TcpWorld::lasting_channel;
// Messages between rank 0 and the others.
constexpr std::string_view heartbeat_prefix = "beat ";  // then the state of the rank
constexpr std::string_view leave_message = "leave";
constexpr std::string_view doubt_message = "doubt";      // a transfer is late; the reason follows soon
constexpr std::string_view loss_prefix = "lost ";        // then the failure
constexpr std::string_view control_prefix = "control ";  // then the message, for the listener
constexpr std::size_t longest_reason = 1000;
/// Within this time the report of a loss gets from rank 0 to the others, even on busy machines.
constexpr Seconds least_grace{1};

TcpLink::Bytes bytes_of(std::string_view text)
{
  return std::as_bytes(std::span(text));
}

/// nullopt unless the message reports a loss among `ranks` ranks.
std::optional<Failure> loss_from(std::string_view message, std::size_t ranks)
{
  if (!message.starts_with(loss_prefix)) return std::nullopt;
  auto lost = parse_failure(message.substr(loss_prefix.size()));
  if (!lost || !lost->rank || *lost->rank >= ranks) return std::nullopt;
  lost->text = shown(lost->text, longest_reason);
  return lost;
}

std::string heartbeat_message(const Progress::State& state)
{
  return std::string(heartbeat_prefix) + nlohmann::json({state.idle.value, state.since.value, state.work}).dump();
}

/// nullopt unless the message is a heartbeat.
std::optional<Progress::State> state_from(std::string_view message)
{
  if (!message.starts_with(heartbeat_prefix)) return std::nullopt;
  const auto json = nlohmann::json::parse(message.substr(heartbeat_prefix.size()), nullptr, false);
  const bool is_valid =
      json.is_array() && json.size() == 3 && json[0].is_number() && json[1].is_number() && json[2].is_string();
  if (!is_valid) return std::nullopt;
  constexpr std::size_t longest_work = 100;
  return Progress::State{Seconds(json[0].get<double>()), shown(json[2].get<std::string>(), longest_work),
                         Seconds(json[1].get<double>())};
}

}  // namespace

class Heartbeat::Impl {
 public:
  Impl(TcpWorld& world, std::size_t rank, std::vector<std::string> names, const TimeLimits& limits, Progress& progress,
       OnHeartbeat on_heartbeat, Listener* listener)
      : world_(world),
        rank_(rank),
        names_(std::move(names)),
        limits_(limits),
        progress_(progress),
        on_heartbeat_(std::move(on_heartbeat)),
        listener_(listener)
  {
    for (std::size_t other = 0; other < names_.size(); ++other) {
      if (other == rank_ || (rank_ != 0 && other != 0)) continue;
      auto& peer = *peers_.emplace_back(std::make_unique<Peer>());
      peer.rank = other;
      peer.out = &world_.link({rank_, other, channel});
      peer.in = &world_.link({other, rank_, channel});
    }
    if (peers_.empty()) return;
    try {
      sender_ = start_thread([this] { send_heartbeats(); });
      for (auto& peer : peers_) peer->receiver = start_thread([this, &peer = *peer] { receive_from(peer); });
    } catch (const EnvironmentError& error) {
      lose_self(failure_of(error));
      end();
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() { end(); }

  void send_control(std::string message)
  {
    if (peers_.empty()) return;
    const std::lock_guard lock(mutex_);
    control_messages_.push_back(std::move(message));
    changed_.notify_all();
  }

  std::optional<Failure> lost(Seconds wait) const
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline_in(wait), [this] { return lost_.has_value(); });
    return lost_;
  }

  Seconds idle() const
  {
    Seconds idle = progress_.state().idle;
    const std::lock_guard lock(mutex_);
    for (const auto& peer : peers_) idle = std::min(idle, peer->state.idle + time_since(peer->state_at));
    return idle;
  }

  /// Only the first loss counts: others follow from it.
  void lose(const Failure& lost)
  {
    {
      const std::lock_guard lock(mutex_);
      if (lost_ || leaving_) return;
      lost_ = lost;
      changed_.notify_all();
    }
    send_to_all(std::string(loss_prefix) + serialize_failure(lost));
    world_.cancel();
    if (listener_ != nullptr) listener_->cancel();
  }

  /// Reports a failure of the work to the others, unless it follows from a lost rank. Only the first failure counts.
  void fail(const std::exception_ptr& failure)
  {
    const std::lock_guard lock(failing_);
    if (failure_) return;
    try {
      attribute(failure);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  /// Throws what the first failure was attributed to.
  [[noreturn]] void rethrow()
  {
    const std::lock_guard lock(failing_);
    std::rethrow_exception(failure_);
  }

 private:
  void end()
  {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
      changed_.notify_all();
    }
    if (sender_.joinable()) sender_.join();
    if (!lost_) send_to_all(leave_message);
    std::vector<TcpLink*> incoming;
    for (auto& peer : peers_) incoming.push_back(peer->in);
    TcpLink::cancel(incoming);
    for (auto& peer : peers_) {
      if (peer->receiver.joinable()) peer->receiver.join();
    }
  }

  /// Finds the rank at fault, reports this rank's own fault to the others, and throws the failure of the rank at fault.
  [[noreturn]] void attribute(const std::exception_ptr& thrown)
  {
    Failure failure = failure_of(thrown);
    if (!follows_from_another(failure)) {
      lose_self(failure);
      std::rethrow_exception(thrown);
    }
    if (failure.kind == Failure::Kind::DeadlinePassed) raise_doubt();
    if (const auto found = lost_after(failure.kind)) throw_failure(*found);
    failure.text += "; all ranks are alive";
    lose_self(failure);
    failure.rank = rank_;  // the text begins with it
    throw_failure(failure);
  }

  /// The lost rank's failure, after the time within which the cause of a failed transfer becomes known.
  std::optional<Failure> lost_after(Failure::Kind kind) const
  {
    // The late rank may have died since the transfer began.
    const Seconds until_known = limits_.heartbeat_timeout + limits_.heartbeat_interval;
    if (kind == Failure::Kind::DeadlinePassed) return lost(until_known);
    if (kind != Failure::Kind::PeerClosed) return lost(Seconds(0));
    // A connection may close before the reason arrives, or because its peer has found a third rank late, whose failure
    // is then reported before this rank's.
    const Seconds grace = std::max(limits_.heartbeat_interval, least_grace);
    const auto found = lost(grace);
    return found || !is_doubtful() ? found : lost(until_known + grace);
  }

  /// Tells the others that this rank has waited too long and does not know why yet.
  void raise_doubt()
  {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(is_doubtful_, true)) return;
    }
    send_to_all(doubt_message);
  }
  bool is_doubtful() const
  {
    const std::lock_guard lock(mutex_);
    return is_doubtful_;
  }

  /// Counts this rank as lost.
  void lose_self(Failure failure)
  {
    if (!failure.rank) {
      failure.text = fmt::format("{} failed: {}", names_[rank_], shown(failure.text, longest_reason));
      failure.rank = rank_;
    }
    lose(failure);
  }

  /// A rank with which this one exchanges heartbeats.
  struct Peer {
    std::size_t rank = 0;
    TcpLink* out = nullptr;
    std::mutex sending;
    TcpLink* in = nullptr;
    std::jthread receiver;
    Progress::State state;  ///< as last received; rank 0's `idle` is that of all ranks
    Clock::time_point state_at = Clock::now();
  };

  void send(Peer& peer, std::string_view message) const
  {
    const std::lock_guard lock(peer.sending);
    try {
      peer.out->send(bytes_of(message), {}, limits_.heartbeat_timeout);
    } catch (const std::exception&) {
      // A peer that does not receive is lost, which the thread that receives from it finds out.
    }
  }
  void send_to_all(std::string_view message) const
  {
    for (auto& peer : peers_) send(*peer, message);
  }

  /// Sends heartbeats at their interval, and control messages at once.
  void send_heartbeats()
  {
    auto next = Clock::now();
    while (true) {
      if (Clock::now() >= next) {
        if (was_suspended()) return;
        last_heartbeat_ = Clock::now();
        send_to_all(heartbeat_message(state()));
        if (on_heartbeat_) on_heartbeat_(longest_work());
        next = deadline_in(limits_.heartbeat_interval);
      }
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, next, [this] { return lost_ || leaving_ || !control_messages_.empty(); });
      if (lost_) return;
      const bool leaves = leaving_;
      const auto messages = std::exchange(control_messages_, {});
      lock.unlock();
      for (const auto& message : messages) send_to_all(std::string(control_prefix) + message);
      if (leaves) return;
    }
  }

  /// State of this rank; on rank 0 with the idle time of all ranks.
  Progress::State state() const
  {
    Progress::State state = progress_.state();
    if (rank_ == 0) state.idle = idle();
    return state;
  }

  std::string longest_work() const
  {
    Progress::State longest = progress_.state();
    std::size_t rank = rank_;
    const std::lock_guard lock(mutex_);
    for (const auto& peer : peers_) {
      const Seconds since = peer->state.since + time_since(peer->state_at);
      if (peer->state.work.empty() || (!longest.work.empty() && since <= longest.since)) continue;
      longest = {.idle = {}, .work = peer->state.work, .since = since};
      rank = peer->rank;
    }
    if (longest.work.empty()) return "";
    return fmt::format("{}: {} for {}", names_[rank], longest.work, in_seconds(longest.since));
  }

  void receive_from(Peer& peer)
  {
    std::string message;
    const auto room = [&message](TcpLink::Bytes header) {
      message.assign(reinterpret_cast<const char*>(header.data()), header.size());
      return std::vector<std::span<std::byte>>();
    };
    try {
      while (true) {
        peer.in->receive(room, limits_.heartbeat_timeout);
        if (message == leave_message) return;
        if (auto state = state_from(message)) {
          const std::lock_guard lock(mutex_);
          peer.state = std::move(*state);
          peer.state_at = Clock::now();
          continue;
        }
        if (message == doubt_message) {
          raise_doubt();
          continue;
        }
        if (pass_to_listener(message)) continue;
        if (!was_suspended()) lose(loss_reported_by(peer, message));
        return;
      }
    } catch (const Interrupted&) {
      // This process ends.
    } catch (const std::exception& error) {
      if (was_suspended()) return;
      const std::string& name = names_[peer.rank];
      const bool is_silent = failure_of(error).kind == Failure::Kind::DeadlinePassed;
      const auto silence =
          fmt::format("{}: no heartbeat for {} (--heartbeat)", name, in_seconds(limits_.heartbeat_timeout));
      lose(is_silent ? environment_failure(Failure::Kind::Silent, silence, peer.rank)
                     : environment_failure(Failure::Kind::Died, name + " is gone", peer.rank));
    }
  }

  /// Passes a control message to the listener. Returns false for other messages, and for those that it refuses.
  bool pass_to_listener(std::string_view message) const
  {
    return listener_ != nullptr && message.starts_with(control_prefix) &&
           listener_->receive(message.substr(control_prefix.size()));
  }

  /// The loss that a peer's message reports. A peer whose message is malformed, or reports this rank, is lost itself.
  Failure loss_reported_by(const Peer& peer, std::string_view message) const
  {
    using Kind = Failure::Kind;
    const std::string& name = names_[peer.rank];
    auto lost = loss_from(message, names_.size());
    if (!lost) return environment_failure(Kind::Other, name + " sent a malformed heartbeat", peer.rank);
    if (lost->rank == rank_) {
      return environment_failure(Kind::Other, fmt::format("{} reported this rank as lost: {}", name, lost->text),
                                 peer.rank);
    }
    return std::move(*lost);
  }

  /// True when this process was suspended for so long that the others count it as lost.
  bool was_suspended()
  {
    const Seconds pause = time_since(last_heartbeat_);
    if (pause <= limits_.heartbeat_timeout) return false;
    const auto why = fmt::format("{} was suspended for {}; the others wait {} for a heartbeat (--heartbeat)",
                                 names_[rank_], in_seconds(pause), in_seconds(limits_.heartbeat_timeout));
    lose(environment_failure(Failure::Kind::Other, why, rank_));
    return true;
  }

  TcpWorld& world_;
  std::size_t rank_;
  std::vector<std::string> names_;
  TimeLimits limits_;
  Progress& progress_;
  OnHeartbeat on_heartbeat_;
  Listener* listener_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::jthread sender_;
  std::atomic<Clock::time_point> last_heartbeat_ = Clock::now();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Failure> lost_;
  bool is_doubtful_ = false;
  bool leaving_ = false;
  std::vector<std::string> control_messages_;  // to be sent

  std::mutex failing_;
  std::exception_ptr failure_;
};

std::vector<LinkName> Heartbeat::links(std::size_t ranks)
{
  std::vector<LinkName> links;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    links.push_back({rank, 0, channel});
    links.push_back({0, rank, channel});
  }
  return links;
}

Heartbeat::Heartbeat(TcpWorld& world, std::size_t rank, std::vector<std::string> names, const TimeLimits& limits,
                     Progress& progress, OnHeartbeat on_heartbeat, Listener* listener)
    : impl_(std::make_unique<Impl>(world, rank, std::move(names), limits, progress, std::move(on_heartbeat), listener))
{
}

Heartbeat::~Heartbeat() = default;

void Heartbeat::send(std::string message)
{
  impl_->send_control(std::move(message));
}

std::optional<Failure> Heartbeat::lost(Seconds wait) const
{
  return impl_->lost(wait);
}

Seconds Heartbeat::idle() const
{
  return impl_->idle();
}

void Heartbeat::guard(const std::function<void()>& work)
{
  try {
    work();
  } catch (...) {
    impl_->fail(std::current_exception());
    impl_->rethrow();
  }
}

void Heartbeat::failed(const std::exception_ptr& failure)
{
  impl_->fail(failure);
}

}  // namespace isobar::exec
