#pragma once

#include "core/spmd/operator_graph.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// Operators computed number by number, to judge signatures by what they compute.
namespace isobar::spmd::plain {

struct Array {
  std::vector<std::size_t> shape;
  std::vector<double> numbers;

  explicit Array(std::vector<std::size_t> sides = {}) : shape(std::move(sides))
  {
    std::size_t count = 1;
    for (const auto side : shape) count *= side;
    numbers.resize(count);
  }

  double& at(const std::vector<std::size_t>& index) { return numbers[place(index)]; }
  double at(const std::vector<std::size_t>& index) const { return numbers[place(index)]; }

  std::size_t place(const std::vector<std::size_t>& index) const
  {
    std::size_t place = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) place = place * shape[i] + index[i];
    return place;
  }
};

/// Calls `visit` with each index of a shape.
template <typename Visit>
void for_each_index(const std::vector<std::size_t>& shape, Visit visit)
{
  for (const auto side : shape) {
    if (side == 0) return;
  }
  std::vector<std::size_t> index(shape.size());
  while (true) {
    visit(index);
    std::size_t i = shape.size();
    while (i > 0 && ++index[i - 1] == shape[i - 1]) index[--i] = 0;
    if (i == 0) return;
  }
}

/// Letters of each input and of the outputs, "bsi,oi->bso".
struct Letters {
  explicit Letters(const std::string& text)
  {
    std::vector<std::string>* part = &inputs;
    part->emplace_back();
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '-') {
        part = &outputs;
        part->emplace_back();
        ++i;  // the arrow's head
      } else if (text[i] == ',') {
        part->emplace_back();
      } else {
        part->back() += text[i];
      }
    }
  }

  std::vector<std::string> inputs, outputs;
};

/// The sum of products of inputs over all letters that `output` lacks.
inline Array contraction(const std::vector<std::string>& letters, const std::vector<const Array*>& inputs,
                         const std::string& output)
{
  std::map<char, std::size_t> sides;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    for (std::size_t i = 0; i < letters[k].size(); ++i) {
      const auto [side, is_first] = sides.emplace(letters[k][i], inputs[k]->shape[i]);
      if (!is_first) side->second = std::min(side->second, inputs[k]->shape[i]);  // of a wrong signature
    }
  }
  std::string order;
  std::vector<std::size_t> shape;
  for (const auto& [letter, side] : sides) {
    order += letter;
    shape.push_back(side);
  }
  const auto places_of = [&](const std::string& text) {
    std::vector<std::size_t> places;
    for (const char letter : text) places.push_back(order.find(letter));
    return places;
  };
  std::vector<std::vector<std::size_t>> places;
  for (const auto& text : letters) places.push_back(places_of(text));
  const auto output_places = places_of(output);
  std::vector<std::size_t> output_shape;
  for (const auto place : output_places) output_shape.push_back(shape[place]);
  Array result(output_shape);
  const auto place_at = [](const std::vector<std::size_t>& index, const Array& array,
                           const std::vector<std::size_t>& from) {
    std::size_t place = 0;
    for (std::size_t i = 0; i < from.size(); ++i) place = place * array.shape[i] + index[from[i]];
    return place;
  };
  for_each_index(shape, [&](const std::vector<std::size_t>& index) {
    double product = 1;
    for (std::size_t k = 0; k < inputs.size(); ++k)
      product *= inputs[k]->numbers[place_at(index, *inputs[k], places[k])];
    result.numbers[place_at(index, result, output_places)] += product;
  });
  return result;
}

/// Adds an array to another; dimensions of 1 count for all, and missing ones by the letters.
inline void add_to(Array& sum, const std::string& sum_letters, const Array& array, const std::string& letters)
{
  for_each_index(sum.shape, [&](const std::vector<std::size_t>& index) {
    std::vector<std::size_t> at;
    for (std::size_t i = 0; i < letters.size(); ++i) {
      const auto place = sum_letters.find(letters[i]);
      at.push_back(place == std::string::npos ? 0 : index[place]);
    }
    sum.at(index) += array.at(at);
  });
}

/// A number that stands for one of `choices`, such as a token.
inline std::size_t choice_of(double number, std::size_t choices)
{
  return static_cast<std::size_t>(std::abs(number) * 1e6) % choices;
}

