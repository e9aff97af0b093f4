#include "core/costs/cost_model.hpp"

#include "core/costs/step_recurrence.hpp"
#include "core/model/layer_graph.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace isobar {

namespace {

template <typename Read>
std::vector<double> prefix_sums(const std::vector<Layer>& layers, Read read)
{
  std::vector<double> sums(layers.size() + 1, 0);
  for (std::size_t i = 0; i < layers.size(); ++i) sums[i + 1] = sums[i] + read(layers[i]);
  return sums;
}

/// The largest rate at which a device does `work` in a pass of a layer, in a part of one, or in an update, if it does
/// `own` at `rate`. None is above most_gain_of_type times `usual`, which counts where no layer has work.
FlopsPerSecond largest_rate(const std::vector<LayerWork>& work, const std::vector<LayerWork>& own, FlopsPerSecond rate,
                            FlopsPerSecond usual)
{
  FlopsPerSecond largest;
  const auto count = [&](Flops whole, Flops part) {
    const FlopsPerSecond most = most_gain_of_type * usual;
    if (whole > Flops(0)) largest = std::max(largest, whole / std::max(part / rate, whole / most));
  };
  for (std::size_t i = 0; i < own.size(); ++i) {
    count(work[i].forward, own[i].forward);
    count(work[i].backward, own[i].backward);
    count(work[i].backward_weight, own[i].backward_weight);
    count(work[i].backward - work[i].backward_weight, own[i].backward - own[i].backward_weight);
    count(work[i].update, own[i].update);
  }
  return largest.value > 0 ? largest : usual;
}

}  // namespace

CostModel::CostModel(const Workload& workload, const Cluster& cluster, std::vector<std::uint64_t> held)
    : workload_(&workload),
      cluster_(&cluster),
      held_(std::move(held)),
      cuts_(workload.layers.size() + 1),
      work_(work_of_layers(workload, reference_times(workload, cluster))),
      parameters_(
          prefix_sums(workload.layers, [](const Layer& layer) { return static_cast<double>(layer.parameters); })),
      activations_(prefix_sums(workload.layers, [](const Layer& layer) { return layer.activations.value; })),
      sky_memory_(prefix_sums(workload.layers, [](const Layer& layer) { return layer.sky_memory.value; }))
{
  find_ties();
  add_kind(work_);
  add_devices(reference_times(workload, cluster));
  auto boundaries = boundaries_of(workload);
  boundary_output_ = std::move(boundaries.output);
  boundary_gradient_ = std::move(boundaries.gradient);
}

void CostModel::find_ties()
{
  const auto& layers = workload_->layers;
  const auto has_copy = [](const Layer& layer) { return layer.has_tied_copy; };
  if (std::any_of(layers.begin(), layers.end(), has_copy)) return;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].tied_to) continue;
    const auto parameters = static_cast<double>(layers[i].tied_parameters);
    const auto all = static_cast<double>(layers[*layers[i].tied_to].parameters);
    ties_.push_back({i, *layers[i].tied_to, parameters, all > 0 ? parameters / all : 0});
  }
  std::stable_sort(ties_.begin(), ties_.end(), [](const Tie& a, const Tie& b) { return a.owner < b.owner; });
}

void CostModel::add_kind(const std::vector<LayerWork>& work)
{
  const auto append = [&](std::vector<double>& sums, Flops LayerWork::*part) {
    sums.push_back(0);
    for (const auto& layer : work) sums.push_back(sums.back() + (layer.*part).value);
  };
  append(forward_, &LayerWork::forward);
  append(backward_, &LayerWork::backward);
  append(update_, &LayerWork::update);
}

void CostModel::add_devices(const std::vector<LayerTimes>* reference)
{
  struct Kind {
    std::size_t row = 0;
    std::vector<LayerWork> work = {};
  };
  std::map<const std::vector<LayerTimes>*, Kind> kinds;  // but the first, by their times
  for (const auto& device : cluster_->devices) {
    const auto* const own = workload_->times.empty() ? nullptr : known_times(*workload_, device.type);
    const FlopsPerSecond rate = rate_of(*workload_, device);
    if (own == reference) {
      on_.push_back({rate});
      speed_.push_back(rate);
      continue;
    }
    const auto [kind, is_new] = kinds.try_emplace(own, Kind{forward_.size()});
    if (is_new) {
      kind->second.work = work_of_layers(*workload_, own);
      add_kind(kind->second.work);
      has_kinds_ = true;
    }
    const FlopsPerSecond usual = reference == nullptr ? device.speed_at(workload_->dtype) : FlopsPerSecond(device.pace);
    on_.push_back({rate, kind->second.row});
    speed_.push_back(largest_rate(work_, kind->second.work, rate, usual));
  }
}

Seconds CostModel::weight_time(std::size_t device, std::size_t layer) const
{
  return times_on(*workload_, layer, cluster_->devices[device]).backward_weight;
}

Seconds CostModel::update_time(std::size_t device, std::size_t first, std::size_t last) const
{
  Flops work = sum_of(update_, device, first, last);
  for_each_copy(first, last, [&](const Tie& tie) { work += tie.part * sum_of(update_, device, tie.owner, tie.owner); });
  return work / on_[device].rate;
}

namespace {

TransferTimes transfer_over(const Path& path, Bytes size)
{
  return {path.latency, path.data_time(size)};
}

}  // namespace

TransferTimes CostModel::output_transfer(std::size_t from, std::size_t to, std::size_t layer) const
{
  return transfer_over(cluster_->path(from, to), boundary_output_[layer]);
}

