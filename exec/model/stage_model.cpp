#include "exec/model/stage_model.hpp"

#include "core/errors.hpp"
#include "exec/device/device.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/device/place.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/deferred_products.hpp"
#include "exec/model/loss.hpp"
#include "exec/model/recomputed_tensors.hpp"
#include "exec/model/stage_optimizer.hpp"
#include "exec/model/stored_tensors.hpp"

#include <fmt/format.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace isobar::exec {

namespace {

constexpr double first_loss_scale = 65536;
constexpr std::uint64_t good_steps_until_doubled = 2000;

/// Enables autocast to the workload's dtype on this thread while it lives; no effect for float32.
class Autocast {
 public:
  Autocast(DType dtype, at::DeviceType device) : device_(device), enabled_(dtype != DType::Float32)
  {
    if (!enabled_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, dtype == DType::BFloat16 ? at::kBFloat16 : at::kHalf);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast()
  {
    if (!enabled_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }

 private:
  at::DeviceType device_;
  bool enabled_;
};

/// Layers in one piece of autograd's graph: consecutive layers that keep their activations, or one that recomputes
/// them.
struct Segment {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  // inclusive
  bool recomputed = false;
};

/// What a segment, or the loss after the last one, keeps of a micro-batch until its backward pass.
struct Piece {
  Tensors inputs;   // leaves of the graph
  Tensors outputs;  // roots of the graph; empty if it is recomputed
};

struct MicroBatch {
  RandomKey key;
  std::vector<Piece> pieces;
  std::shared_ptr<DeferredProducts> products;     // null unless backward passes are split
  std::shared_ptr<RecomputedTensors> recomputed;  // null unless shards divide the sequence
};

std::vector<Segment> segments_of(const StageOptions& options)
{
  std::vector<Segment> segments;
  for (std::size_t layer = options.first_layer; layer <= options.last_layer; ++layer) {
    const bool recomputed = std::binary_search(options.recomputed.begin(), options.recomputed.end(), layer);
    if (!recomputed && !segments.empty() && !segments.back().recomputed) {
      segments.back().last_layer = layer;
    } else {
      segments.push_back({layer, layer, recomputed});
    }
  }
  return segments;
}

}  // namespace

struct StageModel::State {
  State(const Workload& stage_workload, StageOptions stage_options)
      : workload(stage_workload),
        options(std::move(stage_options)),
        device(options.device),
        segments(segments_of(options))
  {
    for (std::size_t layer = options.first_layer; layer <= options.last_layer; ++layer) {
      places.push_back(fmt::format("layer {} ({})", layer, shown(workload.layers[layer].name)));
      const MemoryPlace place(places.back());
      layers.push_back(
          make_layer_module(workload, layer, options.seed, options.device, options.units, module_tied_to(layer)));
      const auto& parameter_names = layers.back()->parameter_names();
      for (std::size_t i = 0; i < parameter_names.size(); ++i) {
        names.push_back(checkpoint_name(layer, parameter_names[i]));
        parts.push_back(layers.back()->parameter_parts()[i]);
        shared.push_back(options.has_shards && parts_of_one_unit(layer)[i].is_whole());
        take_parameter(layers.back()->parameters()[i]);
      }
    }
    backward_place = fmt::format("the backward pass of layers {} to {}", options.first_layer, options.last_layer);
    weights_place =
        fmt::format("the gradients of the weights of layers {} to {}", options.first_layer, options.last_layer);
    if (!is_divided()) updated = parameters;
    if (is_updated_by_machine()) keep_on_machine();
    ensure(!is_divided() || size_of(parameters) == parameters_of_layers(), "a module has the parameters of its layer");
    if (!updated.empty()) optimizer = std::make_unique<StageOptimizer>(workload, updated);
    if (options.residence.optimizer == Tier::Host) state_on_host.emplace("cpu", size_of_state(), machine_memory());
    if (workload.dtype == DType::Float16) loss_scale = first_loss_scale;
  }

  /// The module whose matrix a layer uses, too; null if there is none, or if it is not of this stage, as in a profile.
  const LayerModule* module_tied_to(std::size_t layer)
  {
    const auto& tied_to = workload.layers[layer].tied_to;
    if (!tied_to) return nullptr;
    State* const has_it = *tied_to >= options.first_layer ? this : matrix_owner();
    if (has_it == nullptr) return nullptr;
    const LayerModule* module = has_it->layers.at(*tied_to - has_it->options.first_layer).get();
    tied_matrix = has_it->tied_matrix = module->parameters().front();
    return module;
  }

