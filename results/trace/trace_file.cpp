#include "results/trace/trace_file.hpp"

#include "core/errors.hpp"
#include "core/text/json_number.hpp"
#include "results/trace/gzip.hpp"
#include "results/trace/trace_schema_1.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace isobar::results {

namespace {

using SortedJson = nlohmann::json;

/// Above any real run; a trace with more was not written by Isobar.
constexpr std::uint64_t most_ranks = 1'000'000;
constexpr std::uint64_t most_steps = 10'000'000;
constexpr std::uint64_t most_lanes = 65'536;
constexpr std::uint64_t most_periods = 65'536;
constexpr std::uint64_t any = std::uint64_t{1} << 53;
constexpr std::size_t most_waits = 4;
// The largest times and sizes of other files.
constexpr double longest_s = 1e18;
constexpr double longest_us = 1e24;
constexpr double largest_bytes = 1e18;

std::uint64_t count_of(const SortedJson& object, const char* key, std::uint64_t most)
{
  const auto& value = object.at(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= most) {
    throw InputError(fmt::format("{}: {}: not a whole number below {}", key, shown(value.dump()), most));
  }
  return value.get<std::uint64_t>();
}

double number_of(const SortedJson& object, const char* key, double lowest, double highest)
{
  const auto& value = object.at(key);
  if (!value.is_number() || value.get<double>() < lowest || value.get<double>() > highest) {
    throw InputError(fmt::format("{}: {}: not a number from {:g} to {:g}", key, shown(value.dump()), lowest, highest));
  }
  return value.get<double>();
}

std::string string_of(const SortedJson& object, const char* key)
{
  const auto& value = object.at(key);
  if (!value.is_string()) throw InputError(fmt::format("{}: {}: not a text", key, shown(value.dump())));
  return value.get<std::string>();
}

const SortedJson& object_of(const SortedJson& object, const char* key)
{
  const auto& value = object.at(key);
  if (!value.is_object()) throw InputError(fmt::format("{}: {}: not an object", key, shown(value.dump())));
  return value;
}

/// Checks what any event may have: instructions, names, counters and arrows.
void check_event(const SortedJson& event)
{
  if (!event.is_object()) throw InputError(shown(event.dump()) + ": not an object");
  string_of(event, "ph");
  count_of(event, "pid", most_ranks);
  if (event.contains("name")) string_of(event, "name");
  if (event.contains("ts")) number_of(event, "ts", -longest_us, longest_us);
  if (event.contains("id")) count_of(event, "id", any);
  if (event.contains("args")) object_of(event, "args");
}

Opcode opcode_of(const std::string& name)
{
  const auto opcode = opcode_from_name(name);
  if (!opcode) throw InputError("cat: " + shown(name) + ": not an instruction");
  return *opcode;
}

/// What an event has in both schemas.
TraceEvent event_of(const SortedJson& json, std::uint64_t most_tracks)
{
  TraceEvent event;
  Instruction& instruction = event.instruction;
  event.rank = count_of(json, "pid", most_ranks);
  instruction.lane = static_cast<LaneId>(count_of(json, "tid", most_tracks));
  instruction.opcode = opcode_of(string_of(json, "cat"));
  event.begin = Seconds(1e-6 * number_of(json, "ts", -longest_us, longest_us));
  event.end = event.begin + Seconds(1e-6 * number_of(json, "dur", 0, longest_us));
  const SortedJson& details = object_of(json, "args");
  event.step = count_of(details, "step", most_steps);
  instruction.stage = static_cast<std::uint32_t>(count_of(details, "stage", most_ranks));
  instruction.microbatch = count_of(details, "microbatch", any);
  instruction.first_layer = count_of(details, "first_layer", any);
  instruction.last_layer = count_of(details, "last_layer", any);
  return event;
}

void read_time(TraceEvent& event, const SortedJson& details)
{
  if (details.contains("alone_s")) event.instruction.time = Seconds(number_of(details, "alone_s", 0, longest_s));
  event.memory = Bytes(number_of(details, "memory_bytes", -largest_bytes, largest_bytes));
}

EventOfSchema1 event_of_schema_1(const SortedJson& json)
{
  EventOfSchema1 result;
  result.event = event_of(json, tracks_of_schema_1.size());
  Instruction& instruction = result.event.instruction;
  const SortedJson& details = json.at("args");
  const bool is_other_collective = is_collective(instruction.opcode) && instruction.opcode != Opcode::AllReduce;
  if (is_other_collective || is_copy(instruction.opcode)) {
    throw InputError(fmt::format("cat: {}: not an instruction of isobar-trace/1", name_of(instruction.opcode)));
  }
  if (is_transfer(instruction.opcode)) {
    result.peer = count_of(details, "peer", most_ranks);
    result.peer_position = count_of(details, "peer_position", any);
    instruction.size = Bytes(number_of(details, "bytes", 0, largest_bytes));
  } else {
    if (instruction.opcode == Opcode::AllReduce) result.peer = count_of(details, "peer", most_ranks);
    read_time(result.event, details);
  }
  if (details.contains("wait_tid")) {
    const auto track = count_of(details, "wait_tid", tracks_of_schema_1.size());
    instruction.waits = Wait{static_cast<LaneId>(track), 0, count_of(details, "wait_count", any)};
  }
  return result;
}

/// Names of the processes that have tracks.
std::vector<std::string> device_names(const SortedJson& events)
{
  std::map<std::uint64_t, std::string> names;
  std::set<std::uint64_t> ranks;
  for (const auto& event : events) {
    if (event.at("ph") != "M") continue;
    if (event.at("name") == "process_name") {
      names[count_of(event, "pid", most_ranks)] = string_of(object_of(event, "args"), "name");
    } else if (event.at("name") == "thread_name") {
      ranks.insert(count_of(event, "pid", most_ranks));
    }
  }
  std::vector<std::string> devices;
  for (const auto rank : ranks) {
    if (rank != devices.size()) throw InputError(fmt::format("process {} is missing", devices.size()));
    devices.push_back(names[rank]);
  }
  return devices;
}

/// The named tracks of each rank, numbered from 0.
std::vector<std::vector<Lane>> lanes_of(const SortedJson& events, std::size_t ranks)
{
  std::vector<std::map<std::uint64_t, std::string>> names(ranks);
  for (const auto& event : events) {
    if (event.at("ph") != "M" || event.at("name") != "thread_name") continue;
    auto& of_rank = names[count_of(event, "pid", most_ranks)];
    of_rank[count_of(event, "tid", most_lanes)] = string_of(object_of(event, "args"), "name");
  }
  std::vector<std::vector<Lane>> lanes(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::map<std::string, std::uint64_t> track_of;
    for (const auto& [track, name] : names[rank]) {
      if (track != lanes[rank].size()) {
        throw InputError(fmt::format("process {}: track {} is missing", rank, lanes[rank].size()));
      }
      const auto [other, is_new] = track_of.emplace(name, track);
      if (!is_new) {
        throw InputError(
            fmt::format("process {}: tracks {} and {} are both named {}", rank, other->second, track, shown(name)));
      }
      lanes[rank].push_back({name, Engine::Device, std::nullopt});
    }
  }
  return lanes;
}

/// Reads the events of isobar-trace/2, and of them the channels between tracks.
class Schema2Reader {
 public:
  explicit Schema2Reader(TraceFile& trace) : trace_(trace), uses_(trace.lanes.size())
  {
    for (std::size_t rank = 0; rank < uses_.size(); ++rank) uses_[rank].resize(trace.lanes[rank].size());
  }