/// The outputs of an operator from its inputs, whole or parts; none of a kind that is not computed here.
inline std::vector<Array> compute(const Operator& node, const std::vector<Array>& inputs)
{
  const Letters letters(node.dimensions);
  const Array& x = inputs[0];
  switch (node.kind) {
    case OperatorKind::Linear:
    case OperatorKind::QkvLinear:
    case OperatorKind::Scores:
    case OperatorKind::Context:
    case OperatorKind::Dispatch:
    case OperatorKind::Expert:
    case OperatorKind::Combine: {
      Array product = contraction({letters.inputs[0], letters.inputs[1]}, {&inputs[0], &inputs[1]}, letters.outputs[0]);
      if (inputs.size() > 2) add_to(product, letters.outputs[0], inputs[2], letters.inputs[2]);
      return {product};
    }
    case OperatorKind::Transpose:
    case OperatorKind::Sum:
      return {contraction({letters.inputs[0]}, {&x}, letters.outputs[0])};
    case OperatorKind::Add: {
      Array sum = x;
      add_to(sum, letters.inputs[0], inputs[1], letters.inputs[1]);
      return {sum};
    }
    case OperatorKind::Scale: {
      Array scaled = x;
      for (auto& number : scaled.numbers) number *= 3;
      return {scaled};
    }
    case OperatorKind::Relu: {
      Array positive = x;
      for (auto& number : positive.numbers) number = std::max(number, 0.0);
      return {positive};
    }
    case OperatorKind::Softmax:
    case OperatorKind::LogSoftmax:
    case OperatorKind::LayerNorm: {
      Array result = x;
      const std::size_t width = x.shape.back();
      for (std::size_t row = 0; row < x.numbers.size(); row += width) {
        double sum = 0, squares = 0, exponentials = 0;
        for (std::size_t i = 0; i < width; ++i) {
          sum += x.numbers[row + i];
          squares += x.numbers[row + i] * x.numbers[row + i];
          exponentials += std::exp(x.numbers[row + i]);
        }
        const double mean = sum / static_cast<double>(width);
        const double deviation = std::sqrt(squares / static_cast<double>(width) - mean * mean + 1e-5);
        for (std::size_t i = 0; i < width; ++i) {
          double& number = result.numbers[row + i];
          if (node.kind == OperatorKind::Softmax) number = std::exp(number) / exponentials;
          if (node.kind == OperatorKind::LogSoftmax) number -= std::log(exponentials);
          if (node.kind == OperatorKind::LayerNorm) {
            number = (number - mean) / deviation * inputs[1].numbers[i] + inputs[2].numbers[i];
          }
        }
      }
      return {result};
    }
    case OperatorKind::SplitHeads: {
      const std::size_t width = 2;  // of a head, in the tests' model
      std::vector<Array> outputs;
      for (std::size_t part = 0; part < 3; ++part) {
        Array heads({x.shape[0], x.shape[3] / width, x.shape[1], width});
        for_each_index(heads.shape, [&](const std::vector<std::size_t>& i) {
          heads.at(i) = x.at({i[0], i[2], part, i[1] * width + i[3]});
        });
        outputs.push_back(heads);
      }
      return outputs;
    }
    case OperatorKind::MergeHeads: {
      const std::size_t width = x.shape[3];
      Array merged({x.shape[0], x.shape[2], x.shape[1] * width});
      for_each_index(x.shape, [&](const std::vector<std::size_t>& i) {
        merged.at({i[0], i[2], i[1] * width + i[3]}) = x.at(i);
      });
      return {merged};
    }
    case OperatorKind::Dropout: {
      Array kept = x;  // the same for all numbers, so that no device draws others
      for (auto& number : kept.numbers) number /= 2;
      return {kept};
    }
    case OperatorKind::Embedding: {
      Array found({x.shape[0], x.shape[1], inputs[1].shape[1]});
      for_each_index(found.shape, [&](const std::vector<std::size_t>& i) {
        found.at(i) = inputs[1].at({choice_of(x.at({i[0], i[1]}), inputs[1].shape[0]), i[2]});
      });
      return {found};
    }
    case OperatorKind::NllSum: {
      Array sum;
      for_each_index(inputs[1].shape, [&](std::vector<std::size_t> i) {
        const std::size_t label = choice_of(inputs[1].at(i), x.shape[1]);
        i.insert(i.begin() + 1, label);
        sum.numbers[0] -= x.at(i);
      });
      return {sum};
    }
    case OperatorKind::Convolution: {
      const std::size_t patch = inputs[1].shape[2];
      Array patches({x.shape[0], inputs[1].shape[0], x.shape[2] / patch, x.shape[3] / patch});
      for_each_index(patches.shape, [&](const std::vector<std::size_t>& i) {
        double& number = patches.at(i);
        number = inputs[2].at({i[1]});
        for_each_index({x.shape[1], patch, patch}, [&](const std::vector<std::size_t>& k) {
          number +=
              x.at({i[0], k[0], i[2] * patch + k[1], i[3] * patch + k[2]}) * inputs[1].at({i[1], k[0], k[1], k[2]});
        });
      });
      return {patches};
    }
    case OperatorKind::Flatten: {
      Array flat({x.shape[0], x.shape[1], x.shape[2] * x.shape[3]});
      flat.numbers = x.numbers;
      return {flat};
    }
    case OperatorKind::PrependClass: {
      Array longer({x.shape[0], x.shape[1] + 1, x.shape[2]});
      for_each_index(longer.shape, [&](const std::vector<std::size_t>& i) {
        longer.at(i) = i[1] == 0 ? inputs[1].at({0, 0, i[2]}) : x.at({i[0], i[1] - 1, i[2]});
      });
      return {longer};
    }
    case OperatorKind::TakeClass: {
      Array token({x.shape[0], x.shape[2]});
      for_each_index(token.shape, [&](const std::vector<std::size_t>& i) { token.at(i) = x.at({i[0], 0, i[1]}); });
      return {token};
    }
    default:
      return {};
  }
}

