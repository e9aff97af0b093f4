#include "core/certificates/certificate_checker.hpp"

#include "core/certificates/proofs.hpp"
#include "core/check/dtfm_cost.hpp"
#include "core/compute/pricing.hpp"
#include "core/costs/layer_times.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>

namespace isobar {

namespace proofs {

namespace {

/// Sums over the layers before each cut. The extra digits of long double keep differences of two sums accurate.
template <typename Layers, typename Read>
std::vector<double> sums_before_cuts(const Layers& layers, Read read)
{
  std::vector<double> sums = {0};
  long double sum = 0;
  for (const auto& layer : layers) {
    sum += read(layer);
    sums.push_back(static_cast<double>(sum));
  }
  return sums;
}

WorkSums sums_of(const std::vector<LayerWork>& layers)
{
  return {sums_before_cuts(layers, [](const LayerWork& layer) { return (layer.forward + layer.backward).value; }),
          sums_before_cuts(layers, [](const LayerWork& layer) { return layer.forward.value; }),
          sums_before_cuts(layers, [](const LayerWork& layer) { return layer.update.value; })};
}

}  // namespace

void Effort::refuse_steps() const
{
  throw TooMuchEffort{fmt::format("certificate: needs more than {} steps to check; it is not checked", most_steps_)};
}

void Effort::refuse_bytes(const char* what)
{
  throw TooMuchEffort{fmt::format("certificate: needs more than {} GB for {} to check; it is not checked",
                                  most_bytes / 1'000'000'000, what)};
}

Chain::Chain(const Workload& chain, const Cluster& given, const Plan& asked, Effort& spent)
    : layers(chain.layers.size()),
      devices(given.devices.size()),
      goal(asked.goal),
      schedule(is_chain(asked) ? chain_schedule(asked.goal.schedule) : std::nullopt),
      divides_layers(has_shared_stages(asked)),
      is_sky(chain.memory_model == MemoryModel::Sky),
      workspace(chain.workspace.value),
      cluster(&given),
      latency_counts(goal.communication != Communication::Overlapped || asked.latency_occupies_lanes()),
      effort(spent)
{
  // Replicas may divide parameters, gradients and optimizers. No stage has more of them than devices or micro-batches.
  const auto most_parts = static_cast<double>(std::min<std::uint64_t>(devices, goal.microbatches));
  const double per_parameter = bytes_per_parameter(chain) / (divides_layers ? most_parts : 1);
  const auto& all = chain.layers;
  work = sums_of(work_of_layers(chain, reference_times(chain, given)));
  parameter_bytes =
      sums_before_cuts(all, [&](const Layer& layer) { return static_cast<double>(layer.parameters) * per_parameter; });
  activations = sums_before_cuts(all, [](const Layer& layer) { return layer.activations.value; });
  sky_memory = sums_before_cuts(all, [](const Layer& layer) { return layer.sky_memory.value; });
  const Boundaries cuts = boundaries_of(chain);
  for (std::size_t cut = 0; cut <= layers; ++cut) {
    output.push_back(cuts.output[cut].value);
    gradient.push_back(cuts.gradient[cut].value);
  }
  for (std::size_t i = 0; i < devices; ++i) {
    memory.push_back(given.devices[i].memory.value);
    input_s.push_back(0);
    input_turn_s.push_back(0);
    if (!given.data_server || goal.has_free_transfers()) continue;
    const Path path = given.path(given.data_server_index(), i);
    input_s[i] = transfer_s(path, cuts.output.front().value);
    if (!has_turns()) {
      input_turn_s[i] = cost(0, input_s[i]);
      continue;
    }
    // The step counts the input once. With one micro-batch at a time, no other one waits for the lane.
    input_s[i] /= beta();
    if (schedule != ChainSchedule::Sequential) input_turn_s[i] = path.data_time(cuts.output.front()).value;
  }
  add_devices(chain);
}

namespace {

/// The largest rate at which a device does the layers' `work`, if it does `own` at `rate`: of a layer, a pass, the
/// parts of a backward pass, or an update.
double largest_rate(const std::vector<LayerWork>& work, const std::vector<LayerWork>& own, double rate, double usual)
{
  const auto passes = [](const LayerWork& layer) {
    return std::array{layer.forward.value, layer.backward.value, layer.backward_weight.value,
                      layer.backward.value - layer.backward_weight.value, layer.update.value};
  };
  double most = 0;
  for (std::size_t k = 0; k < own.size(); ++k) {
    const auto whole = passes(work[k]);
    const auto part = passes(own[k]);
    for (std::size_t pass = 0; pass < whole.size(); ++pass) {
      const double least_s = whole[pass] / usual / most_gain_of_type;
      if (whole[pass] > 0) most = std::max(most, whole[pass] / std::max(part[pass] / rate, least_s));
    }
  }
  return most > 0 ? most : usual;
}

}  // namespace

std::vector<Rates> rates_of_devices(const Workload& workload, const Cluster& cluster)
{
  const auto* const reference = reference_times(workload, cluster);
  const std::vector<LayerWork> work = work_of_layers(workload, reference);
  std::map<std::tuple<std::string, double, double>, Rates> known;  // by type, speed and pace
  std::vector<Rates> all;
  for (const auto& device : cluster.devices) {
    const double speed = device.speed_at(workload.dtype).value;
    const auto [entry, is_new] = known.try_emplace({device.type, speed, device.pace});
    Rates& rates = entry->second;
    if (is_new) {
      const auto* const own = known_times(workload, device.type);
      rates.own = own == nullptr ? speed : device.pace;
      const double usual = reference == nullptr ? speed : device.pace;
      const bool has_same = own == reference;
      rates.largest = has_same ? rates.own : largest_rate(work, work_of_layers(workload, own), rates.own, usual);
    }
    all.push_back(rates);
  }
  return all;
}

void Chain::add_devices(const Workload& chain)
{
  const auto* const reference = reference_times(chain, *cluster);
  own_work.reserve(chain.times.size() + 1);  // devices refer to them
  std::map<const std::vector<LayerTimes>*, const WorkSums*> known = {{reference, &work}};
  for (const auto& device : cluster->devices) {
    const auto [entry, is_new] = known.try_emplace(known_times(chain, device.type));
    if (is_new) entry->second = &own_work.emplace_back(sums_of(work_of_layers(chain, entry->first)));
    work_on.push_back(entry->second);
  }
  for (const auto& [own, largest] : rates_of_devices(chain, *cluster)) {
    rate.push_back(own);
    speed.push_back(largest);
  }
}

std::uint64_t Chain::held_by(std::size_t stages_after) const
{
  // Any schedule holds at least one micro-batch on each stage.
  return schedule ? microbatches_in_flight(*schedule, stages_after, goal.microbatches) : 1;
}

double Chain::turn_s(std::size_t device, std::size_t first_cut, std::size_t end_cut, std::uint64_t in_flight) const
{
  const double both = compute_s(device, first_cut, end_cut);
  if (!has_turns() || schedule != ChainSchedule::OneForwardOneBackward || goal.microbatches == 1) return both;
  const double one = forward_s(device, first_cut, end_cut);
  const double less = std::min(one, both - one);
  // Of the M - 1 micro-batches after the first, in_flight - 1 may overlap with it in one direction.
  return both - less * static_cast<double>(in_flight - 1) / static_cast<double>(goal.microbatches - 1);
}

std::uint64_t Chain::most_in_flight(std::size_t level, std::size_t levels) const
{
  const std::size_t stages_after = level + 1 < levels ? level : std::min(layers, devices) - 1;
  return held_by(std::max(level, stages_after));
}

double Chain::alpha() const
{
  if (has_turns()) return schedule == ChainSchedule::Sequential ? 0 : static_cast<double>(goal.microbatches) - 1;
  if (goal.objective == Objective::Sequential) return 0;
  return goal.objective == Objective::Bottleneck ? 1 : static_cast<double>(goal.microbatches) - 1;
}

double Chain::beta() const
{
  if (has_turns() && schedule == ChainSchedule::Sequential) return static_cast<double>(goal.microbatches);
  return goal.objective == Objective::Bottleneck ? 0 : 1;
}

}  // namespace proofs

namespace {

using Faults = std::vector<std::string>;

Faults faults_of_groups(const std::vector<std::size_t>& groups, std::size_t devices)
{
  if (groups.empty()) return {};
  if (groups.size() != devices) {
    return {fmt::format("certificate.groups: claims {}; it is {}, one for each device", groups.size(), devices)};
  }
  std::vector<bool> is_used(devices);
  std::size_t most = 0;
  for (std::size_t i = 0; i < devices; ++i) {
    if (groups[i] >= devices) {
      return {fmt::format("certificate.groups[{}]: claims {}; it is below {}, the number of devices", i, groups[i],
                          devices)};
    }
    is_used[groups[i]] = true;
    most = std::max(most, groups[i]);
  }
  for (std::size_t group = 0; group < most; ++group) {
    if (is_used[group]) continue;
    return {fmt::format("certificate.groups: claims {} groups; it is fewer, since no device is in group {}", most + 1,
                        group)};
  }
  return {};
}

Faults faults_of_rungs(const Certificate& certificate, std::size_t devices)
{
  Faults faults = faults_of_groups(certificate.groups, devices);
  const bool is_of_groups = certificate.kind == CertificateKind::DtFm || certificate.kind == CertificateKind::Load;
  if (certificate.levels == 0) faults.push_back("certificate.levels: claims 0; it is at least 1");
  if (certificate.rungs.empty() && certificate.kind != CertificateKind::DtFm)
    faults.push_back("certificate.rungs: claims 0; it is at least 1");
  std::size_t owners = devices;  // of multipliers
  if (is_of_groups) {
    if (!faults.empty()) return faults;
    owners =
        certificate.groups.empty() ? 1 : *std::max_element(certificate.groups.begin(), certificate.groups.end()) + 1;
  }
  double below = 0;
  for (std::size_t r = 0; r < certificate.rungs.size(); ++r) {
    const auto& limit = certificate.rungs[r].limit;
    const auto& multipliers = certificate.rungs[r].multipliers;
    const std::string key = fmt::format("certificate.rungs[{}]", r);
    if (!limit && r + 1 < certificate.rungs.size()) {
      faults.push_back(key + ".limit_s: claims none; it is a number, since a rung follows");
    }
    const bool may_be_zero =
        certificate.kind == CertificateKind::DtFm && r == 0;  // a device alone has nothing to exchange
    if (limit && may_be_zero) {
      if (!(std::isfinite(limit->value) && limit->value >= 0)) {
        faults.push_back(fmt::format("{}.limit_s: claims {}; it is a number, 0 or more", key, limit->value));
      }
    } else if (limit && !(std::isfinite(limit->value) && limit->value > below)) {
      const auto [claim, fact] = distinct_texts(limit->value, below);
      faults.push_back(fmt::format("{}.limit_s: claims {}; it is above {}, since rungs ascend", key, claim, fact));
    }
    if (limit) below = limit->value;
    if (multipliers.size() != owners) {
      faults.push_back(fmt::format("{}.multipliers: claims {}; it is {}, one for each {}", key, multipliers.size(),
                                   owners, is_of_groups ? "group" : "device"));
    }
    for (std::size_t i = 0; i < multipliers.size(); ++i) {
      if (std::isfinite(multipliers[i]) && multipliers[i] >= 0) continue;
      faults.push_back(fmt::format("{}.multipliers[{}]: claims {}; it is a number, 0 or more", key, i, multipliers[i]));
    }
  }
  return faults;
}

/// Reports a search that found something below a bound.
void add_faults(const proofs::SearchFinding& found, double claimed, double searched, Faults& faults)
{
  if (!found.fault.empty()) faults.push_back(found.fault);
  if (found.least >= searched) return;
  const auto [claim, fact] = distinct_texts(claimed, found.least);
  faults.push_back(
      fmt::format("objective_bound_s: claims {}; it is at most {}, which a placement achieves", claim, fact));
}

/// Only a path may count slots.
void add_faults_of_slots(const Certificate& certificate, Faults& faults)
{
  for (std::size_t r = 0; r < certificate.rungs.size(); ++r) {
    if (certificate.rungs[r].slots == 0) continue;
    faults.push_back(
        fmt::format("certificate.rungs[{}].slots: claims {}; only a path counts them", r, certificate.rungs[r].slots));
  }
}

/// The bound on DT-FM's cost that the certificate proves, or faults.
double proven_dtfm_bound(const Plan& plan, const Workload& workload, const Cluster& cluster, proofs::Effort& effort,
                         Faults& faults)
{
  const std::size_t devices = cluster.devices.size();
  faults = faults_of_rungs(plan.certificate, devices);
  add_faults_of_slots(plan.certificate, faults);
  if (plan.stages.empty()) {
    faults.push_back("certificate.kind: claims dtfm, which is about the stages of the plan; it has none");
  } else if (const auto fault = fault_of_dtfm_stages(plan)) {
    faults.push_back(*fault);
  } else if (plan.stages.back().last_layer >= workload.layers.size() || devices_of(plan).size() > devices) {
    faults.push_back("certificate.kind: claims dtfm, and the stages do not fit the workload and the platform");
  }
  if (!faults.empty()) return 0;
  const auto found = proofs::search_dtfm_below(plan, workload, cluster, effort);
  add_faults(found, plan.objective_bound->value, found.proven, faults);
  return found.proven;
}

/// The bound by loads that the certificate proves, or faults.
double proven_load_bound(const Plan& plan, const Workload& workload, const Cluster& cluster, proofs::Effort& effort,
                         Faults& faults)
{
  faults = faults_of_rungs(plan.certificate, cluster.devices.size());
  add_faults_of_slots(plan.certificate, faults);
  const auto& rungs = plan.certificate.rungs;
  if (plan.goal.objective != Objective::Step) {
    faults.push_back(fmt::format("certificate.kind: claims load, which is for objective step, not {}",
                                 name_of(plan.goal.objective)));
  }
  if (rungs.size() > 1) {
    faults.push_back(fmt::format("certificate.rungs: claims {}; load has 1", rungs.size()));
  } else if (rungs.size() == 1 && !rungs.front().limit) {
    faults.push_back("certificate.rungs[0].limit_s: claims none; it is a number, which no step is within");
  }
  if (plan.stages.empty()) faults.push_back("certificate.kind: claims load, and there are no stages");
  if (!faults.empty()) return 0;
  if (proofs::refutes_by_loads(plan, workload, cluster, effort)) return rungs.front().limit->value;
  faults.push_back(
      fmt::format("certificate.rungs[0].limit_s: claims {:.9g}; by the multipliers a step may be within it",
                  rungs.front().limit->value));
  return 0;
}

/// The bound that the certificate proves, or faults.
double proven_bound(const Plan& plan, const proofs::Chain& chain, Faults& faults)
{
  const Certificate& certificate = plan.certificate;
  const bool needs_chain = certificate.kind != CertificateKind::None && certificate.kind != CertificateKind::Fractional;
  if (needs_chain && !chain.schedule) {
    faults.push_back(
        fmt::format("certificate.kind: claims {}, which is for stages on a device each under sequential, gpipe or "
                    "1f1b; it is load, fractional or none under {}",
                    name_of(certificate.kind), shown(text_of(plan.goal.schedule))));
    return 0;
  }
  switch (certificate.kind) {
    case CertificateKind::None:
      return 0;
    case CertificateKind::Fractional:
      return proofs::fractional_bound(chain);
    case CertificateKind::PhaseFlow:
      return proofs::phase_flow_bound(chain, certificate, faults);
    case CertificateKind::Path:
    case CertificateKind::Search:
    case CertificateKind::DtFm:
    case CertificateKind::Load:
    case CertificateKind::Window:
      break;
  }
  faults = faults_of_rungs(certificate, chain.devices);
  const bool may_count_slots = certificate.kind == CertificateKind::Path && chain.has_turns() &&
                               chain.schedule == ChainSchedule::OneForwardOneBackward;
  for (std::size_t r = 0; r < certificate.rungs.size() && !may_count_slots; ++r) {
    if (certificate.rungs[r].slots == 0) continue;
    faults.push_back(
        fmt::format("certificate.rungs[{}].slots: claims {}; only a path of objective step under 1f1b counts them", r,
                    certificate.rungs[r].slots));
  }
  if (!faults.empty()) return 0;
  const auto too_large = proofs::fault_of_size(chain, certificate.groups, proofs::levels_of(chain, certificate));
  if (!too_large.empty()) faults.push_back(too_large);
  if (!faults.empty()) return 0;
  if (certificate.kind == CertificateKind::Path) return proofs::path_bound(chain, certificate);

  const double claimed = plan.objective_bound->value;
  const auto& last = certificate.rungs.back().limit;
  const double above_rungs = last ? (chain.alpha() + chain.beta()) * last->value : proofs::infinity;
  const double searched = std::min(claimed, above_rungs);
  const auto found = chain.has_turns() ? proofs::search_steps_below(chain, certificate, searched)
                                       : proofs::search_below(chain, certificate, searched);
  add_faults(found, claimed, searched, faults);
  return searched;
}

}  // namespace

CertificateCheck check_certificate(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                   std::uint64_t most_steps)
{
  CertificateCheck check;
  if (plan.outcome == Outcome::Infeasible || !plan.objective_bound) return check;
  const ChainView view = chain_view(workload);
  proofs::Effort effort(most_steps);
  const proofs::Chain chain(view.workload, cluster, plan, effort);
  double proven = 0;
  try {
    const bool is_dtfm = plan.goal.objective == Objective::DtFm;
    const CertificateKind kind = plan.certificate.kind;
    if (kind != CertificateKind::None && is_dtfm != (kind == CertificateKind::DtFm)) {
      check.faults.push_back(fmt::format("certificate.kind: claims {}; it is {} for objective {}", name_of(kind),
                                         is_dtfm ? "dtfm or none" : "another than dtfm", name_of(plan.goal.objective)));
    } else if (kind == CertificateKind::DtFm) {
      proven = proven_dtfm_bound(plan, workload, cluster, effort, check.faults);
    } else if (uses_machines(plan) != (kind == CertificateKind::Window) && kind != CertificateKind::None) {
      check.faults.push_back(fmt::format("certificate.kind: claims {}; it is {}", name_of(kind),
                                         uses_machines(plan) ? "window or none where a stage has a residence"
                                                             : "window only where a stage has a residence"));
    } else if (kind == CertificateKind::Window) {
      proven = proofs::window_bound(plan, workload, cluster);
    } else if (kind == CertificateKind::Load) {
      proven = proven_load_bound(plan, workload, cluster, effort, check.faults);
    } else {
      proven = proven_bound(plan, chain, check.faults);
    }
  } catch (const proofs::TooMuchEffort& refusal) {
    check.faults.push_back(refusal.fault);
  }
  if (!check.faults.empty()) return check;
  // Plans that are played as they train may take less than the times that bounds count.
  if (plan.goal.objective == Objective::Step && !is_chain(plan)) {
    proven *= compute::least_as_trained(plan, workload, cluster);
  }
  constexpr double tolerance = 1e-9;
  if (!(plan.objective_bound->value <= proven * (1 + tolerance))) {  // also true for NaN
    const auto [claim, fact] = distinct_texts(plan.objective_bound->value, proven);
    check.faults.push_back(fmt::format("objective_bound_s: claims {}; it is {} by the certificate {}", claim, fact,
                                       name_of(plan.certificate.kind)));
  } else if (plan.objective && proven > plan.objective->value * (1 + tolerance)) {
    const auto [claim, fact] = distinct_texts(plan.objective->value, proven);
    check.faults.push_back(fmt::format("objective_s: claims {}; the certificate {} proves that none is below {}", claim,
                                       name_of(plan.certificate.kind), fact));
  } else {
    check.proven = Seconds(proven);
  }
  return check;
}

std::vector<std::string> faults_of_certificate(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  return check_certificate(plan, workload, cluster).faults;
}

}  // namespace isobar
