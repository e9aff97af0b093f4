#include "core/model/sharding.hpp"

#include "tests/support/contexts.hpp"
#include "tests/support/experts.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

// What a device has of layers whose experts several of them divide.
namespace isobar::experts_test {
namespace {

using testing::HasSubstr;
using testing_support::add_experts;

constexpr std::size_t with_some = 1;  // the layer with experts

/// A chain of layers of which the second has 8 experts of 24 parameters.
Workload with_eight_experts()
{
  Workload workload = testing_support::divisible(3);
  add_experts(workload.layers[with_some], 8, 24, Flops(6e9), Bytes(640));
  return workload;
}

TEST(WithExperts, LeavesADeviceAnEqualPartOfTheExpertsAndAllElse)
{
  const Workload whole = with_eight_experts();
  for (const std::size_t degree : {2, 4, 8}) {
    const Workload own = with_experts(whole, {degree});
    for (std::size_t i = 0; i < whole.layers.size(); ++i) {
      const Layer& all = whole.layers[i];
      const Layer& part = own.layers[i];
      const std::uint64_t elsewhere = i == with_some ? 8 * 24 - 8 * 24 / degree : 0;
      EXPECT_EQ(part.parameters, all.parameters - elsewhere);
      EXPECT_EQ(part.split->parameters, all.split->parameters - elsewhere);
      EXPECT_EQ(part.forward, all.forward);
      EXPECT_EQ(part.backward, all.backward);
      EXPECT_EQ(part.activations, all.activations);
      EXPECT_EQ(part.output, all.output);
    }
    EXPECT_EQ(own.layers[with_some].experts->parameters, 8 * 24 / degree);
    EXPECT_EQ(own.layers[with_some].experts->dispatched, whole.layers[with_some].experts->dispatched);
  }
}

TEST(WithExperts, OfOnePartIsTheWhole)
{
  const Workload whole = with_eight_experts();
  const Workload own = with_experts(whole, {});
  EXPECT_EQ(own.layers[with_some].parameters, whole.layers[with_some].parameters);
  EXPECT_EQ(own.layers[with_some].forward, whole.layers[with_some].forward);
}

TEST(WithExperts, CountsTheTokensOfTheMostLoadedDevice)
{
  Workload whole = with_eight_experts();
  whole.expert_imbalance.most = 1.5;
  EXPECT_EQ(with_experts(whole, {}).layers[with_some].forward, whole.layers[with_some].forward);
  const Layer& all = whole.layers[with_some];
  const Layer own = with_experts(whole, {4}).layers[with_some];
  EXPECT_DOUBLE_EQ(own.forward.value, all.forward.value + 0.5 * 6e9);
  EXPECT_DOUBLE_EQ(own.backward.value, all.backward.value + 0.5 * 12e9);
  EXPECT_DOUBLE_EQ(own.backward_weight.value, all.backward_weight.value + 0.5 * 6e9);
  EXPECT_DOUBLE_EQ(own.activations.value, all.activations.value + 0.5 * 640);
  EXPECT_DOUBLE_EQ(own.split->activations.value, all.split->activations.value + 0.5 * 640);
  EXPECT_EQ(own.experts->dispatched, all.experts->dispatched);
}

// What a layer keeps, with its experts more loaded: what it reads, or all that it has if that is less.
TEST(WithExperts, IsTheSameBeforeAndAfterRecomputation)
{
  for (const double read : {64.0, 1e6}) {
    for (const double imbalance : {1.0, 1.25, 4.0}) {
      Workload whole = with_eight_experts();
      whole.layers[0].output = Bytes(read);
      whole.expert_imbalance.most = imbalance;
      const Workload first = with_experts(with_recomputation(whole, {1, 2}), {4});
      const Workload last = with_recomputation(with_experts(whole, {4}), {1, 2});
      for (std::size_t i = 0; i < whole.layers.size(); ++i) {
        EXPECT_DOUBLE_EQ(first.layers[i].forward.value, last.layers[i].forward.value);
        EXPECT_DOUBLE_EQ(first.layers[i].backward.value, last.layers[i].backward.value);
        EXPECT_DOUBLE_EQ(first.layers[i].activations.value, last.layers[i].activations.value);
        EXPECT_DOUBLE_EQ(first.layers[i].workspace.value, last.layers[i].workspace.value);
        EXPECT_DOUBLE_EQ(first.layers[i].split->activations.value, last.layers[i].split->activations.value);
      }
      EXPECT_DOUBLE_EQ(first.workspace.value, last.workspace.value);
    }
  }
}

TEST(WhyNotDivided, NamesWhatKeepsExpertsFromBeingDivided)
{
  const auto why = [](const Workload& workload, std::size_t degree) {
    return why_not_divided(workload, ExpertParallelism{degree}, 2).value_or("");
  };
  Workload workload = with_eight_experts();
  workload.name = "model";
  workload.layers[with_some].name = "b";
  EXPECT_EQ(why(workload, 1), "");
  EXPECT_EQ(why(workload, 8), "");
  EXPECT_EQ(why(workload, 3), "the 8 experts of layer b are not 3 equal parts; use a degree that divides them");
  EXPECT_EQ(why(workload, 16), "the 8 experts of layer b are not 16 equal parts; use a degree that divides them");
  EXPECT_EQ(why_not_divided(workload, {4, true}, 2), std::nullopt);
  EXPECT_EQ(why_not_divided(workload, {8, true}, 2).value_or(""),
            "the 8 experts of layer b are not 16 equal parts; use a degree that divides them");
  workload.expert_imbalance.most = 2.5;
  EXPECT_EQ(why(workload, 4), "");
  EXPECT_EQ(why(workload, 2),
            "expert_imbalance: 2.5 times the mean are more than all tokens of 2 parts; write at most 2");
  workload.layers[2].tied_to = 0;
  EXPECT_EQ(why(workload, 4), "");
  EXPECT_EQ(why(testing_support::divisible(2), 1), "");
  Workload dense = testing_support::divisible(2);
  dense.name = "dense";
  EXPECT_EQ(why(dense, 2), "no layer of dense has experts");
  dense.memory_model = MemoryModel::Sky;
  EXPECT_EQ(why(dense, 2), "memory_model sky does not know experts; write memory_model: training");
}

/// A file with a layer whose experts have these keys.
std::string file_with(const std::string& experts, const std::string& more = "")
{
  return "model: layers\n" + more +
         "layers:\n  - {name: a, forward: 4 GFLOP, parameters: 100, activations: 8 MB, output: 1 MB, experts: " +
         experts + "}\n";
}

constexpr auto sound =
    "{count: 8, per_token: 2, parameters: 80, forward: 1 GFLOP, activations: 4 MB, dispatched: 2 MB}";

TEST(WorkloadFile, HasExpertsOfListedLayers)
{
  const Workload workload = workload_from_text(file_with(sound, "expert_imbalance: 1.25\n"), "moe.yaml");
  const Experts& experts = workload.layers.front().experts.value();
  EXPECT_EQ(experts.count, 8u);
  EXPECT_EQ(experts.per_token, 2u);
  EXPECT_EQ(experts.parameters, 80u);
  EXPECT_EQ(experts.forward, Flops(1e9));
  EXPECT_EQ(experts.backward, Flops(2e9));
  EXPECT_EQ(experts.backward_weight, Flops(1e9));
  EXPECT_EQ(experts.activations, Bytes(4e6));
  EXPECT_EQ(experts.dispatched, Bytes(2e6));
  EXPECT_EQ(workload.expert_imbalance.most, 1.25);
}

TEST(WorkloadFile, RefusesExpertsThatALayerCannotHave)
{
  const auto message_for = [](std::string key, const std::string& value) {
    std::string text = sound;
    if (!key.empty()) {
      const std::size_t begin = text.find(key + ":");
      const std::size_t end = begin == std::string::npos ? begin : text.find_first_of(",}", begin);
      if (begin == std::string::npos) {
        text.insert(1, key + ": " + value + ", ");
      } else {
        text.replace(begin, end - begin, key + ": " + value);
      }
    }
    return message_of([&] { workload_from_text(file_with(text), "moe.yaml"); });
  };
  EXPECT_EQ(message_for("", ""), "no error");
  EXPECT_THAT(message_for("count", "0"), HasSubstr("moe.yaml:3: layers[0].experts.count: "));
  EXPECT_THAT(message_for("count", "1"),
              HasSubstr("layers[0].experts.per_token: 2 is more than the 1 experts; write at most as many"));
  EXPECT_THAT(message_for("per_token", "9"),
              HasSubstr("layers[0].experts.per_token: 9 is more than the 8 experts; write at most as many"));
  EXPECT_THAT(
      message_for("parameters", "104"),
      HasSubstr("layers[0].experts.parameters: 104 are more than the 100 of the layer; write the part of those"));
  EXPECT_THAT(message_for("parameters", "81"),
              HasSubstr("layers[0].experts.parameters: 81 are not 8 equal experts; write a multiple of their number"));
  EXPECT_THAT(message_for("forward", "5 GFLOP"),
              HasSubstr("layers[0].experts.forward: 5e+09 FLOP are more than the 4e+09 of the layer; write the part of "
                        "those"));
  EXPECT_THAT(message_for("backward", "9 GFLOP"),
              HasSubstr("layers[0].experts.backward: 9e+09 FLOP are more than the 8e+09 of the layer"));
  EXPECT_THAT(message_for("backward_weight", "5 GFLOP"),
              HasSubstr("layers[0].experts.backward_weight: 5e+09 FLOP are more than the 4e+09 of the layer"));
  EXPECT_THAT(message_for("activations", "9 MB"),
              HasSubstr("layers[0].experts.activations: 9e+06 B are more than the 8e+06 of the layer"));
  EXPECT_THAT(message_for("dispatched", "2"), HasSubstr("layers[0].experts.dispatched: "));
  EXPECT_THAT(message_for("experts", "2"), HasSubstr("layers[0].experts.experts: unknown key"));
  const auto message_of_file = [](const std::string& text) {
    return message_of([&] { workload_from_text(text, "moe.yaml"); });
  };
  EXPECT_THAT(
      message_of_file(file_with("8")),
      HasSubstr("layers[0].experts: is no mapping; write count, per_token, parameters, forward, activations and "
                "dispatched"));
  EXPECT_THAT(message_of_file(file_with(sound, "expert_imbalance: 0.5\n")),
              HasSubstr("moe.yaml:2: expert_imbalance: 0.5; the most tokens over the mean are 1 (even) or more"));
  EXPECT_THAT(message_of_file("model: layers\nexpert_imbalance: 2\nlayers:\n  - {name: a, forward: 1 GFLOP, "
                              "parameters: 1, activations: 1 MB, output: 1 MB}\n"),
              HasSubstr("moe.yaml:2: expert_imbalance: no layer has experts; leave it out"));
}

}  // namespace
}  // namespace isobar::experts_test
