#pragma once

#include "core/base/child_process.hpp"
#include "core/errors.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/platform/platform.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <set>
#include <stdexcept>
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

inline Plan one_layer_per_device(const std::vector<std::string>& devices, Schedule schedule, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = schedule;
  plan.goal.microbatches = microbatches;
  for (std::size_t i = 0; i < devices.size(); ++i) plan.stages.push_back({{{devices[i], 1.0}}, i, i});
  return plan;
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

inline SimulationReport simulate_plan(const Platform& platform, const Workload& workload, Plan plan,
                                      std::uint64_t iterations = 1, TraceSink* sink = nullptr)
{
  plan.data_server = platform.cluster().data_server;
  const auto program = schedules::make_program(plan, workload);
  return simulate(platform, *program, rank_hosts(plan, workload, platform.cluster()), iterations, sink);
}

/// The number that `work` returns in a child process.
inline double number_from_child(const std::function<double()>& work)
{
  return std::stod(run_in_child([&] { return fmt::format("{:.17g}", work()); }, Seconds(120)).output_or_throw());
}

/// A program given as lists of instructions, for cases that no schedule has.
class ListedProgram : public Program {
 public:
  explicit ListedProgram(std::size_t ranks) : lanes_(ranks) {}

  void compute(std::size_t rank, Flops work, Wait wait = {})
  {
    Instruction instruction;
    instruction.work = work;
    instruction.wait = wait;
    add(rank, instruction);
  }
  void transfer(std::size_t from, std::size_t to, Bytes size, Wait wait = {})
  {
    Instruction send;
    send.opcode = Opcode::Send;
    send.lane = Lane::SendActivation;
    send.size = size;
    send.peer = to;
    send.peer_position = length(to, Lane::ReceiveActivation);
    send.wait = wait;
    Instruction receive = send;
    receive.opcode = Opcode::Recv;
    receive.lane = Lane::ReceiveActivation;
    receive.peer = from;
    receive.peer_position = length(from, Lane::SendActivation);
    receive.wait = {};
    add(from, send);
    add(to, receive);
  }

  std::size_t ranks() const override { return lanes_.size(); }
  Bytes resident_memory(std::size_t) const override { return Bytes(0); }
  std::uint64_t length(std::size_t rank, Lane lane) const override { return list(rank, lane).size(); }
  Instruction at(std::size_t rank, Lane lane, std::uint64_t position) const override
  {
    return list(rank, lane).at(position);
  }

 private:
  const std::vector<Instruction>& list(std::size_t rank, Lane lane) const
  {
    return lanes_.at(rank)[static_cast<std::size_t>(lane)];
  }
  void add(std::size_t rank, Instruction instruction)
  {
    auto& lane = lanes_.at(rank)[static_cast<std::size_t>(instruction.lane)];
    instruction.microbatch = lane.size();
    lane.push_back(instruction);
  }

  std::vector<std::array<std::vector<Instruction>, lane_count>> lanes_;
};

inline std::vector<RankHost> at_one_gigaflop(const std::vector<std::string>& hosts)
{
  std::vector<RankHost> ranks;
  for (const auto& host : hosts) ranks.push_back({host, FlopsPerSecond(1e9)});
  return ranks;
}

/// The kind and message of the error that `call` throws; "no error" if it throws none.
template <typename Call>
std::string message_of(Call call)
{
  try {
    call();
  } catch (const InputError& error) {
    return std::string("InputError ") + error.what();
  } catch (const std::logic_error& error) {
    return std::string("bug ") + error.what();
  }
  return "no error";
}

}  // namespace isobar::sim
