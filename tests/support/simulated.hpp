#pragma once

#include "core/base/child_process.hpp"
#include "core/model/workload.hpp"
#include "core/order/schedule_choice.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/platform/platform.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// Small platforms, workloads and programs, simulated.
namespace isobar::sim {

/// A platform file and its profiles in a temporary folder.
class PlatformFile {
 public:
  explicit PlatformFile(const std::string& name = "test") : name_(name) {}

  void device(const std::string& host, const std::string& speed, const std::string& attributes = "",
              const std::string& props = "")
  {
    endpoints_.push_back(host);
    hosts_ += fmt::format("<host id=\"{}\" speed=\"{}\" {}><prop id=\"memory\" value=\"64 GiB\"/>{}</host>\n", host,
                          speed, attributes, props);
  }
  /// A machine with 64 GiB of memory; `content` are props and disks.
  void machine(const std::string& host, const std::string& speed, const std::string& content = "",
               const std::string& attributes = "")
  {
    hosts_ += fmt::format(
        "<host id=\"{}\" speed=\"{}\" {}><prop id=\"role\" value=\"machine\"/>"
        "<prop id=\"memory\" value=\"64 GiB\"/>{}</host>\n",
        host, speed, attributes, content);
  }
  void data_server(const std::string& host)
  {
    endpoints_.push_back(host);
    hosts_ += fmt::format("<host id=\"{}\" speed=\"1Gf\"><prop id=\"role\" value=\"data-server\"/></host>\n", host);
  }
  void link(const std::string& id, const std::string& bandwidth, const std::string& latency,
            const std::string& attributes = "", const std::string& props = "")
  {
    links_ += fmt::format("<link id=\"{}\" bandwidth=\"{}\" latency=\"{}\" {}>{}</link>\n", id, bandwidth, latency,
                          attributes, props);
  }
  void route(const std::string& from, const std::string& to, const std::vector<std::string>& links)
  {
    routed_.insert({from, to});
    routes_ += fmt::format("<route src=\"{}\" dst=\"{}\" symmetrical=\"NO\">", from, to);
    for (const auto& link : links) routes_ += fmt::format("<link_ctn id=\"{}\"/>", link);
    routes_ += "</route>\n";
  }
  /// A file NAME.systems.yaml beside the platform file.
  void systems(const std::string& content) const { folder_.write(name_ + ".systems.yaml", content); }
  std::string profile(const std::string& name, const std::string& content) const
  {
    folder_.write(name, content);
    return name;  // SimGrid looks in the platform file's folder
  }
  /// Loads the platform. Pairs without a route get one over a link that nothing else uses.
  Platform load()
  {
    link("elsewhere", "1GBps", "1s");
    for (const auto& from : endpoints_) {
      for (const auto& to : endpoints_) {
        if (from != to && !routed_.contains({from, to})) route(from, to, {"elsewhere"});
      }
    }
    folder_.write(
        name_ + ".xml",
        fmt::format("<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
                    "<platform version=\"4.1\">\n<zone id=\"world\" routing=\"Full\">\n{}{}{}</zone>\n</platform>\n",
                    hosts_, links_, routes_));
    return Platform::load(folder_.path() / (name_ + ".xml"));
  }

