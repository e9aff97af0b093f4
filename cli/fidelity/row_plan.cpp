#include "cli/fidelity/row_plan.hpp"

#include "core/base/files.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/pricing.hpp"
#include "core/errors.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/split_text.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/program/collective.hpp"
#include "core/text/document.hpp"
#include "core/text/separated.hpp"
#include "results/fidelity/aceso_plan.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <variant>

namespace isobar::cli {

namespace {

using results::MeasuredRow;
using results::Recomputation;

/// Devices of a stage of the pipeline: by replica and shard.
using Places = std::vector<std::vector<const Device*>>;

/// A degree of a stage, of which a row gives one for all or one for each.
std::size_t of_stage(const std::vector<std::size_t>& degrees, std::size_t stage)
{
  return degrees.size() == 1 ? degrees.front() : degrees.at(stage);
}

/// Hands out the devices of a machine, each once.
class DevicePool {
 public:
  explicit DevicePool(const std::vector<Device>& devices) : devices_(devices), is_taken_(devices.size(), false) {}

  /// The next devices in the order of the platform.
  std::vector<const Device*> next(std::size_t count)
  {
    std::vector<const Device*> taken;
    for (std::size_t i = 0; i < devices_.size() && taken.size() < count; ++i) {
      if (!is_taken_[i]) taken.push_back(take(i));
    }
    return require(std::move(taken), count, devices_.size(), "");
  }

  /// As the column says: free devices of a type, of one node if one has as many; a number; or a range of numbers.
  std::vector<const Device*> named(std::string_view name, std::size_t count)
  {
    const std::size_t dash = name.find('-');
    const auto first = count_from_text(name.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : count_from_text(name.substr(dash + 1));
    return first && last ? range(*first, *last, count) : of_type(name, count);
  }

 private:
  std::vector<const Device*> of_type(std::string_view type, std::size_t count)
  {
    std::vector<std::size_t> free;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (!is_taken_[i] && devices_[i].type == type) free.push_back(i);
    }
    std::size_t first = 0;
    for (std::size_t i = 0; i + count <= free.size(); ++i) {
      if (devices_[free[i]].site != devices_[free[i + count - 1]].site) continue;
      first = i;
      break;
    }
    std::vector<const Device*> taken;
    for (std::size_t i = first; i < free.size() && taken.size() < count; ++i) taken.push_back(take(free[i]));
    const auto all = std::ranges::count(devices_, type, &Device::type);
    return require(std::move(taken), count, static_cast<std::size_t>(all), fmt::format(" of type {}", type));
  }

  std::vector<const Device*> range(std::size_t first, std::size_t last, std::size_t count)
  {
    if (last < first || last >= devices_.size()) {
      throw Unsupported(fmt::format("devices: {}-{} of a machine with {}", first, last, devices_.size()));
    }
    std::vector<const Device*> taken;
    for (std::size_t i = first; i <= last; ++i) {
      if (is_taken_[i]) throw Unsupported(fmt::format("devices: number {} is named twice", i));
      taken.push_back(take(i));
    }
    if (taken.size() != count) throw Unsupported(fmt::format("devices: {}-{} for {} shards", first, last, count));
    return taken;
  }

  const Device* take(std::size_t device)
  {
    is_taken_[device] = true;
    return &devices_[device];
  }

  static std::vector<const Device*> require(std::vector<const Device*> taken, std::size_t count, std::size_t all,
                                            const std::string& what)
  {
    if (taken.size() == count) return taken;
    throw Unsupported(fmt::format("platform: has {} devices{}, too few for the degrees of the row", all, what));
  }

