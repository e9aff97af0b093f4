#include "results/fidelity/limits.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace isobar::results {

namespace {

constexpr double rounding_of_text = 1e-9;  // of figures that were written and read again

SetLimits limits_of(const std::string& set, const DocumentNode& node, FaultList& faults)
{
  MappingReader reader(node, set + ".", faults);
  SetLimits limits;
  limits.set = set;
  limits.line = node.line;
  limits.mean_error = reader.optional_number("mean_error_fraction");
  limits.memory_mean_error = reader.optional_number("memory_mean_error_fraction");
  limits.spearman = reader.optional_number("spearman", -1);
  limits.ordered_pairs = reader.optional_number("ordered_pairs_fraction");
  limits.regret = reader.optional_number("regret_fraction");
  limits.coverage = reader.optional_number("coverage_fraction");
  limits.inside = reader.optional_number("inside_interval_fraction");
  limits.most_inside = reader.optional_number("most_inside_interval_fraction");
  limits.rows = reader.optional_count("rows");
  reader.refuse_unknown();
  return limits;
}

/// Collects the figures of one set that are beyond their limits.
class LimitCheck {
 public:
  LimitCheck(const FidelityLimits& limits, const SetLimits& set, std::vector<std::string>& lines)
      : place_(fmt::format("{}:{}: {}", on_one_line(limits.file), set.line, on_one_line(set.set))), lines_(lines)
  {
  }

  void at_most(const char* key, std::optional<double> figure, std::optional<double> limit, double tolerance = 0)
  {
    if (!limit || (figure && *figure <= *limit + tolerance + rounding_of_text)) return;
    add(key, figure, fmt::format("{:.6g}", *limit) + (tolerance > 0 ? fmt::format(" + {:.6g}", tolerance) : ""));
  }

  void at_least(const char* key, std::optional<double> figure, std::optional<double> limit)
  {
    if (!limit || (figure && *figure >= *limit - rounding_of_text)) return;
    add(key, figure, fmt::format("{:.6g}", *limit));
  }

 private:
  void add(const char* key, std::optional<double> figure, const std::string& limit)
  {
    const std::string is = figure ? fmt::format("is {:.6g}", *figure) : "has no value";
    lines_.push_back(fmt::format("{}: {} {}; the limit is {}", place_, key, is, limit));
  }

  std::string place_;
  std::vector<std::string>& lines_;
};

std::optional<double> mean_of(const std::optional<ErrorFigures>& errors)
{
  return errors ? std::optional(errors->mean) : std::nullopt;
}

}  // namespace

FidelityLimits read_fidelity_limits(const std::filesystem::path& file, const std::vector<std::string>& sets)
{
  FidelityLimits limits;
  limits.file = file.string();
  const std::string text = read_file(file);
  const DocumentNode root = file.extension() == ".json" ? parse_json(text, limits.file) : parse_yaml(text, limits.file);
  FaultList faults(limits.file);
  MappingReader reader(root, "", faults);
  limits.tolerance = reader.optional_number("tolerance_fraction").value_or(0);
  const DocumentNode* members = reader.required("sets");
  reader.refuse_unknown();
  if (members != nullptr && members->kind != DocumentNode::Kind::Mapping) {
    faults.add(members->line, "sets", "has no names of sets; write set: {mean_error_fraction: 0.05}");
  } else if (members != nullptr) {
    for (const auto& [set, node] : members->members) {
      limits.sets.push_back(limits_of(set, node, faults));
      if (std::ranges::count(sets, set) > 0) continue;
      faults.add(node.line, set, fmt::format("no row is of this set; the files have {}", fmt::join(sets, ", ")));
    }
  }
  faults.throw_if_any();
  return limits;
}

std::vector<std::string> beyond_limits(const FidelityLimits& limits, const FidelityFigures& figures)
{
  std::vector<std::string> lines;
  for (const auto& limit : limits.sets) {
    auto found = std::ranges::find(figures.sets, limit.set, &SetFigures::set);
    if (found == figures.sets.end()) {
      found = std::ranges::find(figures.derived, limit.set, &SetFigures::set);
      ensure(found != figures.derived.end(), "limits of a set without rows");
    }
    const RowFigures& set = found->figures;
    LimitCheck check(limits, limit, lines);
    check.at_most("mean_error_fraction", mean_of(set.times.errors), limit.mean_error, limits.tolerance);
    check.at_most("memory_mean_error_fraction", mean_of(set.memory), limit.memory_mean_error, limits.tolerance);
    check.at_least("spearman", set.times.ranks.spearman, limit.spearman);
    check.at_least("ordered_pairs_fraction", set.times.ranks.ordered_pairs, limit.ordered_pairs);
    check.at_most("regret_fraction", set.times.ranks.mean_regret, limit.regret);
    check.at_least("coverage_fraction", set.coverage(), limit.coverage);
    check.at_least("inside_interval_fraction", set.inside_fraction(), limit.inside);
    check.at_most("most_inside_interval_fraction", set.inside_fraction(), limit.most_inside);
    check.at_least("rows", static_cast<double>(set.rows),
                   limit.rows ? std::optional(static_cast<double>(*limit.rows)) : std::nullopt);
  }
  return lines;
}

}  // namespace isobar::results
