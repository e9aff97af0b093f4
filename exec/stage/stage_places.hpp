#pragma once

#include "exec/files/tensor_source.hpp"
#include "exec/stage/stage_parameters.hpp"

#include <cstddef>
#include <string>
#include <vector>

/// The places of a StageModel's parameters and gradients. Internal to exec/model.
namespace isobar::exec {

/// Brings a stage's parameters from the machine into places for passes and back, lets passes use places, and knows
/// which gradients wait on the machine for an update.
class StagePlaces {
 public:
  /// `parameters` and `options` must outlive it.
  StagePlaces(const StageParameters& parameters, const StageOptions& options);
  StagePlaces(const StagePlaces&) = delete;
  StagePlaces& operator=(const StagePlaces&) = delete;

  // As in StageModel:
  PlaceSize size_of_parameters() const;
  PlaceSize size_of_gradients() const;
  void load_parameters(const Place& place) const;
  void refresh_parameters() const;
  void store_parameters(const Place& place) const;
  void use_parameters(const Place& place) const;
  void use_gradients(const Place& place) const;
  void show_waiting_gradients(const Place* gradients) { waiting_gradients_ = gradients; }
  bool take_waiting_gradients(const Place& gradients);

  /// The gradients that wait, as checkpoints store them; none if there are none.
  std::vector<StoredTensor> stored_gradients() const;
  /// Reads those for take_waiting_gradients, if updates of the stage are delayed.
  void restore_gradients(const TensorSource& source);

 private:
  Tensors in_place() const;
  bool uses_matrix_that_passes() const;
  const at::Tensor& machines_matrix() const;
  std::string name_of_waiting(std::size_t parameter) const;

  const StageParameters& parameters_;
  const StageOptions& options_;
  const Place* waiting_gradients_ = nullptr;
  Tensors restored_gradients_;  // that wait; none or of all parameters
};

}  // namespace isobar::exec
