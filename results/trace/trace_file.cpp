#include "results/trace/trace_file.hpp"

#include "core/errors.hpp"
#include "results/trace/gzip.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace isobar::results {

namespace {

using Json = nlohmann::json;

constexpr std::array<Opcode, 6> all_opcodes = {Opcode::Forward, Opcode::Backward, Opcode::AllReduce,
                                               Opcode::Update,  Opcode::Send,     Opcode::Recv};
/// Above any real run; a trace with more was not written by Isobar.
constexpr std::uint64_t most_ranks = 1'000'000;
constexpr std::uint64_t most_steps = 10'000'000;

Lane lane_of(std::uint64_t track)
{
  if (track >= lane_count) throw InputError(fmt::format("track {}; there are {} tracks", track, lane_count));
  return static_cast<Lane>(track);
}

Opcode opcode_of(const std::string& name)
{
  for (const Opcode opcode : all_opcodes) {
    if (name == name_of(opcode)) return opcode;
  }
  throw InputError("cat: " + shown(name) + ": not an instruction");
}

std::uint64_t count_of(const Json& object, const char* key, std::uint64_t most)
{
  const auto& value = object.at(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= most) {
    throw InputError(fmt::format("{}: {}: not a whole number below {}", key, shown(value.dump()), most));
  }
  return value.get<std::uint64_t>();
}

TraceEvent event_of(const Json& json)
{
  constexpr std::uint64_t any = std::uint64_t{1} << 53;
  TraceEvent event;
  Instruction& instruction = event.instruction;
  event.rank = count_of(json, "pid", most_ranks);
  instruction.lane = lane_of(count_of(json, "tid", lane_count));
  instruction.opcode = opcode_of(json.at("cat"));
  event.begin = Seconds(1e-6 * json.at("ts").get<double>());
  const Seconds duration(1e-6 * json.at("dur").get<double>());
  if (duration < Seconds(0)) throw InputError("dur: less than 0");
  event.end = event.begin + duration;
  const Json& details = json.at("args");
  event.step = count_of(details, "step", most_steps);
  instruction.stage = static_cast<std::uint32_t>(count_of(details, "stage", most_ranks));
  instruction.microbatch = count_of(details, "microbatch", any);
  instruction.first_layer = count_of(details, "first_layer", any);
  instruction.last_layer = count_of(details, "last_layer", any);
  const bool transfers = is_transfer(instruction);
  if (transfers == (instruction.lane == Lane::Compute)) {
    throw InputError(fmt::format("a {} on track {}", name_of(instruction.opcode), name_of(instruction.lane)));
  }
  if (transfers || instruction.opcode == Opcode::AllReduce) instruction.peer = count_of(details, "peer", most_ranks);
  if (transfers) {
    instruction.peer_position = count_of(details, "peer_position", any);
    instruction.size = Bytes(details.at("bytes").get<double>());
  } else {
    instruction.work = Flops(details.at("flops").get<double>());
    event.memory = Bytes(details.at("memory_bytes").get<double>());
  }
  if (details.contains("wait_tid")) {
    instruction.wait = {lane_of(count_of(details, "wait_tid", lane_count)), count_of(details, "wait_count", any)};
  }
  return event;
}

std::string description_of(std::size_t rank, const Instruction& instruction)
{
  return fmt::format("{} {} of rank {}", name_of(instruction.opcode), instruction.microbatch, rank);
}

/// Names of the processes that have tracks.
std::vector<std::string> devices_of(const Json& events)
{
  std::map<std::uint64_t, std::string> names;
  for (const auto& event : events) {
    if (event.at("ph") == "M" && event.at("name") == "process_name") {
      names[count_of(event, "pid", most_ranks)] = event.at("args").at("name").get<std::string>();
    }
  }
  std::set<std::uint64_t> ranks;
  for (const auto& event : events) {
    if (event.at("ph") == "M" && event.at("name") == "thread_name") ranks.insert(count_of(event, "pid", most_ranks));
  }
  std::vector<std::string> devices;
  for (const auto rank : ranks) {
    if (rank != devices.size()) throw InputError(fmt::format("process {} is missing", devices.size()));
    devices.push_back(names[rank]);
  }
  return devices;
}

class RecordedProgram : public Program {
 public:
  explicit RecordedProgram(const TraceFile& trace) : lanes_(trace.devices.size())
  {
    std::vector<TraceEvent> first_step;
    for (const auto& event : trace.events) {
      if (event.step == 0) first_step.push_back(event);
    }
    std::stable_sort(first_step.begin(), first_step.end(),
                     [](const TraceEvent& a, const TraceEvent& b) { return a.begin < b.begin; });
    for (const auto& event : first_step) lane(event.rank, event.instruction.lane).push_back(event.instruction);
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      for (const Lane each : all_lanes) {
        for (const auto& instruction : lane(rank, each)) check(rank, instruction);
      }
    }
    check_ring();
  }

