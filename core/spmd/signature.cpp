#include "core/spmd/signature.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>

namespace isobar::spmd {

namespace {

using Kind = OperatorKind;

/// What an operator computes, as far as addends of tensors concern it.
enum class Algebra {
  General,    ///< no more than that parts along a dimension do not depend on each other
  Losses,     ///< adds up numbers of which each depends on a part of the inputs
  LinearMap,  ///< linear in all inputs together
  Product     ///< linear in each of two inputs; a third one is added
};

Algebra algebra_of(Kind kind)
{
  switch (kind) {
    case Kind::NllSum:
      return Algebra::Losses;
    case Kind::Transpose:
    case Kind::Flatten:
    case Kind::SplitHeads:
    case Kind::MergeHeads:
    case Kind::PrependClass:
    case Kind::TakeClass:
    case Kind::Scale:
    case Kind::Add:
    case Kind::Sum:
      return Algebra::LinearMap;
    case Kind::Linear:
    case Kind::QkvLinear:
    case Kind::Scores:
    case Kind::Context:
    case Kind::Dispatch:
    case Kind::Expert:
    case Kind::Combine:
    case Kind::Convolution:
      return Algebra::Product;
    default:
      return Algebra::General;
  }
}

/// Whether the operator may give addends of its output because it adds up along a divided dimension.
bool gives_addends(Kind kind, Rules rules)
{
  if (rules == Rules::Corrected) return algebra_of(kind) != Algebra::General;
  return kind == Kind::Dispatch || kind == Kind::Expert || kind == Kind::Combine || kind == Kind::NllSum ||
         kind == Kind::Sum;
}

/// Whether the operator may compute addends of its output from addends of its inputs.
bool passes_addends(Kind kind, Rules rules)
{
  if (rules == Rules::Corrected) return algebra_of(kind) == Algebra::LinearMap || algebra_of(kind) == Algebra::Product;
  return kind == Kind::Transpose || kind == Kind::Scale || kind == Kind::Sum;
}

std::vector<std::string> split_at(std::string_view text, char separator)
{
  std::vector<std::string> parts(1);
  for (const char letter : text) {
    if (letter == separator) {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

/// The letters of each input and output: "bsi,oi->bso".
struct Dimensions {
  explicit Dimensions(const std::string& text)
  {
    const auto arrow = text.find("->");
    ensure(arrow != std::string::npos, "an operator without dimensions");
    inputs = split_at(std::string_view(text).substr(0, arrow), ',');
    outputs = split_at(std::string_view(text).substr(arrow + 2), ',');
  }

  /// Those that may be divided, in the order of their first place.
  std::string divisible() const
  {
    std::string letters;
    for (const auto& input : inputs) {
      for (const char letter : input) {
        if (std::islower(static_cast<unsigned char>(letter)) != 0 && letters.find(letter) == std::string::npos) {
          letters += letter;
        }
      }
    }
    return letters;
  }

  std::vector<std::string> inputs, outputs;
};

Form form_along(char letter, const std::string& tensor, Form otherwise)
{
  const auto dimension = tensor.find(letter);
  return dimension == std::string::npos ? otherwise : gather(static_cast<std::uint8_t>(dimension));
}

/// The signatures in which one dimension is divided.
void append_divided(std::vector<Signature>& signatures, const Dimensions& dimensions, Kind kind, Rules rules)
{
  constexpr std::size_t factors = 2;
  for (const char letter : dimensions.divisible()) {
    const auto& outputs = dimensions.outputs;
    const bool sums = std::none_of(outputs.begin(), outputs.end(),
                                   [&](const auto& output) { return output.find(letter) != std::string::npos; });
    if (sums && !gives_addends(kind, rules)) continue;
    Signature signature;
    for (std::size_t i = 0; i < dimensions.inputs.size(); ++i) {
      const bool is_added = sums && algebra_of(kind) == Algebra::Product && i >= factors;
      signature.inputs.push_back(is_added ? reduce : form_along(letter, dimensions.inputs[i], full));
    }
    for (const auto& output : outputs) signature.outputs.push_back(form_along(letter, output, reduce));
    signatures.push_back(std::move(signature));
  }
}

/// The signatures that compute addends of addends.
void append_addends(std::vector<Signature>& signatures, const Operator& node)
{
  const std::vector<Form> outputs(node.outputs.size(), reduce);
  if (algebra_of(node.kind) == Algebra::LinearMap) {
    signatures.push_back({std::vector<Form>(node.inputs.size(), reduce), outputs});
    return;
  }
  for (const std::size_t other : {std::size_t{1}, std::size_t{0}}) {
    std::vector<Form> inputs(node.inputs.size(), reduce);
    inputs[other] = full;
    signatures.push_back({std::move(inputs), outputs});
  }
}

std::vector<Signature> signatures_of_source(const OperatorGraph& graph, const Operator& node, Rules rules)
{
  std::vector<Form> forms;
  const auto add_slices = [&] {
    for (std::size_t i = 0; i < graph.tensors[node.outputs[0]].shape.size(); ++i) {
      forms.push_back(gather(static_cast<std::uint8_t>(i)));
    }
  };
  switch (node.kind) {
    case Kind::Data:
      forms = {gather(0), full};
      break;
    case Kind::CausalMask:
      forms = {replicate};  // the published code asks for it by a hint
      break;
    case Kind::Positions:
      forms = {rules == Rules::Published ? replicate : full};
      add_slices();
      break;
    default:
      forms = {replicate};
      add_slices();
  }
  std::vector<Signature> signatures;
  for (const Form form : forms) signatures.push_back({{}, {form}});
  return signatures;
}

}  // namespace

std::vector<Signature> signatures_of(const OperatorGraph& graph, const Operator& node, Rules rules)
{
  if (node.kind == Kind::Output) return {{{reduce}, {}}};
  if (node.inputs.empty()) return signatures_of_source(graph, node, rules);
  std::vector<Signature> signatures;
  append_divided(signatures, Dimensions(node.dimensions), node.kind, rules);
  if (passes_addends(node.kind, rules)) append_addends(signatures, node);
  if (rules == Rules::Published && node.kind == Kind::Combine) {
    signatures.back().inputs = {full, gather(2)};  // its tokens are dimension 1
  }
  if (rules == Rules::Published && node.kind == Kind::Attention) {
    Signature by_heads = {{gather(2), gather(2), gather(2), gather(0), gather(0), gather(1), full}, {reduce, reduce}};
    by_heads.inputs.resize(node.inputs.size(), full);  // a mask
    signatures.push_back(std::move(by_heads));
  }
  signatures.push_back({std::vector<Form>(node.inputs.size(), full), std::vector<Form>(node.outputs.size(), full)});
  return signatures;
}

}  // namespace isobar::spmd
