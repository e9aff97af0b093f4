#include "exec/model/batch.hpp"
#include "exec/model/sequence_part.hpp"

#include "core/errors.hpp"
#include "exec/model/loss.hpp"
#include "tests/exec/model/forward_passes.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/support/small_models.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar::exec::batch_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::one_of_each_model;
using testing_support::shipped_workload;
using testing_support::shipped_workloads;
using testing_support::small_model;
using testing_support::small_moe;
using testing_support::small_moes;
using testing_support::TemporaryFolder;

TEST(SyntheticInputs, HaveTheBytesThatTheWorkloadCounts)
{
  for (const auto dtype : {DType::Float32, DType::BFloat16, DType::Float16}) {
    auto workloads = small_moes(dtype);
    for (const auto& file : shipped_workloads()) workloads.push_back(small_model(file, dtype));
    for (const auto& workload : workloads) {
      EXPECT_EQ(bytes_of(synthetic_inputs(workload, {}, "cpu")), workload.input.value) << workload.name;
    }
  }
}

TEST(SyntheticInputs, DependOnEveryPartOfTheKeyAndNothingElse)
{
  for (const auto& workload : one_of_each_model()) {
    SCOPED_TRACE(workload.name);
    const auto inputs = synthetic_inputs(workload, {1, 2, 3}, "cpu");
    EXPECT_TRUE(same_bits(synthetic_inputs(workload, {1, 2, 3}, "cpu"), inputs));
    for (const auto& key : {RandomKey{9, 2, 3}, RandomKey{1, 9, 3}, RandomKey{1, 2, 9}}) {
      EXPECT_FALSE(at::equal(synthetic_inputs(workload, key, "cpu")[0], inputs[0]));
    }
  }
}

TEST(SyntheticInputs, StayWithinTheVocabularyAndReachItsEnds)
{
  auto workload = small_model(shipped_workload("gpt2_124m"));
  workload.micro_batch = 200;
  const auto tokens = synthetic_inputs(workload, {}, "cpu")[0];
  EXPECT_EQ(tokens.min().item<std::int64_t>(), 0);
  EXPECT_EQ(tokens.max().item<std::int64_t>(), 28);
}

TEST(SyntheticInputs, PadTheEndsOfSomeSamplesByLessThanHalf)
{
  auto workload = small_model(shipped_workload("bert10"));
  workload.micro_batch = 50;
  const auto inputs = synthetic_inputs(workload, {}, "cpu");
  const auto& tokens = inputs[0];
  const auto& mask = inputs[1];
  EXPECT_TRUE(at::equal(mask.slice(1, 0, 4), at::ones({50, 4}, at::kLong)));
  EXPECT_TRUE((mask.diff() <= 0).all().item<bool>()) << "no token follows padding";
  EXPECT_EQ(mask.sum(1).min().item<std::int64_t>(), 4);
  EXPECT_EQ(mask.sum(1).max().item<std::int64_t>(), 7);
  EXPECT_TRUE((tokens.masked_select(mask == 0) == 0).all().item<bool>());
}

TEST(SyntheticInputs, AreInTwoSegmentsTheSecondAfterTheFirst)
{
  auto workload = small_model(shipped_workload("bert10"));
  workload.micro_batch = 50;
  const auto segments = synthetic_inputs(workload, {}, "cpu")[2];
  EXPECT_TRUE((segments.diff() >= 0).all().item<bool>());
  EXPECT_EQ(segments.min().item<std::int64_t>(), 0);
  EXPECT_EQ(segments.max().item<std::int64_t>(), 1);
}

TEST(SyntheticLabels, AreTheNextTokens)
{
  for (const auto& workload : {small_model(shipped_workload("gpt2_124m")), small_model(shipped_workload("llama_8b")),
                               small_moe(spmd::Trunk::Bert)}) {
    const auto tokens = synthetic_inputs(workload, {1, 2, 3}, "cpu")[0];
    const auto labels = synthetic_labels(workload, {1, 2, 3}, "cpu");
    EXPECT_EQ(labels.sizes(), tokens.sizes());
    EXPECT_TRUE(at::equal(labels.slice(1, 0, -1), tokens.slice(1, 1)));
  }
}

TEST(SyntheticLabels, AreClassesOfSamplesThatDependOnTheKey)
{
  for (auto workload : {small_model(shipped_workload("bert10")), small_model(shipped_workload("resnet50")),
                        small_moe(spmd::Trunk::Vit)}) {
    workload.micro_batch = 100;
    const auto labels = synthetic_labels(workload, {1, 2, 3}, "cpu");
    EXPECT_EQ(labels.sizes(), at::IntArrayRef({100}));
    EXPECT_EQ(labels.min().item<std::int64_t>(), 0);
    EXPECT_EQ(labels.max().item<std::int64_t>(), workload.name == "bert10" ? 2 : 6);
    EXPECT_TRUE(at::equal(synthetic_labels(workload, {1, 2, 3}, "cpu"), labels));
    EXPECT_FALSE(at::equal(synthetic_labels(workload, {1, 2, 4}, "cpu"), labels));
  }
}

