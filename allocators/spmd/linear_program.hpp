#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace isobar::allocators::spmd {

/// A linear program over variables that are not negative. Only builds with CBC solve it (ISOBAR_HAS_CBC), by its CLP.
class LinearProgram {
 public:
  using Variable = std::size_t;
  using Terms = std::vector<std::pair<Variable, double>>;  ///< factors of variables; one may occur several times

  /// Adds a variable that the objective, which is minimized, has with a factor.
  Variable add_variable(double cost = 0);
  /// Adds to the factor of a variable in the objective.
  void add_cost(Variable variable, double cost) { costs_[variable] += cost; }
  /// Requires the sum of terms to be at least `bound`.
  void require_at_least(double bound, const Terms& terms) { add_row(bound, false, terms); }
  void require_equal(double bound, const Terms& terms) { add_row(bound, true, terms); }

  /// The values of the variables in an optimum; none if there is none. Deterministic.
  std::optional<std::vector<double>> minimize() const;

 private:
  struct Row {
    double bound = 0;
    bool is_equation = false;
  };
  struct Element {
    std::size_t row = 0;
    Variable column = 0;
    double factor = 0;
  };

  void add_row(double bound, bool is_equation, const Terms& terms);

  std::vector<double> costs_;
  std::vector<Row> rows_;
  std::vector<Element> elements_;
};

}  // namespace isobar::allocators::spmd
