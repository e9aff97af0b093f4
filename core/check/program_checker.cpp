#include "core/check/program_checker.hpp"

#include "core/check/program_tasks.hpp"
#include "core/errors.hpp"
#include "core/program/walk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar {

namespace program_check {

namespace {

bool is_amount(double value)
{
  return std::isfinite(value) && value >= 0;
}

/// Checks lanes and channels, before any instruction is looked at.
class LaneChecker {
 public:
  LaneChecker(const Program& program, ProgramFaults& faults) : program_(program), faults_(faults) {}

  void check()
  {
    if (program_.ranks() == 0) faults_.add([] { return "program: no ranks; it has at least one"; });
    for (std::size_t rank = 0; rank < program_.ranks(); ++rank) check_rank(rank);
    const auto& channels = program_.channels();
    for (std::size_t i = 0; i < channels.size(); ++i) check_channel(i, channels[i]);
    check_grids();
  }

 private:
  std::string text_of(std::size_t rank, std::size_t lane) const
  {
    return fmt::format("rank {}, lane {}", rank, shown(program_.lanes(rank)[lane].name));
  }

  void check_grids()
  {
    std::vector<bool> is_in_one(program_.ranks(), false);
    for (std::size_t i = 0; i < program_.grids().size(); ++i) {
      for (const std::size_t rank : program_.grids()[i]) {
        if (rank >= program_.ranks()) {
          faults_.add(
              [&] { return fmt::format("grid {}: rank {}; the program has {} ranks", i, rank, program_.ranks()); });
        } else if (is_in_one[rank]) {
          faults_.add([&] { return fmt::format("grid {}: rank {} again; a rank has one place in one grid", i, rank); });
        } else {
          is_in_one[rank] = true;
        }
      }
    }
  }

  void check_rank(std::size_t rank)
  {
    const auto& lanes = program_.lanes(rank);
    constexpr std::size_t most_lanes = std::size_t{std::numeric_limits<LaneId>::max()} + 1;
    if (lanes.empty() || lanes.size() > most_lanes) {
      faults_.add([&] { return fmt::format("rank {}: {} lanes; it has 1 to {}", rank, lanes.size(), most_lanes); });
      return;
    }
    std::map<std::string, std::size_t> lane_of_name;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      const auto [named, is_new] = lane_of_name.emplace(lanes[i].name, i);
      if (!is_new) {
        const std::size_t first = named->second;
        faults_.add([&] {
          return fmt::format("{}: the name of lane {} and lane {}; names are unique in a rank", text_of(rank, i), first,
                             i);
        });
      }
      check_lane(rank, i, lanes[i]);
    }
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      const Bytes resident = program_.resident(rank, static_cast<Tier>(tier));
      if (is_amount(resident.value)) continue;
      faults_.add([&] {
        return fmt::format("rank {}: {} B of resident {} memory; an amount is finite and at least 0", rank,
                           resident.value, name_of(static_cast<Tier>(tier)));
      });
    }
  }

  void check_lane(std::size_t rank, std::size_t index, const Lane& lane)
  {
    const auto add = [&](const std::string& what) {
      faults_.add([&] { return fmt::format("{}: {}", text_of(rank, index), what); });
    };
    if (index == compute_lane && (lane.channel || lane.engine != Engine::Device)) {
      return add("lane 0 has a channel or another engine; it computes on the device");
    }
    if (lane.channel.has_value() != (lane.engine == Engine::Network)) {
      return add(lane.channel ? fmt::format("a channel and engine {}; a lane with a channel has engine network",
                                            name_of(lane.engine))
                              : "engine network and no channel; it needs one");
    }
    if (!lane.channel) return;
    if (*lane.channel >= program_.channels().size()) {
      return add(fmt::format("channel {}; the program has {}", *lane.channel, program_.channels().size()));
    }
    const auto& ends = program_.channels()[*lane.channel].ends;
    const End self{rank, static_cast<LaneId>(index)};
    if (std::find(ends.begin(), ends.end(), self) != ends.end()) return;
    add(fmt::format("channel {}, which does not list it as an end", *lane.channel));
  }

  void check_channel(std::size_t index, const Channel& channel)
  {
    if (channel.ends.empty()) faults_.add([&] { return fmt::format("channel {}: no ends", index); });
    for (std::size_t i = 0; i < channel.ends.size(); ++i) {
      if (const auto what = end_fault(index, channel, i)) {
        faults_.add([&] { return fmt::format("channel {}, end {}: {}", index, i, *what); });
        return;
      }
    }
    for (std::size_t i = 1; i < channel.ends.size(); ++i) {
      const End& first = channel.ends.front();
      const End& end = channel.ends[i];
      const std::uint64_t expected = program_.length(first.rank, first.lane);
      const std::uint64_t length = program_.length(end.rank, end.lane);
      if (length == expected) continue;
      faults_.add([&] {
        return fmt::format("{}: {} instructions, but {} at the other end of its channel, {}",
                           text_of(first.rank, first.lane), expected, length, text_of(end.rank, end.lane));
      });
    }
  }

