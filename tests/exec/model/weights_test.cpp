#include "exec/model/layer_module.hpp"

#include "core/errors.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/huggingface_export.hpp"
#include "exec/files/huggingface_weights.hpp"
#include "exec/files/weight_files.hpp"
#include "tests/exec/files/stored_tensors.hpp"
#include "tests/exec/model/small_decoders.hpp"
#include "tests/support/small_models.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace isobar::exec::weights_test {
namespace {

using testing::IsEmpty;
using testing_support::shipped_workload;
using testing_support::small_model;
using testing_support::TemporaryFolder;

std::vector<Workload> models_with_weights()
{
  std::vector<Workload> models;
  for (const auto* name : {"bert10", "gpt2_124m", "stronghold", "llama_8b"}) {
    models.push_back(small_model(shipped_workload(name)));
  }
  for (const auto* kind : {"llama", "scaled", "qwen3", "mixtral"}) models.push_back(small_decoder(keys_of_kind(kind)));
  models.push_back(small_decoder(keys_of_kind("mixtral"), "unit: operator, qk_norm: head"));
  return models;
}

TEST(LoadWeights, NamesEveryParameterOfALayer)
{
  for (const auto& workload : models_with_weights()) {
    const std::string& name = workload.name;
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      const auto module = make_layer_module(workload, layer, 1, "cpu");
      const auto sources = weight_sources(workload, layer);
      ASSERT_EQ(sources.size(), module->parameters().size()) << name << ": " << layer;
      for (std::size_t i = 0; i < sources.size(); ++i) {
        EXPECT_EQ(sources[i].ours, module->parameter_names()[i]);
        const auto sizes = module->parameters()[i].sizes();
        EXPECT_EQ(sources[i].shape, std::vector<std::uint64_t>(sizes.begin(), sizes.end())) << sources[i].ours;
      }
    }
  }
}

TEST(LoadWeights, RestoresTheParametersThatWereExported)
{
  for (const auto& workload : models_with_weights()) {
    const std::string& name = workload.name;
    StageSnapshot snapshot{.step = 1, .last_layer = workload.layers.size() - 1, .tensors = {}};
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      const auto module = make_layer_module(workload, layer, 1, "cpu");
      for (std::size_t i = 0; i < module->parameters().size(); ++i) {
        const auto values = module->parameters()[i].detach().contiguous();
        const auto* begin = values.const_data_ptr<float>();
        snapshot.tensors.push_back(tensor_of(checkpoint_name(layer, module->parameter_names()[i]),
                                             std::vector<std::uint64_t>(values.sizes().begin(), values.sizes().end()),
                                             std::vector<float>(begin, begin + values.numel())));
      }
    }
    const TemporaryFolder folder;
    const CheckpointStore store(folder.path() / "checkpoints");
    store.write(snapshot);
    export_to_huggingface(workload, store.open(1), folder.path() / "hf", 1'000'000);
    const Weights weights(folder.path() / "hf");
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      const auto trained = make_layer_module(workload, layer, 1, "cpu");
      const auto other = make_layer_module(workload, layer, 2, "cpu");
      EXPECT_THAT(load_weights(workload, layer, weights, *other), IsEmpty());
      for (std::size_t i = 0; i < other->parameters().size(); ++i) {
        EXPECT_TRUE(at::equal(other->parameters()[i], trained->parameters()[i])) << name << ": " << layer;
        EXPECT_TRUE(other->parameters()[i].requires_grad());
      }
    }
  }
}

TEST(LoadWeights, NamesTheModelsWhoseLayersADecoderMayHave)
{
  for (const auto* kind : {"latent", "windows", "sinks", "gated", "qwen2_moe", "cohere", "gpt"}) {
    const auto workload = small_decoder(keys_of_kind(kind));
    EXPECT_THAT(
        [&] { weight_sources(workload, 0); },
        testing::ThrowsMessage<InputError>(testing::StrEq(
            "workload decoder: none of transformers' models whose weights isobar knows has these layers: llama, "
            "mistral, qwen2, qwen3, qwen3_moe, mixtral, gemma2")))
        << kind;
  }
}

}  // namespace
}  // namespace isobar::exec::weights_test
