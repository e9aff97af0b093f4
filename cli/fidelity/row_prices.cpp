#include "cli/fidelity/row_prices.hpp"

#include "core/base/files.hpp"
#include "core/cluster/device_types.hpp"
#include "core/compute/device_constants.hpp"
#include "core/compute/measured_operators.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/merged_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <string_view>
#include <tuple>

namespace isobar::cli {

namespace {

using results::RowParts;

std::vector<std::string> words_of(std::string_view name)
{
  std::vector<std::string> words;
  while (true) {
    const auto end = name.find('-');
    words.emplace_back(name.substr(0, end));
    if (end == std::string_view::npos) return words;
    name.remove_prefix(end + 1);
  }
}

/// Whether a word is short for another: "GH" for "GH200" and "96" for "96GB", but "A10" not for "A100".
bool is_short_for(const std::string& word, const std::string& whole)
{
  const auto is_digit = [](char character) { return std::isdigit(static_cast<unsigned char>(character)) != 0; };
  if (word.empty() || !whole.starts_with(word)) return false;
  return word.size() == whole.size() || !is_digit(word.back()) || !is_digit(whole[word.size()]);
}

/// Whether the file of a profile is of a device type: OPT-350_A100-40.json is of an A100 with 40 GB. Sailor's names are
/// short for words of a type's name.
bool is_of_type(const std::string& file, const std::string& type)
{
  const DeviceType* const known = find_device_type(type);
  const auto words = words_of(known == nullptr ? type : known->name);
  const std::string stem = std::filesystem::path(file).stem().string();
  return std::ranges::all_of(words_of(stem.substr(stem.rfind('_') + 1)), [&](const std::string& word) {
    return std::ranges::any_of(words, [&](const std::string& whole) { return is_short_for(word, whole); });
  });
}

}  // namespace

RowProfiles::RowProfiles(const std::vector<std::string>& files)
{
  for (const auto& file : files) {
    const std::string text = read_file(file);
    if (compute::is_operator_table(text)) {
      tables_.push_back(compute::operator_table_from_json(text, file));
    } else if (file.ends_with("_sizes.json")) {
      sizes_ = compute::sailor_sizes_from_json(text, file);
    } else {
      layers_.push_back(compute::sailor_profile_from_json(text, file));
      // Sailor keeps the sizes of a model's layers beside the profiles of its devices.
      const std::filesystem::path path(file);
      const std::string stem = path.stem().string();
      const auto beside = path.parent_path() / (stem.substr(0, stem.rfind('_')) + "_sizes.json");
      if (!sizes_ && std::filesystem::exists(beside)) sizes_ = compute::read_sailor_sizes(beside);
    }
  }
}

const compute::SailorProfile* RowProfiles::layers_of(const std::string& type) const
{
  const auto found = std::ranges::find_if(layers_, [&](const auto& profile) { return is_of_type(profile.name, type); });
  return found == layers_.end() ? nullptr : &*found;
}

const compute::OperatorTable* RowProfiles::table_of(const std::string& type) const
{
  const auto found =
      std::ranges::find_if(tables_, [&](const auto& table) { return is_same_device_type(table.device, type); });
  return found == tables_.end() ? nullptr : &*found;
}

compute::DeviceConstants RowProfiles::constants_of(const std::string& type) const
{
  const auto* table = table_of(type);
  return table != nullptr ? compute::constants_of(*table) : compute::device_constants(type);
}

namespace {

/// What a layer takes on a device of its stage, for one micro-batch.
struct LayerCost {
  Seconds forward;
  Seconds backward;
  Seconds backward_weight;
  Seconds update;
  RowParts parts;  ///< of both passes; `tensor` are the collectives among its shards, which are in no pass
};

/// How the blocks of a model of gpt or llama have attention.
Attention attention_of(const Workload& workload)
{
  if (const auto* sizes = std::get_if<GptSizes>(&workload.model)) return sizes->attention;
  const auto* sizes = std::get_if<LlamaSizes>(&workload.model);
  return sizes != nullptr ? sizes->attention : Attention::Unfused;
}

class RowPrices {
 public:
  RowPrices(const RowProblem& problem, const Cluster& cluster, const compute::Framework& framework,
            const RowProfiles& profiles)
      : problem_(problem), cluster_(cluster), framework_(framework), profiles_(profiles)
  {
  }