TEST(SyntheticData, IsRefusedForListedLayers)
{
  const auto workload = workload_from_text(
      "{model: layers, layers: [{name: a, forward: 1 FLOP, parameters: 1, activations: 1 B, output: 1 B}]}", "x.yaml");
  const auto refused = ThrowsMessage<InputError>(HasSubstr("its layers are listed"));
  EXPECT_THAT([&] { synthetic_inputs(workload, {}, "cpu"); }, refused);
  EXPECT_THAT([&] { synthetic_labels(workload, {}, "cpu"); }, refused);
}

TEST(SyntheticLabels, AreNoneWhereTheLossIsASum)
{
  EXPECT_EQ(synthetic_labels(small_moe(spmd::Trunk::Plain), {1, 2, 3}, "cpu").numel(), 0);
}

TEST(DatasetBatches, AreMatricesOfTokensForEverySequenceLength)
{
  const TemporaryFolder folder;
  const std::string tokens = folder.write("tokens.bin", std::string(40, '\0')).string();
  for (const std::uint64_t sequence : {1U, 3U}) {
    auto workload = small_model(shipped_workload("gpt2_124m"));
    workload.sequence = sequence;
    const auto data = open_datasets({.train = tokens, .evaluation = "", .vocabulary = ""}, workload);
    const auto batches = dataset_batches(workload, *data.train, 1);
    const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(workload.micro_batch),
                                             static_cast<std::int64_t>(sequence)};
    EXPECT_EQ(batches->inputs({1, 2, 0}, "cpu").at(0).sizes(), shape);
    EXPECT_EQ(batches->labels({1, 2, 0}, "cpu").sizes(), shape);
  }
}

TEST(LossOf, IsTheMeanCrossEntropyInFloat32)
{
  // -log(e^2 / (e^0 + e^1 + e^2)) and -log(e^0 / (e^0 + e^0 + e^3))
  const double expected = (std::log(1 + std::exp(1) + std::exp(2)) - 2 + std::log(2 + std::exp(3))) / 2;
  const auto labels = at::tensor({2, 1}, at::kLong);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto logits = at::tensor({0.F, 1.F, 2.F, 0.F, 0.F, 3.F}).view({2, 3}).to(dtype);
    const auto loss = loss_of({}, {logits}, labels);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<double>(), expected, 1e-6);
    EXPECT_NEAR(loss_of({}, {logits.view({1, 2, 3})}, labels.view({1, 2})).item<double>(), expected, 1e-6)
        << "tokens of one sample";
  }
}

TEST(LossOf, IsASumForMixturesOfExperts)
{
  const auto values = at::linspace(-3, 3, 24).view({2, 4, 3});
  const auto labels = at::tensor({2, 0, 1, 2, 0, 0, 2, 1}, at::kLong).view({2, 4});
  const auto expected = values.clone().requires_grad_();
  const auto loss = at::cross_entropy_loss(expected.view({8, 3}), labels.view(8), {}, at::Reduction::Sum);
  loss.backward();
  const auto logits = values.clone().requires_grad_();
  const auto found = loss_of(small_moe(spmd::Trunk::Bert), {logits}, labels);
  found.backward();
  EXPECT_NEAR(found.item<double>(), loss.item<double>(), 1e-5);
  EXPECT_TRUE(at::allclose(logits.grad(), expected.grad(), 1e-6, 1e-7));
  const auto states = at::full({2, 4, 3}, 0.5, at::kBFloat16);
  EXPECT_EQ(loss_of(small_moe(spmd::Trunk::Plain), {states}, {}).item<double>(), 12);
}

TEST(LossOf, HasTheGradientOfLibTorchsCrossEntropyInTheMemoryOfTheLogits)
{
  at::Tensor labels = at::tensor({2, 0, 1, 2}, at::kLong);
  labels[1] = -100;  // is not counted
  const auto values = at::linspace(-3, 3, 12).view({4, 3});
  const auto expected = values.clone().requires_grad_();
  at::cross_entropy_loss(expected, labels).backward();
  const auto logits = values.clone().requires_grad_();
  const auto* const memory = logits.const_data_ptr();
  loss_of({}, {logits}, labels).backward();
  EXPECT_TRUE(at::allclose(logits.grad(), expected.grad(), 1e-6, 1e-7));
  EXPECT_TRUE(at::equal(logits.grad()[1], at::zeros(3)));
  EXPECT_EQ(logits.grad().const_data_ptr(), memory);
}

TEST(BatchesInParts, AreThePartsOfWholeSequences)
{
  const Workload workload = small_gpt();
  const auto whole = synthetic_batches(workload);
  for (const std::size_t parts : {2, 4}) {
    const auto divided = batches_in_parts(*whole, parts);
    const auto length = static_cast<std::int64_t>(workload.sequence);
    const auto order = positions_by_part(parts, length).argsort();
    for (const std::uint64_t microbatch : {0, 3}) {
      Tensors inputs, labels;
      for (std::size_t part = 0; part < parts; ++part) {
        const RandomKey key{5, 2, microbatch * parts + part};
        inputs.push_back(divided->inputs(key, "cpu").at(0));
        labels.push_back(divided->labels(key, "cpu"));
      }
      const RandomKey key{5, 2, microbatch};
      EXPECT_TRUE(at::equal(at::cat(inputs, 1).index_select(1, order), whole->inputs(key, "cpu").at(0)));
      EXPECT_TRUE(at::equal(at::cat(labels, 1).index_select(1, order), whole->labels(key, "cpu")));
    }
  }
}

}  // namespace
}  // namespace isobar::exec::batch_test
