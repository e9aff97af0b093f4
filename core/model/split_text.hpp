#pragma once

#include "core/model/workload.hpp"

#include <string>
#include <variant>

namespace isobar {

/// What messages call the units of a split: its name, or "key/value heads" where several heads share keys and values,
/// so that shards divide these.
inline std::string units_in_words(const Workload& workload, const Split& split)
{
  const auto* sizes = std::get_if<LlamaSizes>(&workload.model);
  const bool shares_keys = sizes != nullptr && sizes->kv_heads < sizes->heads;
  return shares_keys && split.name == "heads" ? "key/value heads" : split.name;
}

/// What keeps shards from dividing a layer without a split, or what the workload needs for them.
inline std::string why_whole(const Workload& workload)
{
  const auto* decoder = std::get_if<DecoderSizes>(&workload.model);
  if (decoder != nullptr && decoder->streams > 1) return "hyper-connections (hc_mult) read all streams";
  return "a gpt or llama needs unit: operator";
}

}  // namespace isobar
