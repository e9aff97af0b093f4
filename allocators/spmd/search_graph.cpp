#include "allocators/spmd/search_graph.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <utility>

namespace isobar::allocators::spmd {

namespace {

std::size_t place_in(const std::vector<std::size_t>& tensors, std::size_t tensor)
{
  return static_cast<std::size_t>(std::find(tensors.begin(), tensors.end(), tensor) - tensors.begin());
}

}  // namespace

SearchGraph::SearchGraph(const StrategyProblem& problem)
    : problem_(problem),
      nodes_(problem.nodes.size() + 1),
      producer_(problem.sizes.size()),
      readers_(problem.sizes.size())
{
  reform_times_.resize(problem.sizes.size());
  for (FormCode from = 0; from < form_codes; ++from) {
    for (FormCode to = 0; to < form_codes; ++to) {
      const Reform* reform = reform_between(form_of(from), form_of(to), problem.rules);
      if (reform == nullptr) continue;
      is_reform_[from][to] = true;
      for (std::size_t i = 0; i < problem.sizes.size(); ++i) {
        reform_times_[i][from][to] = {problem.profile.time_of(reform->forward, problem.sizes[i]).value,
                                      problem.profile.time_of(reform->backward, problem.sizes[i]).value};
      }
    }
  }
  read_options();
  leave_out_useless();
  list_choices();
  find_live();
  find_allowed();
  find_later_readers();
}

void SearchGraph::read_options()
{
  constexpr std::size_t most_options = 64;  // bits of Allowed
  for (std::size_t i = 0; i < problem_.nodes.size(); ++i) {
    const StrategyNode& node = problem_.nodes[i];
    for (const auto output : node.outputs) producer_[output] = i;
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      readers_[node.inputs[k]].push_back({i, k});
      nodes_[i].inputs.push_back({node.inputs[k], producer_[node.inputs[k]], nowhere, {}, {}});
    }
    ensure(node.options.size() <= most_options, "an operator with more than 64 signatures");
    for (std::size_t j = 0; j < node.options.size(); ++j) {
      Option& option = nodes_[i].options.emplace_back();
      for (const Form form : node.options[j].signature.inputs) option.inputs.push_back(code_of(form));
      for (const Form form : node.options[j].signature.outputs) option.outputs.push_back(code_of(form));
      option.forward = node.options[j].forward.value;
      option.index = static_cast<std::uint8_t>(j);
    }
  }
}

/// Whether all readers of a tensor can be served by a form and at most one reform of it.
bool SearchGraph::is_useful(std::size_t tensor, FormCode form) const
{
  const auto serves = [&](FormSet set) {
    return std::all_of(readers_[tensor].begin(), readers_[tensor].end(), [&](const Reader& reader) {
      const auto& options = nodes_[reader.node].options;
      return std::any_of(options.begin(), options.end(),
                         [&](const Option& option) { return sets.has[set][option.inputs[reader.input]]; });
    });
  };
  if (serves(sets.of[form][form])) return true;
  for (FormCode to = 0; to < form_codes; ++to) {
    if (is_reform_[form][to] && serves(sets.of[form][to])) return true;
  }
  return false;
}

/// Whether the operator of a tensor can make a form, perhaps with a reform.
bool SearchGraph::can_be_made(std::size_t tensor, FormCode needed) const
{
  const auto& options = nodes_[producer_[tensor]].options;
  const std::size_t place = place_in(problem_.nodes[producer_[tensor]].outputs, tensor);
  return std::any_of(options.begin(), options.end(), [&](const Option& option) {
    const FormCode made = option.outputs[place];
    return made == needed || is_reform_[made][needed];
  });
}

/// Removes options whose outputs cannot be used, or whose inputs cannot be made, until none is left. No strategy has
/// them, so that neither the best one nor the order of the others changes.
void SearchGraph::leave_out_useless()
{
  const auto is_useless = [&](std::size_t i, const Option& option) {
    const StrategyNode& node = problem_.nodes[i];
    for (std::size_t k = 0; k < node.outputs.size(); ++k) {
      if (!is_useful(node.outputs[k], option.outputs[k])) return true;
    }
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      if (!can_be_made(node.inputs[k], option.inputs[k])) return true;
    }
    return false;
  };
  bool has_changed = true;
  while (has_changed) {
    has_changed = false;
    for (std::size_t i = 0; i < problem_.nodes.size(); ++i) {
      const auto count = std::erase_if(nodes_[i].options, [&](const Option& option) { return is_useless(i, option); });
      has_changed |= count > 0;
    }
  }
}

bool SearchGraph::is_decided_later(std::size_t tensor) const
{
  const StrategyNode& node = problem_.nodes[producer_[tensor]];
  const auto& options = nodes_[producer_[tensor]].options;
  return readers_[tensor].size() == 1 && node.inputs.empty() && node.outputs.size() == 1 && !options.empty() &&
         std::all_of(options.begin(), options.end(), [](const Option& option) { return option.forward == 0; });
}

