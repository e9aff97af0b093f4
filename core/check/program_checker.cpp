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
#include <set>
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
  }

 private:
  std::string text_of(std::size_t rank, std::size_t lane) const
  {
    return fmt::format("rank {}, lane {}", rank, shown(program_.lanes(rank)[lane].name));
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
      return add(lane.channel ? "a channel and engine device; a lane with a channel has engine network"
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
    const std::pair<const char*, double> amounts[] = {{"work", instruction.work.value},
                                                      {"size", instruction.size.value},
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
    if (channel == nullptr && !is_computation(opcode)) {
      return fmt::format("{} in a lane without a channel", name_of(opcode));
    }
    if (channel != nullptr && is_computation(opcode)) {
      return fmt::format("{} in a lane with a channel", name_of(opcode));
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
      auto& spots = tasks_.passage(stage, instruction.microbatch, spot.rank).spots;
      record_once(spots[static_cast<std::size_t>(instruction.opcode)], instruction, spot);
      if (instruction.opcode != Opcode::Backward && instruction.opcode != Opcode::BackwardWeight) return;
      tasks_.holding(stage, spot.rank).backwards.include(spot);
      tasks_.backwards[spot.rank].include(spot);
    } else if (instruction.opcode == Opcode::Recv) {
      auto& spots = tasks_.passage(stage, instruction.microbatch, spot.rank).spots;
      if (instruction.payload == Payload::Activation) spots[static_cast<std::size_t>(Kind::ActivationRecv)] = spot;
      if (instruction.payload == Payload::Gradient) spots[static_cast<std::size_t>(Kind::GradientRecv)] = spot;
    } else if (is_collective(instruction.opcode)) {
      record_collective(instruction, spot);
    }
  }

  void record_collective(const Instruction& instruction, const Spot& spot)
  {
    const std::size_t channel = *program_.lanes(spot.rank)[spot.lane].channel;
    switch (instruction.payload) {
      case Payload::GradientFacts:
        tasks_.facts[spot.rank].include(spot);
        return;
      case Payload::ParameterGradient: {
        Holding& holding = tasks_.holding(instruction.stage, spot.rank);
        holding.syncs.include(spot);
        holding.channels.insert(channel);
        if (instruction.opcode == Opcode::ReduceScatter) holding.scatters = channel;
        return;
      }
      case Payload::Parameter: {
        Holding& holding = tasks_.holding(instruction.stage, spot.rank);
        holding.gathers.include(spot);
        holding.gather_channels.insert(channel);
        return;
      }
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
    if (has_microbatch && a.microbatch != b.microbatch) {
      return differ(fmt::format("micro-batch {}", a.microbatch), fmt::format("micro-batch {}", b.microbatch));
    }
    if (!stages_agree(a, b)) return differ(fmt::format("stage {}", a.stage), fmt::format("stage {}", b.stage));
    return true;
  }

  /// A transfer leads from a stage to itself or to the one that needs it: of activations the next, of gradients the
  /// one before.
  static bool stages_agree(const Instruction& a, const Instruction& b)
  {
    if (a.payload == Payload::GradientFacts || a.stage == b.stage) return true;
    if (!is_transfer(a.opcode)) return false;
    if (a.payload == Payload::Activation) return b.stage == a.stage + 1;
    return a.payload == Payload::Gradient && a.stage == b.stage + 1;
  }

  const Program& program_;
  ProgramUse use_;
  Tasks& tasks_;
  ProgramFaults& faults_;
};

/// Checks that every stage has all that it needs for every micro-batch, and an update.
class TaskChecker {
 public:
  TaskChecker(const Program& program, ProgramUse use, const Tasks& tasks, ProgramFaults& faults)
      : program_(program), use_(use), tasks_(tasks), faults_(faults)
  {
  }

  void check()
  {
    check_forwards();
    if (!faults_.empty()) return;
    for (const auto& passage : tasks_.passages) check_passage(passage);
    if (use_ == ProgramUse::Evaluation) return;
    std::map<std::uint32_t, std::vector<const Holding*>> holdings_of_stage;
    for (const auto& holding : tasks_.holdings) {
      check_update(holding);
      holdings_of_stage[holding.stage].push_back(&holding);
    }
    for (const auto& [stage, holdings] : holdings_of_stage) {
      check_meet(
          stage, holdings, &Holding::channels, [](const Holding& holding) { return !holding.backwards.empty(); },
          "its parameter gradients");
      check_groups_meet(stage, holdings);
      std::map<std::size_t, std::vector<const Holding*>> scattered;  // by the channel that leaves each with a part
      for (const Holding* holding : holdings) {
        if (holding->scatters) scattered[*holding->scatters].push_back(holding);
      }
      for (const auto& [channel, parts] : scattered) {
        check_meet(
            stage, parts, &Holding::gather_channels, [](const Holding&) { return true; },
            "the parameters that ranks update in parts");
      }
    }
  }

 private:
  void add(const Spot& spot, const std::string& what)
  {
    faults_.add([&] { return fmt::format("{}: {}", text_of(program_, spot), what); });
  }

  /// Stages 0, 1, … have forwards of the same micro-batches 0, 1, …
  void check_forwards()
  {
    std::map<std::uint32_t, std::uint64_t> forwards;  // of each stage
    std::uint64_t largest = 0;
    for (const auto& passage : tasks_.passages) {
      if (!passage.spot(Kind::Forward).is_set()) continue;
      // Of several ranks that compute it, the one with the first.
      if (first_forward(passage.stage, passage.microbatch) == &passage) ++forwards[passage.stage];
      largest = std::max(largest, passage.microbatch);
    }
    stages_ = forwards.size();
    if (forwards.empty()) faults_.add([] { return "program: no Forward; it has one for every micro-batch"; });
    std::uint32_t next = 0;
    for (const auto& [stage, count] : forwards) {
      const std::uint32_t missing_stage = next;
      if (stage != missing_stage) {
        faults_.add([&] {
          return fmt::format("stage {}: no Forward; stages are numbered from 0 without gaps", missing_stage);
        });
        return;
      }
      ++next;
      if (count > largest) continue;
      std::uint64_t microbatch = 0;
      while (has_forward(stage, microbatch)) ++microbatch;
      const std::uint32_t incomplete = stage;
      faults_.add([&] { return fmt::format("stage {}: no Forward of micro-batch {}", incomplete, microbatch); });
    }
  }

  bool has_forward(std::uint32_t stage, std::uint64_t microbatch) const
  {
    return first_forward(stage, microbatch) != nullptr;
  }

  /// The first passage of a micro-batch through a stage with a forward; null without one.
  const Passage* first_forward(std::uint32_t stage, std::uint64_t microbatch) const
  {
    const Passage* passage = tasks_.find_passage(stage, microbatch);
    while (passage != nullptr && !passage->spot(Kind::Forward).is_set()) passage = tasks_.next(*passage);
    return passage;
  }

  /// Checks that ranks which compute the same together make their results whole: all ends of a channel and no others.
  void check_meetings(const Passage& passage)
  {
    const Passage* const first = first_forward(passage.stage, passage.microbatch);
    const auto found = tasks_.meetings.find(passage.stage);
    if (found == tasks_.meetings.end()) {
      if (first == &passage) return;
      faults_.add([&] {
        return fmt::format("{}: a second Forward for micro-batch {} of stage {}; the first is at {}",
                           text_of(program_, passage.spot(Kind::Forward)), passage.microbatch, passage.stage,
                           text_of(program_, first->spot(Kind::Forward)));
      });
      return;
    }
    const auto require = [&](Kind kind, const char* what) {
      const Spot& spot = passage.spot(kind);
      if (!spot.is_set()) return add(passage.spot(Kind::Forward), fmt::format("no collective of its {}", what));
      const auto& ends = program_.channels()[*program_.lanes(spot.rank)[spot.lane].channel].ends;
      std::size_t ranks = 0;
      for (const Passage* each = first; each != nullptr; each = tasks_.next(*each)) ++ranks;
      const bool has_all = std::all_of(ends.begin(), ends.end(), [&](const End& end) {
        return tasks_.find_passage(passage.stage, passage.microbatch, end.rank) != nullptr;
      });
      if (has_all && ends.size() == ranks) return;
      add(spot, fmt::format("a collective of {} ranks, and {} compute micro-batch {} of stage {}", ends.size(), ranks,
                            passage.microbatch, passage.stage));
    };
    require(Kind::ActivationSum, "activations");
    if (use_ == ProgramUse::Training && passage.stage > 0) require(Kind::GradientSum, "gradients");
  }

  void check_passage(const Passage& passage)
  {
    const auto add_fault = [&](const Spot& spot, const std::string& what) {
      add(spot, fmt::format("micro-batch {} of stage {} {}", passage.microbatch, passage.stage, what));
    };
    const Spot& forward = passage.spot(Kind::Forward);
    for (std::size_t i = 0; i < kinds; ++i) {
      const Spot& spot = passage.spots[i];
      if (!spot.is_set()) continue;
      if (forward.is_set()) continue;
      const Passage* const other = first_forward(passage.stage, passage.microbatch);
      if (other == nullptr) return add_fault(spot, "has no Forward");
      return add_fault(spot, fmt::format("has its Forward on rank {}", other->rank));
    }
    check_meetings(passage);
    check_arrival(passage, Kind::ActivationRecv);
    if (use_ == ProgramUse::Evaluation) return;
    // What is on a rank without its forward is missing here; that has been said of it.
    const Passage* each = tasks_.find_passage(passage.stage, passage.microbatch);
    while (each != nullptr && each->spot(Kind::Forward).is_set()) each = tasks_.next(*each);
    if (each != nullptr) return;
    const Spot& whole = passage.spot(Kind::Backward);
    const Spot& input = passage.spot(Kind::BackwardInput);
    const Spot& weight = passage.spot(Kind::BackwardWeight);
    if (whole.is_set()) {
      if (input.is_set()) return add_fault(input, "has a Backward too");
      if (weight.is_set()) return add_fault(weight, "has a Backward too");
    } else {
      if (!input.is_set() && !weight.is_set()) return add_fault(forward, "has no Backward");
      if (!weight.is_set()) return add_fault(input, "has no BackwardWeight");
      if (!input.is_set()) return add_fault(weight, "has no BackwardInput");
    }
    check_arrival(passage, Kind::GradientRecv);
  }

  /// Checks that the stage receives what it needs from a neighbour, unless that is on the same rank.
  void check_arrival(const Passage& passage, Kind recv)
  {
    const bool is_activation = recv == Kind::ActivationRecv;
    const bool is_outermost = is_activation ? passage.stage == 0 : passage.stage + 1 == stages_;
    if (is_outermost || passage.spot(recv).is_set()) return;
    const std::uint32_t neighbour = is_activation ? passage.stage - 1 : passage.stage + 1;
    const auto made_by = [&](const Passage* other) -> const Spot& {
      static const Spot none;
      if (other == nullptr) return none;
      return is_activation ? other->spot(Kind::Forward) : other->input_backward();
    };
    const Spot& needed = is_activation ? passage.spot(Kind::Forward) : passage.input_backward();
    if (made_by(tasks_.find_passage(neighbour, passage.microbatch, passage.rank)).is_set()) return;
    if (!made_by(tasks_.find_passage(neighbour, passage.microbatch)).is_set()) return;
    add(needed, fmt::format("no Recv brings the {} of micro-batch {} from stage {}",
                            is_activation ? "activation" : "gradient", passage.microbatch, neighbour));
  }

  void check_update(const Holding& holding)
  {
    if (holding.update.is_set() && holding.backwards.empty()) {
      add(holding.update, fmt::format("Update of stage {}, of which the rank has no backward", holding.stage));
    }
    if (!holding.update.is_set() && !holding.backwards.empty()) {
      faults_.add([&] {
        return fmt::format("rank {}: no Update of stage {}, of which it has backwards", holding.rank, holding.stage);
      });
    }
  }

  /// Checks that the parameter gradients of each rank meet those of each other group of ranks that compute the stage
  /// together.
  void check_groups_meet(std::uint32_t stage, const std::vector<const Holding*>& holdings)
  {
    const auto found = tasks_.meetings.find(stage);
    if (found == tasks_.meetings.end()) return;
    std::map<std::size_t, std::size_t> group_of;  // of a rank: the first channel on which it meets others
    std::set<std::size_t> groups;
    for (const std::size_t channel : found->second) {
      for (const End& end : program_.channels()[channel].ends) {
        if (group_of.emplace(end.rank, channel).second) groups.insert(channel);
      }
    }
    for (const Holding* holding : holdings) {
      std::set<std::size_t> reached = {group_of[holding->rank]};
      for (const std::size_t channel : holding->channels) {
        for (const End& end : program_.channels()[channel].ends) reached.insert(group_of[end.rank]);
      }
      if (holding->backwards.empty() || reached.size() >= groups.size()) continue;
      faults_.add([&] {
        return fmt::format("stage {}: no collective of its parameter gradients joins rank {} with each group of ranks",
                           stage, holding->rank);
      });
      return;
    }
  }

  /// Checks that collectives over these channels lead from each rank that takes part to all others.
  template <typename TakesPart>
  void check_meet(std::uint32_t stage, const std::vector<const Holding*>& holdings,
                  std::set<std::size_t> Holding::*channels_of, TakesPart takes_part, const char* what)
  {
    const auto first =
        std::find_if(holdings.begin(), holdings.end(), [&](const Holding* holding) { return takes_part(*holding); });
    if (first == holdings.end()) return;
    std::set<std::size_t> channels = (*first)->*channels_of;
    std::vector<bool> is_reached(holdings.size(), false);
    is_reached[static_cast<std::size_t>(first - holdings.begin())] = true;
    for (bool has_grown = true; has_grown;) {
      has_grown = false;
      for (std::size_t i = 0; i < holdings.size(); ++i) {
        const auto& own = holdings[i]->*channels_of;
        const auto is_shared = [&](std::size_t channel) { return channels.contains(channel); };
        if (is_reached[i] || std::none_of(own.begin(), own.end(), is_shared)) continue;
        is_reached[i] = has_grown = true;
        channels.insert(own.begin(), own.end());
      }
    }
    for (std::size_t i = 0; i < holdings.size(); ++i) {
      if (is_reached[i] || !takes_part(*holdings[i])) continue;
      faults_.add([&] {
        return fmt::format("stage {}: no collective of {} joins ranks {} and {}", stage, what, (*first)->rank,
                           holdings[i]->rank);
      });
      return;
    }
  }

  const Program& program_;
  ProgramUse use_;
  const Tasks& tasks_;
  ProgramFaults& faults_;
  std::size_t stages_ = 0;
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
  program_check::TaskChecker(program, use, tasks, faults).check();
  if (!faults.empty()) return faults.lines();
  return program_check::order_faults(program, tasks);
}

}  // namespace isobar