  std::optional<std::string> end_fault(std::size_t index, const Channel& channel, std::size_t i) const
  {
    const End& end = channel.ends[i];
    if (end.rank >= program_.ranks()) {
      return fmt::format("rank {}; the program has {} ranks", end.rank, program_.ranks());
    }
    const auto& lanes = program_.lanes(end.rank);
    if (end.lane >= lanes.size()) {
      return fmt::format("lane {} of rank {}, which has {} lanes", end.lane, end.rank, lanes.size());
    }
    if (lanes[end.lane].channel != index) {
      return fmt::format("{}, which does not have this channel", text_of(end.rank, end.lane));
    }
    const auto is_same_rank = [&](const End& other) { return other.rank == end.rank; };
    const auto until = channel.ends.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(channel.ends.begin(), until, is_same_rank)) {
      return fmt::format("rank {} again; the ends of a channel are on different ranks", end.rank);
    }
    return std::nullopt;
  }

  const Program& program_;
  ProgramFaults& faults_;
};

/// Checks every instruction alone and against those that it meets, and collects the tasks.
class InstructionChecker {
 public:
  InstructionChecker(const Program& program, ProgramUse use, Tasks& tasks, ProgramFaults& faults)
      : program_(program), use_(use), tasks_(tasks), faults_(faults)
  {
  }

