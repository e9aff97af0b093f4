#include "exec/rank/parameter_collectives.hpp"

#include "exec/device/tensor_slices.hpp"
#include "exec/stage/exchanged_passes.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace isobar::exec {

void ParameterCollectives::run(std::uint64_t step, const Instruction& instruction, const Channel& channel,
                               const Collective& collective)
{
  if (instruction.payload == Payload::GradientFacts) return reduce_facts(step, instruction, collective);
  if (instruction.payload == Payload::TiedGradient) {
    return collective(instruction, stages_.model(instruction.stage).tied_gradient());
  }
  if (instruction.payload == Payload::Parameter) return gather_parameters(step, instruction, channel, collective);
  if (!is_among_shards(instruction.stage, channel)) return reduce_gradients(step, instruction, channel, collective);
  StageModel& model = stages_.model(instruction.stage);
  if (ExchangedPasses* const passes = model.exchanged_passes()) passes->await_gradients();
  collective(instruction, model.shared_gradients());
}

GradientFacts ParameterCollectives::facts(std::uint64_t step)
{
  const std::lock_guard lock(mutex_);
  return facts_.at(step);
}

GradientFacts ParameterCollectives::own_facts(std::uint64_t step)
{
  const std::lock_guard lock(mutex_);
  if (!facts_.contains(step)) keep(step, measured_facts(step));
  return facts_.at(step);
}

void ParameterCollectives::keep(std::uint64_t step, const GradientFacts& facts)
{
  facts_[step] = facts;
  std::erase_if(facts_, [&](const auto& kept) { return kept.first + 2 < step; });
}

void ParameterCollectives::reduce_facts(std::uint64_t step, const Instruction& instruction,
                                        const Collective& collective)
{
  const GradientFacts own = measured_facts(step);
  const at::Tensor sums = at::tensor({own.sum_of_squares, own.not_finite}, at::kDouble);
  collective(instruction, {sums});
  const std::lock_guard lock(mutex_);
  keep(step, {sums[0].item<double>(), sums[1].item<double>()});
}

/// Adds up the gradients of a stage, and of those after it whose layers the instruction has, over their replicas, and
/// those of the last stage also their parts of the loss, the first value: so the first replica has it, even if each
/// gets a part.
void ParameterCollectives::reduce_gradients(std::uint64_t step, Instruction instruction, const Channel& channel,
                                            const Collective& collective)
{
  std::vector<StageModel*> models;
  Tensors gradients;
  std::optional<at::Tensor> loss;
  for (const auto& [stage, own] : stages_.own) {
    if (stage < instruction.stage || own.last_layer > instruction.last_layer) continue;
    if (ExchangedPasses* const passes = own.model->exchanged_passes()) passes->await_gradients();
    models.push_back(own.model.get());
    const Tensors of_stage = gradients_of(stage, channel);
    gradients.insert(gradients.end(), of_stage.begin(), of_stage.end());
    const bool is_of_all_shards = channel.ends.size() > stages_.patterns[stage].replicas();
    if (is_of_experts(instruction.stage, channel)) continue;
    if (!stages_.is_last(stage) || (!own.sync_groups.empty() && !is_of_all_shards)) continue;
    const bool has_loss = !is_of_all_shards || own.placed.shard == 0;
    loss = has_loss ? own.model->take_loss().to(at::kFloat) : at::zeros({}, at::Device(device_));
  }
  Tensors sums;
  if (loss) sums.push_back(*loss);
  for (const auto& gradient : gradients) sums.push_back(gradient.contiguous());
  const std::size_t replicas = stages_.patterns[instruction.stage].replicas();
  const Opcode opcode = instruction.opcode;
  if (size_of(sums) < replicas) instruction.opcode = Opcode::AllReduce;  // the first part would be empty
  collective(instruction, sums);
  instruction.opcode = opcode;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& sum = sums[i + (loss ? 1 : 0)];
    if (!gradients[i].is_contiguous()) gradients[i].copy_(sum);
  }
  for (StageModel* model : models) {
    const Tensors tied = model->divided_tied_gradient();
    if (!tied.empty()) collective(instruction, tied);
    model->keep_own_gradients(is_of_experts(instruction.stage, channel));
    if (model->is_updated_by_machine()) model->keep_gradient_facts(step);
  }
  if (loss) loss_ = {*loss};
}

/// Gets the parameters of a stage that its other replicas have. The values are divided as the sums of the gradients
/// are, of the last stage after the loss.
void ParameterCollectives::gather_parameters(std::uint64_t step, const Instruction& instruction, const Channel& channel,
                                             const Collective& collective)
{
  StageModel& model = stages_.model(instruction.stage);
  const bool of_experts = is_of_experts(instruction.stage, channel);
  Tensors values = model.gather(of_experts);
  if (stages_.is_last(instruction.stage)) values.insert(values.begin(), at::zeros({1}, at::Device(device_)));
  collective(instruction, values);
  const Tensors tied = model.gather_tied();
  if (!tied.empty()) collective(instruction, tied);
  if (ExchangedPasses* const passes = model.exchanged_passes()) passes->updated(step);
}

/// Whether the ends of a channel are shards of one replica, this rank's.
bool ParameterCollectives::is_among_shards(std::uint32_t stage, const Channel& channel) const
{
  const auto& shards = stages_.shards(stage);
  return std::all_of(channel.ends.begin(), channel.ends.end(),
                     [&](const End& end) { return std::find(shards.begin(), shards.end(), end.rank) != shards.end(); });
}

/// Whether the ends of a channel are those of the replicas that have the same experts, where replicas divide them.
bool ParameterCollectives::is_of_experts(std::uint32_t stage, const Channel& channel) const
{
  return divides_experts_ && channel.ends.size() < stages_.patterns[stage].replicas();
}

/// The gradients of a stage that the ranks of a channel, its replicas, have in common.
Tensors ParameterCollectives::gradients_of(std::uint32_t stage, const Channel& channel) const
{
  const RankStage& own = stages_.own.at(stage);
  if (is_of_experts(stage, channel)) return own.model->expert_gradients();
  if (own.sync_groups.empty()) return own.model->gradients();
  if (channel.ends.size() > stages_.patterns[stage].replicas()) return own.model->shared_gradients();
  Tensors gradients;
  for (const auto& [units, shards] : own.sync_groups) {
    bool is_of_channel = true;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      is_of_channel = is_of_channel && channel.ends[i].rank == stages_.ranks[stage][i][shards[i]];
    }
    if (!is_of_channel) continue;
    const Tensors of_group = own.model->gradients(units);
    gradients.insert(gradients.end(), of_group.begin(), of_group.end());
  }
  return gradients;
}

GradientFacts ParameterCollectives::measured_facts(std::uint64_t step) const
{
  GradientFacts sums;
  for (const auto& [stage, own] : stages_.own) own.model->add_gradient_facts(step, sums);
  return sums;
}

}  // namespace isobar::exec