  void add(const SortedJson& json)
  {
    TraceEvent event = event_of(json, most_lanes);
    if (event.rank >= trace_.lanes.size()) {
      throw InputError(fmt::format("an event of process {}, which has no name", event.rank));
    }
    Instruction& instruction = event.instruction;
    const auto& lanes = trace_.lanes[event.rank];
    if (instruction.lane >= lanes.size()) {
      throw InputError(
          fmt::format("an event on track {} of process {}, which has no name", instruction.lane, event.rank));
    }
    const SortedJson& details = json.at("args");
    event.position = count_of(details, "position", any);
    Use use{kind_of(instruction.opcode), 0, 0, engine_of(instruction)};
    if (use.kind == Kind::Computation) {
      read_time(event, details);
    } else {
      if (use.kind == Kind::Copy) {
        instruction.pass = opcode_of(string_of(details, "pass"));
      } else {
        use.channel = count_of(details, "channel", most_ranks);
      }
      instruction.payload = payload_of(string_of(details, "payload"));
      instruction.size = Bytes(number_of(details, "bytes", 0, largest_bytes));
    }
    if (is_transfer(instruction.opcode)) use.peer = count_of(details, "peer", most_ranks);
    note(event, use);
    if (details.contains("waits")) instruction.waits = waits_of(details.at("waits"), lanes);
    trace_.events.push_back(event);
  }

