#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/model/differences.hpp"
#include "core/model/layer_graph.hpp"
#include "core/model/workload.hpp"
#include "tests/support/bad_files.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <ostream>
#include <string>
#include <variant>

namespace isobar::workload_file_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double mebibyte = 1048576;
constexpr auto small_gpt = "model: gpt\nlayers: 2\nhidden: 64\nheads: 4\nvocabulary: 100\nsequence: 32\n";

std::filesystem::path shipped(const std::string& name)
{
  return std::filesystem::path(ISOBAR_SOURCE_DIR) / "workloads" / (name + ".yaml");
}

std::string fault_of(const std::string& text)
{
  try {
    workload_from_text(text, "x.yaml");
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "accepted";
}

double total(const Workload& workload, const auto& read)
{
  double sum = 0;
  for (const auto& layer : workload.layers) sum += static_cast<double>(read(layer));
  return sum;
}

double parameters(const Workload& workload)
{
  return total(workload, [](const Layer& layer) { return layer.parameters; });
}

double multiply_adds(const Workload& workload)
{
  return total(workload, [](const Layer& layer) { return layer.forward.value; }) / 2;
}

const Layer& layer_named(const Workload& workload, const std::string& name)
{
  for (const auto& layer : workload.layers) {
    if (layer.name == name) return layer;
  }
  throw std::out_of_range(name);
}

struct SkyUnit {
  const char* name;
  std::uint64_t parameters;
  double multiply_adds;
  double memory_mib;
  double output_bytes;
  double gradient_bytes;
};

/// Sky Computing's table of units (published code, measured and derived).
const SkyUnit sky_units[] = {
    {"embedding", 31782912, 0, 434.5625, 16 * mebibyte + 16384, 16 * mebibyte},
    {"encoder0.attention", 4200448, 18253611008, 432.093750, 16 * mebibyte + 16384, 16 * mebibyte},
    {"encoder0.up", 4198400, 17179869184, 464.078125, 80 * mebibyte + 16384, 80 * mebibyte},
    {"encoder9.down", 4197376, 17179869184, 272.0703125, 16 * mebibyte + 16384, 16 * mebibyte},
    {"pooler", 1049600, 33554432, 24.5234375, 131072, 131072},
    {"classifier", 3075, 98304, 0.399925, 384, 384},
};

TEST(BertWorkload, HasTheUnitsOfSky)
{
  const auto workload = read_workload(shipped("bert10"));
  EXPECT_EQ(workload.memory_model, MemoryModel::Sky);
  EXPECT_EQ(workload.input, Bytes(96 * 1024));
  EXPECT_TRUE(is_chain(workload));
  for (const auto& unit : sky_units) {
    const auto& layer = layer_named(workload, unit.name);
    EXPECT_EQ(layer.parameters, unit.parameters) << unit.name;
    EXPECT_EQ(layer.forward.value, 2 * unit.multiply_adds) << unit.name;
    EXPECT_EQ(layer.backward.value, 4 * unit.multiply_adds) << unit.name;
    EXPECT_NEAR(layer.sky_memory.value / mebibyte, unit.memory_mib, 1e-6 * unit.memory_mib) << unit.name;
    EXPECT_EQ(layer.output.value, unit.output_bytes) << unit.name;
    EXPECT_EQ(layer.gradient.value, unit.gradient_bytes) << unit.name;
  }
}

TEST(BertWorkload, HasTheTotalsOfSky)
{
  struct Total {
    const char* name;
    std::size_t layers;
    double parameters;
    double forward_tera_multiply_adds;
    double memory_gib;
  };
  for (const auto& [name, layers, wanted_parameters, work, memory] :
       {Total{"bert10", 33, 158797827, 0.52617, 11.857}, Total{"bert24", 75, 335144963, 1.26275, 27.829},
        Total{"bert80", 243, 1040533507, 4.20910, 91.718}, Total{"bert160", 483, 2048231427, 8.41817, 182.987}}) {
    const auto workload = read_workload(shipped(name));
    EXPECT_EQ(workload.name, name);
    EXPECT_EQ(workload.layers.size(), layers);
    EXPECT_EQ(parameters(workload), wanted_parameters);
    EXPECT_NEAR(multiply_adds(workload) / 1e12, work, 0.5e-5);
    const double bytes = total(workload, [](const Layer& layer) { return layer.sky_memory.value; });
    EXPECT_NEAR(bytes / 0x1p30, memory, 0.5e-3);
  }
}

TEST(BertWorkload, ScalesWithEverySize)
{
  // Sizes that are all different and odd, against the table of core/model/models.hpp worked out by hand.
  const auto workload = workload_from_text(
      "model: bert\nencoders: 1\nhidden: 6\nheads: 3\nintermediate: 10\nvocabulary: 100\npositions: 20\nclasses: 4\n"
      "micro_batch: 2\nsequence: 5\ndtype: bf16\nmemory_model: sky\n",
      "x.yaml");
  // B=2 S=5 T=10 H=6 e=60 TI=100 p=2*3*25=150 z=2
  ASSERT_EQ(workload.layers.size(), 6u);
  const auto& embedding = workload.layers[0];
  const auto& attention = workload.layers[1];
  const auto& up = workload.layers[2];
  const auto& down = workload.layers[3];
  const auto& pooler = workload.layers[4];
  const auto& classifier = workload.layers[5];
  EXPECT_EQ(embedding.parameters, (100u + 20 + 2) * 6 + 12);
  EXPECT_EQ(embedding.activations, Bytes(2 * 60 + 60 + 240));
  EXPECT_EQ(embedding.output, Bytes(120 + 20));
  EXPECT_EQ(embedding.sky_memory, Bytes(2 * (2 * (360 + 10) + 2 * 744 + 30)));
  EXPECT_EQ(attention.parameters, 4u * 42 + 12);
  EXPECT_EQ(attention.forward, Flops(2 * (4 * 10 * 36 + 2 * 2 * 25 * 6)));
  EXPECT_EQ(attention.activations, Bytes(2 * (360 + 300) + 60 + 150));
  EXPECT_EQ(attention.sky_memory, Bytes(2 * (2 * (600 + 150 + 10) + 2 * 180 + 70)));
  EXPECT_EQ(up.parameters, 70u);
  EXPECT_EQ(up.forward, Flops(2 * 10 * 6 * 10));
  EXPECT_EQ(up.activations, Bytes(2 * (60 + 100)));
  EXPECT_EQ(up.output, Bytes(2 * (100 + 60 + 10)));
  EXPECT_EQ(up.gradient, Bytes(2 * (100 + 60)));
  EXPECT_EQ(up.sky_memory, Bytes(2 * (2 * (300 + 60 + 10) + 2 * 70 + 70)));
  EXPECT_EQ(down.parameters, 60u + 6 + 12);
  EXPECT_EQ(down.activations, Bytes(2 * (100 + 60) + 60));
  EXPECT_EQ(down.sky_memory, Bytes(2 * (2 * (300 + 10) + 2 * 78 + 170)));
  EXPECT_EQ(pooler.parameters, 42u);
  EXPECT_EQ(pooler.forward, Flops(2 * 2 * 36));
  EXPECT_EQ(pooler.output, Bytes(2 * 12));
  EXPECT_EQ(pooler.sky_memory, Bytes(2 * (2 * 24 + 2 * 42 + 70)));
  EXPECT_EQ(classifier.parameters, 28u);
  EXPECT_EQ(classifier.activations, Bytes(3 * 12 + 2 * 8));
  EXPECT_EQ(classifier.output, Bytes(2 * 8));
  EXPECT_EQ(classifier.sky_memory, Bytes(2 * (2 * (12 + 16) + 2 * 28 + 12)));
}

/// FLOPs of a layer's gradients of parameters.
double weight_work(const Workload& workload, const std::string& layer)
{
  return layer_named(workload, layer).backward_weight.value;
}

TEST(GeneratedWorkloads, CountAGradientOfParametersForEachProductWithThem)
{
  // Sizes that are all different, against the multiply-adds of core/model/models.hpp without 2BS²H.
  const auto bert = workload_from_text(
      "model: bert\nencoders: 1\nhidden: 6\nheads: 3\nintermediate: 10\nvocabulary: 100\npositions: 20\nclasses: 4\n"
      "micro_batch: 2\nsequence: 5\n",
      "x.yaml");
  EXPECT_EQ(weight_work(bert, "embedding"), 0);
  EXPECT_EQ(weight_work(bert, "encoder0.attention"), 2 * 4 * 10 * 36);
  EXPECT_EQ(weight_work(bert, "encoder0.up"), 2 * 10 * 6 * 10);
  EXPECT_EQ(weight_work(bert, "encoder0.down"), 2 * 10 * 6 * 10);
  EXPECT_EQ(weight_work(bert, "pooler"), 2 * 2 * 36);
  EXPECT_EQ(weight_work(bert, "classifier"), 2 * 2 * 6 * 4);
  const auto gpt = workload_from_text(
      "model: gpt\nlayers: 1\nhidden: 6\nheads: 3\nintermediate: 10\nvocabulary: 100\nmicro_batch: 2\nsequence: 5\n",
      "x.yaml");
  EXPECT_EQ(weight_work(gpt, "block0"), 2 * (4 * 10 * 36 + 2 * 10 * 6 * 10));
  EXPECT_EQ(weight_work(gpt, "head"), 2 * 10 * 100 * 6);
  const auto llama = workload_from_text(
      "model: llama\nlayers: 1\nhidden: 8\nheads: 4\nkv_heads: 2\nintermediate: 20\nvocabulary: 50\nsequence: 3\n"
      "micro_batch: 5\n",
      "x.yaml");
  EXPECT_EQ(weight_work(llama, "block0"), 2 * 15 * (2 * 64 + 2 * 8 * 4 + 3 * 8 * 20));
  EXPECT_EQ(weight_work(llama, "head"), 2 * 15 * 50 * 8);
}

TEST(GeneratedWorkloads, SpendHalfOfTheBackwardPassOnParametersWithoutAttention)
{
  const auto resnet = read_workload(shipped("resnet50"));
  for (const auto& layer : resnet.layers) EXPECT_EQ(layer.backward_weight, layer.forward) << layer.name;
  // The published split of a transformer layer: backward 48·B·S·h² + 8·B·S²·h, of which 24·B·S·h² for parameters
  // (Qi et al. 2024, "Zero Bubble Pipeline Parallelism", table 1).
  const auto gpt = read_workload(shipped("gpt3_175b"));
  const double s = 2048, h = 12288;
  const auto& block = layer_named(gpt, "block0");
  EXPECT_EQ(block.backward_weight.value, 24 * s * h * h);
  EXPECT_EQ((block.backward - block.backward_weight).value, 24 * s * h * h + 8 * s * s * h);
}

TEST(BertWorkload, HasNoSkyMemoryUnderTheTrainingModel)
{
  const auto workload = read_workload(shipped("bert_large"));
  EXPECT_EQ(workload.memory_model, MemoryModel::Training);
  EXPECT_EQ(workload.optimizer, Optimizer::Adam);
  EXPECT_EQ(total(workload, [](const Layer& layer) { return layer.sky_memory.value; }), 0);
}

/// Korthikanti et al. 2022, section 4.1: s·b·h·(34 + 5·a·s/h) bytes for a transformer layer in 16 bit.
double activations_of_transformer_layer(double s, double b, double h, double a)
{
  return s * b * h * (34 + 5 * a * s / h);
}

TEST(BertWorkload, KeepsTheActivationsOfKorthikantiPerEncoder)
{
  const auto workload = workload_from_text(
      "model: bert\nencoders: 2\nhidden: 1024\nheads: 16\nintermediate: 4096\nvocabulary: 30522\npositions: 512\n"
      "classes: 3\nmicro_batch: 8\nsequence: 512\ndtype: fp16\n",
      "x.yaml");
  const double sum = layer_named(workload, "encoder1.attention").activations.value +
                     layer_named(workload, "encoder1.up").activations.value +
                     layer_named(workload, "encoder1.down").activations.value;
  EXPECT_EQ(sum, activations_of_transformer_layer(512, 8, 1024, 16));
}

TEST(GptWorkload, KeepsTheActivationsOfKorthikantiPerBlock)
{
  const auto workload = read_workload(shipped("gpt3_175b"));
  EXPECT_EQ(layer_named(workload, "block95").activations.value, activations_of_transformer_layer(2048, 1, 12288, 96));
  // The same paper, section 4.1 and 4.3: dropout mask of the embedding, and inputs and float32 logits of the head.
  EXPECT_EQ(layer_named(workload, "embedding").activations.value, 2048.0 * 12288 + 8 * 2048);
  EXPECT_EQ(layer_named(workload, "head").activations.value, 4 * 2048.0 * 12288 + 4 * 2048.0 * 50257);
}

struct KnownSize {
  const char* name;
  double unique_parameters;
  double tolerance;

  friend void PrintTo(const KnownSize& size, std::ostream* out) { *out << size.name; }
};

class GptSizesTest : public testing::TestWithParam<KnownSize> {};

TEST_P(GptSizesTest, HasThePublishedParametersAndACopyOfTheTiedMatrix)
{
  const auto& [name, unique, tolerance] = GetParam();
  const auto workload = read_workload(shipped(name));
  const auto copy = static_cast<double>(workload.layers.back().parameters) -
                    2 * (workload.layers[1].output.value / size_of(workload.dtype) /
                         static_cast<double>(workload.micro_batch * workload.sequence));
  EXPECT_NEAR(parameters(workload) - copy, unique, tolerance * unique);
  EXPECT_EQ(workload.layers.front().name, "embedding");
  EXPECT_EQ(workload.layers.back().name, "head");
  EXPECT_TRUE(is_chain(workload));
}

INSTANTIATE_TEST_SUITE_P(Published, GptSizesTest,
                         testing::Values(KnownSize{"gpt2_124m", 124439808, 0},   // released checkpoints, exactly
                                         KnownSize{"gpt2_350m", 354823168, 0},   //
                                         KnownSize{"gpt2_774m", 774030080, 0},   //
                                         KnownSize{"gpt2_1.5b", 1557611200, 0},  //
                                         KnownSize{"gpt3_1.3b", 1.3e9, 0.02},    // Brown et al. 2020, table 2.1
                                         KnownSize{"gpt3_6.7b", 6.7e9, 0.01},    //
                                         KnownSize{"gpt3_175b", 175e9, 0.005},   //
                                         // STRONGHOLD's runs: 50,358,272 for each block and 105,123,840.
                                         KnownSize{"stronghold_1.7b", 1716588544, 0},
                                         KnownSize{"stronghold_2.5b", 2522320896, 0},
                                         KnownSize{"stronghold_4b", 4033069056, 0},
                                         KnownSize{"stronghold_5.1b", 5140951040, 0}),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(WorkloadSettings, MakeTheFamilyOfStronghold)
{
  const auto text = read_file(shipped("stronghold"));
  for (const std::uint64_t layers : {1, 20, 32, 48, 500}) {
    const auto workload = workload_from_text(text, "x.yaml", WorkloadSettings{{"layers", std::to_string(layers)}});
    EXPECT_EQ(parameters(workload), static_cast<double>(50'358'272 * layers + 105'123'840));
  }
}

TEST(GptWorkload, HasTheWorkspaceOfItsLargestGradients)
{
  const std::string gpt =
      "model: gpt\nlayers: 2\nhidden: 128\nheads: 4\nvocabulary: 1000\nsequence: 128\nmicro_batch: 4\n"
      "attention: fused\noptimizer: sgd\n";
  const Workload workload = workload_from_text(gpt, "gpt.yaml");
  EXPECT_EQ(workload.workspace, Bytes(0)) << "of stages that live on their devices";
  // e = 512 · 128 values of a hidden state, of which two masks count among the activations that no dropout has; 16
  // bytes of moments of norms for each of 512 tokens; 64 bytes for the loss.
  const double e = 65'536;
  EXPECT_EQ(workload.layers[1].workspace.value, 4 * 512 * 512 + 4 * (512 * 128 + 128) + 16 * 512 - 2 * e + 64);
  EXPECT_EQ(workload.layers[0].workspace.value, 4 * e + 4 * 1000 * 128 + 8 * 128 - e + 64);
  EXPECT_EQ(workload.layers[3].workspace.value, 4 * 1000 * 128 + 16 * 512 + 64);
  // What is known of the gradients of all parameters: at most 16 tensors in each of four layers.
  const Workload clipped = workload_from_text(gpt + "clip_norm: 1\n", "gpt.yaml");
  EXPECT_EQ(clipped.layers[1].workspace - workload.layers[1].workspace, Bytes(16 * 16 * 4));
}

TEST(TiedGpt, HasTheMatrixOfItsHeadInTheEmbedding)
{
  for (const char* unit : {"block", "operator"}) {
    const auto own = workload_from_text(small_gpt, "x.yaml", WorkloadSettings{{"unit", unit}});
    const auto tied = workload_from_text(small_gpt, "x.yaml", WorkloadSettings{{"unit", unit}, {"tied", "true"}});
    ASSERT_EQ(tied.layers.size(), own.layers.size());
    for (std::size_t i = 0; i + 1 < own.layers.size(); ++i) {
      EXPECT_EQ(tied.layers[i].parameters, own.layers[i].parameters);
      EXPECT_EQ(tied.layers[i].backward_weight, own.layers[i].backward_weight);
      EXPECT_FALSE(tied.layers[i].tied_to);
      EXPECT_EQ(tied.layers[i].split.has_value(), own.layers[i].split.has_value());
    }
    const Layer& head = tied.layers.back();
    EXPECT_EQ(head.tied_to, 0U);
    EXPECT_EQ(head.tied_parameters, 100U * 64);
    EXPECT_FALSE(head.has_tied_copy);
    EXPECT_EQ(head.split.value().units, 100U);
    EXPECT_EQ(head.split->parameters, 0U);
    EXPECT_EQ(head.parameters, 2U * 64);
    EXPECT_EQ(own.layers.back().parameters, 2U * 64 + 100 * 64);
    EXPECT_EQ(head.forward, own.layers.back().forward);
    EXPECT_EQ(head.backward, own.layers.back().backward);
    EXPECT_EQ(head.backward_weight, Flops(0)) << "the gradient is of the embedding's parameters";
    EXPECT_EQ(head.activations, own.layers.back().activations);
    EXPECT_EQ(update_work(tied, head).value, 2 * 64 * update_flops_per_parameter(tied.optimizer));
  }
  const auto other = with_micro_batch(workload_from_text(small_gpt, "x.yaml", WorkloadSettings{{"tied", "true"}}), 3);
  EXPECT_EQ(other.layers.back().tied_to, 0U);
  EXPECT_EQ(other.layers.back().tied_parameters, 100U * 64);
  const std::string json = workload_to_json(other);
  EXPECT_NE(json.find("\"tied_to\":0"), std::string::npos) << json;
  EXPECT_NE(json.find("\"tied_parameters\":6400"), std::string::npos);
}

TEST(HeadTiedApart, CountsAMatrixOfItsOwnAndReportsBothCounts)
{
  const auto own = workload_from_text(small_gpt, "x.yaml");
  const auto apart = workload_from_text(small_gpt, "x.yaml", WorkloadSettings{{"tied", "apart"}});
  EXPECT_EQ(all_parameters(apart), all_parameters(own));
  EXPECT_EQ(apart.layers.back().tied_to, own.layers.back().tied_to);
  EXPECT_EQ(matrix_of_head(apart), 100U * 64);
  EXPECT_EQ(
      note_of_head(apart, "x.yaml"),
      fmt::format("x.yaml: tied: apart: counts {} parameters; {} with one matrix for head and embedding, as in the "
                  "model",
                  all_parameters(own), all_parameters(own) - 6400));
  const auto tied = workload_from_text(small_gpt, "x.yaml", WorkloadSettings{{"tied", "true"}});
  EXPECT_EQ(all_parameters(tied), all_parameters(own) - 6400);
  for (const auto* other : {&own, &tied}) EXPECT_EQ(note_of_head(*other, "x.yaml"), std::nullopt);
  EXPECT_TRUE(with_micro_batch(apart, 3).ties_apart);
  // The parameters are those of the model, however many devices divide its experts.
  const std::string mixture =
      "model: decoder\nlayers: 2\nhidden: 64\nheads: 4\nkv_heads: 4\nhead_dim: 16\nvocabulary: 100\nsequence: 8\n"
      "mlp_layer_types: [experts]\nexperts: 4\ntop_k: 2\nexpert_intermediate: 32\nunit: operator\ntied: apart\n";
  const auto whole = workload_from_text(mixture, "x.yaml");
  const auto divided = with_experts(whole, {4});
  EXPECT_LT(all_parameters(divided), all_parameters(whole));
  EXPECT_EQ(note_of_head(divided, "x.yaml"), note_of_head(whole, "x.yaml"));
  const std::string llama =
      "model: llama\nlayers: 1\nhidden: 64\nheads: 4\nkv_heads: 2\nintermediate: 100\nvocabulary: 100\nsequence: 8\n";
  EXPECT_EQ(matrix_of_head(workload_from_text(llama + "tied: apart\n", "x.yaml")), 100U * 64);
}

TEST(DifferencesFromAModel, AreListedAndRefuseARun)
{
  const auto same = workload_from_text(small_gpt, "x.yaml");
  require_same_model(same, "x.yaml");
  const auto other =
      workload_from_text(std::string(small_gpt) + "differences: [\"gelu, not gelu_new\", biases]\n", "x.yaml");
  EXPECT_EQ(all_parameters(other), all_parameters(same));
  EXPECT_THAT(
      [&] { require_same_model(other, "x.yaml"); },
      testing::ThrowsMessage<InputError>(
          "x.yaml: differences: the model has gelu, not gelu_new; biases, which isobar run does not compute; to "
          "train the model without, plan with --set differences=[]"));
  EXPECT_TRUE(with_micro_batch(other, 3).differences == other.differences);
}

TEST(GptWorkload, HasTheWorkOfNarayanan)
{
  // Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", appendix: forward and
  // backward take 72·B·s·l·h²·(1 + s/(6h) + V/(12·l·h)) FLOP without recomputation.
  const auto workload = read_workload(shipped("gpt3_175b"));
  const double s = 2048, l = 96, h = 12288, V = 50257;
  const double work = total(workload, [](const Layer& layer) { return (layer.forward + layer.backward).value; });
  EXPECT_NEAR(work, 72 * s * l * h * h * (1 + s / (6 * h) + V / (12 * l * h)), 1e-9 * work);
}

TEST(LlamaWorkload, HasThePublishedParameters)
{
  const auto workload = read_workload(shipped("llama_8b"));
  EXPECT_EQ(parameters(workload), 8030261248);
  EXPECT_EQ(workload.layers.size(), 34u);
  EXPECT_EQ(workload.sequence, 8192u);
  EXPECT_EQ(layer_named(workload, "block0").output, Bytes(2.0 * 8192 * 4096));
}

TEST(LlamaWorkload, HasOneMultiplyAddPerTokenAndParameter)
{
  const auto workload = workload_from_text(
      "model: llama\nlayers: 1\nhidden: 8\nheads: 4\nkv_heads: 2\nintermediate: 20\nvocabulary: 50\nsequence: 3\n"
      "micro_batch: 5\ndtype: bf16\n",
      "x.yaml");
  // T=15 K=4: matrices 2*64 + 2*8*4 + 3*8*20 = 672; S x S products 2*5*9*8.
  const auto& block = layer_named(workload, "block0");
  EXPECT_EQ(block.parameters, 672u + 16);
  EXPECT_EQ(block.forward, Flops(2 * (15 * 672 + 720)));
  // z=2 e=120 B·A·S=60
  EXPECT_EQ(block.activations, Bytes(2 * (6 * 120 + 2 * 15 * 4 + 4 * 15 * 20) + 4 * 5 * 4 * 3));
  EXPECT_EQ(layer_named(workload, "head").forward, Flops(2 * 15 * 50 * 8));
}

TEST(Operators, AreTheTwoHalvesOfABlock)
{
  for (const std::string attention : {"unfused", "fused"}) {
    for (const std::string model :
         {"model: gpt\nintermediate: 10\n", "model: llama\nkv_heads: 1\nintermediate: 20\n"}) {
      const std::string text = model +
                               "layers: 2\nhidden: 6\nheads: 3\nvocabulary: 100\nmicro_batch: 2\nsequence: 5\n"
                               "attention: " +
                               attention + "\n";
      const auto blocks = workload_from_text(text, "x.yaml");
      EXPECT_EQ(workload_to_json(workload_from_text(text + "unit: block\n", "x.yaml")), workload_to_json(blocks));
      const auto operators = workload_from_text(text + "unit: operator\n", "x.yaml");
      ASSERT_EQ(operators.layers.size(), 6U);
      for (std::size_t i = 0; i < 2; ++i) {
        const Layer& block = layer_named(blocks, fmt::format("block{}", i));
        const Layer& attend = operators.layers[1 + 2 * i];
        const Layer& feed_forward = operators.layers[2 + 2 * i];
        EXPECT_EQ(attend.name, block.name + ".attention");
        EXPECT_EQ(feed_forward.name, block.name + ".mlp");
        EXPECT_EQ(attend.forward + feed_forward.forward, block.forward);
        EXPECT_EQ(attend.backward_weight + feed_forward.backward_weight, block.backward_weight);
        EXPECT_EQ(attend.parameters + feed_forward.parameters, block.parameters);
        EXPECT_EQ(attend.activations + feed_forward.activations, block.activations);
        EXPECT_EQ(attend.output, block.output);
        EXPECT_EQ(feed_forward.output, block.output);
        EXPECT_EQ(feed_forward.inputs, std::vector<std::size_t>{1 + 2 * i});
      }
      EXPECT_EQ(operators.layers.back().name, "head");
    }
  }
}

TEST(Operators, HaveTheCostsOfTheirFormulas)
{
  const std::string sizes =
      "layers: 1\nhidden: 6\nheads: 3\nintermediate: 10\nvocabulary: 100\nmicro_batch: 2\nsequence: 5\n"
      "attention: unfused\nunit: operator\n";
  // T=10 H=6 I=10 z=4 e=60 p=2*3*25=150
  const auto gpt = workload_from_text("model: gpt\n" + sizes, "x.yaml");
  const Layer& attend = layer_named(gpt, "block0.attention");
  EXPECT_EQ(attend.parameters, 4U * 42 + 12);
  EXPECT_EQ(attend.forward, Flops(2 * (4 * 10 * 36 + 2 * 2 * 25 * 6)));
  EXPECT_EQ(attend.activations, Bytes(4 * (6 * 60 + 2 * 150) + 60 + 150));
  const Layer& feed_forward = layer_named(gpt, "block0.mlp");
  EXPECT_EQ(feed_forward.parameters, 12U + 60 + 10 + 60 + 6);
  EXPECT_EQ(feed_forward.forward, Flops(2 * 2 * 10 * 60));
  EXPECT_EQ(feed_forward.activations, Bytes(4 * (2 * 60 + 2 * 100) + 60));
  // K=2
  const auto llama = workload_from_text("model: llama\nkv_heads: 1\n" + sizes, "x.yaml");
  EXPECT_EQ(layer_named(llama, "block0.attention").parameters, 2U * 36 + 2 * 12 + 6);
  EXPECT_EQ(layer_named(llama, "block0.attention").activations, Bytes(4 * (4 * 60 + 2 * 20 + 150)));
  EXPECT_EQ(layer_named(llama, "block0.mlp").parameters, 3U * 60 + 6);
  EXPECT_EQ(layer_named(llama, "block0.mlp").activations, Bytes(4 * (2 * 60 + 4 * 100)));
}

TEST(Operators, AreRefusedByTheirKey)
{
  const std::string gpt = "model: gpt\nhidden: 6\nheads: 3\nvocabulary: 100\nsequence: 5\n";
  EXPECT_THAT([&] { workload_from_text(gpt + "layers: 1\nunit: operators\n", "x.yaml"); },
              testing::ThrowsMessage<InputError>(
                  "x.yaml:7: unit: \"operators\" is not one of block, operator; did you mean operator?"));
  EXPECT_THAT(
      [&] { workload_from_text(gpt + "layers: 500000\nunit: operator\n", "x.yaml"); },
      testing::ThrowsMessage<InputError>("x.yaml:6: layers: 500000 is not in the range 1 to 499999 of unit operator"));
}

/// Activations of the first layer with attention.
Bytes kept_by_attention(const std::string& model, const std::string& attention)
{
  return workload_from_text(model + "attention: " + attention + "\n", "x.yaml").layers[1].activations;
}

TEST(FusedAttention, KeepsANumberForEachTokenAndHeadInsteadOfProbabilities)
{
  const std::string bert =
      "model: bert\nencoders: 1\nhidden: 6\nheads: 3\nintermediate: 10\nvocabulary: 100\npositions: 20\nclasses: 4\n"
      "micro_batch: 2\nsequence: 5\ndtype: bf16\n";
  // z=2 e=60 p=2*3*25=150 B·A·S=30
  EXPECT_EQ(kept_by_attention(bert, "unfused"), Bytes(2 * (6 * 60 + 2 * 150) + 60 + 150));
  EXPECT_EQ(kept_by_attention(bert, "fused"), Bytes(2 * 6 * 60 + 60 + 4 * 30));
  const std::string gpt =
      "model: gpt\nlayers: 1\nhidden: 6\nheads: 3\nintermediate: 10\nvocabulary: 100\nmicro_batch: 2\nsequence: 5\n";
  // z=4 TI=100
  EXPECT_EQ(kept_by_attention(gpt, "unfused"), Bytes(4 * (8 * 60 + 2 * 100 + 2 * 150) + 2 * 60 + 150));
  EXPECT_EQ(kept_by_attention(gpt, "fused"), Bytes(4 * (8 * 60 + 2 * 100) + 2 * 60 + 4 * 30));
  const std::string llama =
      "model: llama\nlayers: 1\nhidden: 8\nheads: 4\nkv_heads: 2\nintermediate: 20\nvocabulary: 50\nmicro_batch: 5\n"
      "sequence: 3\ndtype: bf16\n";
  // z=2 e=120 TK=60 p=5*4*9=180 TI=300 B·A·S=60
  EXPECT_EQ(kept_by_attention(llama, "unfused"), Bytes(2 * (6 * 120 + 2 * 60 + 180 + 4 * 300)));
  EXPECT_EQ(kept_by_attention(llama, "fused"), Bytes(2 * (6 * 120 + 2 * 60 + 4 * 300) + 4 * 60));
}

TEST(FusedAttention, IsTheDefaultOnlyForLlama)
{
  EXPECT_EQ(std::get<LlamaSizes>(read_workload(shipped("llama_8b")).model).attention, Attention::Fused);
  EXPECT_EQ(std::get<GptSizes>(read_workload(shipped("gpt2_124m")).model).attention, Attention::Unfused);
  EXPECT_EQ(std::get<BertSizes>(read_workload(shipped("bert10")).model).attention, Attention::Unfused);
}

TEST(LlamaWorkload, DefaultsToTheRotationAndNormalisationOfLlama3)
{
  const auto llama_3 = std::get<LlamaSizes>(read_workload(shipped("llama_8b")).model);
  EXPECT_EQ(llama_3.rope_theta, 500'000);
  EXPECT_EQ(llama_3.norm_epsilon, 1e-5);
  const auto llama_1 = std::get<LlamaSizes>(
      workload_from_text(
          "{model: llama, layers: 1, hidden: 8, heads: 4, kv_heads: 2, intermediate: 20, vocabulary: 50, "
          "sequence: 3, rope_theta: 10000, norm_epsilon: 1e-6}",
          "x.yaml")
          .model);
  EXPECT_EQ(llama_1.rope_theta, 10'000);
  EXPECT_EQ(llama_1.norm_epsilon, 1e-6);
}

TEST(ResnetWorkload, HasThePublishedParametersAndWork)
{
  const auto resnet50 = read_workload(shipped("resnet50"));
  EXPECT_EQ(parameters(resnet50), 25557032);
  EXPECT_EQ(multiply_adds(resnet50) / 32, 4089184256);
  EXPECT_EQ(resnet50.layers.size(), 18u);
  const auto resnet152 = read_workload(shipped("resnet152"));
  EXPECT_EQ(parameters(resnet152), 60192808);
  EXPECT_NEAR(multiply_adds(resnet152) / 32, 11.51e9, 0.005e9);
  EXPECT_EQ(resnet152.layers.size(), 52u);
  EXPECT_EQ(resnet152.sequence, 1u);
}

TEST(ResnetWorkload, HasTheImagesOfTableOne)
{
  const auto workload = read_workload(shipped("resnet50"));
  const double z = 4 * 32;
  EXPECT_EQ(workload.input, Bytes(z * 3 * 224 * 224));
  EXPECT_EQ(layer_named(workload, "stem").output, Bytes(z * 64 * 56 * 56));
  EXPECT_EQ(layer_named(workload, "stage0.block2").output, Bytes(z * 256 * 56 * 56));
  EXPECT_EQ(layer_named(workload, "stage1.block3").output, Bytes(z * 512 * 28 * 28));
  EXPECT_EQ(layer_named(workload, "stage2.block5").output, Bytes(z * 1024 * 14 * 14));
  EXPECT_EQ(layer_named(workload, "stage3.block2").output, Bytes(z * 2048 * 7 * 7));
  EXPECT_EQ(layer_named(workload, "head").output, Bytes(z * 1000));
  // Input 64 and 2 x 64, 2 x 64, 256 and the shortcut's 256 channels of 56 x 56.
  EXPECT_EQ(layer_named(workload, "stage0.block0").activations, Bytes(z * 56 * 56 * (64 + 128 + 128 + 256 + 256)));
}

TEST(ShippedWorkloads, CanAllBeRead)
{
  std::size_t files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(ISOBAR_SOURCE_DIR) / "workloads")) {
    if (entry.is_directory()) continue;
    const auto workload = read_workload(entry.path());
    EXPECT_TRUE(is_chain(workload)) << entry;
    EXPECT_EQ(workload.name, entry.path().stem());
    for (const auto& layer : workload.layers) EXPECT_EQ(layer.backward.value, 2 * layer.forward.value);
    ++files;
  }
  EXPECT_EQ(files, 27U);
}

TEST(ShippedWorkloads, HaveTheParametersOfHidupsModels)
{
  // Of HiDup with 32 samples a device: parameters, and GFLOP of a forward pass on each.
  struct Model {
    std::string name;
    std::uint64_t devices;
    std::uint64_t parameters;
    double gigaflops;
  };
  for (const auto& [name, devices, parameters, gigaflops] :
       {Model{"tmoe_4", 4, 453'098'496, 1424.59}, Model{"tmoe_8", 8, 855'800'832, 1425.39},
        Model{"bert_sgmoe_8", 8, 239'984'128, 934.36}, Model{"vit_sgmoe_8", 8, 339'948'298, 358.08}}) {
    const auto workload =
        read_workload(std::filesystem::path(ISOBAR_SOURCE_DIR) / "workloads/hidup" / (name + ".yaml"));
    std::uint64_t counted = 0;
    Flops forward;
    for (const auto& layer : workload.layers) {
      counted += layer.parameters;
      forward += layer.forward;
    }
    EXPECT_EQ(counted, parameters) << name;
    EXPECT_NEAR(forward.value / static_cast<double>(devices) / 1e9, gigaflops, 1e-4 * gigaflops) << name;
  }
}

const std::string listed = R"(model: layers
micro_batch: 8
sequence: 16
dtype: fp16
optimizer: momentum
input: 96 KiB
layers:
  - {name: a, forward: 2 GFLOP, parameters: 1000, activations: 80 MB, output: 16 MB}
  - {name: b, forward: 1 GFLOP, backward: 3 GFLOP, parameters: 0, activations: 0 B, output: 8 MB, gradient: 4 MB}
  - {name: c, forward: 0 FLOP, parameters: 5, activations: 1 B, output: 2 B, inputs: [b, a]}
  - {name: d, forward: 0 FLOP, parameters: 5, activations: 1 B, output: 2 B, inputs: [], memory: 3 MiB}
)";

TEST(ListedWorkload, HasItsLayersAndEdges)
{
  const auto workload = workload_from_text(listed, "some/where.yaml");
  EXPECT_EQ(workload.name, "where");
  EXPECT_EQ(workload.micro_batch, 8u);
  EXPECT_EQ(workload.sequence, 16u);
  EXPECT_EQ(workload.dtype, DType::Float16);
  EXPECT_EQ(workload.optimizer, Optimizer::Momentum);
  EXPECT_EQ(workload.memory_model, MemoryModel::Training);
  EXPECT_EQ(workload.input, Bytes(98304));
  ASSERT_EQ(workload.layers.size(), 4u);
  EXPECT_THAT(workload.layers[0].inputs, IsEmpty());
  EXPECT_EQ(workload.layers[0].backward, Flops(4e9));
  EXPECT_EQ(workload.layers[0].gradient, Bytes(16e6));
  EXPECT_EQ(workload.layers[0].parameters, 1000u);
  EXPECT_EQ(workload.layers[0].activations, Bytes(80e6));
  EXPECT_THAT(workload.layers[1].inputs, ElementsAre(0));
  EXPECT_EQ(workload.layers[1].backward, Flops(3e9));
  EXPECT_EQ(workload.layers[1].gradient, Bytes(4e6));
  EXPECT_THAT(workload.layers[2].inputs, ElementsAre(1, 0));
  EXPECT_THAT(workload.layers[3].inputs, IsEmpty());
  EXPECT_EQ(workload.layers[3].sky_memory, Bytes(0)) << "only for the sky model";
}

TEST(ListedWorkload, SplitsItsBackwardWork)
{
  const auto workload = workload_from_text(listed, "x.yaml");
  EXPECT_EQ(workload.layers[0].backward_weight, Flops(2e9)) << "half by default";
  EXPECT_EQ(workload.layers[1].backward_weight, Flops(0)) << "no parameters";
  const auto with = [](const std::string& keys) {
    return "model: layers\nlayers:\n  - {name: a, forward: 2 GFLOP, parameters: 1, activations: 0 B, output: 1 B, " +
           keys + "}\n";
  };
  EXPECT_EQ(workload_from_text(with("backward_weight: 1 GFLOP"), "x.yaml").layers[0].backward_weight, Flops(1e9));
  EXPECT_EQ(workload_from_text(with("backward: 5 GFLOP, backward_weight: 5 GFLOP"), "x.yaml").layers[0].backward_weight,
            Flops(5e9));
  EXPECT_EQ(workload_from_text(with("backward: 5 GFLOP"), "x.yaml").layers[0].backward_weight, Flops(2.5e9));
}

TEST(ListedWorkload, TakesSkyMemoryFromTheFile)
{
  const auto workload = workload_from_text(
      "model: layers\nmemory_model: sky\nlayers:\n"
      "  - {name: a, forward: 2 GFLOP, parameters: 1, activations: 0 B, output: 16 MB, memory: 3 MiB}\n",
      "x.yaml");
  EXPECT_EQ(workload.layers[0].sky_memory, Bytes(3 * mebibyte));
}

TEST(ListedWorkload, ReadsJsonToo)
{
  const auto workload = workload_from_text(
      R"({"model": "layers", "layers": [{"name": "\ud83d\ude00", "forward": "1 FLOP", "parameters": 1,
      "activations": "0 B", "output": "1 B"}]})",
      "x.json");
  EXPECT_EQ(workload.layers[0].name, "😀");
}

