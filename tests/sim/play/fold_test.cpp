#include "schedules/lowering/fold.hpp"

#include "core/costs/exchange_times.hpp"
#include "core/costs/layer_times.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/model/sharding.hpp"
#include "core/program/player.hpp"
#include "schedules/lowering/played_step.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/experts.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

// Folded programs take as long as those of the whole plan: equal replicas and shards on nodes of equal GPUs.
namespace isobar::sim::fold_test {
namespace {

enum class Nic { PerNode, PerGpu, HalfDuplex };

struct Machine {
  std::size_t nodes = 2;
  std::size_t gpus = 4;
  Nic nic = Nic::PerNode;
  bool has_narrow_core = false;  // a link between nodes that all their flows fill
  bool passes_ports = false;     // flows between nodes pass the links inside, too

  std::size_t devices() const { return nodes * gpus; }
  std::string name(std::size_t device) const { return fmt::format("n{}g{}", device / gpus, device % gpus); }
};

Platform load(const Machine& machine)
{
  PlatformFile file;
  const auto link = [&](const std::string& name, double gigabytes, const std::string& latency) {
    file.link(name, fmt::format("{}GBps", gigabytes), latency);
  };
  for (std::size_t i = 0; i < machine.devices(); ++i) {
    const std::size_t node = i / machine.gpus;
    file.device(machine.name(i), "1Gf", "", fmt::format("<prop id=\"site\" value=\"n{}\"/>", node));
    link("up-" + machine.name(i), 100, "2us");
    link("down-" + machine.name(i), 100, "2us");
    if (machine.nic == Nic::PerGpu) {
      link("out-" + machine.name(i), 12, "5us");
      link("in-" + machine.name(i), 12, "5us");
    }
  }
  for (std::size_t node = 0; node < machine.nodes; ++node) {
    if (machine.nic == Nic::PerNode) {
      link(fmt::format("out-n{}", node), 25, "5us");
      link(fmt::format("in-n{}", node), 25, "5us");
    }
    if (machine.nic == Nic::HalfDuplex) link(fmt::format("nic-n{}", node), 25, "5us");
  }
  link("core", machine.has_narrow_core ? 10 : 1e6, "1us");
  const auto nic = [&](const char* way, std::size_t device) {
    if (machine.nic == Nic::PerGpu) return fmt::format("{}-{}", way, machine.name(device));
    return fmt::format("{}-n{}", machine.nic == Nic::HalfDuplex ? "nic" : way, device / machine.gpus);
  };
  for (std::size_t from = 0; from < machine.devices(); ++from) {
    for (std::size_t to = 0; to < machine.devices(); ++to) {
      if (from == to) continue;
      std::vector<std::string> route;
      const bool is_inside = from / machine.gpus == to / machine.gpus;
      if (is_inside || machine.passes_ports) route.push_back("up-" + machine.name(from));
      if (!is_inside) {
        route.push_back(nic("out", from));
        route.emplace_back("core");
        route.push_back(nic("in", to));
      }
      if (is_inside || machine.passes_ports) route.push_back("down-" + machine.name(to));
      file.route(machine.name(from), machine.name(to), route);
    }
  }
  return file.load();
}

struct Shape {
  const char* name = "";
  Machine machine = {};
  std::size_t pp = 1;
  std::size_t tp = 1;
  std::size_t dp = 1;
  ScheduleChoice schedule = {};
  std::size_t chunks = 1;
  std::size_t layers = 2;          // of a chunk
  bool has_parts = false;          // of a layer each
  std::uint64_t microbatches = 4;  // of a replica
  Sync sync = {};
  TransferRules transfers = {};
  bool divides_sequence = false;
  bool clips = true;
  ExpertParallelism experts = {};  // in every second layer
};

Workload workload_of(const Shape& shape)
{
  Workload workload = equal_layers(shape.pp * shape.chunks * shape.layers, Bytes(4e8), Bytes(3e8));
  workload.sequence = 64;
  workload.optimizer = Optimizer::Adam;
  if (shape.clips) workload.training.clip_norm = 1;
  double factor = 1;
  for (auto& layer : workload.layers) {
    layer.name = fmt::format("layer{}", factor);
    layer.forward = Flops(2e7 * factor);
    layer.backward = Flops(4.5e7 * factor);
    layer.backward_weight = Flops(2e7 * factor);
    layer.parameters = 400'000'000;
    layer.update = Flops(5e6);
    layer.split = Split{.name = "units", .units = 16, .parameters = 320'000'000, .activations = Bytes(500)};
    factor += 0.25;
  }
  workload.layers.back().split->gathered = Bytes(1e6);
  if (!shape.experts.divides()) return workload;
  for (std::size_t i = 1; i < workload.layers.size(); i += 2) {
    testing_support::add_experts(workload.layers[i], 16, 1'000'000, Flops(1e7), Bytes(2e8));
  }
  return with_experts(workload, shape.experts);
}

/// Shards first, then replicas, then stages.
Plan plan_of(const Shape& shape)
{
  Plan plan;
  plan.goal.schedule = shape.schedule;
  plan.goal.microbatches = shape.microbatches * shape.dp;
  plan.sync = shape.sync;
  plan.transfers = shape.transfers;
  plan.experts = shape.experts;
  const std::size_t parts = shape.has_parts || shape.tp > 1 ? shape.layers : 1;
  for (std::size_t chunk = 0; chunk < shape.pp * shape.chunks; ++chunk) {
    for (std::size_t part = 0; part < parts; ++part) {
      Stage& stage = plan.stages.emplace_back();
      stage.first_layer = chunk * shape.layers + part * shape.layers / parts;
      stage.last_layer = chunk * shape.layers + (part + 1) * shape.layers / parts - 1;
      if (shape.divides_sequence) stage.grid = {ShardGrid::Form::Sequence, shape.tp};
      for (std::size_t r = 0; r < shape.dp; ++r) {
        Replica& replica = stage.replicas.emplace_back();
        if (shape.dp > 1) replica.microbatches = shape.microbatches;
        for (std::size_t k = 0; k < shape.tp; ++k) {
          Shard shard;
          shard.device = shape.machine.name(((chunk % shape.pp) * shape.dp + r) * shape.tp + k);
          shard.share = 1.0 / static_cast<double>(shape.tp);
          replica.shards.push_back(shard);
        }
      }
    }
  }
  return plan;
}

std::size_t acting_ranks(const Program& program)
{
  std::size_t acting = 0;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) acting += program.length(rank, compute_lane) > 0 ? 1 : 0;
  return acting;
}

/// The times of two steps.
std::string simulated_text(const Platform& platform, const Plan& plan, const Program& program)
{
  const auto report = simulate(platform, program, rank_hosts(plan, platform.cluster()), 2, nullptr);
  return fmt::format("{:.17g} {:.17g}", report.step_times[0].value, report.step_times[1].value);
}

/// "reason …", or the number of ranks that act, the played steps of the whole and of the folded program, and the
/// simulated ones of the latter on a platform whose links are divided.
std::string folded_text(const Shape& shape)
{
  Platform platform = load(shape.machine);
  const Plan plan = plan_of(shape);
  const Workload workload = workload_of(shape);
  const auto folded = schedules::fold(plan, workload, platform.cluster());
  if (const auto* reason = std::get_if<std::string>(&folded)) return "reason " + *reason;
  const auto& step = std::get<schedules::FoldedStep>(folded);
  const auto program = schedules::make_program(plan, workload, platform.cluster());
  const auto whole = play_program(*program, nominal_rates(plan, platform.cluster()), 1);
  const auto own = play_program(*step.program, schedules::rates_of(step, platform.cluster()), 1);
  for (std::size_t rank = 0; rank < step.acts_for.size(); ++rank) {
    const Bytes need = whole.peak_memory[rank][0];
    if (std::abs(own.peak_memory[step.acts_for[rank]][0] / need - 1) > 1e-9) {
      return fmt::format("reason rank {} needs {} in the whole step", rank, need.value);
    }
  }
  constexpr bool keeps_stages = true;
  const auto with_stages = schedules::fold(plan, workload, platform.cluster(), keeps_stages);
  if (const auto* other = std::get_if<schedules::FoldedStep>(&with_stages)) {
    const auto kept = play_program(*other->program, schedules::rates_of(*other, platform.cluster()), 1);
    const double ratio = kept.periods[0].step_time / own.periods[0].step_time;
    if (std::abs(ratio - 1) > 1e-6) return fmt::format("reason with its stages a step takes {} times as long", ratio);
  }
  for (const auto& [link, users] : step.links) platform.scale(Property::Bandwidth, 1 / users, link);
  return fmt::format("{} {:.17g} {:.17g} ", acting_ranks(*step.program), whole.periods[0].step_time.value,
                     own.periods[0].step_time.value) +
         simulated_text(platform, plan, *step.program);
}

std::string whole_text(const Shape& shape)
{
  const Platform platform = load(shape.machine);
  const Plan plan = plan_of(shape);
  const Workload workload = workload_of(shape);
  return simulated_text(platform, plan, *schedules::make_program(plan, workload, platform.cluster()));
}

/// Compares a shape folded with the same unfolded; returns the number of ranks that act, or 0 and the reason.
std::size_t compare(const Shape& shape, std::string& reason)
{
  const std::string text = run_in_child([&] { return folded_text(shape); }, Seconds(120)).output_or_throw();
  const std::string no = "reason ";
  if (text.starts_with(no)) {
    reason = text.substr(no.size());
    return 0;
  }
  std::istringstream folded(text);
  std::istringstream whole(run_in_child([&] { return whole_text(shape); }, Seconds(120)).output_or_throw());
  std::size_t acting = 0;
  double played_whole = 0;
  double played = 0;
  folded >> acting >> played_whole >> played;
  EXPECT_NEAR(played / played_whole, 1, 1e-6) << "played";
  for (const int step : {0, 1}) {
    double of_whole = 0;
    double of_folded = 0;
    whole >> of_whole;
    folded >> of_folded;
    EXPECT_NEAR(of_folded / of_whole, 1, 1e-6) << "step " << step << " of " << of_whole << " s";
  }
  return acting;
}

constexpr unsigned shapes = 40;

const ScheduleChoice one_f_one_b = {"1f1b"};
const ScheduleChoice gpipe = {"gpipe"};
const ScheduleChoice sequential = {"sequential"};
const ScheduleChoice interleaved = {"interleaved", {{"chunks", {2}}}};

const Sync ring = {};
const Sync hierarchical = {Algorithm::Hierarchical};
const Sync zero_1 = {Algorithm::Ring, Sharding::Optimizer};
const Sync zero_2 = {Algorithm::Ring, Sharding::Gradients};
const Sync fsdp = {Algorithm::Ring, Sharding::Parameters};
Sync fsdp_of(DType gathered, bool each_microbatch)
{
  Sync sync = fsdp;
  sync.gathered = gathered;
  sync.each_microbatch = each_microbatch;
  return sync;
}

struct Case {
  Shape shape;
  std::size_t acting;
};

std::vector<Case> cases()
{
  return {
      {{.name = "replicas in a node", .machine = {1, 8}, .dp = 8}, 1},
      {{.name = "replicas in four nodes", .machine = {4, 4}, .dp = 16}, 1},
      {{.name = "hierarchical", .machine = {4, 4}, .dp = 16, .sync = hierarchical}, 1},
      {{.name = "fsdp with parts", .machine = {2, 4}, .dp = 8, .layers = 3, .has_parts = true, .sync = fsdp}, 1},
      {{.name = "fsdp that gathers bf16 and scatters each micro-batch",
        .machine = {4, 2},
        .dp = 8,
        .layers = 3,
        .has_parts = true,
        .sync = fsdp_of(DType::BFloat16, true)},
       1},
      {{.name = "fsdp of shards that scatters each micro-batch",
        .machine = {4, 2},
        .tp = 2,
        .dp = 4,
        .layers = 3,
        .has_parts = true,
        .sync = fsdp_of(DType::BFloat16, true)},
       1},
      {{.name = "zero 1", .machine = {2, 4}, .dp = 8, .has_parts = true, .sync = zero_1}, 1},
      {{.name = "zero 2", .machine = {2, 4, Nic::PerGpu}, .dp = 8, .has_parts = true, .sync = zero_2}, 1},
      {{.name = "shards in a node", .machine = {1, 4}, .tp = 4, .schedule = sequential}, 1},
      {{.name = "a pipeline of shards", .machine = {2, 4}, .pp = 2, .tp = 4, .schedule = one_f_one_b}, 2},
      {{.name = "sliced transfers",
        .machine = {2, 4},
        .pp = 2,
        .tp = 4,
        .schedule = one_f_one_b,
        .transfers = {.blocking = false, .sliced = true}},
       2},
      {{.name = "blocking and sliced transfers",
        .machine = {4, 2},
        .pp = 4,
        .tp = 2,
        .schedule = one_f_one_b,
        .transfers = {.blocking = true, .sliced = true}},
       4},
      {{.name = "a divided sequence", .machine = {2, 4}, .pp = 2, .tp = 4, .schedule = gpipe, .divides_sequence = true},
       2},
      {{.name = "all three, a node for each replica of a stage",
        .machine = {6, 4},
        .pp = 2,
        .tp = 4,
        .dp = 3,
        .schedule = one_f_one_b},
       4},
      {{.name = "all three, interleaved",
        .machine = {8, 2},
        .pp = 2,
        .tp = 2,
        .dp = 4,
        .schedule = interleaved,
        .chunks = 2},
       4},
      {{.name = "all three with zero 1",
        .machine = {8, 2, Nic::PerGpu},
        .pp = 2,
        .tp = 2,
        .dp = 4,
        .schedule = one_f_one_b,
        .sync = zero_1},
       4},
      {{.name = "a pipeline of replicas over nodes",
        .machine = {8, 1},
        .pp = 2,
        .dp = 4,
        .schedule = one_f_one_b,
        .transfers = {.blocking = true, .sliced = false}},
       4},
      {{.name = "half duplex", .machine = {6, 2, Nic::HalfDuplex}, .pp = 2, .tp = 2, .dp = 3, .schedule = gpipe}, 4},
      {{.name = "a pipeline of replicas, several in a node",
        .machine = {6, 2},
        .pp = 2,
        .dp = 6,
        .schedule = one_f_one_b,
        .sync = hierarchical},
       8},
      {{.name = "rings over nodes of several replicas beside transfers",
        .machine = {12, 2},
        .pp = 2,
        .dp = 12,
        .schedule = one_f_one_b},
       8},
      {{.name = "all three with zero 1 in larger nodes",
        .machine = {8, 4},
        .pp = 2,
        .tp = 4,
        .dp = 4,
        .schedule = one_f_one_b,
        .sync = zero_1},
       4},
      {{.name = "a divided sequence with replicas",
        .machine = {8, 2, Nic::PerGpu},
        .pp = 2,
        .tp = 2,
        .dp = 4,
        .schedule = one_f_one_b,
        .sync = zero_1,
        .divides_sequence = true,
        .clips = false},
       4},
      {{.name = "a core that all fill", .machine = {4, 4, Nic::PerNode, true}, .tp = 4, .dp = 4}, 1},
      {{.name = "a tree", .machine = {8, 1}, .dp = 8, .sync = {Algorithm::Tree}}, 1},
      {{.name = "each to each", .machine = {8, 1}, .dp = 8, .sync = {Algorithm::Direct}}, 1},
      {{.name = "shards over two nodes", .machine = {6, 2, Nic::PerGpu}, .tp = 4, .dp = 3, .schedule = sequential}, 8},
      {{.name = "through the ports", .machine = {8, 2, Nic::PerGpu, false, true}, .tp = 2, .dp = 8}, 4},
      {{.name = "a pipeline through the ports",
        .machine = {8, 2, Nic::PerGpu, false, true},
        .pp = 2,
        .tp = 2,
        .dp = 4,
        .schedule = one_f_one_b},
       8},
      {{.name = "experts inside nodes",
        .machine = {6, 4},
        .pp = 2,
        .dp = 12,
        .schedule = one_f_one_b,
        .has_parts = true,
        .clips = false,
        .experts = {4}},
       16},
      {{.name = "experts of several stages of a device",
        .machine = {6, 4},
        .pp = 2,
        .dp = 12,
        .schedule = interleaved,
        .chunks = 2,
        .has_parts = true,
        .clips = false,
        .experts = {4}},
       16},
      {{.name = "experts whose passes overlap",
        .machine = {6, 4},
        .pp = 2,
        .dp = 12,
        .schedule = {"1f1b", {{overlap_experts_key, {1}}}},
        .layers = 4,
        .has_parts = true,
        .microbatches = 6,
        .clips = false,
        .experts = {4}},
       16},
      {{.name = "experts over nodes, with shards and zero 1",
        .machine = {8, 2, Nic::PerGpu},
        .tp = 2,
        .dp = 8,
        .schedule = sequential,
        .layers = 3,
        .sync = zero_1,
        .experts = {4}},
       8},
      {{.name = "fsdp of a pipeline", .machine = {8, 1}, .pp = 2, .dp = 4, .schedule = one_f_one_b, .sync = fsdp}, 4},
  };
}

TEST(Fold, TakesAsLongAsTheWholePlanWithFewerRanks)
{
  for (const auto& [shape, expected] : cases()) {
    SCOPED_TRACE(shape.name);
    std::string reason;
    EXPECT_EQ(compare(shape, reason), expected) << reason;
  }
}

Shape random_shape(unsigned seed)
{
  std::mt19937 random(seed);
  const auto one_of = [&](auto choices) { return choices[random() % choices.size()]; };
  Shape shape;
  shape.name = "random";
  shape.pp = one_of(std::vector<std::size_t>{1, 1, 2, 3});
  shape.tp = one_of(std::vector<std::size_t>{1, 1, 2, 4});
  shape.dp = one_of(std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 8});
  const std::size_t devices = shape.pp * shape.tp * shape.dp;
  shape.machine.gpus = one_of(std::vector<std::size_t>{1, 2, 4, 8});
  while (devices % shape.machine.gpus > 0) shape.machine.gpus /= 2;
  shape.machine.nodes = devices / shape.machine.gpus;
  shape.machine.nic = one_of(std::vector<Nic>{Nic::PerNode, Nic::PerGpu, Nic::HalfDuplex});
  shape.machine.has_narrow_core = random() % 6 == 0;
  shape.machine.passes_ports = random() % 3 == 0;
  shape.schedule = one_of(std::vector<ScheduleChoice>{one_f_one_b, gpipe, sequential, interleaved});
  if (shape.pp == 1 && shape.schedule == interleaved) shape.schedule = gpipe;
  if (shape.schedule == interleaved) shape.chunks = 2;
  shape.layers = 1 + random() % 3;
  shape.has_parts = random() % 2 == 0 && shape.schedule != interleaved;
  shape.microbatches = shape.pp * (1 + random() % 2);
  shape.sync = one_of(std::vector<Sync>{ring, ring, hierarchical, zero_1, zero_2, fsdp, {Algorithm::Tree}});
  if (shape.tp == 1 && shape.sync == fsdp) shape.sync = fsdp_of(DType::Float16, random() % 2 == 0);
  shape.transfers = {random() % 3 == 0, random() % 3 == 0};
  shape.divides_sequence = shape.tp > 1 && random() % 2 == 0;
  shape.clips = random() % 2 == 0;
  const bool is_listed = shape.has_parts || shape.tp > 1 || shape.layers == 1;
  if (is_listed && shape.dp % 2 == 0 && random() % 3 == 0) shape.experts = {2, random() % 2 == 0};
  return shape;
}

