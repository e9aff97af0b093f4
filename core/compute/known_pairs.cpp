#include "core/compute/known_pairs.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace isobar::compute {

namespace {

struct KnownPair {
  std::string_view device;
  std::string_view framework;
  PairSource source;
};

constexpr KnownPair known_pairs[] = {
    {"A100-SXM4-80GB", "composer-fsdp-2023", PairSource::Fitted},
    {"A100-SXM4-80GB", "megatron-lm-2021", PairSource::Fitted},
    {"A100-SXM4-80GB", "megatron-lm-2022", PairSource::Fitted},
    {"GH200-96GB", "megatron-deepspeed-2024", PairSource::Fitted},
    {"H100-SXM-80GB", "composer-fsdp-2023", PairSource::Fitted},
    {"H100-SXM-80GB", "megatron-bridge-2026", PairSource::Fitted},
    {"H100-SXM-80GB", "megatron-core-0.8", PairSource::Compared},  // megatron_core_h100
};

}  // namespace

PairSource source_of_pair(const std::string& device, const Framework& framework)
{
  const auto found = std::find_if(std::begin(known_pairs), std::end(known_pairs), [&](const KnownPair& pair) {
    return pair.device == device && pair.framework == framework.name;
  });
  return found == std::end(known_pairs) ? PairSource::Other : found->source;
}

}  // namespace isobar::compute
