#pragma once

#include "core/cluster/cluster.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

/// Whether the flows of a folded program take what those of the whole one take. Internal to schedules/lowering.
namespace isobar::schedules {

/// A link over which each flow of a folded program stands for several: its bandwidth is to be divided by their number.
struct LinkUsers {
  std::string link;
  double users = 1;
};

/// The paths of a network between its endpoints, each looked up once. The network must outlive it.
class KnownPaths {
 public:
  struct Link {
    std::string_view name;
    double bandwidth = 0;
    bool is_fat_pipe = false;
  };
  struct Known {
    Path path;
    std::vector<std::pair<std::size_t, double>> links;  // numbers in links(), and how often each carries a byte
  };

  explicit KnownPaths(const Network& network) : network_(network) {}

  /// Valid as long as this object. @throws InputError when the platform has no route.
  const Known& between(std::size_t from, std::size_t to);
  const std::vector<Link>& links() const { return links_; }

 private:
  const Network& network_;
  std::unordered_map<std::uint64_t, Known> known_;
  std::unordered_map<std::string_view, std::size_t> number_of_;
  std::vector<Link> links_;
};

/// The endpoints of a flow.
struct FlowEnds {
  std::size_t from = 0;
  std::size_t to = 0;
};

/// Equal flows that begin together, by groups of ranks that do the same: a transfer each, or a round of a collective.
struct FlowKind {
  std::vector<std::vector<FlowEnds>> whole;
  std::vector<std::vector<FlowEnds>> folded;
  std::size_t collective = 0;             // kinds with the same number are rounds of the same collectives
  std::size_t lanes = 1;                  // that may have such flows at a time; 1: nor are other rounds under way then
  std::optional<std::size_t> chain = {};  // kinds of one chain with other turns are not under way together
  std::size_t turn = 0;
};

struct FoldedLinks {
  std::vector<LinkUsers> links;  // of which flows of the folded program are fewer, by name
  std::optional<std::size_t>
      unlike;  // a kind whose flows may take other times than in the whole program; none: all alike
};

/// Compares the flows of a whole program with those of a folded one that passes links with less bandwidth.
///
/// Divides the flows of both into classes: those of one kind that have a path of the same latency and bandwidth, over
/// links of the same classes. Two links are of one class if flows of each class take the same part of their bandwidth.
/// So flows of one class that are under way together have the same rates, by whatever fairness links are shared, and
/// end together. The two programs are alike if each group of a kind, in both, has flows of the same classes. Links that
/// all their flows together cannot fill do not count.
/// O(flows · links of a path) for each refinement of the classes, of which there are mostly two or three.
/// Source: colour refinement, as of equitable partitions (Cardon and Crochemore, 1982).
FoldedLinks compare_flows(const std::vector<FlowKind>& kinds, KnownPaths& paths);

/// FoldedLinks::links alone, whether the flows are alike or not. O(flows · links of a path).
std::vector<LinkUsers> users_of_links(const std::vector<FlowKind>& kinds, KnownPaths& paths);

}  // namespace isobar::schedules
