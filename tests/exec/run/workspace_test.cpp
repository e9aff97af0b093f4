#include "core/model/workload.hpp"
#include "exec/run/profile.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

/// The formulas of Layer::workspace (docs/costs.md#workspace) against what passes hold on the CPU.
namespace isobar::exec::workspace_test {
namespace {

/// Every combination of an option of each list.
std::vector<std::string> combinations(const std::vector<std::vector<std::string>>& lists)
{
  std::vector<std::string> result = {""};
  for (const auto& options : lists) {
    std::vector<std::string> longer;
    for (const auto& text : result) {
      for (const auto& option : options) longer.push_back(text + option);
    }
    result = std::move(longer);
  }
  return result;
}

std::string transformer(unsigned micro_batch, unsigned sequence, unsigned hidden, unsigned heads, unsigned intermediate,
                        unsigned vocabulary)
{
  return fmt::format(
      "micro_batch: {}\nsequence: {}\nhidden: {}\nheads: {}\nintermediate: {}\nvocabulary: {}\noptimizer: adam\n",
      micro_batch, sequence, hidden, heads, intermediate, vocabulary);
}

/// Few and many tokens, samples, heads and words, layers that weights dominate and ones that activations do.
const std::vector<std::string> shapes = {transformer(1, 16, 128, 4, 512, 1000), transformer(8, 64, 64, 2, 256, 300),
                                         transformer(2, 200, 64, 4, 128, 60), transformer(4, 32, 256, 4, 128, 1000)};
const std::vector<std::string> dtypes = {"", "dtype: bf16\n"};
const std::vector<std::string> attentions = {"attention: fused\n", "attention: unfused\n"};
const std::vector<std::string> attentions_and_dropout = {"attention: fused\n", "attention: unfused\n",
                                                         "attention: unfused\ndropout: 0.1\n"};

/// Compares the memory of each layer's pass. `more`: the largest ratio of what is counted and what is held, and in 16
/// bits also of what is held and what is counted.
void expect_counted(const std::string& text, double more)
{
  SCOPED_TRACE(text);
  const Workload workload = workload_from_text(text, "test.yaml");
  ProfileOptions options;
  options.warm_up = 0;
  options.repetitions = 1;
  const DeviceProfile profile = measure_profile(workload, options);
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const Layer& layer = workload.layers[i];
    const double counted = (layer.activations + layer.workspace).value;
    const double held = (profile.layers[i].activations + profile.layers[i].workspace.value()).value;
    const bool has_casts = workload.dtype != DType::Float32;
    EXPECT_GE(has_casts ? more * counted : counted, held) << layer.name;
    const double small = has_casts ? 0x1p18 : 0x1p14;  // bytes, as of scratch memory, or of a sample
    if (layer.workspace > Bytes(0)) {
      EXPECT_LE(counted, more * held + small) << layer.name;
    }
  }
}

void expect_counted(const std::vector<std::string>& texts, double more_in_32_bits = 1.1)
{
  // Products with casts have scratch memory that depends on the processor.
  for (const auto& text : texts) {
    expect_counted(text, text.find("bf16") == std::string::npos ? more_in_32_bits : 1.45);
  }
}

/// Decoders let go of queries, keys and heads that no later pass needs, which are counted.
constexpr double more_of_decoders = 1.25;

TEST(Workspace, OfAGptIsWhatItsPassesHold)
{
  expect_counted(
      combinations({{"model: gpt\nlayers: 1\n"}, {"", "unit: operator\n"}, shapes, dtypes, attentions_and_dropout}),
      more_of_decoders);
}

TEST(Workspace, OfATiedGptIsWhatItsPassesHold)
{
  expect_counted(combinations({{"model: gpt\nlayers: 1\ntied: true\n"}, shapes, dtypes}), more_of_decoders);
}

TEST(Workspace, OfALlamaIsWhatItsPassesHold)
{
  expect_counted(combinations({{"model: llama\nlayers: 1\n"},
                               {"", "unit: operator\n"},
                               {"kv_heads: 1\n", "kv_heads: 2\n"},
                               shapes,
                               dtypes,
                               attentions}),
                 more_of_decoders);
}

TEST(Workspace, OfABertIsWhatItsPassesHold)
{
  expect_counted(combinations(
      {{"model: bert\nencoders: 1\nclasses: 2\npositions: 200\n"}, shapes, dtypes, attentions_and_dropout}));
}

TEST(Workspace, OfAResnetIsAtLeastWhatItsPassesHold)
{
  constexpr double more = 2.2;
  for (const auto& text :
       combinations({{"model: resnet\ndepth: 50\noptimizer: sgd\n"},
                     {"image: 32\nmicro_batch: 4\nclasses: 10\n", "image: 64\nmicro_batch: 1\nclasses: 1000\n"},
                     dtypes})) {
    expect_counted(text, more);
  }
}

}  // namespace
}  // namespace isobar::exec::workspace_test