  std::size_t ranks() const override { return lanes_.size(); }
  Bytes resident_memory(std::size_t /*rank*/) const override
  {
    throw std::logic_error("a trace does not record resident memory");
  }
  std::uint64_t length(std::size_t rank, Lane of) const override { return lane(rank, of).size(); }
  Instruction at(std::size_t rank, Lane of, std::uint64_t position) const override { return lane(rank, of)[position]; }

 private:
  using Lanes = std::array<std::vector<Instruction>, lane_count>;

  std::vector<Instruction>& lane(std::size_t rank, Lane of) { return lanes_[rank][static_cast<std::size_t>(of)]; }
  const std::vector<Instruction>& lane(std::size_t rank, Lane of) const
  {
    return lanes_[rank][static_cast<std::size_t>(of)];
  }

  void check(std::size_t rank, const Instruction& instruction) const
  {
    if (instruction.wait.count > length(rank, instruction.wait.lane)) {
      throw InputError(fmt::format("{} waits for {} instructions of {}; there are {}",
                                   description_of(rank, instruction), instruction.wait.count,
                                   name_of(instruction.wait.lane), length(rank, instruction.wait.lane)));
    }
    if (!is_transfer(instruction)) return;
    const Lane other = other_end(instruction.lane);
    const bool has_other_end = instruction.peer < ranks() &&
                               instruction.peer_position < length(instruction.peer, other) &&
                               at(instruction.peer, other, instruction.peer_position).peer == rank;
    if (!has_other_end) throw InputError(description_of(rank, instruction) + " has no other end on its peer");
  }

  /// Each rank of the ring has one AllReduce, whose peer is the next rank.
  void check_ring() const
  {
    std::vector<std::optional<std::size_t>> next(ranks());
    std::size_t members = 0;
    std::size_t first = 0;
    for (std::size_t rank = 0; rank < ranks(); ++rank) {
      for (const auto& instruction : lane(rank, Lane::Compute)) {
        if (instruction.opcode != Opcode::AllReduce) continue;
        if (next[rank]) throw InputError(fmt::format("rank {} has a second AllReduce in a step", rank));
        next[rank] = instruction.peer;
        first = rank;
        ++members;
      }
    }
    std::size_t at_rank = first;
    for (std::size_t i = 0; i < members; ++i) {
      at_rank = *next[at_rank];
      const bool closes = at_rank == first;
      if (at_rank >= ranks() || !next[at_rank] || closes != (i + 1 == members)) {
        throw InputError("the ranks of the AllReduce do not form a ring");
      }
    }
  }

  std::vector<Lanes> lanes_;
};

/// Checks that a program terminates: advances every lane as far as its waits allow, until none can.
class WaitChecker {
 public:
  explicit WaitChecker(const Program& program)
      : program_(program), done_(program.ranks(), std::array<std::uint64_t, lane_count>{})
  {
  }

