#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/residence.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/device/message.hpp"
#include "exec/device/place.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/model/loss.hpp"
#include "exec/spmd/tensor_block.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

class ExchangedPasses;
class StageModel;

/// What a rank holds of a parameter that is a layer of its own.
struct HeldParameter {
  TensorBlock block;          ///< all, or a slice, which may be empty
  bool is_replicated = true;  ///< whether every rank holds it all
};

/// What one stage trains.
struct StageOptions {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;           ///< inclusive
  std::vector<std::size_t> recomputed;  ///< layers that keep only their input until the backward pass, sorted
  std::uint64_t microbatches = 1;       ///< per step, of all replicas; each one's loss counts 1/microbatches
  Sync sync;                            ///< of the replicas
  std::size_t replica = 0;
  std::vector<std::string> sites = {""};  ///< of the replicas
  std::size_t shard = 0;
  UnitRange units = {};           ///< that the shard computes of the layer; a stage of several shards has one
  bool has_shards = false;        ///< whether a replica has several
  bool is_divided_alike = true;   ///< whether the replicas have as many shards with the same units
  bool divides_sequence = false;  ///< whether activations between layers are divided among the shards
  /// Where layers are operators, by layer: what this rank holds of a parameter. Otherwise empty.
  std::vector<HeldParameter> operators = {};
  bool splits_backward = false;  ///< whether backward passes are split in two
  std::uint64_t seed = 1;
  std::string device = "cpu";            ///< "cpu", "cuda:0"
  const BatchSource* batches = nullptr;  ///< source of labels; last stage only
  Residence residence = {};
  MemoryMeter* machine_memory = nullptr;  ///< counts what is on the machine; set if the optimizer is not on the device
  /// A layer that has a matrix of which stages on other ranks have one, too: its first parameter, or the last one of a
  /// layer with a copy (Layer::has_tied_copy); none if there is none.
  std::optional<std::size_t> tied_layer = {};
  /// The stage of the same rank whose matrix this one uses, too, and which outlives it; null if there is none.
  StageModel* has_matrix = nullptr;
};

/// Sums over all parameters of all stages, in their order, which the stages all-reduce before an update if
/// needs_gradient_sync(workload).
struct GradientFacts {
  double sum_of_squares = 0;  ///< of the gradients, without the loss scale
  double not_finite = 0;      ///< number of parameters with a gradient that is not finite

  bool finite() const { return not_finite == 0; }
};

/// Trains the layers of one stage: forward and backward per micro-batch, then one update. Not thread-safe, except for
/// `count`.
///
/// That of a shard makes addends: of the outputs, of the gradients of the inputs and of the gradients of the parameters
/// that all shards share, for the caller to add up over the shards. In the last stage its outputs are the statistics of
/// its part of the logits, for the caller to gather, float32 [shards, ...], and to give to the backward pass.
///
/// A stage whose optimizer lives on the machine has parameters there too. The machine updates those, and they are what
/// is stored and restored. Those on the device are copies, in memory of their own or in a place, and gradients are in a
/// place. The caller names the places before each pass and calls for the copies.
///
/// With fp16 the loss is scaled by 2^16. The scale is halved when a gradient is not finite, which also skips the
/// update, and doubled after 2,000 good steps. All stages see the same facts and so keep the same scale (Micikevicius
/// et al. 2018, "Mixed Precision Training", section 3.2).
class StageModel {
 public:
  StageModel(const Workload& workload, const StageOptions& options);
  ~StageModel();
  StageModel(const StageModel&) = delete;
  StageModel& operator=(const StageModel&) = delete;

  /// Computes the stage's outputs and keeps what the backward pass needs. The first stage's inputs are a micro-batch's
  /// data. The last stage computes the loss and returns an empty message; that of a shard statistics.
  Message forward(std::uint64_t step, std::uint64_t microbatch, Message inputs);
  /// Gives a micro-batch its inputs again, before its backward pass: whole ones have no memory after its forward pass.
  /// Only with StageOptions::divides_sequence, and not in the first stage.
  void restore_inputs(std::uint64_t microbatch, const Message& inputs);
  /// Computes the gradients of parameters, and returns those of the inputs, from those of the outputs that `forward`
  /// returned (none for the last stage; that of a shard takes the gathered statistics, and computes the loss).
  Message backward(std::uint64_t microbatch, const Message& gradients);
  /// The same, but leaves out the gradients of the parameters of matrix products. Keeps the inputs of these products
  /// and the gradients of their outputs. Only with StageOptions::splits_backward.
  Message backward_input(std::uint64_t microbatch, const Message& gradients);
  /// Computes what the `backward_input` of the micro-batch has left out, with the bits of a whole backward pass, and
  /// frees what it kept.
  void backward_weight(std::uint64_t microbatch);
  /// The passes of a stage whose layer is an attention of divided sequences, or has experts that replicas divide, in
  /// place of `forward` and `backward`; null of others.
  ExchangedPasses* exchanged_passes();
  /// The gradients of the parameters that have one, contiguous, in a fixed order; the caller may change their elements.
  /// With sharded gradients or optimizers all parameters must have one. Without those of experts that replicas divide.
  Tensors gradients();
  /// The gradient of the matrix of StageOptions::tied_layer where replicas divide the optimizer, so that `gradients`
  /// lacks it; else empty. Replicas divide it by itself.
  Tensors divided_tied_gradient();
  /// The gradient of that matrix for the caller to add up with those of other stages, once the replicas have: this
  /// replica's part, where they divide it. Empty if it has none.
  Tensors tied_gradient();
  /// Those of the experts of this replica, where replicas divide them; zeros where there is none.
  Tensors expert_gradients();
  /// Views of the gradients of what belongs to some of the units, zeros where there is none; in the order of
  /// `gradients` without the shared ones. Not all are contiguous.
  Tensors gradients(const UnitRange& units);
  /// Those of the parameters that all shards have, zeros where there is none: addends, which the caller replaces by
  /// their sums. Empty if no replica has several shards.
  Tensors shared_gradients();
  /// Call it once `gradients`, or with `of_experts` `expert_gradients`, are summed up over the replicas that have them.
  /// With sharded gradients it frees those of other replicas.
  void keep_own_gradients(bool of_experts);
  /// The parameters, in the order of `gradients`, for the caller to write those of other replicas, whose places are
  /// allocated if parameters are sharded: then call it before each forward and each backward, which frees them.
  /// Those of experts that replicas divide by themselves, with `of_experts`.
  Tensors gather(bool of_experts);
  /// The same of the matrix that `divided_tied_gradient` is of; else empty.
  Tensors gather_tied();
  /// Adds this replica's part of a step's sums: over its own part of the gradients, of those that shards share in the
  /// first one only. The calling thread waits for its own stream of a GPU.
  void add_gradient_facts(std::uint64_t step, GradientFacts& sums);
  /// Keeps that part for `add_gradient_facts`, since the gradients will leave their place. No effect if updates need
  /// none.
  void keep_gradient_facts(std::uint64_t step);
  /// Takes an optimizer step by the gradients of `step`, of the own part only if the optimizer is sharded, and clears
  /// the gradients. `reduced`: the sums over all replicas and stages; used only if needs_gradient_sync(workload).
  void update(std::uint64_t step, const GradientFacts& reduced);