  PricedRow price()
  {
    PricedRow row{problem_.workload, cluster_, {}};
    row.parts.resize(problem_.places.size());
    std::map<std::size_t, Seconds> time_of_device;  // of its layers, forward and backward
    std::map<std::size_t, Flops> work_of_device;    // likewise
    for (std::size_t index = 0; index < problem_.plan.stages.size(); ++index) {
      const Stage& stage = problem_.plan.stages[index];
      const std::size_t pipeline_stage = problem_.chunk_of_stage[index] % problem_.places.size();
      const auto& replicas = problem_.places[pipeline_stage].replicas;
      const std::size_t first = replicas.front().front();
      const FlopsPerSecond speed = cluster_.devices[first].speed_at(problem_.workload.dtype);
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        std::map<std::string, LayerCost> costs;  // by type of device
        for (const auto& replica : replicas) {
          for (const std::size_t device : replica) {
            const std::string& type = cluster_.devices[device].type;
            if (!costs.contains(type)) costs.emplace(type, known_cost(index, layer, type));
          }
        }
        const LayerCost& own = costs.at(cluster_.devices[first].type);
        set_work(row.workload.layers[layer], stage, own, speed);
        for (const auto& replica : replicas) {
          for (const std::size_t device : replica) {
            const LayerCost& cost = costs.at(cluster_.devices[device].type);
            time_of_device[device] += cost.forward + cost.backward;
            work_of_device[device] += (own.forward + own.backward) * speed;
          }
        }
        const auto slowest = std::ranges::max_element(
            costs, {}, [](const auto& entry) { return entry.second.forward + entry.second.backward; });
        add(slowest->second.parts, row.parts[pipeline_stage]);
      }
      add_transfers(index, speed, row);
    }
    for (const auto& [device, time] : time_of_device) {
      Device& own = row.cluster.devices[device];
      if (gathers_) own.interference = beside_gathers;
      if (time <= Seconds(0)) continue;
      own.speed = work_of_device[device] / time;
      own.speed_in.clear();
    }
    return row;
  }

 private:
  /// What the software of a pipeline adds to the passes of a stage of the plan: the host's time, and receiving where
  /// that is a device's work.
  void add_transfers(std::size_t index, FlopsPerSecond speed, PricedRow& row) const
  {
    if (problem_.places.size() == 1) return;
    const auto& stages = problem_.plan.stages;
    const bool is_first = index == 0 || problem_.chunk_of_stage[index] != problem_.chunk_of_stage[index - 1];
    const bool is_last =
        index + 1 == stages.size() || problem_.chunk_of_stage[index] != problem_.chunk_of_stage[index + 1];
    RowParts& parts = row.parts[problem_.chunk_of_stage[index] % problem_.places.size()];
    const auto add_to = [&](std::size_t layer, Flops ShardWork::*pass, Flops Layer::*whole, Seconds time) {
      Layer& own = row.workload.layers[layer];
      for (auto& [shards, work] : own.work_of_shards) {
        work.*pass += time * speed;
        own.*whole += static_cast<double>(shards) * time * speed;
      }
    };
    const auto receive = [&](std::size_t other, Bytes size) {
      return cluster_.path(device_of(other), device_of(index)).transfer_time(size);
    };
    if (is_first) {
      Seconds time = framework_.pipeline_host;
      parts.launch += time;
      if (framework_.serial_transfers && index > 0) {
        const Seconds arrival = receive(index - 1, problem_.workload.layers[stages[index].first_layer - 1].output);
        parts.pipeline += arrival;
        time += arrival;
      }
      add_to(stages[index].first_layer, &ShardWork::forward, &Layer::forward, time);
    }
    if (is_last && framework_.serial_transfers && index + 1 < stages.size()) {
      const Seconds arrival = receive(index + 1, problem_.workload.layers[stages[index].last_layer].gradient);
      parts.pipeline += arrival;
      add_to(stages[index].last_layer, &ShardWork::backward, &Layer::backward, arrival);
    }
  }

