#pragma once

#include "allocators/exact/path_relaxation.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// A placement and its costs; memory holds.
struct FoundPlacement {
  std::vector<StagePlacement> stages;
  double objective = 0;
  double bottleneck = 0;
  double sum = 0;
};

/// A beam search that builds placements from the end of the chain, one stage at a time, and keeps the most promising
/// labels of each length. Exact if it never drops a label.
///
/// A label is the set of devices used, the cut reached and the device there. Its bound is its own cost plus the
/// relaxation's least completion minus the multipliers of the unused devices. Among labels with the same devices, cut
/// and first device, dominated ones are discarded.
class LabelSearch {
 public:
  /// The relaxation has its limit set and is solved with `multipliers` (by kind). `check` may throw. Keeps references.
  LabelSearch(const PathRelaxation& relaxation, const std::vector<double>& multipliers, std::function<void()> check);

  struct Answer {
    std::optional<FoundPlacement> placement;  ///< the best below the ceiling
    bool is_exhaustive = true;                ///< no label was dropped: there is no better placement
    std::size_t labels = 0;                   ///< total kept
  };
  /// Searches for placements whose largest cost is within the relaxation's limit and whose objective is below
  /// `ceiling`. Bounds assume a largest cost of at least `least_bottleneck`: placements with a smaller one may be
  /// missed. Keeps at most `width` labels of each length. For the bottleneck the first placement found is the answer.
  Answer run(double ceiling, double least_bottleneck, std::size_t width);

 private:
  struct Label {
    double sum;         // beta-weighted: costs of all stages but the first
    double bottleneck;  // of all stages but the first
    double compute;     // of the first stage
    double sent;        // activations of the first stage
    double unused;      // sum of the multipliers of unused devices
    std::uint64_t hash;
    std::uint32_t parent;
    std::uint32_t device;
    std::uint32_t cut;
  };
  struct Child {
    Label label;
    double bound;
  };

  static bool is_better(const Child& a, const Child& b) { return a.bound < b.bound; }
  void extend(std::uint32_t parent);
  void put_before(const Label& next, std::uint32_t parent, std::size_t kind, std::uint32_t device);
  void add_child(const Label& label, std::size_t kind, std::size_t room);
  void finish(const Label& label, std::size_t kind);
  void keep_width();
  void keep_best();
  bool dominates(const Label& label, const Label& other) const;
  bool costs_no_more(const Label& label, const Label& other) const;

  const StageTables& tables_;
  const PathRelaxation& relaxation_;
  const std::vector<double>& multipliers_;
  std::function<void()> check_;
  ObjectiveWeights weights_;
  std::size_t words_;  // of a set of devices
  std::vector<std::uint64_t> random_;
  double all_multipliers_ = 0;
  double ceiling_ = 0;
  double least_bottleneck_ = 0;
  std::size_t width_ = 0;
  std::size_t stages_ = 0;                  // of the labels being extended
  std::vector<std::vector<Label>> labels_;  // by length
  std::vector<std::uint64_t> used_;         // of the last length's labels
  std::vector<Child> children_;
  bool dropped_ = false;
  Answer answer_;
};

}  // namespace isobar::allocators
