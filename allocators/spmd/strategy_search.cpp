#include "allocators/spmd/strategy_search.hpp"

#include "allocators/spmd/search_graph.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>

namespace isobar::allocators::spmd {

namespace {

/// Most tensors that a state can hold; searches over graphs with wider cuts would not end.
constexpr std::size_t most_live = 24;

/// The forms of the tensors that are read later, in the order of their numbers; 0 after the last one.
using State = std::array<FormSet, most_live>;

struct StateHash {
  std::size_t operator()(const State& state) const
  {
    std::uint64_t hash = 0;
    for (std::size_t i = 0; i < most_live; i += sizeof hash) {
      std::uint64_t word = 0;
      std::memcpy(&word, state.data() + i, sizeof word);
      hash = (hash ^ word) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

/// The end of a path to a state.
struct Label {
  double time = 0;  ///< so far
  Debts debts;
  ReplicaLane lane;
  bool may_pause = false;      ///< whether the next stage needs no reform
  std::uint32_t stage = 0;     ///< in Search::stages_
  std::vector<double> memory;  ///< of a device of each kind, if it is limited
};

/// The weights that debts can have in what follows.
struct Weights {
  std::span<const Debts> passes;
  /// Where a stage that follows decides how long the lane of replicas lasts: the backward pass is no part of that.
  std::span<const Debts> lane = {};
};

/// Whether no path that continues from `b` costs less than the same from `a`, or fits where that does not.
bool dominates(const Label& a, const Label& b, const Weights& weights)
{
  const auto costs_no_more = [&](std::span<const Debts> extremes, double its, double others) {
    return std::all_of(extremes.begin(), extremes.end(), [&](const Debts& weight) {
      return its + a.debts.times(weight) <= others + b.debts.times(weight);
    });
  };
  return (a.may_pause || !b.may_pause) &&
         costs_no_more(weights.passes, a.time + a.lane.overhang, b.time + b.lane.overhang) &&
         costs_no_more(weights.lane, a.time + a.lane.behind, b.time + b.lane.behind) &&
         std::equal(a.memory.begin(), a.memory.end(), b.memory.begin(), std::less_equal<>());
}

struct Entry {
  State state;
  std::vector<Label> labels;
};

/// What a stage chooses for all inputs whose forms their readers decide. The choices of its operators add up, whatever
/// else they do; so those that cost more in everything are left out, and the rest is known for all stages alike.
struct Bundle {
  StageTimes times;  ///< of reforms and updates
  bool has_reform = false;
  std::vector<Bytes> memory;  ///< by kind
  std::size_t previous = 0;   ///< in the list before
  std::size_t choice = 0;     ///< in the last choice set
};
struct BundleList {
  std::size_t previous = 0;  ///< in Bundles
  std::vector<Bundle> bundles;
  Bundle least;  ///< of each cost, that of the bundle with the least of it
};

/// The lists of bundles of stages, by their operators' choice sets.
class Bundles {
 public:
  Bundles(const SearchGraph& graph, std::size_t kinds, bool needs_reforms)
      : graph_(graph), needs_reforms_(needs_reforms)
  {
    Bundle none;
    none.memory.resize(kinds);
    lists_.push_back({0, {none}, none});
  }

  const BundleList& operator[](std::size_t list) const { return lists_[list]; }

  /// The list in which each bundle of another one is followed by each choice of a set.
  std::size_t followed_by(std::size_t list, const SearchGraph::ChoiceSet& set)
  {
    const auto [place, is_new] = known_.try_emplace({list, set.content}, lists_.size());
    if (!is_new) return place->second;
    BundleList longer{list, {}, {}};
    const auto& choices = graph_.contents()[set.content];
    for (std::size_t i = 0; i < lists_[list].bundles.size(); ++i) {
      for (std::size_t k = 0; k < choices.size(); ++k) {
        Bundle next = lists_[list].bundles[i];
        next.times += choices[k].times;
        next.has_reform |= choices[k].has_reform;
        for (std::size_t kind = 0; kind < next.memory.size(); ++kind) next.memory[kind] += choices[k].memory[kind];
        next.previous = i;
        next.choice = k;
        insert(longer.bundles, std::move(next));
      }
    }
    longer.least = least_of(longer.bundles);
    lists_.push_back(std::move(longer));
    return place->second;
  }

 private:
  bool costs_no_more(const Bundle& a, const Bundle& b) const
  {
    const auto costs = [](const Bundle& bundle) {
      const StageTimes& times = bundle.times;
      return std::array{times.reform_forward,     times.reform_backward, times.parameter_forward,
                        times.parameter_backward, times.update,          times.across};
    };
    const auto [its, others] = std::pair(costs(a), costs(b));
    return std::equal(its.begin(), its.end(), others.begin(), std::less_equal<>()) &&
           (!needs_reforms_ || a.has_reform || !b.has_reform) &&
           std::equal(a.memory.begin(), a.memory.end(), b.memory.begin(), std::less_equal<>());
  }

  static Bundle least_of(const std::vector<Bundle>& bundles)
  {
    Bundle least = bundles.front();
    for (const auto& bundle : bundles) {
      const StageTimes& times = bundle.times;
      least.times.reform_forward = std::min(least.times.reform_forward, times.reform_forward);
      least.times.reform_backward = std::min(least.times.reform_backward, times.reform_backward);
      least.times.parameter_forward = std::min(least.times.parameter_forward, times.parameter_forward);
      least.times.parameter_backward = std::min(least.times.parameter_backward, times.parameter_backward);
      least.times.update = std::min(least.times.update, times.update);
      least.times.across = std::min(least.times.across, times.across);
      least.has_reform |= bundle.has_reform;
      for (std::size_t kind = 0; kind < least.memory.size(); ++kind) {
        least.memory[kind] = std::min(least.memory[kind], bundle.memory[kind]);
      }
    }
    return least;
  }

  void insert(std::vector<Bundle>& bundles, Bundle bundle) const
  {
    for (const auto& other : bundles) {
      if (costs_no_more(other, bundle)) return;
    }
    std::erase_if(bundles, [&](const Bundle& other) { return costs_no_more(bundle, other); });
    bundles.push_back(std::move(bundle));
  }

  const SearchGraph& graph_;
  bool needs_reforms_;
  std::vector<BundleList> lists_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> known_;  // by list and content
};

/// A stage at the end of a path.
struct StageRecord {
  std::uint32_t previous = 0;
  std::uint8_t count = 0;
  std::array<std::uint8_t, longest_stage> options{};  ///< StrategyNode::options
  std::uint32_t list = 0;                             ///< in Bundles
  std::uint32_t bundle = 0;
};

/// The stage that is being extended.
struct Stage {
  std::size_t begin = 0;
  bool has_reform = false;
  StageTimes times;  ///< reforms of inputs in states, and updates; Search::loads_ has the compute, by kind
  StageRecord record;
};

class Search {
 public:
  Search(const StrategyProblem& problem, CostFormula formula, std::uint64_t most_labels);
  std::optional<Strategy> run();

 private:
  using Node = SearchGraph::Node;
  using Option = SearchGraph::Option;

  void extend(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels);
  void append(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels,
              const Option& option);
  void add(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels);
  void add_loads(std::size_t count, const Option& option);
  void add_reform(Stage& stage, const SearchGraph::Input& input, const ReformCost& cost);
  StageTimes times_of(const Stage& stage, const Bundle& bundle) const;
  void find_rest();
  bool fit(std::size_t cut, const Stage& stage, const Bundle& bundle, const Label& from, Label& label) const;
  std::optional<Label> label_after(std::size_t cut, const Label& from, const Stage& stage, const Bundle& bundle) const;
  Weights weights_at(std::size_t cut) const;
  void insert(std::vector<Label>& labels, Label label, StageRecord record, const Weights& weights);
  std::vector<StrategyStage> stages_of(const Label& label) const;

  const StrategyProblem& problem_;
  CostFormula formula_;
  std::uint64_t most_labels_;
  Debts last_weights_;
  /// Stages do not matter to a sum: one of each operator allows all that others do.
  std::size_t longest_;
  bool needs_reform_;  ///< each stage, unless the one before is the longest
  SearchGraph graph_;
  Bundles bundles_;
  std::vector<std::vector<Entry>> entries_;  ///< of each cut
  std::vector<std::unordered_map<State, std::size_t, StateHash>> places_;
  std::vector<StageRecord> stages_;
  /// Of a stage that is being extended, by its first operators and the kind of device: what they take.
  std::array<std::vector<Load>, longest_stage + 1> loads_;
  /// If memory is limited, of the operators from each cut on, by kind: the least and the most that they can take.
  std::vector<std::vector<double>> least_rest_, most_rest_;
  SearchCounts counts_;
};

Search::Search(const StrategyProblem& problem, CostFormula formula, std::uint64_t most_labels)
    : problem_(problem),
      formula_(formula),
      most_labels_(most_labels),
      last_weights_(last_weights(formula)),
      longest_(formula == CostFormula::Sum ? 1 : longest_stage),
      needs_reform_(formula != CostFormula::Duplex && formula != CostFormula::Sum),
      graph_(problem),
      bundles_(graph_, problem.kinds(), needs_reform_),
      entries_(graph_.nodes().size()),
      places_(graph_.nodes().size())
{
  for (const auto& node : graph_.nodes())
    ensure(node.live.size() <= most_live, "a graph with too many tensors at once");
  for (auto& loads : loads_) loads.resize(problem.kinds());
  if (!problem.memory.empty()) find_rest();
}

/// What the operators from each cut on need at least, and with all reforms at most.
void Search::find_rest()
{
  const auto& nodes = graph_.nodes();
  least_rest_.assign(nodes.size(), std::vector<double>(problem_.kinds(), 0));
  most_rest_ = least_rest_;
  for (std::size_t i = problem_.nodes.size(); i-- > 0;) {
    for (std::size_t kind = 0; kind < problem_.kinds(); ++kind) {
      double least = std::numeric_limits<double>::infinity();
      double most = 0;
      for (const auto& option : nodes[i].options) {
        for (const auto& choice : option.choices) {
          const double own = (option.loads[kind].memory + choice.memory[kind]).value;
          double reforms = 0;
          for (std::size_t k = 0; k < nodes[i].inputs.size(); ++k) {
            const auto& input = nodes[i].inputs[k];
            const bool is_chosen = input.place == SearchGraph::nowhere;
            if (!is_chosen) reforms += graph_.most_reform_memory(input.tensor, option.inputs[k], kind).value;
          }
          least = std::min(least, own);
          most = std::max(most, own + reforms);
        }
      }
      least_rest_[i][kind] = least + least_rest_[i + 1][kind];
      most_rest_[i][kind] = most + most_rest_[i + 1][kind];
    }
  }
}

/// Whether the later readers of the tensors of a node still have an option in the state after it, as far as their
/// inputs exist.
bool has_future(const State& state, const SearchGraph::Node& node)
{
  return std::all_of(node.later.begin(), node.later.end(), [&](const auto& inputs) {
    std::uint64_t options = ~std::uint64_t{0};
    for (const auto& [place, allowed] : inputs) options &= (*allowed)[state[place]];
    return options != 0;
  });
}

Weights Search::weights_at(std::size_t cut) const
{
  static constexpr std::array<Debts, 2> beside_lane = {{{0, 0}, {1, 0}}};
  if (cut + 1 == graph_.nodes().size()) return {std::span(&last_weights_, 1)};
  if (!problem_.has_replicas) return {extreme_weights(formula_)};
  return {extreme_weights(formula_), beside_lane};
}

void Search::insert(std::vector<Label>& labels, Label label, StageRecord record, const Weights& weights)
{
  for (const auto& other : labels) {
    if (dominates(other, label, weights)) return;
  }
  std::erase_if(labels, [&](const Label& other) { return dominates(label, other, weights); });
  if (stages_.size() > most_labels_) throw TooManyLabels();
  record.previous = label.stage;
  label.stage = static_cast<std::uint32_t>(stages_.size());
  stages_.push_back(record);
  labels.push_back(std::move(label));
}

StageTimes Search::times_of(const Stage& stage, const Bundle& bundle) const
{
  StageTimes times = stage.times;
  times += bundle.times;
  for (const auto& load : loads_[stage.record.count]) {
    times.forward = std::max(times.forward, load.forward.value);
    times.backward = std::max(times.backward, load.backward.value);
  }
  for (std::size_t kind = 0; kind < problem_.memory_prices.size(); ++kind) {
    const Bytes memory = loads_[stage.record.count][kind].memory + bundle.memory[kind];
    times.update += problem_.memory_prices[kind] * memory.value;
  }
  if (times.across > 0) times.across += problem_.across_latency.value;
  return times;
}

/// Adds the memory of a stage to a label. What cannot make a difference any more is left out: all labels that fit
/// whatever follows have the same memory.
/// @returns whether some strategy that continues so may fit.
bool Search::fit(std::size_t cut, const Stage& stage, const Bundle& bundle, const Label& from, Label& label) const
{
  for (std::size_t kind = 0; kind < problem_.memory.size(); ++kind) {
    const double limit = problem_.memory[kind].value;
    const Bytes added = loads_[stage.record.count][kind].memory + bundle.memory[kind];
    const double held = (from.memory.empty() ? 0 : from.memory[kind]) + added.value;
    if (held + least_rest_[cut][kind] > limit) return false;
    label.memory.push_back(std::max(held, limit - most_rest_[cut][kind]));
  }
  return true;
}

/// The label after a stage that follows one of `from`; none if no strategy that continues so can fit.
std::optional<Label> Search::label_after(std::size_t cut, const Label& from, const Stage& stage,
                                         const Bundle& bundle) const
{
  Label label;
  if (!fit(cut, stage, bundle, from, label)) return std::nullopt;
  const StageTimes times = times_of(stage, bundle);
  label.time = accumulated(formula_, problem_.microbatches, from.time, from.debts, times, problem_.interference);
  label.debts = times.debts();
  if (problem_.has_replicas) {
    label.lane = from.lane;
    label.lane.add(problem_.microbatches, from.debts.backward, times, problem_.interference);
  }
  label.may_pause = stage.record.count == longest_;
  label.stage = from.stage;
  return label;
}

/// Ends the stage here.
void Search::add(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels)
{
  const BundleList& list = bundles_[stage.record.list];
  const Weights weights = weights_at(cut);
  const auto found = places_[cut].find(state);
  std::vector<Label>* there = found == places_[cut].end() ? nullptr : &entries_[cut][found->second].labels;
  const auto keep = [&](Label label, std::size_t bundle) {
    if (there == nullptr) {
      places_[cut].emplace(state, entries_[cut].size());
      there = &entries_[cut].emplace_back(Entry{state, {}}).labels;
    }
    StageRecord record = stage.record;
    record.bundle = static_cast<std::uint32_t>(bundle);
    insert(*there, std::move(label), record, weights);
  };
  for (const auto& from : labels) {
    const bool may_begin = !needs_reform_ || stage.has_reform || stage.begin == 0 || from.may_pause;
    if (!may_begin && !list.least.has_reform) continue;
    const auto least = label_after(cut, from, stage, list.least);
    if (!least) continue;
    if (there != nullptr && std::any_of(there->begin(), there->end(),
                                        [&](const Label& other) { return dominates(other, *least, weights); })) {
      continue;
    }
    std::optional<std::pair<Label, std::size_t>> best;
    for (std::size_t i = 0; i < list.bundles.size(); ++i) {
      if (!may_begin && !list.bundles[i].has_reform) continue;
      auto next = label_after(cut, from, stage, list.bundles[i]);
      if (!next) continue;
      if (!problem_.memory.empty() || problem_.has_replicas) {
        keep(std::move(*next), i);
      } else if (!best || next->time < best->first.time) {  // bundles differ in time alone
        best.emplace(std::move(*next), i);
      }
    }
    if (best) keep(std::move(best->first), best->second);
  }
}

/// Ends the stage at `cut`, and tries all ways to append the next operator.
void Search::extend(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels)
{
  if (stage.record.count > 0) add(cut, state, stage, labels);
  if (stage.record.count == longest_) return;
  while (graph_.nodes()[cut].is_skipped) ++cut;
  if (cut + 1 == graph_.nodes().size()) return;
  const Node& node = graph_.nodes()[cut];
  std::uint64_t possible = ~std::uint64_t{0};
  for (const auto& input : node.inputs) {
    if (input.place == SearchGraph::nowhere) continue;
    possible &= (input.earliest_stage <= stage.begin ? input.allowed : input.allowed_now)[state[input.place]];
  }
  for (std::size_t i = node.options.size(); i-- > 0;) {
    if ((possible >> i & 1) != 0) append(cut, state, stage, labels, node.options[i]);
  }
}

/// Adds what an operator takes to the loads of the first `count` operators of a stage.
void Search::add_loads(std::size_t count, const Option& option)
{
  for (std::size_t kind = 0; kind < option.loads.size(); ++kind) {
    loads_[count + 1][kind] = loads_[count][kind];
    loads_[count + 1][kind] += option.loads[kind];
  }
}

/// Adds a reform to a stage before its next operator.
void Search::add_reform(Stage& stage, const SearchGraph::Input& input, const ReformCost& cost)
{
  stage.times.add_reform(cost, input.is_parameter);
  auto& loads = loads_[stage.record.count + 1];
  for (std::size_t kind = 0; kind < cost.memory.size(); ++kind) loads[kind].memory += cost.memory[kind];
}

void Search::append(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels,
                    const Option& option)
{
  const Node& node = graph_.nodes()[cut];
  Stage longer = stage;
  longer.times.update += option.update.value;
  longer.times.across += option.across.value;
  add_loads(stage.record.count, option);
  State reformed = state;
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    const auto& input = node.inputs[k];
    if (input.place == SearchGraph::nowhere) continue;
    FormSet& forms = reformed[input.place];
    const FormCode needed = option.inputs[k];
    if (sets.has[forms][needed]) continue;
    // An earlier input may be the same tensor.
    if (input.earliest_stage > stage.begin || !graph_.can_reform(forms, needed)) return;
    add_reform(longer, input, graph_.reform_cost(input.tensor, sets.only[forms], needed));
    forms = sets.of[sets.only[forms]][needed];
    longer.has_reform = true;
  }
  State next{};
  for (std::size_t k = 0; k < node.sources.size(); ++k) {
    const std::size_t source = node.sources[k];
    if (source < node.live.size()) {
      next[k] = reformed[source];
    } else {
      const FormCode made = option.outputs[source - node.live.size()];
      next[k] = sets.of[made][made];
    }
  }
  if (!has_future(next, node)) return;
  if (!option.sets.empty()) {
    const auto* set = option.set_of(stage.begin);
    if (set->choices.empty()) return;
    longer.record.list = static_cast<std::uint32_t>(bundles_.followed_by(stage.record.list, *set));
  }
  longer.record.options[longer.record.count++] = option.index;
  extend(cut + 1, next, longer, labels);
}

/// The stages of a path, without their reforms.
std::vector<StrategyStage> Search::stages_of(const Label& label) const
{
  std::vector<std::uint32_t> path;
  for (std::uint32_t stage = label.stage; stage != 0; stage = stages_[stage].previous) path.push_back(stage);
  std::reverse(path.begin(), path.end());
  std::vector<StrategyStage> stages;
  std::vector<std::size_t> options;  // of each operator
  for (const std::uint32_t number : path) {
    const StageRecord& record = stages_[number];
    const std::size_t first = options.size();
    std::vector<std::pair<std::size_t, const Option*>> choosing;  // operators with choices
    for (std::size_t j = 0; j < record.count; ++j) {
      while (graph_.nodes()[options.size()].is_skipped) options.push_back(0);  // until its reader is known
      const auto& its = graph_.nodes()[options.size()].options;
      const auto option =
          std::find_if(its.begin(), its.end(), [&](const Option& one) { return one.index == record.options[j]; });
      choosing.emplace_back(options.size(), &*option);
      options.push_back(option->index);
    }
    std::size_t list = record.list;
    std::size_t bundle = record.bundle;
    std::reverse(choosing.begin(), choosing.end());
    for (const auto& [place, option] : choosing) {
      const Node& node = graph_.nodes()[place];
      std::size_t choice = 0;
      if (const auto* set = option->set_of(first)) {
        choice = set->choices[bundles_[list].bundles[bundle].choice];
        bundle = bundles_[list].bundles[bundle].previous;
        list = bundles_[list].previous;
      }
      for (std::size_t k = 0; k < node.inputs.size(); ++k) {
        const auto& input = node.inputs[k];
        if (input.place == SearchGraph::nowhere) options[input.producer] = option->choices[choice].options[k];
      }
    }
    stages.push_back({first, options.size() - 1, {}, {}});
  }
  for (auto& stage : stages) {
    const auto at = [&](std::size_t node) { return options.begin() + static_cast<std::ptrdiff_t>(node); };
    stage.options.assign(at(stage.first), at(stage.last + 1));
  }
  return stages;
}

std::optional<Strategy> Search::run()
{
  stages_.emplace_back();  // before the first stage
  entries_[0].push_back({State(), {Label()}});
  for (std::size_t cut = 0; cut + 1 < entries_.size(); ++cut) {
    throw_if_interrupted();
    auto entries = std::exchange(entries_[cut], {});
    places_[cut].clear();
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.state < b.state; });
    counts_.states += entries.size();
    for (const auto& [state, labels] : entries) {
      counts_.labels += labels.size();
      Stage stage;
      stage.begin = cut;
      extend(cut, state, stage, labels);
    }
  }
  const auto& last = entries_.back();
  if (last.empty()) return std::nullopt;
  const auto cost = [&](const Label& label) {
    return label.time + label.lane.overhang + label.debts.times(last_weights_);
  };
  const auto& labels = last.front().labels;
  const auto best =
      std::min_element(labels.begin(), labels.end(), [&](const Label& a, const Label& b) { return cost(a) < cost(b); });
  Strategy strategy;
  strategy.cost = Seconds(cost(*best));
  strategy.stages = stages_of(*best);
  add_reforms(problem_, strategy.stages);
  strategy.counts = counts_;
  return strategy;
}

}  // namespace

std::optional<Strategy> find_strategy(const StrategyProblem& problem, CostFormula formula, std::uint64_t most_labels)
{
  return Search(problem, formula, most_labels).run();
}

}  // namespace isobar::allocators::spmd
