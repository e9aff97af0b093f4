#include "core/plan/replica_exchanges.hpp"

#include "core/program/collective.hpp"
#include "core/steps/shard_needs.hpp"
#include "tests/support/contexts.hpp"
#include "tests/support/experts.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::replica_exchanges_test {
namespace {

using testing::HasSubstr;
using testing_support::ContextShape;
using testing_support::names_for;
using testing_support::plan_in_parts;
using testing_support::small_llama;

constexpr std::size_t attention = 1;
constexpr ContextExchange every_exchange[] = {ContextExchange::Ring, ContextExchange::AllGather,
                                              ContextExchange::AllToAll};

/// What each device of a group sends in the passes of a layer.
struct Sent {
  double forward = 0;
  double backward = 0;
};

Sent sent(const Workload& workload, std::size_t layer, std::size_t shards)
{
  Sent bytes;
  const std::size_t degree = workload.context.degree;
  for (const auto& collective : replica_collectives(workload, layer, shards)) {
    const std::vector<Bytes> sizes(degree, collective.size);
    for (const Round& round : rounds_of(collective.opcode, sizes, Algorithm::Ring)) {
      for (const Flow& flow : round) {
        if (flow.from != 0) continue;
        (pass_of(collective.role) == ShardPass::Forward ? bytes.forward : bytes.backward) += flow.size().value;
      }
    }
  }
  return bytes;
}

// e bytes a number, m = b s / c tokens, width h, keys and values of width k, t shards, c parts:
// - all-to-all: e m (2 h + 2 k) / t in each pass, of which (c - 1) / c leave;
// - ring: c - 1 steps of 2 e m k / t, and back of twice that;
// - all-gather: (c - 1) 2 e m k / t forward; backward the same again, and as much to add up.
TEST(ContextCollectives, SendTheBytesOfTheClosedForms)
{
  constexpr double e = 2, b = 2, s = 4096, h = 1024, k = 512;
  for (const std::size_t degree : {2, 4, 8}) {
    for (const std::size_t shards : {1, 2, 4}) {
      const auto c = static_cast<double>(degree);
      const auto t = static_cast<double>(shards);
      const double m = b * s / c;
      const auto of = [&](ContextExchange exchange) {
        return sent(with_context(small_llama(), {degree, exchange}), attention, shards);
      };
      const Sent all_to_all = of(ContextExchange::AllToAll);
      EXPECT_DOUBLE_EQ(all_to_all.forward, e * m * (2 * h + 2 * k) / t * (c - 1) / c);
      EXPECT_DOUBLE_EQ(all_to_all.backward, all_to_all.forward);
      const Sent ring = of(ContextExchange::Ring);
      EXPECT_DOUBLE_EQ(ring.forward, (c - 1) * 2 * e * m * k / t);
      EXPECT_DOUBLE_EQ(ring.backward, 2 * ring.forward);
      const Sent all_gather = of(ContextExchange::AllGather);
      EXPECT_DOUBLE_EQ(all_gather.forward, ring.forward);
      EXPECT_DOUBLE_EQ(all_gather.backward, 2 * ring.forward);
    }
  }
}

TEST(ContextCollectives, RepeatThoseOfTheForwardPassWithRecomputation)
{
  for (const ContextExchange exchange : every_exchange) {
    const Sent plain = sent(with_context(small_llama(), {4, exchange}), attention, 1);
    const Sent repeated =
        sent(with_context(with_recomputation(small_llama(), {attention}), {4, exchange}), attention, 1);
    EXPECT_DOUBLE_EQ(repeated.forward, plain.forward);
    EXPECT_DOUBLE_EQ(repeated.backward, plain.backward + plain.forward);
  }
}

TEST(ContextCollectives, AreOfAttentionAndOfDividedSequencesAlone)
{
  EXPECT_TRUE(replica_collectives(small_llama(), attention, 1).empty());
  const Workload part = with_context(small_llama(), {4, ContextExchange::Ring});
  for (const std::size_t layer : {0, 2, 4, 5}) EXPECT_TRUE(replica_collectives(part, layer, 1).empty());
}

TEST(ContextCollectives, AreWhatTheCheckerFindsThatPartsNeed)
{
  for (const ContextExchange exchange : every_exchange) {
    for (const bool recomputes : {false, true}) {
      const Workload whole = recomputes ? with_recomputation(small_llama(), {1, 2}) : small_llama();
      const Workload part = with_context(whole, {4, exchange});
      for (std::size_t layer = 0; layer < part.layers.size(); ++layer) {
        using Key = std::tuple<bool, bool, Opcode, double>;  // forward, before
        std::vector<Key> planned;
        for (const auto& each : replica_collectives(part, layer, 2)) {
          const bool is_forward = pass_of(each.role) == ShardPass::Forward;
          planned.emplace_back(is_forward, is_before_pass(each.role), each.opcode, each.size.value);
        }
        std::vector<Key> needed;
        for (const auto& need : replica_needs(part, layer, 2)) {
          needed.emplace_back(need.pass == NeedOf::Forward, need.is_before, need.opcode, need.bytes);
        }
        std::sort(planned.begin(), planned.end());
        std::sort(needed.begin(), needed.end());
        EXPECT_EQ(planned, needed);
      }
    }
  }
}

constexpr std::size_t mlp = 2;
constexpr double hidden = 1024;

/// The llama, or the part of it that a device has that divides sequences, with 8 experts in its first mlp, of which
/// each token passes `per_token`.
Workload llama_of_experts(const ContextParallelism& context, double per_token,
                          const std::vector<std::size_t>& recompute = {})
{
  Workload workload = recompute.empty() ? small_llama() : with_recomputation(small_llama(), recompute);
  if (context.divides()) workload = with_context(workload, context);
  const double tokens = samples_of_microbatch(workload) * static_cast<double>(workload.sequence);
  testing_support::add_experts(workload.layers[mlp], 8, 3 * 1024 * 2816, Flops(1e9),
                               Bytes(tokens * per_token * 2 * hidden));
  return workload;
}

Workload divided(Workload workload, std::size_t degree, bool are_whole = false)
{
  workload.experts = {degree, are_whole};
  divide_experts(workload);
  return workload;
}

/// What each device sends in the passes of the mlp: to devices that have other experts, and to other shards.
struct SentOfExperts {
  Sent across;
  Sent among_shards;
};

SentOfExperts sent_of_experts(const Workload& workload, std::size_t shards)
{
  SentOfExperts bytes;
  for (const auto& collective : replica_collectives(workload, mlp, shards)) {
    const bool is_across = is_among_replicas(collective.axis);
    EXPECT_EQ(collective.axis == GridAxis::WholeExperts, workload.experts.are_whole && shards > 1);
    const std::vector<Bytes> sizes(is_across ? workload.experts.parts(shards) : shards, collective.size);
    Sent& sent = is_across ? bytes.across : bytes.among_shards;
    for (const Round& round : rounds_of(collective.opcode, sizes, Algorithm::Ring)) {
      for (const Flow& flow : round) {
        if (flow.from != 0) continue;
        (pass_of(collective.role) == ShardPass::Forward ? sent.forward : sent.backward) += flow.size().value;
      }
    }
  }
  return bytes;
}

// Of n = b s / c tokens of width h, k experts each and t shards, a device sends n k 2h / t (EP - 1) / EP in each of
// dispatch and combine, forward and backward. The shards of a replica gather all tokens, and add up their outputs.
TEST(ReplicaCollectives, OfExpertsSendTheBytesOfTheClosedForm)
{
  constexpr double b = 2, s = 4096, k = 2;
  for (const std::size_t degree : {2, 4, 8}) {
    for (const std::size_t parts : {1, 2}) {
      for (const std::size_t shards : {1, 2}) {
        const auto ep = static_cast<double>(degree);
        const auto t = static_cast<double>(shards);
        const double n = b * s / static_cast<double>(parts);
        const Workload workload = divided(llama_of_experts({parts, ContextExchange::AllToAll}, k), degree);
        const auto [across, among_shards] = sent_of_experts(workload, shards);
        EXPECT_DOUBLE_EQ(across.forward, 2 * n * k * 2 * hidden / t * (ep - 1) / ep);
        EXPECT_DOUBLE_EQ(across.backward, across.forward);
        EXPECT_DOUBLE_EQ(among_shards.forward, 2 * n * k * 2 * hidden * (t - 1) / t);
        EXPECT_DOUBLE_EQ(among_shards.backward, among_shards.forward);
      }
    }
  }
}

// Of whole experts on each of t shards there are EP t parts, and no shard needs the tokens of another one.
TEST(ReplicaCollectives, OfWholeExpertsGoToAllShardsOfAGroup)
{
  constexpr double n = 2 * 4096, k = 2;
  for (const std::size_t degree : {1, 2, 4}) {
    for (const std::size_t shards : {1, 2}) {
      const auto t = static_cast<double>(shards);
      const double parts = static_cast<double>(degree) * t;
      const Workload workload = divided(llama_of_experts({}, k), degree, true);
      const auto [across, among_shards] = sent_of_experts(workload, shards);
      EXPECT_DOUBLE_EQ(across.forward, 2 * n * k * 2 * hidden / t * (parts - 1) / parts);
      EXPECT_DOUBLE_EQ(across.backward, across.forward);
      EXPECT_EQ(among_shards.forward, 0);
      EXPECT_EQ(among_shards.backward, 0);
    }
  }
}

TEST(ReplicaCollectives, OfExpertsAreRepeatedWithRecomputation)
{
  for (const std::size_t shards : {1, 2}) {
    const auto plain = sent_of_experts(divided(llama_of_experts({}, 2), 4), shards);
    const auto repeated = sent_of_experts(divided(llama_of_experts({}, 2, {mlp}), 4), shards);
    EXPECT_DOUBLE_EQ(repeated.across.forward, plain.across.forward);
    EXPECT_DOUBLE_EQ(repeated.across.backward, 2 * plain.across.backward);
    EXPECT_DOUBLE_EQ(repeated.among_shards.backward, 2 * plain.among_shards.backward);
  }
}

TEST(ReplicaCollectives, OfExpertsAreOfDividedExpertsAlone)
{
  EXPECT_TRUE(replica_collectives(llama_of_experts({}, 2), mlp, 1).empty());
  const Workload workload = divided(llama_of_experts({}, 2), 4);
  for (const std::size_t layer : {0, 1, 3, 4, 5}) EXPECT_TRUE(replica_collectives(workload, layer, 2).empty());
}

TEST(ReplicaCollectives, OfExpertsAreWhatTheCheckerFindsThatReplicasNeed)
{
  for (const bool is_either : {false, true}) {
    const bool recomputes = is_either;
    for (const std::size_t shards : {1, 4}) {
      const bool are_whole = !is_either && shards > 1;
      const auto recompute = recomputes ? std::vector<std::size_t>{1, mlp} : std::vector<std::size_t>();
      const Workload workload = divided(llama_of_experts({2, ContextExchange::AllToAll}, 2, recompute), 4, are_whole);
      using Key = std::tuple<bool, bool, Opcode, bool, double>;  // forward, before, across
      std::vector<Key> planned;
      for (const auto& each : replica_collectives(workload, mlp, shards)) {
        planned.emplace_back(pass_of(each.role) == ShardPass::Forward, is_before_pass(each.role), each.opcode,
                             is_among_replicas(each.axis), each.size.value);
      }
      std::vector<Key> needed;
      for (const auto& need : replica_needs(workload, mlp, shards)) {
        needed.emplace_back(need.pass == NeedOf::Forward, need.is_before, need.opcode, need.replicas == 4, need.bytes);
      }
      std::sort(planned.begin(), planned.end());
      std::sort(needed.begin(), needed.end());
      EXPECT_EQ(planned, needed);
    }
  }
}

/// A plan whose faults count, on the devices of its shape.
Plan sound_plan(const ContextShape& shape)
{
  Plan plan = plan_in_parts(shape, 6, 2, names_for(shape));
  plan.system = TrainingSystem{"megatron-core-0.8"};
  return plan;
}

std::string fault_of(const Plan& plan)
{
  return fault_of_context(plan).value_or("");
}

TEST(FaultOfContext, IsNoneOfGroupsThatLieAlike)
{
  EXPECT_EQ(fault_of(sound_plan({})), "");
  EXPECT_EQ(fault_of(sound_plan({2, 2, 2, {4, ContextExchange::AllToAll}})), "");
  EXPECT_EQ(fault_of(sound_plan({1, 1, 2, {2, ContextExchange::Ring}, ShardGrid::Form::Sequence})), "");
}

TEST(FaultOfContext, NamesWhatIsWrong)
{
  const ContextShape shape{1, 2, 1, {2, ContextExchange::Ring}};
  Plan plan = sound_plan(shape);
  plan.system.reset();
  EXPECT_EQ(fault_of(plan),
            "needs training software, which knows attention; plan with compute: operators and a framework");
  plan = sound_plan(shape);
  plan.context.degree = 3;
  EXPECT_EQ(fault_of(plan), "stage 0 has 4 replicas for groups of 3; give it a multiple");
  plan = sound_plan(shape);
  plan.stages[2].replicas[1].microbatches = 1;
  EXPECT_EQ(fault_of(plan), "the replicas of stage 0 take unequal numbers of micro-batches; give all the same");
  plan = sound_plan(shape);
  plan.stages.erase(plan.stages.begin() + 2);
  plan.stages[1].last_layer = 2;
  EXPECT_EQ(fault_of(plan), "stage 0 has layers 1 to 2 as one part; each layer is a part where sequences are divided");
  plan = sound_plan({2, 1, 1, {4, ContextExchange::Ring}});
  plan.goal.schedule.numbers["warm_up"] = {2, 2, 1, 2, 1, 1, 1, 1};
  EXPECT_EQ(fault_of(plan), "devices d0 and d2 of a group have different numbers in warm_up; give them the same");
  plan = sound_plan({1, 1, 2, {2, ContextExchange::Ring}});
  plan.stages[0].replicas[0].shards[0].share = 0.25;
  plan.stages[0].replicas[0].shards[1].share = 0.75;
  EXPECT_EQ(fault_of(plan), "the shards of stage 0 have unequal shares; give all the same");
  plan = sound_plan(shape);
  std::swap(plan.stages[3].replicas[0], plan.stages[3].replicas[2]);
  EXPECT_THAT(fault_of(plan), HasSubstr("is in different groups in two stages; keep groups together"));
  plan = sound_plan({1, 1, 4, {2, ContextExchange::Ring}});
  for (auto& stage : plan.stages) stage.grid = shard_grid(ShardGrid::Form::TwoD, {2, 2});
  EXPECT_EQ(fault_of(plan), "stage 0 is divided in a 2d grid [2, 2]; use splits 1d or sequence");
}

/// One whose replicas divide experts, without training software.
Plan plan_of_experts(const ContextShape& shape)
{
  return plan_in_parts(shape, 6, 2, names_for(shape));
}

std::string fault_of_parts_of_experts(const Plan& plan)
{
  return fault_of_experts(plan).value_or("");
}

/// Groups of experts, each of one device a replica, without divided sequences.
ContextShape groups_of_experts(std::size_t stages, std::size_t replicas, std::size_t shards, std::size_t degree)
{
  return {stages, replicas, shards, {}, ShardGrid::Form::OneD, {degree}};
}

TEST(FaultOfExperts, IsNoneOfGroupsThatLieAlike)
{
  EXPECT_EQ(fault_of_parts_of_experts(plan_of_experts(groups_of_experts(1, 1, 1, 1))), "");
  EXPECT_EQ(fault_of_parts_of_experts(plan_of_experts(groups_of_experts(2, 8, 2, 4))), "");
  const ContextShape folded{2, 2, 1, {2, ContextExchange::Ring}, ShardGrid::Form::OneD, {4}};
  EXPECT_EQ(fault_of_parts_of_experts(plan_of_experts(folded)), "");
}

TEST(FaultOfExperts, NamesWhatIsWrong)
{
  const ContextShape shape = groups_of_experts(1, 4, 1, 2);
  Plan plan = plan_of_experts(shape);
  plan.experts.degree = 3;
  EXPECT_EQ(fault_of_parts_of_experts(plan), "stage 0 has 4 replicas for groups of 3; give it a multiple");
  plan = plan_of_experts(shape);
  plan.stages[2].replicas[1].microbatches = 1;
  EXPECT_EQ(fault_of_parts_of_experts(plan),
            "the replicas of stage 0 take unequal numbers of micro-batches; give all the same");
  plan = plan_of_experts(shape);
  plan.stages.erase(plan.stages.begin() + 2);
  plan.stages[1].last_layer = 2;
  EXPECT_EQ(fault_of_parts_of_experts(plan),
            "stage 0 has layers 1 to 2 as one part; each layer is a part where experts are divided");
  plan = plan_of_experts(groups_of_experts(2, 4, 1, 4));
  plan.goal.schedule.numbers["warm_up"] = {2, 2, 1, 2, 1, 1, 1, 1};
  EXPECT_EQ(fault_of_parts_of_experts(plan),
            "devices d0 and d2 of a group have different numbers in warm_up; give them the same");
  plan = plan_of_experts(groups_of_experts(1, 2, 2, 2));
  plan.stages[0].replicas[0].shards[0].share = 0.25;
  plan.stages[0].replicas[0].shards[1].share = 0.75;
  EXPECT_EQ(fault_of_parts_of_experts(plan), "the shards of stage 0 have unequal shares; give all the same");
  plan = plan_of_experts(shape);
  std::swap(plan.stages[3].replicas[0], plan.stages[3].replicas[2]);
  EXPECT_THAT(fault_of_parts_of_experts(plan), HasSubstr("is in different groups in two stages; keep groups together"));
  plan = plan_of_experts(groups_of_experts(1, 2, 4, 2));
  for (auto& stage : plan.stages) stage.grid = shard_grid(ShardGrid::Form::TwoD, {2, 2});
  EXPECT_EQ(fault_of_parts_of_experts(plan), "stage 0 is divided in a 2d grid [2, 2]; use splits 1d or sequence");
  plan = plan_of_experts(groups_of_experts(1, 1, 1, 1));
  plan.experts.degree = 2;
  plan.stages[0].residence.optimizer = Tier::Host;
  EXPECT_EQ(fault_of_parts_of_experts(plan), "stages live elsewhere than on their devices; leave out residence");
}

// Copies of experts are every second replica, here two in one site and one in the other.
TEST(FaultOfExperts, RefusesCopiesInUnequalSitesThatDivideHierarchically)
{
  Plan plan = plan_of_experts(groups_of_experts(1, 6, 1, 2));
  for (auto& stage : plan.stages) {
    for (std::size_t i = 0; i < 6; ++i) stage.replicas[i].shards[0].site = i < 3 ? "a" : "b";
  }
  EXPECT_EQ(fault_of_parts_of_experts(plan), "");
  plan.sync.algorithm = Algorithm::Hierarchical;
  EXPECT_EQ(fault_of_parts_of_experts(plan), "");
  plan.sync.sharded = Sharding::Optimizer;
  EXPECT_EQ(fault_of_parts_of_experts(plan),
            "stage 0 has unequal numbers of copies of experts in its sites, which divide optimizer by algorithm "
            "hierarchical; use ring, tree or direct");
}

TEST(FaultOfOverlap, NamesWhatIsWrong)
{
  const auto fault_of_plan = [](const Plan& plan) { return fault_of_overlap(plan).value_or(""); };
  Plan plan = plan_of_experts(groups_of_experts(1, 4, 1, 2));
  EXPECT_EQ(fault_of_plan(plan), "");
  plan.goal.schedule.numbers[overlap_experts_key] = {1};
  EXPECT_EQ(fault_of_plan(plan), "");
  plan.recompute = {2, 4};
  EXPECT_EQ(fault_of_plan(plan),
            "layer 2 recomputes its activations, and under overlap_experts passes keep theirs; leave one of them out");
  plan.recompute.clear();
  plan.experts = {};
  EXPECT_EQ(fault_of_plan(plan), "overlap_experts is for replicas that divide experts; leave it out, or divide them");
  Framework software;
  EXPECT_EQ(fault_of_overlap(plan.goal.schedule, {2}, {}, &software), std::nullopt);
  software.hides_dispatches = true;
  EXPECT_EQ(fault_of_overlap(plan.goal.schedule, {2}, {}, &software),
            "overlap_experts lets passes of two micro-batches hide exchanges, which overlap_dispatches of the training "
            "software counts as hidden already; leave one of them out");
  EXPECT_EQ(fault_of_overlap({"1f1b"}, {2}, {3}, &software), std::nullopt);
}

TEST(PlanFile, KeepsOverlappedExpertsAndRefusesThemWithoutAny)
{
  Plan plan = plan_of_experts(groups_of_experts(1, 4, 1, 2));
  plan.goal.schedule = {"1f1b", {{overlap_experts_key, {1}}}};
  const std::string json = plan_to_json(plan);
  EXPECT_THAT(json, HasSubstr("\"overlap_experts\": 1"));
  EXPECT_EQ(plan_from_json(json, "plan.json").goal.schedule, plan.goal.schedule);
  plan.recompute = {3};
  EXPECT_THAT(message_of([&] { plan_from_json(plan_to_json(plan), "plan.json"); }),
              HasSubstr("schedule: layer 3 recomputes its activations, and under overlap_experts passes keep theirs; "
                        "leave one of them out"));
}

TEST(PlanFile, KeepsExperts)
{
  for (const bool are_whole : {false, true}) {
    ContextShape shape = groups_of_experts(are_whole ? 1 : 2, 4, are_whole ? 2 : 1, 2);
    shape.experts.are_whole = are_whole;
    const Plan plan = plan_of_experts(shape);
    const std::string json = plan_to_json(plan);
    const Plan read = plan_from_json(json, "plan.json");
    EXPECT_EQ(plan_to_json(read), json);
    EXPECT_EQ(read.experts, plan.experts);
    EXPECT_EQ(read.stages.size(), plan.stages.size());
  }
}

TEST(PlanFile, RefusesExpertsThatThePlanCannotHave)
{
  const auto message_of_change = [](const std::string& text, const std::string& other) {
    std::string json = plan_to_json(plan_of_experts(groups_of_experts(1, 4, 1, 2)));
    const std::size_t at = json.find(text);
    EXPECT_NE(at, std::string::npos) << json;
    json.replace(at, text.size(), other);
    return message_of([&] { plan_from_json(json, "plan.json"); });
  };
  const std::string degree = "\"degree\": 2";
  EXPECT_THAT(message_of_change(degree, "\"degree\": 2, \"more\": 1"), HasSubstr("experts.more: unknown key"));
  EXPECT_THAT(message_of_change(degree, "\"degree\": 0"), HasSubstr("experts.degree: "));
  EXPECT_THAT(message_of_change(degree, "\"degree\": -2"), HasSubstr("experts.degree: "));
  EXPECT_THAT(message_of_change(degree, "\"degree\": 1.5"), HasSubstr("experts.degree: "));
  EXPECT_THAT(message_of_change(degree, "\"degree\": \"2\""), HasSubstr("experts.degree: "));
  EXPECT_THAT(message_of_change(degree, "\"degree\": 65537"), HasSubstr("experts.degree: "));
  EXPECT_THAT(message_of_change(degree, "\"degrees\": 2"), HasSubstr("experts.degree: missing"));
  EXPECT_THAT(message_of_change(degree, "\"degree\": 2, \"tensor\": 0"), HasSubstr("experts.tensor: "));
  EXPECT_THAT(message_of_change(degree, "\"degree\": 2, \"tensor\": 2"),
              HasSubstr("experts.tensor: 2; write 1, for whole experts on each shard, or leave it out"));
  EXPECT_THAT(message_of_change(degree, "\"degree\": 3"),
              HasSubstr("experts: stage 0 has 4 replicas for groups of 3; give it a multiple"));
  EXPECT_THAT(message_of_change("\"first_layer\": 0", "\"cuts\": [1], \"first_layer\": 0"),
              HasSubstr("stages[0].cuts: the plan divides experts, with each layer as a part on its devices; leave it "
                        "out"));
  EXPECT_THAT(message_of_change("\"first_layer\": 0", "\"residence\": {}, \"first_layer\": 0"),
              HasSubstr("stages[0].residence: the plan divides experts"));
}

TEST(PlanFile, KeepsContext)
{
  for (const ContextShape& shape : {ContextShape{2, 2, 1, {2, ContextExchange::AllGather}},
                                    ContextShape{1, 1, 2, {4, ContextExchange::AllToAll}}}) {
    const Plan plan = sound_plan(shape);
    const std::string json = plan_to_json(plan);
    const Plan read = plan_from_json(json, "plan.json");
    EXPECT_EQ(plan_to_json(read), json);
    EXPECT_EQ(read.context, plan.context);
    EXPECT_EQ(read.stages.size(), plan.stages.size());
  }
}

/// The message for a file in which `text` is replaced.
std::string message_for(const std::string& text, const std::string& other)
{
  std::string json = plan_to_json(sound_plan({1, 2, 1, {2, ContextExchange::Ring}}));
  const std::size_t at = json.find(text);
  EXPECT_NE(at, std::string::npos) << json;
  json.replace(at, text.size(), other);
  return message_of([&] { plan_from_json(json, "plan.json"); });
}

TEST(PlanFile, RefusesContextThatThePlanCannotHave)
{
  EXPECT_THAT(message_for("\"degree\": 2", "\"degree\": 4, \"more\": 1"), HasSubstr("context.more: unknown key"));
  EXPECT_THAT(message_for("\"degree\": 2", "\"degree\": 0"), HasSubstr("context.degree: "));
  EXPECT_THAT(message_for("\"degree\": 2", "\"degree\": 3"),
              HasSubstr("context: stage 0 has 4 replicas for groups of 3; give it a multiple"));
  EXPECT_THAT(message_for("\"exchange\": \"ring\"", "\"exchange\": \"star\""), HasSubstr("context.exchange: "));
  EXPECT_THAT(message_for("\"system\": \"megatron-core-0.8\"", "\"micro_batch\": 2"),
              HasSubstr("context: needs training software, which knows attention; plan with compute: operators and a "
                        "framework"));
  EXPECT_THAT(message_for("\"first_layer\": 0", "\"cuts\": [1], \"first_layer\": 0"),
              HasSubstr("stages[0].cuts: the plan divides sequences, with each layer as a part on its devices; leave "
                        "it out"));
}

TEST(PlanFile, TakesOnePartAsNone)
{
  Plan plan = sound_plan({1, 2, 1, {2, ContextExchange::Ring}});
  std::string json = plan_to_json(plan);
  const std::string key = "\"degree\": 2";
  json.replace(json.find(key), key.size(), "\"degree\": 1");
  const Plan read = plan_from_json(json, "plan.json");
  EXPECT_FALSE(read.context.divides());
  EXPECT_EQ(read.stages.size(), 1u);
}

}  // namespace
}  // namespace isobar::replica_exchanges_test
