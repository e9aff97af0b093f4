#include "allocators/exact/label_search.hpp"

#include "allocators/bounds/comparisons.hpp"

#include <algorithm>
#include <random>
#include <unordered_map>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr std::uint32_t no_parent = ~std::uint32_t{0};

bool contains(const std::uint64_t* set, std::size_t device)
{
  return (set[device / 64] >> (device % 64) & 1) != 0;
}

}  // namespace

LabelSearch::LabelSearch(const PathRelaxation& relaxation, const std::vector<double>& multipliers,
                         std::function<void()> check)
    : tables_(relaxation.tables()),
      relaxation_(relaxation),
      multipliers_(multipliers),
      check_(std::move(check)),
      weights_(tables_.weights()),
      words_((tables_.devices() + 63) / 64)
{
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < tables_.devices(); ++i) random_.push_back(random());
}

LabelSearch::Answer LabelSearch::run(double ceiling, double least_bottleneck, std::size_t width)
{
  ceiling_ = ceiling;
  least_bottleneck_ = least_bottleneck;
  width_ = width;
  answer_ = {};
  dropped_ = false;
  labels_.clear();
  used_.assign(words_, 0);
  double unused = 0;
  for (std::size_t kind = 0; kind < tables_.kinds(); ++kind) {
    unused += static_cast<double>(tables_.devices_of(kind).size()) * multipliers_[kind];
  }
  all_multipliers_ = unused;
  const Label start{0, 0, 0, 0, unused, 0, no_parent, 0, static_cast<std::uint32_t>(tables_.layers())};
  labels_.push_back({start});
  for (stages_ = 0; stages_ < tables_.devices() && !labels_.back().empty(); ++stages_) {
    children_.clear();
    for (std::uint32_t parent = 0; parent < labels_.back().size(); ++parent) {
      if (parent % 16 == 0) check_();
      extend(parent);
      if (answer_.placement && weights_.beta == 0) return answer_;
      if (children_.size() > 8 * width_ + 100'000) keep_width();
    }
    keep_best();
  }
  answer_.is_exhaustive = !dropped_;
  return answer_;
}

void LabelSearch::extend(std::uint32_t parent)
{
  const Label label = labels_.back()[parent];
  const std::uint64_t* used = &used_[parent * words_];
  for (std::size_t kind = 0; kind < tables_.kinds(); ++kind) {
    // Devices of a kind are interchangeable: the first free one stands for all.
    const auto& devices = tables_.devices_of(kind);
    const auto free =
        std::find_if(devices.begin(), devices.end(), [&](auto device) { return !contains(used, device); });
    if (free != devices.end()) put_before(label, parent, kind, *free);
  }
}

/// Adds labels with a stage on `device` before the first stage of `next`.
void LabelSearch::put_before(const Label& next, std::uint32_t parent, std::size_t kind, std::uint32_t device)
{
  Label label = next;
  label.parent = parent;
  label.device = device;
  label.hash ^= random_[device];
  label.unused -= multipliers_[kind];
  label.sent = 0;
  const std::size_t end = next.cut;
  if (stages_ > 0) {
    const std::size_t next_kind = tables_.kind_of(next.device);
    const double send = next.sent + tables_.gradient(next_kind, kind, end);
    const double cost = tables_.stage_cost(next.compute, send);
    if (cost > relaxation_.limit()) return;
    label.bottleneck = std::max(label.bottleneck, cost);
    label.sum += weights_.beta * cost;
    label.sent = tables_.output(kind, next_kind, end);
  }
  const std::size_t level = tables_.level_of(stages_);
  const std::uint64_t* used = &used_[parent * words_];
  const std::size_t room = relaxation_.rooms().room_left(
      tables_, tables_.group_of(kind), [&](std::uint32_t other) { return other == device || contains(used, other); });
  std::size_t longest = end;
  for (std::size_t first = end; first-- > 0;) {
    label.compute = tables_.compute(kind, first, end);
    if (label.compute > relaxation_.limit()) break;
    if (!tables_.fits(level, kind, first, end)) {
      if (tables_.surely_too_long(kind, first, end)) break;
      continue;
    }
    longest = first;
    label.cut = static_cast<std::uint32_t>(first);
    if (!(tables_.is_hereditary() && weights_.beta == 0)) add_child(label, kind, room);
  }
  if (tables_.is_hereditary() && weights_.beta == 0 && longest < end) {
    label.compute = tables_.compute(kind, longest, end);
    add_child(label, kind, room);
  }
}

/// `room`: what the unused devices leave for a run before the label (run_rooms.hpp).
void LabelSearch::add_child(const Label& label, std::size_t kind, std::size_t room)
{
  if (label.cut == 0) {
    finish(label, kind);
    return;
  }
  if (stages_ + 1 == tables_.devices()) return;
  const double completion = relaxation_.least_completion(stages_ + 1, label.cut, kind, label.compute, label.sent, room);
  if (completion == infinity) return;
  double bound = label.sum + completion - label.unused;
  if (weights_.beta == 0) {
    if (bound > 1e-9 * all_multipliers_) return;
  } else {
    const double bottleneck = std::max({least_bottleneck_, label.bottleneck, label.compute});
    bound += weights_.alpha * bottleneck;
    if (bound >= ceiling_) return;
  }
  children_.push_back({label, bound});
}

void LabelSearch::finish(const Label& label, std::size_t kind)
{
  const double cost = tables_.stage_cost(label.compute, label.sent);
  const double input = tables_.input_cost(kind);
  if (std::max(cost, input) > relaxation_.limit()) return;
  const double bottleneck = std::max({label.bottleneck, cost, input});
  const double sum = label.sum + weights_.beta * (cost + input);
  const double objective = weights_.alpha * bottleneck + sum;
  if (objective >= ceiling_) return;
  ceiling_ = objective;
  FoundPlacement found{{}, objective, bottleneck, sum};
  // From the first stage to the last along the parents; each label knows the cut where it begins.
  std::uint32_t parent = label.parent;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> chain = {{label.device, 0}};
  for (std::size_t length = stages_; length > 0; --length) {
    const Label& behind = labels_[length][parent];
    chain.emplace_back(behind.device, behind.cut);
    parent = behind.parent;
  }
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const std::size_t end = i + 1 < chain.size() ? chain[i + 1].second : tables_.layers();
    found.stages.push_back({chain[i].first, chain[i].second, end - 1});
  }
  answer_.placement = std::move(found);
}