  State* matrix_owner() const { return options.has_matrix == nullptr ? nullptr : options.has_matrix->state_.get(); }

  bool is_updated_by_machine() const { return options.residence.optimizer != Tier::Device; }
  /// Whether parameters have no memory on the device but in a place.
  bool passes() const { return options.residence.parameters != Tier::Device; }
  MemoryMeter& machine_memory() const { return *options.machine_memory; }

  /// Makes the machine's parameters of those on the device.
  void keep_on_machine()
  {
    const torch::NoGradGuard no_graph;
    on_machine.emplace("cpu", Layout(parameters).size, machine_memory(), is_gpu(options.device));
    updated = on_machine->tensors(parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      updated[i].copy_(parameters[i]);
      if (passes()) free_memory(parameters[i]);
    }
  }

  /// What is in the stage's place for parameters: they, and the matrix of another stage that is in none of its own.
  Tensors in_place() const
  {
    Tensors tensors = parameters;
    if (uses_matrix_that_passes()) tensors.push_back(tied_matrix);
    return tensors;
  }
  /// What is updated of the matrix that two layers use.
  const at::Tensor& updated_matrix() const
  {
    const auto is_it = [&](const at::Tensor& parameter) { return parameter.is_same(tied_matrix); };
    return updated[static_cast<std::size_t>(std::find_if(parameters.begin(), parameters.end(), is_it) -
                                            parameters.begin())];
  }
  bool uses_matrix_that_passes() const { return matrix_owner() != nullptr && matrix_owner()->passes(); }

  PlaceSize size_of_state() const { return Layout(optimizer ? optimizer->shapes_of_state() : Tensors()).size; }
  Tensors state_in(const Place& place) const { return place.tensors(optimizer->shapes_of_state()); }

  void load_parameters(const Place& place) const
  {
    copy_memory(*on_machine, place, Layout(parameters).size.extent);
    if (!uses_matrix_that_passes()) return;
    copy_memory(matrix_owner()->updated_matrix(), place.tensors(in_place()).back());
  }

  void refresh_parameters() const
  {
    for (std::size_t i = 0; i < parameters.size(); ++i) copy_memory(updated[i], alias_of(parameters[i]));
  }

  void use_parameters(const Place& place) const
  {
    const Tensors tensors = in_place();
    const Tensors memory = place.tensors(tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) use_memory(tensors[i], memory[i]);
  }

  void use_gradients(const Place& place)
  {
    place.fill(0);
    const Tensors memory = place.tensors(parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = memory[i];
  }

  void update_on_machine(const GradientFacts& reduced, const Place& gradients, const Place* state)
  {
    const Tensors memory = gradients.tensors(updated);
    for (std::size_t i = 0; i < updated.size(); ++i) updated[i].mutable_grad() = memory[i];
    const Place* const place = state != nullptr ? state : &*state_on_host;
    if (state != nullptr && optimizer) optimizer->use_state(state_in(*state));
    take_step(reduced);
    if (optimizer) optimizer->keep_state_in(state_in(*place));
    for (const auto& parameter : updated) parameter.mutable_grad().reset();
  }

  std::string name_of_waiting(std::size_t parameter) const { return names[parameter] + ":waiting_gradient"; }

  bool take_waiting_gradients(const Place& gradients)
  {
    const Tensors restored = std::exchange(restored_gradients, {});
    if (restored.size() != parameters.size()) return false;
    const Tensors memory = gradients.tensors(parameters);
    for (std::size_t i = 0; i < restored.size(); ++i) copy_memory(restored[i], memory[i]);
    return true;
  }

  Message take_kept(std::uint64_t microbatch)
  {
    Message kept;
    auto& pieces = in_flight_batches.at(microbatch).pieces;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      for (auto& input : pieces[i].inputs) {
        kept.differentiable.push_back(input.requires_grad());
        kept.tensors.push_back(std::exchange(input, {}).detach());
      }
    }
    return kept;
  }

  void give_kept(std::uint64_t microbatch, const Message& kept)
  {
    Tensors leaves = leaves_of(kept);
    auto next = leaves.begin();
    auto& pieces = in_flight_batches.at(microbatch).pieces;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      for (auto& input : pieces[i].inputs) input = std::move(*next++);
    }
  }

