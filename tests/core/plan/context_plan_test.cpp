#include "core/plan/context_plan.hpp"

#include "core/program/collective.hpp"
#include "core/steps/shard_needs.hpp"
#include "tests/support/contexts.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::context_plan_test {
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
  for (const auto& collective : context_collectives(workload, layer, shards)) {
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
  EXPECT_TRUE(context_collectives(small_llama(), attention, 1).empty());
  const Workload part = with_context(small_llama(), {4, ContextExchange::Ring});
  for (const std::size_t layer : {0, 2, 4, 5}) EXPECT_TRUE(context_collectives(part, layer, 1).empty());
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
        for (const auto& each : context_collectives(part, layer, 2)) {
          const bool is_forward = pass_of(each.role) == ShardPass::Forward;
          planned.emplace_back(is_forward, is_before_pass(each.role), each.opcode, each.size.value);
        }
        std::vector<Key> needed;
        for (const auto& need : context_needs(part, layer, 2)) {
          needed.emplace_back(need.pass == NeedOf::Forward, need.is_before, need.opcode, need.bytes);
        }
        std::sort(planned.begin(), planned.end());
        std::sort(needed.begin(), needed.end());
        EXPECT_EQ(planned, needed);
      }
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
}  // namespace isobar::context_plan_test
