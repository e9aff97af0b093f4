#include "core/errors.hpp"
#include "core/spmd/operator_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace isobar::spmd {

namespace {

using Kind = OperatorKind;
using Shape = std::vector<std::uint64_t>;
using Sides = std::map<char, std::uint64_t>;  // size of a dimension by its letter

/// Appends operators to a graph, with shapes and work by their dimensions' letters.
class Builder {
 public:
  Builder(double element_bytes, const MoeSizes& sizes)
      : element_bytes_(element_bytes), is_published_(sizes.parity), by_index_(sizes.routing.by_index)
  {
  }

  /// Layer of the operators that follow, and what their names begin with.
  void begin_layer(std::size_t layer, std::string prefix)
  {
    layer_ = layer;
    prefix_ = std::move(prefix);
  }

  std::size_t source(Kind kind, const std::string& name, Shape shape)
  {
    return append(kind, name, {}, "", {std::move(shape)});
  }

  std::size_t parameter(const std::string& name, Shape shape)
  {
    return source(Kind::Parameter, name, std::move(shape));
  }

  /// Appends an operator; `more` has the sizes of dimensions that no input has, or that outputs have instead.
  /// @returns its first output; the others follow.
  std::size_t apply(Kind kind, const std::string& name, std::vector<std::size_t> inputs, const std::string& dimensions,
                    const Sides& more = {})
  {
    Sides sides = more;
    std::vector<Shape> shapes;
    const auto arrow = dimensions.find("->");
    std::size_t input = 0;
    std::size_t dimension = 0;
    for (const char letter : dimensions.substr(0, arrow)) {
      if (letter == ',') {
        ++input;
        dimension = 0;
      } else {
        sides.try_emplace(letter, shape(inputs.at(input)).at(dimension++));
      }
    }
    shapes.emplace_back();
    for (const char letter : dimensions.substr(arrow + 2)) {
      if (letter == ',') {
        shapes.emplace_back();
      } else {
        shapes.back().push_back(sides.at(letter));
      }
    }
    const std::size_t output = append(kind, name, std::move(inputs), dimensions, std::move(shapes));
    Operator& node = graph_.operators.back();
    const bool is_copy = by_index_ && (kind == Kind::Dispatch || kind == Kind::Combine);
    if (!is_copy) node.forward = is_published_ ? published_work(node, sides) : work(node, sides);
    const bool reads_data = is_of(node.inputs[0], Kind::Data);
    const bool has_one_gradient = kind == Kind::Dispatch || reads_data;
    node.backward = (is_published_ || !has_one_gradient ? 2 : 1) * node.forward;
    const bool has_weights =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](auto read) { return is_of(read, Kind::Parameter); });
    if (has_weights) node.backward_weight = has_one_gradient ? node.backward : node.backward / 2;
    keep(node);
    return output;
  }

  std::size_t linear(const std::string& name, std::size_t input, std::uint64_t outputs, const std::string& dimensions)
  {
    const std::size_t weight = parameter(name + ".weight", {outputs, shape(input).back()});
    const std::size_t bias = parameter(name + ".bias", {outputs});
    return apply(Kind::Linear, name, {input, weight, bias}, dimensions);
  }

  std::size_t layer_norm(const std::string& name, std::size_t input)
  {
    const std::uint64_t hidden = shape(input).back();
    const std::size_t weight = parameter(name + ".weight", {hidden});
    const std::size_t bias = parameter(name + ".bias", {hidden});
    return apply(Kind::LayerNorm, name, {input, weight, bias}, "bsD,D,D->bsD");
  }

  /// Makes a tensor one of whole numbers.
  void set_shape(std::size_t tensor, Shape shape)
  {
    constexpr double bytes_of_number = 8;
    Tensor& changed = graph_.tensors[tensor];
    changed.shape = std::move(shape);
    changed.size = bytes_of_number * Bytes(elements_of(changed));
  }

  void finish(std::size_t loss) { append(Kind::Output, "output", {loss}, "", {}); }

  const Shape& shape(std::size_t tensor) const { return graph_.tensors[tensor].shape; }

  OperatorGraph take() { return std::move(graph_); }

 private:
  std::size_t append(Kind kind, const std::string& name, std::vector<std::size_t> inputs, std::string dimensions,
                     std::vector<Shape> shapes)
  {
    Operator node;
    node.name = prefix_ + name;
    node.kind = kind;
    node.layer = layer_;
    node.inputs = std::move(inputs);
    node.dimensions = std::move(dimensions);
    const std::size_t first = graph_.tensors.size();
    for (auto& sides : shapes) {
      node.outputs.push_back(graph_.tensors.size());
      Tensor tensor{node.name, std::move(sides), graph_.operators.size(), {}};
      tensor.size = element_bytes_ * Bytes(elements_of(tensor));
      graph_.tensors.push_back(std::move(tensor));
      is_kept_.push_back(false);
    }
    graph_.operators.push_back(std::move(node));
    return first;
  }

  bool is_of(std::size_t tensor, Kind kind) const
  {
    return graph_.operators[graph_.tensors[tensor].producer].kind == kind;
  }

  double elements(std::size_t tensor) const { return elements_of(graph_.tensors[tensor]); }

  /// Multiply-adds of a product: one for each element of its output and each index that it adds up.
  static double multiply_adds(const Operator& node, const Sides& sides)
  {
    const std::string& text = node.dimensions;
    const auto second = text.find(',') + 1;
    std::string letters =
        text.substr(text.find("->") + 2) + text.substr(second, text.find_first_of(",-", second) - second);
    std::sort(letters.begin(), letters.end());
    letters.erase(std::unique(letters.begin(), letters.end()), letters.end());
    double count = 1;
    for (const char letter : letters) count *= static_cast<double>(sides.at(letter));
    return count;
  }

  static Flops work(const Operator& node, const Sides& sides)
  {
    if (is_product(node.kind)) return Flops(2 * multiply_adds(node, sides));
    if (node.kind != Kind::Gating) return Flops(0);
    double count = 1;
    for (const char letter : {'b', 'S', 'D', 'E'}) count *= static_cast<double>(sides.at(letter));
    return Flops(2 * count);
  }

  Flops published_work(const Operator& node, const Sides& sides) const
  {
    const double input = elements(node.inputs[0]);
    const double output = elements(node.outputs[0]);
    if (is_product(node.kind)) return Flops(3 * multiply_adds(node, sides));
    switch (node.kind) {
      case Kind::Attention: {
        const auto batch = static_cast<double>(sides.at('b'));
        const auto sequence = static_cast<double>(sides.at('S'));
        const auto hidden = static_cast<double>(sides.at('D'));
        return Flops(6 * batch * sequence * sequence * hidden + 5 * batch * sequence * sequence);
      }
      case Kind::Gating:
        return Flops(10 * input * static_cast<double>(sides.at('E') * sides.at('C')));
      case Kind::Dropout:
        return Flops(20 * output);
      case Kind::LogSoftmax:
        return Flops(15 * output);
      case Kind::LayerNorm:
        return Flops(10 * output);
      case Kind::Sum:
      case Kind::NllSum:
        return Flops(input);
      case Kind::PrependClass:
      case Kind::TakeClass:
        return Flops(static_cast<double>(sides.at('b') * sides.at('d')));
      default:
        return Flops(output);
    }
  }

  void keep(std::size_t tensor, Operator& node)
  {
    if (is_of(tensor, Kind::Parameter)) return;
    node.keeps.push_back(tensor);
    if (is_kept_[tensor]) return;
    is_kept_[tensor] = true;
    node.kept += graph_.tensors[tensor].size;
  }

  void keep(Operator& node)
  {
    if (is_product(node.kind) || node.kind == Kind::LayerNorm || node.kind == Kind::Gating ||
        node.kind == Kind::Embedding || node.kind == Kind::Attention) {
      for (const auto input : node.inputs) keep(input, node);
    }
    if (node.kind == Kind::Softmax || node.kind == Kind::LogSoftmax || node.kind == Kind::Relu) {
      keep(node.outputs[0], node);
    }
    if (node.kind == Kind::Dropout) node.kept += Bytes(elements(node.outputs[0]));
  }

  OperatorGraph graph_;
  std::vector<bool> is_kept_;
  double element_bytes_;
  bool is_published_;
  bool by_index_;
  std::size_t layer_ = 0;
  std::string prefix_;
};

