#include "core/spmd/division.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace isobar::spmd {

namespace {

constexpr std::string_view arrow_of_forms = "->";

/// Finds the reforms of a division, and what is wrong with it.
class Reader {
 public:
  Reader(const OperatorGraph& graph, const Division& division, Rules rules)
      : graph_(graph), division_(division), rules_(rules)
  {
  }

  void read()
  {
    if (!check_parts()) return;
    for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
      if (!check_signature(i)) continue;
      const Operator& node = graph_.operators[i];
      for (std::size_t k = 0; k < node.inputs.size(); ++k) read_input(i, node.inputs[k], k);
    }
    for (std::size_t group = 1; group < division_.groups.size() && faults_.empty(); ++group) {
      if (receives_.contains(group)) continue;
      fault(division_.parts[division_.groups[group]],
            "begins a stage that reads nothing of the one before; begin it elsewhere");
    }
    std::stable_sort(reforms_.begin(), reforms_.end(), [](const PlacedReform& a, const PlacedReform& b) {
      if (a.part != b.part) return a.part < b.part;
      if (a.is_parameter != b.is_parameter) return a.is_parameter;
      return a.tensor < b.tensor;
    });
  }

  std::vector<PlacedReform> take_reforms() { return std::move(reforms_); }
  std::vector<std::string> take_faults() { return std::move(faults_); }

 private:
  template <typename... Values>
  void fault(std::size_t node, fmt::format_string<Values...> text, Values&&... values)
  {
    faults_.push_back(
        fmt::format("{}: {}", graph_.operators[node].name, fmt::format(text, std::forward<Values>(values)...)));
  }

  bool check_parts()
  {
    const auto& parts = division_.parts;
    const std::size_t operators = graph_.operators.size();
    const bool ascend =
        std::adjacent_find(parts.begin(), parts.end(), [](auto a, auto b) { return a >= b; }) == parts.end();
    if (!parts.empty() && parts.front() == 0 && ascend && parts.back() < operators &&
        division_.signatures.size() == operators) {
      return true;
    }
    faults_.push_back(fmt::format("{} signatures of {} operators, or parts that do not ascend from the first one",
                                  division_.signatures.size(), operators));
    return false;
  }

  bool check_signature(std::size_t index)
  {
    const Operator& node = graph_.operators[index];
    const Signature& signature = division_.signatures[index];
    const auto known = signatures_of(graph_, node, rules_);
    if (std::find(known.begin(), known.end(), signature) != known.end()) return true;
    std::vector<std::string> texts;
    for (const auto& each : known) texts.push_back(text_of(each));
    fault(index, "cannot be divided as {}; use {}", text_of(signature), fmt::join(texts, ", or "));
    return false;
  }

  void read_input(std::size_t index, std::size_t tensor, std::size_t input)
  {
    const std::size_t maker = graph_.tensors[tensor].producer;
    const auto& outputs = graph_.operators[maker].outputs;
    const auto output = static_cast<std::size_t>(std::find(outputs.begin(), outputs.end(), tensor) - outputs.begin());
    if (output >= division_.signatures[maker].outputs.size()) return;  // its maker has a fault
    const Form made = division_.signatures[maker].outputs[output];
    const Form needed = division_.signatures[index].inputs[input];
    const std::size_t part = division_.part_of(index);
    const std::size_t made_in = division_.part_of(maker);
    const std::size_t group = division_.group_of(part);
    if (!can_pass(index, tensor, division_.group_of(made_in), group, made)) return;
    if (made == needed) return;
    auto& reformed = reformed_[{tensor, group}];
    if (reformed) {
      if (*reformed == needed) return;
      return fault(index, "reads {} as {}; it is {}, and is {} after its one reform", graph_.tensors[tensor].name,
                   name_of(needed), name_of(made), name_of(*reformed));
    }
    const Reform* const row = reform_between(made, needed, rules_);
    if (row == nullptr) {
      return fault(index, "reads {} as {}; it is {}, and no reform leads there", graph_.tensors[tensor].name,
                   name_of(needed), name_of(made));
    }
    if (made_in == part && !is_source(graph_.operators[maker].kind)) {
      return fault(index, "reads {} as {} in the part that makes it as {}; begin a part between them",
                   graph_.tensors[tensor].name, name_of(needed), name_of(made));
    }
    reformed = needed;
    reforms_.push_back({tensor, part, made_in, made, needed, row->forward, row->backward, graph_.is_parameter(tensor)});
  }

