#include "exec/files/huggingface_weights.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/huggingface/config.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/huggingface_export.hpp"
#include "exec/files/weight_files.hpp"
#include "tests/exec/files/stored_tensors.hpp"
#include "tests/support/small_models.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec::huggingface_weights_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::by_operators;
using testing_support::shipped_workload;
using testing_support::small_model;
using testing_support::TemporaryFolder;
namespace fs = std::filesystem;

constexpr std::uint64_t one_file = std::uint64_t{1} << 40;

std::uint64_t elements_of(const std::vector<std::uint64_t>& shape)
{
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

/// A checkpoint with every parameter of a workload; all elements differ.
class ExportedModel {
 public:
  explicit ExportedModel(Workload model) : workload(std::move(model))
  {
    StageSnapshot snapshot{.step = 1, .last_layer = workload.layers.size() - 1, .tensors = {}};
    float next = 0;
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      for (const auto& source : weight_sources(workload, layer)) {
        std::vector<float> values(elements_of(source.shape));
        for (auto& value : values) value = next++;
        snapshot.tensors.push_back(tensor_of(checkpoint_name(layer, source.ours), source.shape, values));
      }
    }
    const CheckpointStore store(folder.path() / "checkpoints");
    store.write(snapshot);
    checkpoint.emplace(store.open(1));
  }

  fs::path export_to(const std::string& name, std::uint64_t max_shard_bytes = one_file) const
  {
    export_to_huggingface(workload, *checkpoint, folder.path() / name, max_shard_bytes);
    return folder.path() / name;
  }
  std::vector<float> values(std::size_t layer, const std::string& parameter) const
  {
    return floats_of(checkpoint->read(checkpoint_name(layer, parameter)));
  }

  TemporaryFolder folder;
  Workload workload;
  std::optional<Checkpoint> checkpoint;
};

std::vector<float> read_back(const TensorSource& weights, const WeightSource& source)
{
  std::vector<float> values(elements_of(source.shape), -1);
  read_weight(weights, source, values);
  return values;
}

TEST(HuggingFaceWeights, AreAsManyAsTheWorkloadCounts)
{
  for (const auto* name : {"bert10", "bert_large", "gpt2_124m", "gpt3_175b", "stronghold", "llama_8b"}) {
    const auto workload = read_workload(shipped_workload(name));
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      std::uint64_t parameters = 0;
      for (const auto& source : weight_sources(workload, layer)) parameters += elements_of(source.shape);
      EXPECT_EQ(parameters, workload.layers[layer].parameters) << name << ": " << workload.layers[layer].name;
    }
  }
}