TEST(Workload, HasDefaultsForItsFields)
{
  const auto workload = workload_from_text("model: resnet\ndepth: 50\n", "x.yaml");
  EXPECT_EQ(workload.micro_batch, 1u);
  EXPECT_EQ(workload.dtype, DType::Float32);
  EXPECT_EQ(workload.optimizer, Optimizer::Sgd);
  EXPECT_EQ(workload.memory_model, MemoryModel::Training);
}

TEST(Workload, ListsEveryFaultByLine)
{
  const std::string head = "model: bert\nhidden: 1000\nheads: 16\nsequence: 600\npositions: 512\n";
  EXPECT_EQ(fault_of(head + "hiden: 3\nencoders: 1000000000000000\nclasses: two\nvocabulary: 30522\ndtype: float64\n"),
            "x.yaml:1: intermediate: missing; write a whole number from 1 to 4194304\n"
            "x.yaml:6: hiden: unknown key; the keys here are attention, beta1, beta2, classes, clip_norm, compute, "
            "decay_steps, differences, dropout, dtype, encoders, epsilon, framework, heads, hidden, intermediate, "
            "learning_rate, learning_rate_decay, matmul_dtype, memory_model, micro_batch, min_learning_rate, model, "
            "momentum, optimizer, "
            "positions, sequence, vocabulary, warmup_steps, weight_decay\n"
            "x.yaml:7: encoders: \"1000000000000000\" is out of range; write a whole number from 1 to 333332\n"
            "x.yaml:8: classes: \"two\" is not a whole number; write a whole number from 1 to 1048576\n"
            "x.yaml:10: dtype: \"float64\" is not one of float32, bf16, fp16; did you mean float32?");
  EXPECT_EQ(fault_of(head + "encoders: 2\nclasses: 2\nvocabulary: 30522\nintermediate: 64\n"),
            "x.yaml:3: heads: 16 does not divide hidden, 1000; write a divisor of it\n"
            "x.yaml:4: sequence: 600 is more than the 512 positions; write a shorter one, or more positions");
}

