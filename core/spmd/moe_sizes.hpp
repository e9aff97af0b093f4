#pragma once

#include <cstdint>

namespace isobar::spmd {

/// What a mixture-of-experts transformer has before and after its layers.
enum class Trunk : std::uint8_t {
  Plain,  ///< reads hidden states; the loss is their sum
  Bert,   ///< an embedding with sinusoidal positions and a causal mask; predicts the next token
  Vit     ///< patches of an image, a class token and learned positions; classifies the image
};

/// How tokens come to their experts.
struct Routing {
  /// Samples whose tokens share the slots of each expert. 1: dividing the batch drops the same tokens.
  std::uint64_t capacity_samples = 1;
  /// Tokens are copied to their experts, all of them and without slots, instead of by products with masks.
  bool by_index = false;

  bool operator==(const Routing&) const = default;
};

/// Sizes of a transformer in which every second layer, beginning with the second, has experts instead of the
/// feed-forward network (Lepikhin et al., GShard, 2020; Fedus et al., Switch Transformers, 2021).
struct MoeSizes {
  Trunk trunk = Trunk::Plain;
  std::uint64_t layers = 1;
  std::uint64_t hidden = 1;
  std::uint64_t heads = 1;
  std::uint64_t intermediate = 1;
  std::uint64_t sequence = 1;    ///< tokens of a sample; of Vit, patches + 1
  std::uint64_t experts = 0;     ///< 0: every layer has a feed-forward network
  std::uint64_t top_k = 1;       ///< experts that each token is sent to
  double capacity_factor = 1;    ///< slots of the experts over what the tokens need if they choose evenly
  bool rounds_up = false;        ///< the capacity, otherwise down
  std::uint64_t vocabulary = 1;  ///< of Bert
  std::uint64_t image = 1;       ///< of Vit: the side of a square of 3 channels
  std::uint64_t patch = 1;       ///< of Vit: the side of a patch, a divisor of `image`
  std::uint64_t classes = 1;     ///< of Vit
  bool parity = false;           ///< the operators and FLOPs of the published code (Rules::Published)
  Routing routing = {};
  bool by_operator = false;  ///< a layer of the workload for each operator; otherwise for each block
};

/// Patches of an image, of Vit.
constexpr std::uint64_t patches_of(const MoeSizes& sizes)
{
  return (sizes.image / sizes.patch) * (sizes.image / sizes.patch);
}

/// Slots of an expert for a group of samples: capacity_factor · top_k · tokens / experts, rounded. Of one sample, a
/// class token does not count; of several, rounded up, at least 4. By index: the tokens of an expert, rounded up.
std::uint64_t capacity_of(const MoeSizes& sizes);

}  // namespace isobar::spmd
