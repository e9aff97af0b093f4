#include "cli/fidelity/prediction.hpp"

#include "allocators/registry.hpp"
#include "cli/fidelity/row_plan.hpp"
#include "cli/inputs.hpp"
#include "core/base/files.hpp"
#include "core/cluster/device_types.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/prediction_interval.hpp"
#include "core/compute/pricing.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/program/player.hpp"
#include "core/text/quantity_text.hpp"
#include "results/fidelity/step_parts.hpp"
#include "schedules/lowering/fold.hpp"
#include "schedules/lowering/played_step.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/generate/machine_file.hpp"
#include "sim/platform/platform.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
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
using results::RowPrediction;
using results::Unsupported;

/// A choice of what a row leaves open, ready to be played: its plan, of which equal devices act once.
struct RowCandidate {
  RowChoice choice;
  RowPlan row;
  std::unique_ptr<compute::AsTrained> trained;
  schedules::FoldedStep played;
  std::string why_not_folded = {};

  CountedStep counted() const { return counted_step(row.plan); }
};

RowCandidate candidate_of(const MeasuredRow& row, const RowChoice& choice, const Cluster& cluster, bool unfolded)
{
  RowCandidate made{choice, plan_of(row, choice, cluster), nullptr, {}};
  made.trained = std::make_unique<compute::AsTrained>(made.row.plan, made.row.workload, cluster);
  if (!unfolded) {
    auto folded = schedules::fold(made.row.plan, made.trained->workload(), made.trained->cluster());
    if (auto* step = std::get_if<schedules::FoldedStep>(&folded)) {
      made.played = std::move(*step);
      return made;
    }
    made.why_not_folded = std::get<std::string>(std::move(folded));
  }
  made.played = {made.row.plan,
                 made.trained->workload(),
                 schedules::make_program(made.row.plan, made.trained->workload(), made.trained->cluster()),
                 {},
                 {}};
  return made;
}

/// What lacks memory, given the most that each rank holds; none: all fits.
std::optional<std::string> lack_of_memory(const RowCandidate& candidate, const std::vector<Bytes>& peaks)
{
  const auto devices = devices_of(candidate.played.plan);
  const Cluster& cluster = candidate.trained->cluster();
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const Device& device = cluster.devices[cluster.device_index(devices[rank]).value()];
    if (peaks[rank] <= device.memory) continue;
    return fmt::format("device {} needs {} and has {}", device.name, text_of(peaks[rank]), text_of(device.memory));
  }
  return std::nullopt;
}

