#pragma once

#include "tests/results/trace/two_stages.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar::results {

/// Four stages on two ranks: 0 and 2 on the first, 1 and 3 on the second; one micro-batch.
class InterleavedStages : public ListedProgram {
 public:
  InterleavedStages() : ListedProgram(2)
  {
    // In the order of their messages: activations onwards, then gradients back.
    for (const std::uint32_t to : {1U, 2U, 3U}) hop("activation", to - 1, to, to);
    for (const std::uint32_t to : {2U, 1U, 0U}) hop("gradient", to + 1, to, to + 1);
    for (std::uint32_t i = 0; i < tasks; ++i) {
      const Opcode opcode = i < tasks / 2 ? Opcode::Forward : Opcode::Backward;
      const auto waits = i == 0 || i == tasks / 2 ? Wait{} : Wait{receive_of(i), 0, 1};
      add(rank_of(i), compute_lane, opcode, {waits}, Payload::Activation, stage_of(i));
    }
    for (std::uint32_t stage = 0; stage < 4; ++stage) {
      add(stage % 2, compute_lane, Opcode::Update, {}, Payload::Activation, stage);
    }
  }

  /// As events, where each computation takes a second, each transfer a quarter, and each update a half.
  std::vector<TraceEvent> events() const
  {
    std::vector<TraceEvent> events;
    const auto event = [&](std::size_t rank, LaneId lane, std::uint64_t position, double begin, double end) {
      events.push_back({0, rank, position, at(rank, lane, position), Seconds(begin), Seconds(end), Bytes(0)});
    };
    std::array<std::uint64_t, 2> done = {};
    double now = 0;
    for (std::uint32_t i = 0; i < tasks; ++i) {
      if (i != 0 && i != tasks / 2) {
        const Channel& channel = channels()[hop_before(i)];
        for (const End& end : channel.ends) event(end.rank, end.lane, 0, now, now + 0.25);
        now += 0.25;
      }
      const std::size_t rank = rank_of(i);
      event(rank, compute_lane, done[rank]++, now, now + 1);
      now += 1;
    }
    // The second rank has nothing left to do when it has sent its last gradient.
    for (const std::size_t rank : {1U, 0U}) {
      const double begin = rank == 0 ? now : now - 1.25;
      event(rank, compute_lane, 4, begin, begin + 0.5);
      event(rank, compute_lane, 5, begin + 0.5, begin + 1);
    }
    return events;
  }

 private:
  /// Forwards of stages 0 to 3, then backwards of stages 3 to 0.
  static constexpr std::uint32_t tasks = 8;
  static std::uint32_t stage_of(std::uint32_t task) { return task < 4 ? task : tasks - 1 - task; }
  static std::uint32_t rank_of(std::uint32_t task) { return stage_of(task) % 2; }
  static std::size_t hop_before(std::uint32_t task) { return task < 4 ? task - 1 : task - 2; }
  LaneId receive_of(std::uint32_t task) const { return channels()[hop_before(task)].ends.back().lane; }

  void hop(const std::string& payload, std::uint32_t from, std::uint32_t to, std::uint32_t named_by)
  {
    const End sender = {from % 2, add_lane(from % 2, fmt::format("send {} {}", payload, named_by))};
    const End receiver = {to % 2, add_lane(to % 2, fmt::format("receive {} {}", payload, named_by))};
    connect({sender, receiver});
    const Payload what = payload == "activation" ? Payload::Activation : Payload::Gradient;
    add(sender.rank, sender.lane, Opcode::Send, {{compute_lane, 0, tasks_before(from, payload)}}, what, from);
    add(receiver.rank, receiver.lane, Opcode::Recv, {}, what, to);
  }

  /// How many instructions of the compute lane end with the one that makes the message.
  static std::uint64_t tasks_before(std::uint32_t stage, const std::string& payload)
  {
    const std::uint64_t forwards = stage / 2 + 1;
    return payload == "activation" ? forwards : 2 + (2 - stage / 2);
  }
};

}  // namespace isobar::results