/// The gradients of an operator's inputs from those of its outputs; none of a kind that is not computed here.
inline std::vector<Array> gradients(const Operator& node, const std::vector<Array>& inputs, const Array& output)
{
  const Letters letters(node.dimensions);
  const std::string& made = letters.outputs[0];
  switch (node.kind) {
    case OperatorKind::Linear:
    case OperatorKind::QkvLinear:
    case OperatorKind::Scores:
    case OperatorKind::Context:
    case OperatorKind::Dispatch:
    case OperatorKind::Expert:
    case OperatorKind::Combine: {
      std::vector<Array> result = {contraction({made, letters.inputs[1]}, {&output, &inputs[1]}, letters.inputs[0]),
                                   contraction({made, letters.inputs[0]}, {&output, &inputs[0]}, letters.inputs[1])};
      if (inputs.size() > 2) result.push_back(contraction({made}, {&output}, letters.inputs[2]));
      return result;
    }
    case OperatorKind::Transpose:
      return {contraction({made}, {&output}, letters.inputs[0])};
    case OperatorKind::Add: {
      Array second(inputs[1].shape);  // adds up over the dimensions of 1
      for_each_index(output.shape, [&](std::vector<std::size_t> index) {
        const double number = output.at(index);
        for (std::size_t i = 0; i < index.size(); ++i) {
          if (second.shape[i] == 1) index[i] = 0;
        }
        second.at(index) += number;
      });
      return {output, second};
    }
    case OperatorKind::Scale: {
      Array scaled = output;
      for (auto& number : scaled.numbers) number *= 3;
      return {scaled};
    }
    case OperatorKind::Relu: {
      Array masked = output;
      for (std::size_t i = 0; i < masked.numbers.size(); ++i) masked.numbers[i] *= inputs[0].numbers[i] > 0 ? 1 : 0;
      return {masked};
    }
    case OperatorKind::LayerNorm: {
      const std::size_t width = output.shape.back();
      const auto n = static_cast<double>(width);
      Array unit({width}), zero({width}), x = output, weight({width}), bias({width});
      for (auto& number : unit.numbers) number = 1;
      const Array normed = compute(node, {inputs[0], unit, zero})[0];
      for (std::size_t row = 0; row < x.numbers.size(); row += width) {
        double sum = 0, squares = 0, mean = 0, along = 0;
        for (std::size_t i = 0; i < width; ++i) {
          const double gradient = output.numbers[row + i];
          weight.numbers[i] += gradient * normed.numbers[row + i];
          bias.numbers[i] += gradient;
          mean += gradient * inputs[1].numbers[i] / n;
          along += gradient * inputs[1].numbers[i] * normed.numbers[row + i] / n;
          sum += inputs[0].numbers[row + i];
          squares += inputs[0].numbers[row + i] * inputs[0].numbers[row + i];
        }
        const double deviation = std::sqrt(squares / n - sum / n * (sum / n) + 1e-5);
        for (std::size_t i = 0; i < width; ++i) {
          const double gradient = output.numbers[row + i] * inputs[1].numbers[i];
          x.numbers[row + i] = (gradient - mean - normed.numbers[row + i] * along) / deviation;
        }
      }
      return {x, weight, bias};
    }
    default:
      return {};
  }
}

}  // namespace isobar::spmd::plain
