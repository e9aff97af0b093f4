// Activities per CPU-second and peak memory of sim::simulate, compared with SimGrid programs that do only the same:
// 1F1B, and a group of devices that divide each layer, written as callbacks with the same lanes and timers, without
// Program, trace or accounts.
//
// SimGrid's engine and clock are global, so each repetition is a forked child that reports its CPU time. Repetitions of
// the two alternate, and the best of each counts. `ours_above_platform_MB` is what the simulation takes besides the
// platform, at its peak; more than 40 MB is an error, whatever the number of micro-batches.

#include "core/base/child_process.hpp"
#include "core/order/schedule_choice.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/platform/platform.hpp"
#include "sim/platform/simgrid_compat.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/temporary_folder.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <vector>

namespace {

using namespace isobar;
namespace sg4 = simgrid::s4u;

constexpr double forward_flops = 1e9;
constexpr double backward_flops = 2e9;
constexpr std::uint64_t tensor_bytes = 4'000'000;
constexpr std::uint64_t gathered_bytes = 1'000;

/// Writes a star of different devices, each with its own up and down link.
void write_star(const std::filesystem::path& file, std::size_t devices)
{
  std::ofstream out(file);
  out << "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
         "<platform version=\"4.1\">\n<zone id=\"star\" routing=\"Cluster\">\n";
  for (std::size_t i = 0; i < devices; ++i) {
    out << fmt::format(
        "<host id=\"d{0}\" speed=\"{1}Gf\"><prop id=\"memory\" value=\"64 GiB\"/></host>\n"
        "<link id=\"l{0}\" bandwidth=\"{2}MBps\" latency=\"{3}ms\" sharing_policy=\"SPLITDUPLEX\"/>\n"
        "<host_link id=\"d{0}\" up=\"l{0}_UP\" down=\"l{0}_DOWN\"/>\n",
        i, 100 + 7 * (i % 13), 900 + 31 * (i % 17), 1 + i % 5);
  }
  out << "<router id=\"centre\"/>\n</zone>\n</platform>\n";
}

double cpu_seconds()
{
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double peak_memory_megabytes()
{
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;
}

double memory_megabytes()
{
  std::ifstream pages("/proc/self/statm");
  double total = 0;
  double resident = 0;
  pages >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1e6;
}

constexpr double most_megabytes_above_platform = 40;

struct Measurement {
  std::uint64_t activities = 0;
  double step_time_s = 0;
  double cpu_s = 0;
  double peak_megabytes = 0;
  double platform_megabytes = 0;

  double above_platform_megabytes() const { return peak_megabytes - platform_megabytes; }
};

class EventCounter : public TraceSink {
 public:
  void record(const TraceEvent& event) override { end = event.end, ++events; }
  Seconds end;
  std::uint64_t events = 0;
};

struct Step {
  Workload workload;
  Plan plan;
};

Step chain(std::size_t layers, std::uint64_t microbatches)
{
  Step step;
  step.plan.goal.schedule = choice_of(ChainSchedule::OneForwardOneBackward);
  step.plan.goal.microbatches = microbatches;
  for (std::size_t i = 0; i < layers; ++i) {
    Layer layer;
    layer.forward = Flops(forward_flops);
    layer.backward = Flops(backward_flops);
    layer.output = layer.gradient = Bytes(static_cast<double>(tensor_bytes));
    if (i > 0) layer.inputs = {i - 1};
    step.workload.layers.push_back(layer);
    step.plan.stages.push_back(stage_on(fmt::format("d{}", i), i, i));
  }
  return step;
}

/// A stage of which all devices divide each of the layers.
Step group(std::size_t devices, std::size_t layers, std::uint64_t microbatches)
{
  Step step = chain(layers, microbatches);
  Replica replica{microbatches, {}};
  for (std::size_t i = 0; i < devices; ++i) {
    replica.shards.push_back({fmt::format("d{}", i), 1 / static_cast<double>(devices)});
  }
  for (auto& layer : step.workload.layers) layer.split = Split{.name = "units", .units = devices};
  step.workload.layers.back().split->gathered = Bytes(static_cast<double>(gathered_bytes));
  for (auto& stage : step.plan.stages) stage.replicas = {replica};
  return step;
}

Measurement measure_ours(const std::filesystem::path& file, const Step& step)
{
  const sim::Platform platform = sim::Platform::load(file);
  const double platform_megabytes = memory_megabytes();
  const auto& [workload, plan] = step;
  const auto program = schedules::make_program(plan, workload, platform.cluster());
  const auto ranks = sim::rank_hosts(plan, platform.cluster());
  EventCounter counter;
  const double begin = cpu_seconds();
  const auto report = sim::simulate(platform, *program, ranks, 1, &counter);
  return {report.activities, report.step_times.at(0).value, cpu_seconds() - begin, peak_memory_megabytes(),
          platform_megabytes};
}

sg4::Engine* make_engine(const std::filesystem::path& file)
{
  static std::vector<std::string> arguments = {"bare", "--log=root.thres:critical"};
  static std::vector<char*> pointers = {arguments[0].data(), arguments[1].data(), nullptr};
  int count = 2;
  auto* const engine = new sg4::Engine(&count, pointers.data());
  for (const auto& [name, value] : sim::network_settings()) sg4::Engine::set_config(name + ":" + value);
  engine->load_platform(file.string());
  return engine;
}

/// A simulation with SimGrid only.
class BareSimulation {
 public:
  explicit BareSimulation(const std::filesystem::path& file)
      : engine_(make_engine(file)), platform_megabytes_(memory_megabytes())
  {
  }
  virtual ~BareSimulation() = default;

  Measurement run()
  {
    const double begin = cpu_seconds();
    begin_step();
    engine_->run();
    return {activities_, sg4::Engine::get_clock(), cpu_seconds() - begin, peak_memory_megabytes(), platform_megabytes_};
  }

 protected:
  /// Where activities run one after another.
  struct Slot {
    sg4::ActivityPtr activity;
    sg4::ActivityPtr former;  // SimGrid still uses an activity after its callback
  };

  virtual void begin_step() = 0;
  sg4::Host* host(std::size_t device) const { return engine_->host_by_name(fmt::format("d{}", device)); }
  static double latency_between(const sg4::Host* from, const sg4::Host* to)
  {
    double latency = 0;
    std::vector<sg4::Link*> links;
    from->route_to(to, links, &latency);
    return latency;
  }

  template <typename SlotOfKind, typename ActivityPtr>
  void start(SlotOfKind& slot, const ActivityPtr& activity)
  {
    slot.former = std::move(slot.activity);
    slot.activity = activity;
    activity->set_data(&slot);
    if constexpr (std::is_same_v<ActivityPtr, sg4::CommPtr>) {
      sim::start_flow(network_, *activity, slot.latency);
    } else {
      sim::start_activity(activity);
    }
  }

  std::uint64_t activities_ = 0;

 private:
  sg4::Engine* engine_;
  sim::NetworkModel& network_ = sim::network_model();
  double platform_megabytes_ = 0;
};

/// The same step of a chain with SimGrid only.
class BareChain : public BareSimulation {
 public:
  BareChain(const std::filesystem::path& file, std::size_t stages, std::uint64_t microbatches)
      : BareSimulation(file), microbatches_(microbatches), stages_(stages)
  {
    for (std::size_t i = 0; i < stages; ++i) {
      stages_[i].host = host(i);
      stages_[i].warm_up = std::min<std::uint64_t>(microbatches, stages - 1 - i);
      for (auto* slot : {&stages_[i].compute, &stages_[i].activation, &stages_[i].gradient}) slot->stage = i;
    }
    for (std::size_t i = 0; i + 1 < stages; ++i) {
      connect(stages_[i].activation, i + 1);
      connect(stages_[i + 1].gradient, i);
    }
    sim::on_activity_completion([this](const sg4::Activity& activity) { ended(*activity.get_data<StageSlot>()); });
  }

 private:
  struct StageSlot : Slot {
    std::size_t stage = 0;
    bool running = false;
    std::uint64_t done = 0;
    // For a lane that sends:
    std::size_t to = 0;
    double latency = 0;
    std::deque<double> due;  // arrival times of the first bytes of messages in transit
    bool has_timer = false;
  };
  struct Stage {
    sg4::Host* host = nullptr;
    std::uint64_t warm_up = 0;
    std::uint64_t forwards = 0;
    std::uint64_t backwards = 0;
    StageSlot compute;
    StageSlot activation;  // to the next stage
    StageSlot gradient;    // to the stage before
  };

  void begin_step() override
  {
    for (auto& stage : stages_) compute(stage);
  }

  bool next_is_forward(const Stage& stage) const
  {
    return stage.forwards < microbatches_ && stage.forwards <= stage.backwards + stage.warm_up;
  }

  void compute(Stage& stage)
  {
    StageSlot& slot = stage.compute;
    if (slot.running || stage.backwards == microbatches_) return;
    const std::size_t i = slot.stage;
    const bool forward = next_is_forward(stage);
    if (forward && i > 0 && stages_[i - 1].activation.done <= stage.forwards) return;
    if (!forward && i + 1 < stages_.size() && stages_[i + 1].gradient.done <= stage.backwards) return;
    const auto exec = sg4::Exec::init();
    exec->set_host(stage.host)->set_flops_amount(forward ? forward_flops : backward_flops);
    begin(slot, exec);
  }

  void connect(StageSlot& slot, std::size_t to)
  {
    slot.to = to;
    slot.latency = latency_between(stages_[slot.stage].host, stages_[to].host);
  }

  void send(StageSlot& slot)
  {
    slot.due.push_back(sg4::Engine::get_clock() + slot.latency);
    let_arrive(slot);
  }

  void let_arrive(StageSlot& slot)
  {
    if (slot.running || slot.due.empty()) return;
    if (sg4::Engine::get_clock() < slot.due.front()) {
      if (slot.has_timer) return;
      slot.has_timer = true;
      sim::call_at(slot.due.front(), [this, &slot] {
        slot.has_timer = false;
        let_arrive(slot);
      });
      return;
    }
    slot.due.pop_front();
    const auto comm = sg4::Comm::sendto_init(stages_[slot.stage].host, stages_[slot.to].host);
    comm->set_payload_size(tensor_bytes);
    begin(slot, comm);
  }

  template <typename ActivityPtr>
  void begin(StageSlot& slot, const ActivityPtr& activity)
  {
    slot.running = true;
    start(slot, activity);
  }

  void ended(StageSlot& slot)
  {
    ++activities_;
    ++slot.done;
    slot.running = false;
    Stage& stage = stages_[slot.stage];
    if (&slot == &stage.compute) {
      const bool forward = next_is_forward(stage);
      ++(forward ? stage.forwards : stage.backwards);
      if (forward && slot.stage + 1 < stages_.size()) send(stage.activation);
      if (!forward && slot.stage > 0) send(stage.gradient);
      compute(stage);
    } else {
      let_arrive(slot);
      compute(stages_[slot.to]);
    }
  }

  std::uint64_t microbatches_;
  std::vector<Stage> stages_;
};

/// The same for a group of devices that divide each layer and add up outputs and gradients over a ring, or gather those
/// of the last layer, with SimGrid only: micro-batch by micro-batch, all layers forward and backward.
class BareGroup : public BareSimulation {
 public:
  BareGroup(const std::filesystem::path& file, std::size_t devices, std::size_t layers, std::uint64_t microbatches)
      : BareSimulation(file),
        layers_(layers),
        microbatches_(microbatches),
        devices_(devices),
        sums_(devices),
        shared_sums_(devices)
  {
    for (std::size_t i = 0; i < devices; ++i) {
      devices_[i].host = host(i);
      devices_[i].compute.device = i;
    }
    for (Ring* ring : {&sums_, &shared_sums_}) {
      for (std::size_t i = 0; i < devices; ++i) {
        DeviceSlot& flow = ring->flows[i];
        flow.device = i;
        flow.ring = ring;
        flow.latency = latency_between(devices_[i].host, devices_[(i + 1) % devices].host);
      }
    }
    sim::on_activity_completion([this](const sg4::Activity& activity) { ended(*activity.get_data<DeviceSlot>()); });
  }

 private:
  struct Ring;
  struct DeviceSlot : Slot {
    std::size_t device = 0;
    Ring* ring = nullptr;  // of a flow
    double latency = 0;
  };
  /// Sums one after another; one begins when all devices are ready for it.
  struct Ring {
    explicit Ring(std::size_t devices) : flows(devices), ready(devices) {}

    std::vector<DeviceSlot> flows;
    std::vector<std::uint64_t> ready;  // by device
    std::uint64_t done = 0;
    std::size_t flows_left = 0;
    std::uint64_t bytes = 0;
  };
  struct Device {
    sg4::Host* host = nullptr;
    std::uint64_t done = 0;  // tasks
    DeviceSlot compute;
  };

  void begin_step() override
  {
    for (auto& device : devices_) compute(device);
  }

  bool is_forward(std::uint64_t task) const { return task % (2 * layers_) < layers_; }
  bool has_sum(std::uint64_t task) const { return task % (2 * layers_) != 2 * layers_ - 1; }

  void compute(Device& device)
  {
    if (device.done == 2 * layers_ * microbatches_) return;
    const auto exec = sg4::Exec::init();
    const double whole = is_forward(device.done) ? forward_flops : backward_flops;
    exec->set_host(device.host)->set_flops_amount(whole / static_cast<double>(devices_.size()));
    start(device.compute, exec);
  }

  void join(Ring& ring, std::size_t device)
  {
    ++ring.ready[device];
    begin_next(ring);
  }

  void begin_next(Ring& ring)
  {
    if (ring.flows_left > 0) return;
    for (const std::uint64_t ready : ring.ready) {
      if (ready == ring.done) return;
    }
    const std::size_t others = devices_.size() - 1;
    const bool gathers = &ring == &sums_ && ring.done % (2 * layers_ - 1) == layers_ - 1;
    const std::size_t messages = gathers ? others : 2 * others;
    const std::uint64_t of_sums = &ring == &shared_sums_ ? 0 : tensor_bytes / devices_.size();
    ring.bytes = messages * (gathers ? gathered_bytes : of_sums);
    ring.flows_left = ring.flows.size();
    for (auto& flow : ring.flows) {
      const double due = sg4::Engine::get_clock() + static_cast<double>(messages) * flow.latency;
      sim::call_at(due, [this, &flow] {
        const auto to = devices_[(flow.device + 1) % devices_.size()].host;
        const auto comm = sg4::Comm::sendto_init(devices_[flow.device].host, to);
        comm->set_payload_size(flow.ring->bytes);
        start(flow, comm);
      });
    }
  }

  void ended(DeviceSlot& slot)
  {
    ++activities_;
    if (slot.ring == nullptr) return ended_task(devices_[slot.device]);
    Ring& ring = *slot.ring;
    if (--ring.flows_left > 0) return;
    ++ring.done;
    if (&ring == &sums_) {
      for (auto& device : devices_) compute(device);
    }
    begin_next(ring);
  }

  void ended_task(Device& device)
  {
    const std::uint64_t task = device.done++;
    const bool is_last_backward = task >= 2 * layers_ * microbatches_ - layers_;
    if (is_last_backward) join(shared_sums_, device.compute.device);
    if (has_sum(task)) {
      join(sums_, device.compute.device);
    } else {
      compute(device);
    }
  }

  std::size_t layers_;
  std::uint64_t microbatches_;
  std::vector<Device> devices_;
  Ring sums_;
  Ring shared_sums_;
};

template <typename Work>
Measurement in_child(Work work)
{
  const std::string text =
      run_in_child(
          [&] {
            const Measurement result = work();
            return fmt::format("{} {:.17g} {:.17g} {:.17g} {:.17g}", result.activities, result.step_time_s,
                               result.cpu_s, result.peak_megabytes, result.platform_megabytes);
          },
          Seconds(3600))
          .output_or_throw();
  Measurement result;
  char* rest = nullptr;
  result.activities = std::strtoull(text.c_str(), &rest, 10);
  result.step_time_s = std::strtod(rest, &rest);
  result.cpu_s = std::strtod(rest, &rest);
  result.peak_megabytes = std::strtod(rest, &rest);
  result.platform_megabytes = std::strtod(rest, &rest);
  return result;
}

double per_second(const Measurement& measured)
{
  return static_cast<double>(measured.activities) / measured.cpu_s;
}

/// One iteration runs both, each in a child; its time is that of sim::simulate. `ratio` is our activities per
/// CPU-second over those of the bare program.
template <typename Bare>
void run_beside(benchmark::State& state, std::size_t devices, const Step& step, Bare make_bare)
{
  const testing_support::TemporaryFolder folder;
  const auto file = folder.path() / "star.xml";
  write_star(file, devices);
  Measurement ours;
  Measurement bare;
  for ([[maybe_unused]] auto _ : state) {
    const auto measured = in_child([&] { return measure_ours(file, step); });
    const auto beside = in_child([&] { return make_bare(file).run(); });
    if (ours.activities == 0 || measured.cpu_s < ours.cpu_s) ours = measured;
    if (bare.activities == 0 || beside.cpu_s < bare.cpu_s) bare = beside;
    state.SetIterationTime(measured.cpu_s);
  }
  if (ours.activities != bare.activities || std::abs(ours.step_time_s / bare.step_time_s - 1) > 1e-9) {
    state.SkipWithError("the two did not simulate the same");
  }
  if (ours.above_platform_megabytes() > most_megabytes_above_platform) {
    state.SkipWithError("the simulation took more than 40 MB besides the platform");
  }
  state.counters["activities"] = static_cast<double>(ours.activities);
  state.counters["ours_per_s"] = per_second(ours);
  state.counters["bare_per_s"] = per_second(bare);
  state.counters["ratio"] = per_second(ours) / per_second(bare);
  state.counters["ours_MB"] = ours.peak_megabytes;
  state.counters["bare_MB"] = bare.peak_megabytes;
  state.counters["ours_above_platform_MB"] = ours.above_platform_megabytes();
  state.counters["bare_above_platform_MB"] = bare.above_platform_megabytes();
}
void simulate_beside_bare(benchmark::State& state)
{
  const auto stages = static_cast<std::size_t>(state.range(0));
  const auto microbatches = static_cast<std::uint64_t>(state.range(1));
  run_beside(state, stages, chain(stages, microbatches),
             [&](const auto& file) { return BareChain(file, stages, microbatches); });
}
BENCHMARK(simulate_beside_bare)
    ->ArgNames({"stages", "microbatches"})
    ->Args({64, 1024})
    ->Args({1024, 64})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void collectives_beside_bare(benchmark::State& state)
{
  const auto devices = static_cast<std::size_t>(state.range(0));
  const auto layers = static_cast<std::size_t>(state.range(1));
  const auto microbatches = static_cast<std::uint64_t>(state.range(2));
  run_beside(state, devices, group(devices, layers, microbatches),
             [&](const auto& file) { return BareGroup(file, devices, layers, microbatches); });
}
BENCHMARK(collectives_beside_bare)
    ->ArgNames({"devices", "layers", "microbatches"})
    ->Args({8, 64, 128})
    ->Args({64, 16, 64})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

// 16.8 million activities, some minutes: --benchmark_filter=beside_bare skips it.
void full_pipeline(benchmark::State& state)
{
  simulate_beside_bare(state);
}
BENCHMARK(full_pipeline)
    ->ArgNames({"stages", "microbatches"})
    ->Args({1024, 4096})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
