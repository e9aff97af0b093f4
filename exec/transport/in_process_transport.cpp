#include "core/failure.hpp"
#include "exec/device/stream.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/transport/transport.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

namespace isobar::exec {

namespace {

/// What the transports of all ranks share.
class Exchange {
 public:
  Exchange(const Program& program, Seconds deadline) : deadline_(std::chrono::duration<double>(deadline.value))
  {
    for (const auto& channel : program.channels()) meetings_.emplace_back(channel);
  }

  void send(std::size_t channel, const Message& message)
  {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_.at(channel);
    meeting.message = &message;
    meeting.changed.notify_all();
    wait(
        lock, meeting, [&] { return meeting.message == nullptr; },
        [&] { return fmt::format("rank {}: send to rank {}: not taken", meeting.rank_of(0), meeting.rank_of(1)); });
  }

  Message receive(std::size_t channel)
  {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_.at(channel);
    wait(
        lock, meeting, [&] { return meeting.message != nullptr; },
        [&] {
          return fmt::format("rank {}: receive from rank {}: nothing arrived", meeting.rank_of(1), meeting.rank_of(0));
        });
    Message message = *std::exchange(meeting.message, nullptr);
    meeting.changed.notify_all();
    return message;
  }

  void collective(Opcode opcode, std::size_t channel, std::size_t rank, const Tensors& tensors)
  {
    const auto make = [opcode](const Channel& of, const std::vector<Tensors>& of_ends) {
      combine(opcode, of, of_ends);
    };
    meet(opcode, channel, rank, tensors, make);
  }

  void exchange(Opcode opcode, std::size_t channel, std::size_t rank, Tensors outgoing, const Tensors& incoming)
  {
    outgoing.insert(outgoing.end(), incoming.begin(), incoming.end());
    const auto make = [](const Channel& /*of*/, const std::vector<Tensors>& of_ends) { hand_over(of_ends); };
    meet(opcode, channel, rank, outgoing, make);
  }

  void cancel() noexcept
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    for (auto& meeting : meetings_) meeting.changed.notify_all();
  }

 private:
  /// The last rank to arrive works for all, without the lock: the others only wait.
  template <typename Make>
  void meet(Opcode opcode, std::size_t channel, std::size_t rank, const Tensors& tensors, Make make)
  {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_.at(channel);
    auto& contributions = meeting.contributions;
    contributions[meeting.end_of(rank)] = tensors;
    const std::uint64_t round = meeting.round;
    if (++meeting.arrived == contributions.size()) {
      const auto all = std::exchange(contributions, std::vector<Tensors>(contributions.size()));
      lock.unlock();
      make(meeting.channel, all);
      lock.lock();
      meeting.arrived = 0;
      ++meeting.round;
      meeting.changed.notify_all();
    }
    wait(
        lock, meeting, [&] { return meeting.round != round; },
        [&] {
          return fmt::format("rank {}: {}: {} of {} ranks arrived", rank, name_of(opcode), meeting.arrived,
                             contributions.size());
        });
  }

  /// Copies what each end sends to where the others receive it. Each end has tensors for all ends, first those that it
  /// sends.
  static void hand_over(const std::vector<Tensors>& of_ends)
  {
    const at::NoGradGuard no_graph;
    const std::size_t ends = of_ends.size();
    for (std::size_t from = 0; from < ends; ++from) {
      for (std::size_t to = 0; to < ends; ++to) {
        if (from != to) of_ends[to].at(ends + from).copy_(of_ends[from].at(to), /*non_blocking=*/true);
      }
    }
    event_of_this_thread(of_ends.front().front().device().str()).wait();
  }