TransferTimes CostModel::gradient_transfer(std::size_t from, std::size_t to, std::size_t layer) const
{
  return transfer_over(cluster_->path(to, from), boundary_gradient_[layer]);
}

TransferTimes CostModel::input_transfer(std::size_t device) const
{
  if (!cluster_->data_server) return {};
  return transfer_over(cluster_->path(cluster_->data_server_index(), device), boundary_output_.front());
}

Seconds CostModel::counted(Communication communication, TransferTimes transfer)
{
  switch (communication) {
    case Communication::None:
      return Seconds(0);
    case Communication::Overlapped:
      return transfer.data;
    case Communication::Serial:
    case Communication::Played:
      return transfer.total();
  }
  return transfer.total();
}

double CostModel::parameters(std::size_t first, std::size_t last) const
{
  double count = parameters_[last + 1] - parameters_[first];
  for_each_copy(first, last, [&](const Tie& tie) { count += tie.parameters; });
  return count;
}

Bytes CostModel::memory(std::size_t first, std::size_t last, std::uint64_t in_flight) const
{
  Bytes all = memory_beside_others(first, last, in_flight);
  if (memory_ignores_schedule()) return all;
  for_each_copy(first, last, [&](const Tie& tie) { all += Bytes(tie.parameters * bytes_per_parameter(*workload_)); });
  return all;
}

Bytes CostModel::memory_beside_others(std::size_t first, std::size_t last, std::uint64_t in_flight) const
{
  if (memory_ignores_schedule()) return Bytes(sky_memory_[last + 1] - sky_memory_[first]);
  if (!held_.empty() && in_flight > 0) in_flight = held_[std::min<std::uint64_t>(in_flight, held_.size()) - 1];
  const double parameters = parameters_[last + 1] - parameters_[first];
  const double activations = activations_[last + 1] - activations_[first];
  return Bytes(parameters * bytes_per_parameter(*workload_) + activations * static_cast<double>(in_flight)) +
         (buffers(first) + buffers(last + 1)) + workspace();
}

Bytes CostModel::buffers(std::size_t layer) const
{
  return memory_ignores_schedule() ? Bytes(0) : boundary_output_[layer] + boundary_gradient_[layer];
}

Bytes CostModel::workspace() const
{
  return memory_ignores_schedule() ? Bytes(0) : workload_->workspace;
}

bool CostModel::memory_ignores_schedule() const
{
  return workload_->memory_model == MemoryModel::Sky;
}

Seconds CostModel::stage_cost(Communication communication, Seconds compute, Seconds send)
{
  switch (communication) {
    case Communication::None:
      return compute;
    case Communication::Overlapped:
    case Communication::Played:
      return std::max(compute, send);
    case Communication::Serial:
      return compute + send;
  }
  return compute;
}

Seconds CostModel::objective_of(Objective objective, std::uint64_t microbatches, Seconds bottleneck, Seconds sum)
{
  switch (objective) {
    case Objective::Sequential:
      return sum;
    case Objective::Bottleneck:
      return bottleneck;
    case Objective::Pipeline:
    case Objective::Step:
    case Objective::DtFm:
      return static_cast<double>(microbatches - 1) * bottleneck + sum;
  }
  return sum;
}

CostModel::Evaluation CostModel::evaluate(const std::vector<StagePlacement>& stages, const Goal& goal) const
{
  // Formulas cannot play transfers; they count them as overlapped.
  const auto communication =
      goal.communication == Communication::Played ? Communication::Overlapped : goal.communication;
  const bool is_free = goal.has_free_transfers();
  const double microbatches = static_cast<double>(goal.microbatches);
  const double others = microbatches - 1;
  // The data server counts as a stage before the first: no compute, one transfer.
  const TransferTimes input = input_transfer(stages.front().device);
  Evaluation result;
  result.bottleneck = result.sum = stage_cost(communication, Seconds(0), counted(communication, input));
  result.sequential = input.total();
  Seconds around = is_free ? Seconds(0) : input.total();  // of a micro-batch, in everything before a stage
  Seconds longest_turn =
      is_free ? Seconds(0) : input.data;  // of one micro-batch on its lane, which takes one at a time
  TransferTimes gradient;                 // over the cut before the stage
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    const Seconds forward = forward_time(device, first, last);
    const Seconds backward = backward_time(device, first, last);
    const Seconds compute = compute_time(device, first, last);
    const bool is_last = i + 1 == stages.size();
    const TransferTimes output = is_last ? TransferTimes{} : output_transfer(device, stages[i + 1].device, last + 1);
    const Seconds send = counted(communication, gradient) + counted(communication, output);
    const Seconds cost = stage_cost(communication, compute, send);
    result.bottleneck = std::max(result.bottleneck, cost);
    result.sum += cost;
    gradient = is_last ? TransferTimes{} : gradient_transfer(device, stages[i + 1].device, last + 1);
    result.sequential += compute + output.total() + gradient.total();
    result.step_bound = std::max(result.step_bound, around + microbatches * compute);
    longest_turn = std::max({longest_turn, forward, backward});
    around += compute;
    if (is_free) continue;
    longest_turn = std::max({longest_turn, output.data, gradient.data});
    around += output.total() + gradient.total();
  }
  result.step_bound = std::max(result.step_bound, around + others * longest_turn) / cluster_->profile_speedup;
  result.pipeline = objective_of(Objective::Pipeline, goal.microbatches, result.bottleneck, result.sum);
  result.objective = goal.objective == Objective::Step
                         ? step_time_by_recurrence(*this, stages, goal)
                         : objective_of(goal.objective, goal.microbatches, result.bottleneck, result.sum);
  return result;
}

}  // namespace isobar
