#include "core/compute/device_constants.hpp"
#include "core/compute/layer_memory.hpp"
#include "core/compute/layer_time.hpp"
#include "core/model/product_recipe.hpp"
#include "core/model/workload.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace isobar::compute::decoder_recomputation_test {
namespace {

// Of the first block, whose network is dense, and of the second one, which has experts.
constexpr std::size_t attention = 1;
constexpr std::size_t network = 2;
constexpr std::size_t experts = 4;

constexpr double T = 64;  // tokens
constexpr double z = 2;   // bytes of a number
constexpr double h = 64;
constexpr double a = 8;
constexpr double q = 24;
constexpr double c = 16;
constexpr double r = 12;
constexpr double n = 8;
constexpr double v = 20;
constexpr double f = 96;
constexpr double E = 16;
constexpr double k = 2;
constexpr double e = 32;
constexpr double s = 48;

Workload latent(const std::string& operators, const std::string& system = "megatron-bridge-2026",
                const std::string& more = "")
{
  return workload_from_text(
      "model: decoder\nlayers: 2\nhidden: 64\nheads: 8\nvocabulary: 1000\nlayer_types: [latent]\nq_lora_rank: 24\n"
      "kv_lora_rank: 16\nqk_nope_head_dim: 8\nqk_rope_head_dim: 12\nv_head_dim: 20\nmlp_layer_types: [dense, experts]\n"
      "intermediate: 96\nexperts: 16\ntop_k: 2\nexpert_intermediate: 32\nshared_intermediate: 48\nsequence: 32\n"
      "micro_batch: 2\ndtype: bf16\nunit: operator\ncompute: operators\nframework: " +
          system + "\n" + more + (operators.empty() ? "" : "recompute_operators: [\"0-1: " + operators + "\"]\n"),
      "latent.yaml");
}

LayerMemory memory(const Workload& workload, std::size_t layer, std::size_t shards = 1)
{
  return layer_memory(workload, layer, framework_of(workload), {.shards = shards});
}

/// Bytes that a layer does not keep where operators run again.
double freed(const std::string& operators, std::size_t layer, const std::string& system = "megatron-bridge-2026",
             std::size_t shards = 1)
{
  return memory(latent("", system), layer, shards).kept.value -
         memory(latent(operators, system), layer, shards).kept.value;
}

TEST(DecoderRecomputation, OfNothingKeepsTheClosedForm)
{
  const double heads = a * (2 * (n + r) + v) + a * (n + v) + a * v;
  for (const double t : {1.0, 4.0}) {
    const auto workload = latent("");
    const auto shards = static_cast<std::size_t>(t);
    EXPECT_EQ(memory(workload, attention, shards).kept.value,
              z * T * (2 * h + 2 * (q + c + r)) + (z * T * heads + 4 * a * T) / t);
    EXPECT_EQ(memory(workload, network, shards).kept.value, z * T * (2 * h + 3 * f / t));
    EXPECT_EQ(memory(workload, experts, shards).kept.value,
              z * T * (2 * h + k * h + (3 * k * e + 3 * s) / t) + 8 * E * T);
  }
}

TEST(DecoderRecomputation, OfMegatronCoresModulesDropsWhatOthersSave)
{
  for (const double t : {1.0, 4.0}) {
    const auto of = [&](const std::string& operators, std::size_t layer) {
      return freed(operators, layer, "megatron-bridge-2026", static_cast<std::size_t>(t));
    };
    EXPECT_EQ(of("norm1", attention), z * T * h);
    EXPECT_EQ(of("qkv_up", attention), z * T * (q + c + r + (a * (n + v) + a * (2 * (n + r) + v)) / t));
    EXPECT_EQ(of("context", attention), 4 * a * T / t) << "an ordinary checkpoint, whose output the projection saves";
    EXPECT_EQ(of("norm2", network), z * T * h);
    EXPECT_EQ(of("norm2 up activation down", network), z * T * (h + 3 * f / t)) << "but the residual";
    EXPECT_EQ(of("activation", experts), z * T * k * e / t);
  }
  EXPECT_EQ(freed("norm2", attention), 0) << "of another layer";
}

TEST(DecoderRecomputation, OfOrdinaryCheckpointsKeepsWhatOthersSave)
{
  const std::string system = "megatron-core-0.8";
  EXPECT_EQ(freed("norm1", attention, system), 0);
  EXPECT_EQ(freed("qkv_up", attention, system), z * T * (q + c + r + a * (n + v)));
  EXPECT_EQ(freed("qkv_up context", attention, system),
            z * T * (q + c + r + a * (n + v) + a * (2 * (n + r) + v)) + 4 * a * T);
  EXPECT_EQ(freed("activation", experts, system), 0);
}

TEST(DecoderRecomputation, OfAMixtureIsOfOneOfItsModules)
{
  const auto of_mixture = [](const std::string& operators, const std::string& more = "") {
    const auto with = [&](const std::string& recomputed) {
      return memory(latent("", "megatron-bridge-2026", more + recomputed), experts).kept.value;
    };
    return with("") - with("recompute_operators: [\"1: " + operators + "\"]\n");
  };
  EXPECT_EQ(of_mixture("shared_experts"), z * T * 3 * s);
  EXPECT_EQ(of_mixture("router"), 8 * E * T);
  EXPECT_EQ(of_mixture("router up activation down shared_experts"), z * T * (3 * k * e + 3 * s) + 8 * E * T)
      << "but the tokens that come to experts";
  // In fewer bits the copy that a product reads is what is kept, and the original where something else needs it.
  const double copy = costs_of(latent("", "megatron-bridge-2026", "matmul_dtype: mxfp8\n").recipe).number;
  EXPECT_NEAR(of_mixture("activation", "matmul_dtype: mxfp8\n"), copy * T * k * e, 1e-6);
  EXPECT_NEAR(of_mixture("norm2", "matmul_dtype: mxfp8\n"), T * h * (z + copy), 1e-6);
}

TEST(DecoderRecomputation, HasWhatItMakesAgainWhileItRuns)
{
  const auto workload = latent("qkv_up norm2 up activation down");
  EXPECT_EQ(memory(workload, attention).workspace.value, z * T * (q + c + r + a * (n + v) + a * (2 * (n + r) + v)));
  EXPECT_EQ(memory(workload, network).workspace.value, z * T * (h + 3 * f));
}

TEST(DecoderRecomputation, TakesTheForwardPassOfItsOperatorsAgain)
{
  const auto time_of = [](const Workload& workload, std::size_t layer) {
    return layer_time(workload, layer, device_constants("H100-SXM5-80GB"), framework_of(workload));
  };
  const auto plain = latent("");
  const auto more = [&](const std::string& operators, std::size_t layer,
                        PassTime LayerTime::*pass = &LayerTime::backward) {
    const auto workload = latent("", "megatron-bridge-2026",
                                 "recompute_operators: [\"" + std::to_string(layer / 3) + ": " + operators + "\"]\n");
    PassTime time = time_of(workload, layer).*pass;
    const PassTime without = time_of(plain, layer).*pass;
    time.products = time.products - without.products;
    time.attention = time.attention - without.attention;
    time.memory_bound = time.memory_bound - without.memory_bound;
    return time;
  };
  const auto expect_near = [](Seconds one, Seconds other) { EXPECT_NEAR(one.value, other.value, 1e-9 * other.value); };
  const auto forward = time_of(plain, attention).forward;
  const auto all = more("norm1 qkv qkv_up context projection", attention);
  expect_near(all.products, forward.products);
  expect_near(all.attention, forward.attention);
  EXPECT_LT(all.memory_bound, forward.memory_bound) << "the residual runs once";
  Seconds products;
  Seconds memory_bound;
  for (const auto* each : {"norm1", "qkv", "qkv_up", "context", "projection"}) {
    products += more(each, attention).products;
    memory_bound += more(each, attention).memory_bound;
  }
  expect_near(products, all.products);
  expect_near(memory_bound, all.memory_bound);
  expect_near(more("context", attention).attention, forward.attention);
  EXPECT_EQ(more("context", attention).products, Seconds(0));

  const auto of_experts = time_of(plain, experts).forward;
  expect_near(more("router up activation down shared_experts", experts).products, of_experts.products);
  const auto activation = more("activation", experts);
  EXPECT_EQ(activation.products, Seconds(0));
  EXPECT_GT(activation.memory_bound, Seconds(0));
  const auto shared = more("shared_experts", experts);
  // Bytes of activations are by width.
  EXPECT_LT(activation.memory_bound, shared.memory_bound * (k * e / s) * 1.001);
  EXPECT_GT(activation.memory_bound, shared.memory_bound * (k * e / s) * 0.999);
}

}  // namespace
}  // namespace isobar::compute::decoder_recomputation_test
