#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// The free devices of a cluster's nodes.
class FreeDevices {
 public:
  explicit FreeDevices(const std::vector<std::size_t>& nodes);

  /// Takes devices for a gang: from the first node with enough free ones, or, for more than the largest node has, the
  /// first empty nodes, whole. Returns their numbers, ascending; none, and takes nothing, where it does not fit.
  std::optional<std::vector<std::size_t>> take(std::size_t count);
  /// Takes these devices. They must be free.
  void take(const std::vector<std::size_t>& devices);

  std::size_t node_of(std::size_t device) const { return node_of_[device]; }

 private:
  void mark(std::size_t device);

  std::vector<std::size_t> first_of_;  // first device of each node, and the number of devices
  std::vector<std::size_t> node_of_;
  std::vector<std::size_t> free_in_;
  std::vector<bool> taken_;
  std::size_t free_ = 0;  // in all nodes
  std::size_t largest_ = 0;
};

}  // namespace isobar::allocators
