#include "core/check/claims.hpp"

#include "core/text/quantity_text.hpp"

#include <algorithm>
#include <cmath>

namespace isobar {

bool agree(double claimed, double found)
{
  return std::isfinite(claimed) && std::isfinite(found) &&
         std::abs(claimed - found) <= claim_tolerance * std::max({std::abs(claimed), std::abs(found), 1e-300});
}

void Claims::check(const char* key, const std::optional<Seconds>& claimed, double found)
{
  if (!claimed) {
    fault("{}: missing; it is {:.9g} on this platform and workload", key, found);
  } else if (!agree(claimed->value, found)) {
    const auto [claim, fact] = distinct_texts(claimed->value, found);
    fault("{}: claims {}; it is {} on this platform and workload", key, claim, fact);
  }
}

void Claims::check_peak_memory(const std::string& device, double found)
{
  const auto& claimed = plan_.predicted->peak_memory;
  const auto entry = claimed.find(device);
  if (entry == claimed.end()) {
    fault("predicted.peak_memory_bytes.{}: missing; it is {:.9g}", device, found);
  } else if (!agree(entry->second.value, found)) {
    const auto [claim, fact] = distinct_texts(entry->second.value, found);
    fault("predicted.peak_memory_bytes.{}: claims {}; it is {}", device, claim, fact);
  }
}

void Claims::check_objective_bound(double objective)
{
  if (!plan_.objective_bound) {
    fault("objective_bound_s: missing; write 0 to claim nothing");
  } else if (!(plan_.objective_bound->value <= objective * (1 + claim_tolerance))) {  // also true for NaN
    const auto [bound, found] = distinct_texts(plan_.objective_bound->value, objective);
    fault("objective_bound_s: {} is above objective_s {}; a lower bound cannot be", bound, found);
  }
  if (plan_.outcome == Outcome::Optimal &&
      !(plan_.objective_bound && plan_.objective_bound->value >= objective * (1 - claim_tolerance))) {
    const auto [bound, found] = distinct_texts(plan_.objective_bound ? plan_.objective_bound->value : 0, objective);
    fault("outcome: optimal, but the bound {} leaves a gap to the objective {}; write feasible", bound, found);
  }
}

void Claims::check_simulated()
{
  constexpr double simulated_tolerance = 1e-6;
  if (!plan_.simulated || !plan_.step_bound) return;
  if (plan_.simulated->step_time >= *plan_.step_bound * (1 - simulated_tolerance)) return;
  const auto [claim, bound] = distinct_texts(plan_.simulated->step_time.value, plan_.step_bound->value);
  fault("simulated.step_time_s: claims {}, below step_bound_s {}; no order is faster", claim, bound);
}

}  // namespace isobar
