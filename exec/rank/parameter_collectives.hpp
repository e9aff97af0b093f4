#pragma once

#include "core/program/program.hpp"
#include "exec/device/tensors.hpp"
#include "exec/rank/rank_stages.hpp"
#include "exec/stage/stage_model.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace isobar::exec {

/// A rank's part in the collectives of gradients, of what clipping and loss scaling need of them, and of parameters
/// that replicas divide. Between the last backward of a stage, for which its first collective waits, and its update,
/// which waits for them, the compute lane leaves the model alone.
class ParameterCollectives {
 public:
  /// `stages` must outlive this. `device`: of its models. `divides_experts`: whether its replicas do.
  ParameterCollectives(const RankStages& stages, std::string device, bool divides_experts)
      : stages_(stages), device_(std::move(device)), divides_experts_(divides_experts)
  {
  }

  /// Makes a collective of tensors, which may be none, as an instruction says (Transport::collective).
  using Collective = std::function<void(const Instruction& instruction, const Tensors& tensors)>;
  void run(std::uint64_t step, const Instruction& instruction, const Channel& channel, const Collective& collective);

  /// Of the gradients of all stages in a step, which is not over yet or the last one, once their ranks have added them
  /// up. Thread-safe.
  GradientFacts facts(std::uint64_t step);
  /// The same where this rank is the only one: those of its own stages, as they are at the first call of a step.
  GradientFacts own_facts(std::uint64_t step);
  /// The loss of the step, a scalar, once the replicas of the last stage have added it up.
  const Tensors& loss() const { return loss_; }

 private:
  void reduce_facts(std::uint64_t step, const Instruction& instruction, const Collective& collective);
  void reduce_gradients(std::uint64_t step, Instruction instruction, const Channel& channel,
                        const Collective& collective);
  void gather_parameters(std::uint64_t step, const Instruction& instruction, const Channel& channel,
                         const Collective& collective);
  bool is_among_shards(std::uint32_t stage, const Channel& channel) const;
  bool is_of_experts(std::uint32_t stage, const Channel& channel) const;
  Tensors gradients_of(std::uint32_t stage, const Channel& channel) const;
  GradientFacts measured_facts(std::uint64_t step) const;
  void keep(std::uint64_t step, const GradientFacts& facts);

  const RankStages& stages_;
  std::string device_;
  bool divides_experts_;
  std::mutex mutex_;
  std::map<std::uint64_t, GradientFacts> facts_;  // of the last steps
  Tensors loss_;
};

}  // namespace isobar::exec
