#pragma once

#include "core/program/chrome_trace.hpp"
#include "core/program/program.hpp"
#include "results/trace/timeline.hpp"
#include "results/trace/trace_file.hpp"
#include "tests/results/trace/listed_program.hpp"
#include "tests/support/temporary_folder.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

/// A small program, and traces of it whose numbers can be added up by hand.
namespace isobar::results {

/// Two stages, a and b, and one micro-batch: forward of a, forward and backward of b, backward of a, updates.
class TwoStages : public ListedProgram {
 public:
  static constexpr LaneId send = 1;  ///< of activations for a, of gradients for b
  static constexpr LaneId receive = 2;
  static constexpr LaneId sync = 3;

  TwoStages() : ListedProgram(2)
  {
    add_lane(0, "send activation");
    add_lane(0, "receive gradient");
    add_lane(0, "sync");
    add_lane(1, "send gradient");
    add_lane(1, "receive activation");
    add_lane(1, "sync");
    connect({{0, send}, {1, receive}});
    connect({{1, send}, {0, receive}});
    connect({{0, sync}, {1, sync}});
    for (const std::uint32_t rank : {0U, 1U}) {
      const Payload sent = rank == 0 ? Payload::Activation : Payload::Gradient;
      const Payload received = rank == 0 ? Payload::Gradient : Payload::Activation;
      const Wait for_receive = {receive, 0, 1};
      const Wait none;
      add(rank, compute_lane, Opcode::Forward, {rank == 0 ? none : for_receive}, Payload::Activation, rank);
      add(rank, compute_lane, Opcode::Backward, {rank == 0 ? for_receive : none}, Payload::Activation, rank);
      add(rank, compute_lane, Opcode::Update, {{sync, 0, 1}}, Payload::Activation, rank);
      add(rank, send, Opcode::Send, {{compute_lane, 0, rank == 0 ? 1U : 2U}}, sent, rank);
      add(rank, receive, Opcode::Recv, {}, received, rank);
      add(rank, sync, Opcode::AllReduce, {{compute_lane, 0, 2}}, Payload::GradientFacts, rank);
    }
  }
};

/// `steps` consecutive steps of two stages with transfers of `transfer` seconds: forward and backward of a take 1 and
/// 2 s, of b 3 and 4 s, updates at most half a second. Receives are posted at the start of a step.
inline std::vector<TraceEvent> events_of_steps(const Program& program, std::uint64_t steps, double transfer)
{
  std::vector<TraceEvent> events;
  double start = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const auto event = [&](std::size_t rank, LaneId lane, std::uint64_t position, double begin, double end) {
      events.push_back({step, rank, position, program.at(rank, lane, position), Seconds(start + begin),
                        Seconds(start + end), Bytes(0)});
    };
    const double t = transfer;
    event(0, compute_lane, 0, 0, 1);
    event(0, TwoStages::send, 0, 1, 1 + t);
    event(1, TwoStages::receive, 0, 0, 1 + t);
    event(1, compute_lane, 0, 1 + t, 4 + t);
    event(1, compute_lane, 1, 4 + t, 8 + t);
    event(1, TwoStages::send, 0, 8 + t, 8 + 2 * t);
    event(0, TwoStages::receive, 0, 0, 8 + 2 * t);
    event(0, compute_lane, 1, 8 + 2 * t, 10 + 2 * t);
    event(1, TwoStages::sync, 0, 8 + t, 10.25 + 2 * t);
    event(0, TwoStages::sync, 0, 10 + 2 * t, 10.25 + 2 * t);
    event(1, compute_lane, 2, 10.25 + 2 * t, 10.5 + 2 * t);
    event(0, compute_lane, 2, 10.25 + 2 * t, 10.75 + 2 * t);
    start += 10.75 + 2 * t;
  }
  return events;
}

/// Writes traces of a program to a temporary file.
class WrittenTrace {
 public:
  std::filesystem::path name() const { return folder_.path() / "trace.json"; }
  void write(const std::string& content) const { folder_.write("trace.json", content); }
  Timeline timeline(const Program& program) const { return Timeline::of(read_trace(name()), program); }

  void write(const Program& program, const std::vector<TraceEvent>& events,
             const std::vector<std::string>& devices) const
  {
    std::ofstream out(name());
    ChromeTraceWriter writer(out, program, devices);
    for (const auto& event : events) writer.record(event);
    writer.finish();
  }
  void write_steps(const Program& program, std::uint64_t steps, double transfer) const
  {
    write(program, events_of_steps(program, steps, transfer), {"a", "b"});
  }

 private:
  testing_support::TemporaryFolder folder_;
};

}  // namespace isobar::results