/// All ways in which the inputs of a node were made whose forms it decides.
std::vector<SearchGraph::Choice> SearchGraph::choices_of(std::size_t node, const Option& option) const
{
  const auto& inputs = nodes_[node].inputs;
  Choice none;
  none.reforms.resize(inputs.size());
  none.options.resize(inputs.size());
  std::vector<Choice> choices = {none};
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!is_decided_later_[inputs[k].tensor]) continue;
    auto sources = nodes_[inputs[k].producer].options;
    std::sort(sources.begin(), sources.end(),
              [](const Option& a, const Option& b) { return a.outputs[0] < b.outputs[0]; });
    std::vector<Choice> longer;
    for (const auto& choice : choices) {
      std::vector<std::pair<bool, Times>> known;
      for (const auto& source : sources) {
        const FormCode made = source.outputs[0];
        const FormCode needed = option.inputs[k];
        if (made != needed && !is_reform_[made][needed]) continue;
        const Times times = reform_times(inputs[k].tensor, made, needed);
        const bool is_known = std::any_of(known.begin(), known.end(), [&](const auto& other) {
          return other.first == (made != needed) && other.second.forward == times.forward &&
                 other.second.backward == times.backward;
        });
        if (is_known) continue;
        known.emplace_back(made != needed, times);
        Choice next = choice;
        next.options[k] = source.index;
        if (made != needed) {
          next.has_reform = true;
          next.reforms[k] = times;
          next.earliest_stage = std::max(next.earliest_stage, inputs[k].producer + 1);
        }
        longer.push_back(std::move(next));
      }
    }
    choices = std::move(longer);
  }
  return choices;
}

void SearchGraph::list_choices()
{
  constexpr std::size_t most_choices = 256;  // numbers of StageRecord
  for (std::size_t tensor = 0; tensor < readers_.size(); ++tensor) {
    is_decided_later_.push_back(is_decided_later(tensor));
  }
  for (std::size_t i = 0; i < problem_.nodes.size(); ++i) {
    for (auto& option : nodes_[i].options) {
      option.choices = choices_of(i, option);
      ensure(option.choices.size() <= most_choices, "an operator with too many forms of its parameters");
    }
  }
  for (std::size_t tensor = 0; tensor < readers_.size(); ++tensor) {
    if (is_decided_later_[tensor]) nodes_[producer_[tensor]].options.resize(1);
  }
}

void SearchGraph::find_live()
{
  for (std::size_t tensor = 0; tensor < readers_.size(); ++tensor) {
    if (readers_[tensor].empty() || is_decided_later_[tensor]) continue;
    for (std::size_t i = producer_[tensor] + 1; i <= readers_[tensor].back().node; ++i)
      nodes_[i].live.push_back(tensor);
  }
  for (std::size_t i = 0; i < problem_.nodes.size(); ++i) {
    Node& node = nodes_[i];
    for (auto& input : node.inputs) {
      if (!is_decided_later_[input.tensor]) input.place = place_in(node.live, input.tensor);
    }
    for (const auto tensor : nodes_[i + 1].live) {
      const std::size_t place = place_in(node.live, tensor);
      node.sources.push_back(place < node.live.size() ? place : place + place_in(problem_.nodes[i].outputs, tensor));
    }
  }
}

void SearchGraph::find_allowed()
{
  for (auto& node : nodes_) {
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      for (FormSet set = 0; set < form_sets; ++set) {
        for (std::size_t j = 0; j < node.options.size(); ++j) {
          const FormCode needed = node.options[j].inputs[k];
          const std::uint64_t bit = std::uint64_t{1} << j;
          if (sets.has[set][needed]) node.inputs[k].allowed_now[set] |= bit;
          if (sets.has[set][needed] || can_reform(set, needed)) node.inputs[k].allowed[set] |= bit;
        }
      }
    }
  }
}

void SearchGraph::find_later_readers()
{
  for (std::size_t i = 0; i < problem_.nodes.size(); ++i) {
    std::vector<std::size_t> later;  // nodes
    const auto append_readers = [&](std::size_t tensor) {
      if (is_decided_later_[tensor]) return;
      for (const auto& reader : readers_[tensor]) {
        if (reader.node > i) later.push_back(reader.node);
      }
    };
    for (const auto tensor : problem_.nodes[i].inputs) append_readers(tensor);
    for (const auto tensor : problem_.nodes[i].outputs) append_readers(tensor);
    std::sort(later.begin(), later.end());
    later.erase(std::unique(later.begin(), later.end()), later.end());
    for (const auto reader : later) {
      auto& existing = nodes_[i].later.emplace_back();
      for (const auto& input : nodes_[reader].inputs) {
        if (input.place == nowhere || input.producer > i) continue;
        existing.push_back({place_in(nodes_[i + 1].live, input.tensor), &input.allowed});
      }
    }
  }
}

}  // namespace isobar::allocators::spmd
