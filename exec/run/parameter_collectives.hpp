#pragma once

#include "core/program/program.hpp"
#include "exec/device/tensors.hpp"
#include "exec/model/stage_model.hpp"
#include "exec/run/rank_stages.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace isobar::exec {

/// A rank's part in the collectives of gradients, of what clipping and loss scaling need of them, and of parameters
/// that replicas divide. Between the last backward of a stage, for which its first collective waits, and its update,
/// which waits for them, the compute lane leaves the model alone.
class ParameterCollectives {
 public:
  /// `stages` must outlive this. `device`: of its models.
  ParameterCollectives(const RankStages& stages, std::string device) : stages_(stages), device_(std::move(device)) {}

  /// Makes a collective of tensors, which may be none, as an instruction says (Transport::collective).
  using Collective = std::function<void(const Instruction& instruction, const Tensors& tensors)>;
  void run(const Instruction& instruction, const Channel& channel, const Collective& collective);

  /// Takes the facts of all stages of this rank, which is the only one.
  void take_own_facts() { facts_ = own_facts(); }
  /// Of the gradients of all stages.
  const GradientFacts& facts() const { return facts_; }
  /// The loss of the step, a scalar, once the replicas of the last stage have added it up.
  const Tensors& loss() const { return loss_; }

 private:
  void reduce_facts(const Instruction& instruction, const Collective& collective);
  void reduce_gradients(Instruction instruction, const Channel& channel, const Collective& collective);
  void gather_parameters(const Instruction& instruction, const Collective& collective);
  bool is_among_shards(std::uint32_t stage, const Channel& channel) const;
  Tensors gradients_of(std::uint32_t stage, const Channel& channel) const;
  GradientFacts own_facts() const;

  const RankStages& stages_;
  std::string device_;
  GradientFacts facts_;
  Tensors loss_;
};

}  // namespace isobar::exec