  /// Adds a parameter, and cuts the own part out of it.
  void take_parameter(const at::Tensor& parameter)
  {
    // The values of the sum of the gradients, of which the first is the last stage's part of the loss.
    const std::size_t loss_values = is_last() ? 1 : 0;
    const std::size_t first = loss_values + size_of(parameters);
    // Where sites are not equal, replicas divide nothing but the work of the gradient facts.
    const Algorithm algorithm = are_equal_sites(options.sites) ? options.sync.algorithm : Algorithm::Ring;
    ValueRange range = part_of_end(options.replica, options.sites.size(), loss_values + parameters_of_layers(),
                                   algorithm, options.sites);
    if (!options.is_divided_alike) {
      const std::size_t all = options.replica == 0 ? loss_values + parameters_of_layers() : 0;
      range = {0, all};
    }
    const std::size_t begin = std::max(range.begin, first);
    const std::size_t end = std::min(range.end, first + static_cast<std::size_t>(parameter.numel()));
    if (begin < end) own.push_back({parameters.size(), begin - first, end - first});
    parameters.push_back(parameter);
    if (begin < end && is_divided()) {
      const at::Tensor part = view_of(parameter, own.back());
      updated.push_back(divides_parameters() ? part.clone() : part);
    }
    if (divides_parameters()) free_memory(parameter);
  }

  std::size_t parameters_of_layers() const
  {
    std::size_t count = 0;
    for (std::size_t layer = options.first_layer; layer <= options.last_layer; ++layer) {
      count += parameters_of(workload.layers[layer], options.units);
    }
    return count;
  }

  bool is_shard() const { return !options.units.is_whole(); }
  bool is_first_shard() const { return options.shard == 0; }
  /// Whether it is the parameter of all shards.
  bool is_shared(std::size_t parameter) const { return shared[parameter]; }
  std::vector<TensorPart> parts_of_one_unit(std::size_t layer) const
  {
    return layers[layer - options.first_layer]->parts_of({0, 1, workload.layers[layer].split.value().units});
  }

  bool is_first() const { return options.first_layer == 0; }
  bool is_last() const { return options.last_layer + 1 == workload.layers.size(); }
  /// Whether this replica updates its own part only.
  bool is_divided() const { return options.sites.size() > 1 && options.sync.sharded != Sharding::None; }
  bool divides_gradients() const { return is_divided() && options.sync.sharded >= Sharding::Gradients; }
  /// Then parameters have no memory but while they are used, and `updated` has the own part.
  bool divides_parameters() const { return is_divided() && options.sync.sharded >= Sharding::Parameters; }

  Tensors gather()
  {
    Tensors aliases;
    for (const auto& parameter : parameters) {
      if (divides_parameters()) allocate_memory(parameter);
      aliases.push_back(alias_of(parameter));
    }
    for (std::size_t i = 0; i < own.size() && divides_parameters(); ++i) {
      view_of(aliases[own[i].tensor], own[i]).copy_(updated[i]);
    }
    return aliases;
  }

  /// Frees the parameters that were gathered for a pass.
  void end_use()
  {
    if (!divides_parameters()) return;
    for (const auto& parameter : parameters) free_memory(parameter);
  }

