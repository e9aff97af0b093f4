#pragma once

#include "core/model/models.hpp"
#include "core/model/workload.hpp"

#include <algorithm>
#include <filesystem>
#include <variant>
#include <vector>

/// Models of the shipped workloads in sizes that a CPU computes quickly.
namespace isobar::testing_support {

/// The files of workloads/ whose layers an executor can compute, apart from mixtures of experts (small_moe), by name.
inline std::vector<std::filesystem::path> shipped_workloads()
{
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(ISOBAR_SOURCE_DIR) / "workloads")) {
    if (entry.is_directory()) continue;
    const auto model = read_workload(entry.path()).model;
    const bool has_modules = !std::holds_alternative<std::monostate>(model) &&
                             !std::holds_alternative<spmd::MoeSizes>(model) &&
                             !std::holds_alternative<DecoderSizes>(model);
    if (has_modules) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

inline std::filesystem::path shipped_workload(const std::string& name)
{
  return std::filesystem::path(ISOBAR_SOURCE_DIR) / "workloads" / (name + ".yaml");
}

template <typename Sizes>
void shrink(Sizes& /*not of shipped_workloads()*/, Workload& /*workload*/)
{
}

inline void shrink(BertSizes& sizes, Workload& workload)
{
  sizes.encoders = std::min<std::uint64_t>(sizes.encoders, 24) / 8;
  sizes.heads = 3;
  sizes.hidden = 15;
  sizes.intermediate = 22;
  sizes.vocabulary = 31;
  sizes.positions = 13;
  build_bert(sizes, workload);
}

inline void shrink(GptSizes& sizes, Workload& workload)
{
  sizes.layers = 1 + sizes.layers % 5 % 3;
  sizes.heads = 2 + sizes.heads % 3;
  sizes.hidden = 5 * sizes.heads;
  sizes.intermediate = 17;
  sizes.vocabulary = 29;
  sizes.positions = 11;
  build_gpt(sizes, workload);
}

inline void shrink(LlamaSizes& sizes, Workload& workload)
{
  sizes.layers = 2;
  sizes.heads = 6;
  sizes.kv_heads = 2;
  sizes.hidden = 36;
  sizes.intermediate = 19;
  sizes.vocabulary = 37;
  build_llama(sizes, workload);
}

/// Its channels follow from its depth and stay large, so it gets fewer images.
inline void shrink(ResnetSizes& sizes, Workload& workload)
{
  workload.micro_batch = 2;
  sizes.image = 32;
  sizes.classes = 7;
  build_resnet(sizes, workload);
}

template <typename Sizes>
void build_again(const Sizes& /*not of shipped_workloads()*/, Workload& /*workload*/)
{
}
inline void build_again(const BertSizes& sizes, Workload& workload)
{
  build_bert(sizes, workload);
}
inline void build_again(const GptSizes& sizes, Workload& workload)
{
  build_gpt(sizes, workload);
}
inline void build_again(const LlamaSizes& sizes, Workload& workload)
{
  build_llama(sizes, workload);
}
inline void build_again(const ResnetSizes& sizes, Workload& workload)
{
  build_resnet(sizes, workload);
}

/// The same model with this kind of attention, and samples of `sequence` tokens.
inline Workload with_attention(Workload workload, Attention attention, std::uint64_t sequence)
{
  workload.sequence = sequence;
  workload.layers.clear();
  std::visit(
      [&](auto& sizes) {
        if constexpr (requires { sizes.attention; }) sizes.attention = attention;
        if constexpr (requires { sizes.positions; }) sizes.positions = std::max(sizes.positions, sequence);
        build_again(sizes, workload);
      },
      workload.model);
  return workload;
}

/// The workload of a file with a shrunk model: three samples of seven tokens, or two images.
inline Workload small_model(const std::filesystem::path& file, DType dtype = DType::Float32, double dropout = 0)
{
  auto workload = read_workload(file);
  workload.layers.clear();
  workload.dtype = dtype;
  workload.micro_batch = 3;
  if (workload.sequence > 1) workload.sequence = 7;
  workload.training.dropout = dropout;
  std::visit([&](auto& sizes) { shrink(sizes, workload); }, workload.model);
  return workload;
}

/// A mixture of experts of five layers. Its experts have few slots, so that some tokens are dropped.
inline Workload small_moe(spmd::Trunk trunk, DType dtype = DType::Float32, double dropout = 0,
                          std::uint64_t experts = 3)
{
  Workload workload;
  workload.name = "moe";
  workload.micro_batch = 3;
  workload.dtype = dtype;
  workload.training.dropout = dropout;
  spmd::MoeSizes sizes;
  sizes.trunk = trunk;
  sizes.layers = 5;
  sizes.hidden = 15;
  sizes.heads = 3;
  sizes.intermediate = 22;
  sizes.experts = experts;
  sizes.top_k = trunk == spmd::Trunk::Vit ? 1 : 2;
  sizes.rounds_up = true;
  if (trunk == spmd::Trunk::Bert) sizes.vocabulary = 29;
  sizes.sequence = 7;
  if (trunk == spmd::Trunk::Vit) {
    sizes.image = 12;
    sizes.patch = 4;
    sizes.classes = 7;
    sizes.sequence = spmd::patches_of(sizes) + 1;
  }
  workload.sequence = sizes.sequence;
  workload.model = sizes;
  build_moe(sizes, workload);
  return workload;
}

inline std::vector<Workload> small_moes(DType dtype = DType::Float32, double dropout = 0)
{
  using spmd::Trunk;
  return {small_moe(Trunk::Plain, dtype, dropout), small_moe(Trunk::Bert, dtype, dropout),
          small_moe(Trunk::Vit, dtype, dropout)};
}

/// A small model of each kind that an executor can compute.
inline std::vector<Workload> one_of_each_model(DType dtype = DType::Float32, double dropout = 0)
{
  std::vector<Workload> models = small_moes(dtype, dropout);
  for (const char* name : {"bert10", "gpt2_124m", "llama_8b", "resnet50"}) {
    models.push_back(small_model(shipped_workload(name), dtype, dropout));
  }
  return models;
}

/// The same model with attention and feed-forward network as layers of their own.
template <typename Sizes>
Workload by_operators(Workload workload, Sizes sizes, void (*build)(const Sizes&, Workload&))
{
  sizes.unit = Unit::Operator;
  workload.model = sizes;
  workload.layers.clear();
  build(sizes, workload);
  return workload;
}

/// Of a gpt or a llama.
inline Workload by_operators(const Workload& workload)
{
  const auto* gpt = std::get_if<GptSizes>(&workload.model);
  return gpt != nullptr ? by_operators(workload, *gpt, build_gpt)
                        : by_operators(workload, std::get<LlamaSizes>(workload.model), build_llama);
}

}  // namespace isobar::testing_support
