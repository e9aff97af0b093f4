// Activities per CPU-second and peak memory of sim::simulate, compared with a SimGrid program that does only the same:
// 1F1B written as callbacks with the same lanes and timers, without Program, trace or accounts.
//
// SimGrid's engine and clock are global, so each repetition is a forked child that reports its CPU time. Repetitions of
// the two alternate, and the best of each counts. `ours_above_platform_MB` is what the simulation takes besides the
// platform, at its peak; more than 40 MB is an error, whatever the number of micro-batches.

#include "core/base/child_process.hpp"
#include "core/plan/schedule_choice.hpp"
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

Measurement measure_ours(const std::filesystem::path& file, std::size_t stages, std::uint64_t microbatches)
{
  const sim::Platform platform = sim::Platform::load(file);
  const double platform_megabytes = memory_megabytes();
  Workload workload;
  Plan plan;
  plan.goal.schedule = choice_of(ChainSchedule::OneForwardOneBackward);
  plan.goal.microbatches = microbatches;
  for (std::size_t i = 0; i < stages; ++i) {
    Layer layer;
    layer.forward = Flops(forward_flops);
    layer.backward = Flops(backward_flops);
    layer.output = layer.gradient = Bytes(static_cast<double>(tensor_bytes));
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(layer);
    plan.stages.push_back(stage_on(fmt::format("d{}", i), i, i));
  }
  const auto program = schedules::make_program(plan, workload);
  const auto ranks = sim::rank_hosts(plan, workload, platform.cluster());
  EventCounter counter;
  const double begin = cpu_seconds();
  const auto report = sim::simulate(platform, *program, ranks, 1, &counter);
  return {report.activities, report.step_times.at(0).value, cpu_seconds() - begin, peak_memory_megabytes(),
          platform_megabytes};
}

/// The same step with SimGrid only.
class BareSimulation {
 public:
  BareSimulation(const std::filesystem::path& file, std::size_t stages, std::uint64_t microbatches)
      : microbatches_(microbatches), stages_(stages)
  {
    static std::vector<std::string> arguments = {"bare", "--log=root.thres:critical"};
    static std::vector<char*> pointers = {arguments[0].data(), arguments[1].data(), nullptr};
    int count = 2;
    engine_ = new sg4::Engine(&count, pointers.data());
    for (const auto& [name, value] : sim::network_settings()) sg4::Engine::set_config(name + ":" + value);
    engine_->load_platform(file.string());
    platform_megabytes_ = memory_megabytes();
    for (std::size_t i = 0; i < stages; ++i) {
      stages_[i].host = engine_->host_by_name(fmt::format("d{}", i));
      stages_[i].warm_up = std::min<std::uint64_t>(microbatches, stages - 1 - i);
      for (auto* slot : {&stages_[i].compute, &stages_[i].activation, &stages_[i].gradient}) slot->stage = i;
    }
    for (std::size_t i = 0; i + 1 < stages; ++i) {
      connect(stages_[i].activation, i + 1);
      connect(stages_[i + 1].gradient, i);
    }
    sim::on_activity_completion([this](const sg4::Activity& activity) { ended(*activity.get_data<Slot>()); });
  }

  Measurement run()
  {
    const double begin = cpu_seconds();
    for (auto& stage : stages_) compute(stage);
    engine_->run();
    return {activities_, sg4::Engine::get_clock(), cpu_seconds() - begin, peak_memory_megabytes(), platform_megabytes_};
  }

 private:
  struct Slot {
    std::size_t stage = 0;
    bool running = false;
    std::uint64_t done = 0;
    sg4::ActivityPtr activity;
    sg4::ActivityPtr former;  // SimGrid still uses an activity after its callback
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
    Slot compute;
    Slot activation;  // to the next stage
    Slot gradient;    // to the stage before
  };

  bool next_is_forward(const Stage& stage) const
  {
    return stage.forwards < microbatches_ && stage.forwards <= stage.backwards + stage.warm_up;
  }

  void compute(Stage& stage)
  {
    Slot& slot = stage.compute;
    if (slot.running || stage.backwards == microbatches_) return;
    const std::size_t i = slot.stage;
    const bool forward = next_is_forward(stage);
    if (forward && i > 0 && stages_[i - 1].activation.done <= stage.forwards) return;
    if (!forward && i + 1 < stages_.size() && stages_[i + 1].gradient.done <= stage.backwards) return;
    const auto exec = sg4::Exec::init();
    exec->set_host(stage.host)->set_flops_amount(forward ? forward_flops : backward_flops);
    start(slot, exec);
  }

  void connect(Slot& slot, std::size_t to)
  {
    slot.to = to;
    std::vector<sg4::Link*> links;
    stages_[slot.stage].host->route_to(stages_[to].host, links, &slot.latency);
  }

  void send(Slot& slot)
  {
    slot.due.push_back(sg4::Engine::get_clock() + slot.latency);
    let_arrive(slot);
  }

  void let_arrive(Slot& slot)
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
    start(slot, comm);
  }

  template <typename ActivityPtr>
  void start(Slot& slot, const ActivityPtr& activity)
  {
    slot.running = true;
    slot.former = std::move(slot.activity);
    slot.activity = activity;
    activity->set_data(&slot);
    sim::start_activity(activity);
  }

  void ended(Slot& slot)
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

  sg4::Engine* engine_;
  std::uint64_t microbatches_;
  std::vector<Stage> stages_;
  std::uint64_t activities_ = 0;
  double platform_megabytes_ = 0;
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
void simulate_beside_bare(benchmark::State& state)
{
  const auto stages = static_cast<std::size_t>(state.range(0));
  const auto microbatches = static_cast<std::uint64_t>(state.range(1));
  const testing_support::TemporaryFolder folder;
  const auto file = folder.path() / "star.xml";
  write_star(file, stages);
  Measurement ours;
  Measurement bare;
  for ([[maybe_unused]] auto _ : state) {
    const auto measured = in_child([&] { return measure_ours(file, stages, microbatches); });
    const auto beside = in_child([&] { return BareSimulation(file, stages, microbatches).run(); });
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

BENCHMARK(simulate_beside_bare)
    ->ArgNames({"stages", "microbatches"})
    ->Args({64, 1024})
    ->Args({1024, 64})
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
