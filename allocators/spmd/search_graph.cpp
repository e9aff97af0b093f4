#include "allocators/spmd/search_graph.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace isobar::allocators::spmd {

namespace {

std::size_t place_in(const std::vector<std::size_t>& tensors, std::size_t tensor)
{
  return static_cast<std::size_t>(std::find(tensors.begin(), tensors.end(), tensor) - tensors.begin());
}

/// A form in which a source makes a tensor, and the reform of it to the one that a reader needs.
struct Way {
  const SearchGraph::Option* source = nullptr;
  bool has_reform = false;
  const ReformCost* cost = nullptr;
};

bool costs_the_same(const Way& a, const Way& b)
{
  return a.has_reform == b.has_reform && *a.cost == *b.cost && a.source->loads == b.source->loads;
}

bool costs_no_more(const Way& a, const Way& b)
{
  if (a.cost->forward > b.cost->forward || a.cost->backward > b.cost->backward) return false;
  if (a.source->update > b.source->update || a.source->across > b.source->across) return false;
  const auto memory = [](const Way& way, std::size_t kind) {
    return way.source->loads[kind].memory + way.cost->memory_of(kind);
  };
  for (std::size_t kind = 0; kind < a.source->loads.size(); ++kind) {
    if (memory(a, kind) > memory(b, kind)) return false;
  }
  return true;
}

}  // namespace

SearchGraph::SearchGraph(const StrategyProblem& problem)
    : problem_(problem),
      nodes_(problem.nodes.size() + 1),
      producer_(problem.is_parameter.size()),
      readers_(problem.is_parameter.size()),
      reform_costs_(problem.is_parameter.size())
{
  read_options();
  read_reforms();
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
      const std::size_t tensor = node.inputs[k];
      readers_[tensor].push_back({i, k});
      nodes_[i].inputs.push_back(
          {tensor, producer_[tensor], problem_.is_parameter[tensor], earliest_stage(tensor), nowhere, {}, {}});
    }
    ensure(node.options.size() <= most_options, "an operator with more than 64 signatures");
    for (std::size_t j = 0; j < node.options.size(); ++j) {
      Option& option = nodes_[i].options.emplace_back();
      for (const Form form : node.options[j].signature.inputs) option.inputs.push_back(code_of(form));
      for (const Form form : node.options[j].signature.outputs) option.outputs.push_back(code_of(form));
      option.loads = node.options[j].loads;
      option.update = node.options[j].update();
      option.across = node.options[j].across();
      option.index = static_cast<std::uint8_t>(j);
    }
  }
}

/// The costs of all reforms of forms that a tensor is made in to forms that it is read in.
void SearchGraph::read_reforms()
{
  for (FormCode from = 0; from < form_codes; ++from) {
    for (FormCode to = 0; to < form_codes; ++to) {
      is_reform_[from][to] = reform_between(form_of(from), form_of(to), problem_.rules) != nullptr;
    }
  }
  for (std::size_t tensor = 0; tensor < readers_.size(); ++tensor) {
    if (readers_[tensor].empty()) continue;  // such as those of other groups, which nothing here makes
    const std::size_t place = place_in(problem_.nodes[producer_[tensor]].outputs, tensor);
    std::array<std::array<bool, form_codes>, form_codes> is_known{};
    for (const auto& made : nodes_[producer_[tensor]].options) {
      const FormCode from = made.outputs[place];
      for (const auto& reader : readers_[tensor]) {
        for (const auto& option : nodes_[reader.node].options) {
          const FormCode to = option.inputs[reader.input];
          if (!is_reform_[from][to] || is_known[from][to]) continue;
          is_known[from][to] = true;
          reform_costs_[tensor][from][to] = problem_.reform_cost(tensor, form_of(from), form_of(to));
        }
      }
    }
  }
}

/// Parameters exist before a step; other tensors from the end of the stage that makes them.
std::size_t SearchGraph::earliest_stage(std::size_t tensor) const
{
  return problem_.is_parameter[tensor] ? 0 : producer_[tensor] + 1;
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
         std::all_of(options.begin(), options.end(), [](const Option& option) {
           return std::all_of(option.loads.begin(), option.loads.end(), [](const Load& load) {
             return load.forward == Seconds(0) && load.backward == Seconds(0);
           });
         });
}

