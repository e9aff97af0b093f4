#include "exec/launch/heartbeat.hpp"

#include "core/base/clock.hpp"
#include "core/base/threads.hpp"
#include "exec/launch/rank_failures.hpp"

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
constexpr std::string_view beat = "beat ";  // and what the rank is at
constexpr std::string_view leave = "leave";
constexpr std::string_view doubt = "doubt";  // a transfer is late, and soon it is known why
constexpr std::string_view loss = "lost ";   // and the failure
constexpr std::size_t longest_reason = 1000;
/// The word of who is lost takes no longer from rank 0 to the others, though a machine be busy.
constexpr Seconds least_grace{1};

TcpLink::Bytes bytes_of(std::string_view text)
{
  return std::as_bytes(std::span(text));
}

/// Nothing if that is no word of a loss among `ranks` ranks.
std::optional<Failure> loss_from(std::string_view word, std::size_t ranks)
{
  if (!word.starts_with(loss)) return std::nullopt;
  auto lost = failure_from_word(word.substr(loss.size()));
  if (!lost || !lost->rank || *lost->rank >= ranks) return std::nullopt;
  lost->text = shown(lost->text, longest_reason);
  return lost;
}

std::string word_of_beat(const Progress::State& state)
{
  return std::string(beat) + nlohmann::json({state.idle.value, state.since.value, state.work}).dump();
}

/// Nothing if that is no word of a beat.
std::optional<Progress::State> beat_from(std::string_view word)
{
  if (!word.starts_with(beat)) return std::nullopt;
  const auto said = nlohmann::json::parse(word.substr(beat.size()), nullptr, false);
  const bool is_sound =
      said.is_array() && said.size() == 3 && said[0].is_number() && said[1].is_number() && said[2].is_string();
  if (!is_sound) return std::nullopt;
  constexpr std::size_t longest_work = 100;
  return Progress::State{Seconds(said[0].get<double>()), shown(said[2].get<std::string>(), longest_work),
                         Seconds(said[1].get<double>())};
}

}  // namespace

