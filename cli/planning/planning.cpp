#include "cli/planning/planning.hpp"

#include "allocators/registry.hpp"
#include "cli/workload_variants.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/check/plan_checker.hpp"
#include "core/check/played_checker.hpp"
#include "core/check/program_checker.hpp"
#include "core/check/residence_checker.hpp"
#include "core/compute/as_trained.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/played_step.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstddef>
#include <optional>
#include <string_view>

namespace isobar::cli {

Plan make_plan(const Inputs& inputs, const std::string& allocator, const Goal& goal,
               const allocators::SearchLimits& limits)
{
  Plan plan = allocators::allocate(allocator, inputs.workload, inputs.platform.cluster(), goal, limits);
  record_inputs(plan, inputs, inputs.workload.micro_batch);
  return plan;
}

std::string_view kind_of(const Plan& plan)
{
  const bool is_chain = !has_shared_stages(plan) && !uses_machines(plan) && !divides_operators(plan);
  return is_chain && !plan.stages.empty() ? "chain" : "plan";
}

std::string_view scope_of_bound(const Plan& plan)
{
  if (plan.goal.objective == Objective::DtFm) return "plan with as many replicas of these stages";
  // Without stages, a certificate is checked as one of a chain.
  return plan.stages.empty() ? "chain" : kind_of(plan);
}

void record_inputs(Plan& plan, const Inputs& inputs, std::uint64_t micro_batch)
{
  plan.platform = inputs.platform_fingerprint;
  plan.workload = inputs.workload_fingerprint;
  plan.profile = inputs.profile_fingerprint;
  if (!inputs.without.empty()) plan.without = inputs.without;
  if (micro_batch != inputs.workload.micro_batch) plan.micro_batch = micro_batch;
}

std::optional<compute::StepBasis> basis_of_step(const Inputs& inputs, const Plan& plan, Seconds step)
{
  if (inputs.workload.compute == ComputeModel::Rate || plan.stages.empty()) return std::nullopt;
  const Workload workload = as_planned(inputs, plan);
  const Cluster& cluster = inputs.platform.cluster();
  return compute::basis_of(plan, compute::AsTrained(plan, workload, cluster), workload, cluster, step);
}

std::vector<std::string> other_inputs_of(const Plan& plan, const std::string& file, const Inputs& inputs)
{
  std::vector<std::string> lines;
  const auto compare = [&](const char* what, const Fingerprint& made_for, const Fingerprint& given) {
    if (made_for.hash == given.hash) return;
    lines.push_back(fmt::format("{}: inputs.{}: made for {} (hash {}); this is {} (hash {})", on_one_line(file), what,
                                shown(text_of(made_for)), shown(made_for.hash), on_one_line(text_of(given)),
                                given.hash));
  };
  compare("platform", plan.platform, inputs.platform_fingerprint);
  compare("workload", plan.workload, inputs.workload_fingerprint);
  compare("profile", plan.profile.value_or(unmeasured), inputs.profile_fingerprint.value_or(unmeasured));
  return lines;
}

std::vector<std::string> all_faults_of(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  auto faults = faults_of(plan, workload, cluster);
  if (!faults.empty() || plan.stages.empty() || is_chain(plan)) return faults;
  const compute::AsTrained trained(plan, workload, cluster);
  const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
  std::optional<PlayedProgram> folded;
  try {
    folded = schedules::play_folded(plan, trained.workload(), trained.cluster(), *program, counted_step(plan).played());
  } catch (const InputError& too_long) {
    return {too_long.what()};
  }
  if (!folded) faults = faults_of(*program);
  for (auto& fault : faults) {
    const auto key = fault.starts_with("deadlock") ? key_of_circle(plan) : std::nullopt;
    if (key) fault = fmt::format("{}: {}", *key, fault);
  }
  if (!faults.empty()) return faults;
  return faults_of_played(plan, trained.workload(), trained.cluster(), *program, folded ? &*folded : nullptr);
}

void check_plan(const Plan& plan, const std::string& file, const Inputs& inputs)
{
  auto faults = all_faults_of(plan, inputs.workload, inputs.platform.cluster());
  // Other certificates take a search to check; `isobar verify` does that.
  const auto kind = plan.certificate.kind;
  if (faults.empty() && (kind == CertificateKind::None || kind == CertificateKind::Fractional)) {
    faults = faults_of_certificate(plan, inputs.workload, inputs.platform.cluster());
  }
  auto lines = other_inputs_of(plan, file, inputs);
  if (faults.empty()) {
    for (const auto& line : lines) spdlog::warn("{}", line);
    return;
  }
  for (const auto& fault : faults) lines.push_back(on_one_line(file) + ": " + fault);
  throw InputError(lines);
}

std::string reason_of(const Plan& plan)
{
  constexpr std::size_t longest = 500;
  return shown(plan.reason, longest);
}

std::string program_of(const std::string& allocator)
{
  constexpr std::string_view external = "exec:";
  return allocator.starts_with(external) ? allocator.substr(external.size()) : "";
}

}  // namespace isobar::cli
