#include "core/model/huggingface_config.hpp"

#include "core/errors.hpp"
#include "core/model/workload.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <variant>

namespace isobar {
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

std::uint64_t parameters_of(const Workload& workload)
{
  std::uint64_t sum = 0;
  for (const auto& layer : workload.layers) sum += layer.parameters;
  return sum;
}

TEST(HuggingFaceConfig, MakesBertWithItsClassifier)
{
  const auto workload = workload_of(bert);
  // bert-base-uncased has 109,482,240 parameters with its pooler; the classifier adds 2 x (768 + 1).
  EXPECT_EQ(parameters_of(workload), 109'482'240U + 2 * 769);
  EXPECT_EQ(workload.training.dropout, 0.1);
  EXPECT_EQ(workload.sequence, 128U);
  EXPECT_EQ(workload.dtype, DType::Float32);
  EXPECT_THAT(yaml_of(bert), HasSubstr("# The configuration names no classes; 2 is transformers' default.\n"));
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
  EXPECT_EQ(parameters_of(workload), 124'439'808U + 50'257 * 768);
  EXPECT_EQ(workload.training.dropout, 0.1);
  EXPECT_EQ(
      yaml_of(gpt2),
      "# Converted from config.json, model_type gpt2 of Hugging Face's transformers.\n"
      "# In the model, head and embedding share one matrix; here each has its own. With tied: true they share it, "
      "on one device.\n"
      "# A configuration has no optimizer and no learning_rate (default 0.01): choose your own.\n"
      "model: gpt\nlayers: 12\nhidden: 768\nheads: 12\nintermediate: 3072\nvocabulary: 50257\npositions: 1024\n"
      "dropout: 0.1\n# With dropout: 0, attention: fused keeps no S x S probabilities.\nattention: unfused\n"
      "micro_batch: 1\nsequence: 128\ndtype: float32\noptimizer: adamw\n");
  EXPECT_EQ(std::get<GptSizes>(workload_of(with(gpt2, "n_inner", 100)).model).intermediate, 100U);
  EXPECT_EQ(std::get<GptSizes>(workload_of(with(gpt2, "n_inner", nullptr)).model).intermediate, 3072U);
}

TEST(HuggingFaceConfig, MakesTheBlocksOfLlama)
{
  const auto workload = workload_of(llama);
  EXPECT_EQ(parameters_of(workload), 6'738'415'616U);  // Llama-2-7b
  EXPECT_EQ(workload.dtype, DType::Float16);
  const auto& sizes = std::get<LlamaSizes>(workload.model);
  EXPECT_EQ(sizes.rope_theta, 10'000);
  EXPECT_EQ(sizes.norm_epsilon, 1e-5);
  EXPECT_EQ(workload.optimizer, Optimizer::AdamW);
  EXPECT_EQ(yaml_of(llama, {.sequence = 4096, .micro_batch = 3, .dtype = DType::BFloat16, .optimizer = Optimizer::Sgd}),
            "# Converted from config.json, model_type llama of Hugging Face's transformers.\n"
            "# A configuration has no optimizer and no learning_rate (default 0.01): choose your own.\n"
            "model: llama\nlayers: 32\nhidden: 4096\nheads: 32\nkv_heads: 32\nintermediate: 11008\nvocabulary: 32000\n"
            "rope_theta: 10000\nnorm_epsilon: 1e-05\nattention: fused\nmicro_batch: 3\nsequence: 4096\ndtype: "
            "bf16\noptimizer: sgd\n");
}

TEST(HuggingFaceConfig, ReadsTheKeyValueHeadsOfLlama)
{
  EXPECT_EQ(std::get<LlamaSizes>(workload_of(with(llama, "num_key_value_heads", 8)).model).kv_heads, 8U);
  EXPECT_EQ(std::get<LlamaSizes>(workload_of(with(llama, "num_key_value_heads", nullptr)).model).kv_heads, 32U);
  EXPECT_THAT(yaml_of(with(llama, "tie_word_embeddings", true)),
              HasSubstr("# In the model, head and embedding share one matrix; here each has its own.\n"));
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
  EXPECT_THAT(yaml_of(scaled), HasSubstr("# The model scales rotary positions (llama3); the executor does not.\n"
                                         "model: llama\n"));
  EXPECT_EQ(workload_of(scaled).layers.size(), 34U);
  EXPECT_THAT(yaml_of(with(llama, "rope_scaling", {{"type", "linear"}, {"factor", 2}})), HasSubstr("(linear)"));
  EXPECT_THAT([&] { sizes_from_huggingface(scaled.dump(1), "config.json"); },
              testing::ThrowsMessage<InputError>(
                  HasSubstr(R"(rope_scaling.rope_type: "llama3" is not supported (only default))")));
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

TEST(HuggingFaceConfig, MakesMistralAndQwenDecodersOfLlamasKind)
{
  EXPECT_EQ(parameters_of(workload_of(mistral)), 7'241'732'096U);  // Mistral-7B-v0.1
  // Qwen2.5-7B has 7,615,616,512; 28 x (3584 + 2 x 512) of them are biases.
  EXPECT_EQ(parameters_of(workload_of(qwen2)), 7'615'616'512U - 129'024U);
  EXPECT_THAT(yaml_of(qwen2),
              HasSubstr("# Left out: biases of queries, keys and values, 129024 parameters.\nmodel: llama\n"));
  // Qwen3-8B has 8,190,735,360; 36 x 2 x 128 of them normalise queries and keys.
  EXPECT_EQ(parameters_of(workload_of(qwen3)), 8'190'735'360U - 9'216U);
  EXPECT_THAT(yaml_of(qwen3), HasSubstr("# Left out: normalisations of queries and keys, 9216 parameters.\n"));
  for (const auto& config : {mistral, qwen2, qwen3}) {
    EXPECT_THAT([&] { sizes_from_huggingface(config.dump(1), "config.json"); },
                testing::ThrowsMessage<InputError>(HasSubstr("is not one of bert, gpt2, llama")));
  }
}

TEST(HuggingFaceConfig, LimitsTheSequenceToTheWindow)
{
  const std::string fault = "sliding_window: 4096 is less than the sequence of 5000; give a shorter --sequence";
  EXPECT_EQ(fault_of(mistral, {.sequence = 5000}), fault);
  Json without = mistral;
  without.erase("sliding_window");  // 4096 by default
  EXPECT_EQ(fault_of(without, {.sequence = 5000}), fault);
  EXPECT_EQ(fault_of(with(mistral, "sliding_window", nullptr), {.sequence = 5000}), "none");
  const auto narrow = with(qwen2, "sliding_window", 4096);
  EXPECT_EQ(fault_of(narrow, {.sequence = 5000}), "none");
  EXPECT_EQ(fault_of(with(narrow, "use_sliding_window", true), {.sequence = 5000}), fault);
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
  EXPECT_EQ(
      fault_of(moe),
      R"(architectures: names no supported model (bert, gpt2, llama, mistral, qwen2, qwen3): "Qwen3MoeForCausalLM")");
}

TEST(HuggingFaceConfig, IsRefusedByTheUnsupportedKey)
{
  EXPECT_EQ(fault_of(with(bert, "hidden_act", "relu")),
            R"(hidden_act: "relu" is not supported (only gelu, gelu_python))");
  EXPECT_EQ(fault_of(with(bert, "position_embedding_type", "relative_key")),
            R"(position_embedding_type: "relative_key" is not supported (only absolute))");
  EXPECT_EQ(fault_of(with(bert, "type_vocab_size", 1)), "type_vocab_size: 1 is not supported (only 2)");
  EXPECT_EQ(fault_of(with(bert, "layer_norm_eps", 1e-5)), "layer_norm_eps: 1e-05 is not supported (only 1e-12)");
  EXPECT_EQ(fault_of(with(bert, "is_decoder", true)), "is_decoder: true is not supported (only false)");
  EXPECT_EQ(fault_of(with(bert, "attention_probs_dropout_prob", 0.2)),
            "attention_probs_dropout_prob: 0.2 is not hidden_dropout_prob, 0.1; only one dropout for all places is "
            "supported");
  EXPECT_EQ(fault_of(with(bert, "classifier_dropout", 0)),
            "classifier_dropout: 0 is not hidden_dropout_prob, 0.1; only one dropout for all places is supported");
  EXPECT_EQ(fault_of(with(gpt2, "activation_function", "gelu")),
            R"(activation_function: "gelu" is not supported (only gelu_new, gelu_pytorch_tanh, gelu_fast))");
  EXPECT_EQ(fault_of(with(gpt2, "scale_attn_by_inverse_layer_idx", true)),
            "scale_attn_by_inverse_layer_idx: true is not supported (only false)");
  EXPECT_EQ(
      fault_of(with(llama, "rope_scaling", {{"rope_type", "mrope"}, {"factor", 8}})),
      R"(rope_scaling.rope_type: "mrope" is not supported (only default, linear, dynamic, yarn, longrope, llama3))");
  EXPECT_EQ(fault_of(with(llama, "attention_bias", true)), "attention_bias: true is not supported (only false)");
  EXPECT_EQ(fault_of(with(llama, "head_dim", 64)),
            "head_dim: 64 is not supported (only 128, hidden_size over num_attention_heads)");
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
  EXPECT_EQ(fault_of(with(llama, "rope_theta", 0)), "rope_theta: is 0");
  EXPECT_EQ(fault_of(with(llama, "rms_norm_eps", 0)), "rms_norm_eps: is 0");
}

TEST(HuggingFaceConfig, IsRefusedWithEveryFaultByLine)
{
  EXPECT_THAT(
      [] {
        workload_from_huggingface("{\"model_type\": \"gpt2\",\n\"n_embd\": -1,\n\"n_head\": 1}", "config.json",
                                  {.sequence = 1});
      },
      testing::ThrowsMessage<InputError>(
          testing::AllOf(HasSubstr("config.json:1: vocab_size: missing"),
                         HasSubstr("config.json:2: n_embd: \"-1\" is not a whole number"), Not(HasSubstr("divide")))));
  EXPECT_THAT(fault_of({{"model_type", "t5"}}), HasSubstr(R"("t5")"));
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
  EXPECT_EQ(std::get<BertSizes>(sizes_of(with(bert, "classifier_dropout", 0)).sizes).classes, 2U);
  EXPECT_THAT([&] { sizes_of(with(bert, "layer_norm_eps", 1e-5)); },
              testing::ThrowsMessage<InputError>(HasSubstr("layer_norm_eps: 1e-05 is not supported")));
  EXPECT_THAT(
      [&] {
        sizes_of({{"model_type", "qwen2"}});
      },
      testing::ThrowsMessage<InputError>(HasSubstr(R"(model_type: "qwen2" is not one of bert, gpt2, llama)")));
}

}  // namespace
}  // namespace isobar
