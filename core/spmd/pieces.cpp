#include "core/spmd/pieces.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

namespace isobar::spmd {

namespace {

/// Which dimensions of tensors are divided alike, since operators give them the same letter.
class LinkedDimensions {
 public:
  explicit LinkedDimensions(const OperatorGraph& graph)
  {
    for (const auto& tensor : graph.tensors) {
      first_.push_back(parent_.size());
      for (std::size_t i = 0; i < tensor.shape.size(); ++i) parent_.push_back(parent_.size());
    }
    for (const auto& node : graph.operators) link(node);
  }

  /// The same number for all linked dimensions.
  std::size_t number(std::size_t tensor, std::size_t dimension) { return root(first_[tensor] + dimension); }
  std::size_t count() const { return parent_.size(); }

 private:
  std::size_t root(std::size_t entry)
  {
    while (parent_[entry] != entry) entry = parent_[entry] = parent_[parent_[entry]];
    return entry;
  }

  void link(const Operator& node)
  {
    constexpr std::size_t none = ~std::size_t{0};
    std::array<std::size_t, 256> place_of_letter{};
    place_of_letter.fill(none);
    const auto arrow = node.dimensions.find("->");
    if (arrow == std::string::npos) return;
    const auto link_all = [&](std::string_view text, const std::vector<std::size_t>& tensors) {
      std::size_t next = 0;
      std::size_t dimension = 0;
      for (const char letter : text) {
        if (letter == ',') {
          ++next;
          dimension = 0;
          continue;
        }
        const std::size_t place = first_[tensors.at(next)] + dimension++;
        const auto code = static_cast<unsigned char>(letter);
        if (std::islower(code) == 0) continue;
        std::size_t& other = place_of_letter[code];
        if (other == none) {
          other = place;
        } else {
          parent_[root(place)] = root(other);
        }
      }
    };
    link_all(std::string_view(node.dimensions).substr(0, arrow), node.inputs);
    link_all(std::string_view(node.dimensions).substr(arrow + 2), node.outputs);
  }

  std::vector<std::size_t> first_;  // of each tensor
  std::vector<std::size_t> parent_;
};

bool is_data(const OperatorGraph& graph, std::size_t tensor)
{
  return graph.operators[graph.tensors[tensor].producer].kind == OperatorKind::Data;
}

}  // namespace

std::vector<std::vector<std::uint64_t>> units_of_dimensions(const OperatorGraph& graph)
{
  LinkedDimensions linked(graph);
  std::vector<std::uint64_t> units(linked.count(), 0);
  const auto for_each = [&](auto visit) {
    for (std::size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
      const auto& shape = graph.tensors[tensor].shape;
      for (std::size_t i = 0; i < shape.size(); ++i) visit(tensor, i, units[linked.number(tensor, i)], shape[i]);
    }
  };
  for_each([](std::size_t, std::size_t, std::uint64_t& all, std::uint64_t side) { all = std::gcd(all, side); });
  std::vector<std::vector<std::uint64_t>> result(graph.tensors.size());
  for_each([&](std::size_t tensor, std::size_t, std::uint64_t all, std::uint64_t) { result[tensor].push_back(all); });
  return result;
}

std::vector<std::optional<std::uint8_t>> sample_dimensions(const OperatorGraph& graph)
{
  LinkedDimensions linked(graph);
  std::vector<bool> is_samples(linked.count(), false);
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    if (is_data(graph, i)) is_samples[linked.number(i, 0)] = true;
  }
  std::vector<std::optional<std::uint8_t>> dimensions(graph.tensors.size());
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    for (std::size_t k = 0; k < graph.tensors[i].shape.size(); ++k) {
      if (is_samples[linked.number(i, k)]) dimensions[i] = static_cast<std::uint8_t>(k);
    }
  }
  return dimensions;
}

std::uint64_t samples_of(const OperatorGraph& graph)
{
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    if (is_data(graph, i)) return graph.tensors[i].shape.front();
  }
  return 0;
}

