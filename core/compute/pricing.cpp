#include "core/compute/pricing.hpp"

#include "core/cluster/device_types.hpp"
#include "core/compute/device_constants.hpp"
#include "core/compute/known_pairs.hpp"
#include "core/compute/layer_memory.hpp"
#include "core/compute/layer_time.hpp"
#include "core/errors.hpp"
#include "core/model/framework.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/system_rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::compute {

namespace {

constexpr std::size_t most_shards = 64;

/// What layers take on a type of device.
class TypeTimes {
 public:
  TypeTimes(const std::string& type, DType dtype, const Measurements& measurements)
      : constants_(measurements.constants_of(type)),
        layers_(measurements.layers_of(type)),
        table_(layers_ == nullptr ? measurements.operators_of(type, dtype) : nullptr)
  {
  }

  const DeviceConstants& constants() const { return constants_; }

  /// Of one of several shards.
  ShardTimes times(const Workload& workload, std::size_t layer, std::size_t shards, const Framework& framework) const
  {
    if (layers_ != nullptr) return measured(workload, layer, shards, framework);
    const auto time = layer_time(workload, layer, constants_, framework, {shards}, table_);
    return {time.forward.total(), time.backward.total(), time.backward_weight};
  }

  /// The most of it that is beside what parts of a sequence exchange: attention beside a ring, and what the host adds.
  ShardTimes beside_exchange(const Workload& workload, std::size_t layer, std::size_t shards,
                             const Framework& framework) const
  {
    if (layers_ != nullptr || !workload.context.divides()) return {};
    const auto time = layer_time(workload, layer, constants_, framework, {shards}, table_);
    const HiddenAttention most = most_hidden_attention(workload, time);
    return {most.forward + time.forward.launch, most.backward + time.backward.launch, {}};
  }

 private:
  /// By the nearest number of shards that was measured.
  ShardTimes measured(const Workload& workload, std::size_t layer, std::size_t shards, const Framework& framework) const
  {
    const auto of_size = layers_->runs.find(workload.micro_batch);
    if (of_size == layers_->runs.end()) layers_->run(workload.micro_batch, shards);  // throws
    auto nearest = of_size->second.lower_bound(shards);
    if (nearest == of_size->second.end()) --nearest;
    const auto run = in_training(*layers_, workload.micro_batch, nearest->first, framework);
    const auto [forward, backward] = times_of_layer(*layers_, run, workload, layer);
    const auto scaled = [&](Seconds time) {
      return time * (static_cast<double>(nearest->first) / static_cast<double>(shards));
    };
    ShardTimes times{scaled(forward), scaled(backward), scaled(0.5 * backward)};
    if (std::binary_search(workload.recompute.begin(), workload.recompute.end(), layer))
      times.backward += times.forward;
    return times;
  }

  DeviceConstants constants_;
  const SailorProfile* layers_;
  const OperatorTable* table_;
};

/// Calls `visit` with each number of shards whose times are known: powers of two.
template <typename Visit>
void for_each_number_of_shards(const Layer& layer, Visit visit)
{
  const std::size_t units = layer.split ? std::min<std::size_t>(layer.split->units, most_shards) : 1;
  for (std::size_t shards = 2; shards <= units; shards *= 2) visit(shards);
}

class OperatorPrices : public LayerPrices {
 public:
  /// `types` are those of the devices; bounds weigh layers by their times on `reference`.
  OperatorPrices(Framework framework, std::string reference, std::set<std::string> types, Measurements measurements)
      : framework_(std::move(framework)),
        reference_(std::move(reference)),
        types_(std::move(types)),
        measurements_(std::move(measurements))
  {
  }

  const Measurements& measurements() const { return measurements_; }

  void apply(Workload& workload) const override
  {
    workload.times.clear();
    workload.workspace = Bytes(0);
    for (std::size_t index = 0; index < workload.layers.size(); ++index) set_memory(workload, index);
    const std::vector<LayerTimes> usual = times_of_type(workload, reference_);
    for (const auto& type : types_) {
      set_times(workload, type, type == reference_ ? usual : times_of_type(workload, type), usual);
    }
    workload.workspace += framework_.memory.context;
    workload.state = state_of(framework_, workload);
    // Tables of allocators count what the update needs as if it were always there.
    workload.state->gradient += std::exchange(workload.state->update, 0);
  }

 private:
  std::vector<LayerTimes> times_of_type(const Workload& workload, const std::string& type) const
  {
    const TypeTimes times(type, workload.dtype, measurements_);
    std::vector<LayerTimes> all;
    for (std::size_t index = 0; index < workload.layers.size(); ++index) {
      const Layer& layer = workload.layers[index];
      LayerTimes& own = all.emplace_back();
      static_cast<ShardTimes&>(own) = times.times(workload, index, 1, framework_);
      own.update = update_time(static_cast<double>(layer.parameters), times.constants(), framework_);
      for_each_number_of_shards(
          layer, [&](std::size_t shards) { own.of_shards[shards] = times.times(workload, index, shards, framework_); });
    }
    return all;
  }

