#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/huggingface/config.hpp"
#include "core/model/decoder/decoder_file.hpp"
#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/differences.hpp"
#include "core/model/workload.hpp"
#include "core/text/csv_table.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace isobar::decoder_config_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

const std::filesystem::path source = ISOBAR_SOURCE_DIR;
const std::filesystem::path configs = source / "tests/core/huggingface/configs";

Json config_of(const std::string& name)
{
  return Json::parse(read_file(configs / (name + ".json")));
}

std::string yaml_of(const Json& config, std::uint64_t sequence = 4096)
{
  return workload_from_huggingface(config.dump(1), "config.json", {.sequence = sequence});
}

Workload workload_of(const Json& config, const WorkloadSettings& settings = {}, std::uint64_t sequence = 4096)
{
  return workload_from_text(yaml_of(config, sequence), "imported.yaml", settings);
}

/// Parameters with one matrix for head and embedding where the model has one.
std::uint64_t parameters_of_model(const Workload& workload)
{
  return all_parameters(workload) - matrix_of_head(workload);
}

double forward_of(const Workload& workload)
{
  double sum = 0;
  for (const auto& layer : workload.layers) sum += layer.forward.value;
  return sum;
}

/// FLOPs of a training step, of each token, in 10^9.
double gigaflops_of_token(const Workload& workload)
{
  double sum = 0;
  for (const auto& layer : workload.layers) sum += layer.forward.value + layer.backward.value;
  return sum / static_cast<double>(workload.sequence * workload.micro_batch) / 1e9;
}

/// The fault, without the file's name.
std::string fault_of(const Json& config, std::uint64_t sequence = 128)
{
  try {
    yaml_of(config, sequence);
    return "none";
  } catch (const InputError& fault) {
    const std::string what = fault.what();
    EXPECT_THAT(what, testing::StartsWith("config.json:"));
    return what.substr(what.find(':') + 1);
  }
}

Json with(Json config, const std::string& key, const Json& value)
{
  config[key] = value;
  return config;
}

/// Parameters of published models: transformers 5.24.0, on the meta device (results/models/parameters.csv has the
/// defaults). The second number is what a token uses, in 10^9, with the head and without the embedding.
struct Published {
  std::string name;
  std::uint64_t parameters;
  double used = 0;  ///< 0: not known
};

