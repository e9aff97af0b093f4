#include "core/plan/plan_file.hpp"

#include "core/base/file_kind.hpp"
#include "core/base/files.hpp"
#include "core/model/model_limits.hpp"
#include "core/order/order_text.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/plan_file_2.hpp"
#include "core/plan/plan_file_reading.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/system_rules.hpp"
#include "core/text/document.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

namespace isobar {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto schema_1 = "isobar-plan/1";
constexpr auto schema_2 = "isobar-plan/2";

/// Whether isobar-plan/1 can express a plan: then it is written so, and keeps its hash.
bool fits_schema_1(const Plan& plan)
{
  return is_chain(plan) && !plan.schedule_bound && !plan.routing;
}

/// Adds what an executor needs to know of a device.
void describe(const Shard& shard, Json& object)
{
  if (shard.slowdown) object["slowdown"] = *shard.slowdown;
  if (shard.memory) object["memory_bytes"] = shard.memory->value;
  if (shard.type) object["type"] = *shard.type;
}

Json to_json_1(const Stage& stage)
{
  Json device = {{"name", stage.device()}, {"share", stage.shard().share}};
  describe(stage.shard(), device);
  return {{"devices", Json::array({std::move(device)})},
          {"first_layer", stage.first_layer},
          {"last_layer", stage.last_layer}};
}

Json to_json(const Residence& residence, std::size_t resident_parts)
{
  Json object = {{"parameters", name_of(residence.parameters)},
                 {"gradients", name_of(residence.gradients)},
                 {"optimizer", name_of(residence.optimizer)}};
  if (residence.activations != Tier::Device) object["activations"] = name_of(residence.activations);
  if (resident_parts > 0) object["resident_parts"] = resident_parts;
  if (residence.parameter_slots > 0) object["parameter_slots"] = residence.parameter_slots;
  if (residence.gradient_slots > 0) object["gradient_slots"] = residence.gradient_slots;
  if (residence.optimizer != Tier::Device) object["overlap"] = name_of(residence.overlap);
  if (residence.copies != Copies::Lean) object["copies"] = name_of(residence.copies);
  return object;
}

/// What a file says of a stage whose parts, first..last of the plan's stages, do not all live on their devices.
void describe_residence(const std::vector<Stage>& stages, std::size_t first, std::size_t last, Json& object)
{
  if (stages[last].residence.is_on_device()) return;
  bool has_one_layer_each = true;
  std::size_t resident = 0;
  Json cuts = Json::array();
  for (std::size_t i = first; i <= last; ++i) {
    has_one_layer_each = has_one_layer_each && stages[i].first_layer == stages[i].last_layer;
    if (i > first) cuts.push_back(stages[i].first_layer);
    if (stages[i].residence.is_on_device()) ++resident;
  }
  if (last > first) object["cuts"] = has_one_layer_each ? Json("layers") : std::move(cuts);
  object["residence"] = to_json(stages[last].residence, resident);
}

/// What a file says of a stage whose parts, first..last of the plan's stages, divide operators.
void describe_division(const std::vector<Stage>& stages, std::size_t first, std::size_t last, Json& object)
{
  if (!divides_operators(stages[first])) return;
  object["splits"] = Json::object();
  Json cuts = Json::array();
  for (std::size_t i = first; i <= last; ++i) {
    if (i > first) cuts.push_back(stages[i].first_layer);
    for (const auto& [layer, split] : stages[i].splits) object["splits"][layer] = split;
  }
  if (!cuts.empty()) object["cuts"] = std::move(cuts);
}

Json to_json_2(const Stage& stage, std::uint64_t microbatches)
{
  Json replicas = Json::array();
  for (const auto& replica : stage.replicas) {
    Json shards = Json::array();
    for (const auto& shard : replica.shards) {
      Json object = {{"device", shard.device}};
      if (shard.share != 1) object["share"] = shard.share;
      describe(shard, object);
      if (shard.site && has_shared_stages({stage})) object["site"] = *shard.site;
      shards.push_back(std::move(object));
    }
    Json object = Json::object();
    const bool takes_samples = divides_operators(stage) && stage.replicas.size() > 1;
    if (!takes_samples) object["microbatches"] = replica.microbatches > 0 ? replica.microbatches : microbatches;
    object["shards"] = std::move(shards);
    replicas.push_back(std::move(object));
  }
  Json object = {{"first_layer", stage.first_layer}, {"last_layer", stage.last_layer}};
  Json splits = Json::object();
  for (const auto& [layers, split] : stage.splits) splits[layers] = split;
  if (stage.grid.form != ShardGrid::Form::OneD) splits[all_layers] = name_of(stage.grid.form);
  if (!splits.empty()) object["splits"] = std::move(splits);
  if (stage.grid.is_grid()) object["grid"] = sides_of(stage.grid);
  object["replicas"] = std::move(replicas);
  return object;
}

Json to_json(const Order& order)
{
  Json runs = Json::array();
  for (const auto& run : run_texts_of(order)) runs.push_back(Json::array({run.times, run.slots}));
  return runs;
}

Json to_json(const ScheduleChoice& schedule)
{
  Json object = {{"name", schedule.name}};
  for (const auto& [key, numbers] : schedule.numbers) {
    object[key] = numbers.size() == 1 ? Json(numbers.front()) : Json(numbers);
  }
  if (schedule.orders.empty()) return object;
  object["orders"] = Json::object();
  for (const auto& [device, order] : schedule.orders) object["orders"][device] = to_json(order);
  return object;
}

Json to_json(const std::map<std::string, Bytes>& sizes)
{
  Json object = Json::object();
  for (const auto& [name, size] : sizes) object[name] = size.value;
  return object;
}

Json to_json(const Predicted& predicted)
{
  Json object = {{"step_time_s", predicted.step_time.value},
                 {"step_time_by", name_of(predicted.step_time_by)},
                 {"bottleneck_s", predicted.bottleneck.value},
                 {"sequential_s", predicted.sequential.value}};
  if (predicted.pipeline) object["pipeline_s"] = predicted.pipeline->value;
  if (predicted.interval) {
    object["step_interval_s"] = {predicted.interval->low.value, predicted.interval->high.value};
    object["interval_because"] = predicted.interval->because;
  }
  object["peak_memory_bytes"] = to_json(predicted.peak_memory);
  return object;
}

Json to_json(const Simulated& simulated)
{
  return {{"step_time_s", simulated.step_time.value},
          {"candidates", simulated.candidates},
          {"allocator", simulated.allocator},
          {"objective", name_of(simulated.objective)}};
}

Json to_json(const Fingerprint& fingerprint)
{
  Json object = {{"name", fingerprint.name}, {"hash", fingerprint.hash}};
  if (!fingerprint.set.empty()) object["set"] = fingerprint.set;
  return object;
}

Json to_json(const Stamp& stamp)
{
  return {{"step_time_s", stamp.step_time.value},
          {"peak_memory_bytes", to_json(stamp.peak_memory)},
          {"platform", stamp.platform_hash},
          {"workload", stamp.workload_hash},
          {"plan", stamp.plan_hash},
          {"version", stamp.version},
          {"simgrid_version", stamp.simgrid_version}};
}

bool has_levels(CertificateKind kind)
{
  return kind == CertificateKind::Path || kind == CertificateKind::Search;
}

bool has_multipliers(CertificateKind kind)
{
  return has_levels(kind) || kind == CertificateKind::DtFm || kind == CertificateKind::Load;
}

Json to_json(const Certificate& certificate)
{
  Json object = {{"kind", name_of(certificate.kind)}};
  if (has_multipliers(certificate.kind)) {
    if (!certificate.groups.empty()) object["groups"] = certificate.groups;
    if (has_levels(certificate.kind)) object["levels"] = certificate.levels;
    object["rungs"] = Json::array();
    for (const auto& rung : certificate.rungs) {
      object["rungs"].push_back({{"limit_s", or_null(rung.limit)}, {"multipliers", rung.multipliers}});
      if (rung.slots > 0) object["rungs"].back()["slots"] = rung.slots;
    }
  } else if (certificate.kind == CertificateKind::PhaseFlow && !certificate.rungs.empty()) {
    object["limit_s"] = or_null(certificate.rungs.front().limit);
  }
  return object;
}

std::optional<Seconds> read_seconds(MappingReader& reader, const std::string& key)
{
  const auto number = reader.optional_number(key);
  return number ? std::optional(Seconds(*number)) : std::nullopt;
}

Certificate read_certificate(MappingReader& reader, FaultList& faults)
{
  Certificate certificate;
  certificate.kind = certificate_kind_from_name(reader.required_choice("kind", certificate_kind_names()))
                         .value_or(CertificateKind::None);
  if (has_multipliers(certificate.kind)) {
    if (reader.has("groups")) {
      certificate.groups = read_list<std::size_t>(
          reader, "groups", faults,
          [](MappingReader& item, const std::string& name) { return item.required_count(name); });
    }
    if (has_levels(certificate.kind)) certificate.levels = reader.required_count("levels", 1);
    certificate.rungs = read_objects<Certificate::Rung>(reader, "rungs", faults, [&faults](MappingReader& rung) {
      rung.required("limit_s");
      Certificate::Rung result;
      result.limit = read_seconds(rung, "limit_s");
      result.multipliers =
          read_list<double>(rung, "multipliers", faults,
                            [](MappingReader& item, const std::string& name) { return item.required_number(name); });
      result.slots = rung.optional_count("slots").value_or(0);
      return result;
    });
  } else if (certificate.kind == CertificateKind::PhaseFlow) {
    certificate.rungs.push_back({Seconds(reader.required_number("limit_s")), {}});
  }
  return certificate;
}

Stage read_stage_1(MappingReader& reader, FaultList& faults)
{
  Stage stage;
  auto devices = read_objects<Shard>(reader, "devices", faults, [](MappingReader& device) {
    const std::string name = device.required_text("name");
    Shard used{name, device.required_number("share")};
    used.slowdown = device.optional_number("slowdown");
    if (const auto memory = device.optional_number("memory_bytes")) used.memory = Bytes(*memory);
    used.type = device.optional_text("type");
    return used;
  });
  if (devices.size() > 1) {
    reader.add_fault("devices", fmt::format("{} devices; isobar-plan/2 has replicas and shards", devices.size()));
  } else if (devices.empty() && items_of(reader, "devices")) {
    reader.add_fault("devices", "0 devices; a stage has one");
  }
  stage.replicas = {{0, std::move(devices)}};
  stage.first_layer = reader.required_count("first_layer");
  stage.last_layer = reader.required_count("last_layer");
  return stage;
}

std::vector<Stage> read_stages_1(MappingReader& plan, FaultList& faults)
{
  std::map<std::string, std::size_t> stage_of;
  std::size_t number = 0;
  return read_objects<Stage>(plan, "stages", faults, [&](MappingReader& reader) {
    auto stage = read_stage_1(reader, faults);
    if (stage.is_on_one_device() && !stage.device().empty()) {
      const auto [first, is_new] = stage_of.emplace(stage.device(), number);
      if (!is_new) {
        reader.add_fault("devices", fmt::format("device {} has stage {} already; a device of several stages needs "
                                                "isobar-plan/2",
                                                shown(stage.device()), first->second));
      }
    }
    ++number;
    return stage;
  });
}

/// A wrong name is a fault, so the schedule that replaces it does not matter.
ScheduleChoice read_schedule_1(MappingReader& plan)
{
  return {.name = plan.required_choice("schedule", chain_schedule_names())};
}

std::map<std::string, Bytes> read_sizes(MappingReader& parent, const std::string& key, FaultList& faults)
{
  using Sizes = std::map<std::string, Bytes>;
  return read_mapping<Sizes>(parent, key, faults, [](MappingReader& reader) {
    Sizes sizes;
    for (const auto& name : reader.keys()) sizes[name] = Bytes(reader.required_number(name));
    return sizes;
  });
}

/// How isobar-plan/1 predicts a step. Its first versions had only the formula, and no key step_time_by.
StepTimeBy read_step_time_by_1(MappingReader& reader)
{
  const std::vector<std::string> names = {std::string(name_of(StepTimeBy::Formula)),
                                          std::string(name_of(StepTimeBy::Recurrence)),
                                          std::string(name_of(StepTimeBy::Played))};
  const auto by = reader.optional_choice("step_time_by", names);
  return by ? step_time_by_from_name(*by).value_or(StepTimeBy::Formula) : StepTimeBy::Formula;
}

StepTimeBy read_step_time_by_2(MappingReader& reader)
{
  const std::vector<std::string> names = {std::string(name_of(StepTimeBy::Recurrence)),
                                          std::string(name_of(StepTimeBy::Played))};
  return step_time_by_from_name(reader.required_choice("step_time_by", names)).value_or(StepTimeBy::Played);
}

Predicted read_predicted(MappingReader& reader, bool is_1, Objective objective, FaultList& faults)
{
  Predicted predicted;
  predicted.step_time = Seconds(reader.required_number("step_time_s"));
  predicted.step_time_by = is_1 ? read_step_time_by_1(reader) : read_step_time_by_2(reader);
  predicted.pipeline = read_seconds(reader, "pipeline_s");
  if (!is_1) reader.required("pipeline_s");
  if (is_1 && faults.empty()) {  // the objective may stand for a wrong name
    if (predicted.step_time_by == StepTimeBy::Formula && (predicted.pipeline || objective == Objective::Step)) {
      reader.add_fault("step_time_by",
                       "formula, as in plans of older versions, which have neither objective step nor pipeline_s");
    } else if (objective == Objective::Step && !predicted.pipeline) {
      reader.add_fault("pipeline_s", "missing; every plan for objective step has it");
    }
  }
  predicted.bottleneck = Seconds(reader.required_number("bottleneck_s"));
  predicted.sequential = Seconds(reader.required_number("sequential_s"));
  predicted.interval = read_step_interval(reader, faults);
  predicted.peak_memory = read_sizes(reader, "peak_memory_bytes", faults);
  return predicted;
}

Simulated read_simulated(MappingReader& reader)
{
  Simulated simulated;
  simulated.step_time = Seconds(reader.required_number("step_time_s"));
  simulated.candidates = reader.required_count("candidates", 1);
  simulated.allocator = reader.required_text("allocator");
  simulated.objective =
      objective_from_name(reader.required_choice("objective", objective_names())).value_or(Objective::Step);
  return simulated;
}

Fingerprint read_fingerprint(MappingReader& reader)
{
  Fingerprint result;
  result.name = reader.required_text("name");
  result.hash = reader.required_text("hash");
  return result;
}

Stamp read_stamp(MappingReader& reader, FaultList& faults)
{
  Stamp stamp;
  stamp.step_time = Seconds(reader.required_number("step_time_s"));
  stamp.peak_memory = read_sizes(reader, "peak_memory_bytes", faults);
  stamp.platform_hash = reader.required_text("platform");
  stamp.workload_hash = reader.required_text("workload");
  stamp.plan_hash = reader.required_text("plan");
  stamp.version = reader.required_text("version");
  stamp.simgrid_version = reader.required_text("simgrid_version");
  return stamp;
}

spmd::Routing read_routing(MappingReader& reader)
{
  spmd::Routing routing;
  routing.capacity_samples = reader.required_count("capacity_samples", 1, largest_micro_batch);
  routing.by_index = reader.optional_boolean("by_index").value_or(false);
  return routing;
}

/// Adds how devices that divide operators add up the gradients of the parameters that each of them has, if it is not
/// one by one.
void describe_replicas_of_parameters(const Plan& plan, Json& document)
{
  if (!divides_operators(plan)) return;
  if (!plan.sync.bucket_ends.empty()) {
    std::vector<std::string> names;
    for (const auto& stage : plan.stages) {
      for (const auto& split : stage.splits) names.push_back(split.layers);
    }
    Json& ends = document["sync"]["bucket_ends"] = Json::array();
    for (const std::size_t end : plan.sync.bucket_ends) ends.push_back(names.at(end));
  }
  if (!plan.sync.adds_replicas) document["sync"]["adds_replicas"] = false;
}

Json to_json(const Sync& sync)
{
  Json object = {{"algorithm", name_of(sync.algorithm)}};
  if (sync.sharded != Sharding::None) object["sharded"] = name_of(sync.sharded);
  if (sync.bucket > Bytes(0)) object["bucket_bytes"] = sync.bucket.value;
  if (sync.summed != DType::Float32) object["gradient_dtype"] = name_of(sync.summed);
  if (sync.gathered != DType::Float32) object["gather_dtype"] = name_of(sync.gathered);
  if (sync.each_microbatch) object["each_microbatch"] = true;
  return object;
}

/// The name alone, unless flags differ from those of the named system.
Json to_json(const TrainingSystem& system)
{
  if (!system.changed) return system.name;
  Json object = {{"name", system.name}};
  const auto add = [&](const FlagKey& key, const auto& flag, const auto& named) {
    using Flag = std::remove_cvref_t<decltype(flag)>;
    if (flag == named) return;
    Json& member = object[key_of(key, flag, FlagSpelling::Json)];
    if constexpr (std::is_enum_v<Flag>) {
      member = name_of(flag);
    } else if constexpr (std::is_arithmetic_v<Flag>) {
      member = flag;
    } else {
      member = flag.value;
    }
  };
  visit_flags(add, *system.changed, *find_framework(system.name));
  return object;
}

Json to_json(const TransferRules& transfers)
{
  Json object = Json::object();
  if (transfers.blocking) object["blocking"] = true;
  if (transfers.sliced) object["sliced"] = true;
  return object;
}

/// Everything except what depends on the machine's speed, and what is added to the plan afterwards.
Json lasting_part_of(const Plan& plan)
{
  const bool is_1 = fits_schema_1(plan);
  Json stages = Json::array();
  const auto numbers = numbers_in_file(plan);
  std::size_t first_part = 0;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const bool is_part = i > 0 && numbers[i] == numbers[i - 1];
    if (!is_part) {
      stages.push_back(is_1 ? to_json_1(stage) : to_json_2(stage, plan.goal.microbatches));
      first_part = i;
    }
    stages.back()["last_layer"] = stage.last_layer;
    const bool is_last_part = i + 1 == plan.stages.size() || numbers[i + 1] != numbers[i];
    if (!is_last_part) continue;
    describe_residence(plan.stages, first_part, i, stages.back());
    describe_division(plan.stages, first_part, i, stages.back());
  }
  const auto gap = plan.gap_fraction();
  Json document = {{"schema", is_1 ? schema_1 : schema_2},
                   {"allocator", plan.allocator},
                   {"objective", name_of(plan.goal.objective)},
                   {"communication", name_of(plan.goal.communication)},
                   {"schedule", is_1 ? Json(plan.goal.schedule.name) : to_json(plan.goal.schedule)},
                   {"microbatches", plan.goal.microbatches},
                   {"outcome", name_of(plan.outcome)}};
  if (!plan.reason.empty()) document["reason"] = plan.reason;
  document["stages"] = std::move(stages);
  if (has_replicas(plan)) document["sync"] = to_json(plan.sync);
  describe_replicas_of_parameters(plan, document);
  if (plan.transfers != TransferRules{}) document["transfers"] = to_json(plan.transfers);
  if (plan.context.divides() && !is_1) {  // a plan without a placement divides nothing
    document["context"] = {{"degree", plan.context.degree}, {"exchange", name_of(plan.context.exchange)}};
  }
  if (plan.experts.divides() && !is_1) {  // likewise
    document["experts"] = {{"degree", plan.experts.degree}};
    if (plan.experts.are_whole) document["experts"]["tensor"] = 1;
  }
  if (!plan.recompute.empty()) document["recompute"] = plan.recompute;
  if (plan.system) document["system"] = to_json(*plan.system);
  if (plan.samples) document["samples"] = *plan.samples;
  if (plan.micro_batch) document["micro_batch"] = *plan.micro_batch;
  if (plan.routing) {
    document["routing"] = {{"capacity_samples", plan.routing->capacity_samples}, {"by_index", plan.routing->by_index}};
  }
  if (!plan.without.empty()) document["without"] = plan.without;
  if (plan.data_server) document["data_server"] = *plan.data_server;
  document["predicted"] = plan.predicted ? to_json(*plan.predicted) : Json(nullptr);
  if (plan.simulated) document["simulated"] = to_json(*plan.simulated);
  document["objective_s"] = or_null(plan.objective);
  document["objective_bound_s"] = or_null(plan.objective_bound);
  document["gap_fraction"] = gap ? Json(*gap) : Json(nullptr);
  document["step_bound_s"] = or_null(plan.step_bound);
  if (plan.schedule_bound) document["schedule_bound_s"] = plan.schedule_bound->value;
  document["certificate"] = to_json(plan.certificate);
  document["inputs"] = {{"platform", to_json(plan.platform)}, {"workload", to_json(plan.workload)}};
  if (plan.profile) document["inputs"]["profile"] = to_json(*plan.profile);
  return document;
}