  /// Makes a collective of the tensors of each end.
  static void combine(Opcode opcode, const Channel& channel, const std::vector<Tensors>& of_ends)
  {
    const at::NoGradGuard no_graph;
    for (const auto& tensors : of_ends) {
      ensure(tensors.size() == of_ends.front().size(), "all ranks bring the same number of tensors");
    }
    if (opcode == Opcode::AllReduce) {
      sum_up(of_ends, of_ends.front());
      for (std::size_t end = 1; end < of_ends.size(); ++end) copy(of_ends.front(), of_ends[end]);
    } else {
      for (std::size_t end = 0; end < of_ends.size(); ++end) {
        std::vector<Tensors> parts;  // the one of this end, by end
        for (const auto& tensors : of_ends) parts.push_back(part_of(channel, end, tensors));
        if (opcode == Opcode::ReduceScatter) {
          Tensors sums;
          for (const auto& part : parts.front()) sums.push_back(part.clone());
          sum_up(parts, sums);
          copy(sums, parts[end]);
        } else {
          ensure(opcode == Opcode::AllGather, "a collective that no program has");
          for (std::size_t other = 0; other < parts.size(); ++other) {
            if (other != end) copy(parts[end], parts[other]);
          }
        }
      }
    }
    if (!of_ends.front().empty()) event_of_this_thread(of_ends.front().front().device().str()).wait();
  }

  /// Adds the tensors of the other ends to `sums`, which begins as those of the first. Adds in the order of the
  /// channel's ends, not of arrival, so that the sums always have the same bits.
  static void sum_up(const std::vector<Tensors>& of_ends, const Tensors& sums)
  {
    for (std::size_t end = 1; end < of_ends.size(); ++end) {
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i].add_(of_ends[end][i]);
    }
  }

  static void copy(const Tensors& from, const Tensors& to)
  {
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i], /*non_blocking=*/true);
  }

  /// Where the ranks at the ends of a channel meet.
  struct Meeting {
    explicit Meeting(const Channel& of_channel) : channel(of_channel), contributions(of_channel.ends.size()) {}

    std::size_t rank_of(std::size_t end) const { return channel.ends.at(end).rank; }
    std::size_t end_of(std::size_t rank) const
    {
      const auto found =
          std::find_if(channel.ends.begin(), channel.ends.end(), [rank](const End& end) { return end.rank == rank; });
      ensure(found != channel.ends.end(), "a rank meets others at its own channels");
      return static_cast<std::size_t>(found - channel.ends.begin());
    }

    Channel channel;
    std::condition_variable changed;
    const Message* message = nullptr;    // the sender's, until the receiver takes it
    std::vector<Tensors> contributions;  // by end
    std::size_t arrived = 0;
    std::uint64_t round = 0;
  };

  template <typename Condition, typename What>
  void wait(std::unique_lock<std::mutex>& lock, Meeting& meeting, Condition condition, What what)
  {
    const bool in_time = meeting.changed.wait_for(lock, deadline_, [&] { return cancelled_ || condition(); });
    if (cancelled_) {
      throw_failure(environment_failure(Failure::Kind::Cancelled, what() + ": cancelled"));
    }
    if (!in_time) throw EnvironmentError(fmt::format("{} within {:.3g} s", what(), deadline_.count()));
  }

  std::chrono::duration<double> deadline_;
  std::mutex mutex_;
  bool cancelled_ = false;
  std::deque<Meeting> meetings_;  // by channel
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::size_t rank, std::shared_ptr<Exchange> exchange) : rank_(rank), exchange_(std::move(exchange))
  {
  }

  void send(std::size_t channel, const Instruction& /*instruction*/, const Message& message) override
  {
    exchange_->send(channel, message);
  }
  Message receive(std::size_t channel, const Instruction& /*instruction*/) override
  {
    return exchange_->receive(channel);
  }
  void collective(std::size_t channel, const Instruction& instruction, const Tensors& tensors) override
  {
    exchange_->collective(instruction.opcode, channel, rank_, tensors);
  }
  void exchange(std::size_t channel, const Instruction& instruction, const Tensors& outgoing,
                const Tensors& incoming) override
  {
    exchange_->exchange(instruction.opcode, channel, rank_, outgoing, incoming);
  }
  void cancel() noexcept override { exchange_->cancel(); }

 private:
  std::size_t rank_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> in_process_transports(const Program& program, Seconds deadline)
{
  const auto exchange = std::make_shared<Exchange>(program, deadline);
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(rank, exchange));
  }
  return transports;
}

}  // namespace isobar::exec