TEST(HuggingFaceWeights, ComeBackAsTheyWereExported)
{
  for (const auto* name : {"bert10", "gpt2_124m", "stronghold", "llama_8b"}) {
    const ExportedModel model(small_model(shipped_workload(name)));
    for (const std::uint64_t most : {one_file, std::uint64_t{4'000}, std::uint64_t{1}}) {
      const Weights weights(model.export_to(fmt::format("{}-{}", name, most), most));
      for (std::size_t layer = 0; layer < model.workload.layers.size(); ++layer) {
        for (const auto& source : weight_sources(model.workload, layer)) {
          EXPECT_EQ(read_back(weights, source), model.values(layer, source.ours)) << source.theirs.front();
        }
      }
    }
  }
}

TEST(HuggingFaceWeights, AreTheSameByBlocksAndByOperators)
{
  for (const auto* name : {"gpt2_124m", "llama_8b"}) {
    const auto blocks = small_model(shipped_workload(name));
    const auto operators = by_operators(blocks);
    const auto names_of = [](const Workload& workload) {
      std::vector<std::string> names;
      for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
        for (const auto& source : weight_sources(workload, layer)) names.push_back(source.theirs.front());
      }
      return names;
    };
    EXPECT_EQ(names_of(operators), names_of(blocks));
    const ExportedModel model(operators);
    const Weights weights(model.export_to(name, one_file));
    for (std::size_t layer = 0; layer < operators.layers.size(); ++layer) {
      for (const auto& source : weight_sources(operators, layer)) {
        EXPECT_EQ(read_back(weights, source), model.values(layer, source.ours)) << source.theirs.front();
      }
    }
  }
}

TEST(HuggingFaceWeights, AreExportedInShardsOfTheSizeAskedFor)
{
  const ExportedModel model(small_model(shipped_workload("llama_8b")));
  const auto folder = model.export_to("hf", 10'000);
  const auto index = nlohmann::json::parse(read_file(folder / "model.safetensors.index.json"));
  std::uint64_t parameters = 0;
  for (const auto& layer : model.workload.layers) parameters += layer.parameters;
  EXPECT_EQ(index.at("metadata").at("total_size"), 4 * parameters);
  std::size_t shards = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile shard(entry.path());
    EXPECT_EQ(shard.metadata().at("format"), "pt");
    std::uint64_t bytes = 0;
    for (const auto& name : shard.names()) {
      bytes += shard.facts(name).bytes();
      EXPECT_EQ(index.at("weight_map").at(name), entry.path().filename().string());
    }
    EXPECT_LE(bytes, 10'000U);
    ++shards;
  }
  EXPECT_TRUE(fs::exists(folder / fmt::format("model-00001-of-{:05}.safetensors", shards)));
  EXPECT_GE(shards, 3U);
}

TEST(HuggingFaceWeights, AreExportedWithTheirConfiguration)
{
  const auto config_of = [](const char* name) {
    const ExportedModel model(small_model(shipped_workload(name), DType::Float32, 0.25));
    return nlohmann::json::parse(read_file(model.export_to("hf") / "config.json"));
  };
  const auto gpt = config_of("gpt2_124m");
  EXPECT_EQ(gpt.at("model_type"), "gpt2");
  EXPECT_EQ(gpt.at("tie_word_embeddings"), false);
  EXPECT_EQ(gpt.at("n_inner"), 17);
  EXPECT_EQ(gpt.at("resid_pdrop"), 0.25);
  EXPECT_EQ(gpt.at("activation_function"), "gelu_new");
  EXPECT_EQ(config_of("stronghold").at("tie_word_embeddings"), true);
  const auto bert = config_of("bert10");
  EXPECT_EQ(bert.at("model_type"), "bert");
  EXPECT_EQ(bert.at("hidden_act"), "gelu");
  EXPECT_EQ(bert.at("id2label").size(), 3U);
  EXPECT_EQ(bert.at("label2id").at("LABEL_2"), 2);
  const auto llama = config_of("llama_8b");
  EXPECT_EQ(llama.at("model_type"), "llama");
  EXPECT_EQ(llama.at("num_key_value_heads"), 2);
  EXPECT_EQ(llama.at("max_position_embeddings"), 7);
}

TEST(HuggingFaceWeights, AreExportedWithAConfigurationThatIsImportedAsTheSameModel)
{
  for (const auto* name : {"bert10", "gpt2_124m", "llama_8b"}) {
    auto workload = small_model(shipped_workload(name));
    if (auto* llama = std::get_if<LlamaSizes>(&workload.model)) {
      llama->rope_theta = 10'000;
      llama->norm_epsilon = 1e-6;
    }
    const ExportedModel model(std::move(workload));
    const auto file = (model.export_to("hf") / "config.json").string();
    const auto imported = workload_from_text(
        workload_from_huggingface(read_file(file), file, {.sequence = 7, .dtype = {}}), "imported.yaml");
    ASSERT_EQ(imported.layers.size(), model.workload.layers.size()) << name;
    for (std::size_t i = 0; i < imported.layers.size(); ++i) {
      EXPECT_EQ(imported.layers[i].parameters, model.workload.layers[i].parameters) << name << ": " << i;
    }
    if (const auto* llama = std::get_if<LlamaSizes>(&imported.model)) {
      EXPECT_EQ(llama->rope_theta, 10'000);
      EXPECT_EQ(llama->norm_epsilon, 1e-6);
    }
  }
}

TEST(HuggingFaceWeights, TransposeOnlyConv1D)
{
  const ExportedModel model(small_model(shipped_workload("gpt2_124m")));
  const Weights weights(model.export_to("hf"));
  const auto& sizes = std::get<GptSizes>(model.workload.model);
  const auto hidden = sizes.hidden;
  const auto theirs = weights.read("transformer.h.0.attn.c_attn.weight");
  EXPECT_THAT(theirs.facts.shape, ElementsAre(hidden, 3 * hidden));
  const auto ours = model.values(1, "query_key_value.weight");
  // Row `in`, column `out` of theirs is row `out`, column `in` of ours.
  EXPECT_EQ(floats_of(theirs)[2 * 3 * hidden + 4], ours[4 * hidden + 2]);
  EXPECT_THAT(weights.facts("lm_head.weight").shape, ElementsAre(sizes.vocabulary, hidden));
  EXPECT_EQ(floats_of(weights.read("transformer.wpe.weight")), model.values(0, "positions"));
}

TEST(HuggingFaceWeights, MayLackPrefixesAndTiedHeads)
{
  const TemporaryFolder folder;
  const auto workload = small_model(shipped_workload("gpt2_124m"));
  const auto words = weight_sources(workload, 0).front();
  const std::vector<float> values(elements_of(words.shape), 3);
  write_safetensors(folder.path() / "model.safetensors", views_of({tensor_of("wte.weight", words.shape, values)}), {});
  const Weights weights(folder.path());
  EXPECT_EQ(name_in(weights, words), "wte.weight");
  const auto head = weight_sources(workload, workload.layers.size() - 1);
  EXPECT_EQ(name_in(weights, head.back()), "wte.weight");
  EXPECT_THAT(read_back(weights, head.back()), Each(3.0F));
  EXPECT_THAT(
      [&] { read_back(weights, head.front()); },
      ThrowsMessage<InputError>(AllOf(HasSubstr("model.safetensors"), HasSubstr("no tensor transformer.ln_f"))));
}

TEST(HuggingFaceWeights, OfBertMayBeOldAndLackTheClassifier)
{
  const TemporaryFolder folder;
  const auto workload = small_model(shipped_workload("bert10"));
  const auto embedding = weight_sources(workload, 0);
  const auto hidden = std::get<BertSizes>(workload.model).hidden;
  write_safetensors(folder.path() / "model.safetensors",
                    views_of({tensor_of("bert.embeddings.LayerNorm.gamma", {hidden}, std::vector<float>(hidden, 7))}),
                    {});
  const Weights weights(folder.path());
  EXPECT_THAT(read_back(weights, embedding[3]), Each(7.0F));
  const auto classifier = weight_sources(workload, workload.layers.size() - 1);
  std::vector<float> untouched(elements_of(classifier.front().shape), -1);
  EXPECT_FALSE(read_weight(weights, classifier.front(), untouched));
  EXPECT_THAT(untouched, Each(-1.0F));
}

TEST(HuggingFaceWeights, AreReadFromNarrowTypes)
{
  const TemporaryFolder folder;
  const auto read_as = [&](ElementType type, const auto& stored) {
    const auto bytes = std::as_bytes(std::span(stored));
    write_safetensors(folder.path() / "model.safetensors", std::vector{TensorView{{"w", type, {stored.size()}}, bytes}},
                      {});
    return read_back(Weights(folder.path()), {.ours = "w", .shape = {stored.size()}, .theirs = {"w"}});
  };
  const std::vector<std::uint16_t> halves = {0x0000, 0x8000, 0x3c00, 0xc500, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x7c00};
  EXPECT_THAT(read_as(ElementType::F16, halves), ElementsAre(0.0F, -0.0F, 1.0F, -5.0F, 0x1p-24F, 0x1.ff8p-15F, 0x1p-14F,
                                                             65504.0F, std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(std::signbit(read_as(ElementType::F16, halves)[1]));
  EXPECT_TRUE(std::isnan(read_as(ElementType::F16, std::vector<std::uint16_t>{0x7e00})[0]));
  EXPECT_THAT(read_as(ElementType::BF16, std::vector<std::uint16_t>{0x3f80, 0xc0a0}), ElementsAre(1.0F, -5.0F));
  EXPECT_THAT(read_as(ElementType::F64, std::vector<double>{0.5, -3}), ElementsAre(0.5F, -3.0F));
  EXPECT_THAT([&] { read_as(ElementType::I32, std::vector<std::uint32_t>{1}); },
              ThrowsMessage<InputError>(HasSubstr(R"(tensor "w" is I32; weights must be F32, F16, BF16 or F64)")));
}

TEST(HuggingFaceWeights, AreRefusedForAnotherModel)
{
  const ExportedModel model(small_model(shipped_workload("gpt2_124m")));
  const Weights weights(model.export_to("hf"));
  auto source = weight_sources(model.workload, 1).at(2);
  ++source.shape[0];
  EXPECT_THAT([&] { read_back(weights, source); },
              ThrowsMessage<InputError>(AllOf(HasSubstr(R"(tensor "transformer.h.0.attn.c_attn.weight" is [)"),
                                              HasSubstr("; the workload's model has ["))));
  auto other = model.workload;
  std::get<GptSizes>(other.model).intermediate = 18;
  EXPECT_THAT([&] { export_to_huggingface(other, *model.checkpoint, model.folder.path() / "other", one_file); },
              ThrowsMessage<InputError>(HasSubstr(R"(tensor "layers.1.up.weight" is F32 [17, )")));
  EXPECT_FALSE(fs::exists(model.folder.path() / "other"));
  EXPECT_THAT([&] { weight_sources(small_model(shipped_workload("resnet50")), 0); },
              ThrowsMessage<InputError>(HasSubstr("only bert, gpt, llama and decoder can")));
}

/// An exported model whose files are changed.
class ChangedModel : public testing::Test {
 protected:
  static nlohmann::json config(const fs::path& folder)
  {
    return nlohmann::json::parse(read_file(folder / "config.json"));
  }
  static void write_config(const fs::path& folder, const nlohmann::json& config)
  {
    write_file_atomically(folder / "config.json", config.dump(1));
  }
  /// Applies `change` to the tensors of an exported model.
  template <typename Change>
  static void rewrite(const fs::path& folder, Change change)
  {
    std::vector<StoredTensor> tensors;
    {
      const Weights weights(folder);
      for (const auto& name : weights.names()) tensors.push_back(weights.read(name));
    }
    change(tensors);
    write_safetensors(folder / "model.safetensors", views_of(tensors), {});
  }
  static StoredTensor& named(std::vector<StoredTensor>& tensors, const std::string& name)
  {
    return *std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) { return tensor.facts.name == name; });
  }
  static std::string fault(const ExportedModel& model, const fs::path& folder)
  {
    try {
      check_weights(model.workload, Weights(folder));
      return "none";
    } catch (const InputError& refused) {
      const std::string what = refused.what();
      EXPECT_TRUE(what.starts_with(folder.string())) << what;
      return what.substr(folder.string().size() + 1);
    }
  }
};

TEST_F(ChangedModel, IsAcceptedWhenNothingIsChanged)
{
  for (const auto* name : {"bert10", "gpt2_124m", "llama_8b"}) {
    const ExportedModel model(small_model(shipped_workload(name)));
    EXPECT_EQ(fault(model, model.export_to("one")), "none");
    const auto shards = model.export_to("shards", 4'000);
    EXPECT_EQ(fault(model, shards), "none");
    fs::remove(shards / "config.json");
    EXPECT_EQ(fault(model, shards), "none");
  }
}

TEST_F(ChangedModel, IsRefusedWhenItsConfigurationNamesAnotherModelOfTheSameShapes)
{
  const ExportedModel model(small_model(shipped_workload("llama_8b")));
  const auto folder = model.export_to("hf");
  const auto config_of_model = config(folder);
  const auto refuse = [&](const std::string& key, const nlohmann::json& value, const std::string& message) {
    auto changed = config_of_model;
    changed[key] = value;
    write_config(folder, changed);
    EXPECT_THAT(fault(model, folder), HasSubstr(message)) << key;
  };
  refuse("num_attention_heads", 2, "config.json: is for another model than the workload's: heads 2, not 6");
  refuse("rope_theta", 10'000, "config.json: is for another model than the workload's: rope_theta 10000, not 500000");
  refuse("rms_norm_eps", 1e-6, "config.json: is for another model than the workload's: norm_epsilon 1e-06, not 1e-05");
  refuse("hidden_act", "gelu", R"(hidden_act: "gelu" is not supported (only silu, swish))");
  refuse("attention_bias", true, "attention_bias: true is not supported");
  refuse("rope_scaling", {{"rope_type", "llama3"}},
         "config.json: is for another model than the workload's: rope_factor 1, not none; rope_type llama3, not none");
  refuse("model_type", "qwen2", "config.json: is for another kind of model than the workload's");
  refuse("max_position_embeddings", 1, "none");  // the sequence is the workload's
  const ExportedModel bert(small_model(shipped_workload("bert10")));
  EXPECT_THAT(fault(model, bert.export_to("hf")), "config.json: is for another kind of model than the workload's");
}

TEST_F(ChangedModel, MayBeAMistralWhoseWindowIsNotShorterThanTheSequence)
{
  const ExportedModel model(small_model(shipped_workload("llama_8b")));
  const auto folder = model.export_to("hf");
  auto mistral = config(folder);
  mistral["model_type"] = "mistral";
  const std::uint64_t sequence = model.workload.sequence;
  for (const auto& [window, message] :
       {std::pair(nlohmann::json(sequence), std::string("none")),
        std::pair(nlohmann::json(nullptr), std::string("none")),
        std::pair(
            nlohmann::json(sequence - 1),
            fmt::format("config.json: sliding_window: {} is less than the workload's sequence of {}, all of which "
                        "Isobar's attention reaches; write a shorter sequence",
                        sequence - 1, sequence))}) {
    mistral["sliding_window"] = window;
    write_config(folder, mistral);
    EXPECT_EQ(fault(model, folder), message);
  }
}

TEST_F(ChangedModel, IsRefusedWithAnUnusedTensor)
{
  const ExportedModel llama(small_model(shipped_workload("llama_8b")));
  const auto folder = llama.export_to("hf");
  rewrite(folder, [](auto& tensors) {
    for (const auto* part : {"q", "k", "v"}) {
      for (const auto* layer : {"0", "1"}) {
        tensors.push_back(tensor_of(fmt::format("model.layers.{}.self_attn.{}_proj.bias", layer, part), {1}, {0}));
      }
    }
  });
  EXPECT_EQ(
      fault(llama, folder),
      R"(model.safetensors: has 6 tensors that the workload's model does not have: "model.layers.0.self_attn.k_proj.bias", )"
      R"("model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.v_proj.bias", …)");

  const ExportedModel gpt(small_model(shipped_workload("gpt2_124m")));
  const auto renamed = gpt.export_to("hf");
  rewrite(renamed, [](auto& tensors) { named(tensors, "lm_head.weight").facts.name = "head.weight"; });
  EXPECT_EQ(fault(gpt, renamed),
            R"(model.safetensors: has 1 tensor that the workload's model does not have: "head.weight")");
}

TEST_F(ChangedModel, MayHaveTheBuffersAndHeadsThatTransformersWrites)
{
  const auto with = [](const char* workload, const std::vector<std::string>& names) {
    const ExportedModel model(small_model(shipped_workload(workload)));
    const auto folder = model.export_to("hf");
    rewrite(folder, [&](auto& tensors) {
      for (const auto& name : names) tensors.push_back(tensor_of(name, {1}, {0}));
    });
    return fault(model, folder);
  };
  EXPECT_EQ(with("gpt2_124m", {"transformer.h.0.attn.bias", "h.0.attn.masked_bias"}), "none");
  EXPECT_EQ(with("llama_8b", {"model.layers.1.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"}), "none");
  EXPECT_EQ(with("bert10", {"bert.embeddings.position_ids", "embeddings.token_type_ids", "cls.predictions.bias",
                            "cls.predictions.transform.LayerNorm.gamma", "cls.seq_relationship.weight"}),
            "none");
  EXPECT_THAT(with("bert10", {"qa_outputs.weight"}), HasSubstr("does not have: \"qa_outputs.weight\""));
}

TEST_F(ChangedModel, HasItsHeadTiedAsItsConfigurationSays)
{
  const ExportedModel model(small_model(shipped_workload("gpt2_124m")));
  const auto folder = model.export_to("hf");
  auto tied = config(folder);
  tied.erase("tie_word_embeddings");  // transformers' default for GPT-2
  write_config(folder, tied);
  EXPECT_EQ(
      fault(model, folder),
      fmt::format(R"(model.safetensors: tensors "lm_head.weight" and "transformer.wte.weight" differ, but {} says )"
                  "that they are tied (tie_word_embeddings)",
                  (folder / "config.json").string()));
  rewrite(folder,
          [](auto& tensors) { named(tensors, "lm_head.weight").data = named(tensors, "transformer.wte.weight").data; });
  EXPECT_EQ(fault(model, folder), "none");
  rewrite(folder, [](auto& tensors) {
    std::erase_if(tensors, [](const auto& tensor) { return tensor.facts.name == "lm_head.weight"; });
  });
  EXPECT_EQ(fault(model, folder), "none");
  tied["tie_word_embeddings"] = false;
  write_config(folder, tied);
  EXPECT_THAT(fault(model, folder), HasSubstr("model.safetensors: has no tensor lm_head.weight, but "));
}

TEST_F(ChangedModel, HasOneMatrixForATiedWorkload)
{
  const ExportedModel model(small_model(shipped_workload("stronghold")));
  const auto folder = model.export_to("hf");
  EXPECT_EQ(Weights(folder).find("lm_head.weight"), nullptr);
  EXPECT_EQ(fault(model, folder), "none");
  rewrite(folder, [](auto& tensors) {
    tensors.push_back(named(tensors, "transformer.wte.weight"));
    tensors.back().facts.name = "lm_head.weight";
  });
  EXPECT_EQ(fault(model, folder), "none") << "files may hold it twice";
  auto untied = config(folder);
  untied["tie_word_embeddings"] = false;
  write_config(folder, untied);
  EXPECT_EQ(fault(model, folder),
            "config.json: says that head and embedding are not tied (tie_word_embeddings), and the workload has tied: "
            "true; leave that out");
  rewrite(folder, [](auto& tensors) { named(tensors, "lm_head.weight").data.back() ^= std::byte{1}; });
  fs::remove(folder / "config.json");
  EXPECT_EQ(fault(model, folder),
            R"(model.safetensors: tensors "lm_head.weight" and "transformer.wte.weight" differ, but the workload says )"
            "that they are tied (tied: true)");
}

TEST_F(ChangedModel, HasAnotherFingerprint)
{
  const ExportedModel model(small_model(shipped_workload("llama_8b")));
  const auto folder = model.export_to("hf");
  const auto fingerprint_of = [](const fs::path& path) { return Weights(path).fingerprint(); };
  const auto before = fingerprint_of(folder);
  EXPECT_EQ(before.size(), 16U);
  EXPECT_EQ(fingerprint_of(model.export_to("shards", 4'000)), before) << "whatever its files are";
  rewrite(folder, [](auto& tensors) { named(tensors, "model.norm.weight").data.back() ^= std::byte{1}; });
  EXPECT_NE(fingerprint_of(folder), before);
  const auto of_content = fingerprint_of(folder);
  rewrite(folder, [](auto& tensors) { std::swap(tensors[0].facts.shape[0], tensors[0].facts.shape[1]); });
  EXPECT_NE(fingerprint_of(folder), of_content);

  const TemporaryFolder large;
  const auto file = large.path() / "model.safetensors";
  const auto with_one_at = [&](std::size_t place) {
    std::vector<float> values(20'000, 0);
    values[place] = 1;
    write_safetensors(file, views_of({tensor_of("a", {20'000}, values)}), {});
    return fingerprint_of(file);
  };
  EXPECT_NE(with_one_at(0), with_one_at(16'383)) << "the first 64 KiB count";
  EXPECT_EQ(with_one_at(16'384), with_one_at(19'999));
}

TEST(HuggingFaceWeights, AreExportedIntoANewFolder)
{
  const ExportedModel model(small_model(shipped_workload("bert10")));
  model.export_to("hf");
  EXPECT_THAT([&] { model.export_to("hf"); },
              ThrowsMessage<InputError>(HasSubstr("hf: is not empty; name a new folder")));
  model.folder.write("file", "");
  EXPECT_THAT([&] { model.export_to("file"); }, ThrowsMessage<InputError>(HasSubstr("file: is not a folder")));
}

}  // namespace
}  // namespace isobar::exec::huggingface_weights_test