/// Attention as published: one node between transpositions, which compute q, k and v from three copies of its input.
std::size_t append_published_attention(Builder& builder, std::size_t input, const MoeSizes& sizes,
                                       std::optional<std::size_t> mask)
{
  const std::uint64_t hidden = sizes.hidden;
  std::vector<std::size_t> inputs;
  for (const char* name : {"q", "k", "v"}) inputs.push_back(builder.apply(Kind::Transpose, name, {input}, "bsd->sbd"));
  inputs.push_back(builder.parameter("in.weight", {3 * hidden, hidden}));
  inputs.push_back(builder.parameter("in.bias", {3 * hidden}));
  inputs.push_back(builder.parameter("out.weight", {hidden, hidden}));
  inputs.push_back(builder.parameter("out.bias", {hidden}));
  std::string dimensions = "SbD,SbD,SbD,TD,T,DD,D";
  if (mask) {
    inputs.push_back(*mask);
    dimensions += ",SS";
  }
  const std::size_t attended = builder.apply(Kind::Attention, "attention", inputs, dimensions + "->SbD,bSS");
  return builder.apply(Kind::Transpose, "transpose", {attended}, "sbd->bsd");
}

std::size_t append_attention(Builder& builder, std::size_t input, const MoeSizes& sizes)
{
  const std::uint64_t hidden = sizes.hidden;
  const std::size_t weight = builder.parameter("qkv.weight", {3, hidden, hidden});
  const std::size_t bias = builder.parameter("qkv.bias", {3, hidden});
  const std::size_t qkv = builder.apply(Kind::QkvLinear, "qkv", {input, weight, bias}, "bsi,Coi,Co->bsCo");
  const std::size_t q = builder.apply(Kind::SplitHeads, "split_heads", {qkv}, "bsCh->bhsE,bhsE,bhsE",
                                      {{'h', sizes.heads}, {'E', hidden / sizes.heads}});
  std::size_t scores = builder.apply(Kind::Scores, "scores", {q, q + 1}, "bhse,bhte->bhst");
  if (sizes.trunk == Trunk::Bert) scores = builder.apply(Kind::Mask, "mask", {scores}, "bhst->bhst");
  const std::size_t probabilities = builder.apply(Kind::Softmax, "softmax", {scores}, "bhsT->bhsT");
  const std::size_t dropped = builder.apply(Kind::Dropout, "attention_dropout", {probabilities}, "bhst->bhst");
  const std::size_t context = builder.apply(Kind::Context, "context", {dropped, q + 2}, "bhst,bhte->bhse");
  const std::size_t merged = builder.apply(Kind::MergeHeads, "merge_heads", {context}, "bhsE->bsh", {{'h', hidden}});
  return builder.linear("out", merged, hidden, "bsi,oi,o->bso");
}

