#include "core/huggingface/config.hpp"

#include "core/errors.hpp"
#include "core/model/differences.hpp"
#include "core/model/workload.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace isobar::huggingface_config_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

// The relevant members of google-bert/bert-base-uncased, openai-community/gpt2 and meta-llama/Llama-2-7b-hf.
const Json bert = Json::parse(R"({
  "architectures": ["BertForMaskedLM"],
  "attention_probs_dropout_prob": 0.1,
  "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1,
  "hidden_size": 768,
  "initializer_range": 0.02,
  "intermediate_size": 3072,
  "layer_norm_eps": 1e-12,
  "max_position_embeddings": 512,
  "model_type": "bert",
  "num_attention_heads": 12,
  "num_hidden_layers": 12,
  "pad_token_id": 0,
  "position_embedding_type": "absolute",
  "type_vocab_size": 2,
  "vocab_size": 30522
})");
const Json gpt2 = Json::parse(R"({
  "activation_function": "gelu_new",
  "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.1,
  "embd_pdrop": 0.1,
  "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2",
  "n_ctx": 1024,
  "n_embd": 768,
  "n_head": 12,
  "n_layer": 12,
  "n_positions": 1024,
  "resid_pdrop": 0.1,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "vocab_size": 50257
})");
const Json llama = Json::parse(R"({
  "architectures": ["LlamaForCausalLM"],
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 11008,
  "max_position_embeddings": 4096,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 32,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": null,
  "tie_word_embeddings": false,
  "torch_dtype": "float16",
  "vocab_size": 32000
})");

std::string yaml_of(const Json& config, const HuggingFaceImport& import = {.sequence = 128})
{
  return workload_from_huggingface(config.dump(1), "model/config.json", import);
}

Workload workload_of(const Json& config)
{
  return workload_from_text(yaml_of(config), "imported.yaml");
}

/// The fault, without the file's name and the line.
std::string fault_of(const Json& config, const HuggingFaceImport& import = {.sequence = 128})
{
  try {
    yaml_of(config, import);
    return "none";
  } catch (const InputError& fault) {
    const std::string what = fault.what();
    EXPECT_THAT(what, testing::StartsWith("model/config.json:"));
    return what.substr(what.find(": ") + 2);
  }
}

Json with(Json config, const std::string& key, const Json& value)
{
  config[key] = value;
  return config;
}

TEST(HuggingFaceConfig, MakesBertWithItsClassifier)
{
  const auto workload = workload_of(bert);
  // bert-base-uncased has 109,482,240 parameters with its pooler; the classifier adds 2 x (768 + 1).
  EXPECT_EQ(all_parameters(workload), 109'482'240U + 2 * 769);
  EXPECT_EQ(workload.training.dropout, 0.1);
  EXPECT_EQ(workload.sequence, 128U);
  EXPECT_EQ(workload.dtype, DType::Float32);
  EXPECT_THAT(yaml_of(bert), HasSubstr("# The configuration names no classes; 2 is transformers' default.\n"));
  EXPECT_THAT(yaml_of(bert), HasSubstr("# 109483778 parameters, as many as the model.\n"));
}

TEST(HuggingFaceConfig, ReadsTheClassesOfBert)
{
  const auto named = with(bert, "id2label", {{"0", "entailment"}, {"1", "neutral"}, {"2", "contradiction"}});
  EXPECT_EQ(std::get<BertSizes>(workload_of(named).model).classes, 3U);
  EXPECT_THAT(yaml_of(named), Not(HasSubstr("no classes")));
  EXPECT_EQ(std::get<BertSizes>(workload_of(with(bert, "num_labels", 5)).model).classes, 5U);
}

