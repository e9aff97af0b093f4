#include "allocators/mix/gangs.hpp"

#include "core/errors.hpp"

#include <algorithm>

namespace isobar::allocators {

FreeDevices::FreeDevices(const std::vector<std::size_t>& nodes) : free_in_(nodes)
{
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    first_of_.push_back(node_of_.size());
    node_of_.insert(node_of_.end(), nodes[node], node);
    largest_ = std::max(largest_, nodes[node]);
  }
  first_of_.push_back(node_of_.size());
  free_ = node_of_.size();
  taken_.assign(free_, false);
}

void FreeDevices::mark(std::size_t device)
{
  ensure(!taken_[device], "a device for two gangs");
  taken_[device] = true;
  --free_in_[node_of_[device]];
  --free_;
}

void FreeDevices::take(const std::vector<std::size_t>& devices)
{
  for (const std::size_t device : devices) mark(device);
}

std::optional<std::vector<std::size_t>> FreeDevices::take(std::size_t count)
{
  if (free_ < count) return std::nullopt;
  std::vector<std::size_t> found;
  const bool is_whole = count > largest_;
  for (std::size_t node = 0; node + 1 < first_of_.size() && found.size() < count; ++node) {
    const std::size_t size = first_of_[node + 1] - first_of_[node];
    if (is_whole ? free_in_[node] < size : free_in_[node] < count) continue;
    for (std::size_t device = first_of_[node]; device < first_of_[node + 1]; ++device) {
      if (!taken_[device] && (is_whole || found.size() < count)) found.push_back(device);
    }
  }
  if (found.size() < count) return std::nullopt;
  take(found);
  return found;
}

}  // namespace isobar::allocators