std::size_t append_feed_forward(Builder& builder, std::size_t input, const MoeSizes& sizes)
{
  std::size_t hidden = builder.linear("linear1", input, sizes.intermediate, "bsi,oi,o->bso");
  hidden = builder.apply(Kind::Relu, "relu", {hidden}, "bsd->bsd");
  hidden = builder.apply(Kind::Dropout, "dropout", {hidden}, "bsd->bsd");
  const std::size_t output = builder.linear("linear2", hidden, sizes.hidden, "bsi,oi,o->bso");
  return builder.apply(Kind::Dropout, "dropout2", {output}, "bsd->bsd");
}

std::size_t append_experts(Builder& builder, std::size_t input, const MoeSizes& sizes)
{
  const auto [hidden, intermediate, experts] = std::tuple(sizes.hidden, sizes.intermediate, sizes.experts);
  const std::uint64_t samples = sizes.routing.capacity_samples;
  const bool by_index = sizes.routing.by_index;
  const std::uint64_t batch = builder.shape(input).front();
  ensure(batch % samples == 0, "a batch is whole groups of samples whose tokens share slots");
  const Sides sides = {{'C', capacity_of(sizes)}, {'K', sizes.top_k}};
  // Of all tokens of a group; their slots come after them.
  const Sides groups = {
      {'b', batch / samples}, {'s', samples * sizes.sequence}, {'e', experts}, {'c', capacity_of(sizes)}};
  const std::size_t gate = builder.parameter("gate", {hidden, experts});
  const std::size_t mask = builder.apply(Kind::Gating, "gating", {input, gate},
                                         by_index ? "bSD,DE->bSK,bSK,bE" : "bSD,DE->bSEC,bSEC", sides);
  if (by_index) builder.set_shape(mask + 2, {batch / samples, experts});
  const auto inputs_of_expert = [&](std::size_t weight, std::size_t slots) {
    return by_index ? std::vector{weight, slots, mask + 2} : std::vector{weight, slots};
  };
  const std::string counts = by_index ? ",be" : "";
  std::size_t slots =
      builder.apply(Kind::Dispatch, "dispatch", {input, mask}, by_index ? "bsd,bsK->becd" : "bsd,bsec->becd", groups);
  const std::size_t first = builder.parameter("w1", {experts, hidden, intermediate});
  slots = builder.apply(Kind::Expert, "expert1", inputs_of_expert(first, slots), "edh,becd" + counts + "->bech");
  slots = builder.apply(Kind::Relu, "relu", {slots}, "bech->bech");
  const std::size_t second = builder.parameter("w2", {experts, intermediate, hidden});
  slots = builder.apply(Kind::Expert, "expert2", inputs_of_expert(second, slots), "ehd,bech" + counts + "->becd");
  return builder.apply(Kind::Combine, "combine", {slots, mask + 1}, by_index ? "becd,bsK->bsd" : "becd,bsec->bsd",
                       {{'b', batch}});
}

