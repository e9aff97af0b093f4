#pragma once

#include "core/model/models.hpp"
#include "core/model/workload.hpp"

#include <variant>

namespace isobar::exec {

inline Workload small_bert()
{
  Workload workload;
  workload.name = "bert2";
  workload.micro_batch = 2;
  workload.sequence = 8;
  const BertSizes sizes{
      .encoders = 2, .hidden = 16, .heads = 2, .intermediate = 24, .vocabulary = 50, .positions = 10, .classes = 3};
  workload.model = sizes;
  build_bert(sizes, workload);
  return workload;
}

inline Workload small_gpt()
{
  Workload workload;
  workload.name = "gpt4";
  workload.micro_batch = 2;
  workload.sequence = 8;
  const GptSizes sizes{.layers = 4, .hidden = 16, .heads = 2, .intermediate = 32, .vocabulary = 40, .positions = 8};
  workload.model = sizes;
  build_gpt(sizes, workload);
  return workload;
}

/// The same with a head that uses the embedding's matrix.
inline Workload small_tied_gpt()
{
  Workload workload = small_gpt();
  auto& sizes = std::get<GptSizes>(workload.model);
  sizes.tied = true;
  workload.layers.clear();
  build_gpt(sizes, workload);
  return workload;
}

/// Models whose layers two or three devices can divide, equally or not.
inline Workload small_gpt_by_operators()
{
  Workload workload;
  workload.name = "gpt2_operators";
  workload.micro_batch = 2;
  workload.sequence = 8;
  const GptSizes sizes{.layers = 2,
                       .hidden = 24,
                       .heads = 6,
                       .intermediate = 20,
                       .vocabulary = 41,
                       .positions = 8,
                       .unit = Unit::Operator};
  workload.model = sizes;
  build_gpt(sizes, workload);
  return workload;
}

inline Workload small_llama_by_operators()
{
  Workload workload;
  workload.name = "llama2_operators";
  workload.micro_batch = 2;
  workload.sequence = 8;
  LlamaSizes sizes{.layers = 2, .hidden = 24, .heads = 6, .kv_heads = 3, .intermediate = 20, .vocabulary = 41};
  sizes.unit = Unit::Operator;
  workload.model = sizes;
  build_llama(sizes, workload);
  return workload;
}

}  // namespace isobar::exec