  /// Lets `write` change the parameters begin..end-1, and takes the own part from them.
  void change(std::size_t begin, std::size_t end, const std::function<void()>& write)
  {
    const torch::NoGradGuard no_graph;
    if (is_updated_by_machine()) return change_on_machine(begin, end, write);
    if (!divides_parameters()) return write();
    const auto is_changed = [&](const TensorSlice& slice) { return slice.tensor >= begin && slice.tensor < end; };
    for (std::size_t i = begin; i < end; ++i) allocate_memory(parameters[i]);
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (is_changed(own[i])) view_of(parameters[own[i].tensor], own[i]).copy_(updated[i]);
    }
    write();
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (is_changed(own[i])) updated[i].copy_(view_of(parameters[own[i].tensor], own[i]));
    }
    for (std::size_t i = begin; i < end; ++i) free_memory(parameters[i]);
  }

  void change_on_machine(std::size_t begin, std::size_t end, const std::function<void()>& write)
  {
    for (std::size_t i = begin; i < end; ++i) {
      if (passes()) free_memory(parameters[i]);  // which may be a place
      allocate_memory(parameters[i]);
      copy_memory(updated[i], alias_of(parameters[i]));
    }
    write();
    for (std::size_t i = begin; i < end; ++i) {
      updated[i].copy_(parameters[i]);
      if (passes()) free_memory(parameters[i]);
    }
  }

  /// `products`: records the matrix products, if not null.
  Tensors run(const Segment& segment, const Tensors& inputs, const RandomKey& key,
              const std::shared_ptr<DeferredProducts>& products)
  {
    const Autocast autocast(workload.dtype, device.type());
    const DeferredProducts::Scope scope(products);
    Tensors passed = inputs;
    for (std::size_t layer = segment.first_layer; layer <= segment.last_layer; ++layer) {
      const MemoryPlace place(places[layer - options.first_layer]);
      passed = layers[layer - options.first_layer]->forward(passed, key);
    }
    return passed;
  }

  Message forward(std::uint64_t step, std::uint64_t microbatch, Message passed)
  {
    MicroBatch& in_flight = in_flight_batches[microbatch];
    in_flight = {{options.seed, step, microbatch}, {}, nullptr, nullptr};
    if (options.splits_backward) in_flight.products = std::make_shared<DeferredProducts>();
    if (options.divides_sequence) in_flight.recomputed = std::make_shared<RecomputedTensors>();
    for (const auto& segment : segments) {
      Piece piece{leaves_of(passed), {}};
      const RecomputedTensors::Scope scope(segment.recomputed ? nullptr : in_flight.recomputed.get());
      Tensors outputs = run(segment, piece.inputs, in_flight.key, in_flight.products);
      passed = message_of(outputs);
      if (!segment.recomputed) piece.outputs = std::move(outputs);
      in_flight.pieces.push_back(std::move(piece));
    }
    if (options.divides_sequence) {
      in_flight.recomputed->free();
      const Tensors data = is_first() ? Tensors() : in_flight.pieces.front().inputs;
      for (const auto& input : data) free_memory(input);
    }
    if (!is_last()) return passed;

    Piece loss{leaves_of(passed), {}};
    const at::Tensor labels = options.batches->labels(in_flight.key, options.device);
    if (is_shard()) {
      loss.outputs = {statistics_of(loss.inputs.front(), labels, first_word())};
      in_flight.pieces.push_back(loss);
      return message_of(loss.outputs);
    }
    loss.outputs = {loss_of(loss.inputs, labels)};
    losses.push_back(loss.outputs.front().detach());
    loss.outputs.front() = loss.outputs.front() * (loss_scale / static_cast<double>(options.microbatches));
    in_flight.pieces.push_back(std::move(loss));
    return {};
  }

  void restore_inputs(std::uint64_t microbatch, const Message& message)
  {
    const torch::NoGradGuard no_graph;
    const Tensors& inputs = in_flight_batches.at(microbatch).pieces.front().inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      allocate_memory(inputs[i]);
      alias_of(inputs[i]).copy_(message.tensors.at(i));
    }
  }

  /// The backward pass, apart from what the products of the micro-batch defer.
  Message backward_input(std::uint64_t microbatch, const Message& gradients)
  {
    auto found = in_flight_batches.extract(microbatch);
    ensure(!found.empty(), "a backward pass comes after its forward pass");
    auto& [key, pieces, products, recomputed] = found.mapped();
    if (recomputed) recomputed->restore();
    Message passed = is_last() && is_shard() ? gradient_of_statistics(gradients.tensors.at(0)) : gradients;
    // Of a micro-batch, both gradients of a tied matrix are added up first, as autograd does in one graph.
    at::Tensor earlier;
    if (tied_matrix.defined()) {
      std::swap(earlier, tied_matrix.mutable_grad());
      if (auto other = other_gradients.extract(microbatch)) tied_matrix.mutable_grad() = std::move(other.mapped());
    }
    for (; !pieces.empty(); pieces.pop_back()) {
      Piece& piece = pieces.back();
      const std::size_t i = pieces.size() - 1;
      if (i < segments.size() && segments[i].recomputed) piece.outputs = run(segments[i], piece.inputs, key, products);
      Tensors differentiable;
      for (const auto& output : piece.outputs) {
        if (output.requires_grad()) differentiable.push_back(output);
      }
      const MemoryPlace place(backward_place);
      if (!differentiable.empty()) torch::autograd::backward(differentiable, passed.tensors);
      passed = gradients_of(piece.inputs);
    }
    if (matrix_owner() != nullptr) {
      matrix_owner()->other_gradients[microbatch] = std::exchange(tied_matrix.mutable_grad(), std::move(earlier));
    } else if (earlier.defined()) {
      const torch::NoGradGuard no_graph;
      tied_matrix.mutable_grad() = earlier.add_(tied_matrix.grad());
    }
    if (products) deferred[microbatch] = std::move(products);
    return passed;
  }

  /// The number of the first word of the shard's part of the vocabulary, whose units are words.
  std::uint64_t first_word() const { return options.units.begin; }

  /// Keeps the loss in the shards from which take_loss takes it.
  Message gradient_of_statistics(const at::Tensor& gathered)
  {
    const torch::NoGradGuard no_graph;
    const auto [loss, gradient] = loss_of_parts(gathered, options.shard);
    const bool adds_by_shard = options.sites.size() > 1 && options.is_divided_alike;
    if (is_first_shard() || adds_by_shard) losses.push_back(loss);
    Message message;
    message.tensors = {gradient * (loss_scale / static_cast<double>(options.microbatches))};
    return message;
  }

  void backward_weight(std::uint64_t microbatch)
  {
    const auto found = deferred.extract(microbatch);
    ensure(!found.empty(), "the gradients of weights come after those of the inputs");
    const MemoryPlace place(weights_place);
    found.mapped()->add_gradients();
  }

  Message backward(std::uint64_t microbatch, const Message& gradients)
  {
    Message passed = backward_input(microbatch, gradients);
    if (options.splits_backward) backward_weight(microbatch);
    return passed;
  }

  /// The sum of squares of each own gradient, and whether it is not finite: two float64 tensors on the stage's device.
  Tensors measured_gradients() const
  {
    Tensors squares, not_finite;
    for (std::size_t i = 0; i < own.size(); ++i) {
      at::Tensor gradient = is_divided() ? updated[i].grad() : parameters[own[i].tensor].grad();
      if (!gradient.defined() || (is_shared(own[i].tensor) && !is_first_shard())) continue;
      if (!is_divided()) gradient = view_of(gradient.contiguous(), own[i]);
      squares.push_back(gradient.to(at::kDouble).square().sum());
      not_finite.push_back(at::isfinite(gradient).all().logical_not().to(at::kDouble));
    }
    if (squares.empty()) return {};
    return {at::stack(squares), at::stack(not_finite)};
  }

  void add_facts(std::uint64_t step, GradientFacts& sums)
  {
    const auto kept = [&] {
      const std::lock_guard lock(kept_facts_mutex);
      return kept_facts.extract(step);
    }();
    const Tensors both = on_cpu(kept.empty() ? measured_gradients() : kept.mapped());
    if (both.empty()) return;
    for (std::int64_t i = 0; i < both[0].numel(); ++i) {
      sums.sum_of_squares += both[0][i].item<double>() / (loss_scale * loss_scale);
      sums.not_finite += both[1][i].item<double>();
    }
  }

  void keep_facts(std::uint64_t step)
  {
    Tensors facts = measured_gradients();
    const std::lock_guard lock(kept_facts_mutex);
    kept_facts[step] = std::move(facts);
  }

  /// The optimizer's step by the gradients of what this replica updates.
  void take_step(const GradientFacts& reduced)
  {
    if (optimizer && reduced.finite()) {
      double factor = 1 / loss_scale;
      if (const auto most = workload.training.clip_norm) {
        const double norm = std::sqrt(reduced.sum_of_squares);
        if (norm > *most) factor *= *most / norm;
      }
      if (factor != 1) {
        const torch::NoGradGuard no_graph;
        for (auto& parameter : updated) {
          if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
        }
      }
      optimizer->step();
    }
    if (workload.dtype == DType::Float16) adapt_loss_scale(reduced.finite());
  }

  void update(const GradientFacts& reduced)
  {
    take_step(reduced);
    for (const auto* tensors : {&updated, &parameters}) {
      for (const auto& tensor : *tensors) tensor.mutable_grad().reset();
    }
  }

  void adapt_loss_scale(bool finite)
  {
    good_steps = finite ? good_steps + 1 : 0;
    if (!finite) loss_scale = std::max(1.0, loss_scale / 2);
    if (good_steps == good_steps_until_doubled) {
      loss_scale *= 2;
      good_steps = 0;
    }
  }

  Message evaluate(const BatchSource& batches, const RandomKey& key, const Message& inputs)
  {
    const torch::NoGradGuard no_graph;
    Tensors passed = inputs.tensors;
    for (const auto& segment : segments) passed = run(segment, passed, key, nullptr);
    if (!is_last()) return message_of(passed);
    const auto labels = batches.labels(key, options.device);
    if (is_shard()) return message_of({evaluated_statistics_of(passed.front(), labels, first_word())});
    evaluations.push_back(evaluation_of(passed.front(), labels));
    return {};
  }

  void keep_own_gradients()
  {
    if (!is_divided()) return;
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto slice = view_of(parameters[own[i].tensor].grad(), own[i]);
      updated[i].mutable_grad() = divides_gradients() ? slice.clone() : slice;
    }
    if (!divides_gradients()) return;
    for (const auto& parameter : parameters) parameter.mutable_grad().reset();
  }

  std::vector<StoredTensor> state() const
  {
    std::vector<StoredTensor> all;
    const bool is_first = options.replica == 0;
    // Of values begin..end-1 of a parameter.
    const auto add = [&](std::size_t index, std::size_t begin, std::size_t end, std::vector<StoredTensor> tensors) {
      const TensorPart& part = parts[index];
      for (auto& tensor : tensors) {
        const bool is_one_for_all = tensor.facts.shape.empty();  // the number of steps
        if (is_one_for_all && (begin > 0 || !is_first_shard())) continue;
        if (!is_one_for_all) {
          const auto values = static_cast<std::uint64_t>(parameters[index].numel());
          const auto slice = TensorPart::range(begin, end, part.is_whole() ? part.shape : std::vector{values});
          tensor.facts.name = part_name(part_name(tensor.facts.name, part), slice);
          const bool is_whole = part.is_whole() && slice.is_whole();
          tensor.facts.shape = is_whole ? part.shape : std::vector{slice.elements()};
        }
        all.push_back(std::move(tensor));
      }
    };
    const auto is_written_elsewhere = [&](std::size_t index) { return is_shared(index) && !is_first_shard(); };
    for (std::size_t i = 0; i < parameters.size() && is_first; ++i) {
      if (is_written_elsewhere(i)) continue;
      const auto values = static_cast<std::size_t>(parameters[i].numel());
      if (!divides_parameters()) add(i, 0, values, {stored(names[i], is_divided() ? parameters[i] : updated[i])});
      if (!is_divided()) add(i, 0, values, optimizer->state(names[i], updated[i]));
    }
    const Tensors waiting = waiting_gradients == nullptr ? Tensors() : waiting_gradients->tensors(parameters);
    for (std::size_t i = 0; i < waiting.size() && is_first; ++i) {
      all.push_back(stored(name_of_waiting(i), waiting[i]));
    }
    for (std::size_t i = 0; i < own.size() && is_divided(); ++i) {
      const auto& [index, begin, end] = own[i];
      if (is_written_elsewhere(index)) continue;
      add(index, begin, end, optimizer->state(names[index], updated[i]));
      if (divides_parameters()) add(index, begin, end, {stored(names[index], updated[i])});
    }
    if (workload.dtype == DType::Float16 && options.first_layer == 0 && is_first && is_first_shard()) {
      all.push_back(stored("loss_scale", at::tensor({loss_scale, static_cast<double>(good_steps)}, at::kDouble)));
    }
    return all;
  }

  void restore(const TensorSource& source)
  {
    const torch::NoGradGuard no_graph;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      change(i, i + 1, [&] {
        const auto whole = read_tensor(source, {names[i], ElementType::F32, parts[i].shape});
        parameters[i].copy_(values_of(parts[i], whole).view_as(parameters[i]));
      });
      if (!is_divided()) optimizer->restore(source, names[i], parts[i], updated[i], 0);
    }
    if (state_on_host && optimizer) optimizer->keep_state_in(state_in(*state_on_host));
    const bool updates_late = is_updated_by_machine() && options.residence.overlap == UpdateOverlap::Delayed;
    for (std::size_t i = 0; i < parameters.size() && updates_late; ++i) {
      if (source.find(name_of_waiting(i)) == nullptr) continue;
      restored_gradients.push_back(read_tensor(source, {name_of_waiting(i), ElementType::F32, parts[i].shape}));
    }
    for (std::size_t i = 0; i < own.size() && is_divided(); ++i) {
      optimizer->restore(source, names[own[i].tensor], parts[own[i].tensor], updated[i], own[i].begin);
    }
    if (workload.dtype == DType::Float16 && source.find("loss_scale") != nullptr) {
      const auto scale = read_tensor(source, {"loss_scale", ElementType::F64, {2}});
      loss_scale = scale[0].item<double>();
      good_steps = static_cast<std::uint64_t>(scale[1].item<double>());
    }
  }

  const Workload& workload;
  StageOptions options;
  torch::Device device;
  std::vector<Segment> segments;
  std::vector<std::string> places;  // what failures call the layers
  std::string backward_place;
  std::string weights_place;
  std::vector<std::unique_ptr<LayerModule>> layers;
  Tensors parameters;
  at::Tensor tied_matrix;                               // the parameter that two layers use; undefined if there is none
  std::map<std::uint64_t, at::Tensor> other_gradients;  // of it, by micro-batch, from the stage of the other layer
  std::vector<std::string> names;                       // of the parameters
  std::vector<TensorPart> parts;                        // of the whole parameters
  std::vector<bool> shared;                             // by parameter: all shards have it
  std::vector<TensorSlice> own;                         // this replica's part of the parameters
  std::optional<Place> on_machine;                      // the parameters that the machine updates
  std::optional<Place> state_on_host;                   // of the optimizer
  const Place* waiting_gradients = nullptr;
  Tensors restored_gradients;  // that wait; none or of all parameters
  std::mutex kept_facts_mutex;
  std::map<std::uint64_t, Tensors> kept_facts;  // by step
  Tensors updated;                              // by this replica: that part, or all parameters
  std::unique_ptr<StageOptimizer> optimizer;    // of those; null if there are none
  double loss_scale = 1;
  std::uint64_t good_steps = 0;
  std::map<std::uint64_t, MicroBatch> in_flight_batches;
  std::map<std::uint64_t, std::shared_ptr<DeferredProducts>> deferred;  // between the parts of a split backward pass
  Tensors losses;                                                       // since the last take_loss
  Tensors evaluations;  // since the last take_evaluation: float64 [3], as EvaluationSums
};

