#include "exec/stage/stage_places.hpp"

#include "exec/device/tensor_slices.hpp"
#include "exec/stage/stored_tensors.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace isobar::exec {

StagePlaces::StagePlaces(const StageParameters& parameters, const StageOptions& options)
    : parameters_(parameters), options_(options)
{
}

/// What is in the stage's place for parameters: they, and the matrix of another stage that is in none of its own.
Tensors StagePlaces::in_place() const
{
  Tensors tensors = parameters_.all();
  if (uses_matrix_that_passes()) tensors.push_back(*parameters_.tied_matrix());
  return tensors;
}

bool StagePlaces::uses_matrix_that_passes() const
{
  const StageParameters* const owner = parameters_.matrix_owner();
  return owner != nullptr && owner->passes();
}

/// What the machine updates of the matrix of another stage.
const at::Tensor& StagePlaces::machines_matrix() const
{
  const StageParameters& owner = *parameters_.matrix_owner();
  const auto is_it = [&](const at::Tensor& parameter) { return parameter.is_same(*parameters_.tied_matrix()); };
  return owner.updated()[static_cast<std::size_t>(std::find_if(owner.all().begin(), owner.all().end(), is_it) -
                                                  owner.all().begin())];
}

PlaceSize StagePlaces::size_of_parameters() const
{
  return Layout(in_place()).size;
}

PlaceSize StagePlaces::size_of_gradients() const
{
  return Layout(parameters_.all()).size;
}

void StagePlaces::load_parameters(const Place& place) const
{
  copy_memory(parameters_.on_machine(), place, Layout(parameters_.all()).size.extent);
  if (!uses_matrix_that_passes()) return;
  copy_memory(machines_matrix(), place.tensors(in_place()).back());
}

void StagePlaces::refresh_parameters() const
{
  const Tensors& all = parameters_.all();
  for (std::size_t i = 0; i < all.size(); ++i) copy_memory(parameters_.updated()[i], alias_of(all[i]));
}

void StagePlaces::store_parameters(const Place& place) const
{
  copy_memory(place, parameters_.on_machine(), Layout(parameters_.all()).size.extent);
}

void StagePlaces::use_parameters(const Place& place) const
{
  const Tensors tensors = in_place();
  const Tensors memory = place.tensors(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) use_memory(tensors[i], memory[i]);
}

void StagePlaces::use_gradients(const Place& place) const
{
  place.fill(0);
  const Tensors& all = parameters_.all();
  const Tensors memory = place.tensors(all);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].mutable_grad() = memory[i];
}

bool StagePlaces::take_waiting_gradients(const Place& gradients)
{
  const Tensors restored = std::exchange(restored_gradients_, {});
  if (restored.size() != parameters_.all().size()) return false;
  const Tensors memory = gradients.tensors(parameters_.all());
  for (std::size_t i = 0; i < restored.size(); ++i) copy_memory(restored[i], memory[i]);
  return true;
}

std::string StagePlaces::name_of_waiting(std::size_t parameter) const
{
  return parameters_.name(parameter) + ":waiting_gradient";
}

std::vector<StoredTensor> StagePlaces::stored_gradients() const
{
  std::vector<StoredTensor> gradients;
  if (waiting_gradients_ == nullptr) return gradients;
  const Tensors waiting = waiting_gradients_->tensors(parameters_.all());
  for (std::size_t i = 0; i < waiting.size(); ++i) gradients.push_back(stored(name_of_waiting(i), waiting[i]));
  return gradients;
}

void StagePlaces::restore_gradients(const TensorSource& source)
{
  if (!parameters_.is_updated_by_machine() || options_.residence.overlap != UpdateOverlap::Delayed) return;
  for (std::size_t i = 0; i < parameters_.all().size(); ++i) {
    if (source.find(name_of_waiting(i)) == nullptr) continue;
    restored_gradients_.push_back(
        read_tensor(source, {name_of_waiting(i), ElementType::F32, parameters_.part(i).shape}));
  }
}

}  // namespace isobar::exec