const std::vector<Published> published = {{"llama_2_7b", 6'738'415'616},
                                          {"llama_2_13b", 13'015'864'320},
                                          {"llama_2_70b", 68'976'648'192},
                                          {"llama_3_2_1b", 1'235'814'400},
                                          {"llama_3_1_8b", 8'030'261'248},
                                          {"llama_3_1_70b", 70'553'706'496},
                                          {"llama_3_1_405b", 405'853'388'800},
                                          {"llama_4_scout", 107'769'861'120, 16.14},
                                          {"llama_4_maverick", 400'711'848'960, 16.15},
                                          {"qwen2_5_7b", 7'615'616'512},
                                          {"qwen2_5_72b", 72'706'203'648},
                                          {"qwen3_8b", 8'190'735'360},
                                          {"qwen3_32b", 32'762'123'264},
                                          {"qwen2_57b_a14b", 57'408'658'944, 13.71},
                                          {"qwen3_30b_a3b", 30'532'122'624, 3.04},
                                          {"qwen3_235b_a22b", 235'093'634'560, 21.57},
                                          {"qwen3_next_80b_a3b", 79'674'391'296, 3.56},
                                          {"mixtral_8x7b", 46'702'792'704, 12.75},
                                          {"mixtral_8x22b", 140'630'071'296, 38.96},
                                          {"deepseek_v2_lite", 15'706'484'224},
                                          {"deepseek_v2", 235'741'434'880, 20.85},
                                          {"deepseek_v3", 671'026'404'352, 36.63},
                                          {"deepseek_v4_flash", 284'332'230'231, 13.27},
                                          {"kimi_k2", 1'026'408'209'408, 31.69},
                                          {"gpt_oss_20b", 20'914'757'184, 3.61},
                                          {"gpt_oss_120b", 116'829'156'672, 5.13},
                                          {"gemma_2_9b", 9'241'705'984},
                                          {"gemma_2_27b", 27'227'128'320},
                                          {"gemma_3_4b", 3'880'263'168},
                                          {"gemma_3_27b", 27'009'346'304},
                                          {"glm_4_5", 352'797'814'784, 32.86},
                                          {"glm_4_5_air", 106'852'245'504, 12.80},
                                          {"glm_5", 743'911'199'232, 40.83},
                                          {"olmo_2_7b", 7'298'617'344},
                                          {"olmo_2_32b", 32'234'279'936},
                                          {"nemotron_h_8b", 8'100'852'736},
                                          {"nemotron_3_nano", 31'577'937'344, 3.23}};

TEST(DecoderConfig, CountsTheParametersOfPublishedModels)
{
  for (const auto& [name, parameters, used] : published) {
    const auto workload = workload_of(config_of(name));
    EXPECT_EQ(parameters_of_model(workload), parameters) << name;
    if (used == 0) continue;
    const auto& sizes = std::get<DecoderSizes>(workload.model);
    EXPECT_NEAR(static_cast<double>(decoder::parameters_of_token(sizes)) / 1e9, used, 0.006) << name;
  }
}

TEST(DecoderConfig, KnowsEveryConfigurationOfItsFolder)
{
  std::set<std::string> names;
  for (const auto& model : published) names.insert(model.name + ".json");
  for (const auto& file : std::filesystem::directory_iterator(configs)) {
    EXPECT_TRUE(names.contains(file.path().filename().string())) << file.path();
  }
}

TEST(DecoderConfig, WritesFilesThatMakeTheSameWorkload)
{
  for (const auto& model : published) {
    const std::string yaml = yaml_of(config_of(model.name));
    const auto workload = workload_from_text(yaml, "imported.yaml");
    const auto* sizes = std::get_if<DecoderSizes>(&workload.model);
    if (sizes == nullptr) continue;
    std::string again = "model: decoder\n";
    for (const auto& [key, value] : decoder::keys_of(*sizes)) again += fmt::format("{}: {}\n", key, value);
    for (const char* key :
         {"\nattention: ", "\ntied: ", "\nmicro_batch: ", "\nsequence: ", "\ndtype: ", "\noptimizer: "}) {
      const std::size_t at = yaml.find(key);
      if (at != std::string::npos) again += yaml.substr(at + 1, yaml.find('\n', at + 1) - at);
    }
    EXPECT_EQ(workload_to_json(workload_from_text(again, "imported.yaml")), workload_to_json(workload)) << model.name;
  }
}

// The figures leave the routers' products out: facts of NVIDIA's two printed columns, which agree to 0.3 %.
TEST(DecoderConfig, CountsTheWorkOfTokensAsPublished)
{
  const std::vector<std::pair<std::string, double>> figures = {{"qwen3_30b_a3b", 23.01}, {"qwen3_235b_a22b", 148.0},
                                                               {"deepseek_v3", 249.8},   {"kimi_k2", 204.5},
                                                               {"gpt_oss_120b", 32.63},  {"qwen3_next_80b_a3b", 22.7}};
  for (const auto& [name, figure] : figures) {
    const auto workload = workload_of(config_of(name));
    const auto& sizes = std::get<DecoderSizes>(workload.model);
    double routers = 0;
    for (const auto& block : sizes.blocks) {
      if (block.feed_forward == FeedForward::Experts) {
        routers += 6 * static_cast<double>(sizes.hidden * sizes.experts.count) / 1e9;
      }
    }
    EXPECT_NEAR(gigaflops_of_token(workload) - routers, figure, 0.003 * figure) << name;
  }
  const auto further = workload_of(config_of("deepseek_v3"), {{"mtp_layers", "1"}});
  EXPECT_NEAR(gigaflops_of_token(further), 260.0, 0.003 * 260.0);
  const auto mixtral = workload_of(config_of("mixtral_8x22b"), {}, 8192);
  EXPECT_NEAR(gigaflops_of_token(mixtral), 250.7, 0.001 * 250.7);
}

TEST(DecoderConfig, CountsABlockOfMultiTokenPrediction)
{
  const auto v3 = config_of("deepseek_v3");
  const auto without = workload_of(v3, {{"unit", "operator"}});
  const auto further = workload_of(v3, {{"unit", "operator"}, {"mtp_layers", "1"}});
  EXPECT_EQ(all_parameters(further) - all_parameters(without), 11'610'067'968U);
  ASSERT_EQ(further.layers.size(), without.layers.size() + 2);
  EXPECT_EQ(further.layers[further.layers.size() - 3].name, "mtp0.attention");
  EXPECT_EQ(further.layers[further.layers.size() - 2].name, "mtp0.mlp");
  EXPECT_EQ(further.layers.back().forward, 2 * without.layers.back().forward);
  EXPECT_THAT(yaml_of(v3),
              HasSubstr("# transformers has no multi-token prediction; with mtp_layers: 1 it trains, too.\n"));
}

TEST(DecoderConfig, CountsTheBlocksOfDeepseek)
{
  const auto workload = workload_of(config_of("deepseek_v3"), {{"unit", "operator"}});
  const auto& attention = workload.layers[61];  // of block 30
  const auto& mlp = workload.layers[62];
  ASSERT_EQ(attention.name, "block30.attention");
  EXPECT_EQ(attention.parameters, 187'107'328U + 7168);  // with the norm of its input
  ASSERT_TRUE(mlp.experts.has_value());
  EXPECT_EQ(mlp.experts->count, 256U);
  EXPECT_EQ(mlp.experts->per_token, 8U);
  EXPECT_EQ(mlp.experts->parameters, 11'274'289'152U);
  EXPECT_EQ(mlp.parameters, 11'274'289'152U + 44'040'192 + 7168 * 256 + 7168);
  EXPECT_EQ(mlp.experts->dispatched, Bytes(2.0 * 4096 * 8 * 7168));
  EXPECT_EQ(mlp.experts->forward, Flops(2.0 * 4096 * 8 * 3 * 7168 * 2048));
  EXPECT_EQ(mlp.experts->backward_weight, mlp.experts->forward);
  EXPECT_FALSE(workload.layers[2].experts.has_value());  // a dense one
  EXPECT_FALSE(attention.experts.has_value());
}

/// A row of results/models/transformers.csv, which tools/transformers_parameters.py writes with transformers 5.24.0 and
/// torch 2.11.0 on the meta device.
struct Counted {
  std::string type;
  std::uint64_t parameters = 0;
  std::optional<double> flops = {};  ///< of a forward pass of 128 tokens; none where torch counts other work
};

std::vector<Counted> counted_by_transformers()
{
  FaultList faults("transformers.csv");
  const auto table = CsvTable::by_program(read_file(source / "results/models/transformers.csv"),
                                          "model_type,parameters,flops_of_128_tokens,note", faults);
  faults.throw_if_any();
  std::vector<Counted> rows;
  for (const auto& row : table.rows()) {
    Counted counted = {row.cells[0], std::stoull(row.cells[1])};
    if (!row.cells[2].empty()) counted.flops = std::stod(row.cells[2]);
    rows.push_back(std::move(counted));
  }
  return rows;
}

/// FLOPs as torch counts them: eager attention computes all pairs of tokens and tokens, or entries of several tokens.
double counted_by_torch(const Workload& workload)
{
  const auto& sizes = std::get<DecoderSizes>(workload.model);
  const std::uint64_t sequence = workload.sequence;
  double sum = forward_of(workload);
  for (const auto& block : sizes.blocks) {
    const auto core = decoder::core_of(sizes, block, sequence);
    const auto keys = static_cast<double>(keys_of_sample(sizes, block.mixer, sequence));
    const auto tokens = static_cast<double>(sequence);
    const auto widths = static_cast<double>(sizes.heads * (core.query_width + core.value_width));
    sum += 2 * (tokens * keys - seen_pairs(sizes, block.mixer, sequence)) * widths;
    const double scored = scored_pairs(sizes, block.mixer, sequence);
    const auto index = static_cast<double>(sizes.indexer.heads * sizes.indexer.width);
    if (scored > 0) sum += 2 * (tokens * (keys - tokens) - scored) * index;
  }
  return sum;
}

TEST(DecoderConfig, CountsTheParametersOfDefaultsAsTransformersDoes)
{
  const auto rows = counted_by_transformers();
  ASSERT_EQ(rows.size(), 35U);
  for (const auto& [type, parameters, flops] : rows) {
    EXPECT_EQ(parameters_of_model(workload_of({{"model_type", type}}, {}, 128)), parameters) << type;
    const auto saved = Json::parse(read_file(source / "tests/core/huggingface/defaults" / (type + ".json")));
    EXPECT_EQ(parameters_of_model(workload_of(saved, {}, 128)), parameters) << type << ", as transformers saves it";
  }
}

TEST(DecoderConfig, CountsTheTypesOfTheTable)
{
  std::vector<std::string> ours;
  for (const auto& type : huggingface_types()) ours.push_back(type.model_type);
  EXPECT_TRUE(std::is_sorted(ours.begin(), ours.end()));
  std::vector<std::string> theirs = {"bert", "kimi_k2"};  // a classifier, and deepseek_v3 by another name
  for (const auto& row : counted_by_transformers()) theirs.push_back(row.type);
  EXPECT_THAT(ours, testing::UnorderedElementsAreArray(theirs));
}

TEST(DecoderConfig, CountsTheFlopsOfDefaultsAsTorchDoes)
{
  std::size_t compared = 0;
  for (const auto& [type, parameters, flops] : counted_by_transformers()) {
    if (!flops) continue;
    const auto workload = workload_of({{"model_type", type}}, {}, 128);
    const bool counts_all_pairs = !std::holds_alternative<DecoderSizes>(workload.model);
    const double counted = counts_all_pairs ? forward_of(workload) : counted_by_torch(workload);
    EXPECT_NEAR(counted / *flops, 1, 1e-6) << type;
    ++compared;
  }
  EXPECT_EQ(compared, 30U);
}

// A configuration of 4 small layers of all kinds: transformers 5.24.0 on the meta device, and torch 2.11.0's counter.
TEST(DecoderConfig, CountsTheWorkOfEntriesInSamplesOfAnyLength)
{
  const Json small = {{"model_type", "deepseek_v4"},
                      {"num_hidden_layers", 4},
                      {"layer_types",
                       {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                        "compressed_sparse_attention"}},
                      {"compress_rates", {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 16}}},
                      {"hidden_size", 64},
                      {"num_attention_heads", 8},
                      {"head_dim", 16},
                      {"partial_rotary_factor", 0.25},
                      {"q_lora_rank", 24},
                      {"o_groups", 4},
                      {"o_lora_rank", 12},
                      {"index_n_heads", 2},
                      {"index_head_dim", 8},
                      {"index_topk", 3},
                      {"sliding_window", 16},
                      {"hc_mult", 2},
                      {"vocab_size", 1000},
                      {"n_routed_experts", 16},
                      {"num_experts_per_tok", 2},
                      {"moe_intermediate_size", 32}};
  for (const auto& [sequence, flops] :
       std::vector<std::pair<std::uint64_t, double>>{{77, 46'022'592}, {128, 91'947'008}, {160, 126'976'000}}) {
    const auto workload = workload_of(small, {}, sequence);
    EXPECT_EQ(parameters_of_model(workload), 616'219U);
    EXPECT_EQ(counted_by_torch(workload), flops) << sequence;
  }
}

TEST(DecoderConfig, TakesTheTextOfALargerModel)
{
  const auto gemma = config_of("gemma_3_4b");
  EXPECT_THAT(yaml_of(gemma), testing::StartsWith("# Converted from config.json, text_config alone, model_type "
                                                  "gemma3_text of Hugging Face's transformers.\n"));
  EXPECT_EQ(workload_of(gemma).dtype, DType::BFloat16);  // of the larger model
  EXPECT_TRUE(workload_of(gemma).ties_apart);
  Json older = gemma;
  older["text_config"].erase("model_type");
  EXPECT_EQ(yaml_of(older), yaml_of(gemma));
  EXPECT_FALSE(workload_of(with(gemma, "tie_word_embeddings", false)).ties_apart);
  Json own = gemma;
  own["text_config"]["torch_dtype"] = "float16";
  EXPECT_EQ(workload_of(own).dtype, DType::Float16);
  const Json llava = {{"model_type", "llava"}, {"text_config", {{"model_type", "llama"}}}};
  EXPECT_THAT(yaml_of(llava, 128), HasSubstr("\nmodel: llama\n"));
}

TEST(DecoderConfig, GivesLayersTheirKinds)
{
  const auto pattern = [](const Json& config) {
    const std::string yaml = yaml_of(config);
    const std::size_t at = yaml.find("\nlayer_types: ");
    return at == std::string::npos ? "" : yaml.substr(at + 14, yaml.find('\n', at + 1) - at - 14);
  };
  EXPECT_EQ(pattern(config_of("gemma_3_27b")), "[window*5, full]");
  EXPECT_EQ(pattern(config_of("gemma_2_9b")), "[window, full]");
  EXPECT_EQ(pattern(config_of("gpt_oss_20b")), "[window, full]");
  EXPECT_EQ(pattern(config_of("qwen3_next_80b_a3b")), "[delta_net*3, full]");
  EXPECT_EQ(pattern(config_of("llama_4_scout")), "[chunk*3, full]");
  EXPECT_EQ(pattern(config_of("deepseek_v3")), "[latent]");
  EXPECT_EQ(pattern(config_of("qwen3_8b")), "");  // all are full
  EXPECT_EQ(pattern({{"model_type", "deepseek_v4"}, {"num_hidden_layers", 6}}),
            "[heavily_compressed*3, compressed_sparse, heavily_compressed, compressed_sparse]");
  EXPECT_THAT(pattern(config_of("deepseek_v4_flash")),
              testing::StartsWith("[window*2, compressed_sparse, heavily_compressed, compressed_sparse, "));
  EXPECT_THAT(yaml_of(config_of("llama_4_scout")), HasSubstr("\nrotary: [true*3, false]\n"));
  EXPECT_THAT(yaml_of(config_of("deepseek_v3")), HasSubstr("\nmlp_layer_types: [dense*3, experts*58]\n"));
  EXPECT_THAT(yaml_of(config_of("llama_4_maverick")), HasSubstr("\nmlp_layer_types: [dense, experts]\n"));
}

TEST(DecoderConfig, ListsWhatTheModelComputesDifferently)
{
  EXPECT_THAT(workload_of(config_of("gemma_2_27b")).differences, testing::IsEmpty());
  EXPECT_THAT(workload_of({{"model_type", "granite"}, {"residual_multiplier", 0.22}}, {}, 128).differences,
              testing::ElementsAre("residual_multiplier 0.22, not 1"));
  EXPECT_THAT(workload_of(config_of("deepseek_v3")).differences,
              testing::ElementsAre("rope_scaling.type yarn, not default", "topk_group 4 of 8, not all groups"));
  EXPECT_THAT(workload_of(config_of("llama_4_scout")).differences,
              testing::IsSupersetOf({"text_config.router scales the inputs of experts, not their outputs",
                                     "text_config.use_qk_norm of layers with rotary positions, not of all"}));
}

TEST(DecoderConfig, ReadsBothSpellingsOfDeepseekV4)
{
  const Json older = {{"model_type", "deepseek_v4"}, {"num_hidden_layers", 3},  {"compress_ratios", {0, 4, 128, 0}},
                      {"compress_rate_csa", 8},      {"compress_rate_hca", 64}, {"num_hash_layers", 1},
                      {"qk_rope_head_dim", 32},      {"rope_theta", 20'000},    {"compress_rope_theta", 30'000},
                      {"intermediate_size", 1024}};
  const Json newer = {
      {"model_type", "deepseek_v4"},
      {"num_hidden_layers", 3},
      {"layer_types", {"sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"}},
      {"mlp_layer_types", {"hash_moe", "moe", "moe"}},
      {"compress_rates", {{"compressed_sparse_attention", 8}, {"heavily_compressed_attention", 64}}},
      {"rope_parameters",
       {{"main", {{"rope_theta", 20'000}, {"partial_rotary_factor", 0.0625}}},
        {"compress", {{"rope_theta", 30'000}, {"partial_rotary_factor", 0.0625}}}}},
      {"moe_intermediate_size", 1024}};
  const std::string yaml = yaml_of(newer, 128);
  EXPECT_EQ(yaml_of(older, 128), yaml);
  EXPECT_THAT(yaml, HasSubstr("\nlayer_types: [window, compressed_sparse, heavily_compressed]\n"));
  EXPECT_THAT(yaml, HasSubstr("\nsliding_window: 128\nqk_norm: weighted_keys\nattention_sinks: true\nshared_kv: true\n"
                              "q_lora_rank: 1024\no_groups: 8\no_lora_rank: 1024\ncompress_rate_csa: 8\n"
                              "compress_rate_hca: 64\nindex_n_heads: 64\nindex_head_dim: 128\nindex_topk: 512\n"));
  EXPECT_THAT(yaml, HasSubstr("\nhc_mult: 4\n"));
  EXPECT_THAT(yaml, HasSubstr("\nrope_theta: 30000\nwindow_rope_theta: 20000\nrotary_dim: 32\n"));
  EXPECT_THAT(workload_from_text(yaml, "imported.yaml").differences,
              testing::ElementsAre("scoring_func sqrtsoftplus, not sigmoid",
                                   "mlp_layer_types hash_moe in 1 layers, not moe", "swiglu_limit 10, not null"));
  const Json part = {{"model_type", "deepseek_vl"}, {"text_config", newer}};
  EXPECT_THAT(yaml_of(part, 128), HasSubstr("\nlayer_types: [window, compressed_sparse, heavily_compressed]\n"));
  EXPECT_THAT(workload_of(config_of("deepseek_v4_flash")).differences,
              testing::ElementsAre("rope_scaling.type yarn, not default", "scoring_func sqrtsoftplus, not sigmoid",
                                   "mlp_layer_types hash_moe in 3 layers, not moe", "swiglu_limit 10, not null"));
}

TEST(DecoderConfig, WritesWhatOnlyTheExecutorReads)
{
  EXPECT_THAT(yaml_of(config_of("gemma_2_27b")),
              HasSubstr("\nzero_centered_gamma: true\nembedding_multiplier: 67.88225099390856\n"
                        "query_pre_attn_scalar: 144\nattn_logit_softcapping: 50\nfinal_logit_softcapping: 30\n"));
  EXPECT_THAT(yaml_of(config_of("deepseek_v3")), HasSubstr("\nscoring_func: sigmoid\nrouted_scaling_factor: 2.5\n"));
  EXPECT_THAT(yaml_of({{"model_type", "qwen3_moe"}}, 128), HasSubstr("\nnorm_topk_prob: false\n"));
  EXPECT_THAT(yaml_of({{"model_type", "mixtral"}}, 128), testing::Not(HasSubstr("norm_topk_prob")));
  const Json scaled = {{"model_type", "qwen3"},
                       {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 4}, {"low_freq_factor", 0.5}}}};
  EXPECT_THAT(yaml_of(scaled, 128), HasSubstr("\nrope_type: llama3\nrope_factor: 4\nrope_low_freq_factor: 0.5\n"));
}

TEST(DecoderConfig, SaysThatPublishedWeightsHaveFewerBits)
{
  EXPECT_THAT(yaml_of(config_of("deepseek_v3")),
              HasSubstr("# Published in fewer bits (quantization_config); here it trains in dtype.\n"));
}

TEST(DecoderConfig, NamesTheLineAndTheKeyOfEachFault)
{
  const Json small = {{"model_type", "qwen3_moe"}, {"num_hidden_layers", 2}};
  EXPECT_EQ(fault_of(with(small, "num_experts_per_tok", 200)),
            "4: num_experts_per_tok: 200 is more than num_experts, 128 (transformers' default)");
  EXPECT_EQ(fault_of(with(small, "num_key_value_heads", 3)),
            "4: num_key_value_heads: 3 does not divide num_attention_heads, 32 (transformers' default)");
  EXPECT_EQ(fault_of(with(small, "hidden_act", "mish")),
            "4: hidden_act: \"mish\" is not supported (only gelu, gelu_fast, gelu_new, gelu_python, "
            "gelu_pytorch_tanh, relu, relu2, silu, swish)");
  EXPECT_EQ(fault_of(with(small, "rms_norm_eps", 0)), "4: rms_norm_eps: is 0; write a positive number");
  EXPECT_EQ(fault_of(with(small, "rope_parameters", {{"rope_theta", 0}})),
            "5: rope_parameters.rope_theta: is 0; write a positive number");
  EXPECT_EQ(fault_of(with(small, "mlp_only_layers", {"first"})),
            "4: mlp_only_layers: \"first\" is not the number of a layer");
  EXPECT_EQ(fault_of(small, 40'000),
            "1: max_position_embeddings: 32768 (transformers' default) is less than the sequence of 40000; give a "
            "shorter --sequence");

  const Json gpt_oss = {{"model_type", "gpt_oss"}, {"num_hidden_layers", 2}};
  EXPECT_EQ(fault_of(with(gpt_oss, "layer_types", {"full_attention"})),
            "4: layer_types: lists 1 layers; num_hidden_layers is 2");
  EXPECT_EQ(fault_of(with(gpt_oss, "layer_types", {"full_attention", "hybrid"})),
            "4: layer_types: \"hybrid\" is not supported (only chunked_attention, full_attention, linear_attention, "
            "sliding_attention)");
  EXPECT_EQ(fault_of(with(gpt_oss, "sliding_window", 0)),
            "4: sliding_window: \"0\" is out of range; write a whole number from 1 to 16777216");

  const Json glm = {{"model_type", "glm_moe_dsa"}, {"num_hidden_layers", 2}};
  EXPECT_EQ(fault_of(with(glm, "index_topk_freq", 4)), "4: index_topk_freq: 4 is not supported (only 1)");
  EXPECT_EQ(fault_of(with(glm, "indexer_types", {"full", "shared"})),
            "4: indexer_types: lists layers that share an indexer, which is not supported (only full)");
  EXPECT_EQ(fault_of(with(glm, "mlp_layer_types", {"dense", "moe"})),
            "4: mlp_layer_types: \"moe\" is not supported (only dense, sparse)");

  const Json v4 = {{"model_type", "deepseek_v4"}, {"num_hidden_layers", 2}};
  EXPECT_EQ(fault_of(with(v4, "compress_ratios", {4})), "4: compress_ratios: lists 1 layers; num_hidden_layers is 2");
  EXPECT_EQ(fault_of(with(v4, "compress_ratios", {4, 8})),
            "4: compress_ratios: \"8\" is not supported (only 0, 128, 4)");
  EXPECT_EQ(fault_of(with(v4, "layer_types", {"sliding_attention", "full_attention"})),
            "4: layer_types: \"full_attention\" is not supported (only compressed_sparse_attention, "
            "heavily_compressed_attention, sliding_attention)");
  EXPECT_EQ(fault_of(with(v4, "mlp_layer_types", {"moe", "dense"})),
            "4: mlp_layer_types: \"dense\" is not supported (only hash_moe, moe)");
  EXPECT_EQ(fault_of(with(v4, "compress_rates", {{"compressed_sparse_attention", 4}})),
            "4: compress_rates.heavily_compressed_attention: missing; write a whole number from 1 to 65536");
  EXPECT_EQ(fault_of(with(v4, "num_key_value_heads", 8)), "4: num_key_value_heads: 8 is not supported (only 1)");
  EXPECT_EQ(fault_of(with(v4, "n_shared_experts", 2)), "4: n_shared_experts: 2 is not supported (only 1)");
  EXPECT_EQ(fault_of(with(v4, "o_groups", 7)),
            "4: o_groups: 7 does not divide num_attention_heads, 64 (transformers' default)");
  EXPECT_EQ(fault_of(with(v4, "scoring_func", "tanh")),
            "4: scoring_func: \"tanh\" is not supported (only softmax, sigmoid, sqrtsoftplus)");
  EXPECT_EQ(fault_of(with(v4, "hc_mult", 17)), "4: hc_mult: \"17\" is out of range; write a whole number from 1 to 16");

  const Json opt = {{"model_type", "opt"}, {"num_hidden_layers", 2}};
  EXPECT_EQ(fault_of(with(opt, "do_layer_norm_before", false)),
            "4: do_layer_norm_before: false is not supported (only true)");
  EXPECT_EQ(fault_of(with(opt, "word_embed_proj_dim", 512)), "4: word_embed_proj_dim: 512 is not supported (only 768)");
  EXPECT_EQ(fault_of({{"model_type", "mpt"}, {"expansion_ratio", 8}}),
            "3: expansion_ratio: 8 is not supported (only 4)");
  EXPECT_EQ(fault_of({{"model_type", "nemotron_h"}, {"hybrid_override_pattern", "M-X"}}),
            "3: hybrid_override_pattern: \"X\" is no kind of layer (only M, E, * and -, or linear_attention, moe, "
            "full_attention and mlp)");
  EXPECT_EQ(fault_of({{"model_type", "nemotron_h"}, {"n_groups", 3}}),
            "3: n_groups: 3 does not divide mamba_num_heads, 128 (transformers' default)");
  EXPECT_EQ(fault_of({{"model_type", "falcon"}, {"num_attention_heads", 64}, {"hidden_size", 100}}),
            "3: num_attention_heads: 64 does not divide hidden_size, 100");
  EXPECT_EQ(fault_of({{"model_type", "gemma3_text"}, {"use_bidirectional_attention", true}}),
            "3: use_bidirectional_attention: true is not supported (only false)");
  EXPECT_THAT(fault_of({{"model_type", "mamba2"}}),
              testing::StartsWith("2: model_type: \"mamba2\" is not supported (only bert, bloom, cohere, "));
  EXPECT_THAT(fault_of({{"model_type", ""}}), testing::StartsWith("2: model_type: \"\" is not supported (only bert, "));
  EXPECT_EQ(fault_of({{"model_type", "nemotron_h"}, {"hybrid_override_pattern", ""}}),
            "3: hybrid_override_pattern: names 0 layers; 1 to 10000 are supported");
  const Json audio = {{"model_type", "voice"}, {"text_config", {{"hidden_size", 64}}}};
  EXPECT_THAT(fault_of(audio), testing::StartsWith("2: model_type: \"voice\" is not supported (only gemma3, llama4)"));
}

}  // namespace
}  // namespace isobar::decoder_config_test
