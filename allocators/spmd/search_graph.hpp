#pragma once

#include "allocators/spmd/strategy.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators::spmd {

/// A form as a small number: full, gather0…, reduce, replicate.
using FormCode = std::uint8_t;
inline constexpr FormCode form_codes = most_dimensions + 3;

constexpr FormCode code_of(Form form)
{
  switch (form.kind) {
    case Form::Kind::Full:
      return 0;
    case Form::Kind::Gather:
      return static_cast<FormCode>(1 + form.dimension);
    case Form::Kind::Reduce:
      return most_dimensions + 1;
    case Form::Kind::Replicate:
      return most_dimensions + 2;
  }
  return 0;
}

constexpr Form form_of(FormCode code)
{
  if (code == 0) return full;
  if (code <= most_dimensions) return gather(static_cast<std::uint8_t>(code - 1));
  return code == most_dimensions + 1 ? reduce : replicate;
}

/// The one or two forms that a tensor has, as a small number, in lexicographic order.
using FormSet = std::uint8_t;
inline constexpr FormSet form_sets = form_codes * (form_codes + 1) / 2;

struct FormSets {
  constexpr FormSets()
  {
    FormSet next = 0;
    for (FormCode a = 0; a < form_codes; ++a) {
      for (FormCode b = a; b < form_codes; ++b) {
        has[next][a] = has[next][b] = true;
        only[next] = a == b ? a : form_codes;
        of[a][b] = of[b][a] = next++;
      }
    }
  }

  std::array<std::array<FormSet, form_codes>, form_codes> of{};  ///< of two forms, or twice the same
  std::array<std::array<bool, form_codes>, form_sets> has{};
  std::array<FormCode, form_sets> only{};  ///< the form of a set of one; form_codes for a set of two
};
inline constexpr FormSets sets;

/// A strategy problem in the shape in which a search walks through it: without signatures that no strategy can use, and
/// with the forms of parameters decided where they are read.
///
/// A parameter's operator takes no time, so that its form matters only to its reader. A tensor with one reader that
/// comes from an operator without inputs and work is therefore not part of a state; each signature of the reader lists
/// the forms that it may have been made in instead (`Choice`). Of forms with the same costs, the first one stays.
class SearchGraph {
 public:
  /// How the inputs were made whose forms their reader decides.
  struct Choice {
    std::size_t earliest_stage = 0;  ///< a stage that begins there, or later, can reform them
    bool has_reform = false;
    StageTimes times;                   ///< of the reforms of all inputs, and the updates of those operators
    std::vector<std::uint8_t> options;  ///< of each input, that of its operator
    std::vector<Bytes> memory;          ///< of those operators and reforms, by kind

    bool costs_nothing() const
    {
      return !has_reform && times.update == 0 && times.across == 0 &&
             std::all_of(memory.begin(), memory.end(), [](Bytes bytes) { return bytes == Bytes(0); });
    }
    bool costs_the_same(const Choice& other) const
    {
      return has_reform == other.has_reform && times == other.times && memory == other.memory;
    }
  };
  /// The choices of an option in a stage that begins late enough.
  struct ChoiceSet {
    std::size_t earliest_stage = 0;
    std::size_t content = 0;           ///< the same number for sets with the same costs
    std::vector<std::size_t> choices;  ///< of Option::choices
  };
  struct Option {
    std::vector<FormCode> inputs, outputs;
    std::vector<Load> loads;  ///< by kind
    Seconds update, across;
    std::uint8_t index = 0;  ///< in StrategyNode::options
    std::vector<Choice> choices;
    std::vector<ChoiceSet> sets;  ///< ascending; empty if there is nothing to choose

    /// The set of a stage that begins there; none if there is no choice.
    const ChoiceSet* set_of(std::size_t stage) const
    {
      const ChoiceSet* found = nullptr;
      for (const auto& set : sets) {
        if (set.earliest_stage <= stage) found = &set;
      }
      return found;
    }
  };
  using Allowed = std::array<std::uint64_t, form_sets>;  ///< by the forms of an input: options, as bits
  struct Input {
    std::size_t tensor = 0;
    std::size_t producer = 0;
    bool is_parameter = false;
    std::size_t earliest_stage = 0;  ///< a stage that begins there, or later, can reform it
    std::size_t place = 0;           ///< in Node::live; nowhere if this node decides the form
    Allowed allowed{};               ///< at most with a reform
    Allowed allowed_now{};           ///< without a reform
  };
  struct ExistingInput {
    std::size_t place = 0;  ///< in the next node's `live`
    const Allowed* options = nullptr;
  };
  /// An operator, and the state before it.
  struct Node {
    bool is_skipped = false;  ///< a parameter whose form its reader decides: it is there before every stage
    std::vector<Option> options;
    std::vector<Input> inputs;
    std::vector<std::size_t> live;  ///< tensors of a state, ascending: made before it, and read by it or later
    /// Of each live tensor of the next node, its place in `live`, or live.size() + the output of the node that it is.
    std::vector<std::size_t> sources;
    /// Of each later reader of the node's tensors, its inputs that exist.
    std::vector<std::vector<ExistingInput>> later;
  };

  static constexpr std::size_t nowhere = ~std::size_t{0};

  explicit SearchGraph(const StrategyProblem& problem);
  // Nodes point to each other.
  SearchGraph(const SearchGraph&) = delete;
  SearchGraph& operator=(const SearchGraph&) = delete;

  /// The operators, and one more for the state after the last one.
  const std::vector<Node>& nodes() const { return nodes_; }
  /// Different contents of choice sets, each as an example.
  const std::vector<std::vector<Choice>>& contents() const { return contents_; }
  bool can_reform(FormSet set, FormCode needed) const
  {
    return sets.only[set] != form_codes && is_reform_[sets.only[set]][needed];
  }
  const ReformCost& reform_cost(std::size_t tensor, FormCode from, FormCode to) const
  {
    return reform_costs_[tensor][from][to];
  }
  /// The most memory that a reform of a tensor to a form takes of a device of a kind.
  Bytes most_reform_memory(std::size_t tensor, FormCode to, std::size_t kind) const
  {
    Bytes most;
    for (const auto& costs : reform_costs_[tensor]) most = std::max(most, costs[to].memory_of(kind));
    return most;
  }

 private:
  struct Reader {
    std::size_t node = 0;
    std::size_t input = 0;
  };
  using FormTable = std::array<std::array<bool, form_codes>, form_codes>;
  using CostTable = std::array<std::array<ReformCost, form_codes>, form_codes>;

  void read_reforms();
  void read_options();
  std::size_t earliest_stage(std::size_t tensor) const;
  void leave_out_useless();
  bool is_useful(std::size_t tensor, FormCode form) const;
  bool can_be_made(std::size_t tensor, FormCode needed) const;
  bool is_decided_later(std::size_t tensor) const;
  void list_choices();
  void list_sets(Option& option);
  std::vector<Choice> choices_of(std::size_t node, const Option& option) const;
  void find_live();
  void find_allowed();
  void find_later_readers();

  const StrategyProblem& problem_;
  std::vector<Node> nodes_;
  std::vector<std::size_t> producer_;
  std::vector<std::vector<Reader>> readers_;
  std::vector<bool> is_decided_later_;  ///< by tensor
  FormTable is_reform_{};
  std::vector<std::vector<Choice>> contents_;
  std::vector<CostTable> reform_costs_;  ///< by tensor
};

}  // namespace isobar::allocators::spmd
