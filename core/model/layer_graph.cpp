#include "core/model/layer_graph.hpp"

#include "core/errors.hpp"

#include <boost/graph/biconnected_components.hpp>
#include <boost/graph/compressed_sparse_row_graph.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

namespace isobar {

namespace {

/// Sums the bytes of the tensors that cross each cut.
class BytesAtCuts {
 public:
  explicit BytesAtCuts(std::size_t cuts) : short_lived_(cuts), change_(cuts + 1), begin_or_end_(cuts + 1) {}

  /// A tensor that crosses cuts first..last; none when last < first.
  void add(std::size_t first, std::size_t last, Bytes size)
  {
    if (last == first) short_lived_[first] += size;
    if (last <= first) return;
    change_[first] += size;
    change_[last + 1] -= size;
    begin_or_end_[first] += 1;
    begin_or_end_[last + 1] -= 1;
  }

  std::vector<Bytes> sums() const
  {
    std::vector<Bytes> sums = short_lived_;
    Bytes alive;
    long tensors = 0;
    for (std::size_t cut = 0; cut < sums.size(); ++cut) {
      alive += change_[cut];
      tensors += begin_or_end_[cut];
      if (tensors == 0) alive = Bytes(0);  // rounding leaves nothing behind
      sums[cut] += alive;
    }
    return sums;
  }

 private:
  std::vector<Bytes> short_lived_;  // tensors that cross one cut; separate, so that a chain's bytes are exact
  std::vector<Bytes> change_;
  std::vector<long> begin_or_end_;
};

/// The last layer that reads each tensor: each layer's output, then the data. For a tensor that no layer reads it is
/// the layer's own index, or 0 for the data.
std::vector<std::size_t> last_readers(const std::vector<Layer>& layers)
{
  std::vector<std::size_t> last(layers.size() + 1);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    last[i] = i;
    if (layers[i].inputs.empty()) last.back() = i;
    for (const std::size_t input : layers[i].inputs) {
      ensure(input < i, "a layer reads only layers before it");
      last[input] = i;
    }
  }
  return last;
}

}  // namespace

Boundaries boundaries_of(const Workload& workload)
{
  const auto& layers = workload.layers;
  const auto last = last_readers(layers);
  BytesAtCuts output(layers.size() + 1);
  BytesAtCuts gradient(layers.size() + 1);
  output.add(0, last.back(), workload.input);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    output.add(i + 1, last[i], layers[i].output);
    gradient.add(i + 1, last[i], layers[i].gradient);
  }
  return {output.sums(), gradient.sums()};
}

bool is_chain(const Workload& workload)
{
  const auto& layers = workload.layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& inputs = layers[i].inputs;
    if (i == 0 ? !inputs.empty() : inputs.size() != 1 || inputs.front() != i - 1) return false;
  }
  return true;
}

std::vector<std::size_t> chain_cuts(const Workload& workload)
{
  const auto& layers = workload.layers;
  std::vector<std::size_t> cuts;
  if (is_chain(workload)) {
    for (std::size_t i = 1; i < layers.size(); ++i) cuts.push_back(i);
    return cuts;
  }

  // With the data as a source before all layers, and a sink after every output that no layer reads, each layer lies on
  // a path from source to sink. So a layer whose removal disconnects the graph lies on all such paths: every earlier
  // layer feeds it, and every later one descends from it.
  const std::size_t source = layers.size();
  const std::size_t sink = source + 1;
  std::vector<std::pair<std::size_t, std::size_t>> edges;
  std::vector<bool> is_read(layers.size());
  auto connect = [&](std::size_t a, std::size_t b) {
    edges.emplace_back(a, b);
    edges.emplace_back(b, a);
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].inputs.empty()) connect(source, i);
    for (const std::size_t input : layers[i].inputs) {
      ensure(input < i, "a layer reads only layers before it");
      connect(input, i);
      is_read[input] = true;
    }
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!is_read[i]) connect(i, sink);
  }

  // Boost's depth-first search keeps its own stack (unless BOOST_RECURSIVE_DFS is defined), so depth is no limit.
  using Graph = boost::compressed_sparse_row_graph<boost::directedS>;
  const Graph graph(boost::edges_are_unsorted_multi_pass, edges.begin(), edges.end(), layers.size() + 2);
  boost::articulation_points(graph, std::back_inserter(cuts));
  for (auto& cut : cuts) ++cut;  // the cut is after the layer
  std::erase_if(cuts, [&](std::size_t cut) { return cut >= layers.size(); });
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