TEST(Fold, TakesAsLongAsTheWholePlanWhereverItIsOffered)
{
  std::size_t offered = 0;
  std::size_t refused = 0;
  for (unsigned seed = 1; seed <= shapes; ++seed) {
    SCOPED_TRACE(seed);
    const Shape shape = random_shape(seed);
    std::string reason;
    const std::size_t acting = compare(shape, reason);
    ++(acting > 0 ? offered : refused);
    EXPECT_LT(acting, shape.machine.devices());
    EXPECT_EQ(acting == 0, !reason.empty());
  }
  EXPECT_GT(offered, shapes / 2);
  EXPECT_GT(refused, shapes / 20);
}

/// A step of many micro-batches, played and simulated.
struct LongStep {
  double played = 0;
  double simulated = 0;
  std::string note;  // or why there is none
};

LongStep long_step(const Shape& shape, const Platform& platform)
{
  const Plan plan = plan_of(shape);
  const auto folded = schedules::fold(plan, workload_of(shape), platform.cluster());
  if (const auto* reason = std::get_if<std::string>(&folded)) return {0, 0, *reason};
  const auto& step = std::get<schedules::FoldedStep>(folded);
  if (acting_ranks(*step.program) != 1) return {0, 0, "several ranks act"};
  const auto played = play_program(*step.program, schedules::rates_of(step, platform.cluster()), 1);
  const auto report = simulate(platform, *step.program, rank_hosts(plan, platform.cluster()), 1, nullptr);
  return {played.periods[0].step_time.value, report.step_times[0].value, step.note};
}

