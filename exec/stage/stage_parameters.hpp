#pragma once

#include "core/model/workload.hpp"
#include "exec/device/place.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/files/tensor_part.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/stage/stage_model.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// The parameters of a StageModel. Internal to exec/model.
namespace isobar::exec {

/// The layers of a stage, their parameters, and which of these this replica updates: all, its own part, or their copies
/// on the machine.
class StageParameters {
 public:
  /// `matrix_owner`: those of StageOptions::has_matrix; null if there is none. All arguments must outlive this.
  StageParameters(const Workload& workload, const StageOptions& options, StageParameters* matrix_owner);
  StageParameters(const StageParameters&) = delete;
  StageParameters& operator=(const StageParameters&) = delete;

  LayerModule& module(std::size_t layer) const { return *modules_.at(layer - options_.first_layer); }
  /// What failures call a layer.
  const std::string& name_of_layer(std::size_t layer) const { return layer_names_.at(layer - options_.first_layer); }

  /// The parameters of all layers; others name them by their index here.
  const Tensors& all() const { return all_; }
  /// The name in checkpoints.
  const std::string& name(std::size_t parameter) const { return names_[parameter]; }
  /// What it is of the whole parameter.
  const TensorPart& part(std::size_t parameter) const { return parts_[parameter]; }
  /// Whether it is a part of a parameter of experts, which replicas divide.
  bool is_of_experts(std::size_t parameter) const { return of_experts_[parameter] != nullptr; }
  /// What its experts are of the whole parameter, of whose matrices `part` is then; null of others.
  const TensorPart* part_of_experts(std::size_t parameter) const { return of_experts_[parameter]; }
  /// Whether this replica is the first one that has the parameter, or this part of it.
  bool is_of_first_replica(std::size_t parameter) const
  {
    return options_.replica < (is_of_experts(parameter) ? workload_.experts.degree : 1);
  }
  /// Whether it is a copy of a matrix of another stage, which writes it.
  bool is_copy(std::size_t parameter) const { return copy_ == parameter; }
  /// Whether it is the parameter of all shards.
  bool is_shared(std::size_t parameter) const { return shared_[parameter]; }
  /// This replica's part of the parameters.
  const std::vector<TensorSlice>& own() const { return own_; }
  /// What this replica updates: that part if it is divided, else all parameters, or the machine's.
  const Tensors& updated() const { return updated_; }
  /// The parameter that two layers use; null if there is none.
  const at::Tensor* tied_matrix() const { return tied_matrix_; }
  const StageParameters* matrix_owner() const { return matrix_owner_; }

  bool is_first_shard() const { return options_.shard == 0; }
  /// How many shards a replica has whose shards have equal parts, as where devices divide experts.
  std::size_t equal_shards() const { return options_.units.all / (options_.units.end - options_.units.begin); }
  /// Whether this replica updates its own part only.
  bool is_divided() const { return options_.sites.size() > 1 && options_.sync.sharded != Sharding::None; }
  /// How often a step changes parameters: by an update, or by what replicas gather after it.
  std::size_t updates() const;
  bool divides_gradients() const { return is_divided() && options_.sync.sharded >= Sharding::Gradients; }
  /// Then parameters have no memory but while they are used, and `updated` has the own part.
  bool divides_parameters() const { return is_divided() && options_.sync.sharded >= Sharding::Parameters; }
  bool is_updated_by_machine() const { return options_.residence.optimizer != Tier::Device; }
  /// Whether parameters have no memory on the device but in a place.
  bool passes() const { return options_.residence.parameters != Tier::Device; }
  /// Where those lie that the machine updates. Only if it does.
  const Place& on_machine() const { return *on_machine_; }

  // As in StageModel:
  Tensors gradients();
  Tensors gradients(const UnitRange& units);
  Tensors divided_tied_gradient();
  Tensors tied_gradient();
  Tensors expert_gradients();
  Tensors shared_gradients();
  void keep_own_gradients(bool of_experts);
  Tensors gather(bool of_experts);
  Tensors gather_tied();
  std::string not_finite() const;

  /// Frees the parameters that were gathered for a pass.
  void end_use();
  /// Lets `write` change the parameters begin..end-1, and copies their new values to what is updated of them.
  void change(std::size_t begin, std::size_t end, const std::function<void()>& write);

 private:
  std::unique_ptr<LayerModule> make_module(std::size_t layer);
  bool is_on_all_shards(std::size_t layer, std::size_t parameter) const;
  /// Of a layer that is an operator.
  const HeldParameter& held(std::size_t layer) const { return options_.operators.at(layer - options_.first_layer); }
  const LayerModule* module_tied_to(std::size_t layer);
  void take_parameter(const at::Tensor& parameter);
  void keep_on_machine();
  void change_on_machine(std::size_t begin, std::size_t end, const std::function<void()>& write);
  std::size_t parameters_of_layers() const;
  std::size_t size_of_tied() const;
  /// Whether replicas divide the parameter by itself.
  bool is_divided_alone(std::size_t parameter) const { return is_divided() && tied_ == parameter; }
  std::size_t values_among(bool of_experts) const;
  /// Whether other replicas have the same experts.
  bool has_copies() const { return options_.sites.size() > workload_.experts.degree; }
  /// Whether a parameter is among those that replicas add up or gather together; experts that no other replica has are
  /// among the others.
  bool is_among(bool of_experts, std::size_t parameter) const
  {
    return (is_of_experts(parameter) && has_copies()) == of_experts;
  }
  std::vector<TensorPart> parts_of_one_unit(std::size_t layer) const;
  at::Tensor gradient_or_zeros(std::size_t parameter);

  const Workload& workload_;
  const StageOptions& options_;
  StageParameters* matrix_owner_;
  std::vector<std::string> layer_names_;
  std::vector<std::unique_ptr<LayerModule>> modules_;
  Tensors all_;
  const at::Tensor* tied_matrix_ = nullptr;
  std::vector<std::string> names_;
  std::vector<TensorPart> parts_;
  std::vector<const TensorPart*> of_experts_;  // of the modules
  std::vector<bool> shared_;
  std::optional<std::size_t> tied_;  // the parameter that is the matrix of StageOptions::tied_layer
  std::optional<std::size_t> copy_;  // that parameter, if another stage writes it
  std::vector<TensorSlice> own_;
  std::optional<Place> on_machine_;
  Tensors updated_;
};

}  // namespace isobar::exec