/// The choice with the least step, as played without contention, among those that fit, or among all if none does.
RowCandidate best_of(const MeasuredRow& row, const Cluster& cluster, bool unfolded)
{
  const auto choices = choices_of(row);
  if (choices.size() == 1) return candidate_of(row, choices.front(), cluster, unfolded);
  std::optional<RowCandidate> best;
  std::pair<bool, Seconds> least;  // whether it lacks memory, and the step
  std::string fault;
  for (const auto& choice : choices) {
    try {
      RowCandidate candidate = candidate_of(row, choice, cluster, unfolded);
      PlayerRates rates = schedules::rates_of(candidate.played, candidate.trained->cluster());
      rates.shared_links = {};
      const PlayedProgram played = play_program(*candidate.played.program, rates, candidate.counted().played());
      std::vector<Bytes> peaks;
      for (const auto& peak : played.peak_memory) peaks.push_back(peak[static_cast<std::size_t>(Tier::Device)]);
      const std::pair own(lack_of_memory(candidate, peaks).has_value(),
                          played.periods[candidate.counted().before].step_time);
      if (best && own >= least) continue;
      least = own;
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

/// Of what a device needs, what the row measured. What the allocator holds beyond it gives way where room is lacking.
Bytes of_kind(Bytes needed, results::MemoryKind kind, const MemoryConstants& memory)
{
  if (kind == results::MemoryKind::Device) return needed;
  const Bytes allocated = needed - memory.context;
  return kind == results::MemoryKind::Reserved ? allocated * memory.reserved : allocated;
}

/// The machine file of a row, with the calibration's factors of links.
sim::MachineFile machine_of(const MeasuredRow& row, const std::optional<compute::Calibration>& system)
{
  sim::MachineFile machine = sim::read_machine(row.platform, row.platform_overrides);
  if (system) sim::calibrate(machine, *system);
  return machine;
}

/// The row with the flags of a calibration, where it has none of its own.
MeasuredRow with_flags(MeasuredRow row, const compute::Calibration& system)
{
  const Framework* const named = standing_for(row.framework);
  if (named != nullptr && named->name != system.system.name) {
    throw Unsupported(
        fmt::format("framework: is {}; {} calibrates {}", row.framework, system.file, system.system.name));
  }
  const auto settings = settings_of(system);
  row.overrides.insert(row.overrides.begin(), settings.begin(), settings.end());
  return row;
}

sim::Platform platform_of(const MeasuredRow& row, const std::optional<compute::Calibration>& system,
                          std::vector<std::string>& notes)
{
  if (row.platform.ends_with(".xml")) {
    if (!row.platform_overrides.empty()) {
      throw Unsupported(fmt::format("platform_overrides: {} is a SimGrid platform, which has none", row.platform));
    }
    if (system && !(system->links == compute::LinkFactors{})) {
      notes.push_back(row.platform + ": its links are as it has them; the calibration's are for machine files");
    }
    return sim::Platform::load(row.platform);
  }
  const sim::MachineFile machine = machine_of(row, system);
  notes.insert(notes.end(), machine.notes.begin(), machine.notes.end());
  return sim::Platform::from_text(sim::machine_to_xml(machine), machine.name);
}

/// What a row's times come from, a note each: the constants of its software and devices, or what was measured of these.
std::vector<std::string> sources_of(const Framework& framework, const compute::Measurements& measurements,
                                    const std::set<std::string>& types)
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
  for (const auto& type : types) {
    if (const auto* profile = measurements.layers_of(type)) {
      notes.push_back(fmt::format("{}: layers as {} has them", type, profile->name));
      continue;
    }
    const auto device = measurements.constants_of(type);
    notes.push_back(fmt::format("{}: products {:g} of the peak, loss by size {:g}; attention fused {:g}, unfused {:g}",
                                type, device.products.efficiency, device.products.size_loss, device.fused_attention,
                                device.core_bandwidth));
    notes.push_back(fmt::format("{}: {}", type, device.source));
    if (measurements.table_of(type) != nullptr) {
      notes.push_back(type + ": operators of its table, where it has them");
    }
  }
  return notes;
}

/// Writes a row as files that other commands take, its plan with claims.
void export_row(const MeasuredRow& row, const RowPlan& row_plan, const sim::Platform& platform,
                const PredictionOptions& options)
{
  const std::filesystem::path folder = options.folder;
  std::filesystem::create_directories(folder);
  const auto write = [&](const char* name, const std::string& text) {
    std::string file = (folder / name).string();
    write_file_atomically(file, text);
    return file;
  };
  const bool is_machine = !row.platform.ends_with(".xml");
  const std::string xml = is_machine ? sim::machine_to_xml(machine_of(row, options.system)) : read_file(row.platform);
  Plan plan = allocators::priced_for(row_plan.plan, row_plan.workload, platform.cluster());
  plan.platform = {write("platform.xml", xml), platform.hash()};
  plan.workload = {write("workload.yaml", row_plan.workload_text),
                   workload_fingerprint(row_plan.workload_text, row_plan.settings), row_plan.settings};
  if (!row.profiles.empty()) plan.profile = fingerprint_of(row.profiles);
  write("plan.json", plan_to_json(plan));
}

/// Refuses a row of a device that the calibration is not of.
void require_device_of(const compute::Calibration& system, const Cluster& cluster)
{
  for (const auto& device : cluster.devices) {
    if (is_same_device_type(device.type, system.device)) continue;
    throw Unsupported(
        fmt::format("platform: has devices {}; {} calibrates {}", device.type, system.file, system.device));
  }
}

RowPrediction predicted(const MeasuredRow& given, const PredictionOptions& options)
{
  const bool unfolded = options.unfolded;
  const MeasuredRow row = options.system ? with_flags(given, *options.system) : given;
  RowPrediction prediction;
  sim::Platform platform = platform_of(row, options.system, prediction.notes);
  if (options.system) require_device_of(*options.system, platform.cluster());
  if (row.framework.empty()) throw Unsupported("framework: is empty; name the software that trained");
  const auto [named, note] = framework_named(row.framework);
  if (!note.empty()) prediction.notes.push_back(note);
  const RowCandidate candidate = best_of(row, platform.cluster(), unfolded);
  const auto& [choice, row_plan, trained, played, why_not_folded] = candidate;
  const Plan& plan = row_plan.plan;
  if (!options.folder.empty()) export_row(row, row_plan, platform, options);
  const Framework* const changed = plan.system ? framework_of(*plan.system) : nullptr;
  const Framework& framework = changed != nullptr ? *changed : *named;
  const auto stages = results::pipeline_of(plan, *trained);
  if (!row.plan.empty() && row.pipeline_degree > 1 && row.pipeline_degree != stages.size()) {
    prediction.notes.push_back(
        fmt::format("pp: is {}; the plan has {} stages, which count", row.pipeline_degree, stages.size()));
  }
  std::set<std::string> types;
  for (const auto& device : devices_of(plan)) {
    types.insert(platform.cluster().devices[platform.cluster().device_index(device).value()].type);
  }

  for (const auto& [link, users] : played.links) {
    if (users != 1) platform.scale(sim::Property::Bandwidth, 1 / users, link);
  }
  const CountedStep counted = candidate.counted();
  results::StepTimes times(played.program->ranks(), counted.before);
  const auto report = sim::simulate(platform, *played.program, sim::rank_hosts(played.plan, trained->cluster()),
                                    counted.played(), &times);
  prediction.step = report.step_times.at(counted.before);
  Seconds begin;
  for (std::size_t i = 0; i < counted.before; ++i) begin += report.step_times[i];
  prediction.parts = parts_of(plan, stages, times.ranks(), begin, *prediction.step);
  if (const auto basis = compute::basis_of(plan, *trained, row_plan.workload, platform.cluster(), *prediction.step)) {
    prediction.interval = compute::interval_of(*basis, *prediction.step);
    prediction.exposed = basis->exposed_fraction;
    prediction.spans_nodes = basis->spans_nodes;
  }
  prediction.at_peak = time_at_peak(plan, stages, row_plan.workload, platform.cluster());
  prediction.device = fmt::format("{}", fmt::join(types, " + "));

  const auto lack = lack_of_memory(candidate, times.peaks());
  prediction.fits = !lack;
  prediction.memory = of_kind(*std::ranges::max_element(times.peaks()),
                              row.memory_kind.value_or(results::MemoryKind::Device), framework.memory);
  if (choices_of(row).size() > 1) {
    const std::string exchange = plan.context.divides() ? fmt::format(", exchange {}", name_of(choice.exchange)) : "";
    prediction.notes.push_back(fmt::format("micro-batch {}, {} virtual stages{} and recomputation {} are the best {}",
                                           choice.micro_batch, choice.virtual_stages, exchange,
                                           name_of(choice.recompute), lack ? "of those that do not fit" : "that fit"));
  }
  if (lack) prediction.notes.push_back(*lack);
  for (auto& source : sources_of(framework, compute::measurements_of(row_plan.workload), types)) {
    prediction.notes.push_back(std::move(source));
  }
  prediction.folded = !unfolded && why_not_folded.empty();
  if (!why_not_folded.empty()) prediction.notes.push_back("all ranks are played: " + why_not_folded);
  if (!played.note.empty()) prediction.notes.push_back("folded: " + played.note);
  return prediction;
}

}  // namespace

RowPrediction predict(const MeasuredRow& row, const PredictionOptions& options)
{
  const auto unsupported = [](const char* why) {
    RowPrediction prediction;
    prediction.unsupported = why;
    return prediction;
  };
  try {
    return predicted(row, options);
  } catch (const Unsupported& why) {
    return unsupported(why.what());
  } catch (const InputError& why) {
    return unsupported(why.what());
  }
}

}  // namespace isobar::cli
