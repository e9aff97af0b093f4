#include "exec/run_inputs.hpp"

#include "core/base/files.hpp"
#include "core/check/plan_checker.hpp"
#include "core/compute/device_profile.hpp"
#include "core/errors.hpp"
#include "core/model/differences.hpp"
#include "core/model/routing.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/program/collective.hpp"
#include "core/program/residence.hpp"
#include "exec/device/device.hpp"
#include "exec/launch/plan_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace isobar::exec {

namespace {

/// The command that stamps a plan, which a user may copy.
std::string stamping_command(const Plan& plan, const std::string& plan_file)
{
  const std::string profile = plan.profile ? " --profile " + on_one_line(plan.profile->name) : "";
  return fmt::format("isobar simulate {} {}{} --plan {} --stamp", on_one_line(plan.platform.name),
                     on_one_line(plan.workload.name), profile, on_one_line(plan_file));
}

/// What a stage's residence is and `isobar run` does not execute; none if it does.
std::optional<ResidenceFault> unknown_residence(const Stage& stage, const Plan& plan, const Workload& workload,
                                                bool writes_checkpoints)
{
  const Residence& residence = stage.residence;
  if (residence.activations == Tier::Host) {
    for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
      if (std::binary_search(plan.recompute.begin(), plan.recompute.end(), layer)) continue;
      return ResidenceFault{"activations", fmt::format("host, and layer {} ({}) keeps all of its own; add it to "
                                                       "recompute, so that its input alone leaves the device",
                                                       layer, shown(workload.layers[layer].name))};
    }
  }
  if (residence.optimizer == Tier::Device) return std::nullopt;
  const bool is_delayed = residence.overlap == UpdateOverlap::Delayed;
  if (residence.copies == Copies::Redundant && needs_gradient_sync(workload)) {
    return ResidenceFault{"copies",
                          "redundant, whose updates do not wait for all gradients, which clip_norm and fp16 "
                          "need; use lean or write-back"};
  }
  if (is_delayed && residence.copies != Copies::Lean) {
    return ResidenceFault{"copies", fmt::format("{}, which returns parameters over those that the machine has updated "
                                                "meanwhile where overlap is delayed; use lean",
                                                name_of(residence.copies))};
  }
  if (is_delayed && workload.training.clip_norm && writes_checkpoints) {
    return ResidenceFault{"overlap",
                          "delayed; a checkpoint cannot have gradients whose norm is to be clipped; leave out "
                          "--checkpoint or clip_norm, or use next-forward"};
  }
  if (is_delayed && workload.dtype == DType::Float16) {
    return ResidenceFault{"overlap", "delayed, while fp16 changes its loss scale with each update; use next-forward"};
  }
  return std::nullopt;
}

}  // namespace

Workload read_run_workload(const Plan& plan, const std::string& workload_text, RunCommandOptions& options)
{
  const auto& settings = settings_of(plan, options.plan, options.settings);
  Workload workload =
      workload_from_text(workload_text, options.workload, settings, options.plan + ": inputs.workload.set");
  require_same_model(workload, options.workload);
  if (options.profile.empty()) return workload;
  if (!options.run.emulate || is_gpu(options.run.device)) {
    throw InputError("--profile", "sets the speed of emulated devices; add --emulate, and use a CPU");
  }
  const std::string hash = fingerprint(read_file(options.profile));
  if (!plan.profile || plan.profile->hash != hash) {
    throw InputError(options.profile,
                     fmt::format("has hash {}; the plan was made with {}", hash,
                                 plan.profile ? "a profile with hash " + shown(plan.profile->hash) : "none"));
  }
  const DeviceProfile profile = read_profile(options.profile);
  if (!profile.has_layers()) {
    throw InputError(options.profile, "has rates of operators alone; emulated devices take measured times of layers");
  }
  apply_profile(profile, options.profile, workload);
  options.run.profiled_speed = profile.speed;
  return workload;
}