  /// Whether an operator of `group` can have a tensor that another one makes as `made`; otherwise with a fault.
  bool can_pass(std::size_t index, std::size_t tensor, std::size_t from, std::size_t group, Form made)
  {
    const bool is_data = is_source(graph_.operators[graph_.tensors[tensor].producer].kind);
    const std::string& name = graph_.tensors[tensor].name;
    if (from == group || (is_data && !graph_.is_parameter(tensor))) return true;
    if (graph_.is_parameter(tensor)) {
      fault(index, "reads {}, which is in another stage; a parameter is in the stage that reads it", name);
    } else if (group > from + 1) {
      fault(index, "reads {}, which is made {} stages before; the next stage is the last one that reads a tensor", name,
            group - from);
    } else if (made.kind != Form::Kind::Gather) {
      fault(index, "reads {}, which the stage before makes {}; only slices pass between stages", name, name_of(made));
    } else {
      if (graph_.has_gradient(tensor)) receives_.insert(group);
      return true;
    }
    return false;
  }

  const OperatorGraph& graph_;
  const Division& division_;
  Rules rules_;
  std::map<std::pair<std::size_t, std::size_t>, std::optional<Form>> reformed_;  // by tensor and group
  std::set<std::size_t> receives_;  // groups that read what the one before has made
  std::vector<PlacedReform> reforms_;
  std::vector<std::string> faults_;
};

std::optional<Form> form_from_name(std::string_view name)
{
  for (const Form form : {full, reduce, replicate}) {
    if (name == name_of(form)) return form;
  }
  for (std::uint8_t dimension = 0; dimension < most_dimensions; ++dimension) {
    if (name == name_of(gather(dimension))) return gather(dimension);
  }
  return std::nullopt;
}

std::optional<std::vector<Form>> forms_from_text(std::string_view text)
{
  std::vector<Form> forms;
  while (true) {
    const auto begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return forms;
    text.remove_prefix(begin);
    const auto form = form_from_name(text.substr(0, text.find(' ')));
    if (!form) return std::nullopt;
    forms.push_back(*form);
    text.remove_prefix(std::min(text.size(), text.find(' ')));
  }
}

}  // namespace

std::size_t Division::part_of(std::size_t node) const
{
  return static_cast<std::size_t>(std::upper_bound(parts.begin(), parts.end(), node) - parts.begin()) - 1;
}

std::size_t Division::group_of(std::size_t part) const
{
  return static_cast<std::size_t>(std::upper_bound(groups.begin(), groups.end(), part) - groups.begin()) - 1;
}

std::vector<PlacedReform> reforms_of(const OperatorGraph& graph, const Division& division, Rules rules)
{
  Reader reader(graph, division, rules);
  reader.read();
  const auto faults = reader.take_faults();
  ensure(faults.empty(), "reforms of a division with faults");
  return reader.take_reforms();
}

std::vector<std::string> faults_of(const OperatorGraph& graph, const Division& division, Rules rules)
{
  Reader reader(graph, division, rules);
  reader.read();
  return reader.take_faults();
}

std::string text_of(const Signature& signature)
{
  std::string text;
  for (const Form form : signature.inputs) text += name_of(form) + " ";
  text += arrow_of_forms;
  for (const Form form : signature.outputs) text += " " + name_of(form);
  return text;
}

bool is_signature_text(std::string_view text)
{
  return text.find(arrow_of_forms) != std::string_view::npos;
}

std::optional<Signature> signature_from_text(std::string_view text)
{
  const auto middle = text.find(arrow_of_forms);
  if (middle == std::string_view::npos) return std::nullopt;
  auto inputs = forms_from_text(text.substr(0, middle));
  auto outputs = forms_from_text(text.substr(middle + arrow_of_forms.size()));
  if (!inputs || !outputs) return std::nullopt;
  return Signature{std::move(*inputs), std::move(*outputs)};
}

}  // namespace isobar::spmd
