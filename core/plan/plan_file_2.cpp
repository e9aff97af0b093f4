#include "core/plan/plan_file_2.hpp"

#include "core/model/dtype.hpp"
#include "core/model/model_limits.hpp"
#include "core/order/order_text.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan_file_reading.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/spmd/division.hpp"
#include "core/text/document.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>

namespace isobar {

namespace {

constexpr std::uint64_t most_parts = 65'536;  // of sequences, or of experts

void refuse(MappingReader& reader, std::initializer_list<const char*> keys)
{
  for (const char* key : keys) {
    if (reader.optional(key) != nullptr) {
      reader.add_fault(key, fmt::format("this version runs plans without {}", key));
    }
  }
}

/// Whether the splits of a stage are signatures of operators.
bool names_signatures(MappingReader& stage)
{
  const DocumentNode* const splits = stage.optional("splits");
  if (splits == nullptr || splits->kind != DocumentNode::Kind::Mapping) return false;
  return std::any_of(splits->members.begin(), splits->members.end(),
                     [](const DocumentNode::Member& member) { return spmd::is_signature_text(member.value.scalar); });
}

Shard read_shard(MappingReader& shard, std::size_t shards, bool may_be_empty, const FaultList& faults)
{
  Shard device{shard.required_text("device")};
  device.share = shards > 1 ? shard.required_number("share") : shard.optional_number("share").value_or(1);
  if (shards == 1 && device.share != 1) {
    shard.add_fault("share", fmt::format("{}; the one shard of a replica has share 1", device.share));
  } else if (device.share == 0 && !may_be_empty && faults.empty()) {
    shard.add_fault("share", "0; each shard computes a part of every layer");
  }
  device.slowdown = shard.optional_number("slowdown");
  if (const auto memory = shard.optional_number("memory_bytes")) device.memory = Bytes(*memory);
  device.type = shard.optional_text("type");
  device.site = shard.optional_text("site");
  return device;
}

/// Reads a replica; one that takes samples of every micro-batch has no number of micro-batches.
Replica read_replica(MappingReader& replica, bool may_be_empty, bool takes_samples, FaultList& faults)
{
  std::optional<std::uint64_t> own;
  if (!takes_samples) {
    own = read_count(replica, "microbatches", 1, most_repetitions);
  } else if (replica.optional("microbatches") != nullptr) {
    replica.add_fault("microbatches", "each replica takes samples of every micro-batch; leave it out");
  }
  const auto shards = items_of(replica, "shards");
  if (shards == 0U) replica.add_fault("shards", "0 shards; a replica has at least one");
  return {own.value_or(0), read_objects<Shard>(replica, "shards", faults, [&](MappingReader& shard) {
            return read_shard(shard, shards.value_or(1), may_be_empty, faults);
          })};
}

/// The parts of a stage with these cuts, each a stage of its own on the same devices.
std::vector<Stage> parts_of(const Stage& stage, const std::vector<std::uint64_t>& cuts)
{
  std::vector<Stage> parts = {stage};
  for (const std::uint64_t cut : cuts) {
    parts.back().last_layer = cut - 1;
    parts.push_back(stage);
    parts.back().first_layer = cut;
  }
  return parts;
}

/// Cuts that make a part of each layer.
std::vector<std::uint64_t> cuts_of_layers(MappingReader& reader, const Stage& stage)
{
  std::vector<std::uint64_t> cuts;
  if (stage.last_layer >= most_layers) {
    reader.add_fault("last_layer", fmt::format("{}; a workload has at most {} layers", stage.last_layer, most_layers));
    return cuts;
  }
  for (std::uint64_t layer = stage.first_layer + 1; layer <= stage.last_layer; ++layer) cuts.push_back(layer);
  return cuts;
}

/// Reads the first layers of a stage's parts but the first.
std::vector<std::uint64_t> read_cut_list(MappingReader& reader, const Stage& stage, FaultList& faults)
{
  std::vector<std::uint64_t> cuts;
  std::uint64_t before = stage.first_layer;
  read_list<std::uint64_t>(reader, "cuts", faults, [&](MappingReader& item, const std::string& name) {
    const auto cut = read_count(item, name, 0, most_repetitions);
    if (cut && *cut > before && *cut <= stage.last_layer) {
      cuts.push_back(before = *cut);
    } else if (cut) {
      item.add_fault(
          name, fmt::format("{}; a part begins after layer {} and not after layer {}", *cut, before, stage.last_layer));
    }
    return cut.value_or(0);
  });
  return cuts;
}

/// Reads the first layers of a stage's parts but the first: its replicas add up the gradients of one part while
/// another is in its backward pass, and parts go to the device and leave it one by one.
std::vector<std::uint64_t> read_cuts(MappingReader& reader, const Stage& stage, FaultList& faults)
{
  if (reader.optional("cuts") == nullptr) return {};
  const bool moves = reader.optional("residence") != nullptr;
  if (moves && reader.optional("cuts")->kind == DocumentNode::Kind::Scalar) {
    reader.required_choice("cuts", {"layers"});
    return cuts_of_layers(reader, stage);
  }
  if (stage.replicas.size() < 2 && !moves) {
    reader.add_fault("cuts", "the stage has one replica, so that nothing happens between its parts; leave them out");
    return {};
  }
  return read_cut_list(reader, stage, faults);
}

/// Every layer of a stage with several shards is a part: between two of them its devices add up what they computed.
std::vector<std::uint64_t> read_cuts_of_shards(MappingReader& reader, const Stage& stage)
{
  if (reader.optional("cuts") != nullptr) {
    reader.add_fault("cuts", "the stage has several shards, which make a part of each layer; leave them out");
  }
  return cuts_of_layers(reader, stage);
}

/// Reads how the shards of a replica divide the layers: "splits": {"*": "2.5d"}, "grid": [4, 2, 2], or by the names of
/// splits, {"*.attention": "heads"}.
void read_splits(MappingReader& reader, Stage& stage, FaultList& faults)
{
  using Form = ShardGrid::Form;
  if (reader.optional("splits") == nullptr) {
    if (reader.optional("grid") != nullptr) {
      reader.add_fault("grid", "its form is missing; write splits, such as {\"*\": \"2d\"}");
    }
    return;
  }
  const std::size_t shards = stage.replicas.empty() ? 0 : stage.replicas.front().shards.size();
  const bool is_divided = has_shards({stage});
  const auto form = read_mapping<Form>(reader, "splits", faults, [&](MappingReader& splits) {
    Form of_all = Form::OneD;
    for (const auto& key : splits.keys()) {
      if (key == all_layers) continue;
      stage.splits.push_back({key, splits.required_text(key)});
      if (!is_divided) splits.add_fault(key, "the stage has one shard, which divides nothing; leave it out");
    }
    if (stage.splits.empty() || splits.has(all_layers)) {
      of_all = shard_form_from_name(splits.required_choice(all_layers, shard_form_names())).value_or(Form::OneD);
      // The other layers, by the split that they have.
      const bool is_of_others = of_all == Form::OneD && !stage.splits.empty();
      if (is_of_others) stage.splits.push_back({all_layers, std::string(name_of(of_all))});
    }
    if (of_all > Form::Sequence && !stage.splits.empty()) {
      splits.add_fault(stage.splits.front().layers,
                       fmt::format("{} divides all layers alike; leave it out", name_of(of_all)));
    }
    return of_all;
  });
  const bool has_sides = reader.optional("grid") != nullptr;
  if (form <= Form::Sequence) {
    if (faults.empty() && has_sides) {
      reader.add_fault("grid", fmt::format("splits is {}, which has none; leave it out", name_of(form)));
    }
    if (form == Form::OneD) return;
    if (shards == 1) reader.add_fault("splits", "sequence of one shard; it divides the sequence among several");
    stage.grid = {form, shards};
    return;
  }
  constexpr std::uint64_t longest_side = 65'536;
  const auto sides = read_list<std::uint64_t>(reader, "grid", faults, [](MappingReader& item, const std::string& name) {
    return item.required_count(name, 1, longest_side);
  });
  if (!faults.empty()) return;
  try {
    stage.grid = shard_grid(form, sides);
  } catch (const InputError& fault) {
    reader.add_fault("grid", fault.what());
  }
}

/// Reads where the parts of a stage live; the first resident_parts of them, on the device.
void read_residence(MappingReader& reader, std::vector<Stage>& parts, FaultList& faults)
{
  if (reader.optional("residence") == nullptr) return;
  std::uint64_t resident = 0;
  const auto residence = read_mapping<Residence>(reader, "residence", faults, [&](MappingReader& keys) {
    Residence read;
    const auto tier = [&](const char* key) {
      const auto name = keys.optional_choice(key, tier_names());
      return name ? tier_from_name(*name).value_or(Tier::Device) : Tier::Device;
    };
    read.parameters = tier("parameters");
    read.gradients = tier("gradients");
    read.optimizer = tier("optimizer");
    read.activations = tier("activations");
    resident = keys.optional_count("resident_parts").value_or(0);
    read.parameter_slots = keys.optional_count("parameter_slots", 0, most_layers).value_or(0);
    read.gradient_slots = keys.optional_count("gradient_slots", 0, most_layers).value_or(0);
    if (const auto name = keys.optional_choice("overlap", update_overlap_names())) {
      read.overlap = update_overlap_from_name(*name).value_or(read.overlap);
    }
    if (const auto name = keys.optional_choice("copies", copies_names())) {
      read.copies = copies_from_name(*name).value_or(read.copies);
    }
    if (!faults.empty()) return read;
    if (const auto fault = fault_of(read)) keys.add_fault(fault->key, fault->text);
    if (resident >= parts.size()) {
      keys.add_fault("resident_parts", fmt::format("{} of {}; those that stay are fewer, or the residence is left out",
                                                   resident, counted(parts.size(), "part")));
    }
    return read;
  });
  if (residence.is_on_device()) {
    if (faults.empty()) reader.add_fault("residence", "everything is on the device; leave it out");
    return;
  }
  for (std::size_t i = resident; i < parts.size(); ++i) parts[i].residence = residence;
}

/// Reads the parts of a stage whose shards divide operators: "splits" has the signature of each, in their order.
std::vector<Stage> read_division(MappingReader& reader, const Stage& stage, FaultList& faults)
{
  for (const char* key : {"grid", "residence"}) {
    if (reader.optional(key) == nullptr) continue;
    reader.add_fault(key,
                     "the shards divide each operator by its signature and keep it on their devices; leave it out");
  }
  const auto splits = read_mapping<std::vector<NamedSplit>>(reader, "splits", faults, [&](MappingReader& names) {
    std::vector<NamedSplit> read;
    for (const auto& name : names.keys()) {
      read.push_back({name, names.required_text(name)});
      if (spmd::signature_from_text(read.back().split)) continue;
      names.add_fault(name,
                      fmt::format("{}; write the forms of inputs and outputs, such as \"gather0 full -> gather0\"",
                                  in_quotes(read.back().split)));
    }
    return read;
  });
  const auto cuts =
      reader.optional("cuts") == nullptr ? std::vector<std::uint64_t>() : read_cut_list(reader, stage, faults);
  const std::size_t layers = stage.last_layer + 1 - std::min(stage.first_layer, stage.last_layer + 1);
  if (faults.empty() && splits.size() != layers) {
    reader.add_fault("splits", fmt::format("{} for {}; give each a signature, in their order",
                                           counted(splits.size(), "signature"), counted(layers, "layer")));
  }
  auto fault = faults.empty() ? fault_of_dividing_devices({stage}) : std::nullopt;
  if (faults.empty() && !fault) fault = fault_of_shards({stage});
  if (fault) reader.add_fault(fault->key, fault->text);
  if (!faults.empty()) return {};
  auto parts = parts_of(stage, cuts);
  auto next = splits.begin();
  for (auto& part : parts) {
    const auto end = next + static_cast<std::ptrdiff_t>(part.last_layer - part.first_layer + 1);
    part.splits.assign(next, end);
    next = end;
  }
  return parts;
}

std::vector<Stage> read_stage(MappingReader& reader, std::optional<std::uint64_t> microbatches,
                              const DividedByReplicas& divided, FaultList& faults)
{
  Stage stage;
  stage.first_layer = reader.required_count("first_layer");
  stage.last_layer = reader.required_count("last_layer");
  const bool has_signatures = names_signatures(reader);
  const bool takes_samples = has_signatures && items_of(reader, "replicas") > 1U;
  stage.replicas = read_objects<Replica>(reader, "replicas", faults, [&](MappingReader& replica) {
    return read_replica(replica, has_signatures, takes_samples, faults);
  });
  if (stage.replicas.empty() && items_of(reader, "replicas")) {
    reader.add_fault("replicas", "0 replicas; a stage has at least one");
  }
  std::uint64_t taken = 0;
  bool is_known = microbatches.has_value();
  for (const auto& replica : stage.replicas) {
    taken += replica.microbatches;
    is_known = is_known && replica.microbatches > 0;
  }
  if (is_known && !stage.replicas.empty() && taken != *microbatches) {
    reader.add_fault("replicas", fmt::format("take {}, and the step has {}; give each micro-batch to one",
                                             counted(taken, "micro-batch", "es"), *microbatches));
  }
  if (stage.replicas.size() == 1) stage.replicas.front().microbatches = 0;  // all, whatever the step has
  if (has_signatures) return read_division(reader, stage, faults);
  read_splits(reader, stage, faults);
  const auto fault = faults.empty() ? fault_of_shards({stage}) : std::nullopt;
  if (fault) reader.add_fault(fault->key, fault->text);
  if (has_shards({stage})) {
    if (reader.optional("residence") != nullptr) {
      reader.add_fault("residence",
                       "the stage has several shards, which keep everything on their devices; leave it out");
    }
    return parts_of(stage, read_cuts_of_shards(reader, stage));
  }
  if (divided.context.divides() || divided.experts.divides()) {
    for (const char* key : {"residence", "cuts"}) {
      if (reader.optional(key) == nullptr) continue;
      reader.add_fault(key, fmt::format("the plan divides {}, with each layer as a part on its devices; leave it out",
                                        divided.context.divides() ? "sequences" : "experts"));
    }
    return parts_of(stage, cuts_of_layers(reader, stage));
  }
  auto parts = parts_of(stage, read_cuts(reader, stage, faults));
  read_residence(reader, parts, faults);
  return parts;
}

/// A number of a schedule, or several: "chunks": 2, "warm_up": [3, 2, 1, 0]. A plan without stages may have none, which
/// an allocator would have chosen.
std::vector<std::uint64_t> read_numbers(MappingReader& schedule, const std::string& key, bool has_stages,
                                        FaultList& faults)
{
  const auto items = items_of(schedule, key);
  if (!items) return {schedule.required_count(key, 0, most_repetitions)};
  if (*items == 0 && has_stages) {
    schedule.add_fault(key, "an empty list; a plan has the numbers that were chosen for it");
  }
  return read_list<std::uint64_t>(schedule, key, faults, [](MappingReader& item, const std::string& name) {
    return item.required_count(name, 0, most_repetitions);
  });
}

/// How replicas add up what they have; ring, if it is not said.
Algorithm read_algorithm(MappingReader& reader)
{
  const auto name = reader.optional_choice("algorithm", algorithm_names());
  return name ? algorithm_from_name(*name).value_or(Algorithm::Ring) : Algorithm::Ring;
}

/// Reads how devices that divide operators add up the gradients of the parameters that each of them has.
Sync read_sync_of_division(MappingReader& reader, const std::vector<Stage>& stages, FaultList& faults)
{
  Sync sync;
  if (has_replicas(stages)) sync.algorithm = read_algorithm(reader);
  sync.adds_replicas = reader.optional_boolean("adds_replicas").value_or(true);
  if (reader.optional("bucket_ends") == nullptr) return sync;
  if (!sync.adds_replicas) {
    reader.add_fault("bucket_ends", "no gradients are added up with adds_replicas: false; leave one of them out");
  }
  std::map<std::string, std::size_t> number_of;
  for (const auto& stage : stages) {
    for (const auto& split : stage.splits) number_of.emplace(split.layers, number_of.size());
  }
  sync.bucket_ends =
      read_list<std::size_t>(reader, "bucket_ends", faults, [&number_of](MappingReader& item, const std::string& key) {
        const std::string name = item.required_text(key);
        const auto found = number_of.find(name);
        if (found != number_of.end()) return found->second;
        item.add_fault(key, fmt::format("{} is not in splits; write the name of a parameter", in_quotes(name)));
        return std::size_t{0};
      });
  if (sync.bucket_ends.empty() && faults.empty()) {
    reader.add_fault("bucket_ends", "none; leave it out, so that each gradient is added up by itself");
  }
  return sync;
}

}  // namespace

ContextParallelism read_context_2(MappingReader& plan, FaultList& faults)
{
  if (!plan.has("context")) return {};
  const auto context = read_mapping<ContextParallelism>(plan, "context", faults, [](MappingReader& reader) {
    ContextParallelism read;
    read.degree = reader.required_count("degree", 1, most_parts);
    const auto name = reader.required_choice("exchange", context_exchange_names());
    read.exchange = context_exchange_from_name(name).value_or(read.exchange);
    return read;
  });
  return context.divides() ? context : ContextParallelism{};
}

ExpertParallelism read_experts_2(MappingReader& plan, FaultList& faults)
{
  if (!plan.has("experts")) return {};
  return read_mapping<ExpertParallelism>(plan, "experts", faults, [](MappingReader& reader) {
    ExpertParallelism read;
    read.degree = reader.required_count("degree", 1, most_parts);
    const auto tensor = reader.optional_count("tensor", 1);
    read.are_whole = tensor == 1;
    if (tensor.value_or(1) != 1) {
      reader.add_fault("tensor", fmt::format("{}; write 1, for whole experts on each shard, or leave it out", *tensor));
    }
    return read;
  });
}

std::vector<Stage> read_stages_2(MappingReader& plan, std::optional<std::uint64_t> microbatches,
                                 const DividedByReplicas& divided, FaultList& faults)
{
  std::vector<Stage> stages;
  for (auto& parts : read_objects<std::vector<Stage>>(plan, "stages", faults, [&](MappingReader& stage) {
         return read_stage(stage, microbatches, divided, faults);
       })) {
    if (parts.empty()) parts.emplace_back();  // a stage with faults
    const bool are_layers = has_shards(parts) || divided.context.divides() || divided.experts.divides();
    if (are_layers && !stages.empty() && !divides_operators(parts.front())) {
      parts.front().starts_chunk = has_same_devices(stages.back(), parts.front());
    }
    stages.insert(stages.end(), parts.begin(), parts.end());
  }
  if (divided.experts.are_whole && faults.empty() && !has_shards(stages)) {
    plan.add_fault("experts",
                   "tensor is 1, and no stage has several shards, so that each has whole experts anyway; leave "
                   "tensor out");
  }
  return stages;
}

namespace {

/// How many parts an order of each first device of a stage has: its stages, of layers or of several that are one. Where
/// devices divide some stages and have others alone, each of them has an order.
std::map<std::string, std::size_t> parts_of_orders(const Plan& plan)
{
  std::map<std::string, std::size_t> parts;
  const bool have_orders_each = is_partly_divided(plan.stages);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const bool is_layer = has_exchanges(plan) || has_shards({stage});
    const bool continues = i > 0 && is_layer && !stage.starts_chunk && has_same_devices(plan.stages[i - 1], stage);
    if (continues) continue;
    for (const Shard& shard : stage.replicas.front().shards) {
      ++parts[shard.device];
      if (!have_orders_each) break;
    }
  }
  return parts;
}

}  // namespace

