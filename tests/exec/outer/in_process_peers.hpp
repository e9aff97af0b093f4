#pragma once

#include "core/base/clock.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"
#include "exec/outer/peers.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

/// Peers that are threads of one process.
namespace isobar::exec {

/// The messages between all workers of a test.
class PostOffice {
 public:
  using Message = std::vector<std::byte>;

  void send(std::size_t from, std::size_t to, Message message)
  {
    const std::scoped_lock lock(mutex_);
    messages_[{from, to}].push_back(std::move(message));
    changed_.notify_all();
  }
  /// No messages from this worker follow.
  void leave(std::size_t worker)
  {
    const std::scoped_lock lock(mutex_);
    gone_.insert(worker);
    changed_.notify_all();
  }
  /// The next message, or why there is none.
  std::pair<Message, std::optional<Failure::Kind>> receive(std::size_t from, std::size_t to, Clock::time_point deadline)
  {
    std::unique_lock lock(mutex_);
    auto& queue = messages_[{from, to}];
    const bool in_time = changed_.wait_until(lock, deadline, [&] { return !queue.empty() || gone_.contains(from); });
    if (!in_time) return {{}, Failure::Kind::DeadlinePassed};
    if (queue.empty()) return {{}, Failure::Kind::PeerClosed};
    Message message = std::move(queue.front());
    queue.pop_front();
    return {std::move(message), std::nullopt};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::size_t, std::size_t>, std::deque<Message>> messages_;
  std::set<std::size_t> gone_;
};

class InProcessPeers final : public Peers {
 public:
  InProcessPeers(PostOffice& office, std::size_t self) : office_(&office), self_(self) {}
  ~InProcessPeers() override { office_->leave(self_); }

  std::size_t self() const override { return self_; }
  PeerTraffic traffic() const override { return traffic_; }

  void exchange(std::span<PeerTransfer> transfers, Seconds limit) override
  {
    const auto deadline = deadline_in(limit);
    for (const auto& transfer : transfers) {
      PostOffice::Message message;
      for (const auto& piece : transfer.outgoing) message.insert(message.end(), piece.begin(), piece.end());
      traffic_.sent += message.size();
      office_->send(self_, transfer.worker, std::move(message));
    }
    for (auto& transfer : transfers) {
      const auto found = failures_.find(transfer.worker);
      if (found != failures_.end()) {
        transfer.failure = found->second;
        continue;
      }
      const auto [message, fault] = office_->receive(transfer.worker, self_, deadline);
      if (fault) {
        const char* const why = *fault == Failure::Kind::PeerClosed ? "has left" : "is silent";
        transfer.failure = failures_[transfer.worker] = environment_failure(*fault, why, transfer.worker);
      } else {
        fill(transfer, message);
      }
    }
  }

 private:
  void fill(PeerTransfer& transfer, std::span<const std::byte> message)
  {
    std::size_t expected = 0;
    for (const auto& piece : transfer.incoming) expected += piece.size();
    if (message.empty() && expected > 0) {
      transfer.failure = environment_failure(Failure::Kind::Cancelled, "sent nothing", transfer.worker);
      return;
    }
    ensure(message.size() == expected, "a test sends what is expected");
    traffic_.received += expected;
    for (const auto& piece : transfer.incoming) {
      std::ranges::copy(message.first(piece.size()), piece.begin());
      message = message.subspan(piece.size());
    }
  }

  PostOffice* office_;
  std::size_t self_;
  std::map<std::size_t, Failure> failures_;
  PeerTraffic traffic_;
};

}  // namespace isobar::exec