StageModel::StageModel(const Workload& workload, const StageOptions& options)
    : state_(std::make_unique<State>(workload, options))
{
}
StageModel::~StageModel() = default;

Message StageModel::forward(std::uint64_t step, std::uint64_t microbatch, Message inputs)
{
  Message outputs = state_->forward(step, microbatch, std::move(inputs));
  state_->end_use();
  return outputs;
}
void StageModel::restore_inputs(std::uint64_t microbatch, const Message& inputs)
{
  state_->restore_inputs(microbatch, inputs);
}
Message StageModel::backward(std::uint64_t microbatch, const Message& gradients)
{
  Message passed = state_->backward(microbatch, gradients);
  state_->end_use();
  return passed;
}
Message StageModel::backward_input(std::uint64_t microbatch, const Message& gradients)
{
  ensure(state_->options.splits_backward, "a split backward pass was recorded as such");
  Message passed = state_->backward_input(microbatch, gradients);
  state_->end_use();
  return passed;
}
void StageModel::backward_weight(std::uint64_t microbatch)
{
  state_->backward_weight(microbatch);
}
Tensors StageModel::gradients()
{
  Tensors gradients;
  for (auto& parameter : state_->parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    ensure(gradient.defined() || !state_->is_divided(), "a parameter of a divided optimizer has a gradient");
    if (!gradient.defined()) continue;
    gradient = gradient.contiguous();
    gradients.push_back(gradient);
  }
  return gradients;
}
Tensors StageModel::gradients(const UnitRange& units)
{
  const auto of_units = state_->layers.front()->parts_of(units);
  Tensors views;
  for (std::size_t i = 0; i < state_->parameters.size(); ++i) {
    if (state_->is_shared(i)) continue;
    at::Tensor& gradient = state_->parameters[i].mutable_grad();
    gradient = gradient.defined() ? gradient.contiguous() : at::zeros_like(state_->parameters[i]);
    const TensorPart& own = state_->parts[i];
    const auto& [shape, begin, end, period] = of_units[i];
    const std::uint64_t first = own.is_whole() ? 0 : own.begin;
    const std::uint64_t width = own.is_whole() ? period : own.end - own.begin;
    views.push_back(gradient.view({-1, static_cast<std::int64_t>(width)})
                        .narrow(1, static_cast<std::int64_t>(begin - first), static_cast<std::int64_t>(end - begin)));
  }
  return views;
}
Tensors StageModel::shared_gradients()
{
  Tensors shared;
  for (std::size_t i = 0; i < state_->parameters.size(); ++i) {
    if (!state_->is_shared(i)) continue;
    at::Tensor& gradient = state_->parameters[i].mutable_grad();
    gradient = gradient.defined() ? gradient.contiguous() : at::zeros_like(state_->parameters[i]);
    shared.push_back(gradient);
  }
  return shared;
}
void StageModel::keep_own_gradients()
{
  state_->keep_own_gradients();
}
Tensors StageModel::gather()
{
  return state_->gather();
}
void StageModel::add_gradient_facts(std::uint64_t step, GradientFacts& sums)
{
  state_->add_facts(step, sums);
}
void StageModel::keep_gradient_facts(std::uint64_t step)
{
  if (needs_gradient_sync(state_->workload)) state_->keep_facts(step);
}
void StageModel::update(const GradientFacts& reduced)
{
  state_->update(reduced);
}