/// Keeps the best `width_` children.
void LabelSearch::keep_width()
{
  if (children_.size() <= width_) return;
  dropped_ = true;
  const auto middle = children_.begin() + static_cast<std::ptrdiff_t>(width_);
  std::nth_element(children_.begin(), middle, children_.end(), is_better);
  children_.resize(width_);
}

/// Makes the labels of the next length: the best children that no other one dominates.
void LabelSearch::keep_best()
{
  std::sort(children_.begin(), children_.end(), is_better);
  std::vector<Label> kept;
  std::vector<std::uint64_t> used;
  std::unordered_multimap<std::uint64_t, std::uint32_t> known;
  known.reserve(std::min(children_.size(), width_));
  std::vector<std::uint64_t> set(words_);
  for (const Child& child : children_) {
    const Label& label = child.label;
    if (weights_.beta != 0 && child.bound >= ceiling_) break;
    const auto* before = &used_[label.parent * words_];
    std::copy(before, before + words_, set.begin());
    set[label.device / 64] |= std::uint64_t{1} << (label.device % 64);
    const auto [begin, end] = known.equal_range(label.hash);
    const bool is_beaten = std::any_of(begin, end, [&](const auto& entry) {
      return dominates(kept[entry.second], label) &&
             std::equal(set.begin(), set.end(), used.begin() + static_cast<std::ptrdiff_t>(entry.second * words_));
    });
    if (is_beaten) continue;
    if (kept.size() == width_) {
      dropped_ = true;
      break;
    }
    known.emplace(label.hash, static_cast<std::uint32_t>(kept.size()));
    kept.push_back(label);
    used.insert(used.end(), set.begin(), set.end());
  }
  answer_.labels += kept.size();
  labels_.push_back(std::move(kept));
  used_ = std::move(used);
}

/// True when whatever completes `other` also completes `label` and costs no more. The caller compares the devices.
bool LabelSearch::dominates(const Label& label, const Label& other) const
{
  if (label.cut != other.cut) return tables_.is_hereditary() && label.cut < other.cut && costs_no_more(label, other);
  const bool same_continuation = tables_.goal().communication == Communication::None || label.device == other.device;
  return same_continuation && costs_no_more(label, other);
}

bool LabelSearch::costs_no_more(const Label& label, const Label& other) const
{
  const bool is_alone = tables_.goal().communication == Communication::None;
  if (weights_.beta == 0 && is_alone) return true;
  if (is_alone) {
    if (label.sum + weights_.beta * label.compute > other.sum + weights_.beta * other.compute) return false;
    return weights_.alpha == 0 || std::max({least_bottleneck_, label.bottleneck, label.compute}) <=
                                      std::max({least_bottleneck_, other.bottleneck, other.compute});
  }
  if (weights_.beta != 0 && label.sum > other.sum) return false;
  const double bottleneck = std::max(least_bottleneck_, label.bottleneck);
  const double other_bottleneck = std::max(least_bottleneck_, other.bottleneck);
  if (weights_.alpha != 0 && weights_.beta != 0 && bottleneck > other_bottleneck) return false;
  return label.compute <= other.compute && label.sent <= other.sent;
}

}  // namespace isobar::allocators
