#include "core/failure.hpp"
#include "exec/run/transport.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace isobar::exec {

namespace {

using Clock = std::chrono::steady_clock;

/// What the transports of all ranks share.
class Exchange {
 public:
  Exchange(std::size_t all_reduce_ranks, Seconds deadline)
      : deadline_(std::chrono::duration<double>(deadline.value)), contributions_(all_reduce_ranks)
  {
  }

  void send(std::size_t from, const Instruction& instruction, const Message& message)
  {
    std::unique_lock lock(mutex_);
    Handover& handover = handovers_[{from, instruction.peer, instruction.lane == Lane::SendGradient}];
    handover.message = &message;
    changed_.notify_all();
    wait(
        lock, [&] { return handover.message == nullptr; },
        [&] { return fmt::format("rank {}: send to rank {}: not taken", from, instruction.peer); });
  }

  Message receive(std::size_t to, const Instruction& instruction)
  {
    std::unique_lock lock(mutex_);
    Handover& handover = handovers_[{instruction.peer, to, instruction.lane == Lane::ReceiveGradient}];
    wait(
        lock, [&] { return handover.message != nullptr; },
        [&] { return fmt::format("rank {}: receive from rank {}: nothing arrived", to, instruction.peer); });
    Message message = *std::exchange(handover.message, nullptr);
    changed_.notify_all();
    return message;
  }

  /// Adds in the order of ranks, not of arrival, so that the sum always has the same bits.
  void all_reduce_sum(std::size_t rank, std::span<double> values)
  {
    std::unique_lock lock(mutex_);
    contributions_[rank].assign(values.begin(), values.end());
    const std::uint64_t round = round_;
    if (++arrived_ == contributions_.size()) {
      sum_.assign(values.size(), 0);
      for (const auto& contribution : contributions_) {
        ensure(contribution.size() == sum_.size(), "all ranks reduce the same number of values");
        for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += contribution[i];
      }
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    wait(
        lock, [&] { return round_ != round; },
        [&] {
          return fmt::format("rank {}: all-reduce: {} of {} ranks arrived", rank, arrived_, contributions_.size());
        });
    std::copy(sum_.begin(), sum_.end(), values.begin());
  }

  void cancel() noexcept
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

 private:
  /// A one-way link: holds the sender's message until the receiver takes it.
  struct Handover {
    const Message* message = nullptr;
  };

  template <typename Condition, typename What>
  void wait(std::unique_lock<std::mutex>& lock, Condition condition, What what)
  {
    const bool in_time = changed_.wait_for(lock, deadline_, [&] { return cancelled_ || condition(); });
    if (cancelled_) {
      throw_failure(environment_failure(Failure::Kind::Cancelled, what() + ": cancelled"));
    }
    if (!in_time) throw EnvironmentError(fmt::format("{} within {:.3g} s", what(), deadline_.count()));
  }

  std::chrono::duration<double> deadline_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  std::map<std::tuple<std::size_t, std::size_t, bool>, Handover> handovers_;  // by sender, receiver, gradient
  std::vector<std::vector<double>> contributions_;
  std::vector<double> sum_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::size_t rank, std::shared_ptr<Exchange> exchange) : rank_(rank), exchange_(std::move(exchange))
  {
  }

  void send(const Instruction& instruction, const Message& message) override
  {
    exchange_->send(rank_, instruction, message);
  }
  Message receive(const Instruction& instruction) override { return exchange_->receive(rank_, instruction); }
  void all_reduce_sum(std::span<double> values) override { exchange_->all_reduce_sum(rank_, values); }
  void cancel() noexcept override { exchange_->cancel(); }

 private:
  std::size_t rank_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> in_process_transports(std::size_t ranks, std::size_t all_reduce_ranks,
                                                              Seconds deadline)
{
  const auto exchange = std::make_shared<Exchange>(all_reduce_ranks, deadline);
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(rank, exchange));
  }
  return transports;
}

}  // namespace isobar::exec
