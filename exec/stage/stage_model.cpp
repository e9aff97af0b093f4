#include "exec/stage/stage_model.hpp"

#include "core/errors.hpp"
#include "exec/stage/context_passes.hpp"
#include "exec/stage/expert_passes.hpp"
#include "exec/stage/stage_model_state.hpp"

#include <ATen/ATen.h>

#include <type_traits>
#include <utility>

namespace isobar::exec {

StageModel::State::State(const Workload& stage_workload, const StageOptions& stage_options)
    : workload(stage_workload),
      options(stage_options),
      matrix_owner(options.has_matrix == nullptr ? nullptr : options.has_matrix->state_.get()),
      parameters(workload, options, matrix_owner == nullptr ? nullptr : &matrix_owner->parameters),
      places(parameters, options),
      update(workload, options, parameters),
      passes(workload, options, parameters, update.loss_scale(),
             matrix_owner == nullptr ? nullptr : &matrix_owner->passes)
{
  for (std::size_t layer = options.first_layer; layer <= options.last_layer; ++layer) {
    const bool divides_experts =
        workload.experts.parts(parameters.equal_shards()) > 1 && workload.layers[layer].experts;
    const bool divides_sequences = workload.context.divides() && parameters.module(layer).attention() != nullptr;
    if (!divides_experts && !divides_sequences) continue;
    ensure(options.first_layer == options.last_layer, "a layer for which devices exchange tensors is a stage");
    const auto make = [&]<typename Passes>(std::type_identity<Passes>) {
      exchanged_passes = std::make_unique<Passes>(workload, options, parameters.module(layer),
                                                  parameters.name_of_layer(layer), parameters.updates());
    };
    divides_experts ? make(std::type_identity<ExpertPasses>()) : make(std::type_identity<ContextPasses>());
  }
}

StageModel::StageModel(const Workload& workload, const StageOptions& options)
    : state_(std::make_unique<State>(workload, options))
{
}
StageModel::~StageModel() = default;

Message StageModel::forward(std::uint64_t step, std::uint64_t microbatch, Message inputs)
{
  Message outputs = state_->passes.forward(step, microbatch, std::move(inputs));
  state_->parameters.end_use();
  return outputs;
}
void StageModel::restore_inputs(std::uint64_t microbatch, const Message& inputs)
{
  state_->passes.restore_inputs(microbatch, inputs);
}
Message StageModel::backward(std::uint64_t microbatch, const Message& gradients)
{
  Message passed = state_->passes.backward(microbatch, gradients);
  state_->parameters.end_use();
  return passed;
}
Message StageModel::backward_input(std::uint64_t microbatch, const Message& gradients)
{
  ensure(state_->options.splits_backward, "a split backward pass was recorded as such");
  Message passed = state_->passes.backward_input(microbatch, gradients);
  state_->parameters.end_use();
  return passed;
}
void StageModel::backward_weight(std::uint64_t microbatch)
{
  state_->passes.backward_weight(microbatch);
}
ExchangedPasses* StageModel::exchanged_passes()
{
  return state_->exchanged_passes.get();
}
Message StageModel::take_kept(std::uint64_t microbatch)
{
  return state_->passes.take_kept(microbatch);
}
void StageModel::give_kept(std::uint64_t microbatch, const Message& kept)
{
  state_->passes.give_kept(microbatch, kept);
}
at::Tensor StageModel::take_loss()
{
  return state_->passes.take_loss();
}
Message StageModel::evaluate(const BatchSource& batches, std::uint64_t step, std::uint64_t microbatch,
                             const Message& inputs)
{
  Message outputs = state_->passes.evaluate(batches, step, microbatch, inputs);
  state_->parameters.end_use();
  return outputs;
}
void StageModel::count(const Message& statistics)
{
  state_->passes.count(statistics);
}
EvaluationSums StageModel::take_evaluation()
{
  return state_->passes.take_evaluation();
}

Tensors StageModel::expert_gradients()
{
  return state_->parameters.expert_gradients();
}
Tensors StageModel::gradients()
{
  return state_->parameters.gradients();
}
Tensors StageModel::divided_tied_gradient()
{
  return state_->parameters.divided_tied_gradient();
}
Tensors StageModel::tied_gradient()
{
  return state_->parameters.tied_gradient();
}
Tensors StageModel::gather_tied()
{
  return state_->parameters.gather_tied();
}
Tensors StageModel::gradients(const UnitRange& units)
{
  return state_->parameters.gradients(units);
}
Tensors StageModel::shared_gradients()
{
  return state_->parameters.shared_gradients();
}
void StageModel::keep_own_gradients(bool of_experts)
{
  state_->parameters.keep_own_gradients(of_experts);
}
Tensors StageModel::gather(bool of_experts)
{
  return state_->parameters.gather(of_experts);
}
bool StageModel::is_updated_by_machine() const
{
  return state_->parameters.is_updated_by_machine();
}
const Tensors& StageModel::parameters() const
{
  return state_->parameters.all();
}
Tensors StageModel::parameters_of(std::size_t layer) const
{
  Tensors own = state_->parameters.module(layer).parameters();
  if (state_->workload.layers[layer].has_tied_copy) own.pop_back();
  return own;
}
double StageModel::loss_scale() const
{
  return state_->update.loss_scale().value();
}
std::string StageModel::not_finite() const
{
  return state_->parameters.not_finite();
}

void StageModel::add_gradient_facts(std::uint64_t step, GradientFacts& sums)
{
  state_->update.add_gradient_facts(step, sums);
}
void StageModel::keep_gradient_facts(std::uint64_t step)
{
  state_->update.keep_gradient_facts(step);
}
void StageModel::update(std::uint64_t step, const GradientFacts& reduced)
{
  state_->update.update(step, reduced);
  // Where each replica updates a part, the others' come after that.
  if (state_->exchanged_passes && !state_->parameters.is_divided()) state_->exchanged_passes->updated(step);
}
void StageModel::update_on_machine(std::uint64_t step, const GradientFacts& reduced, const Place& gradients,
                                   const Place* state)
{
  state_->update.update_on_machine(step, reduced, gradients, state);
}
PlaceSize StageModel::size_of_state() const
{
  return state_->update.size_of_state();
}
void StageModel::use_state(const Place& place)
{
  state_->update.use_state(place);
}
bool StageModel::keep_state_in(const Place& place)
{
  return state_->update.keep_state_in(place);
}

PlaceSize StageModel::size_of_parameters() const
{
  return state_->places.size_of_parameters();
}
PlaceSize StageModel::size_of_gradients() const
{
  return state_->places.size_of_gradients();
}
void StageModel::load_parameters(const Place& place) const
{
  state_->places.load_parameters(place);
}
void StageModel::refresh_parameters() const
{
  state_->places.refresh_parameters();
}
void StageModel::store_parameters(const Place& place) const
{
  state_->places.store_parameters(place);
}
void StageModel::use_parameters(const Place& place)
{
  state_->places.use_parameters(place);
}
void StageModel::use_gradients(const Place& place)
{
  state_->places.use_gradients(place);
}
void StageModel::show_waiting_gradients(const Place* gradients)
{
  state_->places.show_waiting_gradients(gradients);
}
bool StageModel::take_waiting_gradients(const Place& gradients)
{
  return state_->places.take_waiting_gradients(gradients);
}

}  // namespace isobar::exec
