#include "allocators/spmd/strategy_search.hpp"

#include "allocators/spmd/search_graph.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
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
  double debt = 0;
  bool may_pause = false;   ///< whether the next stage needs no reform
  std::uint32_t stage = 0;  ///< in Search::stages_
};

/// The least and the greatest weight of a debt in the costs to come; at the end, what the second half owes counts once.
struct Weights {
  double least = 1, greatest = 1;
};

constexpr Weights weights_of(CostFormula formula)
{
  switch (formula) {
    case CostFormula::Paper:
      return {0, 1};
    case CostFormula::Code:
      return {2, 3};
    case CostFormula::Symmetric:
      return {0, 3};
    case CostFormula::None:
      return {3, 3};
  }
  return {};
}

/// Whether no path that continues from `b` costs less than the same from `a`.
bool dominates(const Label& a, const Label& b, const Weights& weights)
{
  return a.time + weights.least * a.debt <= b.time + weights.least * b.debt &&
         a.time + weights.greatest * a.debt <= b.time + weights.greatest * b.debt && (a.may_pause || !b.may_pause);
}

struct Entry {
  State state;
  std::vector<Label> labels;
};

/// A stage at the end of a path.
struct StageRecord {
  std::uint32_t previous = 0;
  std::uint8_t count = 0;
  std::array<std::uint8_t, longest_stage> options{};  ///< StrategyNode::options
  std::array<std::uint8_t, longest_stage> choices{};  ///< Option::choices
};

/// The stage that is being extended.
struct Stage {
  std::size_t begin = 0;
  bool has_reform = false;
  double forward = 0, reform_forward = 0, reform_backward = 0;
  StageRecord record;
};

class Search {
 public:
  Search(const StrategyProblem& problem, CostFormula formula);
  std::optional<Strategy> run();

 private:
  using Node = SearchGraph::Node;
  using Option = SearchGraph::Option;
  using Choice = SearchGraph::Choice;

  void extend(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels);
  void append(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels,
              const Option& option, std::size_t choice);
  void add(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels);
  void insert(std::vector<Label>& labels, Label label, const Stage& stage, const Weights& weights);
  std::vector<StrategyStage> stages_of(const Label& label) const;
  void add_reforms(std::vector<StrategyStage>& stages) const;

  const StrategyProblem& problem_;
  CostFormula formula_;
  SearchGraph graph_;
  std::vector<std::vector<Entry>> entries_;  ///< of each cut
  std::vector<std::unordered_map<State, std::size_t, StateHash>> places_;
  std::vector<StageRecord> stages_;
  SearchCounts counts_;
};