namespace {

/// Refuses what of plans that divide sequences or experts is only simulated.
void check_exchanges(const Plan& plan, const std::string& plan_file)
{
  const std::string of_context = fmt::format("context: {}", text_of(plan.context));
  const std::string of_experts = fmt::format("experts: {}", text_of(plan.experts));
  const auto refuse = [&](const std::string& what) {
    throw InputError(plan_file, fmt::format("{}; {}", plan.context.divides() ? of_context : of_experts, what));
  };
  const auto divides_activations = [](const Stage& stage) { return stage.grid.form == ShardGrid::Form::Sequence; };
  if (std::any_of(plan.stages.begin(), plan.stages.end(), divides_activations)) {
    refuse("isobar run does not divide activations among shards, too; plan with --splits 1d");
  }
  if (plan.sync.sharded == Sharding::Parameters) {
    refuse("isobar run does not divide parameters among replicas, too; use sync.sharded gradients or optimizer");
  }
  if (plan.experts.are_whole && plan.experts.degree == 1 && has_replicas(plan)) {
    throw InputError(plan_file, fmt::format("{}; isobar run divides whole experts among several replicas, or among the "
                                            "shards of one; plan with --experts 2 or more, or one replica",
                                            of_experts));
  }
}

/// Why replicas of stages that share a matrix, and divide the optimizer, have other parts of it than those with which
/// they add up its gradients; none if they have the same. The plan holds.
std::optional<std::string> fault_of_tied_parts(const Plan& plan, const Workload& workload)
{
  if (plan.sync.sharded == Sharding::None || plan.sync.algorithm != Algorithm::Hierarchical) return std::nullopt;
  const auto begins_in = [&](std::size_t index) {
    constexpr std::size_t values = 1'000'000;
    const auto sites = sites_of(plan.stages[index], 0);
    std::vector<std::size_t> begins;
    for (std::size_t i = 0; i < sites.size(); ++i) {
      begins.push_back(part_of_end(i, sites.size(), values, plan.sync.algorithm, sites).begin);
    }
    return begins;
  };
  for (const auto& matrix : tied_matrices(workload, plan)) {
    for (const std::size_t stage : matrix.stages) {
      if (begins_in(stage) == begins_in(matrix.stages.front())) continue;
      const auto number = numbers_in_file(plan);
      return fmt::format(
          "sync.algorithm: hierarchical, and the replicas of stages[{}] and stages[{}], which share a "
          "matrix, take their sites in other orders; use ring",
          number[matrix.stages.front()], number[stage]);
    }
  }
  return std::nullopt;
}

/// The workload of a plan but for copies of matrices.
Workload without_copies(Workload workload, const Plan& plan, const std::string& plan_file)
{
  if (has_exchanges(plan)) check_exchanges(plan, plan_file);
  constexpr auto only_per_sample = "isobar run gives the experts slots for each sample, and simulate plays all";
  if (plan.routing && *plan.routing != spmd::Routing{}) {
    throw InputError(plan_file, fmt::format("routing: {}; {}", text_of(*plan.routing, workload), only_per_sample));
  }
  if (const auto routing = routing_of(workload); routing && *routing != spmd::Routing{} && !plan.routing) {
    throw InputError(plan_file,
                     fmt::format("inputs.workload: experts take {}; {}", text_of(*routing, workload), only_per_sample));
  }
  if (plan.micro_batch && *plan.micro_batch != workload.micro_batch) {
    if (std::holds_alternative<std::monostate>(workload.model)) {
      throw InputError(plan_file, fmt::format("micro_batch: workload {} lists its layers, for micro-batches of {} "
                                              "samples; other sizes need a generator, such as model: gpt",
                                              shown(workload.name), workload.micro_batch));
    }
    // Operators have rates, which are for any micro-batch.
    if (plan.profile && !divides_operators(plan) && workload.compute != ComputeModel::Operators) {
      throw InputError(plan_file, fmt::format("micro_batch: {}, but {} was measured with micro-batches of {} samples",
                                              *plan.micro_batch, shown(plan.profile->name), workload.micro_batch));
    }
    workload = with_micro_batch(workload, *plan.micro_batch);
  }
  if (plan.context.divides()) workload = with_context(workload, plan.context);
  if (plan.experts.divides()) workload = with_experts(workload, plan.experts);
  if (plan.recompute.empty()) return workload;
  if (workload.memory_model == MemoryModel::Sky) {
    throw InputError(plan_file, "recompute: memory_model sky does not model recomputation");
  }
  if (plan.recompute.back() >= workload.layers.size()) {
    throw InputError(plan_file, fmt::format("recompute: there is no layer {}; workload {} has {}",
                                            plan.recompute.back(), shown(workload.name), workload.layers.size()));
  }
  return with_recomputation(workload, plan.recompute);
}

}  // namespace

