#include "results/trace/trace_schema_1.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace isobar::results {

namespace {

constexpr std::size_t track_count = tracks_of_schema_1.size();
constexpr std::size_t compute_track = 0;
/// From a track that sends to the one of the same payload that receives.
constexpr std::size_t from_send_to_receive = 2;

bool sends(std::size_t track)
{
  return track == 1 || track == 2;
}

class Upgrade {
 public:
  Upgrade(TraceFile& trace, std::vector<EventOfSchema1>& events)
      : trace_(trace), events_(events), ranks_(trace.devices.size())
  {
  }

  void upgrade()
  {
    std::stable_sort(events_.begin(), events_.end(),
                     [](const auto& a, const auto& b) { return a.event.begin < b.event.begin; });
    for (auto& event : events_) add_to_track(event);
    add_lanes();
    add_channels();
    for (auto& event : events_) {
      convert(event.event);
      trace_.events.push_back(event.event);
    }
  }

 private:
  struct Track {
    const EventOfSchema1* first = nullptr;                // null: the rank has no such lane
    std::map<std::uint64_t, std::uint64_t> instructions;  // by step
  };
  struct Rank {
    std::array<Track, track_count> tracks;
    std::array<LaneId, track_count> lanes = {};
    std::optional<std::size_t> next_in_ring;
    LaneId sync_lane = 0;
    std::map<std::uint64_t, std::uint64_t> all_reduce;  // by step, its position on the compute track
  };

  void add_to_track(EventOfSchema1& schema_1)
  {
    TraceEvent& event = schema_1.event;
    if (event.rank >= ranks_.size()) {
      throw InputError(fmt::format("an event of process {}, which has no name", event.rank));
    }
    Rank& rank = ranks_[event.rank];
    const Opcode opcode = event.instruction.opcode;
    const std::size_t number = event.instruction.lane;
    const bool belongs =
        number == compute_track ? !is_transfer(opcode) : opcode == (sends(number) ? Opcode::Send : Opcode::Recv);
    if (!belongs) throw InputError(fmt::format("a {} on track {}", name_of(opcode), tracks_of_schema_1[number]));
    Track& track = rank.tracks[number];
    event.position = track.instructions[event.step]++;
    if (track.first == nullptr) track.first = &schema_1;
    if (opcode == Opcode::AllReduce) {
      if (!rank.all_reduce.emplace(event.step, event.position).second) {
        throw InputError(fmt::format("rank {} has a second AllReduce in a step", event.rank));
      }
      if (rank.next_in_ring.value_or(schema_1.peer) != schema_1.peer) refuse_ring();
      rank.next_in_ring = schema_1.peer;
    } else if (is_transfer(opcode)) {
      check_transfer(schema_1, *track.first);
    }
  }

  static void check_transfer(const EventOfSchema1& transfer, const EventOfSchema1& first)
  {
    if (transfer.peer != first.peer) {
      throw InputError(fmt::format("{} has peer {}; its track has peer {}",
                                   description_of(transfer.event.rank, transfer.event.instruction), transfer.peer,
                                   first.peer));
    }
    if (transfer.peer_position != transfer.event.position) {
      throw InputError(fmt::format("{} has peer_position {}; it is instruction {} of its track",
                                   description_of(transfer.event.rank, transfer.event.instruction),
                                   transfer.peer_position, transfer.event.position));
    }
  }

  [[noreturn]] static void refuse_ring() { throw InputError("the ranks of the AllReduce do not form a ring"); }

  void add_lanes()
  {
    trace_.lanes.resize(ranks_.size());
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      auto& lanes = trace_.lanes[i];
      const auto add = [&lanes](std::string_view name, Engine engine) {
        lanes.push_back({std::string(name), engine, std::nullopt});
        return static_cast<LaneId>(lanes.size() - 1);
      };
      for (std::size_t track = 0; track < track_count; ++track) {
        const bool is_compute = track == compute_track;
        if (!is_compute && ranks_[i].tracks[track].first == nullptr) continue;
        ranks_[i].lanes[track] = add(tracks_of_schema_1[track], is_compute ? Engine::Device : Engine::Network);
      }
      if (ranks_[i].next_in_ring) ranks_[i].sync_lane = add("sync", Engine::Network);
    }
  }

