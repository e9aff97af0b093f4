#include "results/fidelity/row_devices.hpp"

#include "core/text/separated.hpp"
#include "results/fidelity/aceso_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

namespace isobar::results {

namespace {

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

}  // namespace

RowDegrees degrees_of(const MeasuredRow& row, double blocks, std::size_t virtual_stages)
{
  RowDegrees degrees;
  if (!row.plan.empty()) {
    AcesoPlan plan = read_aceso_plan(row.plan, blocks);
    degrees.tensor = std::move(plan.tensor);
    degrees.data = std::move(plan.data);
    degrees.blocks = std::move(plan.blocks);
    degrees.recomputed = std::move(plan.recomputed);
    return degrees;
  }
  const std::size_t stages = row.pipeline_degree;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    degrees.tensor.push_back(of_stage(row.tensor_degrees, stage));
    degrees.data.push_back(row.context_degree * of_stage(row.data_degrees, stage));
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

std::size_t layer_before(const std::vector<std::size_t>& ends, double blocks)
{
  const auto whole = std::min(static_cast<std::size_t>(blocks), ends.size());
  const std::size_t before = whole == 0 ? 0 : ends[whole - 1];
  if (whole == ends.size()) return before;
  const double part = blocks - static_cast<double>(whole);
  return before + static_cast<std::size_t>(std::llround(part * static_cast<double>(ends[whole] - before)));
}

ExpertParallelism experts_of(const MeasuredRow& row, std::size_t shards)
{
  if (!row.has_whole_experts || shards == 1) return {row.expert_degree, false};
  if (row.expert_degree % shards == 0) return {row.expert_degree / shards, true};
  throw Unsupported(fmt::format("ep: {} parts of whole experts for groups of {} shards; plans have a multiple of them",
                                row.expert_degree, shards));
}

std::vector<DevicesOfStage> devices_of_row(const MeasuredRow& row, const RowDegrees& degrees,
                                           const std::vector<Device>& devices)
{
  DevicePool pool(devices);
  std::vector<DevicesOfStage> places(degrees.tensor.size());
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

}  // namespace isobar::results
