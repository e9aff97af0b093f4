#include "allocators/spmd/linear_program.hpp"

#ifdef ISOBAR_HAS_CBC
#include <coin/ClpSimplex.hpp>
#include <coin/CoinPackedMatrix.hpp>
#endif

namespace isobar::allocators::spmd {

LinearProgram::Variable LinearProgram::add_variable(double cost)
{
  costs_.push_back(cost);
  return costs_.size() - 1;
}

void LinearProgram::add_row(double bound, bool is_equation, const Terms& terms)
{
  for (const auto& [column, factor] : terms) elements_.push_back({rows_.size(), column, factor});
  rows_.push_back({bound, is_equation});
}

#ifdef ISOBAR_HAS_CBC

std::optional<std::vector<double>> LinearProgram::minimize() const
{
  std::vector<int> rows;
  std::vector<int> columns;
  std::vector<double> factors;
  for (const auto& element : elements_) {
    rows.push_back(static_cast<int>(element.row));
    columns.push_back(static_cast<int>(element.column));
    factors.push_back(element.factor);
  }
  std::vector<double> lower;
  std::vector<double> upper;
  for (const auto& row : rows_) {
    lower.push_back(row.bound);
    upper.push_back(row.is_equation ? row.bound : COIN_DBL_MAX);
  }
  // Adds up elements at the same place.
  CoinPackedMatrix matrix(true, rows.data(), columns.data(), factors.data(), static_cast<CoinBigIndex>(factors.size()));
  // Without this, variables that stand in no row, and rows without variables, are left out.
  matrix.setDimensions(static_cast<int>(rows_.size()), static_cast<int>(costs_.size()));
  ClpSimplex simplex;
  simplex.setLogLevel(0);
  simplex.loadProblem(matrix, nullptr, nullptr, costs_.data(), lower.data(), upper.data());
  simplex.dual();
  if (simplex.status() != 0) return std::nullopt;
  const double* values = simplex.primalColumnSolution();
  return std::vector<double>(values, values + costs_.size());
}

#else

std::optional<std::vector<double>> LinearProgram::minimize() const
{
  return std::nullopt;
}

#endif

}  // namespace isobar::allocators::spmd
