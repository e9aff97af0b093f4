#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/outer/outer.hpp"
#include "core/plan/plan_file_reading.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace isobar {

namespace {

using Json = nlohmann::ordered_json;

class OuterPlanReader {
 public:
  explicit OuterPlanReader(const std::filesystem::path& file) : name_(file.string()), faults_(name_) {}

  OuterPlan read()
  {
    const DocumentNode document = parse_json(read_file(name_), name_);
    MappingReader reader(document, "", faults_);
    reader.required_choice("schema", {rounds_schema});
    if (reader.has("schema")) faults_.throw_if_any();  // keys of another schema mean something else
    plan_.allocator = reader.required_text("allocator");
    plan_.outer =
        read_mapping<Outer>(reader, "outer", faults_, [&](MappingReader& outer) { return read_outer(outer); });
    add_workers(reader);
    if (reader.has("left_out")) {
      plan_.left_out = read_objects<LeftOutSite>(reader, "left_out", faults_, [](MappingReader& site) {
        return LeftOutSite{site.required_text("site"), site.required_text("reason")};
      });
    }
    plan_.predicted = read_mapping<PredictedRound>(reader, "predicted", faults_,
                                                   [&](MappingReader& predicted) { return read_predicted(predicted); });
    plan_.round_bound = Seconds(reader.required_number("round_bound_s"));
    read_mapping<int>(reader, "wall", faults_, [&](MappingReader& wall) {
      plan_.search_time = Seconds(wall.required_number("search_s"));
      return 0;
    });
    reader.refuse_unknown();
    faults_.throw_if_any();
    return std::move(plan_);
  }

 private:
  Outer read_outer(MappingReader& reader)
  {
    Outer outer;
    outer.steps = reader.required_count("steps", 1, most_inner_steps);
    outer.fragments = reader.required_count("fragments", 1, most_fragments);
    outer.delay = reader.required_count("delay", 0, most_inner_steps);
    outer.algorithm =
        algorithm_from_name(reader.required_choice("algorithm", outer_algorithm_names())).value_or(Algorithm::Ring);
    if (const DocumentNode* codec = reader.required("codec")) read_codec(reader, *codec, outer);
    outer.learning_rate = reader.required_number("learning_rate");
    outer.momentum = reader.required_number("momentum");
    outer.mixing = reader.required_number("mixing");
    if (!faults_.empty()) return outer;
    if (outer.fragments > outer.steps) {
      reader.add_fault("fragments", fmt::format("{}, more than the {} steps of a round", outer.fragments, outer.steps));
    }
    if (outer.momentum >= 1) reader.add_fault("momentum", fmt::format("{} is not below 1", outer.momentum));
    if (outer.mixing >= 1) reader.add_fault("mixing", fmt::format("{} is not below 1", outer.mixing));
    return outer;
  }

  static void read_codec(MappingReader& reader, const DocumentNode& node, Outer& outer)
  {
    if (node.kind != DocumentNode::Kind::Scalar || !node.is_text) {
      return reader.add_fault("codec", "is not a string; write one such as \"int8\"");
    }
    try {
      outer.codec = codec_from_text(node.scalar);
    } catch (const InputError& fault) {
      reader.add_fault("codec", fault.what());
    }
  }

  void add_workers(MappingReader& reader)
  {
    std::set<std::string> names;
    std::set<std::string> devices;
    plan_.workers = read_objects<OuterWorker>(reader, "workers", faults_, [&](MappingReader& worker) {
      OuterWorker own;
      own.name = worker.required_text("name");
      if (worker.has("name") && !names.insert(own.name).second) {
        worker.add_fault("name", in_quotes(own.name) + " is the name of another worker too; give each its own");
      }
      own.steps = worker.required_count("steps", 1, most_inner_steps);
      if (faults_.empty() && own.steps > plan_.outer.steps) {
        worker.add_fault("steps", fmt::format("{}, more than outer.steps, {}", own.steps, plan_.outer.steps));
      } else if (faults_.empty() && own.steps <= plan_.outer.delay) {
        worker.add_fault("steps", fmt::format("{}, no more than outer.delay, {}", own.steps, plan_.outer.delay));
      } else if (faults_.empty() && own.steps < plan_.outer.fragments) {
        worker.add_fault("steps", fmt::format("{}, fewer than outer.fragments, {}", own.steps, plan_.outer.fragments));
      }
      if (const DocumentNode* plan = worker.required("plan")) add_plan(worker, *plan, own, devices);
      return own;
    });
    for (std::size_t k = 1; faults_.empty() && k < plan_.workers.size(); ++k) {
      const Fingerprint& first = plan_.workers.front().plan.workload;
      const Fingerprint& other = plan_.workers[k].plan.workload;
      if (first.hash == other.hash) continue;
      reader.add_fault("workers",
                       fmt::format("the plan of {} is for workload {}, that of {} for {}", plan_.workers[k].name,
                                   text_of(other), plan_.workers.front().name, text_of(first)));
    }
    if (faults_.empty() && plan_.workers.size() < 2) {
      reader.add_fault("workers", fmt::format("has {}; rounds need 2 or more", plan_.workers.size()));
    }
  }

