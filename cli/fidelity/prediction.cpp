#include "cli/fidelity/prediction.hpp"

#include "cli/fidelity/row_prices.hpp"
#include "cli/fidelity/row_problem.hpp"
#include "core/compute/device_constants.hpp"
#include "core/compute/memory_need.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/fold.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/generate/machine_file.hpp"
#include "sim/platform/platform.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace isobar::cli {

namespace {

using results::MeasuredRow;
using results::RowParts;
using results::RowPrediction;

/// When a rank computed in the step that counts.
struct RankTimes {
  Seconds busy;                                        ///< of forward and backward passes
  Seconds last_backward;                               ///< its end, since the begin of the first step
  Seconds updates;                                     ///< what they take
  std::vector<std::pair<Seconds, Seconds>> sums = {};  ///< collectives of replicas: begin and end of each

  /// How long they last after the last backward pass.
  Seconds sums_after_passes() const
  {
    Seconds all;
    for (const auto& [begin, end] : sums) all += std::max(Seconds(0), end - std::max(begin, last_backward));
    return all;
  }
};

class ComputeTimes : public TraceSink {
 public:
  /// `step`: the one that counts.
  ComputeTimes(std::size_t ranks, std::uint64_t step) : ranks_(ranks), step_(step) {}

  void record(const TraceEvent& event) override
  {
    if (event.step != step_) return;
    RankTimes& rank = ranks_[event.rank];
    const Payload payload = event.instruction.payload;
    const bool is_of_replicas = payload == Payload::ParameterGradient || payload == Payload::Parameter;
    if (is_collective(event.instruction.opcode) && is_of_replicas) rank.sums.emplace_back(event.begin, event.end);
    if (!is_computation(event.instruction.opcode)) return;
    const Seconds time = event.end - event.begin;
    if (event.instruction.opcode == Opcode::Update) {
      rank.updates += time;
      return;
    }
    rank.busy += time;
    rank.last_backward = std::max(rank.last_backward, event.end);
  }

  const std::vector<RankTimes>& ranks() const { return ranks_; }

 private:
  std::vector<RankTimes> ranks_;
  std::uint64_t step_;
};

/// What is simulated of a row: its plan, or the folded one.
struct PlayedRow {
  Plan plan;
  Workload workload;
  std::unique_ptr<Program> program;
  std::vector<schedules::LinkUsers> links;
  std::string why_not_folded;
  std::string left_out = {};  ///< of a folded one
};

PlayedRow played_row(const RowProblem& problem, const PricedRow& priced, bool unfolded)
{
  std::string why_not;
  if (!unfolded) {
    auto folded = schedules::fold(problem.plan, priced.workload, priced.cluster);
    if (auto* step = std::get_if<schedules::FoldedStep>(&folded)) {
      return {std::move(step->plan),
              std::move(step->workload),
              std::move(step->program),
              std::move(step->links),
              "",
              step->note};
    }
    why_not = std::get<std::string>(std::move(folded));
  }
  return {
      problem.plan, priced.workload, schedules::make_program(problem.plan, priced.workload), {}, std::move(why_not)};
}

struct RowMemory {
  compute::MemoryNeed need;  ///< of the fullest device
  bool fits = true;
  std::string fault;
};

RowMemory memory_of(const RowProblem& problem, const RowChoice& choice, const Cluster& cluster,
                    const compute::Framework& framework, const RowProfiles& profiles)
{
  RowMemory memory;
  const std::size_t stages = problem.places.size();
  const std::size_t layers = problem.workload.layers.size();
  const auto& schedule = problem.plan.goal.schedule.name;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const auto& places = problem.places[stage];
    std::size_t count = 0;  // of its layers
    std::size_t first = layers;
    const Stage* some = nullptr;
    for (std::size_t i = 0; i < problem.plan.stages.size(); ++i) {
      if (problem.chunk_of_stage[i] % stages != stage) continue;
      some = &problem.plan.stages[i];
      count += some->last_layer - some->first_layer + 1;
      first = std::min(first, some->first_layer);
    }
    const std::uint64_t microbatches = problem.plan.goal.microbatches / places.replicas.size();
    compute::StageMemory part;
    part.division = {places.replicas.front().size(), some->grid.form == ShardGrid::Form::Sequence};
    part.replicas = places.replicas.size();
    part.sharding = problem.plan.sync.sharded;
    // The layers of an interleaved stage lie apart; its blocks are as others.
    part.first_layer = stage + 1 == stages ? layers - count : first;
    part.last_layer = part.first_layer + count - 1;
    if (schedule == "gpipe") {
      part.in_flight = static_cast<double>(microbatches);
    } else if (choice.virtual_stages > 1) {
      part.in_flight = compute::interleaved_in_flight(stage, stages, choice.virtual_stages, microbatches);
    } else if (schedule != "sequential") {
      part.in_flight = static_cast<double>(std::min<std::uint64_t>(microbatches, stages - stage));
    }
    for (const auto& replica : places.replicas) {
      const Device& device = cluster.devices[replica.front()];
      const auto need = compute::memory_need(problem.workload, framework, part, profiles.sizes());
      memory.need.allocated = std::max(memory.need.allocated, need.allocated);
      memory.need.reserved = std::max(memory.need.reserved, need.reserved);
      memory.need.device = std::max(memory.need.device, need.device);
      if (need.device > device.memory && memory.fits) {
        memory.fits = false;
        memory.fault = fmt::format("device {} of stage {} needs {} and has {}", device.name, stage,
                                   text_of(need.device), text_of(device.memory));
      }
    }
  }
  return memory;
}