  /// Connects the tracks that share a channel.
  void finish()
  {
    for (std::size_t rank = 0; rank < uses_.size(); ++rank) {
      for (std::size_t lane = 0; lane < uses_[rank].size(); ++lane) add_end({rank, static_cast<LaneId>(lane)});
    }
    for (std::size_t i = 0; i < trace_.channels.size(); ++i) check_channel(i);
  }

 private:
  enum class Kind { Computation, Send, Receive, Collective, Copy };
  /// What all instructions of a track have in common.
  struct Use {
    Kind kind = Kind::Computation;
    std::size_t channel = 0;
    std::size_t peer = 0;
    Engine engine = Engine::Device;
  };

  static Engine engine_of(const Instruction& instruction)
  {
    switch (instruction.opcode) {
      case Opcode::Load:
        return Engine::CopyIn;
      case Opcode::Store:
        return Engine::CopyOut;
      case Opcode::Read:
        return Engine::DiskRead;
      case Opcode::Write:
        return Engine::DiskWrite;
      default:
        return instruction.lane == compute_lane ? Engine::Device : Engine::Host;
    }
  }

  static Kind kind_of(Opcode opcode)
  {
    if (is_computation(opcode)) return Kind::Computation;
    if (is_collective(opcode)) return Kind::Collective;
    if (is_copy(opcode)) return Kind::Copy;
    return opcode == Opcode::Send ? Kind::Send : Kind::Receive;
  }

  static Payload payload_of(const std::string& name)
  {
    constexpr std::array all = {Payload::Activation,   Payload::Gradient,  Payload::ParameterGradient,
                                Payload::TiedGradient, Payload::Parameter, Payload::GradientFacts,
                                Payload::Optimizer};
    const auto found = std::find_if(all.begin(), all.end(), [&](Payload each) { return name_of(each) == name; });
    if (found == all.end()) throw InputError("payload: " + shown(name) + ": not a payload");
    return *found;
  }

  static Waits waits_of(const SortedJson& json, const std::vector<Lane>& lanes)
  {
    if (!json.is_array() || json.size() > most_waits) {
      throw InputError(fmt::format("waits: {}: not a list of at most {}", shown(json.dump()), most_waits));
    }
    Waits waits;
    for (const auto& wait : json) {
      const auto lane = static_cast<LaneId>(count_of(wait, "tid", lanes.size()));
      const auto periods = static_cast<std::uint16_t>(count_of(wait, "periods_back", most_periods));
      waits.add({lane, periods, count_of(wait, "count", any)});
    }
    return waits;
  }

  void note(const TraceEvent& event, const Use& use)
  {
    auto& of_track = uses_[event.rank][event.instruction.lane];
    if (!of_track) of_track = use;
    const auto fault = [&](const std::string& what) {
      const Lane& lane = trace_.lanes[event.rank][event.instruction.lane];
      return InputError(
          fmt::format("{}, on track {}, {}", description_of(event.rank, event.instruction), shown(lane.name), what));
    };
    if (of_track->kind != use.kind) throw fault("is of another kind than those before it");
    if (of_track->channel != use.channel) {
      throw fault(fmt::format("has channel {}, and those before it channel {}", use.channel, of_track->channel));
    }
    if (of_track->peer != use.peer) {
      throw fault(fmt::format("has peer {}, and those before it peer {}", use.peer, of_track->peer));
    }
  }

  const Use& use_of(const End& end) const { return *uses_[end.rank][end.lane]; }

  void add_end(const End& end)
  {
    const auto& use = uses_[end.rank][end.lane];
    if (!use) return;
    Lane& lane = trace_.lanes[end.rank][end.lane];
    if (use->kind == Kind::Computation || use->kind == Kind::Copy) {
      lane.engine = use->engine;
      return;
    }
    lane.engine = Engine::Network;
    lane.channel = use->channel;
    if (trace_.channels.size() <= use->channel) trace_.channels.resize(use->channel + 1);
    auto& ends = trace_.channels[use->channel].ends;
    ends.insert(use->kind == Kind::Send ? ends.begin() : ends.end(), end);
  }

