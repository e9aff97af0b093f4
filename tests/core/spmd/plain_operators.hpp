#pragma once

#include "core/spmd/operator_graph.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
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
inline void for_each_index(const std::vector<std::size_t>& shape,
                           const std::function<void(const std::vector<std::size_t>&)>& visit)
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
    for (std::size_t i = 0; i < letters[k].size(); ++i) sides[letters[k][i]] = inputs[k]->shape[i];
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
  const auto picked = [](const std::vector<std::size_t>& index, const std::vector<std::size_t>& from) {
    std::vector<std::size_t> part;
    for (const auto place : from) part.push_back(index[place]);
    return part;
  };
  for_each_index(shape, [&](const std::vector<std::size_t>& index) {
    double product = 1;
    for (std::size_t k = 0; k < inputs.size(); ++k) product *= inputs[k]->at(picked(index, places[k]));
    result.at(picked(index, output_places)) += product;
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
    default:
      return {};
  }
}

}  // namespace isobar::spmd::plain