std::size_t append_layers(Builder& builder, std::size_t input, const MoeSizes& sizes, std::optional<std::size_t> mask)
{
  for (std::uint64_t i = 0; i < sizes.layers; ++i) {
    builder.begin_layer(i + 1, fmt::format("layer{}.", i));
    const bool has_experts = sizes.experts > 0 && i % 2 == 1;
    const std::size_t attended = sizes.parity ? append_published_attention(builder, input, sizes, mask)
                                              : append_attention(builder, input, sizes);
    std::size_t output = builder.apply(Kind::Dropout, "dropout1", {attended}, "bsd->bsd");
    output = builder.apply(Kind::Add, "add1", {input, output}, "bsd,bsd->bsd");
    const std::size_t normed = builder.layer_norm("norm1", output);
    output = has_experts ? append_experts(builder, normed, sizes) : append_feed_forward(builder, normed, sizes);
    output = builder.apply(Kind::Add, "add2", {normed, output}, "bsd,bsd->bsd");
    input = builder.layer_norm("norm2", output);
  }
  builder.begin_layer(sizes.layers + 1, "head.");
  return input;
}

void build_plain(Builder& builder, const MoeSizes& sizes, std::uint64_t batch)
{
  const std::size_t input = builder.source(Kind::Data, "x", {batch, sizes.sequence, sizes.hidden});
  const std::size_t output = append_layers(builder, input, sizes, {});
  builder.finish(builder.apply(Kind::Sum, "sum", {output}, "bsd->"));
}