  void check()
  {
    while (advance_lanes()) {
    }
    for (std::size_t rank = 0; rank < program_.ranks(); ++rank) {
      for (const Lane lane : all_lanes) {
        if (done(rank, lane) == program_.length(rank, lane)) continue;
        throw InputError(description_of(rank, next(rank, lane)) + " waits for an instruction that never runs");
      }
    }
  }

 private:
  std::uint64_t& done(std::size_t rank, Lane lane) { return done_[rank][static_cast<std::size_t>(lane)]; }
  Instruction next(std::size_t rank, Lane lane) { return program_.at(rank, lane, done(rank, lane)); }

  bool is_ready(std::size_t rank, Lane lane)
  {
    if (done(rank, lane) == program_.length(rank, lane)) return false;
    const Wait wait = next(rank, lane).wait;
    return done(rank, wait.lane) >= wait.count;
  }

  /// False when no lane can advance.
  bool advance_lanes()
  {
    bool advanced = false;
    for (std::size_t rank = 0; rank < program_.ranks(); ++rank) {
      for (const Lane lane : all_lanes) {
        while (is_ready(rank, lane) && complete(rank, lane)) advanced = true;
      }
    }
    return advanced;
  }

  /// Completes the next instruction; false when other participants are not ready.
  bool complete(std::size_t rank, Lane lane)
  {
    const Instruction instruction = next(rank, lane);
    if (lane != Lane::Compute) {
      const Lane other = other_end(lane);
      if (!is_ready(instruction.peer, other) || done(instruction.peer, other) != instruction.peer_position)
        return false;
      ++done(instruction.peer, other);
    } else if (instruction.opcode == Opcode::AllReduce) {
      std::vector<std::size_t> others;
      for (std::size_t other = instruction.peer; other != rank; other = next(other, lane).peer) {
        if (!is_ready(other, lane) || next(other, lane).opcode != Opcode::AllReduce) return false;
        others.push_back(other);
      }
      for (const std::size_t other : others) ++done(other, lane);
    }
    ++done(rank, lane);
    return true;
  }

  const Program& program_;
  std::vector<std::array<std::uint64_t, lane_count>> done_;  // by rank and lane
};

}  // namespace

std::string json_fault_message(const std::string& what)
{
  constexpr std::size_t longest = 300;
  const auto end = what.starts_with("[json.exception") ? what.find("] ") : std::string::npos;
  return shown(end == std::string::npos ? what : what.substr(end + 2), longest);
}

TraceFile read_trace(const std::filesystem::path& file)
{
  TraceFile trace;
  trace.name = file.string();
  const std::string text = read_unpacked(file);
  std::optional<std::size_t> event_number;
  try {
    const Json json = Json::parse(text);
    if (!json.is_object() || json.value("/otherData/schema"_json_pointer, "") != "isobar-trace/1") {
      throw InputError("otherData.schema: not isobar-trace/1; pass a trace of isobar simulate or isobar run");
    }
    trace.devices = devices_of(json.at("traceEvents"));
    event_number = 0;
    for (const auto& event : json.at("traceEvents")) {
      if (event.at("ph") == "X") trace.events.push_back(event_of(event));
      ++*event_number;
    }
  } catch (const Json::exception& error) {
    const std::string what = json_fault_message(error.what());
    throw InputError(trace.name, event_number ? fmt::format("traceEvents[{}]: {}", *event_number, what) : what);
  } catch (const InputError& fault) {
    throw InputError(trace.name, fault.what());
  }
  if (trace.events.empty()) throw InputError(trace.name, "traceEvents: holds no instructions");
  for (const auto& event : trace.events) {
    if (event.rank >= trace.devices.size()) {
      throw InputError(trace.name, fmt::format("an event of process {}, which has no name", event.rank));
    }
  }
  return trace;
}

std::unique_ptr<const Program> recorded_program(const TraceFile& trace)
{
  try {
    auto program = std::make_unique<const RecordedProgram>(trace);
    WaitChecker(*program).check();
    return program;
  } catch (const InputError& fault) {
    throw InputError(trace.name, fault.what());
  }
}

}  // namespace isobar::results