  void add_channel(const std::vector<End>& ends)
  {
    for (const End& end : ends) trace_.lanes[end.rank][end.lane].channel = trace_.channels.size();
    trace_.channels.push_back({ends, Algorithm::Ring});
  }

  void add_channels()
  {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (std::size_t track = compute_track + 1; track < track_count; ++track) {
        const auto* first = ranks_[rank].tracks[track].first;
        if (first == nullptr) continue;
        const std::size_t other = sends(track) ? track + from_send_to_receive : track - from_send_to_receive;
        const auto* there = first->peer < ranks_.size() ? ranks_[first->peer].tracks[other].first : nullptr;
        if (there == nullptr || there->peer != rank) {
          throw InputError(description_of(rank, first->event.instruction) + " has no other end on its peer");
        }
        if (!sends(track)) continue;
        add_channel({{rank, ranks_[rank].lanes[track]}, {first->peer, ranks_[first->peer].lanes[other]}});
      }
    }
    add_ring();
  }

  /// The AllReduces of a step, each of which names the next rank of the ring.
  void add_ring()
  {
    const auto is_member = [](const Rank& rank) { return rank.next_in_ring.has_value(); };
    const auto first = std::find_if(ranks_.begin(), ranks_.end(), is_member);
    if (first == ranks_.end()) return;
    const auto members = static_cast<std::size_t>(std::count_if(ranks_.begin(), ranks_.end(), is_member));
    const auto begin = static_cast<std::size_t>(first - ranks_.begin());
    std::vector<End> ends;
    for (std::size_t rank = begin; ends.empty() || rank != begin; rank = *ranks_[rank].next_in_ring) {
      if (ends.size() == members || rank >= ranks_.size() || !is_member(ranks_[rank])) refuse_ring();
      ends.push_back({rank, ranks_[rank].sync_lane});
    }
    if (ends.size() != members) refuse_ring();
    add_channel(ends);
  }

  /// Moves the AllReduce from the compute lane to the lane "sync", for which the compute lane's next instruction waits.
  void convert(TraceEvent& event) const
  {
    const Rank& rank = ranks_[event.rank];
    Instruction& instruction = event.instruction;
    const std::size_t track = instruction.lane;
    const auto found = rank.all_reduce.find(event.step);
    const auto all_reduce =
        found == rank.all_reduce.end() ? std::optional<std::uint64_t>() : std::optional(found->second);
    Waits waits;
    for (const Wait& wait : instruction.waits) waits.add(converted(event, wait, all_reduce));
    instruction.lane = rank.lanes[track];
    if (instruction.opcode == Opcode::AllReduce) {
      instruction.lane = rank.sync_lane;
      instruction.payload = Payload::GradientFacts;
      waits.add({compute_lane, 0, event.position});
      event.position = 0;
    } else if (track == compute_track && all_reduce && event.position > *all_reduce) {
      if (--event.position == *all_reduce) waits.add({rank.sync_lane, 0, 1});
    } else if (is_transfer(instruction.opcode)) {
      const bool is_activation = tracks_of_schema_1[track].ends_with("activation");
      instruction.payload = is_activation ? Payload::Activation : Payload::Gradient;
    }
    instruction.waits = waits;
  }

  Wait converted(const TraceEvent& event, const Wait& wait, const std::optional<std::uint64_t>& all_reduce) const
  {
    const Rank& rank = ranks_[event.rank];
    if (wait.lane != compute_track && rank.tracks[wait.lane].first == nullptr) {
      throw InputError(fmt::format("{} waits for {} instructions of {}; there are 0",
                                   description_of(event.rank, event.instruction), wait.count,
                                   tracks_of_schema_1[wait.lane]));
    }
    const bool is_after_sync = wait.lane == compute_track && all_reduce && wait.count > *all_reduce;
    if (!is_after_sync) return {rank.lanes[wait.lane], 0, wait.count};
    // The AllReduce waits for all that precedes it.
    if (wait.count == *all_reduce + 1) return {rank.sync_lane, 0, 1};
    return {compute_lane, 0, wait.count - 1};
  }

  TraceFile& trace_;
  std::vector<EventOfSchema1>& events_;
  std::vector<Rank> ranks_;
};

}  // namespace

void add_events_of_schema_1(TraceFile& trace, std::vector<EventOfSchema1> events)
{
  Upgrade(trace, events).upgrade();
}

}  // namespace isobar::results
