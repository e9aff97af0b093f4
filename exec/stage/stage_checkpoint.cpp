// What StageModel stores in checkpoints and restores and loads from files.

#include "exec/device/tensor_slices.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/stage/stage_model.hpp"
#include "exec/stage/stage_model_state.hpp"
#include "exec/stage/stored_tensors.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <iterator>
#include <utility>

namespace isobar::exec {

std::vector<StoredTensor> StageModel::state() const
{
  const StageParameters& parameters = state_->parameters;
  const StageUpdate& update = state_->update;
  const Tensors& updated = parameters.updated();
  const bool is_divided = parameters.is_divided();
  const bool divides_parameters = parameters.divides_parameters();
  const bool is_first_shard = parameters.is_first_shard();
  const bool is_first = state_->options.replica == 0;
  std::vector<StoredTensor> all;
  // Of values begin..end-1 of a parameter.
  const auto add = [&](std::size_t index, std::size_t begin, std::size_t end, std::vector<StoredTensor> tensors) {
    const TensorPart* const of_experts = parameters.part_of_experts(index);
    TensorPart part = parameters.part(index);
    // A part of a part has one dimension.
    if (of_experts != nullptr) part.shape = {of_experts->elements()};
    const bool has_first_experts = of_experts == nullptr || of_experts->begin == 0;
    for (auto& tensor : tensors) {
      const bool is_one_for_all = tensor.facts.shape.empty();  // the number of steps
      const bool is_first_part = begin == 0 && is_first_shard && has_first_experts && (is_divided || is_first);
      if (is_one_for_all && !is_first_part) continue;
      if (!is_one_for_all && begin == end) continue;  // an empty slice
      if (!is_one_for_all) {
        const auto values = static_cast<std::uint64_t>(parameters.all()[index].numel());
        const auto slice = TensorPart::range(begin, end, part.is_whole() ? part.shape : std::vector{values});
        if (of_experts != nullptr) tensor.facts.name = part_name(tensor.facts.name, *of_experts);
        tensor.facts.name = part_name(part_name(tensor.facts.name, part), slice);
        const bool is_whole = part.is_whole() && slice.is_whole();
        tensor.facts.shape = is_whole ? part.shape : std::vector{slice.elements()};
      }
      all.push_back(std::move(tensor));
    }
  };
  const auto append = [&](std::vector<StoredTensor> tensors) {
    all.insert(all.end(), std::move_iterator(tensors.begin()), std::move_iterator(tensors.end()));
  };
  const auto is_written_elsewhere = [&](std::size_t index) {
    return (parameters.is_shared(index) && !is_first_shard) || parameters.is_copy(index);
  };
  for (std::size_t i = 0; i < parameters.all().size(); ++i) {
    if (is_written_elsewhere(i) || !parameters.is_of_first_replica(i)) continue;
    const at::Tensor& parameter = parameters.all()[i];
    const auto values = static_cast<std::size_t>(parameter.numel());
    if (!divides_parameters) add(i, 0, values, {stored(parameters.name(i), is_divided ? parameter : updated[i])});
    if (!is_divided) add(i, 0, values, update.optimizer().state(parameters.name(i), updated[i]));
  }
  if (is_first) append(state_->places.stored_gradients());
  for (std::size_t i = 0; i < parameters.own().size() && is_divided; ++i) {
    const auto& [index, begin, end] = parameters.own()[i];
    if (is_written_elsewhere(index)) continue;
    add(index, begin, end, update.optimizer().state(parameters.name(index), updated[i]));
    if (divides_parameters) add(index, begin, end, {stored(parameters.name(index), updated[i])});
  }
  if (state_->options.first_layer == 0 && is_first && is_first_shard) append(update.loss_scale().stored());
  return all;
}

void StageModel::restore(const TensorSource& source)
{
  const at::NoGradGuard no_graph;
  StageParameters& parameters = state_->parameters;
  StageUpdate& update = state_->update;
  const Tensors& updated = parameters.updated();
  const bool is_divided = parameters.is_divided();
  for (std::size_t i = 0; i < parameters.all().size(); ++i) {
    const TensorPart& part = parameters.part(i);
    const TensorPart* const of_experts = parameters.part_of_experts(i);
    parameters.change(i, i + 1, [&] {
      const at::Tensor& parameter = parameters.all()[i];
      parameter.copy_(read_part(source, parameters.name(i), of_experts, part).view_as(parameter));
    });
    if (!is_divided) update.optimizer().restore(source, parameters.name(i), of_experts, part, updated[i], 0);
  }
  update.keep_state_on_host();
  state_->places.restore_gradients(source);
  for (std::size_t i = 0; i < parameters.own().size() && is_divided; ++i) {
    const auto& [index, begin, end] = parameters.own()[i];
    update.optimizer().restore(source, parameters.name(index), parameters.part_of_experts(index),
                               parameters.part(index), updated[i], begin);
  }
  update.loss_scale().restore(source);
}

std::vector<std::string> StageModel::load(const TensorSource& weights)
{
  std::vector<std::string> missing;
  std::size_t begin = 0;  // of the layer's parameters
  for (std::size_t layer = state_->options.first_layer; layer <= state_->options.last_layer; ++layer) {
    auto& module = state_->parameters.module(layer);
    const std::size_t end = begin + module.parameters().size();
    state_->parameters.change(std::exchange(begin, end), end, [&] {
      for (const auto& name : load_weights(state_->workload, layer, weights, module)) {
        missing.push_back(checkpoint_name(layer, name));
      }
    });
  }
  return missing;
}

}  // namespace isobar::exec