ScheduleChoice read_schedule_2(MappingReader& reader_of_plan, const Plan& plan, FaultList& faults)
{
  const bool is_sound = faults.empty();
  const auto& stages = plan.stages;
  return read_mapping<ScheduleChoice>(reader_of_plan, "schedule", faults, [&](MappingReader& reader) {
    ScheduleChoice schedule;
    if (!reader.has("name")) reader.required_text("name");
    const auto name = reader.optional_text("name");
    const bool has_name = name && is_schedule_word(*name);
    schedule.name = name.value_or("");
    if (name && !has_name) {
      reader.add_fault("name", fmt::format("{} is no name of a schedule; write one such as \"interleaved\", and its "
                                           "numbers as keys",
                                           in_quotes(schedule.name)));
    }
    for (const auto& key : reader.keys()) {
      if (key == "name" || key == "orders") continue;
      if (!is_schedule_word(key)) reader.add_fault(key, "is no name of a number; write one such as warm_up or chunks");
      schedule.numbers[key] = read_numbers(reader, key, !stages.empty(), faults);
    }
    const bool has_orders = reader.optional("orders") != nullptr;
    if (has_name && has_orders && !takes_orders(schedule.name)) {
      reader.add_fault(
          "orders", fmt::format("schedule {} makes its own orders; write yours under the name listed", schedule.name));
    } else if (takes_orders(schedule.name) && !has_orders && !stages.empty()) {
      reader.add_fault("orders", fmt::format("missing; schedule {} has the order of each device", schedule.name));
    } else if (has_orders && !stages.empty() && divides_operators(stages.front())) {
      reader.add_fault("orders", "are for devices that compute whole layers; use another schedule");
    } else if (has_orders && has_name && is_sound) {
      const std::uint64_t of_replica = stages.empty() ? 0 : stages.front().replicas.front().microbatches;
      const std::uint64_t microbatches = of_replica > 0 ? of_replica : plan.goal.microbatches;
      schedule.orders = read_orders(reader, "orders", parts_of_orders(plan), microbatches, faults);
    }
    return schedule;
  });
}

