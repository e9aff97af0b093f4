#include "exec/heartbeat.hpp"

#include "exec/clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

constexpr auto channel = TcpWorld::lasting_channel;
constexpr std::string_view beat = "beat";
constexpr std::string_view leave = "leave";
constexpr std::string_view loss = "lost";  // then the rank's number, what it ended with, and how it is known
constexpr std::size_t longest_reason = 1000;
constexpr auto all_alive = "; all ranks are alive";
/// The word of who is lost takes no longer from rank 0 to the others, though a machine be busy.
constexpr Seconds least_grace{1};

TcpLink::Bytes bytes_of(std::string_view text)
{
  return std::as_bytes(std::span(text));
}

std::string word_of(const LostRank& lost)
{
  return fmt::format("{} {} {} {}", loss, lost.rank, static_cast<int>(lost.code), lost.what);
}

/// Takes a number with a space before and behind it from the front of a word, but leaves the space behind it.
template <typename Number>
std::optional<Number> take_number(std::string_view& word)
{
  if (!word.starts_with(' ')) return std::nullopt;
  Number number = 0;
  const auto [end, error] = std::from_chars(word.data() + 1, word.data() + word.size(), number);
  word.remove_prefix(static_cast<std::size_t>(end - word.data()));
  if (error != std::errc() || !word.starts_with(' ')) return std::nullopt;
  return number;
}

/// Nothing if that is no word of a loss among `ranks` ranks.
std::optional<LostRank> lost_rank_from(std::string_view word, std::size_t ranks)
{
  if (!word.starts_with(loss)) return std::nullopt;
  word.remove_prefix(loss.size());
  const auto rank = take_number<std::size_t>(word);
  const auto code = take_number<int>(word);
  if (!rank || *rank >= ranks || !code) return std::nullopt;
  return LostRank{*rank, shown(word.substr(1), longest_reason), ExitCode{*code}};
}

/// What a rank ends with that throws this.
ExitCode code_of(const std::exception& error)
{
  if (dynamic_cast<const EnvironmentError*>(&error) != nullptr) return ExitCode::EnvironmentError;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return ExitCode::EnvironmentError;
  if (dynamic_cast<const InputError*>(&error) != nullptr) return ExitCode::InputError;
  if (dynamic_cast<const Interrupted*>(&error) != nullptr) return ExitCode::Interrupted;
  return ExitCode::OurBug;
}

/// What the others end with.
[[noreturn]] void end_like(const LostRank& lost)
{
  switch (lost.code) {
    case ExitCode::InputError:
      throw InputError(lost.what);
    case ExitCode::Interrupted:
      throw Interrupted();
    case ExitCode::OurBug:
      throw std::logic_error(lost.what);
    default:
      throw RankLost(lost);
  }
}

bool contains(const std::string& message, std::string_view part)
{
  return message.find(part) != std::string::npos;
}

}  // namespace