OperatorGraph over_part_of_samples(const OperatorGraph& graph, std::uint64_t parts)
{
  ensure(samples_of(graph) % parts == 0, "a part of the samples is a whole number of them");
  if (parts == 1) return graph;
  const auto dimensions = sample_dimensions(graph);
  const auto count = static_cast<double>(parts);
  OperatorGraph part = graph;
  for (std::size_t i = 0; i < part.tensors.size(); ++i) {
    if (!dimensions[i]) continue;
    part.tensors[i].shape[*dimensions[i]] /= parts;
    part.tensors[i].size = part.tensors[i].size / count;
  }
  for (auto& node : part.operators) {
    node.forward = node.forward / count;
    node.backward = node.backward / count;
    node.backward_weight = node.backward_weight / count;
    node.kept = node.kept / count;
  }
  return part;
}

std::vector<std::uint64_t> divided(std::uint64_t units, const std::vector<double>& shares)
{
  std::vector<std::uint64_t> counts;
  std::vector<std::pair<double, std::size_t>> missing;  // by device: the units that were rounded off, negative
  std::uint64_t left = units;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double ideal = static_cast<double>(units) * shares[i];
    counts.push_back(std::min(left, static_cast<std::uint64_t>(ideal)));
    left -= counts.back();
    missing.emplace_back(static_cast<double>(counts.back()) - ideal, i);
  }
  ensure(left <= shares.size(), "the shares of all devices sum to 1");
  std::sort(missing.begin(), missing.end());
  for (std::uint64_t i = 0; i < left; ++i) ++counts[missing[i].second];
  return counts;
}

Pieces::Pieces(const OperatorGraph& graph, std::vector<double> shares)
    : graph_(&graph), shares_(std::move(shares)), units_(units_of_dimensions(graph))
{
  for (const auto& dimensions : units_) {
    for (const auto units : dimensions) {
      if (divided_.find(units) == divided_.end()) divided_.emplace(units, divided(units, shares_));
    }
  }
}

double Pieces::part(std::size_t tensor, Form form, std::size_t device) const
{
  if (form.kind != Form::Kind::Gather) return 1;
  const std::uint64_t units = units_[tensor].at(form.dimension);
  return static_cast<double>(divided_.at(units)[device]) / static_cast<double>(units);
}

Bytes Pieces::size(std::size_t tensor, Form form, std::size_t device) const
{
  const Bytes whole = graph_->tensors[tensor].size;
  if (form.kind != Form::Kind::Gather) return whole;
  // Whole bytes stay whole: a unit has as many of them as all others.
  const std::uint64_t units = units_[tensor].at(form.dimension);
  return static_cast<double>(divided_.at(units)[device]) * (whole / static_cast<double>(units));
}

Bytes Pieces::overlap(std::size_t tensor, Form form, std::size_t device, const Pieces& other,
                      std::size_t of_other) const
{
  const std::uint64_t units = units_[tensor].at(form.dimension);
  const auto range = [units](const Pieces& pieces, std::size_t index) {
    const auto& counts = pieces.divided_.at(units);
    const auto own = counts.begin() + static_cast<std::ptrdiff_t>(index);
    const std::uint64_t begin = std::accumulate(counts.begin(), own, std::uint64_t{0});
    return std::pair(begin, begin + *own);
  };
  const auto [begin, end] = range(*this, device);
  const auto [other_begin, other_end] = range(other, of_other);
  const std::uint64_t from = std::max(begin, other_begin);
  const std::uint64_t until = std::max(from, std::min(end, other_end));
  return static_cast<double>(until - from) * (graph_->tensors[tensor].size / static_cast<double>(units));
}

double Pieces::part(const Operator& node, const Signature& signature, std::size_t device) const
{
  const auto first_slice = [&](const std::vector<Form>& forms, const std::vector<std::size_t>& tensors) {
    const auto found =
        std::find_if(forms.begin(), forms.end(), [](Form form) { return form.kind == Form::Kind::Gather; });
    if (found == forms.end()) return 1.0;
    return part(tensors[static_cast<std::size_t>(found - forms.begin())], *found, device);
  };
  const bool reads_slices = std::any_of(signature.inputs.begin(), signature.inputs.end(),
                                        [](Form form) { return form.kind == Form::Kind::Gather; });
  return reads_slices ? first_slice(signature.inputs, node.inputs) : first_slice(signature.outputs, node.outputs);
}

}  // namespace isobar::spmd