TEST(Workload, SaysThatAConfigOfTransformersIsImported)
{
  EXPECT_EQ(
      fault_of("{\"hidden_size\": 64,\n \"model_type\": \"llama\"}"),
      "x.yaml:2: model_type: of a model of Hugging Face's transformers; make a workload of it with isobar workload "
      "import");
}

std::string fault_of_settings(const WorkloadSettings& settings, const std::string& place = "--set")
{
  try {
    workload_from_text(small_gpt, "x.yaml", settings, place);
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "accepted";
}

TEST(WorkloadSettings, ReplaceAndAddKeysOfTheFile)
{
  const auto workload = workload_from_text(
      small_gpt, "x.yaml", WorkloadSettings{{"layers", "3"}, {"dtype", "bf16"}, {"unit", "'operator'"}});
  EXPECT_EQ(workload.layers.size(), 8U);
  EXPECT_EQ(workload.dtype, DType::BFloat16);
  EXPECT_EQ(workload.sequence, 32U);
  const auto of_list = workload_from_text(
      "model: layers\nlayers: [{name: a, forward: 1 FLOP, parameters: 1, "
      "activations: 1 B, output: 1 B}]\n",
      "x.yaml",
      WorkloadSettings{{"layers",
                        "[{name: b, forward: 1 FLOP, parameters: 7, activations: 1 B, "
                        "output: 1 B}]"}});
  EXPECT_EQ(of_list.layers.front().parameters, 7U);
}

TEST(WorkloadSettings, AreRefusedByTheirOwnPlace)
{
  EXPECT_EQ(fault_of_settings({{"layrs", "3"}}), "--set: layrs: unknown key; did you mean layers?");
  EXPECT_EQ(fault_of_settings({{"unt", "block"}}), "--set: unt: unknown key; did you mean unit?");
  EXPECT_EQ(fault_of_settings({{"layers", "many"}}),
            "--set: layers: \"many\" is not a whole number; write a whole number from 1 to 999998");
  EXPECT_EQ(fault_of_settings({{"layers", "\"3\""}}),
            "--set: layers: \"3\" is not a whole number; write a whole number from 1 to 999998 without quotes");
  EXPECT_EQ(fault_of_settings({{"layers", ""}}), "--set: layers: has no value; write a whole number from 1 to 999998");
  EXPECT_EQ(fault_of_settings({{"heads", "5"}}), "--set: heads: 5 does not divide hidden, 64; write a divisor of it");
  EXPECT_EQ(fault_of_settings({{"hidden", "66"}}), "--set: heads: 4 does not divide hidden, 66; write a divisor of it");
  EXPECT_EQ(fault_of_settings({{"layers", "3\nhidden: 8"}}, "p.json: inputs.workload.set"),
            "p.json: inputs.workload.set: layers: not YAML: illegal map value");
  EXPECT_EQ(fault_of_settings({{"layers", "{a: 1}"}}),
            "--set: layers: is a mapping; write one value, or a list such as [1, 2]");
}

TEST(WorkloadSettings, ChangeTheFingerprintOnlyIfThereAreAny)
{
  EXPECT_EQ(workload_fingerprint("model: gpt\n", {}), fingerprint("model: gpt\n"));
  EXPECT_EQ(workload_fingerprint("model: gpt\n", {{"layers", "3"}, {"dtype", "bf16"}}),
            fingerprint(std::string("model: gpt\n\0dtype=bf16\0layers=3", 31)));
  EXPECT_NE(workload_fingerprint("", {{"a", "1"}}), workload_fingerprint("", {{"a", "2"}}));
}

TEST(Workload, IsRefusedWithItsMessageIfMalformed)
{
  const auto files = testing_support::expect_each_bad_file_refused("workload_", ".yaml",
                                                                   [](const auto& file) { read_workload(file); });
  EXPECT_GE(files, 15u);
}

double cpu_seconds(const auto& work)
{
  const auto begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(Workload, OfAHundredThousandLayersLoadsQuickly)
{
  Workload workload;
  const double seconds = cpu_seconds([&] {
    workload = workload_from_text(
        "model: bert\nencoders: 33333\nhidden: 64\nheads: 4\nintermediate: 256\nvocabulary: 100\npositions: 128\n"
        "classes: 2\nsequence: 128\n",
        "x.yaml");
  });
  EXPECT_EQ(workload.layers.size(), 100'002u);
  EXPECT_LT(seconds, 2) << "under sanitizers; a release build takes about 40 ms";
}

}  // namespace
}  // namespace isobar::workload_file_test