 private:
  testing_support::TemporaryFolder folder_;
  std::string name_;
  std::vector<std::string> endpoints_;
  std::set<std::pair<std::string, std::string>> routed_;
  std::string hosts_;
  std::string links_;
  std::string routes_;
};

/// Devices d0, d1, … with a separate link between each two neighbours in each direction.
inline void chain_of_devices(PlatformFile& file, std::size_t devices, const std::string& bandwidth,
                             const std::string& latency)
{
  for (std::size_t i = 0; i < devices; ++i) file.device(fmt::format("d{}", i), "1Gf");
  for (std::size_t i = 0; i + 1 < devices; ++i) {
    file.link(fmt::format("forward{}", i), bandwidth, latency);
    file.link(fmt::format("back{}", i), bandwidth, latency);
    file.route(fmt::format("d{}", i), fmt::format("d{}", i + 1), {fmt::format("forward{}", i)});
    file.route(fmt::format("d{}", i + 1), fmt::format("d{}", i), {fmt::format("back{}", i)});
  }
}

/// Hosts a and b, with the link "there" from a to b and the link "back" from b to a.
inline void two_hosts(PlatformFile& file, const std::string& bandwidth, const std::string& latency,
                      const std::string& attributes_there = "", const std::string& props_there = "")
{
  file.device("a", "1Gf");
  file.device("b", "1Gf");
  file.link("there", bandwidth, latency, attributes_there, props_there);
  file.link("back", bandwidth, latency);
  file.route("a", "b", {"there"});
  file.route("b", "a", {"back"});
}

/// Device d0 and the data server "data", with a link from the server to the device.
inline void device_with_data_server(PlatformFile& file, const std::string& bandwidth, const std::string& latency)
{
  file.device("d0", "1Gf");
  file.data_server("data");
  file.link("wan", bandwidth, latency);
  file.route("data", "d0", {"wan"});
}

/// One layer per stage: 1 s forward and 2 s backward at 1 GFLOP/s; nothing to update.
inline Workload equal_layers(std::size_t layers, Bytes output, Bytes gradient)
{
  Workload workload;
  for (std::size_t i = 0; i < layers; ++i) {
    Layer layer;
    layer.forward = Flops(1e9);
    layer.backward = Flops(2e9);
    layer.activations = Bytes(1000);
    layer.output = output;
    layer.gradient = gradient;
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(layer);
  }
  workload.input = output;
  return workload;
}

inline Plan one_layer_per_device(const std::vector<std::string>& devices, const ScheduleChoice& schedule,
                                 std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = schedule;
  plan.goal.microbatches = microbatches;
  for (std::size_t i = 0; i < devices.size(); ++i) plan.stages.push_back(stage_on(devices[i], i, i));
  return plan;
}

inline Plan one_layer_per_device(const std::vector<std::string>& devices, ChainSchedule schedule,
                                 std::uint64_t microbatches)
{
  return one_layer_per_device(devices, choice_of(schedule), microbatches);
}

inline std::vector<std::string> names(std::size_t devices)
{
  std::vector<std::string> result;
  for (std::size_t i = 0; i < devices; ++i) result.push_back(fmt::format("d{}", i));
  return result;
}

class EventList : public TraceSink {
 public:
  void record(const TraceEvent& event) override { events.push_back(event); }
  std::vector<TraceEvent> events;
};

/// The events of a rank with that opcode, in the order of the trace.
inline std::vector<TraceEvent> events_of(const std::vector<TraceEvent>& trace, Opcode opcode, std::size_t rank)
{
  std::vector<TraceEvent> events;
  for (const auto& event : trace) {
    if (event.instruction.opcode == opcode && event.rank == rank) events.push_back(event);
  }
  return events;
}

inline SimulationReport simulate_plan(const Platform& platform, const Workload& workload, Plan plan,
                                      std::uint64_t iterations = 1, TraceSink* sink = nullptr)
{
  plan.data_server = platform.cluster().data_server;
  const auto program = schedules::make_program(plan, workload, platform.cluster());
  return simulate(platform, *program, rank_hosts(plan, platform.cluster()), iterations, sink);
}

/// The time of the first step.
inline Seconds step_time(const SimulationReport& report)
{
  return report.step_times.at(0);
}

/// The number that `work` returns in a child process.
inline double number_from_child(const std::function<double()>& work)
{
  return std::stod(run_in_child([&] { return fmt::format("{:.17g}", work()); }, Seconds(120)).output_or_throw());
}

/// Waits for the first `count` instructions of the rank's compute lane.
inline Wait after_compute(std::uint64_t count, std::uint16_t periods_back = 0)
{
  return {compute_lane, periods_back, count};
}

/// A program given as lists of instructions, for cases that no schedule has. Lanes and channels are made when they are
/// first used.
class ListedProgram : public testing_support::EditableProgram {
 public:
  using EditableProgram::EditableProgram;

  /// A Forward of the rank's compute lane.
  void compute(std::size_t rank, Seconds time, Waits waits = {})
  {
    EditableProgram::compute(rank, Opcode::Forward, length(rank, compute_lane), time.value, waits);
  }
  /// A Send of activations on the lane from one rank to another, and its Recv.
  void transfer(std::size_t from, std::size_t to, Bytes size, Waits of_send = {}, Waits of_recv = {})
  {
    const std::size_t channel = channel_between(from, to);
    EditableProgram::transfer(channel, Payload::Activation, length(from, send_lane(from, to)), size.value, of_send,
                              of_recv);
  }
  /// A collective of ranks in this order, each with `size` bytes, on a lane of each that has no other collectives.
  void collective(Opcode opcode, const std::vector<std::size_t>& ranks, Bytes size, Waits waits = {},
                  Algorithm algorithm = Algorithm::Ring)
  {
    EditableProgram::collective(channel_among(ranks, algorithm), opcode, Payload::ParameterGradient, size.value, waits);
  }

