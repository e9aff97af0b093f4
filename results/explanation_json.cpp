#include "results/explanation.hpp"

#include "core/text/json_text.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Explanation::Bottleneck& bottleneck)
{
  return {{"stage", bottleneck.stage ? Json(*bottleneck.stage) : Json(nullptr)},
          {"device", bottleneck.device},
          {"cost_s", bottleneck.cost.value},
          {"compute_s", bottleneck.compute.value},
          {"send_s", bottleneck.send.value},
          {"binds", bottleneck.is_transfer ? "transfer" : "compute"},
          {"links", bottleneck.links},
          {"other_stages_within_1_percent", bottleneck.near}};
}

Json to_json(const Explanation::StepPath& step)
{
  constexpr const char* kinds[] = {"compute", "data", "latency", "copy", "update"};
  Json parts = Json::array();
  for (const auto& part : step.parts) {
    parts.push_back({{"kind", kinds[static_cast<std::size_t>(part.kind)]},
                     {"stage", part.stage ? Json(*part.stage) : Json(nullptr)},
                     {"collective", part.collective ? Json(name_of(*part.collective)) : Json(nullptr)},
                     {"from", part.from},
                     {"to", part.to.empty() ? Json(nullptr) : Json(part.to)},
                     {"time_s", part.time.value},
                     {"step_fraction", part.fraction}});
  }
  Json full = Json::array();
  for (const auto& stage : step.full) {
    full.push_back({{"stage", stage.stage},
                    {"device", stage.device},
                    {"microbatches_in_flight", stage.in_flight},
                    {"waits", stage.times},
                    {"idle_s", stage.idle.value},
                    {"saved_by_one_more_s", stage.saved_by_one_more ? Json(stage.saved_by_one_more->value) : Json()}});
  }
  return {{"parts", std::move(parts)},
          {"in_flight_limits", std::move(full)},
          {"saved_without_latency_s", step.saved_without_latency.value}};
}

}  // namespace

std::string explanation_to_json(const Explanation& explanation)
{
  const auto list = [](const auto& entries, const auto& entry_of) {
    Json result = Json::array();
    for (const auto& entry : entries) result.push_back(entry_of(entry));
    return result;
  };
  const auto shares = [&list](const auto& entries, const char* what) {
    return list(entries, [what](const auto& share) {
      return Json{{what, share.name}, {"time_s", share.time.value}, {"objective_fraction", share.fraction}};
    });
  };
  const auto faster = [&list](const auto& entries, const char* what, const char* factor) {
    return list(entries, [what, factor](const auto& entry) {
      return Json{{what, entry.name}, {factor, relaxation}, {"saves_s", entry.saves.value}};
    });
  };
  Json json = {
      {"bottleneck", explanation.bottleneck ? to_json(*explanation.bottleneck) : Json(nullptr)},
      {"device_shares", shares(explanation.devices, "device")},
      {"link_shares", shares(explanation.links, "link")},
      {"full_memory",
       list(explanation.full,
            [](const auto& full) {
              return Json{{"device", full.device}, {"used_bytes", full.used.value}, {"memory_bytes", full.has.value}};
            })},
      {"faster_devices", faster(explanation.faster_devices, "device", "speed_factor")},
      {"faster_links", faster(explanation.faster_links, "link", "bandwidth_factor")},
      {"shadow_prices", list(explanation.prices,
                             [](const auto& price) {
                               return Json{{"device", price.device},
                                           {"multiplier", price.multiplier},
                                           {"saves_s", price.saves.value},
                                           {"idle", price.is_idle}};
                             })},
      {"not_worth_using", explanation.not_worth_using},
      {"gap_s", explanation.gap.value},
      {"devices_used", explanation.devices_used},
      {"devices_worth_using", explanation.worth_using ? Json(explanation.worth_using->by_speed) : Json(nullptr)},
      {"devices_worth_using_with_memory",
       explanation.worth_using ? Json(explanation.worth_using->with_memory) : Json(nullptr)}};
  if (explanation.step) json["critical_path"] = to_json(*explanation.step);
  return json_line(json);
}

}  // namespace isobar::results