// Where all that devices do for a micro-batch comes one after another, it takes what its parts take.
TEST(Fold, TakesTheTimesOfExchangesWhereStepsAreLong)
{
  const Shape shape{.name = "experts of 32 GPUs in 4 nodes",
                    .machine = {4, 8, Nic::PerGpu},
                    .dp = 32,
                    .schedule = sequential,
                    .layers = 3,
                    .has_parts = true,
                    .microbatches = 20000,
                    .clips = false,
                    .experts = {32}};
  const auto text_of_ratios = [&] {
    const Platform platform = load(shape.machine);
    const LongStep step = long_step(shape, platform);
    const Workload workload = workload_of(shape);
    const Plan plan = plan_of(shape);
    Seconds each;
    for (std::size_t layer = 0; layer < 3; ++layer) {
      const LayerTimes own = times_on(workload, layer, platform.cluster().devices[0]);
      const auto exchanges = exchange_times(plan, layer, layer, workload, platform.cluster(), GridAxis::Experts);
      each += own.forward + own.backward + exchanges.forward + exchanges.backward;
    }
    const double expected = static_cast<double>(shape.microbatches) * each.value;
    return fmt::format("{:.3f} {:.9f} {}", step.played / expected, step.simulated / step.played, step.note);
  };
  EXPECT_EQ(
      run_in_child(text_of_ratios, Seconds(120)).output_or_throw(),
      "1.000 1.000000000 transfers, sums and what replicas exchange for their passes do not slow down each other");
}

}  // namespace
}  // namespace isobar::sim::fold_test