Bytes of_kind(const compute::MemoryNeed& need, results::MemoryKind kind)
{
  if (kind == results::MemoryKind::Allocated) return need.allocated;
  return kind == results::MemoryKind::Reserved ? need.reserved : need.device;
}

/// The parts of a stage of the pipeline: 1 unless the schedule is interleaved.
double chunks_of(const RowProblem& problem)
{
  const std::size_t parts = problem.chunk_of_stage.back() / problem.places.size() + 1;
  return static_cast<double>(parts);
}

/// Model FLOPs of the slowest stage at the peak of its devices, with the bubble of the pipeline.
Seconds time_at_peak(const RowProblem& problem, const Cluster& cluster, const RowProfiles& profiles)
{
  const std::size_t stages = problem.places.size();
  std::vector<Seconds> times(stages);
  for (std::size_t i = 0; i < problem.plan.stages.size(); ++i) {
    const std::size_t stage = problem.chunk_of_stage[i] % stages;
    const auto& replica = problem.places[stage].replicas.front();
    const compute::DeviceConstants device = profiles.constants_of(cluster.devices[replica.front()].type);
    const FlopsPerSecond peak = device.peak(problem.workload.dtype, problem.workload.has_tf32_products);
    for (std::size_t layer = problem.plan.stages[i].first_layer; layer <= problem.plan.stages[i].last_layer; ++layer) {
      const Layer& own = problem.workload.layers[layer];
      times[stage] += (own.forward + own.backward) / (static_cast<double>(replica.size()) * peak);
    }
  }
  Seconds sum;
  for (const Seconds time : times) sum += time;
  const Seconds most = *std::ranges::max_element(times);
  const double chunks = chunks_of(problem);
  const auto replicas = static_cast<double>(problem.places.front().replicas.size());
  const double microbatches = problem.fill * static_cast<double>(problem.plan.goal.microbatches) / replicas;
  return microbatches * most + (sum - most) / chunks;
}

/// What the passes of a stage take.
Seconds computed_of(const RowParts& parts)
{
  return parts.products + parts.attention + parts.memory_bound + parts.launch + parts.tensor + parts.pipeline;
}

/// The types of a row's devices, each once.
std::set<std::string> types_of(const RowProblem& problem, const Cluster& cluster)
{
  std::set<std::string> types;
  for (const auto& stage : problem.places) {
    for (const auto& replica : stage.replicas) {
      for (const std::size_t device : replica) types.insert(cluster.devices[device].type);
    }
  }
  return types;
}

/// Divides a simulated step into what takes it, on the pipeline's stage that computes most.
RowParts parts_of(const RowProblem& problem, const PricedRow& priced, const Plan& played,
                  const std::vector<RankTimes>& ranks, Seconds begin, Seconds step)
{
  const std::size_t stages = problem.places.size();
  const auto devices = devices_of(played);
  std::vector<std::size_t> rank_of_stage(stages);
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const std::string& name = priced.cluster.devices[problem.places[stage].replicas.front().front()].name;
    rank_of_stage[stage] = static_cast<std::size_t>(std::ranges::find(devices, name) - devices.begin());
  }
  const auto busiest = std::ranges::max_element(rank_of_stage, {}, [&](std::size_t rank) { return ranks[rank].busy; });
  const auto stage = static_cast<std::size_t>(busiest - rank_of_stage.begin());
  const RankTimes& times = ranks[*busiest];
  const auto microbatches =
      static_cast<double>(problem.plan.goal.microbatches) / static_cast<double>(problem.places[stage].replicas.size());
  RowParts parts = priced.parts[stage];
  for (const auto& part : results::row_parts) parts.*part.time *= microbatches;
  const Seconds computed = computed_of(parts);
  const Seconds last_backward = times.last_backward - begin;
  parts.update = times.updates;
  // What follows the last backward pass are sums of gradients, and other stages' passes.
  const bool has_replicas = problem.places[stage].replicas.size() > 1;
  const bool has_shards = problem.places[stage].replicas.front().size() > 1;
  const Seconds tail = step - last_backward - times.updates;
  parts.data = has_replicas ? std::min(std::max(tail, Seconds(0)), times.sums_after_passes()) : Seconds(0);
  const Seconds idle = last_backward - computed;
  if (stages == 1) {
    // Gathers of parameters, and what they slow down; else collectives among shards that computations do not hide.
    const bool gathers = problem.plan.sync.sharded == Sharding::Parameters;
    (has_shards && !gathers ? parts.tensor : parts.data) += idle + tail - parts.data;
    return parts;
  }
  parts.bubble = tail - parts.data;
  if (idle < Seconds(0)) {  // a step begins before the one before has ended
    parts.bubble += idle;
    return parts;
  }
  Seconds others;  // a micro-batch through the other stages
  for (std::size_t i = 0; i < stages; ++i) {
    if (i == stage) continue;
    const RowParts& own = priced.parts[i];
    others += computed_of(own);
  }
  const double chunks = chunks_of(problem);
  const Seconds waiting = std::min(idle, others / chunks);
  parts.bubble += waiting;
  parts.pipeline += idle - waiting;
  return parts;
}

