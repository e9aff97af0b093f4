#include "core/certificate_checker.hpp"

#include "core/certificate_proofs.hpp"
#include "core/layer_graph.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar {

namespace proofs {

namespace {

/// Sums before each cut; the extra digits of long double keep differences of two sums exact to the last digits.
template <typename Read>
std::vector<double> sums_before_cuts(const Workload& workload, Read read)
{
  std::vector<double> sums = {0};
  long double sum = 0;
  for (const Layer& layer : workload.layers) {
    sum += read(layer);
    sums.push_back(static_cast<double>(sum));
  }
  return sums;
}

}  // namespace

Chain::Chain(const Workload& chain, const Cluster& given, const Goal& asked)
    : layers(chain.layers.size()),
      devices(given.devices.size()),
      goal(asked),
      is_sky(chain.memory_model == MemoryModel::Sky),
      cluster(&given)
{
  const double per_parameter = bytes_per_parameter(chain.dtype, chain.optimizer);
  work = sums_before_cuts(chain, [](const Layer& layer) { return layer.forward.value + layer.backward.value; });
  parameter_bytes = sums_before_cuts(
      chain, [&](const Layer& layer) { return static_cast<double>(layer.parameters) * per_parameter; });
  activations = sums_before_cuts(chain, [](const Layer& layer) { return layer.activations.value; });
  sky_memory = sums_before_cuts(chain, [](const Layer& layer) { return layer.sky_memory.value; });
  const Boundaries cuts = boundaries_of(chain);
  for (std::size_t cut = 0; cut <= layers; ++cut) {
    output.push_back(cuts.output[cut].value);
    gradient.push_back(cuts.gradient[cut].value);
  }
  for (std::size_t i = 0; i < devices; ++i) {
    speed.push_back(given.devices[i].speed_at(chain.dtype).value);
    memory.push_back(given.devices[i].memory.value);
    input_s.push_back(
        given.data_server ? given.path(given.data_server_index(), i).transfer_time(cuts.output.front()).value : 0);
  }
}

double Chain::need(std::size_t first_cut, std::size_t end_cut, std::uint64_t held) const
{
  if (is_sky) return sky_memory[end_cut] - sky_memory[first_cut];
  return parameter_bytes[end_cut] - parameter_bytes[first_cut] +
         (activations[end_cut] - activations[first_cut]) * static_cast<double>(held) + output[first_cut] +
         gradient[first_cut] + output[end_cut] + gradient[end_cut];
}

double Chain::cost(double compute, double send) const
{
  if (goal.communication == Communication::None) return compute;
  return goal.communication == Communication::Overlapped ? std::max(compute, send) : compute + send;
}

std::uint64_t Chain::held_by(std::size_t stages_after) const
{
  return microbatches_in_flight(goal.schedule, stages_after, goal.microbatches);
}

double Chain::alpha() const
{
  if (goal.objective == Objective::Sequential) return 0;
  return goal.objective == Objective::Bottleneck ? 1 : static_cast<double>(goal.microbatches) - 1;
}

double Chain::beta() const
{
  return goal.objective == Objective::Bottleneck ? 0 : 1;
}

}  // namespace proofs

CertificateCheck check_certificate(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  CertificateCheck check;
  if (plan.stages.empty() || !plan.objective_bound) return check;
  const CertificateKind kind = plan.certificate.kind;
  const ChainView view = chain_view(workload);
  const proofs::Chain chain(view.workload, cluster, plan.goal);
  double proven = 0;
  if (kind == CertificateKind::Fractional) proven = proofs::fractional_bound(chain);
  if (!check.faults.empty()) return check;
  check.proven = Seconds(proven);
  constexpr double tolerance = 1e-9;
  if (!(plan.objective_bound->value <= proven * (1 + tolerance))) {  // also when it is no number
    check.faults.push_back(fmt::format("objective_bound_s: claims {:.9g}; the certificate {} proves {:.9g}",
                                       plan.objective_bound->value, name_of(kind), proven));
  }
  return check;
}

std::vector<std::string> faults_of_certificate(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  return check_certificate(plan, workload, cluster).faults;
}

}  // namespace isobar
