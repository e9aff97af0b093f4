#pragma once

#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar {

/// By how much claims and what is found may differ, relative.
inline constexpr double claim_tolerance = 1e-9;

/// True if both are finite and equal within the tolerance.
bool agree(double claimed, double found);

/// Compares what a plan claims with what a checker finds, and collects the faults. Only the plan checkers use it.
class Claims {
 public:
  explicit Claims(const Plan& plan) : plan_(plan) {}

  template <typename... Values>
  void fault(fmt::format_string<Values...> text, Values&&... values)
  {
    std::string line = fmt::format(text, std::forward<Values>(values)...);
    if (faults_.empty() || faults_.back() != line)
      faults_.push_back(std::move(line));  // once for all layers of a stage
  }

  void check(const char* key, const std::optional<Seconds>& claimed, double found);
  /// Checks predicted.peak_memory_bytes of one device.
  void check_peak_memory(const std::string& device, double found);
  /// Checks that the bound is not above the objective, and that a plan that is called optimal meets it.
  void check_objective_bound(double objective);
  /// The simulation is not repeated here, but no step is below its bound. Simulated times are right to 1e-6.
  void check_simulated();

  bool empty() const { return faults_.empty(); }
  std::vector<std::string> take() { return std::move(faults_); }

 private:
  const Plan& plan_;
  std::vector<std::string> faults_;
};

}  // namespace isobar
