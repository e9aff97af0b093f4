#include "cli/fidelity/row_problem.hpp"

#include "cli/fidelity/aceso_plan.hpp"
#include "core/base/files.hpp"
#include "core/compute/layer_time.hpp"
#include "core/errors.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/split_text.hpp"
#include "core/program/collective.hpp"
#include "core/text/document.hpp"
#include "schedules/lowering/transfer_rules.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <variant>

namespace isobar::cli {

namespace {

using results::MeasuredRow;
using results::Recomputation;

/// A degree of a stage, of which a row gives one for all or one for each.
std::size_t of_stage(const std::vector<std::size_t>& degrees, std::size_t stage)
{
  return degrees.size() == 1 ? degrees.front() : degrees.at(stage);
}

std::vector<std::string_view> split(std::string_view text, char separator)
{
  std::vector<std::string_view> pieces;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

std::optional<std::size_t> number_in(std::string_view text)
{
  std::size_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// Hands out the devices of a machine, each once.
class DevicePool {
 public:
  explicit DevicePool(const MachineDevices& devices) : devices_(devices), is_taken_(devices.names.size(), false) {}

  /// The next devices in the order of the platform.
  std::vector<std::size_t> next(std::size_t count)
  {
    std::vector<std::size_t> taken;
    for (std::size_t i = 0; i < is_taken_.size() && taken.size() < count; ++i) {
      if (!is_taken_[i]) taken.push_back(take(i));
    }
    return require(std::move(taken), count, devices_.names.size(), "");
  }

  /// Free devices of a type, of one node if one has as many.
  std::vector<std::size_t> of_type(std::string_view type, std::size_t count)
  {
    std::vector<std::size_t> free;
    for (std::size_t i = 0; i < is_taken_.size(); ++i) {
      if (!is_taken_[i] && devices_.types[i] == type) free.push_back(i);
    }
    std::size_t first = 0;
    for (std::size_t i = 0; i + count <= free.size(); ++i) {
      if (devices_.nodes[free[i]] != devices_.nodes[free[i + count - 1]]) continue;
      first = i;
      break;
    }
    std::vector<std::size_t> taken;
    for (std::size_t i = first; i < free.size() && taken.size() < count; ++i) taken.push_back(take(free[i]));
    const auto all = std::ranges::count(devices_.types, type);
    return require(std::move(taken), count, static_cast<std::size_t>(all), fmt::format(" of type {}", type));
  }

  /// Devices first to last.
  std::vector<std::size_t> range(std::size_t first, std::size_t last, std::size_t count)
  {
    if (last < first || last >= is_taken_.size()) {
      throw Unsupported(fmt::format("devices: {}-{} of a machine with {}", first, last, is_taken_.size()));
    }
    std::vector<std::size_t> taken;
    for (std::size_t i = first; i <= last; ++i) {
      if (is_taken_[i]) throw Unsupported(fmt::format("devices: number {} is named twice", i));
      taken.push_back(take(i));
    }
    if (taken.size() != count) {
      throw Unsupported(fmt::format("devices: {}-{} for {} shards", first, last, count));
    }
    return taken;
  }

 private:
  std::size_t take(std::size_t device)
  {
    is_taken_[device] = true;
    return device;
  }

  static std::vector<std::size_t> require(std::vector<std::size_t> taken, std::size_t count, std::size_t all,
                                          const std::string& what)
  {
    if (taken.size() == count) return taken;
    throw Unsupported(fmt::format("platform: has {} devices{}, too few for the degrees of the row", all, what));
  }

  const MachineDevices& devices_;
  std::vector<bool> is_taken_;
};

/// The devices of a stage's replica as the column says: a type, a number or a range of numbers.
std::vector<std::size_t> named_devices(DevicePool& pool, std::string_view name, std::size_t shards)
{
  const std::size_t dash = name.find('-');
  const auto first = number_in(name.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : number_in(name.substr(dash + 1));
  if (first && last) return pool.range(*first, *last, shards);
  return pool.of_type(name, shards);
}

/// Pipeline stages, their degrees and blocks.
struct Degrees {
  std::vector<std::size_t> tensor;  ///< by stage
  std::vector<std::size_t> data;
  std::vector<double> blocks;
  std::vector<bool> recomputes;  ///< halves of blocks, of a row with a plan; empty: as the row says
};

Degrees degrees_of(const MeasuredRow& row, double blocks, std::size_t virtual_stages)
{
  Degrees degrees;
  if (!row.plan.empty()) {
    AcesoPlan plan = read_aceso_plan(row.plan, blocks);
    degrees.tensor = std::move(plan.tensor);
    degrees.data = std::move(plan.data);
    degrees.blocks = std::move(plan.blocks);
    degrees.recomputes = std::move(plan.recomputes);
    return degrees;
  }
  const std::size_t stages = row.pipeline_degree;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    degrees.tensor.push_back(of_stage(row.tensor_degrees, stage));
    degrees.data.push_back(of_stage(row.data_degrees, stage));
  }
  degrees.blocks = row.blocks;
  if (degrees.blocks.empty()) {
    // Whole blocks, one more for the first chunks where they do not divide evenly.
    const auto chunks = static_cast<double>(stages * virtual_stages);
    const double each = std::floor(blocks / chunks);
    const double more = blocks - each * chunks;
    for (std::size_t chunk = 0; chunk < stages * virtual_stages; ++chunk) {
      degrees.blocks.push_back(each + (static_cast<double>(chunk) < more ? 1 : 0));
    }
  }
  return degrees;
}

std::vector<StagePlaces> places_of(const MeasuredRow& row, const Degrees& degrees, const MachineDevices& devices)
{
  DevicePool pool(devices);
  std::vector<StagePlaces> places(degrees.tensor.size());
  const auto stages = split(row.devices, '|');
  if (!row.devices.empty() && stages.size() != places.size()) {
    throw Unsupported(fmt::format("devices: of {} stages; the pipeline has {}", stages.size(), places.size()));
  }
  for (std::size_t stage = 0; stage < places.size(); ++stage) {
    std::vector<std::string_view> names;
    if (!row.devices.empty()) names = split(stages[stage], ',');
    if (names.size() > 1 && names.size() != degrees.data[stage]) {
      throw Unsupported(
          fmt::format("devices: {} replicas of stage {}; it has {}", names.size(), stage, degrees.data[stage]));
    }
    // One range for all replicas of a stage has the devices of each in order.
    const bool is_whole = names.size() == 1 && number_in(names.front().substr(0, names.front().find('-')));
    std::vector<std::size_t> all;
    if (is_whole) all = named_devices(pool, names.front(), degrees.tensor[stage] * degrees.data[stage]);
    for (std::size_t replica = 0; replica < degrees.data[stage]; ++replica) {
      const std::size_t shards = degrees.tensor[stage];
      if (is_whole) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(replica * shards);
        places[stage].replicas.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(shards));
      } else {
        const bool is_named = !names.empty() && !names[std::min(replica, names.size() - 1)].empty();
        places[stage].replicas.push_back(
            is_named ? named_devices(pool, names[std::min(replica, names.size() - 1)], shards) : pool.next(shards));
      }
    }
  }
  return places;
}

/// The number of transformer blocks. @throws Unsupported for other models.
double blocks_of(const Workload& workload)
{
  if (const auto* sizes = std::get_if<GptSizes>(&workload.model)) return static_cast<double>(sizes->layers);
  if (const auto* sizes = std::get_if<LlamaSizes>(&workload.model)) return static_cast<double>(sizes->layers);
  throw Unsupported(fmt::format("workload: {} is no gpt or llama", workload.name));
}

/// Whether attention is fused, by the settings or else the text of a workload file.
bool has_fused_attention(const std::string& text, const std::string& name, const WorkloadSettings& settings)
{
  const auto set = settings.find("attention");
  if (set != settings.end()) return attention_from_name(set->second) == Attention::Fused;
  return std::ranges::any_of(parse_yaml(text, name).members, [](const DocumentNode::Member& member) {
    return member.key == "attention" && attention_from_name(member.value.scalar) == Attention::Fused;
  });
}

/// Takes the key dropout out of a workload file and of its settings. The lines of other keys stay where they are.
void leave_out_dropout(std::string& text, WorkloadSettings& settings)
{
  std::string others;
  for (const auto line : split(text, '\n')) {
    if (!line.starts_with("dropout:")) others += line;
    others += '\n';
  }
  text = std::move(others);
  settings.erase("dropout");
}

Workload workload_of(const MeasuredRow& row, const RowChoice& choice, const compute::Framework& framework,
                     std::size_t most_shards)
{
  std::string text = read_file(row.workload);
  WorkloadSettings settings;
  for (const auto& [key, value] : row.overrides) settings[key] = value;
  settings["unit"] = "operator";
  settings["micro_batch"] = fmt::to_string(choice.micro_batch);
  if (has_fused_attention(text, row.workload, settings)) {
    // Readers refuse dropout in fused attention, since no run repeats what it draws.
    leave_out_dropout(text, settings);
  } else if (choice.recompute == Recomputation::Selective) {
    settings["attention"] = "recomputed";
  }
  Workload workload = workload_from_text(text, row.workload, settings, "overrides");
  if (!framework.pads_vocabulary) return workload;
  std::uint64_t vocabulary = 0;
  if (const auto* sizes = std::get_if<GptSizes>(&workload.model)) vocabulary = sizes->vocabulary;
  if (const auto* sizes = std::get_if<LlamaSizes>(&workload.model)) vocabulary = sizes->vocabulary;
  const std::uint64_t padded = compute::padded_vocabulary(vocabulary, most_shards);
  if (padded == vocabulary) return workload;
  settings["vocabulary"] = fmt::to_string(padded);
  return workload_from_text(text, row.workload, settings, "overrides");
}

Sharding sharding_of(std::size_t zero_stage)
{
  constexpr std::array stages = {Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters};
  return stages.at(zero_stage);
}

/// Adds the stages of a plan for layers first..last of a pipeline stage.
void add_stages(RowProblem& problem, const MachineDevices& devices, const Degrees& degrees, std::size_t chunk,
                std::size_t first, std::size_t last, const MeasuredRow& row)
{
  const std::size_t stage = chunk % problem.places.size();
  const auto& replicas = problem.places[stage].replicas;
  const std::size_t shards = degrees.tensor[stage];
  for (std::size_t layer = first; shards > 1 && layer <= last; ++layer) {
    const auto& split = problem.workload.layers[layer].split;
    if (split && split->units >= shards) continue;
    throw Unsupported(fmt::format("tp: {} shards of layer {}, which has {} {}", shards,
                                  problem.workload.layers[layer].name, split ? split->units : 0,
                                  split ? units_in_words(problem.workload, *split) : "parts"));
  }
  Stage made;
  for (const auto& own : replicas) {
    Replica& replica = made.replicas.emplace_back();
    replica.microbatches = replicas.size() == 1 ? 0 : problem.plan.goal.microbatches / replicas.size();
    for (const std::size_t device : own) {
      Shard shard{devices.names[device]};
      shard.share = 1.0 / static_cast<double>(shards);
      shard.type = devices.types[device];
      shard.site = fmt::format("n{}", devices.nodes[device]);
      replica.shards.push_back(std::move(shard));
    }
  }
  if (row.sequence_parallel && shards > 1) made.grid = {ShardGrid::Form::Sequence, shards};
  // A layer of several shards is a stage, and so is a block whose parameters are gathered for it.
  const bool gathers = row.zero_stage == 3 && replicas.size() > 1;
  std::size_t begin = first;
  while (begin <= last) {
    std::size_t end = last;
    if (shards > 1) {
      end = begin;
    } else if (gathers) {
      const bool is_block = begin > 0 && begin + 1 < problem.workload.layers.size();
      end = is_block ? std::min(begin + 1, last) : begin;
      if (is_block && end + 1 == problem.workload.layers.size()) end = begin;
    }
    made.first_layer = begin;
    made.last_layer = end;
    problem.plan.stages.push_back(made);
    problem.chunk_of_stage.push_back(chunk);
    begin = end + 1;
  }
}

/// Whether devices lie in several nodes with several of them in each.
bool span_nodes(const std::vector<std::size_t>& some, const MachineDevices& devices)
{
  std::set<std::size_t> nodes;
  for (const std::size_t device : some) nodes.insert(devices.nodes[device]);
  return nodes.size() > 1 && nodes.size() < some.size();
}

/// How devices add up: over nodes with several of them in each, NCCL's rings use all NICs, as the hierarchical
/// algorithm does. Replicas that divide parameters need as many in each node for it.
Algorithm algorithm_of(const std::vector<StagePlaces>& stages, bool divides, const MachineDevices& devices)
{
  bool spans = false;
  bool is_even = true;
  for (const auto& stage : stages) {
    std::vector<std::size_t> first_shards;
    std::vector<std::string> sites;
    for (const auto& replica : stage.replicas) {
      first_shards.push_back(replica.front());
      sites.push_back(fmt::to_string(devices.nodes[replica.front()]));
      spans = spans || span_nodes(replica, devices);
    }
    spans = spans || span_nodes(first_shards, devices);
    is_even = is_even && are_equal_sites(sites);
  }
  return spans && (is_even || !divides) ? Algorithm::Hierarchical : Algorithm::Ring;
}

void require_supported(const MeasuredRow& row, const RowChoice& choice)
{
  if (row.context_degree > 1)
    throw Unsupported(fmt::format("cp: {}; sequences are not divided among devices", row.context_degree));
  if (row.expert_degree > 1)
    throw Unsupported(fmt::format("ep: {}; rows with experts are not predicted", row.expert_degree));
  if (choice.virtual_stages > 1 && row.pipeline_degree == 1) {
    throw Unsupported("virtual_stages: of a pipeline of one stage");
  }
  if (choice.recompute == Recomputation::Planned && row.plan.empty()) {
    throw Unsupported("recompute: is plan; name one in the column plan");
  }
  const std::size_t replicas = *std::ranges::max_element(row.data_degrees);
  if (row.global_batch < replicas) {
    throw Unsupported(fmt::format("global_batch: {} samples for {} replicas", row.global_batch, replicas));
  }
}

bool has_isobar_plan(const MeasuredRow& row)
{
  return !row.plan.empty() && read_file(row.plan).find("\"isobar-plan/") != std::string::npos;
}

/// Numbers the stages of a plan's pipeline and its parts: neighbouring stages on the same devices are one, and devices
/// that come again have a further part of their stage.
void number_stages(RowProblem& problem, const MachineDevices& devices)
{
  std::map<std::string, std::size_t> device_of;  // by name
  for (std::size_t i = 0; i < devices.names.size(); ++i) device_of.emplace(devices.names[i], i);
  std::vector<std::string> first_devices;  // of stages of the pipeline
  std::size_t chunk = 0;
  for (std::size_t i = 0; i < problem.plan.stages.size(); ++i) {
    const Stage& stage = problem.plan.stages[i];
    const std::string& first = stage.replicas.front().shards.front().device;
    if (i > 0 && problem.plan.stages[i - 1].replicas.front().shards.front().device != first) ++chunk;
    problem.chunk_of_stage.push_back(chunk);
    if (std::ranges::find(first_devices, first) != first_devices.end()) continue;
    first_devices.push_back(first);
    StagePlaces& places = problem.places.emplace_back();
    for (const auto& replica : stage.replicas) {
      auto& own = places.replicas.emplace_back();
      for (const auto& shard : replica.shards) {
        const auto found = device_of.find(shard.device);
        if (found == device_of.end())
          throw Unsupported(fmt::format("plan: the machine has no device {}", shard.device));
        own.push_back(found->second);
      }
    }
  }
  for (std::size_t i = 0; i < problem.plan.stages.size(); ++i) {
    const std::size_t stage = problem.chunk_of_stage[i] % first_devices.size();
    if (problem.plan.stages[i].replicas.front().shards.front().device == first_devices[stage]) continue;
    throw Unsupported("plan: devices come again in another order than that of the stages");
  }
}

/// A row with a plan of Isobar, whose layers are those of unit operator: its stages, micro-batches, schedule, sync and
/// recomputation.
RowProblem problem_of_plan(const MeasuredRow& row, const RowChoice& choice, const compute::Framework& framework,
                           const MachineDevices& devices)
{
  RowProblem problem;
  problem.plan = read_plan(row.plan);
  Plan& plan = problem.plan;
  if (plan.stages.empty()) throw Unsupported("plan: has no placement");
  std::size_t most_shards = 1;
  for (const auto& stage : plan.stages) most_shards = std::max(most_shards, stage.replicas.front().shards.size());
  problem.workload = workload_of(row, choice, framework, most_shards);
  if (plan.stages.back().last_layer + 1 != problem.workload.layers.size()) {
    throw Unsupported(fmt::format("plan: of {} layers; the model has {} of unit operator",
                                  plan.stages.back().last_layer + 1, problem.workload.layers.size()));
  }
  number_stages(problem, devices);
  for (auto& stage : plan.stages) {
    for (auto& replica : stage.replicas) {
      for (auto& shard : replica.shards) {
        const auto found = std::ranges::find(devices.names, shard.device) - devices.names.begin();
        shard.type = devices.types[static_cast<std::size_t>(found)];
        shard.site = fmt::format("n{}", devices.nodes[static_cast<std::size_t>(found)]);
      }
    }
  }
  const auto taken = static_cast<double>(plan.goal.microbatches * choice.micro_batch);
  problem.fill = static_cast<double>(row.global_batch) / taken;
  if (problem.fill > 1 + 1e-9) {
    throw Unsupported(fmt::format("plan: its {} micro-batches of {} are fewer samples than global_batch, {}",
                                  plan.goal.microbatches, choice.micro_batch, row.global_batch));
  }
  plan.transfers.blocking = framework.blocking_transfers && (problem.places.size() > 1 || most_shards > 1);
  if (schedules::fault_of_transfers(plan)) plan.transfers.blocking = false;
  plan.transfers.sliced = framework.sliced_transfers && problem.places.size() > 1 && most_shards > 1;
  return problem;
}

}  // namespace

MachineDevices::MachineDevices(const Cluster& cluster)
{
  std::vector<std::string> sites;
  for (const auto& device : cluster.devices) {
    names.push_back(device.name);
    types.push_back(device.type);
    if (sites.empty() || sites.back() != device.site) sites.push_back(device.site);
    nodes.push_back(sites.size() - 1);
  }
}

std::vector<RowChoice> choices_of(const MeasuredRow& row)
{
  const auto replicas = static_cast<double>(*std::ranges::max_element(row.data_degrees));
  const auto samples = static_cast<std::uint64_t>(std::ceil(static_cast<double>(row.global_batch) / replicas));
  std::vector<std::uint64_t> micro_batches;
  if (row.micro_batch) {
    micro_batches = {std::min(*row.micro_batch, samples)};
  } else {
    for (std::uint64_t size = 1; size <= std::min<std::uint64_t>(samples, 8); size *= 2) {
      if (samples % size == 0) micro_batches.push_back(size);
    }
  }
  std::vector<std::size_t> virtual_stages = {row.virtual_stages.value_or(1)};
  if (!row.virtual_stages && row.pipeline_degree > 1) {
    if (row.schedule.empty()) virtual_stages = {1, 2, 3, 4, 6, 8};
    if (row.schedule == "interleaved") virtual_stages = {2, 3, 4, 6, 8};
  }
  std::vector<Recomputation> recomputations = {row.recompute.value_or(Recomputation::None)};
  if (!row.recompute) recomputations.push_back(Recomputation::Full);
  std::vector<RowChoice> choices;
  for (const auto micro_batch : micro_batches) {
    for (const auto chunks : virtual_stages) {
      for (const auto recompute : recomputations) choices.push_back({micro_batch, chunks, recompute});
    }
  }
  return choices;
}

RowProblem problem_of(const MeasuredRow& row, const RowChoice& choice, const compute::Framework& framework,
                      const MachineDevices& devices)
{
  require_supported(row, choice);
  if (has_isobar_plan(row)) return problem_of_plan(row, choice, framework, devices);
  RowProblem problem;
  problem.workload = workload_of(row, choice, framework, 1);
  const double blocks = blocks_of(problem.workload);
  const Degrees degrees = degrees_of(row, blocks, choice.virtual_stages);
  const std::size_t most_shards = *std::ranges::max_element(degrees.tensor);
  if (most_shards > 1) problem.workload = workload_of(row, choice, framework, most_shards);
  const Workload& workload = problem.workload;
  if (std::abs(std::accumulate(degrees.blocks.begin(), degrees.blocks.end(), 0.0) - blocks) > 0.05) {
    throw Unsupported(fmt::format("layers: of {:g} blocks; the model has {:g}",
                                  std::accumulate(degrees.blocks.begin(), degrees.blocks.end(), 0.0), blocks));
  }
  problem.places = places_of(row, degrees, devices);

  // Micro-batches: the most that one of the replicas takes, in each stage.
  Plan& plan = problem.plan;
  const std::size_t replicas = *std::ranges::max_element(degrees.data);
  const double samples = static_cast<double>(row.global_batch) / static_cast<double>(replicas);
  const auto each = static_cast<std::uint64_t>(std::ceil(samples / static_cast<double>(choice.micro_batch) - 1e-9));
  plan.goal.microbatches = each * replicas;
  problem.fill = samples / static_cast<double>(each * choice.micro_batch);
  for (const std::size_t data : degrees.data) {
    if (plan.goal.microbatches % data != 0) {
      throw Unsupported(fmt::format("dp: {} replicas of a stage for {} micro-batches", data, plan.goal.microbatches));
    }
  }
  plan.allocator = "measured";
  plan.goal.objective = Objective::Step;
  plan.goal.communication = Communication::Played;
  plan.goal.schedule.name = row.schedule.empty() ? (choice.virtual_stages > 1 ? "interleaved" : "1f1b") : row.schedule;
  if (choice.virtual_stages > 1) plan.goal.schedule.numbers["chunks"] = {choice.virtual_stages};
  if (schedules::find_schedule(plan.goal.schedule.name) == nullptr) {
    throw Unsupported(fmt::format("schedule: {} is none that plans have", plan.goal.schedule.name));
  }

  double end = 0;
  std::size_t begin_layer = 0;
  for (std::size_t chunk = 0; chunk < degrees.blocks.size(); ++chunk) {
    end += degrees.blocks[chunk];
    const bool is_last = chunk + 1 == degrees.blocks.size();
    // A block is two layers; a cut inside of one goes to the nearest.
    const std::size_t last = is_last ? workload.layers.size() - 1 : static_cast<std::size_t>(std::llround(2 * end));
    if (last < begin_layer) throw Unsupported("layers: a stage of no layer");
    add_stages(problem, devices, degrees, chunk, begin_layer, last, row);
    begin_layer = last + 1;
  }

  if (choice.recompute == Recomputation::Full) {
    for (std::size_t layer = 1; layer + 1 < workload.layers.size(); ++layer) plan.recompute.push_back(layer);
  } else if (choice.recompute == Recomputation::Planned) {
    for (std::size_t half = 0; half < degrees.recomputes.size(); ++half) {
      if (degrees.recomputes[half]) plan.recompute.push_back(half + 1);
    }
  }
  plan.sync.algorithm = algorithm_of(problem.places, replicas > 1 && row.zero_stage > 0, devices);
  if (replicas > 1) {
    plan.sync.sharded = sharding_of(row.zero_stage);
    const bool is_16_bit = problem.workload.dtype != DType::Float32;
    plan.sync.summed = is_16_bit ? framework.gradient_sums : DType::Float32;
    const bool overlaps =
        framework.overlaps_gradient_sums && (degrees.tensor.size() == 1 || framework.overlaps_in_pipelines);
    if (plan.sync.sharded == Sharding::None && !overlaps) plan.sync.bucket = Bytes(1e18);
    if (plan.sync.sharded == Sharding::Parameters) {
      plan.sync.gathered = framework.gathered;
      plan.sync.each_microbatch = true;
    }
  }
  plan.transfers.blocking = framework.blocking_transfers && (degrees.tensor.size() > 1 || most_shards > 1);
  // Between stages of other numbers of replicas, devices compute while they send.
  if (schedules::fault_of_transfers(plan)) plan.transfers.blocking = false;
  plan.transfers.sliced = framework.sliced_transfers && degrees.tensor.size() > 1 && most_shards > 1;
  return problem;
}

}  // namespace isobar::cli
