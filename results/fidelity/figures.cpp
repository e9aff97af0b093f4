#include "results/fidelity/figures.hpp"

#include <algorithm>
#include <cmath>
#include <map>

namespace isobar::results {

namespace {

using Rows = std::vector<const PredictedRow*>;
using PredictedTime = std::optional<Seconds> (*)(const PredictedRow&);

std::optional<Seconds> own_time(const PredictedRow& row)
{
  return row.prediction.step;
}

std::optional<Seconds> floor_time(const PredictedRow& row)
{
  return row.floor;
}

std::optional<Seconds> reference_time(const PredictedRow& row)
{
  return row.measured.reference;
}

Rows with_roles(const Rows& rows, const std::vector<RowRole>& roles)
{
  Rows some;
  std::ranges::copy_if(rows, std::back_inserter(some),
                       [&](const PredictedRow* row) { return std::ranges::count(roles, row->measured.role) > 0; });
  return some;
}

std::size_t count_of(const Rows& rows, RowRole role)
{
  return with_roles(rows, {role}).size();
}

/// The rows by a name, in the order of their first rows; those without the name are left out.
std::vector<std::pair<std::string, Rows>> rows_by(const Rows& rows, std::string MeasuredRow::*name)
{
  std::vector<std::pair<std::string, Rows>> parts;
  std::map<std::string, std::size_t> places;
  for (const auto* row : rows) {
    const std::string& key = row->measured.*name;
    if (key.empty()) continue;
    const auto [place, is_new] = places.try_emplace(key, parts.size());
    if (is_new) parts.emplace_back(key, Rows());
    parts[place->second].second.push_back(row);
  }
  return parts;
}

std::optional<ErrorFigures> errors_of(const std::vector<PredictedNumber>& numbers)
{
  return numbers.empty() ? std::nullopt : std::optional(error_figures(numbers));
}

std::vector<PredictedNumber> numbers_of(const Rows& rows, PredictedTime predicted)
{
  std::vector<PredictedNumber> numbers;
  for (const auto* row : rows) {
    const auto time = predicted(*row);
    if (time && row->measured.measured) numbers.push_back({time->value, row->measured.measured->value});
  }
  return numbers;
}

TimeFigures times_of(const Rows& rows, PredictedTime predicted)
{
  std::vector<std::vector<PredictedNumber>> groups;
  for (const auto& [name, members] : rows_by(rows, &MeasuredRow::group)) {
    groups.push_back(numbers_of(members, predicted));
  }
  return {errors_of(numbers_of(rows, predicted)), rank_figures(groups)};
}

RowFigures figures_of(const Rows& rows)
{
  RowFigures figures;
  figures.rows = rows.size();
  std::vector<PredictedNumber> memory;
  std::vector<PredictedNumber> reference_memory;
  Rows referenced;
  for (const auto* row : rows) {
    const MeasuredRow& measured = row->measured;
    if (row->prediction.step) ++figures.predicted;
    if (const auto inside = row->is_inside()) {
      ++figures.intervals;
      if (*inside) ++figures.inside;
    }
    if (measured.reference) referenced.push_back(row);
    if (!measured.measured_memory) continue;
    const double size = measured.measured_memory->value;
    if (row->prediction.memory) memory.push_back({row->prediction.memory->value, size});
    if (measured.reference_memory) reference_memory.push_back({measured.reference_memory->value, size});
  }
  figures.times = times_of(rows, own_time);
  figures.memory = errors_of(memory);
  figures.floor = times_of(rows, floor_time);
  figures.reference = times_of(rows, reference_time);
  figures.reference_memory = errors_of(reference_memory);
  figures.beside_reference = errors_of(numbers_of(referenced, own_time));
  return figures;
}

std::vector<GroupFigures> groups_of(const Rows& rows)
{
  std::vector<GroupFigures> groups;
  for (const auto& [name, members] : rows_by(rows, &MeasuredRow::group)) {
    Rows both;
    std::ranges::copy_if(members, std::back_inserter(both),
                         [](const PredictedRow* row) { return row->prediction.step && row->measured.measured; });
    if (both.size() < 2) continue;
    const auto chosen = std::ranges::min_element(both, {}, [](const auto* row) { return *row->prediction.step; });
    const auto best = std::ranges::min_element(both, {}, [](const auto* row) { return *row->measured.measured; });
    groups.push_back({name, both.size(), rank_figures({numbers_of(both, own_time)}), (*chosen)->measured.name,
                      (*best)->measured.name});
  }
  return groups;
}

/// The figures of the rows of a set without its derived rows.
SetFigures measured_figures(const std::string& set, const Rows& rows)
{
  SetFigures figures;
  figures.set = set;
  for (const auto role : {RowRole::Calibration, RowRole::Development, RowRole::Gate}) {
    if (const Rows some = with_roles(rows, {role}); !some.empty()) figures.by_role.emplace_back(role, figures_of(some));
  }
  for (const auto role : {RowRole::Development, RowRole::Gate}) {
    if (count_of(rows, role) > 0) figures.roles.push_back(role);
  }
  if (figures.roles.empty()) figures.roles = {RowRole::Calibration};
  figures.figures = figures_of(with_roles(rows, figures.roles));
  const Rows ran = with_roles(rows, {RowRole::Calibration, RowRole::Development, RowRole::Gate});
  figures.groups = groups_of(ran);
  const auto fits = [](const PredictedRow* row) { return row->prediction.step && row->prediction.fits; };
  const auto is_refused = [](const PredictedRow* row) { return row->prediction.step && !row->prediction.fits; };
  const Rows failed = with_roles(rows, {RowRole::Failed});
  figures.failed_runs = failed.size();
  figures.false_fits = static_cast<std::size_t>(std::ranges::count_if(failed, fits));
  figures.false_refusals = static_cast<std::size_t>(std::ranges::count_if(ran, is_refused));
  figures.excluded = count_of(rows, RowRole::Excluded);
  return figures;
}

SetFigures derived_figures(const std::string& set, const Rows& rows)
{
  SetFigures figures;
  figures.set = set;
  figures.roles = {RowRole::Derived};
  figures.figures = figures_of(rows);
  figures.groups = groups_of(rows);
  return figures;
}

}  // namespace

std::string_view PredictedRow::status() const
{
  if (measured.role == RowRole::Excluded) return "excluded";
  if (!failure.empty()) return "failed";
  return prediction.step ? "predicted" : "unsupported";
}

const std::string& PredictedRow::reason() const
{
  if (measured.role == RowRole::Excluded) return measured.note;
  return failure.empty() ? prediction.unsupported : failure;
}

std::optional<double> PredictedRow::error() const
{
  if (!prediction.step || !measured.measured) return std::nullopt;
  return *prediction.step / *measured.measured - 1;
}

std::optional<double> PredictedRow::memory_error() const
{
  if (!prediction.memory || !measured.measured_memory) return std::nullopt;
  return *prediction.memory / *measured.measured_memory - 1;
}

std::optional<bool> PredictedRow::is_inside() const
{
  if (!prediction.interval || !measured.measured) return std::nullopt;
  return *measured.measured >= prediction.interval->low && *measured.measured <= prediction.interval->high;
}

void add_floors(std::vector<PredictedRow>& rows)
{
  const auto machine_of = [](const PredictedRow& row) {
    return std::pair(row.prediction.device, row.measured.framework);
  };
  std::map<std::pair<std::string, std::string>, std::vector<double>> logarithms;  // of measured over at peak
  for (const auto& row : rows) {
    if (row.measured.role != RowRole::Calibration || !row.measured.measured || !row.prediction.at_peak) continue;
    logarithms[machine_of(row)].push_back(std::log(*row.measured.measured / *row.prediction.at_peak));
  }
  for (auto& row : rows) {
    const auto found = logarithms.find(machine_of(row));
    if (found == logarithms.end() || !row.prediction.at_peak) continue;
    double sum = 0;
    for (const double logarithm : found->second) sum += logarithm;
    row.floor = *row.prediction.at_peak * std::exp(sum / static_cast<double>(found->second.size()));
  }
}

std::optional<double> RowFigures::coverage() const
{
  if (rows == 0) return std::nullopt;
  return static_cast<double>(predicted) / static_cast<double>(rows);
}

std::optional<double> RowFigures::inside_fraction() const
{
  if (intervals == 0) return std::nullopt;
  return static_cast<double>(inside) / static_cast<double>(intervals);
}

FidelityFigures fidelity_figures(const std::vector<PredictedRow>& rows)
{
  Rows all;
  for (const auto& row : rows) all.push_back(&row);
  FidelityFigures figures;
  for (const auto& [set, members] : rows_by(all, &MeasuredRow::set)) {
    const Rows derived = with_roles(members, {RowRole::Derived});
    if (derived.size() < members.size()) figures.sets.push_back(measured_figures(set, members));
    if (!derived.empty()) figures.derived.push_back(derived_figures(set, derived));
  }
  return figures;
}

}  // namespace isobar::results