bool StageModel::is_updated_by_machine() const
{
  return state_->is_updated_by_machine();
}
PlaceSize StageModel::size_of_parameters() const
{
  return Layout(state_->in_place()).size;
}
PlaceSize StageModel::size_of_gradients() const
{
  return Layout(state_->parameters).size;
}
PlaceSize StageModel::size_of_state() const
{
  return state_->size_of_state();
}
void StageModel::load_parameters(const Place& place) const
{
  state_->load_parameters(place);
}
void StageModel::refresh_parameters() const
{
  state_->refresh_parameters();
}
void StageModel::store_parameters(const Place& place) const
{
  copy_memory(place, *state_->on_machine, size_of_gradients().extent);
}
void StageModel::use_parameters(const Place& place)
{
  state_->use_parameters(place);
}
void StageModel::use_gradients(const Place& place)
{
  state_->use_gradients(place);
}
void StageModel::update_on_machine(const GradientFacts& reduced, const Place& gradients, const Place* state)
{
  state_->update_on_machine(reduced, gradients, state);
}
void StageModel::use_state(const Place& place)
{
  if (state_->optimizer) state_->optimizer->use_state(state_->state_in(place));
}
bool StageModel::keep_state_in(const Place& place)
{
  return state_->optimizer && state_->optimizer->keep_state_in(state_->state_in(place));
}
void StageModel::show_waiting_gradients(const Place* gradients)
{
  state_->waiting_gradients = gradients;
}
bool StageModel::take_waiting_gradients(const Place& gradients)
{
  return state_->take_waiting_gradients(gradients);
}
Message StageModel::take_kept(std::uint64_t microbatch)
{
  return state_->take_kept(microbatch);
}
void StageModel::give_kept(std::uint64_t microbatch, const Message& kept)
{
  state_->give_kept(microbatch, kept);
}