Workload as_planned(Workload workload, const Plan& plan, const std::string& plan_file)
{
  return with_tied_copies(without_copies(std::move(workload), plan, plan_file), plan);
}

void check_plan(const Plan& plan, const Workload& workload, const std::string& workload_hash,
                const RunCommandOptions& options)
{
  std::vector<std::string> lines;
  for (const auto& fault : placement_faults_of(plan, workload)) lines.push_back(options.plan + ": " + fault);
  if (!options.unvalidated) {
    for (const auto& fault : faults_of_stamp(plan, workload_hash, ISOBAR_VERSION)) {
      lines.push_back(options.plan + ": " + fault);
      if (plan.stamp) continue;
      lines.back() += "; run " + stamping_command(plan, options.plan) + ", or give --unvalidated";
    }
  }
  if (divides_operators(plan)) {
    constexpr const char* reason = "the devices of the plan divide operators";
    const auto* const sizes = std::get_if<spmd::MoeSizes>(&workload.model);
    if (sizes != nullptr && sizes->parity) {
      lines.push_back(
          fmt::format("workload {}: parity: true has the published operators, which are only searched; "
                      "leave it out to execute",
                      shown(workload.name)));
    }
    if (!options.data.evaluation.empty()) {
      lines.push_back(fmt::format("--evaluate: {}, which isobar run only trains; leave it out", reason));
    }
    if (!options.restart.replan.empty()) {
      lines.push_back(fmt::format("--replan: {}, and no plan without one of them is made; leave it out", reason));
    }
    if (!options.weights.empty()) {
      lines.push_back(fmt::format("--weights: {}, which have no source in other models; leave it out", reason));
    }
  }
  if (!plan.sync.adds_replicas) {
    lines.push_back(
        fmt::format("{}: sync.adds_replicas: false; isobar run adds up the gradients of replicas, so that "
                    "they stay equal",
                    options.plan));
  }
  if (has_exchanges(plan) && is_gpu(options.run.device)) {
    lines.push_back(fmt::format("--device: {}; isobar run divides {} among processors only; plan without {}",
                                options.run.device, plan.context.divides() ? "sequences" : "experts",
                                plan.context.divides() ? "--context" : "--experts"));
  }
  const auto refuse = [&](bool has, const char* key, const char* does) {
    if (!has) return;
    const std::string other =
        plan.system
            ? fmt::format("; the plan imitates {}, so plan with compute: rate or a --profile", plan.system->name)
            : "";
    lines.push_back(fmt::format("{}: {}, which isobar run does not execute: {}{}", options.plan, key, does, other));
  };
  refuse(plan.transfers.sliced, "transfers.sliced: true", "each shard sends all of what a stage passes on");
  refuse(plan.sync.summed != DType::Float32, "sync.gradient_dtype", "gradients travel in float32");
  refuse(plan.sync.gathered != DType::Float32, "sync.gather_dtype", "parameters travel in float32");
  refuse(plan.sync.each_microbatch, "sync.each_microbatch: true", "replicas add up their gradients once a step");
  const auto is_tied = [](const Layer& layer) { return layer.tied_to.has_value(); };
  if (plan.sync.sharded == Sharding::Parameters && plan.stages.size() > 1 &&
      std::any_of(workload.layers.begin(), workload.layers.end(), is_tied)) {
    lines.push_back(options.plan +
                    ": sync.sharded: parameters, and several stages use a matrix, which isobar run does not gather for "
                    "each; use sync.sharded gradients or optimizer");
  }
  if (const auto fault = lines.empty() ? fault_of_tied_parts(plan, workload) : std::nullopt) {
    lines.push_back(fmt::format("{}: {}", options.plan, *fault));
  }
  const auto stage_in_file = numbers_in_file(plan);
  for (std::size_t i = 0; i < plan.stages.size() && lines.empty(); ++i) {
    const auto fault = unknown_residence(plan.stages[i], plan, workload, !options.run.checkpoints.folder.empty());
    if (!fault) continue;
    lines.push_back(
        fmt::format("{}: stages[{}].residence.{}: {}", options.plan, stage_in_file[i], fault->key, fault->text));
  }
  const auto has_grid = [](const Stage& stage) { return stage.grid.is_grid(); };
  const auto in_grid = std::find_if(plan.stages.begin(), plan.stages.end(), has_grid);
  if (in_grid != plan.stages.end()) {
    lines.push_back(fmt::format(
        "{}: stages[{}].splits: {}; isobar run executes 1d and sequence, and simulate plays all", options.plan,
        stage_in_file[static_cast<std::size_t>(in_grid - plan.stages.begin())], name_of(in_grid->grid.form)));
  }
  if (is_partly_divided(plan.stages)) {
    lines.push_back(options.plan +
                    ": stages: devices divide some of them and have others alone, which isobar run does not execute; "
                    "simulate plays all");
  }
  if (plan.sync.algorithm == Algorithm::Hierarchical) {
    const auto lacks_site = [&](const PlacedShard& placed) {
      return plan.stages[placed.stage].replicas.size() > 1 && !shard_of(plan, placed).site;
    };
    const auto placed = placed_shards(plan);
    const auto lacking = std::find_if(placed.begin(), placed.end(), lacks_site);
    const bool has_sites = std::any_of(placed.begin(), placed.end(),
                                       [&](const auto& each) { return shard_of(plan, each).site.has_value(); });
    if (lacking != placed.end() && has_sites) {
      lines.push_back(
          fmt::format("{}: stages[{}].replicas[{}].shards[{}].site: missing, and other devices have theirs; write the "
                      "device's site",
                      options.plan, stage_in_file[lacking->stage], lacking->replica, lacking->shard));
    }
  }
  if (options.run.emulate) {
    for (const auto& placed : placed_shards(plan)) {
      const auto slowdown = shard_of(plan, placed).slowdown;
      constexpr double least_slowdown = 1 - 1e-9;
      if (slowdown && *slowdown >= least_slowdown) continue;
      const std::string shard = is_chain(plan) && !has_shards(plan)
                                    ? "devices[0]"
                                    : fmt::format("replicas[{}].shards[{}]", placed.replica, placed.shard);
      auto line = fmt::format("{}: stages[{}].{}.slowdown: {}", options.plan, stage_in_file[placed.stage], shard,
                              slowdown ? fmt::format("{:.6g}; --emulate needs 1 or more", *slowdown)
                                       : "missing, and --emulate needs it; plan again");
      // The layers of a stage of several shards are a stage each.
      if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
    }
  }
  if (!lines.empty()) throw InputError(lines);
}

RunData::RunData(const RunCommandOptions& options, const Workload& workload, std::uint64_t microbatches)
    : datasets(open_datasets(options.data, workload))
{
  if (datasets.train) batches = dataset_batches(workload, *datasets.train, microbatches);
  if (!datasets.evaluation) return;
  evaluation = dataset_batches(workload, *datasets.evaluation, microbatches);
  const std::uint64_t samples_per_step = workload.micro_batch * microbatches;
  evaluation_steps = (datasets.evaluation->evaluation_samples() + samples_per_step - 1) / samples_per_step;
}

}  // namespace isobar::exec