  /// A Load, Store, Read or Write.
  Instruction& copy(std::size_t rank, Opcode opcode, Bytes size, Waits waits = {},
                    Payload payload = Payload::ParameterGradient)
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.payload = payload;
    instruction.size = size;
    instruction.waits = waits;
    return add(rank, lane_of(rank, engine_of(opcode)), instruction);
  }
  /// An Update on the rank's machine, by what it takes at its full rate.
  void update_on_machine(std::size_t rank, Seconds time, Waits waits = {})
  {
    Instruction instruction;
    instruction.opcode = Opcode::Update;
    instruction.time = time;
    instruction.waits = waits;
    add(rank, lane_of(rank, Engine::Host), instruction);
  }
  /// The rank's lane of an engine.
  LaneId lane_of(std::size_t rank, Engine engine)
  {
    auto& own = listing.at(rank);
    for (LaneId lane = 0; lane < own.lanes.size(); ++lane) {
      if (own.lanes[lane].engine == engine) return lane;
    }
    own.lanes.push_back({std::string(name_of(engine)), engine});
    own.instructions.emplace_back();
    return static_cast<LaneId>(own.lanes.size() - 1);
  }

  /// The lane of `from` for messages to `to`: "send activation", and from the second one of a rank on with the number
  /// of `to`.
  LaneId send_lane(std::size_t from, std::size_t to) { return channel_list.at(channel_between(from, to)).ends[0].lane; }
  /// The lane of `to` for messages from `from`.
  LaneId receive_lane(std::size_t from, std::size_t to)
  {
    return channel_list.at(channel_between(from, to)).ends[1].lane;
  }
  /// The lane of a rank for the collectives of `ranks`: "sync", "sync 2", …
  LaneId sync_lane(std::size_t rank, const std::vector<std::size_t>& ranks, Algorithm algorithm = Algorithm::Ring)
  {
    for (const auto& end : channel_list.at(channel_among(ranks, algorithm)).ends) {
      if (end.rank == rank) return end.lane;
    }
    throw std::logic_error("a rank without that collective");
  }

 private:
  static Engine engine_of(Opcode copy)
  {
    switch (copy) {
      case Opcode::Load:
        return Engine::CopyIn;
      case Opcode::Store:
        return Engine::CopyOut;
      case Opcode::Read:
        return Engine::DiskRead;
      default:
        return Engine::DiskWrite;
    }
  }
  /// The name, or the name and `number` if the rank has a lane of that name.
  std::string new_name(std::size_t rank, const std::string& name, std::size_t number) const
  {
    for (const auto& lane : lanes(rank)) {
      if (lane.name == name) return fmt::format("{} {}", name, number);
    }
    return name;
  }
  std::size_t channel_between(std::size_t from, std::size_t to)
  {
    const auto [channel, is_new] = transfers_.try_emplace({from, to}, channels().size());
    if (is_new) {
      connect({{from, new_name(from, "send activation", to)}, {to, new_name(to, "receive activation", from)}});
    }
    return channel->second;
  }
  std::size_t channel_among(const std::vector<std::size_t>& ranks, Algorithm algorithm)
  {
    const auto [channel, is_new] = collectives_.try_emplace({ranks, algorithm}, channels().size());
    if (!is_new) return channel->second;
    std::vector<std::pair<std::size_t, std::string>> ends;
    for (const auto rank : ranks) ends.emplace_back(rank, new_name(rank, "sync", collectives_.size()));
    return connect(ends, algorithm);
  }

  std::map<std::pair<std::size_t, std::size_t>, std::size_t> transfers_;  // channels by sender and receiver
  std::map<std::pair<std::vector<std::size_t>, Algorithm>, std::size_t> collectives_;
};

inline std::vector<RankHost> on_hosts(const std::vector<std::string>& hosts)
{
  std::vector<RankHost> ranks;
  for (const auto& host : hosts) ranks.push_back({host});
  return ranks;
}

}  // namespace isobar::sim