  void set_memory(Workload& workload, std::size_t index) const
  {
    Layer& layer = workload.layers[index];
    const LayerMemory whole = layer_memory(workload, index, framework_);
    layer.activations = whole.kept;
    layer.workspace = whole.workspace;
    workload.workspace = std::max(workload.workspace, layer.workspace);
    if (!layer.split) return;
    // Of a + b / n for n shards, b.
    const LayerMemory half = layer_memory(workload, index, framework_, {2});
    layer.split->activations = (whole.kept - half.kept) * 2;
    layer.split->workspace = (whole.workspace - half.workspace) * 2;
  }

  Framework framework_;
  std::string reference_;
  std::set<std::string> types_;
  Measurements measurements_;
};

}  // namespace

void price(Workload& workload, const Cluster& cluster, const Measurements& measurements)
{
  if (workload.compute == ComputeModel::Rate) return;
  std::set<std::string> types;
  for (const auto& device : cluster.devices) {
    if (device.type.empty()) {
      throw InputError(cluster.name,
                       fmt::format("{}: has no device type, whose constants compute: operators takes; give it "
                                   "a prop device, or write compute: rate",
                                   shown(device.name)));
    }
    types.insert(device.type);
  }
  workload.prices = std::make_shared<OperatorPrices>(framework_of(workload), cluster.devices.front().type,
                                                     std::move(types), measurements);
  workload.prices->apply(workload);
}

double least_as_trained(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const auto* prices = dynamic_cast<const OperatorPrices*>(workload.prices.get());
  const Framework* const own = framework_of(plan);
  if (prices == nullptr || own == nullptr) return 1;
  const Framework& framework = *own;
  const bool is_shared = has_shared_stages(plan);
  double least = 1;
  std::set<std::string> types;
  for (const auto& device : cluster.devices) {
    if (!types.insert(device.type).second) continue;
    const TypeTimes times(device.type, workload.dtype, prices->measurements());
    std::set<std::pair<double, double>> kinds;
    for (std::size_t index = 0; index < workload.layers.size(); ++index) {
      const Layer& layer = workload.layers[index];
      const LayerTimes& whole = workload.times.at(device.type)[index];
      if (!kinds.emplace(whole.forward.value, whole.backward.value).second) continue;
      const std::size_t units = is_shared && layer.split ? std::min<std::size_t>(layer.split->units, most_shards) : 1;
      for (std::size_t shards = 1; shards <= units; shards *= 2) {
        const ShardTimes own = times.times(workload, index, shards, framework);
        const bool hides_dispatches = framework.hides_dispatches && workload.experts.divides() && layer.experts;
        const bool hides_all = (shards > 1 && framework.hides_shard_collectives) || hides_dispatches;
        const bool hides_sums = shards > 1 && framework.hides_shard_sums;
        const ShardTimes beside = times.beside_exchange(workload, index, shards, framework);
        const Seconds forward = (hides_all ? 1 - hidden_part : 1) * (own.forward - beside.forward);
        const Seconds backward = (hides_all || hides_sums ? 1 - hidden_part : 1) * (own.backward - beside.backward);
        const auto count = static_cast<double>(shards);
        if (whole.forward > Seconds(0)) least = std::min(least, count * (forward / whole.forward));
        const Seconds both = whole.forward + whole.backward;
        if (both > Seconds(0)) least = std::min(least, count * ((forward + backward) / both));
      }
    }
  }
  return least;
}

const Measurements& measurements_of(const Workload& workload)
{
  static const Measurements none;
  const auto* prices = dynamic_cast<const OperatorPrices*>(workload.prices.get());
  return prices != nullptr ? prices->measurements() : none;
}

std::vector<std::string> notes_of_constants(const Workload& workload, const Cluster& cluster,
                                            const Measurements& measurements)
{
  std::vector<std::string> notes;
  if (workload.compute == ComputeModel::Rate) return notes;
  const auto [framework, stand_in] = framework_named(workload.framework);
  if (!stand_in.empty()) notes.push_back(stand_in);
  std::set<std::string> types;
  for (const auto& device : cluster.devices) {
    const bool is_new = types.insert(device.type).second;
    const bool is_measured =
        measurements.table_of(device.type) != nullptr || measurements.layers_of(device.type) != nullptr;
    if (!is_new || is_measured) continue;
    const DeviceConstants& constants = device_constants(device.type);
    if (source_of_pair(constants.type, *framework) == PairSource::Fitted) continue;
    const std::string of =
        constants.type == device.type ? "the device" : fmt::format("{}, which stands for it", constants.type);
    notes.push_back(fmt::format(
        "{} under {}: no constant is fitted to training runs of this pair; published runs of such pairs have "
        "median errors of 2 to 18 % by set, and those of small models up to 50 % (docs/fidelity.md); "
        "constants of {}: {}",
        shown(device.type), framework->name, of, constants.source));
  }
  return notes;
}

}  // namespace isobar::compute
