#include "core/compute/pricing.hpp"

#include "core/compute/device_constants.hpp"
#include "core/compute/framework.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/measured_operators.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
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
struct DeviceType {
  DeviceConstants constants;
  std::optional<OperatorTable> table;

  const OperatorTable* measured() const { return table ? &*table : nullptr; }
};

/// With the table of the type, else with what Isobar has measured operators of.
DeviceType device_type(const std::string& type, DType dtype, const std::vector<OperatorTable>& tables)
{
  const auto found =
      std::find_if(tables.begin(), tables.end(), [&](const auto& table) { return table.device == type; });
  if (found != tables.end()) return {constants_of(*found), *found};
  DeviceType own{device_constants(type), {}};
  if (const auto* known = measured_operators(own.constants.type, dtype)) own.table = *known;
  return own;
}

/// The time of a micro-batch in all layers.
Seconds time_of_all(const Workload& workload, const DeviceType& device, const Framework& framework)
{
  Seconds sum;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    const LayerTime time = layer_time(workload, layer, device.constants, framework, {}, device.measured());
    sum += time.forward.total() + time.backward.total();
  }
  return sum;
}

class OperatorPrices : public LayerPrices {
 public:
  OperatorPrices(const Framework& framework, DeviceType device, FlopsPerSecond speed)
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
  DeviceType device_;
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
    speeds[device.type] = all / time_of_all(workload, device_type(device.type, workload.dtype, tables), framework);
  }
  const std::string& reference = cluster.devices.front().type;
  workload.prices =
      std::make_shared<OperatorPrices>(framework, device_type(reference, workload.dtype, tables), speeds.at(reference));
  workload.prices->apply(workload);
  for (const auto& [type, speed] : speeds) set_speed(type, speed);
}

}  // namespace isobar::compute