  void check()
  {
    for (std::size_t rank = 0; rank < program_.ranks(); ++rank) {
      const auto& lanes = program_.lanes(rank);
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        if (lanes[i].channel) continue;
        const auto lane = static_cast<LaneId>(i);
        for (std::uint64_t k = 0; k < program_.length(rank, lane); ++k) {
          check_alone(program_.at(rank, lane, k), {static_cast<std::uint32_t>(rank), lane, k}, nullptr);
        }
      }
    }
    for (const auto& channel : program_.channels()) check_channel(channel);
  }

 private:
  void add(const Spot& spot, const std::string& what)
  {
    faults_.add([&] { return fmt::format("{}: {}", text_of(program_, spot), what); });
  }

  void check_channel(const Channel& channel)
  {
    const End& first = channel.ends.front();
    const std::uint64_t length = program_.length(first.rank, first.lane);
    std::vector<Instruction> met(channel.ends.size());
    std::optional<Opcode> first_opcode;
    for (std::uint64_t k = 0; k < length; ++k) {
      bool is_sound = true;
      for (std::size_t i = 0; i < channel.ends.size(); ++i) {
        const End& end = channel.ends[i];
        met[i] = program_.at(end.rank, end.lane, k);
        is_sound = check_alone(met[i], spot_at(end, k), &channel) && is_sound;
      }
      if (!is_sound) continue;
      if (!first_opcode) first_opcode = met.front().opcode;
      if (is_transfer(*first_opcode) != is_transfer(met.front().opcode)) {
        add(spot_at(first, k), fmt::format("{} after {} over one channel, which has either transfers or collectives",
                                           name_of(met.front().opcode), name_of(*first_opcode)));
        continue;
      }
      for (std::size_t i = 1; i < met.size(); ++i) {
        if (check_meeting(met.front(), met[i], spot_at(first, k), spot_at(channel.ends[i], k))) continue;
        break;
      }
    }
  }

  static Spot spot_at(const End& end, std::uint64_t position)
  {
    return {static_cast<std::uint32_t>(end.rank), end.lane, position};
  }

  /// Checks an instruction of a lane with `channel` (or without one: null), and records it; false if it has a fault.
  bool check_alone(const Instruction& instruction, const Spot& spot, const Channel* channel)
  {
    const std::string fault = fault_alone(instruction, spot, channel);
    if (!fault.empty()) {
      add(spot, fault);
      return false;
    }
    record(instruction, spot);
    return true;
  }

  std::string fault_alone(const Instruction& instruction, const Spot& spot, const Channel* channel) const
  {
    if (instruction.lane != spot.lane) {
      return fmt::format("says lane {}; it is in lane {}", instruction.lane, spot.lane);
    }
    if (auto fault = fault_of_opcode(instruction, spot, channel); !fault.empty()) return fault;
    const std::pair<const char*, double> amounts[] = {{"time", instruction.time.value},
                                                      {"size", instruction.size.value},
                                                      {"result", instruction.result.value},
                                                      {"acquires", instruction.acquires.size.value},
                                                      {"releases", instruction.releases.size.value}};
    for (const auto& [name, amount] : amounts) {
      if (!is_amount(amount)) return fmt::format("{} {}; an amount is finite and at least 0", name, amount);
    }
    if (instruction.first_layer > instruction.last_layer) {
      return fmt::format("first_layer {} is after last_layer {}", instruction.first_layer, instruction.last_layer);
    }
    for (const Wait& wait : instruction.waits) {
      if (auto fault = fault_of_wait(wait, spot); !fault.empty()) return fault;
    }
    return {};
  }

  std::string fault_of_opcode(const Instruction& instruction, const Spot& spot, const Channel* channel) const
  {
    const Opcode opcode = instruction.opcode;
    if (channel != nullptr && instruction.payload == Payload::Optimizer) {
      return fmt::format("{} of an optimizer; its state goes between host and disk only", name_of(opcode));
    }
    if (channel != nullptr && instruction.payload == Payload::OuterGradient) {
      return fmt::format("{} of an outer gradient, which steps do not have", name_of(opcode));
    }
    if (channel != nullptr && instruction.payload == Payload::TiedGradient && opcode != Opcode::AllReduce) {
      return fmt::format("{} of a tied gradient, which an AllReduce adds up", name_of(opcode));
    }
    if (channel != nullptr && (is_computation(opcode) || is_copy(opcode))) {
      return fmt::format("{} in a lane with a channel", name_of(opcode));
    }
    if (channel == nullptr) {
      if (!is_computation(opcode) && !is_copy(opcode)) {
        return fmt::format("{} in a lane without a channel", name_of(opcode));
      }
      const Engine engine = program_.lanes(spot.rank)[spot.lane].engine;
      if (!is_done_by(engine, opcode)) {
        return fmt::format("{} in a lane of engine {}", name_of(opcode), name_of(engine));
      }
    }
    if (use_ == ProgramUse::Evaluation && is_computation(opcode) && opcode != Opcode::Forward) {
      return fmt::format("{} in an evaluation, which has only forwards", name_of(opcode));
    }
    if (!is_transfer(opcode)) return {};
    if (channel->ends.size() != 2) {
      return fmt::format("{} over a channel of {} ends; a transfer has two", name_of(opcode), channel->ends.size());
    }
    const bool is_first = channel->ends.front() == End{spot.rank, spot.lane};
    if (is_first == (opcode == Opcode::Send)) return {};
    return fmt::format("{} at the {} end of its channel; the sender is first", name_of(opcode),
                       is_first ? "first" : "second");
  }

  /// Whether a lane of an engine other than the network may have the instruction.
  static bool is_done_by(Engine engine, Opcode opcode)
  {
    switch (opcode) {
      case Opcode::Load:
        return engine == Engine::CopyIn;
      case Opcode::Store:
        return engine == Engine::CopyOut;
      case Opcode::Read:
        return engine == Engine::DiskRead;
      case Opcode::Write:
        return engine == Engine::DiskWrite;
      case Opcode::Update:
        return engine == Engine::Device || engine == Engine::Host;
      default:
        return engine == Engine::Device;
    }
  }

  std::string fault_of_wait(const Wait& wait, const Spot& spot) const
  {
    const auto& lanes = program_.lanes(spot.rank);
    if (wait.lane >= lanes.size()) {
      return fmt::format("waits for lane {}; the rank has {} lanes", wait.lane, lanes.size());
    }
    const std::uint64_t length = program_.length(spot.rank, wait.lane);
    if (wait.count > length) {
      return fmt::format("waits for {} instructions of lane {}, which has {}", wait.count, shown(lanes[wait.lane].name),
                         length);
    }
    if (wait.lane == spot.lane && wait.periods_back == 0 && wait.count > spot.position) {
      return fmt::format("waits for {} instructions of its own lane, where {} come before it", wait.count,
                         spot.position);
    }
    return {};
  }

  void record(const Instruction& instruction, const Spot& spot)
  {
    for (const Wait& wait : instruction.waits) tasks_.is_awaited[spot.rank][wait.lane] = true;
    const std::uint32_t stage = instruction.stage;
    if (instruction.opcode == Opcode::Update) {
      record_once(tasks_.holding(stage, spot.rank).update, instruction, spot);
    } else if (is_computation(instruction.opcode)) {
      if (instruction.opcode == Opcode::Forward) layers_of_[stage] = {instruction.first_layer, instruction.last_layer};
      auto& spots = tasks_.passage(stage, instruction.microbatch, spot.rank).spots;
      record_once(spots[static_cast<std::size_t>(instruction.opcode)], instruction, spot);
      if (instruction.opcode != Opcode::Backward && instruction.opcode != Opcode::BackwardWeight) return;
      tasks_.holding(stage, spot.rank).backwards.include(spot);
      tasks_.backwards[spot.rank].include(spot);
    } else if (instruction.opcode == Opcode::Recv) {
      Passage& passage = tasks_.passage(stage, instruction.microbatch, spot.rank);
      if (instruction.payload == Payload::Activation) tasks_.add_receive(passage, Kind::ActivationRecv, spot);
      if (instruction.payload == Payload::Gradient) tasks_.add_receive(passage, Kind::GradientRecv, spot);
    } else if (is_collective(instruction.opcode)) {
      record_collective(instruction, spot);
    }
  }

  void record_collective(const Instruction& instruction, const Spot& spot)
  {
    const std::size_t channel = *program_.lanes(spot.rank)[spot.lane].channel;
    if (is_of_grid(instruction, channel) || is_of_sequence(spot)) return record_in_grid(instruction, spot);
    switch (instruction.payload) {
      case Payload::GradientFacts:
        tasks_.facts[spot.rank].include(spot);
        return;
      case Payload::ParameterGradient: {
        const auto record_for = [&](std::uint32_t stage) {
          Holding& holding = tasks_.holding(stage, spot.rank);
          holding.syncs.include(spot);
          holding.channels.insert(channel);
          if (instruction.opcode == Opcode::ReduceScatter) holding.scatters.insert(channel);
        };
        record_for(instruction.stage);
        const auto besides = stages_besides(instruction, spot.rank);
        for (const std::uint32_t stage : besides) record_for(stage);
        if (!besides.empty()) tasks_.stages_besides[{spot.rank, spot.lane, spot.position}] = besides;
        return;
      }
      case Payload::TiedGradient: {
        Holding& holding = tasks_.holding(instruction.stage, spot.rank);
        holding.ties.include(spot);
        holding.tie_channels.insert(channel);
        tasks_.ties[spot.rank].include(spot);
        tasks_.stages_of_tie[channel].insert(instruction.stage);
        return;
      }
      case Payload::Parameter: {
        Holding& holding = tasks_.holding(instruction.stage, spot.rank);
        holding.gathers.include(spot);
        holding.gather_channels.insert(channel);
        return;
      }
      case Payload::Optimizer:
      case Payload::OuterGradient:
        return;  // refused as a fault
      case Payload::Activation:
      case Payload::Gradient: {
        tasks_.meetings[instruction.stage].insert(channel);
        const bool is_of_outputs = instruction.payload == Payload::Activation;
        auto& spots = tasks_.passage(instruction.stage, instruction.microbatch, spot.rank).spots;
        record_once(spots[static_cast<std::size_t>(is_of_outputs ? Kind::ActivationSum : Kind::GradientSum)],
                    instruction, spot);
        return;
      }
    }
  }

  /// The stages of a rank after the instruction's own whose layers it has too. All forwards have been recorded.
  std::vector<std::uint32_t> stages_besides(const Instruction& instruction, std::uint32_t rank) const
  {
    std::vector<std::uint32_t> stages;
    for (auto next = layers_of_.upper_bound(instruction.stage); next != layers_of_.end(); ++next) {
      const auto& [first, last] = next->second;
      const bool is_beyond = first > instruction.first_layer && last <= instruction.last_layer;
      if (is_beyond && tasks_.find_holding(next->first, rank) != nullptr) stages.push_back(next->first);
    }
    return stages;
  }

  /// Whether ranks meet that divide sequences or experts, each for a micro-batch of its own.
  bool is_of_sequence(const Spot& spot) const
  {
    const auto& role = program_.lanes(spot.rank)[spot.lane].role;
    return role && is_exchange(*role);
  }

  /// Whether ranks of a grid meet for one micro-batch: not to add up copies of gradients once a step, nor with others.
  bool is_of_grid(const Instruction& instruction, std::size_t channel) const
  {
    const auto& ends = program_.channels()[channel].ends;
    const auto& grid = tasks_.grid_of[ends.front().rank];
    if (!grid || instruction.payload == Payload::GradientFacts) return false;
    if (instruction.payload == Payload::ParameterGradient && instruction.opcode != Opcode::ReduceScatter) return false;
    return std::all_of(ends.begin(), ends.end(), [&](const End& end) { return tasks_.grid_of[end.rank] == grid; });
  }

  /// How many ranks have one each of the parts that meet.
  std::uint64_t parts_of_sequence(const Spot& spot) const
  {
    return program_.channels()[*program_.lanes(spot.rank)[spot.lane].channel].ends.size();
  }

  void record_in_grid(const Instruction& instruction, const Spot& spot)
  {
    const Passage& passage = tasks_.passage(instruction.stage, instruction.microbatch, spot.rank);
    tasks_.add_collective(passage, {spot, instruction.opcode, instruction.payload});
    if (instruction.payload != Payload::ParameterGradient) return;
    Holding& holding = tasks_.holding(instruction.stage, spot.rank);
    holding.syncs.include(spot);
    holding.block_sums.include(spot);
  }

  void record_once(Spot& place, const Instruction& instruction, const Spot& spot)
  {
    if (!place.is_set()) {
      place = spot;
      return;
    }
    faults_.add([&] {
      const std::string microbatch =
          instruction.opcode == Opcode::Update ? "" : fmt::format(" micro-batch {} of", instruction.microbatch);
      return fmt::format("{}: a second {} for{} stage {}; the first is at {}", text_of(program_, spot),
                         name_of(instruction.opcode), microbatch, instruction.stage, text_of(program_, place));
    });
  }

  /// Checks that two instructions that meet agree; false if they do not.
  bool check_meeting(const Instruction& a, const Instruction& b, const Spot& spot_a, const Spot& spot_b)
  {
    const auto differ = [&](const auto& text_a, const auto& text_b) {
      faults_.add([&] {
        return fmt::format("{}: {}, but {} at {}", text_of(program_, spot_a), text_a, text_b,
                           text_of(program_, spot_b));
      });
      return false;
    };
    // check_alone has found the Send and the Recv at the right ends.
    if (is_transfer(a.opcode) != is_transfer(b.opcode) || (is_collective(a.opcode) && a.opcode != b.opcode)) {
      return differ(name_of(a.opcode), name_of(b.opcode));
    }
    if (a.payload != b.payload) return differ(name_of(a.payload), name_of(b.payload));
    const bool needs_equal_size =
        is_transfer(a.opcode) || a.opcode == Opcode::AllReduce || a.opcode == Opcode::ReduceScatter;
    if (needs_equal_size && a.size != b.size) {
      return differ(fmt::format("{} B", a.size.value), fmt::format("{} B", b.size.value));
    }
    const bool has_microbatch = a.payload == Payload::Activation || a.payload == Payload::Gradient;
    const std::uint64_t parts = is_of_sequence(spot_a) ? parts_of_sequence(spot_a) : 1;
    if (has_microbatch && a.microbatch / parts != b.microbatch / parts) {
      return differ(fmt::format("micro-batch {}", a.microbatch), fmt::format("micro-batch {}", b.microbatch));
    }
    if (!stages_agree(a, b)) return differ(fmt::format("stage {}", a.stage), fmt::format("stage {}", b.stage));
    return true;
  }

  /// A transfer leads from a stage to itself or to the one that needs it: of activations the next, of gradients the
  /// one before. Those that share a matrix are different ones.
  static bool stages_agree(const Instruction& a, const Instruction& b)
  {
    if (a.payload == Payload::TiedGradient) return a.stage != b.stage;
    if (a.payload == Payload::GradientFacts || a.stage == b.stage) return true;
    if (!is_transfer(a.opcode)) return false;
    if (a.payload == Payload::Activation) return b.stage == a.stage + 1;
    return a.payload == Payload::Gradient && a.stage == b.stage + 1;
  }

  const Program& program_;
  ProgramUse use_;
  Tasks& tasks_;
  ProgramFaults& faults_;
  std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> layers_of_;  // first and last, by stage
};

}  // namespace

}  // namespace program_check

std::vector<std::string> faults_of(const Program& program, ProgramUse use)
{
  const std::uint64_t instructions = instructions_of(program);
  if (instructions > most_checked_instructions) {
    return {fmt::format("program: {} instructions in a period; at most {} can be checked", instructions,
                        most_checked_instructions)};
  }
  program_check::ProgramFaults faults;
  program_check::LaneChecker(program, faults).check();
  if (!faults.empty()) return faults.lines();
  program_check::Tasks tasks(program);
  program_check::InstructionChecker(program, use, tasks, faults).check();
  if (!faults.empty()) return faults.lines();
  program_check::add_task_faults(program, use, tasks, faults);
  if (!faults.empty()) return faults.lines();
  return program_check::order_faults(program, tasks);
}

}  // namespace isobar