class Heartbeat::Impl {
 public:
  Impl(TcpWorld& world, std::size_t rank, std::vector<std::string> names, const TimeLimits& limits)
      : world_(world), rank_(rank), names_(std::move(names)), limits_(limits)
  {
    for (std::size_t other = 0; other < names_.size(); ++other) {
      if (other == rank_ || (rank_ != 0 && other != 0)) continue;
      auto& peer = *peers_.emplace_back(std::make_unique<Peer>());
      peer.rank = other;
      peer.out = &world_.link({rank_, other, channel});
      peer.in = &world_.link({other, rank_, channel});
    }
    if (peers_.empty()) return;
    beating_ = std::thread([this] { beat_on(); });
    for (auto& peer : peers_) peer->listening = std::thread([this, &peer = *peer] { listen_to(peer); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl()
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
    for (auto& peer : peers_) peer->listening.join();
  }

  std::optional<LostRank> lost(Seconds wait) const
  {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline_in(wait), [this] { return lost_.has_value(); });
    return lost_;
  }

  /// The first loss counts: others follow from it.
  void lose(const LostRank& lost)
  {
    {
      const std::lock_guard lock(mutex_);
      if (lost_ || leaving_) return;
      lost_ = lost;
      changed_.notify_all();
    }
    tell_all(word_of(lost));
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
  [[noreturn]] void judge(const std::exception_ptr& failure)
  {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      const std::string message = error.what();
      const ExitCode code = code_of(error);
      if (code != ExitCode::EnvironmentError || !follows_from_another(message)) {
        lose_own(message, code);
        throw;
      }
      // A connection may close before it is known why; who is late may have died since the transfer began.
      const auto wait = contains(message, TcpLink::closed_by_peer)    ? std::max(limits_.beat, least_grace)
                        : contains(message, TcpLink::deadline_passed) ? limits_.heartbeat + limits_.beat
                                                                      : Seconds(0);
      if (const auto found = lost(wait)) end_like(*found);
      lose_own(message + all_alive, code);
      throw EnvironmentError(message + all_alive);
    }
  }

  void lose_own(const std::string& why, ExitCode code)
  {
    const std::string& name = names_[rank_];
    lose({rank_, why.starts_with(name) ? why : fmt::format("{} failed: {}", name, shown(why, longest_reason)), code});
  }

  /// One with whom this rank exchanges beats.
  struct Peer {
    std::size_t rank = 0;
    TcpLink* out = nullptr;
    std::mutex sending;
    TcpLink* in = nullptr;
    std::thread listening;
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
      tell_all(beat);
      std::unique_lock lock(mutex_);
      if (changed_.wait_until(lock, deadline_in(limits_.beat), [this] { return lost_ || leaving_; })) return;
    }
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
        if (word == beat) continue;
        if (!stood_still()) lose(told_by(peer, word));
        return;
      }
    } catch (const Interrupted&) {
      // This process ends.
    } catch (const std::exception& error) {
      if (stood_still()) return;
      const bool silent = contains(error.what(), TcpLink::deadline_passed);
      lose({peer.rank, silent
                           ? fmt::format("{}: no sign of life for {}", names_[peer.rank], in_seconds(limits_.heartbeat))
                           : names_[peer.rank] + " is gone"});
    }
  }

  /// Who is lost by a peer's word.
  LostRank told_by(const Peer& peer, std::string_view word) const
  {
    const std::string& name = names_[peer.rank];
    auto lost = lost_rank_from(word, names_.size());
    if (!lost) return {peer.rank, name + " sends what is no sign of life"};
    if (lost->rank == rank_) return {peer.rank, fmt::format("{} gave this rank up: {}", name, lost->what)};
    return std::move(*lost);
  }

  /// True where this process was stopped for so long that the others have given it up.
  bool stood_still()
  {
    const Seconds pause = time_since(last_beat_);
    if (pause <= limits_.heartbeat) return false;
    lose({rank_, fmt::format("{} stood still for {}; the others wait {} for a sign of life", names_[rank_],
                             in_seconds(pause), in_seconds(limits_.heartbeat))});
    return true;
  }

  TcpWorld& world_;
  std::size_t rank_;
  std::vector<std::string> names_;
  TimeLimits limits_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::thread beating_;
  std::atomic<Clock::time_point> last_beat_ = Clock::now();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<LostRank> lost_;
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

Heartbeat::Heartbeat(TcpWorld& world, std::size_t rank, std::vector<std::string> names, const TimeLimits& limits)
    : impl_(std::make_unique<Impl>(world, rank, std::move(names), limits))
{
}

Heartbeat::~Heartbeat() = default;

std::optional<LostRank> Heartbeat::lost(Seconds wait) const
{
  return impl_->lost(wait);
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

bool follows_from_another(const std::string& message)
{
  if (message.ends_with(all_alive)) return false;
  return contains(message, TcpLink::deadline_passed) || contains(message, TcpLink::closed_by_peer) ||
         contains(message, TcpLink::cancelled);
}

}  // namespace isobar::exec