  void add_plan(MappingReader& worker, const DocumentNode& node, OuterWorker& own, std::set<std::string>& devices)
  {
    own.plan = plan_from_document(node, name_, worker.path_of("plan."));
    if (own.plan.stages.empty()) return worker.add_fault("plan", "has no stages; a worker needs a feasible plan");
    for (const auto& device : devices_of(own.plan)) {
      if (!devices.insert(device).second) {
        worker.add_fault("plan", "uses device " + in_quotes(device) + ", which another worker has");
      }
    }
  }

  PredictedRound read_predicted(MappingReader& reader)
  {
    PredictedRound predicted;
    predicted.round_time = Seconds(reader.required_number("round_time_s"));
    predicted.slowest_steps = Seconds(reader.required_number("slowest_steps_s"));
    predicted.traffic = read_objects<OuterTraffic>(reader, "traffic", faults_, [](MappingReader& pair) {
      return OuterTraffic{pair.required_text("from"), pair.required_text("to"), Bytes(pair.required_number("bytes"))};
    });
    return predicted;
  }

  std::string name_;
  FaultList faults_;
  OuterPlan plan_;
};

}  // namespace

std::vector<std::string> outer_algorithm_names()
{
  std::vector<std::string> names;
  for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::Direct, Algorithm::Server}) {
    names.emplace_back(name_of(algorithm));
  }
  return names;
}

std::string outer_plan_to_json(const OuterPlan& plan)
{
  const Outer& outer = plan.outer;
  Json workers = Json::array();
  for (const auto& [name, steps, own] : plan.workers) {
    workers.push_back({{"name", name}, {"steps", steps}, {"plan", Json::parse(lasting_plan_to_json(own))}});
  }
  Json traffic = Json::array();
  for (const auto& [from, to, bytes] : plan.predicted.traffic) {
    traffic.push_back({{"from", from}, {"to", to}, {"bytes", bytes.value}});
  }
  Json document = {{"schema", rounds_schema},
                   {"allocator", plan.allocator},
                   {"outer",
                    {{"steps", outer.steps},
                     {"fragments", outer.fragments},
                     {"delay", outer.delay},
                     {"algorithm", name_of(outer.algorithm)},
                     {"codec", text_of(outer.codec)},
                     {"learning_rate", outer.learning_rate},
                     {"momentum", outer.momentum},
                     {"mixing", outer.mixing}}},
                   {"workers", std::move(workers)}};
  if (!plan.left_out.empty()) {
    Json& sites = document["left_out"] = Json::array();
    for (const auto& [site, reason] : plan.left_out) sites.push_back({{"site", site}, {"reason", reason}});
  }
  document["predicted"] = {{"round_time_s", plan.predicted.round_time.value},
                           {"slowest_steps_s", plan.predicted.slowest_steps.value},
                           {"traffic", std::move(traffic)}};
  document["round_bound_s"] = plan.round_bound.value;
  document["wall"] = {{"search_s", plan.search_time.value}};
  return json_lines(document);
}

OuterPlan read_outer_plan(const std::filesystem::path& file)
{
  return OuterPlanReader(file).read();
}

bool is_outer_plan(const std::filesystem::path& file)
{
  try {
    const DocumentNode document = parse_json(read_file(file), file.string());
    return std::ranges::any_of(document.members, [](const DocumentNode::Member& member) {
      return member.key == "schema" && member.value.scalar == rounds_schema;
    });
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace isobar