class Heartbeat::Impl {
 public:
  Impl(TcpWorld& world, std::size_t rank, std::vector<std::string> names, const TimeLimits& limits, Progress& progress,
       Beaten beaten)
      : world_(world),
        rank_(rank),
        names_(std::move(names)),
        limits_(limits),
        progress_(progress),
        beaten_(std::move(beaten))
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
      beating_ = start_thread([this] { beat_on(); });
      for (auto& peer : peers_) peer->listening = start_thread([this, &peer = *peer] { listen_to(peer); });
    } catch (const EnvironmentError& error) {
      lose_own(failure_of(error));
      end();
      throw;
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() { end(); }

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
    for (const auto& peer : peers_) idle = std::min(idle, peer->said.idle + time_since(peer->said_at));
    return idle;
  }

  /// The first loss counts: others follow from it.
  void lose(const Failure& lost)
  {
    {
      const std::lock_guard lock(mutex_);
      if (lost_ || leaving_) return;
      lost_ = lost;
      changed_.notify_all();
    }
    tell_all(std::string(loss) + word_of(lost));
    world_.cancel();
  }

  /// The work has failed: tells the others, unless it follows from a rank that is lost. The first failure counts.
  void fail(const std::exception_ptr& failure)
  {
    const std::lock_guard lock(failing_);
    if (failure_) return;
    try {
      judge(failure);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  /// What has become of the failure.
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
    if (beating_.joinable()) beating_.join();
    if (!lost_) tell_all(leave);
    std::vector<TcpLink*> heard;
    for (auto& peer : peers_) heard.push_back(peer->in);
    TcpLink::cancel(heard);
    for (auto& peer : peers_) {
      if (peer->listening.joinable()) peer->listening.join();
    }
  }

  [[noreturn]] void judge(const std::exception_ptr& thrown)
  {
    Failure failure = failure_of(thrown);
    if (!follows_from_another(failure)) {
      lose_own(failure);
      std::rethrow_exception(thrown);
    }
    if (failure.kind == Failure::Kind::DeadlinePassed) raise_doubt();
    if (const auto found = lost_after(failure.kind)) throw_failure(*found);
    failure.text += "; all ranks are alive";
    lose_own(failure);
    failure.rank = rank_;  // the text begins with it
    throw_failure(failure);
  }

  /// Who is lost, after the time by which this is known of whoever made a transfer fail.
  std::optional<Failure> lost_after(Failure::Kind kind) const
  {
    // Who is late may have died since the transfer began.
    const Seconds until_known = limits_.heartbeat + limits_.beat;
    if (kind == Failure::Kind::DeadlinePassed) return lost(until_known);
    if (kind != Failure::Kind::PeerClosed) return lost(Seconds(0));
    // A connection may close before it is known why; or since the rank at its other end has found another one late, and
    // that rank's word comes before this one's.
    const Seconds grace = std::max(limits_.beat, least_grace);
    const auto found = lost(grace);
    return found || !is_doubtful() ? found : lost(until_known + grace);
  }

  /// Tells the others that this rank has waited too long, and waits to know why.
  void raise_doubt()
  {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(is_doubtful_, true)) return;
    }
    tell_all(doubt);
  }
  bool is_doubtful() const
  {
    const std::lock_guard lock(mutex_);
    return is_doubtful_;
  }

  void lose_own(Failure failure)
  {
    if (!failure.rank) {
      failure.text = fmt::format("{} failed: {}", names_[rank_], shown(failure.text, longest_reason));
      failure.rank = rank_;
    }
    lose(failure);
  }

  /// One with whom this rank exchanges beats.
  struct Peer {
    std::size_t rank = 0;
    TcpLink* out = nullptr;
    std::mutex sending;
    TcpLink* in = nullptr;
    std::jthread listening;
    // What it said last: rank 0 of all ranks, another one of itself.
    Progress::State said;
    Clock::time_point said_at = Clock::now();
  };

  void tell(Peer& peer, std::string_view word) const
  {
    const std::lock_guard lock(peer.sending);
    try {
      peer.out->send(bytes_of(word), {}, limits_.heartbeat);
    } catch (const std::exception&) {
      // Whoever hears nothing any more is lost, and who listens to it finds that out.
    }
  }
  void tell_all(std::string_view word) const
  {
    for (auto& peer : peers_) tell(*peer, word);
  }

  void beat_on()
  {
    while (true) {
      if (stood_still()) return;
      last_beat_ = Clock::now();
      tell_all(word_of_beat(state()));
      if (beaten_) beaten_(longest_work());
      std::unique_lock lock(mutex_);
      if (changed_.wait_until(lock, deadline_in(limits_.beat), [this] { return lost_ || leaving_; })) return;
    }
  }

  /// Of this rank, and as rank 0 says it, of all.
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
      const Seconds since = peer->said.since + time_since(peer->said_at);
      if (peer->said.work.empty() || (!longest.work.empty() && since <= longest.since)) continue;
      longest = {.idle = {}, .work = peer->said.work, .since = since};
      rank = peer->rank;
    }
    if (longest.work.empty()) return "";
    return fmt::format("{}: {} for {}", names_[rank], longest.work, in_seconds(longest.since));
  }

  void listen_to(Peer& peer)
  {
    std::string word;
    const auto room = [&word](TcpLink::Bytes header) {
      word.assign(reinterpret_cast<const char*>(header.data()), header.size());
      return std::vector<std::span<std::byte>>();
    };
    try {
      while (true) {
        peer.in->receive(room, limits_.heartbeat);
        if (word == leave) return;
        if (auto said = beat_from(word)) {
          const std::lock_guard lock(mutex_);
          peer.said = std::move(*said);
          peer.said_at = Clock::now();
          continue;
        }
        if (word == doubt) {
          raise_doubt();
          continue;
        }
        if (!stood_still()) lose(told_by(peer, word));
        return;
      }
    } catch (const Interrupted&) {
      // This process ends.
    } catch (const std::exception& error) {
      if (stood_still()) return;
      const std::string& name = names_[peer.rank];
      const bool is_silent = failure_of(error).kind == Failure::Kind::DeadlinePassed;
      const auto silence = fmt::format("{}: no sign of life for {} (--heartbeat)", name, in_seconds(limits_.heartbeat));
      lose(is_silent ? environment_failure(Failure::Kind::Silent, silence, peer.rank)
                     : environment_failure(Failure::Kind::Died, name + " is gone", peer.rank));
    }
  }

  /// Who is lost by a peer's word.
  Failure told_by(const Peer& peer, std::string_view word) const
  {
    using Kind = Failure::Kind;
    const std::string& name = names_[peer.rank];
    auto lost = loss_from(word, names_.size());
    if (!lost) return environment_failure(Kind::Other, name + " sends what is no sign of life", peer.rank);
    if (lost->rank == rank_) {
      return environment_failure(Kind::Other, fmt::format("{} gave this rank up: {}", name, lost->text), peer.rank);
    }
    return std::move(*lost);
  }

  /// True where this process was stopped for so long that the others have given it up.
  bool stood_still()
  {
    const Seconds pause = time_since(last_beat_);
    if (pause <= limits_.heartbeat) return false;
    const auto why = fmt::format("{} stood still for {}; the others wait {} for a sign of life (--heartbeat)",
                                 names_[rank_], in_seconds(pause), in_seconds(limits_.heartbeat));
    lose(environment_failure(Failure::Kind::Other, why, rank_));
    return true;
  }

  TcpWorld& world_;
  std::size_t rank_;
  std::vector<std::string> names_;
  TimeLimits limits_;
  Progress& progress_;
  Beaten beaten_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::jthread beating_;
  std::atomic<Clock::time_point> last_beat_ = Clock::now();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<Failure> lost_;
  bool is_doubtful_ = false;
  bool leaving_ = false;

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
                     Progress& progress, Beaten beaten)
    : impl_(std::make_unique<Impl>(world, rank, std::move(names), limits, progress, std::move(beaten)))
{
}

Heartbeat::~Heartbeat() = default;

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
