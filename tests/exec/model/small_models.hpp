#pragma once

#include "core/model/models.hpp"
#include "core/model/workload.hpp"

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

}  // namespace isobar::exec
