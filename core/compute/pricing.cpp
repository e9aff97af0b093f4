#include "core/compute/pricing.hpp"

#include "core/cluster/device_types.hpp"
#include "core/compute/device_constants.hpp"
#include "core/compute/framework.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/measured_operators.hpp"
#include "core/errors.hpp"

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

const Framework& framework_of(const Workload& workload)
{
  if (workload.framework.empty()) {
    throw InputError("framework", fmt::format("is missing; compute: operators takes the constants of one: {}",
                                              fmt::join(framework_names(), ", ")));
  }
  return *framework_named(workload.framework).framework;
}

/// What layer times of a type of device follow from.
struct PricedType {
  DeviceConstants constants;
  std::optional<OperatorTable> table;

  const OperatorTable* measured() const { return table ? &*table : nullptr; }
};

/// With the table of the type, else with what Isobar has measured operators of.
PricedType priced_type(const std::string& type, DType dtype, const std::vector<OperatorTable>& tables)
{
  const auto found =
      std::ranges::find_if(tables, [&](const auto& table) { return is_same_device_type(table.device, type); });
  if (found != tables.end()) return {constants_of(*found), *found};
  PricedType own{device_constants(type), {}};
  if (const auto* known = measured_operators(own.constants.type, dtype)) own.table = *known;
  return own;
}

/// The time of a micro-batch in all layers.
Seconds time_of_all(const Workload& workload, const PricedType& device, const Framework& framework)
{
  Seconds sum;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const LayerTime time = layer_time(workload, layer, device.constants, framework, {}, device.measured());
    sum += time.forward.total() + time.backward.total();
  }
  return sum;
}

/// A type of device and training software, to whose runs constants were fitted (tools/fit_compute.py).
struct FittedPair {
  std::string_view device;
  std::string_view framework;
};

constexpr FittedPair fitted_pairs[] = {
    {"A100-SXM4-80GB", "composer-fsdp-2023"}, {"A100-SXM4-80GB", "megatron-lm-2021"},
    {"A100-SXM4-80GB", "megatron-lm-2022"},   {"GH200-96GB", "megatron-deepspeed-2024"},
    {"H100-SXM5-80GB", "composer-fsdp-2023"}, {"H100-SXM-80GB", "composer-fsdp-2023"},
};

bool is_fitted(const DeviceConstants& device, const Framework& framework)
{
  return std::any_of(std::begin(fitted_pairs), std::end(fitted_pairs), [&](const FittedPair& pair) {
    return pair.device == device.type && pair.framework == framework.name;
  });
}

class OperatorPrices : public LayerPrices {
 public:
  OperatorPrices(const Framework& framework, PricedType device, FlopsPerSecond speed)
      : framework_(framework), device_(std::move(device)), speed_(speed)
  {
  }

  void apply(Workload& workload) const override
  {
    for (std::size_t index = 0; index < workload.layers.size(); ++index) {
      Layer& layer = workload.layers[index];
      const ShardWork whole = work_in(workload, index, {});
      layer.forward = whole.forward;
      layer.backward = whole.backward;
      layer.backward_weight = whole.backward_weight;
      layer.update = update_time(static_cast<double>(layer.parameters), device_.constants, framework_) * speed_;
      const std::size_t units = layer.split ? std::min<std::size_t>(layer.split->units, most_shards) : 1;
      for (std::size_t shards = 2; shards <= units; shards *= 2) {
        layer.work_of_shards[shards] = work_in(workload, index, {shards});
      }
    }
  }

 private:
  ShardWork work_in(const Workload& workload, std::size_t layer, const LayerDivision& division) const
  {
    const auto time = layer_time(workload, layer, device_.constants, framework_, division, device_.measured());
    return {time.forward.total() * speed_, time.backward.total() * speed_, time.backward_weight * speed_};
  }

  const Framework& framework_;
  PricedType device_;
  FlopsPerSecond speed_;
};

}  // namespace

void price(Workload& workload, const Cluster& cluster,
           const std::function<void(const std::string& type, FlopsPerSecond speed)>& set_speed,
           const std::vector<OperatorTable>& tables)
{
  if (workload.compute == ComputeModel::Rate) return;
  const Framework& framework = framework_of(workload);
  Flops all;
  for (const auto& layer : workload.layers) all += layer.forward + layer.backward;
  std::map<std::string, FlopsPerSecond> speeds;  // by type
  for (const auto& device : cluster.devices) {
    if (device.type.empty()) {
      throw InputError(cluster.name,
                       fmt::format("{}: has no device type, whose constants compute: operators takes; give it "
                                   "a prop device, or write compute: rate",
                                   shown(device.name)));
    }
    if (speeds.contains(device.type)) continue;
    speeds[device.type] = all / time_of_all(workload, priced_type(device.type, workload.dtype, tables), framework);
  }
  const std::string& reference = cluster.devices.front().type;
  workload.prices =
      std::make_shared<OperatorPrices>(framework, priced_type(reference, workload.dtype, tables), speeds.at(reference));
  workload.prices->apply(workload);
  for (const auto& [type, speed] : speeds) set_speed(type, speed);
}

std::vector<std::string> notes_of_constants(const Workload& workload, const Cluster& cluster,
                                            const std::vector<OperatorTable>& tables)
{
  std::vector<std::string> notes;
  if (workload.compute == ComputeModel::Rate) return notes;
  const auto [framework, stand_in] = framework_named(workload.framework);
  if (!stand_in.empty()) notes.push_back(stand_in);
  std::set<std::string> types;
  for (const auto& device : cluster.devices) {
    const bool is_new = types.insert(device.type).second;
    const auto is_of_type = [&](const OperatorTable& table) { return table.device == device.type; };
    if (!is_new || std::any_of(tables.begin(), tables.end(), is_of_type)) continue;
    const DeviceConstants& constants = device_constants(device.type);
    if (is_fitted(constants, *framework)) continue;
    const std::string of =
        constants.type == device.type ? "the device" : fmt::format("{}, which stands for it", constants.type);
    notes.push_back(fmt::format(
        "{} under {}: no constant is fitted to training runs of this pair; published runs of such pairs have "
        "median errors of 5 to 18 % by set, and those of small models up to 50 % (docs/fidelity.md); "
        "constants of {}: {}",
        shown(device.type), framework->name, of, constants.source));
  }
  return notes;
}

}  // namespace isobar::compute