  bool is_updated_by_machine() const;
  /// What the places of such a stage have room for: of the parameters, with a matrix of another stage that passes, too,
  /// of the gradients, and of the optimizer's state.
  PlaceSize size_of_parameters() const;
  PlaceSize size_of_gradients() const;
  PlaceSize size_of_state() const;
  /// Copies the machine's parameters to a place, or to the parameters that live on the device.
  void load_parameters(const Place& place) const;
  void refresh_parameters() const;
  /// Copies the parameters from a place to the machine's.
  void store_parameters(const Place& place) const;
  /// Lets passes use the parameters in a place.
  void use_parameters(const Place& place);
  /// Lets backward passes add up gradients in a place, from zero.
  void use_gradients(const Place& place);
  /// Takes an optimizer step of the machine's parameters by the gradients of `step` in a place, which it may change.
  /// `state`: where the optimizer's state is if it does not live on the host. Needs no other thread to leave the stage
  /// alone, but one that copies these parameters.
  void update_on_machine(std::uint64_t step, const GradientFacts& reduced, const Place& gradients, const Place* state);
  /// Lets the optimizer's state, which does not live on the host, be in a place.
  void use_state(const Place& place);
  /// Copies a state to such a place if it lies elsewhere; returns whether it did.
  bool keep_state_in(const Place& place);
  /// Lets `state` have the gradients in a place, which wait for an update in the next step, too; null: there are none.
  void show_waiting_gradients(const Place* gradients);
  /// Copies to a place the gradients that `restore` has found so; returns whether it has.
  bool take_waiting_gradients(const Place& gradients);
  /// Takes what a micro-batch keeps until its backward pass, of which all layers must be recomputed, and gives it back.
  Message take_kept(std::uint64_t microbatch);
  void give_kept(std::uint64_t microbatch, const Message& kept);

  /// Sum of the losses since the last call over the number of micro-batches of a step, so their mean if all were here:
  /// a float64 scalar on the stage's device. Last stage only; if the replicas are not divided alike, of their first
  /// shards only.
  at::Tensor take_loss();
  /// Forward pass without dropout that keeps nothing, except the last stage's sums over the labels of `batches`. That
  /// of a shard returns statistics, for the caller to gather and to give to `count`.
  Message evaluate(const BatchSource& batches, std::uint64_t step, std::uint64_t microbatch, const Message& inputs);
  /// Adds gathered statistics to the first shard's sums. May run beside other passes.
  void count(const Message& statistics);
  /// Sums since the last call; last stage only, zeros but in the first shard. Waits for the device.
  EvaluationSums take_evaluation();

  /// The parameters, in the order of the layers, for passes outside of this class: those of operators.
  const Tensors& parameters() const;
  /// Those of a layer of the stage, in the same order in every split of the model, without a matrix of another layer.
  Tensors parameters_of(std::size_t layer) const;
  /// The factor of the loss, and so of all gradients: 1 unless the dtype is fp16.
  double loss_scale() const;

  /// Name of a parameter with an element that is not finite; "" if all are finite. Waits for the device.
  std::string not_finite() const;
  /// Copies, complete on return, of everything that training resumes from and that this replica writes: each parameter
  /// as "layers.3.query.weight", its optimizer state as "layers.3.query.weight:exp_avg", and the first stage's fp16
  /// "loss_scale". The first shard of the first replica writes them; of what replicas or shards divide, each writes its
  /// slices (part_name).
  std::vector<StoredTensor> state() const;
  /// Restores such tensors; the stages that wrote them may have had other layers. Optimizer state that is absent keeps
  /// its initial value. @throws InputError naming a tensor that is missing or has another shape or type.
  void restore(const TensorSource& source);
  /// Loads the parameters of a Hugging Face model.
  /// @returns the names of parameters that the model lacks and that keep their initial values: a classifier's.
  /// @throws InputError naming another tensor that is missing, or one that has another shape or type.
  std::vector<std::string> load(const TensorSource& weights);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace isobar::exec