TEST(HuggingFaceConfig, MakesTheBlocksOfGpt2)
{
  const auto workload = workload_of(gpt2);
  // gpt2 has 124,439,808 parameters; the head's own matrix adds 50257 x 768.
  EXPECT_EQ(all_parameters(workload), 124'439'808U + 50'257 * 768);
  EXPECT_EQ(workload.training.dropout, 0.1);
  EXPECT_EQ(
      yaml_of(gpt2),
      "# Converted from config.json, model_type gpt2 of Hugging Face's transformers.\n"
      "# 163037184 parameters; the model has 124439808.\n"
      "# In the model, head and embedding share one matrix; here each has its own. With tied: true they share it.\n"
      "# A configuration has no optimizer and no learning_rate (default 0.01): choose your own.\n"
      "model: gpt\nlayers: 12\nhidden: 768\nheads: 12\nintermediate: 3072\nvocabulary: 50257\npositions: 1024\n"
      "tied: apart\ndropout: 0.1\n# With dropout: 0, attention: fused keeps no S x S probabilities.\nattention: "
      "unfused\n"
      "micro_batch: 1\nsequence: 128\ndtype: float32\noptimizer: adamw\n");
  EXPECT_EQ(std::get<GptSizes>(workload_of(with(gpt2, "n_inner", 100)).model).intermediate, 100U);
  EXPECT_EQ(std::get<GptSizes>(workload_of(with(gpt2, "n_inner", nullptr)).model).intermediate, 3072U);
}

TEST(HuggingFaceConfig, MakesTheBlocksOfLlama)
{
  const auto workload = workload_of(llama);
  EXPECT_EQ(all_parameters(workload), 6'738'415'616U);  // Llama-2-7b
  EXPECT_EQ(workload.dtype, DType::Float16);
  const auto& sizes = std::get<LlamaSizes>(workload.model);
  EXPECT_EQ(sizes.rope_theta, 10'000);
  EXPECT_EQ(sizes.norm_epsilon, 1e-5);
  EXPECT_EQ(workload.optimizer, Optimizer::AdamW);
  EXPECT_EQ(yaml_of(llama, {.sequence = 4096, .micro_batch = 3, .dtype = DType::BFloat16, .optimizer = Optimizer::Sgd}),
            "# Converted from config.json, model_type llama of Hugging Face's transformers.\n"
            "# 6738415616 parameters, as many as the model.\n"
            "# A configuration has no optimizer and no learning_rate (default 0.01): choose your own.\n"
            "model: llama\nlayers: 32\nhidden: 4096\nheads: 32\nkv_heads: 32\nintermediate: 11008\nvocabulary: 32000\n"
            "rope_theta: 10000\nnorm_epsilon: 1e-05\nattention: fused\nmicro_batch: 3\nsequence: 4096\ndtype: "
            "bf16\noptimizer: sgd\n");
}

TEST(HuggingFaceConfig, ReadsTheKeyValueHeadsOfLlama)
{
  EXPECT_EQ(std::get<LlamaSizes>(workload_of(with(llama, "num_key_value_heads", 8)).model).kv_heads, 8U);
  EXPECT_EQ(std::get<LlamaSizes>(workload_of(with(llama, "num_key_value_heads", nullptr)).model).kv_heads, 32U);
  const auto tied = with(llama, "tie_word_embeddings", true);
  EXPECT_THAT(yaml_of(tied),
              HasSubstr("# In the model, head and embedding share one matrix; here each has its own.\n"));
  EXPECT_THAT(yaml_of(tied), HasSubstr("# 6738415616 parameters; the model has 6607343616.\n"));
  EXPECT_TRUE(workload_of(tied).ties_apart);
}

TEST(HuggingFaceConfig, ReadsTheRotationOfLlamaFromEitherKey)
{
  const auto theta = [](const Json& config) { return std::get<LlamaSizes>(workload_of(config).model).rope_theta; };
  EXPECT_EQ(theta(with(llama, "rope_theta", 500000.0)), 500'000);
  const Json of_version_5 = {{"rope_theta", 500000}, {"rope_type", "default"}};
  EXPECT_EQ(theta(with(llama, "rope_parameters", of_version_5)), 500'000);
}

TEST(HuggingFaceConfig, AcceptsScaledRotationOfLlamaWhichCostsTheSame)
{
  const Json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192},
                        {"rope_type", "llama3"}};
  const auto scaled = with(llama, "rope_scaling", scaling);
  EXPECT_THAT(yaml_of(scaled), HasSubstr("\nrope_type: llama3\nrope_factor: 8\nnorm_epsilon: "));
  const auto workload = workload_of(scaled);
  EXPECT_EQ(workload.layers.size(), 34U);
  EXPECT_THAT(workload.differences, testing::IsEmpty());
  const RopeScaling expected = {.type = RopeScaling::Type::Llama3, .factor = 8};
  EXPECT_EQ(std::get<LlamaSizes>(workload.model).rope_scaling, expected);
  const auto read = sizes_from_huggingface(scaled.dump(1), "config.json").sizes;
  EXPECT_EQ(std::get<LlamaSizes>(read).rope_scaling, expected);
  const auto linear = workload_of(with(llama, "rope_scaling", {{"type", "linear"}, {"factor", 2}}));
  EXPECT_EQ(std::get<LlamaSizes>(linear.model).rope_scaling,
            (RopeScaling{.type = RopeScaling::Type::Linear, .factor = 2}));
  const auto yarn = with(llama, "rope_scaling", {{"type", "yarn"}, {"factor", 2}});
  EXPECT_THAT(yaml_of(yarn), HasSubstr("# What the model computes and isobar run does not; the cost is the same.\n"
                                       "differences:\n  - \"rope_scaling.type yarn, not default\"\n"));
  EXPECT_THAT([&] { sizes_from_huggingface(yarn.dump(1), "config.json"); },
              testing::ThrowsMessage<InputError>(
                  HasSubstr(R"(rope_scaling.type: "yarn" is not supported (only default, linear, llama3))")));
  const auto inverted = with(llama, "rope_scaling",
                             {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 1}});
  EXPECT_THAT(fault_of(inverted), HasSubstr("rope_scaling.high_freq_factor: 1 is not above low_freq_factor, 4"));
}

// The relevant members of mistralai/Mistral-7B-v0.1, Qwen/Qwen2.5-7B and Qwen/Qwen3-8B.
const Json mistral = Json::parse(R"({
  "architectures": ["MistralForCausalLM"],
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 14336,
  "max_position_embeddings": 32768,
  "model_type": "mistral",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "sliding_window": 4096,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "vocab_size": 32000
})");
const Json qwen2 = Json::parse(R"({
  "architectures": ["Qwen2ForCausalLM"],
  "attention_dropout": 0.0,
  "hidden_act": "silu",
  "hidden_size": 3584,
  "intermediate_size": 18944,
  "max_position_embeddings": 131072,
  "max_window_layers": 28,
  "model_type": "qwen2",
  "num_attention_heads": 28,
  "num_hidden_layers": 28,
  "num_key_value_heads": 4,
  "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0,
  "sliding_window": 131072,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "use_sliding_window": false,
  "vocab_size": 152064
})");
const Json qwen3 = Json::parse(R"({
  "architectures": ["Qwen3ForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 12288,
  "max_position_embeddings": 40960,
  "model_type": "qwen3",
  "num_attention_heads": 32,
  "num_hidden_layers": 36,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 1000000,
  "sliding_window": null,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "use_sliding_window": false,
  "vocab_size": 151936
})");

