#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "core/text/xml_writer.hpp"
#include "results/gate/baseline.hpp"
#include "results/markdown_table.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kinds = {ChangeKind::Worse, ChangeKind::Better, ChangeKind::New, ChangeKind::Missing,
                              ChangeKind::Failed};

const char* times_of(const BaselineCheck& check)
{
  return check.schedules ? "mean completion time" : "step time";
}

std::string mean_text(const BaselineCheck& check)
{
  const TimeRatio& ratio = check.times;
  if (!ratio.geometric_mean) return fmt::format("no {} to compare", times_of(check));
  return fmt::format("geometric mean of {}s, new / old: {:.6f} ({})", times_of(check), *ratio.geometric_mean,
                     counted(ratio.rows, "row"));
}

/// "240 rows, unchanged from FILE", or the number of changes by kind.
std::string summary_of(const BaselineCheck& check, const std::string& against)
{
  if (check.changes.empty()) return fmt::format("{}, unchanged from {}", counted(check.rows.size(), "row"), against);
  std::string counts;
  for (const auto kind : kinds) {
    const auto count = std::count_if(check.changes.begin(), check.changes.end(),
                                     [kind](const Change& change) { return change.kind == kind; });
    if (count > 0) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, name_of(kind));
  }
  return fmt::format("{}, changed from {}: {}", counted(check.rows.size(), "row"), against, counts);
}

std::string plan_time_text(const PlanTime& time)
{
  return fmt::format("planning takes {:.3g} times as long as even", time.ratio_to_even) +
         (time.limit ? fmt::format("; the limit is {:.3g}", *time.limit) : "");
}

Json value_of(const DocumentNode& value)
{
  return value.quoted ? Json(value.scalar) : Json(std::stoull(value.scalar));
}

}  // namespace

std::string check_to_text(const BaselineCheck& check, const std::string& against)
{
  std::string text;
  for (const auto& change : check.changes) {
    text += fmt::format("{:8}{}: {}\n", name_of(change.kind), change.row.text(), change.what);
  }
  for (const auto& time : check.plan_times) {
    if (time.is_over()) text += fmt::format("{:8}{}: {}\n", "slower", time.allocator, plan_time_text(time));
  }
  return text + summary_of(check, against) + "\n" + mean_text(check) + "\n";
}

std::string check_to_json(const BaselineCheck& check, const std::string& against)
{
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  const auto mean = [&number](const TimeRatio& ratio) {
    return Json{{"rows", ratio.rows}, {"geometric_mean", number(ratio.geometric_mean)}};
  };
  Json changes = Json::array();
  for (const auto& change : check.changes) {
    Json object = {{"change", name_of(change.kind)}};
    for (const auto& [key, value] : change.row.key) object[key] = value_of(value);
    object["what"] = change.what;
    changes.push_back(std::move(object));
  }
  Json by_maker = Json::object();
  for (const auto& [maker, ratio] : check.times_by_maker) by_maker[maker] = mean(ratio);
  Json plan_times = Json::array();
  for (const auto& time : check.plan_times) {
    plan_times.push_back({{"allocator", time.allocator},
                          {"ratio_to_even", time.ratio_to_even},
                          {"limit", number(time.limit)},
                          {"is_over", time.is_over()}});
  }
  const Json document = {{"schema", "isobar-check/1"},
                         {"against", against},
                         {"holds", check.holds()},
                         {"rows", check.rows.size()},
                         {"changes", std::move(changes)},
                         {check.schedules ? "mean_jcts" : "step_times", mean(check.times)},
                         {check.schedules ? "mean_jcts_by_policy" : "step_times_by_allocator", std::move(by_maker)},
                         {"plan_times", std::move(plan_times)}};
  return json_lines(document);
}

std::string check_to_markdown(const BaselineCheck& check, const std::string& against)
{
  constexpr std::size_t most_shown = 100;  // a comment holds 65,536 characters
  std::string text =
      fmt::format("### Quality of {}: {}\n\n{}; {}.\n", check.schedules ? "schedules" : "plans",
                  check.holds() ? "unchanged" : "changed", markdown_cell(summary_of(check, against)), mean_text(check));
  if (!check.changes.empty()) text += "\n| change | row | what |\n|---|---|---|\n";
  for (std::size_t i = 0; i < std::min(check.changes.size(), most_shown); ++i) {
    const Change& change = check.changes[i];
    text += fmt::format("| {} | {} | {} |\n", name_of(change.kind), markdown_cell(change.row.text()),
                        markdown_cell(change.what));
  }
  if (check.changes.size() > most_shown) text += fmt::format("\nAnd {} more.\n", check.changes.size() - most_shown);
  if (check.schedules) {
    text += "\n| scheduling policy | mean completion times, new / old |\n|---|---|\n";
    for (const auto& [policy, ratio] : check.times_by_maker) {
      text += fmt::format("| {} | {:.6f} |\n", markdown_cell(policy), ratio.geometric_mean.value());
    }
    return text;
  }
  text += "\n| allocator | step times, new / old | plan time / even's | limit |\n|---|---|---|---|\n";
  for (const auto& [allocator, ratio] : check.times_by_maker) {
    const auto time = std::find_if(check.plan_times.begin(), check.plan_times.end(),
                                   [&name = allocator](const PlanTime& one) { return one.allocator == name; });
    const bool is_timed = time != check.plan_times.end();
    text +=
        fmt::format("| {} | {:.6f} | {} | {} |\n", markdown_cell(allocator), ratio.geometric_mean.value(),
                    is_timed ? fmt::format("{:.3g}{}", time->ratio_to_even, time->is_over() ? ", too slow" : "") : "–",
                    is_timed && time->limit ? fmt::format("{:.3g}", *time->limit) : "–");
  }
  return text;
}

std::string check_to_junit(const BaselineCheck& check, const std::string& against)
{
  struct TestCase {
    std::string group;
    std::string name;
    std::string failure;  // empty: passed
  };
  std::map<RowLabel, const Change*> changes;
  for (const auto& change : check.changes) changes[change.row] = &change;
  const auto failure_of = [](const Change& change) { return fmt::format("{}: {}", name_of(change.kind), change.what); };
  std::vector<TestCase> cases;
  for (const auto& row : check.rows) {
    const auto change = changes.find(row);
    cases.push_back({row.group, row.name, change == changes.end() ? "" : failure_of(*change->second)});
  }
  for (const auto& change : check.changes) {
    if (change.kind == ChangeKind::Missing) cases.push_back({change.row.group, change.row.name, failure_of(change)});
  }
  for (const auto& time : check.plan_times) {
    cases.push_back({"plan time", time.allocator, time.is_over() ? "slower: " + plan_time_text(time) : ""});
  }
  const auto failures =
      std::ranges::count_if(cases, [](const TestCase& test_case) { return !test_case.failure.empty(); });

  XmlWriter xml;
  xml.prolog("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
  xml.open("testsuite", {{"name", "isobar check " + against},
                         {"tests", std::to_string(cases.size())},
                         {"failures", std::to_string(failures)}});
  for (const auto& [group, name, failure] : cases) {
    if (failure.empty()) {
      xml.element("testcase", {{"classname", group}, {"name", name}});
      continue;
    }
    xml.open("testcase", {{"classname", group}, {"name", name}});
    xml.element("failure", {{"message", failure}});
    xml.close();
  }
  xml.close();
  return std::move(xml).finished();
}

}  // namespace isobar::results