/// The line of the stage or of the rules of transfers that a fault "stages[1]…: …" or "transfers: …" names, else that
/// of the schedule.
int line_of(const std::string& fault, const DocumentNode& document, FaultList& faults)
{
  constexpr std::string_view place = "stages[";
  MappingReader plan(document, "", faults);
  if (fault.starts_with(place)) {
    std::size_t stage = 0;
    std::from_chars(fault.data() + place.size(), fault.data() + fault.size(), stage);
    const auto& stages = plan.required("stages")->items;
    if (stage < stages.size()) return stages[stage].line;
  }
  const bool is_of_transfers = fault.starts_with("transfers:") && plan.has("transfers");
  return plan.required(is_of_transfers ? "transfers" : "schedule")->line;
}

/// Adds each line of a fault that names no file.
void add_lines(const InputError& fault, const DocumentNode& document, FaultList& faults)
{
  std::istringstream text(fault.what());
  for (std::string each; std::getline(text, each);) faults.add(line_of(each, document, faults), "", each);
}

std::string text_of(const Json& document)
{
  return json_lines(document);
}

}  // namespace

std::string plan_to_json(const Plan& plan)
{
  Json document = lasting_part_of(plan);
  if (plan.stamp) document["stamp"] = to_json(*plan.stamp);
  document["wall"] = {{"search_s", plan.search_time.value}};
  return text_of(document);
}