Sync read_sync_2(MappingReader& plan, const std::vector<Stage>& stages, FaultList& faults)
{
  refuse(plan, {"codecs"});
  if (!plan.has("sync")) return {};
  const bool divides = !stages.empty() && divides_operators(stages.front());
  if (divides) {
    return read_mapping<Sync>(plan, "sync", faults,
                              [&](MappingReader& reader) { return read_sync_of_division(reader, stages, faults); });
  }
  // Faults of stages may be why they have none.
  if (faults.empty() && !has_replicas(stages)) {
    plan.add_fault("sync", "no stage has several replicas; leave it out");
  }
  return read_mapping<Sync>(plan, "sync", faults, [&](MappingReader& reader) {
    const auto refuse_unless_parameters = [&reader](const char* key) {
      reader.add_fault(key, "is for replicas that divide parameters; write sharded: parameters, or leave it out");
    };
    Sync sync;
    sync.algorithm = read_algorithm(reader);
    if (const auto sharded = reader.optional_choice("sharded", sharding_names())) {
      sync.sharded = sharding_from_name(*sharded).value();
    }
    for (const auto& stage : stages) {
      const std::size_t shards = stage.replicas.empty() ? 0 : stage.replicas.front().shards.size();
      std::optional<std::string> why_not;
      for (std::size_t i = 0; i < shards && !why_not; ++i) why_not = why_not_divided(sync, stage, sites_of(stage, i));
      if (!why_not) continue;
      reader.add_fault("sharded", *why_not);
      break;
    }
    if (const auto bucket = reader.optional_number("bucket_bytes")) sync.bucket = Bytes(*bucket);
    if (sync.bucket > Bytes(0) && sync.sharded != Sharding::None) {
      reader.add_fault("bucket_bytes", fmt::format("with sharded {} each part is added up by itself; leave one out",
                                                   name_of(sync.sharded)));
    }
    if (const auto dtype = reader.optional_choice("gradient_dtype", dtype_names())) {
      sync.summed = dtype_from_name(*dtype).value();
    }
    if (const auto dtype = reader.optional_choice("gather_dtype", dtype_names())) {
      sync.gathered = dtype_from_name(*dtype).value();
      if (sync.sharded != Sharding::Parameters) refuse_unless_parameters("gather_dtype");
    }
    sync.each_microbatch = reader.optional_boolean("each_microbatch").value_or(false);
    if (sync.each_microbatch && sync.sharded != Sharding::Parameters) {
      refuse_unless_parameters("each_microbatch");
    }
    for (const char* key : {"bucket_ends", "adds_replicas"}) {
      if (reader.optional(key) == nullptr) continue;
      reader.add_fault(key, "is for devices that divide operators; leave it out");
    }
    refuse(reader, {"every", "fragments", "delay", "reduction", "codec", "server"});
    return sync;
  });
}

TransferRules read_transfers_2(MappingReader& plan, const std::vector<Stage>& stages, FaultList& faults)
{
  if (!plan.has("transfers")) return {};
  if (!stages.empty() && divides_operators(stages.front())) {
    plan.add_fault("transfers", "the shards divide each operator and pass whole results; leave it out");
  }
  return read_mapping<TransferRules>(plan, "transfers", faults, [&](MappingReader& reader) {
    TransferRules rules;
    rules.blocking = reader.optional_boolean("blocking").value_or(false);
    rules.sliced = reader.optional_boolean("sliced").value_or(false);
    if (rules.sliced && faults.empty() && !has_shards(stages)) {
      reader.add_fault("sliced", "true, and no stage has several shards that could send a part each; leave it out");
    }
    return rules;
  });
}

}  // namespace isobar
