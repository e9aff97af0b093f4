#include "cli/explanation_text.hpp"

#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace isobar::cli {

namespace {

using results::ComparisonRow;
using results::Explanation;

/// Most names, shares, prices or links in one list; the JSON has all.
constexpr std::size_t most_shown = 3;

template <typename Entries, typename TextOf>
std::string first_few(const Entries& entries, const TextOf& text_of_entry, const char* separator = ", ")
{
  std::string text;
  for (std::size_t i = 0; i < std::min(most_shown, entries.size()); ++i) {
    text += (i == 0 ? "" : separator) + text_of_entry(entries[i]);
  }
  if (entries.size() > most_shown) text += fmt::format(" and {} more", entries.size() - most_shown);
  return text;
}

std::string percent(double fraction)
{
  return fmt::format("{:.1f} %", 100 * fraction);
}

std::string plain(const std::string& name)
{
  return name;
}

std::string text_of_bottleneck(const Explanation::Bottleneck& bottleneck, const Goal& goal)
{
  const std::string where = bottleneck.stage ? fmt::format("stage {} on {}", *bottleneck.stage, bottleneck.device)
                                             : fmt::format("input from {}", bottleneck.device);
  std::string text = fmt::format("  largest stage cost: {}, {}, ", where, text_of(bottleneck.cost));
  if (bottleneck.is_transfer) {
    text += fmt::format("by its transfers over {}", first_few(bottleneck.links, plain));
    if (goal.communication == Communication::Serial) text += fmt::format(" ({})", text_of(bottleneck.send));
  } else {
    text += "by its compute";
    if (goal.communication == Communication::Serial) text += fmt::format(" ({})", text_of(bottleneck.compute));
  }
  if (bottleneck.near > 0) {
    text += fmt::format("; {} other stage{} within 1 %", bottleneck.near, bottleneck.near == 1 ? "" : "s");
  }
  return text + "\n";
}

std::string text_of_part(const Explanation::PathPart& part)
{
  return part.to.empty() ? fmt::format("{} {}", part.from, percent(part.fraction))
                         : fmt::format("{} to {} {}", part.from, part.to, percent(part.fraction));
}

/// "60.0 % for compute: d3 50.0 %, d1 10.0 %"; the parts are of one kind, the largest first.
std::string text_of_kind(const char* kind, const std::vector<Explanation::PathPart>& parts)
{
  double fraction = 0;
  for (const auto& part : parts) fraction += part.fraction;
  return fmt::format("    {} for {}{}\n", percent(fraction), kind,
                     parts.empty() ? "" : ": " + first_few(parts, text_of_part));
}

/// "    20.0 % in collectives: parameter gradient 15.0 %, activation 5.0 %"; "" without one.
std::string text_of_collectives(const std::vector<Explanation::PathPart>& parts)
{
  std::map<Payload, double> fractions;
  double all = 0;
  for (const auto& part : parts) {
    if (!part.collective) continue;
    fractions[*part.collective] += part.fraction;
    all += part.fraction;
  }
  if (fractions.empty()) return "";
  std::vector<std::pair<Payload, double>> largest_first(fractions.begin(), fractions.end());
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return fmt::format("    {} of these bytes and latencies in collectives: {}\n", percent(all),
                     first_few(largest_first, [](const auto& entry) {
                       return fmt::format("{} {}", name_of(entry.first), percent(entry.second));
                     }));
}

/// The parts of one kind, the largest first; those of different stages or data on the same devices as one.
std::vector<Explanation::PathPart> parts_of(const Explanation::StepPath& step, Explanation::PathPart::Kind kind)
{
  std::vector<Explanation::PathPart> parts;
  for (const auto& part : step.parts) {
    if (part.kind != kind) continue;
    const auto same = std::find_if(parts.begin(), parts.end(),
                                   [&](const auto& other) { return other.from == part.from && other.to == part.to; });
    if (same == parts.end()) {
      parts.push_back(part);
    } else {
      same->fraction += part.fraction;
    }
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.fraction > b.fraction; });
  return parts;
}

/// The critical path of a step, and what would shorten it apart from faster devices and links.
std::string text_of_step(const Explanation::StepPath& step, Seconds objective)
{
  using Kind = Explanation::PathPart::Kind;
  const std::vector<Explanation::PathPart> parts[3] = {parts_of(step, Kind::Compute), parts_of(step, Kind::Data),
                                                       parts_of(step, Kind::Latency)};
  const auto& latencies = parts[static_cast<std::size_t>(Kind::Latency)];
  std::string text = "  the step waits\n";
  text += text_of_kind("compute", parts[static_cast<std::size_t>(Kind::Compute)]);
  text += text_of_kind("bytes", parts[static_cast<std::size_t>(Kind::Data)]);
  text += text_of_kind("latency", latencies);
  text += text_of_collectives(step.parts);
  for (const auto& [kind, what] : {std::pair(Kind::Copy, "copies between device and machine"),
                                   std::pair(Kind::Update, "updates by the machine")}) {
    const auto of_kind = parts_of(step, kind);
    if (!of_kind.empty()) text += text_of_kind(what, of_kind);
  }
  const auto saved = [objective](Seconds time) {
    return time <= 1e-9 * objective ? std::string("nothing")
                                    : fmt::format("{} ({})", text_of(time), percent(time / objective));
  };
  if (!step.full.empty()) {
    const auto& first = step.full.front();
    text += fmt::format("  idle with a micro-batch at hand: {} for {}, with {} in flight, its limit", first.device,
                        text_of(first.idle), first.in_flight);
    if (step.full.size() > 1) text += fmt::format(", and {} more", step.full.size() - 1);
    text += fmt::format("; one more in flight there and before it saves {}\n", saved(first.saved_by_one_more.value()));
  }
  if (!latencies.empty()) {
    text += fmt::format("  without any latency this placement saves {}\n", saved(step.saved_without_latency));
  }
  return text;
}