at::Tensor StageModel::take_loss()
{
  const Tensors losses = std::exchange(state_->losses, {});
  ensure(!losses.empty(), "the last stage has a loss after a step");
  return at::stack(losses).to(at::kDouble).sum() / static_cast<double>(state_->options.microbatches);
}

Message StageModel::evaluate(const BatchSource& batches, std::uint64_t step, std::uint64_t microbatch,
                             const Message& inputs)
{
  Message outputs = state_->evaluate(batches, {state_->options.seed, step, microbatch, /*drops=*/false}, inputs);
  state_->end_use();
  return outputs;
}

void StageModel::count(const Message& statistics)
{
  const torch::NoGradGuard no_graph;
  if (state_->is_first_shard()) state_->evaluations.push_back(evaluation_of(statistics.tensors.at(0)));
}

EvaluationSums StageModel::take_evaluation()
{
  const Tensors sums = std::exchange(state_->evaluations, {});
  if (sums.empty()) return {};
  const auto sum = on_cpu({at::stack(sums).sum(0)}).front();
  return {sum[0].item<double>(), sum[1].item<double>(), sum[2].item<double>()};
}

std::string StageModel::not_finite() const
{
  const torch::NoGradGuard no_graph;
  const bool is_divided = state_->divides_parameters();
  const Tensors& tensors = is_divided || state_->is_updated_by_machine() ? state_->updated : state_->parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (at::isfinite(tensors[i]).all().item<bool>()) continue;
    return state_->names[is_divided ? state_->own[i].tensor : i];
  }
  return "";
}

std::vector<StoredTensor> StageModel::state() const
{
  return state_->state();
}
void StageModel::restore(const TensorSource& source)
{
  state_->restore(source);
}

std::vector<std::string> StageModel::load(const TensorSource& weights)
{
  std::vector<std::string> missing;
  std::size_t begin = 0;  // of the layer's parameters
  for (std::size_t layer = state_->options.first_layer; layer <= state_->options.last_layer; ++layer) {
    auto& module = *state_->layers[layer - state_->options.first_layer];
    const std::size_t end = begin + module.parameters().size();
    state_->change(std::exchange(begin, end), end, [&] {
      for (const auto& name : load_weights(state_->workload, layer, weights, module)) {
        missing.push_back(checkpoint_name(layer, name));
      }
    });
  }
  return missing;
}

}  // namespace isobar::exec