  /// The first device of a stage of the plan.
  std::size_t device_of(std::size_t stage) const
  {
    return problem_.places[problem_.chunk_of_stage[stage] % problem_.places.size()].replicas.front().front();
  }

  /// Layers of a kind take the same in all stages of the plan that belong to a stage of the pipeline.
  const LayerCost& known_cost(std::size_t stage, std::size_t layer, const std::string& type)
  {
    const std::size_t last = problem_.workload.layers.size() - 1;
    const std::size_t kind = layer == 0 ? 0 : layer == last ? 3 : 1 + (layer + 1) % 2;
    const Key key{problem_.chunk_of_stage[stage] % problem_.places.size(), kind, recomputes(layer), type};
    const auto found = costs_.find(key);
    return found != costs_.end() ? found->second : costs_.emplace(key, cost_of(stage, layer, type)).first->second;
  }

  LayerCost cost_of(std::size_t stage, std::size_t layer, const std::string& type) const
  {
    const auto& replica = problem_.plan.stages[stage].replicas.front();
    compute::LayerDivision division{replica.shards.size(),
                                    problem_.plan.stages[stage].grid.form == ShardGrid::Form::Sequence};
    schedules::ShardCollectiveTimes collectives;
    if (division.shards > 1) {
      collectives = schedules::shard_collective_times(problem_.plan, stage, layer, problem_.workload, cluster_);
    }
    division.forward_collectives = collectives.forward;
    division.backward_collectives = collectives.backward;
    if (const auto* profile = profiles_.layers_of(type)) return measured_cost(*profile, layer, division);
    const compute::DeviceConstants device = profiles_.constants_of(type);
    const auto* table = profiles_.table_of(type);
    if (table == nullptr) table = compute::measured_operators(device.type, problem_.workload.dtype);
    const auto time = compute::layer_time(problem_.workload, layer, device, framework_, division, table);
    LayerCost cost;
    cost.forward = problem_.fill * time.forward.total();
    cost.backward = problem_.fill * time.backward.total();
    cost.backward_weight = problem_.fill * time.backward_weight;
    for (const auto* pass : {&time.forward, &time.backward}) {
      cost.parts.products += problem_.fill * pass->products;
      cost.parts.attention += problem_.fill * pass->attention;
      cost.parts.memory_bound += problem_.fill * pass->memory_bound;
      cost.parts.launch += problem_.fill * pass->launch;
    }
    // The plan plays collectives after the passes that hide them.
    cost.forward = std::max(cost.forward - time.hidden_forward, Seconds(0));
    cost.backward = std::max(cost.backward - time.hidden_backward, Seconds(0));
    cost.parts.tensor = collectives.forward + collectives.backward - time.hidden_forward - time.hidden_backward;
    if (recomputes(layer)) add_repeated_collectives(collectives.forward, cost);
    const double parameters = compute::parameters_of_shard(problem_.workload, layer, division.shards, framework_);
    cost.update = compute::update_time(parameters, device, framework_);
    return cost;
  }

  bool recomputes(std::size_t layer) const { return std::ranges::binary_search(problem_.plan.recompute, layer); }

  /// Recomputation repeats collectives of the forward pass, of a block's two layers together.
  void add_repeated_collectives(Seconds forward, LayerCost& cost) const
  {
    const Seconds again = framework_.recomputed_collectives / 2.0 * forward;
    cost.backward += again;
    cost.parts.tensor += again;
  }