std::string text_of_shares(const Explanation& explanation)
{
  const auto share = [](const auto& entry) { return fmt::format("{} {}", entry.name, percent(entry.fraction)); };
  std::string text = fmt::format("  largest shares: {}", first_few(explanation.devices, share));
  if (!explanation.links.empty()) {
    text += fmt::format("{}links {}", explanation.devices.empty() ? "" : "; ", first_few(explanation.links, share));
  }
  return text + "\n";
}

/// The best relaxation of a kind; the JSON has all that were tried.
std::string text_of_faster(const std::vector<Explanation::Relaxation>& relaxations, const char* what, Seconds objective)
{
  if (relaxations.empty()) return "";
  const auto& best = relaxations.front();
  if (best.saves <= 1e-9 * objective)
    return fmt::format("  10 % more {} of any one of those tried saves nothing\n", what);
  return fmt::format("  10 % more {} of {} saves {} ({})\n", what, best.name, text_of(best.saves),
                     percent(best.saves / objective));
}

std::string text_of_prices(const Explanation& explanation, const Goal& goal)
{
  std::string text;
  if (!explanation.prices.empty()) {
    const bool is_fraction = goal.objective == Objective::Bottleneck;
    text += fmt::format("  one more device lowers the bound by {}: {}\n", is_fraction ? "about" : "at most",
                        first_few(explanation.prices, [](const auto& price) {
                          return fmt::format("{} (like {}{})", text_of(price.saves), price.device,
                                             price.is_idle ? ", which is idle" : "");
                        }));
  }
  if (!explanation.not_worth_using.empty()) {
    text += fmt::format("  idle, and without effect on the bound: {}\n", first_few(explanation.not_worth_using, plain));
  }
  return text;
}

std::string block_of(const ComparisonRow& row)
{
  const Explanation& explanation = *row.explanation;
  const Seconds objective = row.objective.value();
  std::string text = fmt::format("{}, {} ({}, M = {}{}, communication {}): {:.6g} s\n", row.allocator,
                                 name_of(row.goal.objective), text_of(row.goal.schedule), row.goal.microbatches,
                                 row.recompute == "none" ? "" : ", recompute " + row.recompute,
                                 name_of(row.goal.communication), objective.value);
  if (explanation.step) {
    text += text_of_step(*explanation.step, objective);
  } else {
    text += text_of_bottleneck(explanation.bottleneck.value(), row.goal);
    if (row.goal.objective != Objective::Bottleneck) text += text_of_shares(explanation);
  }
  if (!explanation.full.empty()) {
    text +=
        fmt::format("  no room in memory for another layer: {}\n", first_few(explanation.full, [](const auto& full) {
                      return fmt::format("{} ({} of {})", full.device, text_of(full.used), text_of(full.has));
                    }));
  }
  text += text_of_faster(explanation.faster_devices, "speed", objective);
  text += text_of_faster(explanation.faster_links, "bandwidth", objective);
  text += text_of_prices(explanation, row.goal);
  const auto scope = results::scope_of_bound(row);
  text += row.outcome == "optimal" ? fmt::format("  no {} has a lower objective\n", scope)
                                   : fmt::format("  no {} has an objective lower by more than {} ({})\n", scope,
                                                 text_of(explanation.gap), percent(explanation.gap / objective));
  return text;
}

bool is_same(const Goal& a, const Goal& b)
{
  return a.objective == b.objective && a.schedule == b.schedule && a.microbatches == b.microbatches;
}

/// "" without a count. "pipeline, M = 8: 36 of 63 devices are worth using …; chain-dp uses 37, even 63".
std::string device_counts_of(const std::vector<const ComparisonRow*>& rows, std::size_t devices)
{
  const ComparisonRow& first = *rows.front();
  if (!first.explanation->worth_using) return "";
  const results::DeviceCount& worth = *first.explanation->worth_using;
  std::string text = fmt::format("{}, M = {}: if transfers were free, {} of {} devices would be worth using",
                                 name_of(first.goal.objective), first.goal.microbatches, worth.by_speed, devices);
  if (worth.with_memory != worth.by_speed) text += fmt::format(", the fastest {} to hold the model", worth.with_memory);
  text += ";";
  for (const auto* row : rows) {
    text +=
        fmt::format("{} {} uses {}", row == rows.front() ? "" : ",", row->allocator, row->explanation->devices_used);
  }
  return text + "\n";
}

}  // namespace

std::string explanations_of(const std::vector<ComparisonRow>& rows, std::size_t devices)
{
  std::string text;
  std::vector<std::vector<const ComparisonRow*>> by_goal;
  for (const auto& row : rows) {
    if (!row.explanation) continue;
    text += "\n" + block_of(row);
    const auto group = std::find_if(by_goal.begin(), by_goal.end(),
                                    [&row](const auto& others) { return is_same(others.front()->goal, row.goal); });
    if (group == by_goal.end()) {
      by_goal.push_back({&row});
    } else {
      group->push_back(&row);
    }
  }
  if (!by_goal.empty()) text += "\n";
  for (const auto& group : by_goal) text += device_counts_of(group, devices);
  return text;
}

}  // namespace isobar::cli