  const std::vector<Device>& devices_;
  std::vector<bool> is_taken_;
};

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
    results::AcesoPlan plan = results::read_aceso_plan(row.plan, blocks);
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

std::vector<Places> places_of(const MeasuredRow& row, const Degrees& degrees, const std::vector<Device>& devices)
{
  DevicePool pool(devices);
  std::vector<Places> places(degrees.tensor.size());
  const auto stages = texts_between(row.devices, '|');
  if (!row.devices.empty() && stages.size() != places.size()) {
    throw Unsupported(fmt::format("devices: of {} stages; the pipeline has {}", stages.size(), places.size()));
  }
  for (std::size_t stage = 0; stage < places.size(); ++stage) {
    const std::size_t shards = degrees.tensor[stage];
    std::vector<std::string_view> names;
    if (!row.devices.empty()) names = texts_between(stages[stage], ',');
    if (names.size() > 1 && names.size() != degrees.data[stage]) {
      throw Unsupported(
          fmt::format("devices: {} replicas of stage {}; it has {}", names.size(), stage, degrees.data[stage]));
    }
    // One range for all replicas of a stage has the devices of each in order.
    const bool is_whole = names.size() == 1 && count_from_text(names.front().substr(0, names.front().find('-')));
    std::vector<const Device*> all;
    if (is_whole) all = pool.named(names.front(), shards * degrees.data[stage]);
    for (std::size_t replica = 0; replica < degrees.data[stage]; ++replica) {
      if (is_whole) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(replica * shards);
        places[stage].emplace_back(begin, begin + static_cast<std::ptrdiff_t>(shards));
        continue;
      }
      const std::string_view name = names.empty() ? "" : names[std::min(replica, names.size() - 1)];
      places[stage].push_back(name.empty() ? pool.next(shards) : pool.named(name, shards));
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
  for (const auto line : texts_between(text, '\n')) {
    if (!line.starts_with("dropout:")) others += line;
    others += '\n';
  }
  text = std::move(others);
  settings.erase("dropout");
}

struct RowWorkload {
  std::string text;
  WorkloadSettings settings;
  Workload workload;
};

RowWorkload workload_of(const MeasuredRow& row, const RowChoice& choice, std::size_t most_shards)
{
  RowWorkload made;
  made.text = read_file(row.workload);
  auto& settings = made.settings;
  for (const auto& [key, value] : row.overrides) settings[key] = value;
  settings["unit"] = "operator";
  settings["compute"] = "operators";
  settings["framework"] = row.framework;
  settings["micro_batch"] = fmt::to_string(choice.micro_batch);
  if (has_fused_attention(made.text, row.workload, settings)) {
    // Readers refuse dropout in fused attention, since no run repeats what it draws.
    leave_out_dropout(made.text, settings);
  } else if (choice.recompute == Recomputation::Selective) {
    settings["attention"] = "recomputed";
  }
  const auto read = [&] { made.workload = workload_from_text(made.text, row.workload, settings, "overrides"); };
  read();
  if (!compute::framework_named(row.framework).framework->pads_vocabulary) return made;
  std::uint64_t vocabulary = 0;
  if (const auto* sizes = std::get_if<GptSizes>(&made.workload.model)) vocabulary = sizes->vocabulary;
  if (const auto* sizes = std::get_if<LlamaSizes>(&made.workload.model)) vocabulary = sizes->vocabulary;
  settings["vocabulary"] = fmt::to_string(compute::padded_vocabulary(vocabulary, most_shards));
  read();
  return made;
}

Sharding sharding_of(std::size_t zero_stage)
{
  constexpr std::array stages = {Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters};
  return stages.at(zero_stage);
}

/// Adds the stages of a plan for layers first..last on the devices of a pipeline stage.
void add_stages(Plan& plan, const Workload& workload, const Places& places, std::size_t first, std::size_t last,
                const MeasuredRow& row)
{
  const std::size_t shards = places.front().size();
  for (std::size_t layer = first; shards > 1 && layer <= last; ++layer) {
    const auto& split = workload.layers[layer].split;
    if (split && split->units >= shards) continue;
    throw Unsupported(fmt::format("tp: {} shards of layer {}, which has {} {}", shards, workload.layers[layer].name,
                                  split ? split->units : 0, split ? units_in_words(workload, *split) : "parts"));
  }
  Stage made;
  for (const auto& own : places) {
    Replica& replica = made.replicas.emplace_back();
    replica.microbatches = places.size() == 1 ? 0 : plan.goal.microbatches / places.size();
    for (const Device* device : own) {
      Shard shard{.device = device->name, .share = 1.0 / static_cast<double>(shards)};
      if (!device->type.empty()) shard.type = device->type;
      if (!device->site.empty()) shard.site = device->site;
      replica.shards.push_back(std::move(shard));
    }
  }
  if (row.sequence_parallel && shards > 1) made.grid = {ShardGrid::Form::Sequence, shards};
  // A layer of several shards is a stage, and so is a block whose parameters are gathered for it.
  const bool gathers = row.zero_stage == 3 && places.size() > 1;
  for (std::size_t begin = first; begin <= last; begin = made.last_layer + 1) {
    made.first_layer = begin;
    made.last_layer = shards > 1 ? begin : last;
    const bool is_block = begin > 0 && begin + 2 < workload.layers.size();
    if (shards == 1 && gathers) made.last_layer = is_block ? std::min(begin + 1, last) : begin;
    plan.stages.push_back(made);
  }
}

/// How devices add up: over nodes with several of them in each, NCCL's rings use all NICs, as the hierarchical
/// algorithm does. Replicas that divide parameters need as many in each node for it.
Algorithm algorithm_of(const Plan& plan, bool divides)
{
  bool spans = false;
  bool is_even = true;
  const auto add = [&](const std::vector<std::string>& sites) {
    const std::set<std::string> nodes(sites.begin(), sites.end());
    spans = spans || (nodes.size() > 1 && nodes.size() < sites.size());
  };
  for (const auto& stage : plan.stages) {
    const auto of_replicas = sites_of(stage, 0);
    add(of_replicas);
    for (const auto& replica : stage.replicas) {
      std::vector<std::string> of_shards;
      for (const auto& shard : replica.shards) of_shards.push_back(shard.site.value_or(""));
      add(of_shards);
    }
    is_even = is_even && are_equal_sites(of_replicas);
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

/// Gives the layers their times by the software and what was measured, and the plan the system's rules.
RowPlan priced(const MeasuredRow& row, RowWorkload made, Plan plan, const Cluster& cluster)
{
  compute::Measurements measurements(row.profiles);
  std::set<std::string> types;
  for (const auto& device : cluster.devices) types.insert(device.type);
  for (const auto& other : measurements.of_others({types.begin(), types.end()})) {
    throw Unsupported(
        fmt::format("profiles: {} is of {}, and the machine has {}", other.file, other.device, fmt::join(types, ", ")));
  }
  if (!plan.recompute.empty()) made.workload = with_recomputation(made.workload, plan.recompute);
  std::vector<Flops> work;
  for (const auto& layer : made.workload.layers) work.push_back(layer.forward + layer.backward);
  compute::price(
      made.workload, cluster, [](const auto&, auto) {}, measurements);
  if (!plan.system) compute::take_system(plan, made.workload);
  return {std::move(made.text), std::move(made.settings), std::move(made.workload), std::move(work), std::move(plan)};
}

/// A row with a plan of Isobar, whose layers are those of unit operator.
RowPlan of_isobar_plan(const MeasuredRow& row, const RowChoice& choice, const Cluster& cluster)
{
  Plan plan = read_plan(row.plan);
  if (plan.stages.empty()) throw Unsupported("plan: has no placement");
  std::size_t most_shards = 1;
  for (const auto& stage : plan.stages) most_shards = std::max(most_shards, stage.replicas.front().shards.size());
  RowWorkload made = workload_of(row, choice, most_shards);
  const std::size_t layers = made.workload.layers.size();
  if (plan.stages.back().last_layer + 1 != layers) {
    throw Unsupported(fmt::format("plan: of {} layers; the model has {} of unit operator",
                                  plan.stages.back().last_layer + 1, layers));
  }
  for (const auto& device : devices_of(plan)) {
    if (!cluster.device_index(device)) throw Unsupported(fmt::format("plan: the machine has no device {}", device));
  }
  const std::uint64_t samples = plan.goal.microbatches * choice.micro_batch;
  if (row.global_batch > samples) {
    throw Unsupported(fmt::format("plan: its {} micro-batches of {} are fewer samples than global_batch, {}",
                                  plan.goal.microbatches, choice.micro_batch, row.global_batch));
  }
  if (row.global_batch < samples) plan.samples = row.global_batch;
  return priced(row, std::move(made), std::move(plan), cluster);
}

}  // namespace

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

RowPlan plan_of(const MeasuredRow& row, const RowChoice& choice, const Cluster& cluster)
{
  require_supported(row, choice);
  if (has_isobar_plan(row)) return of_isobar_plan(row, choice, cluster);
  RowWorkload made = workload_of(row, choice, 1);
  const double blocks = blocks_of(made.workload);
  const Degrees degrees = degrees_of(row, blocks, choice.virtual_stages);
  const std::size_t most_shards = *std::ranges::max_element(degrees.tensor);
  if (most_shards > 1) made = workload_of(row, choice, most_shards);
  const std::size_t layers = made.workload.layers.size();
  const double placed = std::accumulate(degrees.blocks.begin(), degrees.blocks.end(), 0.0);
  if (std::abs(placed - blocks) > 0.05) {
    throw Unsupported(fmt::format("layers: of {:g} blocks; the model has {:g}", placed, blocks));
  }

  // Micro-batches: the most that one of the replicas takes, in each stage.
  Plan plan;
  const std::size_t replicas = *std::ranges::max_element(degrees.data);
  const double samples = static_cast<double>(row.global_batch) / static_cast<double>(replicas);
  const auto each = static_cast<std::uint64_t>(std::ceil(samples / static_cast<double>(choice.micro_batch) - 1e-9));
  plan.goal.microbatches = each * replicas;
  if (row.global_batch < plan.goal.microbatches * choice.micro_batch) plan.samples = row.global_batch;
  for (const std::size_t data : degrees.data) {
    if (plan.goal.microbatches % data != 0) {
      throw Unsupported(fmt::format("dp: {} replicas of a stage for {} micro-batches", data, plan.goal.microbatches));
    }
  }
  plan.allocator = "measured";
  plan.goal.schedule.name = row.schedule.empty() ? (choice.virtual_stages > 1 ? "interleaved" : "1f1b") : row.schedule;
  if (choice.virtual_stages > 1) plan.goal.schedule.numbers["chunks"] = {choice.virtual_stages};
  if (schedules::find_schedule(plan.goal.schedule.name) == nullptr) {
    throw Unsupported(fmt::format("schedule: {} is none that plans have", plan.goal.schedule.name));
  }

  const auto places = places_of(row, degrees, cluster.devices);
  double end = 0;
  std::size_t begin_layer = 0;
  for (std::size_t chunk = 0; chunk < degrees.blocks.size(); ++chunk) {
    end += degrees.blocks[chunk];
    const bool is_last = chunk + 1 == degrees.blocks.size();
    // A block is two layers; a cut inside of one goes to the nearest.
    const std::size_t last = is_last ? layers - 1 : static_cast<std::size_t>(std::llround(2 * end));
    if (last < begin_layer) throw Unsupported("layers: a stage of no layer");
    add_stages(plan, made.workload, places[chunk % places.size()], begin_layer, last, row);
    begin_layer = last + 1;
  }

  if (choice.recompute == Recomputation::Full) {
    for (std::size_t layer = 1; layer + 1 < layers; ++layer) plan.recompute.push_back(layer);
  } else if (choice.recompute == Recomputation::Planned) {
    for (std::size_t half = 0; half < degrees.recomputes.size(); ++half) {
      if (degrees.recomputes[half]) plan.recompute.push_back(half + 1);
    }
  }
  plan.sync.algorithm = algorithm_of(plan, replicas > 1 && row.zero_stage > 0);
  if (replicas > 1) plan.sync.sharded = sharding_of(row.zero_stage);
  return priced(row, std::move(made), std::move(plan), cluster);
}

}  // namespace isobar::cli