/// A choice of what a row leaves open, ready to be played.
struct PricedCandidate {
  RowChoice choice;
  RowProblem problem;
  PricedRow priced;
  RowMemory memory;
};

PricedCandidate candidate_of(const MeasuredRow& row, const RowChoice& choice, const compute::Framework& framework,
                             const RowProfiles& profiles, const Cluster& cluster)
{
  RowProblem problem = problem_of(row, choice, framework, MachineDevices(cluster));
  if (!problem.plan.recompute.empty()) {
    problem.workload = with_recomputation(problem.workload, problem.plan.recompute);
  }
  PricedRow priced = price_row(problem, cluster, framework, profiles);
  RowMemory memory = memory_of(problem, choice, cluster, framework, profiles);
  return {choice, std::move(problem), std::move(priced), std::move(memory)};
}

/// About how long the step takes: the usual formula of a pipeline, without transfers.
Seconds estimated_step(const PricedCandidate& candidate)
{
  Seconds sum;
  Seconds most;
  for (const auto& parts : candidate.priced.parts) {
    const Seconds stage = computed_of(parts);
    sum += stage;
    most = std::max(most, stage);
  }
  const auto& places = candidate.problem.places;
  const std::uint64_t each = candidate.problem.plan.goal.microbatches / places.front().replicas.size();
  const auto microbatches = static_cast<double>(each);
  return microbatches * most + (sum - most) / static_cast<double>(candidate.choice.virtual_stages);
}

/// The choice with the least estimated step among those that fit, or among all if none does.
PricedCandidate best_of(const MeasuredRow& row, const compute::Framework& framework, const RowProfiles& profiles,
                        const Cluster& cluster)
{
  const auto choices = choices_of(row);
  if (choices.size() == 1) return candidate_of(row, choices.front(), framework, profiles, cluster);
  std::optional<PricedCandidate> best;
  Seconds least;
  std::string fault;
  for (const auto& choice : choices) {
    try {
      PricedCandidate candidate = candidate_of(row, choice, framework, profiles, cluster);
      if (best && best->memory.fits && !candidate.memory.fits) continue;
      const Seconds step = estimated_step(candidate);
      if (best && best->memory.fits == candidate.memory.fits && step >= least) continue;
      least = step;
      best.emplace(std::move(candidate));
    } catch (const Unsupported& unsupported) {
      fault = unsupported.what();
    } catch (const InputError& unsupported) {
      fault = unsupported.what();
    }
  }
  if (!best) throw Unsupported(fault);
  return std::move(*best);
}

sim::Platform platform_of(const MeasuredRow& row, std::vector<std::string>& notes)
{
  if (row.platform.ends_with(".xml")) {
    if (!row.platform_overrides.empty()) {
      throw Unsupported(fmt::format("platform_overrides: {} is a SimGrid platform, which has none", row.platform));
    }
    return sim::Platform::load(row.platform);
  }
  const sim::MachineFile machine = sim::read_machine(row.platform, row.platform_overrides);
  notes.insert(notes.end(), machine.notes.begin(), machine.notes.end());
  return sim::Platform::from_text(sim::machine_to_xml(machine), machine.name);
}

