#pragma once

#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"
#include "core/shared_link.hpp"

#include <cstddef>
#include <limits>
#include <string_view>
#include <unordered_map>

namespace isobar {

/// The most that flows may take of a link at one time.
struct LinkLoad {
  double bandwidth = 0;      ///< of the link, in bytes per second
  bool is_fat_pipe = false;  ///< as SharedLink has it
  double most = 0;           ///< what all flows take alone, in bytes per second
  double least_weight = std::numeric_limits<double>::infinity();
  double filling_weight = 0;  ///< the largest of flows that fill the link alone

  /// Whether the flows may take bandwidth from each other.
  bool is_contended() const;
};

/// Loads of links, by their names.
class LinkLoads {
 public:
  /// Adds a flow over a link, which it loads with `most` bytes per second alone.
  void add(const SharedLink& link, double most, double weight);
  /// Adds flows that are under way beside these.
  void add_beside(const LinkLoads& others);
  /// Adds flows of which none is under way beside one of these.
  void add_after(const LinkLoads& others);

  const std::unordered_map<std::string_view, LinkLoad>& by_link() const { return loads_; }
  /// Whether any link is contended.
  bool are_contended() const;

 private:
  std::unordered_map<std::string_view, LinkLoad> loads_;
};

/// What the flows of a round load links with, in a network that has links.
LinkLoads loads_of(const Round& round, const EndNetwork& network);

}  // namespace isobar