TEST(HuggingFaceConfig, MakesMistralOfLlamasKindAndQwenADecoder)
{
  EXPECT_EQ(all_parameters(workload_of(mistral)), 7'241'732'096U);  // Mistral-7B-v0.1
  EXPECT_TRUE(std::holds_alternative<LlamaSizes>(workload_of(mistral).model));
  const auto of_qwen2 = workload_of(qwen2);
  EXPECT_EQ(all_parameters(of_qwen2), 7'615'616'512U);  // Qwen2.5-7B, 129,024 of which are biases
  EXPECT_TRUE(std::get<DecoderSizes>(of_qwen2.model).biases.qkv);
  EXPECT_FALSE(std::get<DecoderSizes>(of_qwen2.model).biases.output);
  const auto of_qwen3 = workload_of(qwen3);
  EXPECT_EQ(all_parameters(of_qwen3), 8'190'735'360U);  // Qwen3-8B
  EXPECT_EQ(std::get<DecoderSizes>(of_qwen3.model).head_norm, HeadNorm::Head);
  EXPECT_THAT(of_qwen2.differences, testing::IsEmpty());
  EXPECT_THAT(of_qwen3.differences, testing::IsEmpty());
  for (const auto& config : {qwen2, qwen3}) {
    const auto read = sizes_from_huggingface(config.dump(1), "config.json");
    EXPECT_EQ(std::get<DecoderSizes>(read.sizes).hidden, std::get<DecoderSizes>(workload_of(config).model).hidden);
  }
}

TEST(HuggingFaceConfig, IsOfWeightsOnlyWhereTheLayersComputeTheSame)
{
  const auto sizes_of = [](const Json& config) { sizes_from_huggingface(config.dump(1), "config.json"); };
  EXPECT_THAT(
      [&] {
        sizes_of({{"model_type", "deepseek_v3"}});
      },
      testing::ThrowsMessage<InputError>(
          HasSubstr("is not supported (only bert, gemma2, gpt2, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe)")));
  EXPECT_THAT(
      [&] {
        sizes_of({{"model_type", "gemma2"}, {"rope_scaling", {{"type", "yarn"}}}});
      },
      testing::ThrowsMessage<InputError>(
          HasSubstr(R"(rope_scaling.type: "yarn" is not supported (only default, linear, llama3))")));
  EXPECT_NO_THROW(sizes_of(with(qwen3, "attention_dropout", 0.1)));
}

TEST(HuggingFaceConfig, MakesMistralADecoderWhereItsWindowIsShorterThanTheSequence)
{
  const auto window_of = [](const Json& config) {
    const auto workload = workload_from_text(yaml_of(config, {.sequence = 5000}), "imported.yaml");
    const auto* sizes = std::get_if<DecoderSizes>(&workload.model);
    return sizes == nullptr ? 0U : sizes->window;
  };
  EXPECT_EQ(window_of(mistral), 4096U);
  Json without = mistral;
  without.erase("sliding_window");
  EXPECT_EQ(window_of(without), 4096U);  // transformers' default
  EXPECT_EQ(window_of(with(mistral, "sliding_window", nullptr)), 0U);
}

// transformers 4.57.6 and 5.24.0: layers from max_window_layers on have the window, unless layer_types lists them.
TEST(HuggingFaceConfig, GivesQwensLayersTheirWindows)
{
  const auto windows = [](const Json& config) {
    std::size_t count = 0;
    const auto workload = workload_of(config);
    for (const auto& block : std::get<DecoderSizes>(workload.model).blocks) {
      if (block.mixer == Mixer::Window) ++count;
    }
    return count;
  };
  const auto narrow = with(qwen2, "sliding_window", 4096);
  EXPECT_EQ(windows(narrow), 0U);
  const auto used = with(narrow, "use_sliding_window", true);
  EXPECT_EQ(windows(used), 0U);  // max_window_layers is the number of layers
  EXPECT_EQ(windows(with(used, "max_window_layers", 20)), 8U);
  Json types = Json::array();
  for (int i = 0; i < 28; ++i) types.push_back(i % 2 == 0 ? "full_attention" : "sliding_attention");
  EXPECT_EQ(windows(with(used, "layer_types", types)), 14U);
  EXPECT_EQ(windows(with(narrow, "layer_types", types)), 0U);
  Json by_default = with(used, "max_window_layers", 0);
  by_default.erase("sliding_window");
  EXPECT_EQ(std::get<DecoderSizes>(workload_of(by_default).model).window, 4096U);
}

/// The workload's parameters, and those that its comment says the model has.
std::pair<std::uint64_t, std::string> counts_of(const Json& config)
{
  const std::string yaml = yaml_of(config);
  const std::size_t line = yaml.find("# ", 1) + 2;
  const std::string text = yaml.substr(line, yaml.find('\n', line) - line);
  const std::string key = " parameters; the model has ";
  const std::size_t at = text.find(key);
  const std::uint64_t here = all_parameters(workload_from_text(yaml, "imported.yaml"));
  EXPECT_EQ(text.substr(0, text.find(' ')), std::to_string(here));
  const auto in_model = at == std::string::npos ? std::to_string(here) : text.substr(at + key.size());
  return {here, in_model.substr(0, in_model.find('.'))};
}

// transformers 4.57.6, models on the meta device: tests/cli/import_peer_test.py.
TEST(HuggingFaceConfig, CountsTheParametersOfTransformersWhereKeysAreMissing)
{
  const auto only_type = [](const char* type) { return counts_of({{"model_type", type}}); };
  EXPECT_EQ(only_type("bert"), std::pair(109'483'778UL, std::string("109483778")));
  EXPECT_EQ(only_type("gpt2"), std::pair(163'037'184UL, std::string("124439808")));
  EXPECT_EQ(only_type("llama"), std::pair(6'738'415'616UL, std::string("6738415616")));
  EXPECT_EQ(only_type("mistral"), std::pair(7'241'732'096UL, std::string("7241732096")));
  EXPECT_EQ(only_type("qwen2"), std::pair(12'049'846'272UL, std::string("12049846272")));
  EXPECT_EQ(only_type("qwen3"), std::pair(12'049'461'248UL, std::string("12049461248")));
  EXPECT_THAT(
      yaml_of({{"model_type", "gpt2"}, {"n_layer", 1}}),
      HasSubstr("# transformers' defaults, which the configuration leaves out: n_embd 768, n_head 12, vocab_size "
                "50257, n_positions 1024.\n"));
}

TEST(HuggingFaceConfig, TakesAsManyKeyValueHeadsAsHeadsForANull)
{
  const auto heads = [](const char* type, const Json& kv_heads) {
    const auto workload = workload_of({{"model_type", type}, {"head_dim", 128}, {"num_key_value_heads", kv_heads}});
    const auto* sizes = std::get_if<LlamaSizes>(&workload.model);
    return sizes != nullptr ? sizes->kv_heads : std::get<DecoderSizes>(workload.model).kv_heads;
  };
  for (const auto* type : {"llama", "mistral", "qwen2", "qwen3"}) EXPECT_EQ(heads(type, nullptr), 32U) << type;
  EXPECT_EQ(heads("mistral", 4), 4U);
  Json few = with(with(qwen2, "num_attention_heads", 16), "hidden_size", 2048);
  few.erase("num_key_value_heads");
  EXPECT_EQ(fault_of(few), "num_key_value_heads: 32 (transformers' default) does not divide num_attention_heads, 16");
}

TEST(HuggingFaceConfig, TakesHeadsOfAnotherWidthByDefaultToo)
{
  const auto width_of = [](const Json& config) { return std::get<DecoderSizes>(workload_of(config).model).head_width; };
  // Qwen3-0.6B, whose width of a head is 128 with the key or without.
  Json small = qwen3;
  for (const auto& [key, value] : {std::pair("hidden_size", 1024), std::pair("num_attention_heads", 16)}) {
    small[key] = value;
  }
  EXPECT_EQ(width_of(small), 128U);
  small.erase("head_dim");
  EXPECT_EQ(width_of(small), 128U);
  small["model_type"] = "qwen2";  // hidden_size over num_attention_heads
  EXPECT_EQ(width_of(small), 64U);
  EXPECT_EQ(width_of(with(llama, "head_dim", 64)), 64U);
  EXPECT_EQ(width_of(with(mistral, "head_dim", 256)), 256U);
}

TEST(HuggingFaceConfig, TakesTheUsualNamesOfGpt2sKeys)
{
  const Json usual = {{"model_type", "gpt2"},
                      {"hidden_size", 256},
                      {"num_hidden_layers", 3},
                      {"num_attention_heads", 4},
                      {"max_position_embeddings", 200}};
  const auto sizes = std::get<GptSizes>(workload_of(usual).model);
  EXPECT_EQ(sizes.hidden, 256U);
  EXPECT_EQ(sizes.layers, 3U);
  EXPECT_EQ(sizes.heads, 4U);
  EXPECT_EQ(sizes.positions, 200U);
  EXPECT_EQ(fault_of(with(gpt2, "hidden_size", 768)), "none");
  EXPECT_EQ(fault_of(with(gpt2, "hidden_size", 256)), "hidden_size: 256 is not n_embd, 768; leave one of them out");
  EXPECT_EQ(fault_of(usual, {.sequence = 201}),
            "max_position_embeddings: 200 is less than the sequence of 201; give a shorter --sequence");
}

TEST(HuggingFaceConfig, AcceptsWhatCostsTheSameAndListsIt)
{
  const auto differences = [](const Json& config) { return workload_of(config).differences; };
  using testing::ElementsAre;
  EXPECT_THAT(differences(bert), testing::IsEmpty());
  // Cerebras-GPT
  EXPECT_THAT(differences(with(gpt2, "activation_function", "gelu")),
              ElementsAre("activation_function gelu, not gelu_new"));
  EXPECT_THAT(differences(with(gpt2, "layer_norm_epsilon", 1e-6)), ElementsAre("layer_norm_epsilon 1e-06, not 1e-05"));
  EXPECT_THAT(differences(with(gpt2, "scale_attn_by_inverse_layer_idx", true)),
              ElementsAre("scale_attn_by_inverse_layer_idx true, not false"));
  const auto unlike = with(with(gpt2, "embd_pdrop", 0), "attn_pdrop", 0.05);
  EXPECT_THAT(differences(unlike), ElementsAre("embd_pdrop 0, not 0.1", "attn_pdrop 0.05, not 0.1"));
  EXPECT_EQ(workload_of(unlike).training.dropout, 0.1);
  EXPECT_THAT(differences(with(bert, "layer_norm_eps", 1e-5)), ElementsAre("layer_norm_eps 1e-05, not 1e-12"));
  EXPECT_THAT(differences(with(bert, "classifier_dropout", 0)), ElementsAre("classifier_dropout 0, not 0.1"));
  EXPECT_THAT(differences(with(llama, "attention_dropout", 0.1)), ElementsAre("attention_dropout 0.1, not 0"));
  EXPECT_THAT(differences(with(llama, "hidden_act", "gelu")), ElementsAre("hidden_act gelu, not silu"));
  EXPECT_EQ(all_parameters(workload_of(with(llama, "hidden_act", "gelu"))), 6'738'415'616U);
}

TEST(HuggingFaceConfig, CountsTheBiasesOfLlamasKind)
{
  // Granite 3B Code: 3,482,503,680 parameters (transformers 4.57.6, meta device), head and embedding tied.
  Json granite = with(with(with(llama, "hidden_size", 2560), "intermediate_size", 10'240), "vocab_size", 49'152);
  granite = with(with(with(granite, "attention_bias", true), "mlp_bias", true), "tie_word_embeddings", true);
  EXPECT_EQ(counts_of(granite).second, "3482503680");
  const auto workload = workload_of(granite);
  const auto& biases = std::get<DecoderSizes>(workload.model).biases;
  EXPECT_TRUE(biases.qkv && biases.output && biases.mlp);
  EXPECT_EQ(fault_of(with(qwen3, "attention_bias", true)), "none");
  // transformers has no such option of Mistral and Qwen2.
  EXPECT_TRUE(std::holds_alternative<LlamaSizes>(workload_of(with(mistral, "attention_bias", true)).model));
  EXPECT_FALSE(std::get<DecoderSizes>(workload_of(with(qwen2, "attention_bias", true)).model).biases.output);
  EXPECT_THAT([&] { sizes_from_huggingface(granite.dump(1), "config.json"); },
              testing::ThrowsMessage<InputError>(HasSubstr("attention_bias: true is not supported (only false)")));
}

TEST(HuggingFaceConfig, TakesTheModelTypeFromTheArchitectures)
{
  for (const auto& config : {bert, gpt2, llama, mistral, qwen2, qwen3}) {
    Json without = config;
    without.erase("model_type");
    EXPECT_EQ(yaml_of(without), yaml_of(config));
  }
  Json moe = qwen3;
  moe.erase("model_type");
  moe["architectures"] = {"Qwen3MoeForCausalLM"};
  EXPECT_THAT(yaml_of(moe), HasSubstr("model_type qwen3_moe"));
  moe["architectures"] = {"T5ForConditionalGeneration"};
  EXPECT_THAT(fault_of(moe),
              testing::AllOf(testing::StartsWith("architectures: names no supported model (bert, bloom, "),
                             testing::EndsWith(R"(): "T5ForConditionalGeneration")")));
}

TEST(HuggingFaceConfig, NamesEachWrongDropoutOnce)
{
  const std::string not_a_number = "\"0.1\" is not a number; write a number, 0 or more, without quotes";
  EXPECT_EQ(fault_of(with(bert, "hidden_dropout_prob", "0.1")), "hidden_dropout_prob: " + not_a_number);
  EXPECT_EQ(fault_of(with(with(gpt2, "attn_pdrop", "0.1"), "resid_pdrop", -1)),
            "attn_pdrop: " + not_a_number +
                "\nmodel/config.json:15: resid_pdrop: \"-1\" is out of range; write a number, 0 or more");
}

TEST(HuggingFaceConfig, IsRefusedByTheUnsupportedKey)
{
  EXPECT_EQ(fault_of(with(bert, "hidden_act", "relu")),
            "hidden_act: \"relu\" is not supported (only gelu, gelu_python, gelu_new, gelu_fast, "
            "gelu_pytorch_tanh, gelu_python_tanh, gelu_10, gelu_accurate, quick_gelu, silu, swish)");
  EXPECT_EQ(fault_of(with(bert, "position_embedding_type", "relative_key")),
            R"(position_embedding_type: "relative_key" is not supported (only absolute))");
  EXPECT_EQ(fault_of(with(bert, "type_vocab_size", 1)), "type_vocab_size: 1 is not supported (only 2)");
  EXPECT_EQ(fault_of(with(bert, "is_decoder", true)), "is_decoder: true is not supported (only false)");
  EXPECT_EQ(fault_of(with(bert, "attention_probs_dropout_prob", 1)), "attention_probs_dropout_prob: 1 is not below 1");
  EXPECT_EQ(
      fault_of(with(llama, "rope_scaling", {{"rope_type", "mrope"}, {"factor", 8}})),
      R"(rope_scaling.rope_type: "mrope" is not supported (only default, linear, llama3, dynamic, yarn, longrope))");
  EXPECT_EQ(fault_of(with(llama, "quantization_config", {{"bits", 4}})),
            "quantization_config: requires quantised matrices, which is not supported; remove it");
  EXPECT_EQ(fault_of(with(llama, "auto_map", {{"AutoModel", "mine.Model"}})),
            "auto_map: requires custom code of the model, which is not supported; remove it");
  EXPECT_EQ(fault_of(with(llama, "torch_dtype", "float64")),
            R"(torch_dtype: "float64" is not one of float32, bfloat16, float16; give --dtype)");
}

TEST(HuggingFaceConfig, IsRefusedWhenItsSizesDoNotFit)
{
  EXPECT_EQ(fault_of(with(bert, "num_attention_heads", 7)), "num_attention_heads: 7 does not divide hidden_size, 768");
  EXPECT_EQ(fault_of(with(llama, "num_key_value_heads", 5)),
            "num_key_value_heads: 5 does not divide num_attention_heads, 32");
  EXPECT_EQ(fault_of(with(with(llama, "hidden_size", 96), "num_key_value_heads", 1)),
            "num_attention_heads: makes heads 3 wide; rotary positions need an even width");
  EXPECT_EQ(fault_of(gpt2, {.sequence = 2000}),
            "n_positions: 1024 is less than the sequence of 2000; give a shorter --sequence");
  EXPECT_EQ(fault_of(with(gpt2, "vocab_size", 1e9)),
            R"(vocab_size: "1000000000.0" is not a whole number; write a whole number from 1 to 16777216)");
  EXPECT_EQ(fault_of(with(llama, "rope_theta", 0)), "rope_theta: is 0; write a positive number");
  EXPECT_EQ(fault_of(with(llama, "rms_norm_eps", 0)), "rms_norm_eps: is 0; write a positive number");
}

TEST(HuggingFaceConfig, IsRefusedWithEveryFaultByLine)
{
  EXPECT_THAT(
      [] {
        workload_from_huggingface("{\"model_type\": \"gpt2\",\n\"n_embd\": -1,\n\"n_layer\": 0}", "config.json",
                                  {.sequence = 1});
      },
      testing::ThrowsMessage<InputError>(
          testing::AllOf(HasSubstr("config.json:2: n_embd: \"-1\" is not a whole number"),
                         HasSubstr("config.json:3: n_layer: "), Not(HasSubstr("divide")))));
  EXPECT_THAT(fault_of({{"model_type", "t5"}}), HasSubstr(R"("t5")"));
  EXPECT_THAT(fault_of({{"model_type", "mixtrel"}}),
              testing::StartsWith(R"(model_type: "mixtrel" is not supported (only bert, bloom, cohere, )"));
  EXPECT_THAT(fault_of({{"hidden_size", 1}}), HasSubstr("model_type: missing"));
  EXPECT_THAT([] { workload_from_huggingface("{", "config.json", {}); }, testing::Throws<InputError>());
  EXPECT_THAT([] { workload_from_huggingface("[]", "config.json", {}); }, testing::Throws<InputError>());
}

TEST(HuggingFaceConfig, GivesTheSizesOfWeightsWhateverTheTrainingKeys)
{
  const auto sizes_of = [](const Json& config) { return sizes_from_huggingface(config.dump(1), "config.json"); };
  const auto gpt = sizes_of(with(with(gpt2, "resid_pdrop", 0.5), "n_positions", 1));
  EXPECT_EQ(std::get<GptSizes>(gpt.sizes).heads, 12U);
  EXPECT_TRUE(gpt.tied);
  EXPECT_FALSE(sizes_of(with(gpt2, "tie_word_embeddings", false)).tied);
  const auto of_llama = sizes_of(with(with(llama, "attention_dropout", 0.1), "rope_theta", 500'000.0));
  EXPECT_EQ(std::get<LlamaSizes>(of_llama.sizes).rope_theta, 500'000);
  EXPECT_EQ(std::get<LlamaSizes>(of_llama.sizes).norm_epsilon, 1e-5);
  EXPECT_FALSE(of_llama.tied);
  EXPECT_FALSE(of_llama.window);
  // Mistral's layers are Llama's, up to the window.
  const auto of_mistral = sizes_of(mistral);
  EXPECT_EQ(std::get<LlamaSizes>(of_mistral.sizes).kv_heads, 8U);
  EXPECT_EQ(of_mistral.window, 4096U);
  EXPECT_FALSE(sizes_of(with(mistral, "sliding_window", nullptr)).window);
  EXPECT_EQ(std::get<BertSizes>(sizes_of(with(bert, "classifier_dropout", 0)).sizes).classes, 2U);
  EXPECT_THAT([&] { sizes_of(with(bert, "layer_norm_eps", 1e-5)); },
              testing::ThrowsMessage<InputError>(HasSubstr("layer_norm_eps: 1e-05 is not supported")));
  EXPECT_THAT(
      [&] {
        sizes_of({{"model_type", "qwen2_moe"}});
      },
      testing::ThrowsMessage<InputError>(HasSubstr(
          R"(model_type: "qwen2_moe" is not supported (only bert, gemma2, gpt2, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe))")));
}

}  // namespace
}  // namespace isobar::huggingface_config_test