std::string lasting_plan_to_json(const Plan& plan)
{
  return text_of(lasting_part_of(plan));
}

std::string hash_of(const Plan& plan)
{
  return fingerprint(lasting_plan_to_json(plan));
}

WorkloadSettings read_settings(MappingReader& workload, FaultList& faults)
{
  if (!workload.has("set")) return {};
  return read_mapping<WorkloadSettings>(workload, "set", faults, [](MappingReader& set) {
    WorkloadSettings settings;
    for (const auto& key : set.keys()) settings[key] = set.required_text(key);
    return settings;
  });
}

Plan plan_from_json(const std::string& text, const std::string& name)
{
  require_file_kind(FileKind::Plan, text, name);
  return plan_from_document(parse_json(text, name), name);
}

Plan plan_from_document(const DocumentNode& document, const std::string& name, const std::string& path)
{
  FaultList faults(name);
  MappingReader reader(document, path, faults);
  Plan plan;
  if (const DocumentNode* schema = reader.optional("schema"); schema != nullptr && schema->scalar == rounds_schema) {
    reader.add_fault("schema",
                     "isobar-rounds/1, a plan of rounds (isobar plan --outer), which isobar simulate and "
                     "isobar verify take; this needs the plan of one of its workers");
    faults.throw_if_any();
  }
  const bool is_1 = reader.required_choice("schema", {schema_1, schema_2}) == schema_1;
  if (reader.has("schema")) faults.throw_if_any();  // keys of another schema mean something else
  plan.allocator = reader.required_text("allocator");
  // A wrong choice is already a fault, so the default that replaces it does not matter.
  plan.goal.objective =
      objective_from_name(reader.required_choice("objective", objective_names())).value_or(Objective::Step);
  plan.goal.communication = communication_from_name(reader.required_choice("communication", communication_names()))
                                .value_or(Communication::None);
  const auto microbatches = read_count(reader, "microbatches", 1, most_repetitions);
  plan.goal.microbatches = microbatches.value_or(1);
  if (faults.empty() && !are_compatible(plan.goal.objective, plan.goal.communication)) {
    reader.add_fault("communication", fmt::format("{} does not go with objective {}; see docs/costs.md",
                                                  name_of(plan.goal.communication), name_of(plan.goal.objective)));
  }
  plan.outcome = outcome_from_name(reader.required_choice("outcome", outcome_names())).value_or(Outcome::Feasible);
  plan.reason = reader.optional_text("reason").value_or("");
  if (!is_1) plan.context = read_context_2(reader, faults);
  if (!is_1) plan.experts = read_experts_2(reader, faults);
  plan.stages =
      is_1 ? read_stages_1(reader, faults) : read_stages_2(reader, microbatches, {plan.context, plan.experts}, faults);
  plan.goal.schedule = is_1 ? read_schedule_1(reader) : read_schedule_2(reader, plan, faults);
  if (!is_1) {
    plan.sync = read_sync_2(reader, plan.stages, faults);
    plan.transfers = read_transfers_2(reader, plan.stages, faults);
  }
  if (reader.optional("recompute")) {
    plan.recompute =
        read_list<std::size_t>(reader, "recompute", faults,
                               [](MappingReader& item, const std::string& key) { return item.required_count(key); });
    if (std::adjacent_find(plan.recompute.begin(), plan.recompute.end(), std::greater_equal<>()) !=
        plan.recompute.end()) {
      reader.add_fault("recompute", "is not ascending; list each layer once, in order");
    }
  }
  read_system(reader, plan, faults);
  if (faults.empty()) {
    if (const auto fault = fault_of_context(plan)) reader.add_fault("context", *fault);
    if (const auto fault = fault_of_experts(plan)) reader.add_fault("experts", *fault);
    if (const auto fault = fault_of_overlap(plan)) reader.add_fault("schedule", *fault);
  }
  plan.samples = reader.optional_count("samples", 1, largest_micro_batch * most_microbatches_by_recurrence);
  plan.micro_batch = reader.optional_count("micro_batch", 1, largest_micro_batch);
  if (!is_1 && reader.optional("routing") != nullptr) {
    plan.routing = read_mapping<spmd::Routing>(reader, "routing", faults, read_routing);
  }
  if (reader.optional("without")) {
    plan.without = read_list<std::string>(
        reader, "without", faults, [](MappingReader& item, const std::string& key) { return item.required_text(key); });
  }
  plan.data_server = reader.optional_text("data_server");
  if (const auto* predicted = reader.required("predicted"); predicted && predicted->kind != DocumentNode::Kind::Null) {
    plan.predicted = read_mapping<Predicted>(reader, "predicted", faults, [&](MappingReader& member) {
      return read_predicted(member, is_1, plan.goal.objective, faults);
    });
  }
  if (reader.optional("simulated")) {
    plan.simulated = read_mapping<Simulated>(reader, "simulated", faults, read_simulated);
  }
  plan.objective = read_seconds(reader, "objective_s");
  plan.objective_bound = read_seconds(reader, "objective_bound_s");
  const auto claimed_gap = reader.optional_number("gap_fraction");
  plan.step_bound = read_seconds(reader, "step_bound_s");
  if (!is_1) plan.schedule_bound = read_seconds(reader, "schedule_bound_s");
  plan.certificate = read_mapping<Certificate>(
      reader, "certificate", faults, [&faults](MappingReader& member) { return read_certificate(member, faults); });
  struct InputsRead {};
  read_mapping<InputsRead>(reader, "inputs", faults, [&](MappingReader& inputs) {
    plan.platform = read_mapping<Fingerprint>(inputs, "platform", faults, read_fingerprint);
    plan.workload = read_mapping<Fingerprint>(inputs, "workload", faults, [&faults](MappingReader& member) {
      auto workload = read_fingerprint(member);
      workload.set = read_settings(member, faults);
      return workload;
    });
    if (inputs.has("profile")) plan.profile = read_mapping<Fingerprint>(inputs, "profile", faults, read_fingerprint);
    return InputsRead{};
  });
  if (reader.optional("stamp")) {
    plan.stamp = read_mapping<Stamp>(reader, "stamp", faults,
                                     [&faults](MappingReader& member) { return read_stamp(member, faults); });
  }
  if (reader.optional("wall")) {
    plan.search_time = Seconds(read_mapping<double>(
        reader, "wall", faults, [](MappingReader& wall) { return wall.required_number("search_s"); }));
  }
  reader.refuse_unknown();
  const auto gap = plan.gap_fraction();
  const bool same_gap = claimed_gap.has_value() == gap.has_value() && (!gap || std::abs(*gap - *claimed_gap) <= 1e-9);
  if (faults.empty() && !same_gap) {
    reader.add_fault("gap_fraction",
                     "does not follow from objective_s and objective_bound_s; it is "
                     "(objective_s - objective_bound_s) / objective_s");
  }
  faults.throw_if_any();
  return plan;
}

Plan read_plan(const std::filesystem::path& file)
{
  return read_plan(file, [](const Plan&) {});
}

Plan read_plan(const std::filesystem::path& file, const std::function<void(const Plan&)>& check_schedule)
{
  const std::string name = file.string();
  const std::string text = read_file(file);
  require_file_kind(FileKind::Plan, text, name);
  const DocumentNode document = parse_json(text, name);
  Plan plan = plan_from_document(document, name);
  FaultList faults(name);
  try {
    check_schedule(plan);
  } catch (const InputError& fault) {
    add_lines(fault, document, faults);
  }
  faults.throw_if_any();
  return plan;
}

}  // namespace isobar
