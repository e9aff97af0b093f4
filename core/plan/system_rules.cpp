#include "core/plan/system_rules.hpp"

#include "core/plan/placed_shards.hpp"
#include "core/plan/transfer_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace isobar {

namespace {

/// Whether the object `key` of a file has the member `name`.
bool has_member(MappingReader& file, const char* key, const std::string& name)
{
  const DocumentNode* const object = file.optional(key);
  return object != nullptr && std::any_of(object->members.begin(), object->members.end(),
                                          [&](const auto& member) { return member.key == name; });
}

/// Gives rules of transfers and sums that the key `system` states to the plan.
class StatedRules {
 public:
  StatedRules(MappingReader& file, Plan plan, const Framework& framework) : file_(file), ruled_(std::move(plan))
  {
    take_rules(framework, DType::BFloat16, ruled_);  // a type that a file states counts for any model
  }

  void apply(Plan& plan)
  {
    for (const char* flag : {"overlap_gradient_sums", "overlap_gradient_sums_in_pipelines", "gradient_bucket_bytes"}) {
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
    if (!has_member(file_, "system", flag)) return;
    if (has_member(file_, object, key) && rule != by_flag) {
      file_.add_fault(std::string("system.") + flag,
                      fmt::format("is otherwise than {}.{}; leave one of them out", object, key));
    }
    rule = by_flag;
  }

  MappingReader& file_;
  Plan ruled_;
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
  StatedRules(file, plan, own).apply(plan);
  plan.system = system_beside_rules(own);
}

}  // namespace isobar
