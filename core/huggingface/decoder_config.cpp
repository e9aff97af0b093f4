#include "core/huggingface/decoder_config.hpp"

#include "core/huggingface/decoder_types.hpp"

#include <algorithm>

namespace isobar::huggingface {

namespace {

/// Sets what no block uses to nothing, so that a workload file has no key of it.
void leave_out_unused(DecoderSizes& sizes)
{
  const auto has = [&](FeedForward network) {
    return std::any_of(sizes.blocks.begin(), sizes.blocks.end(),
                       [network](const auto& block) { return block.feed_forward == network; });
  };
  if (!has(FeedForward::Dense)) sizes.intermediate = 0;
  if (!has(FeedForward::Experts)) sizes.experts = {};
}

}  // namespace

std::vector<std::string> decoder_types()
{
  std::vector<std::string> names;
  for (const auto& types : {dense_types(), mixture_types()}) {
    for (const auto& type : types) names.emplace_back(type.name);
  }
  std::ranges::sort(names);
  return names;
}

DecoderConfig read_decoder(ConfigReader& config, const std::string& type)
{
  DecoderReader reader(config);
  for (const auto& types : {dense_types(), mixture_types()}) {
    const auto found = std::ranges::find(types, type, &DecoderType::name);
    if (found != types.end()) found->read(reader);
  }
  DecoderConfig read = reader.take();
  leave_out_unused(read.sizes);
  return read;
}

}  // namespace isobar::huggingface