namespace {

/// The times of blocks of layers, whose first ones `cuts` lists, with the end of the last.
std::vector<LayerTimes> sums_between(const std::vector<LayerTimes>& layers, const std::vector<std::size_t>& cuts)
{
  std::vector<LayerTimes> blocks;
  for (std::size_t block = 0; block + 1 < cuts.size(); ++block) {
    LayerTimes& sum = blocks.emplace_back();
    for (std::size_t i = cuts[block]; i < cuts[block + 1]; ++i) sum += layers[i];
  }
  return blocks;
}

/// Lets a layer of the chain use the matrix that one of the layers before `end` from `first` on uses of another block.
void take_tie(const Workload& workload, std::size_t first, std::size_t end, const std::vector<std::size_t>& cuts,
              Layer& sum)
{
  sum.tied_to.reset();
  sum.tied_parameters = 0;
  for (std::size_t i = first; i < end; ++i) {
    const auto& tied_to = workload.layers[i].tied_to;
    if (!tied_to || *tied_to >= first) continue;
    const auto after = std::upper_bound(cuts.begin(), cuts.end(), *tied_to);
    const auto owner = static_cast<std::size_t>(after - cuts.begin()) - 1;
    ensure(!sum.tied_to || sum.tied_to == owner, "neighbouring layers use one matrix of earlier ones");
    sum.tied_to = owner;
    sum.tied_parameters = workload.layers[i].tied_parameters;
  }
}

}  // namespace

namespace {

/// A workload as the chain that these cuts leave.
ChainView view_between(const Workload& workload, std::vector<std::size_t> cuts)
{
  ChainView view;
  view.workload = workload;
  view.first_layer = std::move(cuts);
  view.first_layer.insert(view.first_layer.begin(), 0);
  view.first_layer.push_back(workload.layers.size());
  const std::size_t blocks = view.first_layer.size() - 1;
  if (is_chain(workload) && blocks == workload.layers.size()) return view;

  const auto boundaries = boundaries_of(workload);
  view.workload.layers.clear();
  for (auto& [type, own] : view.workload.times) own = sums_between(own, view.first_layer);
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t first = view.first_layer[block];
    const std::size_t end = view.first_layer[block + 1];
    Layer sum = workload.layers[first];
    for (std::size_t i = first + 1; i < end; ++i) {
      const Layer& layer = workload.layers[i];
      sum.forward += layer.forward;
      sum.backward += layer.backward;
      sum.backward_weight += layer.backward_weight;
      if (layer.update) sum.update = sum.update.value_or(Flops(0)) + *layer.update;
      sum.parameters += layer.parameters;
      sum.activations += layer.activations;
      sum.workspace = std::max(sum.workspace, layer.workspace);
      sum.sky_memory += layer.sky_memory;
    }
    const Layer& last = workload.layers[end - 1];
    if (end - first > 1) {
      sum.name += ".." + last.name;
      sum.split.reset();
    }
    take_tie(workload, first, end, view.first_layer, sum);
    // There is no cut after the last layer: its output is the model's result.
    const bool is_end = end == workload.layers.size();
    sum.output = is_end ? last.output : boundaries.output[end];
    sum.gradient = is_end ? last.gradient : boundaries.gradient[end];
    sum.inputs = block == 0 ? std::vector<std::size_t>{} : std::vector<std::size_t>{block - 1};
    view.workload.layers.push_back(std::move(sum));
  }
  return view;
}

}  // namespace

ChainView chain_view(const Workload& workload)
{
  return view_between(workload, chain_cuts(workload));
}

ChainView chain_view(const Workload& workload, const std::vector<std::size_t>& first_layers)
{
  const auto possible = chain_cuts(workload);
  std::vector<std::size_t> cuts;
  std::set_intersection(possible.begin(), possible.end(), first_layers.begin(), first_layers.end(),
                        std::back_inserter(cuts));
  return view_between(workload, std::move(cuts));
}

}  // namespace isobar
