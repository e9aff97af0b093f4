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

/// Where all ranks of the process meet.
class MeetingPlace {
 public:
  MeetingPlace(std::size_t all_reduce_ranks, Seconds deadline)
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
        [&] { return fmt::format("rank {}: receive from rank {}: nothing came", to, instruction.peer); });
    Message message = *std::exchange(handover.message, nullptr);
    changed_.notify_all();
    return message;
  }

  /// Rank by rank, whoever comes first, so that the sum is the same bits every time.
  void all_reduce_sum(std::size_t rank, std::span<double> values)
  {
    std::unique_lock lock(mutex_);
    contributions_[rank].assign(values.begin(), values.end());
    const std::uint64_t round = round_;
    if (++arrived_ == contributions_.size()) {
      sum_.assign(values.size(), 0);
      for (const auto& contribution : contributions_) {
        ensure(contribution.size() == sum_.size(), "ranks reduce as many values");
        for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += contribution[i];
      }
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    wait(
        lock, [&] { return round_ != round; },
        [&] { return fmt::format("rank {}: all-reduce: {} of {} ranks came", rank, arrived_, contributions_.size()); });
    std::copy(sum_.begin(), sum_.end(), values.begin());
  }

  void cancel() noexcept
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

 private:
  /// A one-way link: the sender's message until the receiver has it.
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
  InProcessTransport(std::size_t rank, std::shared_ptr<MeetingPlace> place) : rank_(rank), place_(std::move(place)) {}

  void send(const Instruction& instruction, const Message& message) override
  {
    place_->send(rank_, instruction, message);
  }
  Message receive(const Instruction& instruction) override { return place_->receive(rank_, instruction); }
  void all_reduce_sum(std::span<double> values) override { place_->all_reduce_sum(rank_, values); }
  void cancel() noexcept override { place_->cancel(); }

 private:
  std::size_t rank_;
  std::shared_ptr<MeetingPlace> place_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> in_process_transports(std::size_t ranks, std::size_t all_reduce_ranks,
                                                              Seconds deadline)
{
  const auto place = std::make_shared<MeetingPlace>(all_reduce_ranks, deadline);
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(rank, place));
  }
  return transports;
}

}  // namespace isobar::exec
