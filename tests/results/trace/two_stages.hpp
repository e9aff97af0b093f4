#pragma once

#include "core/program/chrome_trace.hpp"
#include "core/program/program.hpp"
#include "results/trace/timeline.hpp"
#include "results/trace/trace_file.hpp"
#include "tests/support/temporary_folder.hpp"

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

/// A small program, and traces of it whose numbers can be added up by hand.
namespace isobar::results {

/// Two stages, a and b, and one micro-batch: forward of a, forward and backward of b, backward of a, updates.
class TwoStages : public Program {
 public:
  TwoStages()
  {
    add(0, Opcode::Forward, Lane::Compute);
    add(0, Opcode::Backward, Lane::Compute, 0, {Lane::ReceiveGradient, 1});
    add(0, Opcode::AllReduce, Lane::Compute, 1);
    add(0, Opcode::Update, Lane::Compute);
    add(0, Opcode::Send, Lane::SendActivation, 1, {Lane::Compute, 1});
    add(0, Opcode::Recv, Lane::ReceiveGradient, 1);
    add(1, Opcode::Recv, Lane::ReceiveActivation, 0);
    add(1, Opcode::Forward, Lane::Compute, 0, {Lane::ReceiveActivation, 1});
    add(1, Opcode::Backward, Lane::Compute);
    add(1, Opcode::AllReduce, Lane::Compute, 0);
    add(1, Opcode::Update, Lane::Compute);
    add(1, Opcode::Send, Lane::SendGradient, 0, {Lane::Compute, 2});
  }

  std::size_t ranks() const override { return 2; }
  Bytes resident_memory(std::size_t) const override { return Bytes(0); }
  std::uint64_t length(std::size_t rank, Lane lane) const override { return lanes(rank, lane).size(); }
  Instruction at(std::size_t rank, Lane lane, std::uint64_t position) const override
  {
    return lanes(rank, lane)[position];
  }

 private:
  const std::vector<Instruction>& lanes(std::size_t rank, Lane lane) const
  {
    return lanes_[rank][static_cast<std::size_t>(lane)];
  }
  void add(std::size_t rank, Opcode opcode, Lane lane, std::size_t peer = 0, const Wait& wait = {})
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.lane = lane;
    instruction.stage = static_cast<std::uint32_t>(rank);
    instruction.peer = peer;
    instruction.wait = wait;
    lanes_[rank][static_cast<std::size_t>(lane)].push_back(instruction);
  }

  std::array<std::array<std::vector<Instruction>, lane_count>, 2> lanes_;
};

/// Writes traces of a program to a temporary file.
class WrittenTrace {
 public:
  std::filesystem::path name() const { return folder_.path() / "trace.json"; }
  void write(const std::string& content) const { folder_.write("trace.json", content); }
  Timeline timeline(const Program& program) const { return Timeline::of(read_trace(name()), program); }

  /// Writes `steps` consecutive steps with transfers of `transfer` seconds: forward and backward of a take 1 and 2 s,
  /// of b 3 and 4 s, updates at most half a second. Receives are posted at the start of a step.
  void write_steps(const Program& program, std::uint64_t steps, double transfer) const
  {
    std::ofstream out(name());
    ChromeTraceWriter writer(out, {"a", "b"});
    double start = 0;
    for (std::uint64_t step = 0; step < steps; ++step) {
      const auto event = [&](std::size_t rank, Lane lane, std::uint64_t position, double begin, double end) {
        writer.record(
            {step, rank, program.at(rank, lane, position), Seconds(start + begin), Seconds(start + end), Bytes(0)});
      };
      const double t = transfer;
      event(0, Lane::Compute, 0, 0, 1);
      event(0, Lane::SendActivation, 0, 1, 1 + t);
      event(1, Lane::ReceiveActivation, 0, 0, 1 + t);
      event(1, Lane::Compute, 0, 1 + t, 4 + t);
      event(1, Lane::Compute, 1, 4 + t, 8 + t);
      event(1, Lane::SendGradient, 0, 8 + t, 8 + 2 * t);
      event(0, Lane::ReceiveGradient, 0, 0, 8 + 2 * t);
      event(0, Lane::Compute, 1, 8 + 2 * t, 10 + 2 * t);
      event(1, Lane::Compute, 2, 8 + t, 10.25 + 2 * t);
      event(0, Lane::Compute, 2, 10 + 2 * t, 10.25 + 2 * t);
      event(1, Lane::Compute, 3, 10.25 + 2 * t, 10.5 + 2 * t);
      event(0, Lane::Compute, 3, 10.25 + 2 * t, 10.75 + 2 * t);
      start += 10.75 + 2 * t;
    }
    writer.finish();
  }

 private:
  testing_support::TemporaryFolder folder_;
};

}  // namespace isobar::results