Search::Search(const StrategyProblem& problem, CostFormula formula)
    : problem_(problem),
      formula_(formula),
      graph_(problem),
      entries_(graph_.nodes().size()),
      places_(graph_.nodes().size())
{
  for (const auto& node : graph_.nodes())
    ensure(node.live.size() <= most_live, "a graph with too many tensors at once");
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

void Search::insert(std::vector<Label>& labels, Label label, const Stage& stage, const Weights& weights)
{
  for (const auto& other : labels) {
    if (dominates(other, label, weights)) return;
  }
  std::erase_if(labels, [&](const Label& other) { return dominates(label, other, weights); });
  const std::uint32_t previous = label.stage;
  label.stage = static_cast<std::uint32_t>(stages_.size());
  stages_.push_back(stage.record);
  stages_.back().previous = previous;
  labels.push_back(label);
}

/// Ends the stage here.
void Search::add(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels)
{
  const Weights weights = cut + 1 < graph_.nodes().size() ? weights_of(formula_) : Weights();
  std::vector<Label>* there = nullptr;
  for (const auto& label : labels) {
    if (!stage.has_reform && stage.begin > 0 && !label.may_pause) continue;
    if (there == nullptr) {
      const auto [place, is_new] = places_[cut].try_emplace(state, entries_[cut].size());
      if (is_new) entries_[cut].push_back({state, {}});
      there = &entries_[cut][place->second].labels;
    }
    Label next;
    next.time =
        accumulated(formula_, label.time, label.debt, stage.forward, stage.reform_forward, stage.reform_backward);
    next.debt = stage.forward;
    next.may_pause = stage.record.count == longest_stage;
    next.stage = label.stage;
    insert(*there, next, stage, weights);
  }
}

/// Ends the stage at `cut`, and tries all ways to append the next operator.
void Search::extend(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels)
{
  if (stage.record.count > 0) add(cut, state, stage, labels);
  if (stage.record.count == longest_stage || cut + 1 == graph_.nodes().size()) return;
  const Node& node = graph_.nodes()[cut];
  std::uint64_t possible = ~std::uint64_t{0};
  for (const auto& input : node.inputs) {
    if (input.place == SearchGraph::nowhere) continue;
    possible &= (input.producer < stage.begin ? input.allowed : input.allowed_now)[state[input.place]];
  }
  for (std::size_t i = node.options.size(); i-- > 0;) {
    if ((possible >> i & 1) == 0) continue;
    for (std::size_t choice = 0; choice < node.options[i].choices.size(); ++choice) {
      if (stage.begin < node.options[i].choices[choice].earliest_stage) continue;
      append(cut, state, stage, labels, node.options[i], choice);
    }
  }
}

void Search::append(std::size_t cut, const State& state, const Stage& stage, const std::vector<Label>& labels,
                    const Option& option, std::size_t choice)
{
  const Node& node = graph_.nodes()[cut];
  const Choice& chosen = option.choices[choice];
  Stage longer = stage;
  longer.has_reform |= chosen.has_reform;
  State reformed = state;
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    const auto& input = node.inputs[k];
    SearchGraph::Times times = chosen.reforms[k];
    if (input.place != SearchGraph::nowhere) {
      FormSet& forms = reformed[input.place];
      const FormCode needed = option.inputs[k];
      if (sets.has[forms][needed]) continue;
      // An earlier input may be the same tensor.
      if (input.producer >= stage.begin || !graph_.can_reform(forms, needed)) return;
      times = graph_.reform_times(input.tensor, sets.only[forms], needed);
      forms = sets.of[sets.only[forms]][needed];
      longer.has_reform = true;
    }
    longer.reform_forward += times.forward;
    longer.reform_backward += times.backward;
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
  longer.forward += option.forward;
  longer.record.options[longer.record.count] = option.index;
  longer.record.choices[longer.record.count++] = static_cast<std::uint8_t>(choice);
  extend(cut + 1, next, longer, labels);
}

/// The stages of a path, without their reforms.
std::vector<StrategyStage> Search::stages_of(const Label& label) const
{
  std::vector<std::uint32_t> path;
  for (std::uint32_t stage = label.stage; stage != 0; stage = stages_[stage].previous) path.push_back(stage);
  std::reverse(path.begin(), path.end());
  std::vector<StrategyStage> stages;
  std::vector<std::pair<std::size_t, std::size_t>> place_of;  // of each operator, its stage and place there
  for (const std::uint32_t number : path) {
    const StageRecord& record = stages_[number];
    StrategyStage& stage = stages.emplace_back();
    stage.first = place_of.size();
    for (std::size_t j = 0; j < record.count; ++j) {
      const Node& node = graph_.nodes()[place_of.size()];
      place_of.emplace_back(stages.size() - 1, j);
      stage.options.push_back(record.options[j]);
      const auto option = std::find_if(node.options.begin(), node.options.end(),
                                       [&](const Option& one) { return one.index == record.options[j]; });
      const Choice& choice = option->choices[record.choices[j]];
      for (std::size_t k = 0; k < node.inputs.size(); ++k) {
        if (node.inputs[k].place != SearchGraph::nowhere) continue;
        const auto [its_stage, its_place] = place_of[node.inputs[k].producer];
        stages[its_stage].options[its_place] = choice.options[k];
      }
    }
    stage.last = place_of.size() - 1;
  }
  return stages;
}

void Search::add_reforms(std::vector<StrategyStage>& stages) const
{
  std::vector<FormSet> forms(problem_.sizes.size());
  for (auto& stage : stages) {
    for (std::size_t i = stage.first; i <= stage.last; ++i) {
      const StrategyNode& node = problem_.nodes[i];
      const Signature& signature = node.options[stage.options[i - stage.first]].signature;
      for (std::size_t k = 0; k < node.inputs.size(); ++k) {
        FormSet& available = forms[node.inputs[k]];
        const FormCode needed = code_of(signature.inputs[k]);
        if (sets.has[available][needed]) continue;
        const FormCode from = sets.only[available];
        stage.reforms.push_back({node.inputs[k], form_of(from), signature.inputs[k]});
        available = sets.of[from][needed];
      }
      for (std::size_t k = 0; k < node.outputs.size(); ++k) {
        const FormCode made = code_of(signature.outputs[k]);
        forms[node.outputs[k]] = sets.of[made][made];
      }
    }
  }
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
  const auto& labels = last.front().labels;
  const auto best = std::min_element(labels.begin(), labels.end(),
                                     [](const Label& a, const Label& b) { return a.time + a.debt < b.time + b.debt; });
  Strategy strategy;
  strategy.cost = Seconds(best->time + best->debt);
  strategy.stages = stages_of(*best);
  add_reforms(strategy.stages);
  strategy.counts = counts_;
  return strategy;
}

}  // namespace

std::optional<Strategy> find_strategy(const StrategyProblem& problem, CostFormula formula)
{
  return Search(problem, formula).run();
}

}  // namespace isobar::allocators::spmd