  /// The collectives among shards are in measured times, and the plan plays them again.
  LayerCost measured_cost(const compute::SailorProfile& profile, std::size_t layer,
                          const compute::LayerDivision& division) const
  {
    const auto run = compute::in_training(profile, problem_.workload.micro_batch, division.shards, framework_);
    const std::size_t last = problem_.workload.layers.size() - 1;
    const bool is_block = layer > 0 && layer < last;
    const std::size_t measured = layer == 0 ? 0 : layer == last ? run.layers.size() - 1 : (layer + 1) / 2;
    if (measured >= run.layers.size() || (layer == last && run.layers.size() != last / 2 + 2)) {
      throw Unsupported(
          fmt::format("profiles: {} has {} layers; the model has {}", profile.name, run.layers.size(), last / 2 + 2));
    }
    if (is_block && attention_of(problem_.workload) == Attention::Recomputed) {
      throw Unsupported(fmt::format("recompute: selective; {} has times of whole blocks", profile.name));
    }
    const double part = is_block ? 0.5 : 1;  // a block is two layers
    LayerCost cost;
    const auto without = [](Seconds all, Seconds collectives) { return std::max(all - collectives, Seconds(0)); };
    cost.forward = problem_.fill * without(part * run.layers[measured].forward, division.forward_collectives);
    cost.backward = problem_.fill * without(part * run.layers[measured].backward, division.backward_collectives);
    cost.backward_weight = 0.5 * cost.backward;
    if (recomputes(layer)) cost.backward += cost.forward;
    cost.parts.products = cost.forward + cost.backward;
    cost.parts.tensor = division.forward_collectives + division.backward_collectives;
    if (recomputes(layer)) add_repeated_collectives(division.forward_collectives, cost);
    double all = 0;
    for (std::size_t i = 0; i <= last; ++i) {
      all += compute::parameters_of_shard(problem_.workload, i, division.shards, framework_);
    }
    cost.update =
        compute::parameters_of_shard(problem_.workload, layer, division.shards, framework_) / all * run.update;
    return cost;
  }

  static void set_work(Layer& layer, const Stage& stage, const LayerCost& cost, FlopsPerSecond speed)
  {
    const std::size_t shards = stage.replicas.front().shards.size();
    const ShardWork work{cost.forward * speed, cost.backward * speed, cost.backward_weight * speed};
    layer.work_of_shards.clear();
    const auto count = static_cast<double>(shards);
    layer.forward = count * work.forward;
    layer.backward = count * work.backward;
    layer.backward_weight = count * work.backward_weight;
    layer.work_of_shards[shards] = work;
    layer.update = count * cost.update * speed;
    // Training software computes gradients of what all shards have in each of them alike, and adds up nothing, unless
    // shards divide the sequence.
    if (shards > 1 && stage.grid.form == ShardGrid::Form::OneD) {
      layer.parameters += (shards - 1) * shared_parameters(layer);
      layer.split->parameters = layer.parameters;
    }
  }

  static void add(const RowParts& more, RowParts& to)
  {
    to.products += more.products;
    to.attention += more.attention;
    to.memory_bound += more.memory_bound;
    to.launch += more.launch;
    to.tensor += more.tensor;
    to.pipeline += more.pipeline;
  }

  using Key = std::tuple<std::size_t, std::size_t, bool, std::string>;  // stage, kind, recomputes, device type

  /// How many times longer products take beside gathers inside a node: both together take 1.21 times the longer of
  /// them on an A100 (results/fidelity/collectives/README.md), and a fifth of the gather is lost.
  static constexpr double beside_gathers = 1.25;

  const RowProblem& problem_;
  const Cluster& cluster_;
  const compute::Framework& framework_;
  const RowProfiles& profiles_;
  bool gathers_ = problem_.plan.sync.sharded == Sharding::Parameters;
  std::map<Key, LayerCost> costs_;
};

}  // namespace

PricedRow price_row(const RowProblem& problem, const Cluster& cluster, const compute::Framework& framework,
                    const RowProfiles& profiles)
{
  return RowPrices(problem, cluster, framework, profiles).price();
}

}  // namespace isobar::cli
