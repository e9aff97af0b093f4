#include "core/plan/system_rules.hpp"

#include "core/plan/placed_shards.hpp"
#include "core/plan/transfer_rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace isobar {

namespace {

/// The member `name` of the object `key` of a file; null: it has none.
const DocumentNode* member_of(MappingReader& file, const char* key, const std::string& name)
{
  const DocumentNode* const object = file.optional(key);
  if (object == nullptr) return nullptr;
  const auto found =
      std::ranges::find_if(object->members, [&](const DocumentNode::Member& member) { return member.key == name; });
  return found == object->members.end() ? nullptr : &found->value;
}

std::string in_file(bool rule)
{
  return fmt::to_string(rule);
}

std::string in_file(Bytes rule)
{
  return fmt::to_string(rule.value);
}

std::string in_file(DType rule)
{
  return std::string(name_of(rule));
}

constexpr auto how_divided_sums_go =
    "replicas that divide the optimizer add up the gradients of each part after its last backward pass, beside those "
    "of "
    "other parts, whatever it says";

bool divides_optimizer(const Plan& plan)
{
  return plan.sync.sharded != Sharding::None && has_replicas(plan);
}

/// Gives rules of transfers and sums that the key `system` states to the plan.
class StatedRules {
 public:
  StatedRules(MappingReader& file, Plan plan, const Framework& framework, FaultList& faults)
      : file_(file), ruled_(std::move(plan)), faults_(faults)
  {
    // A bucket that the system states is no larger one that `sync` states.
    if (member_of(file_, "system", "gradient_bucket_bytes") != nullptr) ruled_.sync.bucket = {};
    take_rules(framework, DType::BFloat16, ruled_);  // a type that a file states counts for any model
  }

  void apply(Plan& plan)
  {
    for (const char* flag : {"overlap_gradient_sums", "overlap_gradient_sums_in_pipelines", "gradient_bucket_bytes"}) {
      const DocumentNode* const stated = member_of(file_, "system", flag);
      if (stated != nullptr && divides_optimizer(plan)) {
        faults_.add(stated->line, file_.path_of(std::string("system.") + flag),
                    fmt::format("is {}; {}; leave it out", shown(stated->scalar), how_divided_sums_go));
      }
      take(flag, "sync", "bucket_bytes", ruled_.sync.bucket, plan.sync.bucket);
    }
    take("gradient_dtype", "sync", "gradient_dtype", ruled_.sync.summed, plan.sync.summed);
    take("gather_dtype", "sync", "gather_dtype", ruled_.sync.gathered, plan.sync.gathered);
    take("sums_each_microbatch", "sync", "each_microbatch", ruled_.sync.each_microbatch, plan.sync.each_microbatch);
    take("blocking_transfers", "transfers", "blocking", ruled_.transfers.blocking, plan.transfers.blocking);
    take("sliced_transfers", "transfers", "sliced", ruled_.transfers.sliced, plan.transfers.sliced);
  }

 private:
  template <typename Rule>
  void take(const char* flag, const char* object, const char* key, const Rule& by_flag, Rule& rule)
  {
    const DocumentNode* const stated = member_of(file_, "system", flag);
    if (stated == nullptr) return;
    const DocumentNode* const other = member_of(file_, object, key);
    if (other != nullptr && other->kind == DocumentNode::Kind::Scalar && rule != by_flag) {
      faults_.add(stated->line, file_.path_of(std::string("system.") + flag),
                  fmt::format("{} makes {}.{} {}, and it is {}; leave one of them out", shown(stated->scalar), object,
                              key, in_file(by_flag), shown(other->scalar)));
    }
    rule = by_flag;
  }

  MappingReader& file_;
  Plan ruled_;
  FaultList& faults_;
};

}  // namespace

const Framework* framework_of(const Plan& plan)
{
  return plan.system ? framework_of(*plan.system) : nullptr;
}

bool overlaps_gathers(const Plan& plan)
{
  const Framework* const framework = framework_of(plan);
  return framework == nullptr || framework->overlaps_gathers;
}

void take_rules(const Framework& framework, DType dtype, Plan& plan)
{
  const bool is_pipeline = pipeline_stages(plan).back() > 0;
  const bool has_parts = has_shards(plan);
  plan.transfers.blocking = framework.blocking_transfers && (is_pipeline || has_parts);
  // Between stages of other numbers of replicas, devices compute while they send.
  if (fault_of_transfers(plan)) plan.transfers.blocking = false;
  plan.transfers.sliced = framework.sliced_transfers && is_pipeline && has_parts;
  if (!has_replicas(plan)) return;
  plan.sync.summed = dtype != DType::Float32 ? framework.gradient_sums : DType::Float32;
  const bool overlaps = framework.overlaps_gradient_sums && (!is_pipeline || framework.overlaps_in_pipelines);
  if (plan.sync.sharded == Sharding::None) {
    plan.sync.bucket = overlaps ? std::max(plan.sync.bucket, framework.gradient_bucket) : one_bucket;
  }
  if (plan.sync.sharded == Sharding::Parameters) {
    plan.sync.gathered = framework.gathered;
    plan.sync.each_microbatch = framework.sums_each_microbatch;
  }
}

std::optional<std::string> note_of_idle_flags(const Plan& plan, const Framework& framework)
{
  if (!divides_optimizer(plan)) return std::nullopt;
  const Framework& named = *find_framework(framework.name);
  std::vector<std::string> flags;
  const auto compare = [&](const char* flag, auto Framework::*rule) {
    if (framework.*rule != named.*rule) flags.push_back(std::string("framework.") + flag);
  };
  compare("overlap_gradient_sums", &Framework::overlaps_gradient_sums);
  compare("overlap_gradient_sums_in_pipelines", &Framework::overlaps_in_pipelines);
  compare("gradient_bucket", &Framework::gradient_bucket);
  if (flags.empty()) return std::nullopt;
  return fmt::format("{}: without effect in this plan: {}", fmt::join(flags, ", "), how_divided_sums_go);
}

TrainingSystem system_beside_rules(Framework framework)
{
  const Framework& named = *find_framework(framework.name);
  visit_rules([](const FlagKey&, auto& flag, const auto& of_named) { flag = of_named; }, framework, named);
  TrainingSystem system{framework.name};
  if (!have_same_flags(framework, named)) system.changed = std::move(framework);
  return system;
}

void read_system(MappingReader& file, Plan& plan, FaultList& faults)
{
  plan.system = read_training_system(file, "system", FlagSpelling::Json, faults);
  if (!plan.system || !plan.system->changed || plan.stages.empty() || !faults.empty()) return;
  const Framework own = *plan.system->changed;
  StatedRules(file, plan, own, faults).apply(plan);
  plan.system = system_beside_rules(own);
}

}  // namespace isobar