/// All ways in which the inputs of a node were made whose forms it decides.
std::vector<SearchGraph::Choice> SearchGraph::choices_of(std::size_t node, const Option& option) const
{
  const auto& inputs = nodes_[node].inputs;
  Choice none;
  none.options.resize(inputs.size());
  none.memory.resize(problem_.kinds());
  std::vector<Choice> choices = {none};
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!is_decided_later_[inputs[k].tensor]) continue;
    auto sources = nodes_[inputs[k].producer].options;
    std::sort(sources.begin(), sources.end(),
              [](const Option& a, const Option& b) { return a.outputs[0] < b.outputs[0]; });
    std::vector<Way> ways;
    for (const auto& source : sources) {
      const FormCode made = source.outputs[0];
      const FormCode needed = option.inputs[k];
      if (made != needed && !is_reform_[made][needed]) continue;
      const Way way{&source, made != needed, &reform_cost(inputs[k].tensor, made, needed)};
      const auto replaces = [&](const Way& a, const Way& b) {
        return problem_.is_parameter[inputs[k].tensor] ? costs_no_more(a, b) : costs_the_same(a, b);
      };
      if (std::any_of(ways.begin(), ways.end(), [&](const Way& other) { return replaces(other, way); })) continue;
      std::erase_if(ways, [&](const Way& other) { return replaces(way, other); });
      ways.push_back(way);
    }
    std::vector<Choice> longer;
    for (const auto& choice : choices) {
      for (const auto& way : ways) {
        Choice& next = longer.emplace_back(choice);
        next.options[k] = way.source->index;
        next.times.update += way.source->update.value;
        next.times.across += way.source->across.value;
        for (std::size_t kind = 0; kind < next.memory.size(); ++kind) {
          next.memory[kind] += way.source->loads[kind].memory + way.cost->memory_of(kind);
        }
        if (!way.has_reform) continue;
        next.has_reform = true;
        next.times.add_reform(*way.cost, inputs[k].is_parameter);
        next.earliest_stage = std::max(next.earliest_stage, inputs[k].earliest_stage);
      }
    }
    choices = std::move(longer);
  }
  return choices;
}

void SearchGraph::list_sets(Option& option)
{
  if (option.choices.size() == 1 && option.choices[0].costs_nothing()) return;
  std::set<std::size_t> beginnings = {0};
  for (const auto& choice : option.choices) beginnings.insert(choice.earliest_stage);
  for (const auto begin : beginnings) {
    ChoiceSet set{begin, 0, {}};
    std::vector<Choice> content;
    for (std::size_t i = 0; i < option.choices.size(); ++i) {
      if (option.choices[i].earliest_stage > begin) continue;
      set.choices.push_back(i);
      content.push_back(option.choices[i]);
    }
    const auto known = std::find_if(contents_.begin(), contents_.end(), [&](const auto& other) {
      return std::equal(content.begin(), content.end(), other.begin(), other.end(),
                        [](const Choice& a, const Choice& b) { return a.costs_the_same(b); });
    });
    set.content = static_cast<std::size_t>(known - contents_.begin());
    if (known == contents_.end()) contents_.push_back(std::move(content));
    option.sets.push_back(std::move(set));
  }
}

void SearchGraph::list_choices()
{
  for (std::size_t tensor = 0; tensor < readers_.size(); ++tensor) {
    is_decided_later_.push_back(is_decided_later(tensor));
  }
  for (std::size_t i = 0; i < problem_.nodes.size(); ++i) {
    for (auto& option : nodes_[i].options) {
      option.choices = choices_of(i, option);
      list_sets(option);
    }
  }
  for (std::size_t tensor = 0; tensor < readers_.size(); ++tensor) {
    if (!is_decided_later_[tensor]) continue;
    auto& options = nodes_[producer_[tensor]].options;
    nodes_[producer_[tensor]].is_skipped = problem_.is_parameter[tensor];
    options.resize(1);
    options.front().loads.assign(problem_.kinds(), {});
    options.front().update = {};
    options.front().across = {};
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