  void check_channel(std::size_t number) const
  {
    const auto& ends = trace_.channels[number].ends;
    const auto count = [&](Kind kind) {
      return std::count_if(ends.begin(), ends.end(), [&](const End& end) { return use_of(end).kind == kind; });
    };
    if (ends.empty() || count(Kind::Collective) == static_cast<std::ptrdiff_t>(ends.size())) return;
    if (ends.size() != 2 || count(Kind::Send) != 1 || count(Kind::Receive) != 1) {
      throw InputError(
          fmt::format("channel {}: {} tracks send, {} receive and {} have collectives; it needs one that "
                      "sends and one that receives, or collectives only",
                      number, count(Kind::Send), count(Kind::Receive), count(Kind::Collective)));
    }
    for (const End& end : ends) {
      const std::size_t other = other_end(trace_.channels[number], end.rank, end.lane).rank;
      if (use_of(end).peer == other) continue;
      throw InputError(fmt::format("process {}, track {}: peer {}; channel {} leads to process {}", end.rank,
                                   shown(trace_.lanes[end.rank][end.lane].name), use_of(end).peer, number, other));
    }
  }

  TraceFile& trace_;
  std::vector<std::vector<std::optional<Use>>> uses_;  // by rank and lane
};

/// Calls `take` for each event. `number` counts them meanwhile, to name the one that cannot be read.
template <typename Take>
void for_each_event(const SortedJson& events, std::optional<std::size_t>& number, Take take)
{
  number = 0;
  for (const auto& event : events) {
    take(event);
    ++*number;
  }
  number.reset();
}

/// The same for each instruction.
template <typename Add>
void for_each_instruction(const SortedJson& events, std::optional<std::size_t>& number, Add add)
{
  for_each_event(events, number, [&add](const SortedJson& event) {
    if (event.at("ph") == "X") add(event);
  });
}

}  // namespace

std::string description_of(std::size_t rank, const Instruction& instruction)
{
  return fmt::format("{} {} of rank {}", name_of(instruction.opcode), instruction.microbatch, rank);
}

std::string json_fault_message(const std::string& what)
{
  constexpr std::size_t longest = 300;
  const auto end = what.starts_with("[json.exception") ? what.find("] ") : std::string::npos;
  return shown(end == std::string::npos ? what : what.substr(end + 2), longest);
}

InputError fault_of_trace_text(const std::string& name, std::string_view text, std::size_t byte,
                               const std::string& what)
{
  const std::size_t at = std::max<std::size_t>(byte, 1) - 1;
  const auto number_fault = fault_of_json_number(text, at);
  if (number_fault.empty()) return InputError(name, json_fault_message(what));
  const auto lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  return InputError(fmt::format("{}:{}", name, lines + 1), number_fault);
}

bool is_list_of_events(std::string_view text)
{
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '[';
}

TraceFile read_trace(const std::filesystem::path& file)
{
  TraceFile trace;
  trace.name = file.string();
  const std::string text = read_unpacked(file);
  if (is_list_of_events(text)) {
    throw InputError(
        trace.name,
        "is a list of events, as of PyTorch's autograd profiler or Horovod; pass a trace of isobar simulate "
        "or isobar run (isobar trace stats also reads those of torch.profiler)");
  }
  std::optional<std::size_t> event_number;
  const auto place = [&] { return event_number ? fmt::format("traceEvents[{}]: ", *event_number) : ""; };
  try {
    const SortedJson json = SortedJson::parse(text);
    const SortedJson schema = json.is_object() ? json.value("/otherData/schema"_json_pointer, SortedJson()) : json;
    if (schema != "isobar-trace/1" && schema != "isobar-trace/2") {
      throw InputError(
          "otherData.schema: not isobar-trace/1 or isobar-trace/2; pass a trace of isobar simulate or isobar run");
    }
    const SortedJson& events = json.at("traceEvents");
    if (!events.is_array()) throw InputError("traceEvents: not a list");
    for_each_event(events, event_number, check_event);
    trace.devices = device_names(events);
    if (schema == "isobar-trace/1") {
      std::vector<EventOfSchema1> instructions;
      for_each_instruction(events, event_number, [&instructions](const SortedJson& event) {
        instructions.push_back(event_of_schema_1(event));
      });
      add_events_of_schema_1(trace, std::move(instructions));
    } else {
      trace.lanes = lanes_of(events, trace.devices.size());
      Schema2Reader reader(trace);
      for_each_instruction(events, event_number, [&reader](const SortedJson& event) { reader.add(event); });
      reader.finish();
    }
  } catch (const SortedJson::parse_error& error) {
    throw fault_of_trace_text(trace.name, text, error.byte, error.what());
  } catch (const SortedJson::exception& error) {
    throw InputError(trace.name, place() + json_fault_message(error.what()));
  } catch (const InputError& fault) {
    throw InputError(trace.name, place() + fault.what());
  }
  if (trace.events.empty()) throw InputError(trace.name, "traceEvents: holds no instructions");
  return trace;
}

}  // namespace isobar::results