/// What a row's times come from, a note each: the constants of its software and devices, or what was measured of these.
std::vector<std::string> sources_of(const RowProblem& problem, const compute::Framework& framework,
                                    const RowProfiles& profiles, const Cluster& cluster)
{
  const Seconds host = framework.host_forward + framework.host_backward;
  std::vector<std::string> notes = {
      fmt::format("{}: host {:g} ms a block, with shards {:g} ms, in a pipeline {:g} ms more a micro-batch",
                  framework.name, 1e3 * host.value, 1e3 * (host + 2 * framework.host_shards).value,
                  1e3 * framework.pipeline_host.value),
      fmt::format("{}: products x {:g}, fused attention x {:g}; bytes per logit {:g}, per updated parameter {:g}",
                  framework.name, framework.product_speed, framework.attention_speed,
                  framework.logit.forward + framework.logit.backward, framework.update),
      fmt::format("{}: {}", framework.name, framework.source)};
  for (const auto& type : types_of(problem, cluster)) {
    if (const auto* profile = profiles.layers_of(type)) {
      notes.push_back(fmt::format("{}: layers as {} has them", type, profile->name));
      continue;
    }
    const auto device = profiles.constants_of(type);
    notes.push_back(fmt::format("{}: products {:g} of the peak, loss by size {:g}; attention fused {:g}, unfused {:g}",
                                type, device.products.efficiency, device.products.size_loss, device.fused_attention,
                                device.core_bandwidth));
    notes.push_back(fmt::format("{}: {}", type, device.source));
    if (profiles.table_of(type) != nullptr) notes.push_back(type + ": operators of its table, where it has them");
  }
  return notes;
}

RowPrediction predicted(const MeasuredRow& row, bool unfolded)
{
  RowPrediction prediction;
  sim::Platform platform = platform_of(row, prediction.notes);
  if (row.framework.empty()) throw Unsupported("framework: is empty; name the software that trained");
  const auto [framework, note] = compute::framework_named(row.framework);
  if (!note.empty()) prediction.notes.push_back(note);
  const RowProfiles profiles(row.profiles);
  const PricedCandidate candidate = best_of(row, *framework, profiles, platform.cluster());
  const auto& [choice, problem, priced, memory] = candidate;
  if (choices_of(row).size() > 1) {
    prediction.notes.push_back(fmt::format("micro-batch {}, {} virtual stages and recomputation {} are the best {}",
                                           choice.micro_batch, choice.virtual_stages, name_of(choice.recompute),
                                           memory.fits ? "that fit" : "of those that do not fit"));
  }
  if (!row.plan.empty() && row.pipeline_degree > 1 && row.pipeline_degree != problem.places.size()) {
    prediction.notes.push_back(
        fmt::format("pp: is {}; the plan has {} stages, which count", row.pipeline_degree, problem.places.size()));
  }
  if (!memory.fits) prediction.notes.push_back(memory.fault);
  for (auto& source : sources_of(problem, *framework, profiles, platform.cluster())) {
    prediction.notes.push_back(std::move(source));
  }
  prediction.fits = memory.fits;
  prediction.memory = of_kind(memory.need, row.memory_kind.value_or(results::MemoryKind::Device));

  const PlayedRow played = played_row(problem, priced, unfolded);
  prediction.folded = !unfolded && played.why_not_folded.empty();
  if (!played.why_not_folded.empty()) prediction.notes.push_back("all ranks are played: " + played.why_not_folded);
  if (!played.left_out.empty()) prediction.notes.push_back("folded: " + played.left_out);
  for (const auto& [link, users] : played.links) {
    if (users != 1) platform.scale(sim::Property::Bandwidth, 1 / users, link);
  }
  // Where replicas divide the optimizer, what they gather after an update meets the next step.
  const bool gathers_after =
      problem.plan.sync.sharded == Sharding::Optimizer || problem.plan.sync.sharded == Sharding::Gradients;
  const std::uint64_t steps = gathers_after ? 2 : 1;
  ComputeTimes times(played.program->ranks(), steps - 1);
  const auto report = sim::simulate(platform, *played.program,
                                    sim::rank_hosts(played.plan, played.workload, priced.cluster), steps, &times);
  prediction.step = report.step_times.back();
  const Seconds begin = gathers_after ? report.step_times.front() : Seconds(0);
  prediction.parts = parts_of(problem, priced, played.plan, times.ranks(), begin, *prediction.step);
  prediction.at_peak = time_at_peak(problem, platform.cluster(), profiles);
  prediction.device = fmt::format("{}", fmt::join(types_of(problem, platform.cluster()), " + "));
  return prediction;
}

}  // namespace

RowPrediction predict(const MeasuredRow& row, bool unfolded)
{
  const auto unsupported = [](const char* why) {
    RowPrediction prediction;
    prediction.unsupported = why;
    return prediction;
  };
  try {
    return predicted(row, unfolded);
  } catch (const Unsupported& why) {
    return unsupported(why.what());
  } catch (const InputError& why) {
    return unsupported(why.what());
  }
}

}  // namespace isobar::cli