void build_bert(Builder& builder, const MoeSizes& sizes, std::uint64_t batch)
{
  const std::uint64_t sequence = sizes.sequence;
  const std::size_t input = builder.source(Kind::Data, "x", {batch, sequence});
  const std::size_t target = builder.source(Kind::Data, "y", {batch, sequence});
  const std::size_t table = builder.parameter("embedding.weight", {sizes.vocabulary, sizes.hidden});
  std::size_t state = builder.apply(Kind::Embedding, "embedding", {input, table}, "bs,Vd->bsd");
  state = builder.apply(Kind::Scale, "scale", {state}, "bsd->bsd");
  std::optional<std::size_t> mask;
  if (sizes.parity) mask = builder.source(Kind::CausalMask, "mask", {sequence, sequence});
  const std::size_t positions = builder.source(Kind::Positions, "positions", {1, sequence, sizes.hidden});
  state = builder.apply(Kind::Add, "add", {state, positions}, "bsd,Osd->bsd");
  state = append_layers(builder, state, sizes, mask);
  state = builder.linear("linear", state, sizes.vocabulary, "bsi,oi,o->bso");
  state = builder.apply(Kind::LogSoftmax, "log_softmax", {state}, "bsV->bsV");
  state = builder.apply(Kind::Transpose, "transpose", {state}, "bsd->bds");
  builder.finish(builder.apply(Kind::NllSum, "nll_sum", {state, target}, "bVs,bs->"));
}

void build_vit(Builder& builder, const MoeSizes& sizes, std::uint64_t batch)
{
  constexpr std::uint64_t channels = 3;
  const auto [hidden, patch, side] = std::tuple(sizes.hidden, sizes.patch, sizes.image / sizes.patch);
  const std::size_t input = builder.source(Kind::Data, "x", {batch, channels, sizes.image, sizes.image});
  const std::size_t target = builder.source(Kind::Data, "y", {batch});
  const std::size_t kernel = builder.parameter("patches.weight", {hidden, channels, patch, patch});
  const std::size_t bias = builder.parameter("patches.bias", {hidden});
  std::size_t state = builder.apply(Kind::Convolution, "patches", {input, kernel, bias}, "bCHW,oCKL,o->boXY",
                                    {{'X', side}, {'Y', side}});
  state = builder.apply(Kind::Flatten, "flatten", {state}, "boXY->boT", {{'T', side * side}});
  state = builder.apply(Kind::Transpose, "transpose", {state}, "bds->bsd");
  const std::size_t token = builder.parameter("class_token", {1, 1, hidden});
  state = builder.apply(Kind::PrependClass, "prepend_class", {state, token}, "bPd,OOd->bSd", {{'S', sizes.sequence}});
  const std::size_t positions = builder.parameter("positions", {1, sizes.sequence, hidden});
  state = builder.apply(Kind::Add, "add", {state, positions}, "bsd,Osd->bsd");
  state = append_layers(builder, state, sizes, {});
  state = builder.apply(Kind::TakeClass, "take_class", {state}, "bSd->bd");
  state = builder.linear("linear", state, sizes.classes, "bi,oi,o->bo");
  state = builder.apply(Kind::LogSoftmax, "log_softmax", {state}, "bV->bV");
  builder.finish(builder.apply(Kind::NllSum, "nll_sum", {state, target}, "bV,b->"));
}

}  // namespace

OperatorGraph make_operator_graph(const MoeSizes& sizes, std::uint64_t batch, double element_bytes)
{
  Builder builder(element_bytes, sizes);
  builder.begin_layer(0, "embedding.");
  switch (sizes.trunk) {
    case Trunk::Plain:
      build_plain(builder, sizes, batch);
      break;
    case Trunk::Bert:
      build_bert(builder, sizes, batch);
      break;
    case Trunk::Vit:
      build_vit(builder, sizes, batch);
      break;
  }
  return builder.take();
}

}  // namespace isobar::spmd
